"""The section [cluster]: machines of one kind, or ``[[cluster.groups]]`` of several.

Ranks fill the groups in the order in which they are listed. Every group brings the servers, the
fabric, the collective library and the price of a cluster profile; what a kind of servers does is
priced as on a cluster of them alone (``Cluster.kinds``), and ``events/deviations/deviations.py``
puts stages and replicas on the servers that their ranks lie on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from annotated_types import Gt, Le

from simulator.errors import InputError, problem
from simulator.files import Items, Unit, Whole, build, record
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.section import Rule, Section, build_section
from simulator.workload.recipe import LARGEST

Positive = Annotated[Whole, Gt(0), Le(LARGEST)]


@record
class ClusterSection:
    """Which machines, how many, and what runs on them."""

    name: str
    """A cluster profile of hardware_profiles/clusters, or a path to one."""
    gpus: Annotated[Positive, Unit("accelerators")]
    """Accelerators of the run."""
    software: str | None = None
    """A software profile of hardware_profiles/software, or a path to one; none: what usually runs
    on the accelerator (`[usual]` of hardware_profiles/releases.toml)."""


@record
class NodeGroupSection:
    """Servers of one kind, which take the next ranks."""

    name: str
    """A cluster profile of hardware_profiles/clusters, or a path to one: servers, fabric, price."""
    gpus: Annotated[Whole, Gt(0), Le(LARGEST), Unit("accelerators")]
    """Accelerators of the group: whole servers, and whole scale-up domains, where it is not the
    only one."""


@record
class GroupedSection:
    """The same of servers of several kinds, which ``foreshard plan`` and ``simulate`` take."""

    groups: Annotated[Any, Items(NodeGroupSection)]
    """Instead of name and gpus: [[cluster.groups]], each with a name and gpus of its own, which
    ranks fill in this order."""
    software: str | None = None
    """A software profile, as without groups; none: what usually runs on the first of them."""


def read_cluster(raw: Any, *, where: str) -> Cluster:
    """Read [cluster], and the profiles it names: of one name and number, or of a list of groups."""
    if not (isinstance(raw, Mapping) and "groups" in raw):
        section = build_section(ClusterSection, raw, where=where, name="cluster")
        return load_cluster(section.name, section.gpus, where=where)
    if both := [name for name in ("name", "gpus") if name in raw]:
        rule = f"must stand without cluster.{' and cluster.'.join(both)}: each group has its own"
        raise InputError(f"{where}: cluster.groups: {rule}")
    grouped = build(GroupedSection, raw, where=where, prefix="cluster")
    return load_groups(grouped.groups, where=where)


def load_groups(groups: Any, *, where: str, field: str = "cluster.groups") -> Cluster:
    """Read the profiles of a list of groups and join them.

    One group, or several of one profile, are what ``name`` and ``gpus`` make of them.

    Raises
    ------
    InputError
        With all that is wrong in any group.
    """
    if not isinstance(groups, (list, tuple)) or not groups:
        rule = "must be a list of tables, [[cluster.groups]], each with name and gpus"
        raise InputError(problem(where, field, rule, groups))
    sections = _collected([_sectioned(x, where, f"{field}[{i}]") for i, x in enumerate(groups)])
    if len(sections) > 1:
        _collected([_whole(section, where, f"{field}[{i}]") for i, section in enumerate(sections)])
    joined = _joined(sections, where, field)
    if wrong := list(_wrong_sizes(joined, where, field)):
        raise InputError(wrong)
    return joined


def _collected(outcomes: Sequence[Any]) -> list[Any]:
    """The values, or one error with the problems of all that are errors."""
    wrong = [
        text for outcome in outcomes if isinstance(outcome, InputError) for text in outcome.problems
    ]
    if wrong:
        raise InputError(wrong)
    return list(outcomes)


def _sectioned(raw: Any, where: str, field: str) -> NodeGroupSection | InputError:
    if not isinstance(raw, Mapping):
        return InputError(problem(where, field, "must be a table of name and gpus", raw))
    try:
        return build(NodeGroupSection, raw, where=where, prefix=field)
    except InputError as error:
        return error


def _whole(section: NodeGroupSection, where: str, field: str) -> Cluster | InputError:
    """Beside other groups no server is used in part: the next rank would lie on it."""
    try:
        cluster = load_cluster(section.name, section.gpus, where=where, field=field)
    except InputError as error:
        return error
    if section.gpus % (size := cluster.node.accelerators) == 0:
        return cluster
    rule = f"must be a multiple of {size} (whole servers) beside other groups"
    return InputError(problem(where, f"{field}.gpus", rule, section.gpus) + f" (nearest: {size})")


def _joined(sections: Sequence[NodeGroupSection], where: str, field: str) -> Cluster:
    """One cluster of all groups, and one of each kind that is as large."""
    of_kind: dict[str, int] = {}
    for section in sections:
        of_kind[section.name] = of_kind.get(section.name, 0) + section.gpus
    names, gpus = list(of_kind), sum(of_kind.values())
    first = {name: next(i for i, x in enumerate(sections) if x.name == name) for name in names}
    clusters = [
        load_cluster(name, of_kind[name], where=where, field=f"{field}[{first[name]}]")
        for name in names
    ]
    if len(clusters) == 1:
        return clusters[0]
    if len({kind.name for kind in clusters}) < len(clusters):
        rule = "must be profiles of different names"
        raise InputError(problem(where, field, rule, ", ".join(names)))
    if cabled := [kind.name for kind in clusters if kind.edges]:
        rule = "must be profiles without a topology of their own where there are several"
        raise InputError(problem(where, field, rule, ", ".join(cabled)))
    groups = tuple(
        replace(clusters[kind].groups[0], gpus=section.gpus, kind=kind)
        for section, kind in ((section, names.index(section.name)) for section in sections)
    )
    kinds = tuple(replace(kind, groups=(replace(kind.groups[0], gpus=gpus),)) for kind in clusters)
    name = " + ".join(kind.name for kind in kinds)
    return replace(kinds[0], name=name, groups=groups, kinds=kinds)


def _wrong_sizes(joined: Cluster, where: str, field: str) -> Iterator[str]:
    """Groups that begin or end inside a scale-up domain.

    A kind of servers is priced as if it filled the whole run, cut into equal domains from the first
    rank on; a group must begin and end where one of them does.
    """
    begin = 0
    for i, group in enumerate(joined.groups if joined.kinds else ()):
        kind = joined.kinds[group.kind]
        size, most = kind.domain, kind.node.scale_up.domain
        fit = f"{size} (as {joined.gpus} accelerators of {kind.name} would have them)"
        if group.gpus % size:
            rule = f"must be a multiple of its scale-up domain, {fit}"
            near = f"{max(round(group.gpus / size), 1) * size}"
            if size < most < joined.gpus:
                near = f"groups that add up to a multiple of {most}"
            yield problem(where, f"{field}[{i}].gpus", rule, group.gpus) + f" (nearest: {near})"
        elif begin % size:
            rule = f"must begin with a scale-up domain of {fit}: list it before smaller ones"
            yield f"{where}: {field}[{i}]: {rule}, got accelerator {begin}"
        begin += group.gpus


CLUSTER = Section(
    name="cluster",
    schemas=(ClusterSection, GroupedSection),
    read=Rule(read_cluster),
    required=True,
)
