"""A cluster: groups of servers (a list even of one), the fabric between them, a price."""

from __future__ import annotations

import re
from dataclasses import field, replace
from typing import Any

from simulator import catalogue
from simulator.errors import InputError, brief
from simulator.files import Count, Figure, read_profile, read_toml, record
from simulator.hardware.accelerator import STREAMS, Accelerator
from simulator.hardware.edge_list import (
    Edge,
    Servers,
    TopologySection,
    check_servers,
    edges_of,
    has_gpus,
)
from simulator.hardware.fabric import CollectiveLibrary, Fabric, release_numbers
from simulator.hardware.node import Node, wrong_domain
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.spellings import accelerator_named

NO_CLOSED_FORM = (
    "servers of several kinds have no analytical model, only `foreshard plan`, `predict`, `compare`"
    " and `simulate` take them; give name and gpus of one cluster, or one group"
)
"""Why what prices a layout as a whole refuses a cluster of several kinds of servers."""


@record
class ClusterProfile:
    """A cluster on offer, as hardware_profiles/clusters/NAME.toml describes it."""

    name: str
    node: str
    """Name of the node profile."""
    fabric: Fabric
    price: str = "none-known"
    """Name of the price profile."""
    collectives: str = "nccl"
    """Name of the collective-library profile."""
    largest: Count | None = None
    """Most accelerators that one job can have; None: no limit known."""
    topology: TopologySection | None = None
    """The network as it is cabled, for flows; None: as `fabric` describes it. The closed forms read
    `fabric` only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """Servers of one kind."""

    node: Node
    accelerator: Accelerator
    gpus: int
    kind: int = 0
    """Index into ``Cluster.kinds``, where there are several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinksLeft:
    """What worn links, or other groups on the same ones, leave to the groups of one kind."""

    group: str
    """A field of ``Placement``; dp_copies, edp_copies: ranks that hold the same share of states."""
    scale_up: float = 1.0
    """Share of the rate inside a scale-up domain, above 0 and at most 1."""
    scale_out: float = 1.0
    """Share of the rate of the adapters, likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The machines that a run uses: node groups, fabric, collective library, price profile name."""

    name: str
    groups: tuple[NodeGroup, ...]
    fabric: Fabric
    library: CollectiveLibrary
    price: str
    left: tuple[LinksLeft, ...] = ()
    """Kinds of groups that do not have all of the links (``events/sharing/contended.py``)."""
    kinds: tuple[Cluster, ...] = ()
    """Servers of several kinds, each as the cluster that it would be if all were like it, with the
    fabric, the library and the price of its own profile; empty: all servers are alike."""
    edges: tuple[Edge, ...] = field(default=(), repr=False)
    """The network as it is cabled; empty: as the fabric describes it."""
    sizes: tuple[int, ...] = ()
    """Numbers of accelerators that layouts are searched for together (``explore_sizes`` of
    ``search/explore.py``), rising; empty: that of its groups alone."""

    @property
    def each(self) -> tuple[Cluster, ...]:
        """One cluster for each kind of servers: itself where all are alike."""
        return self.kinds or (self,)

    @property
    def gpus(self) -> int:
        """Accelerators of the whole run."""
        return sum(group.gpus for group in self.groups)

    @property
    def gpus_by_kind(self) -> tuple[int, ...]:
        """Accelerators of every kind of servers."""
        counts = [0] * len(self.each)
        for group in self.groups:
            counts[group.kind] += group.gpus
        return tuple(counts)

    def with_gpus(self, gpus: int) -> Cluster:
        """The cluster with so many accelerators, on servers of the first group's kind."""
        return replace(self, groups=(replace(self.groups[0], gpus=gpus),))

    @property
    def node(self) -> Node:
        """The server kind of the first group."""
        return self.groups[0].node

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator of the first group."""
        return self.groups[0].accelerator

    @property
    def rented_together(self) -> int:
        """Accelerators that are let as one: a rack whose fast domain joins several servers; else 1.

        Racks of NVL72 are let whole; parts of a server are to be had.
        """
        links = self.node.scale_up
        racks = links.kind == "nvlink" and links.domain > self.node.accelerators
        return links.domain if racks else 1

    def rented(self, gpus: Any) -> Any:
        """Accelerators that are paid for where so many are needed."""
        return -(-gpus // self.rented_together) * self.rented_together

    @property
    def domain(self) -> int:
        """Accelerators of this run that share one scale-up domain.

        A job larger than a domain takes equal parts of several: 64 of the 72 GPUs of a rack.
        """
        most = min(self.node.scale_up.domain, self.gpus)
        return next(size for size in range(most, 0, -1) if self.gpus % size == 0)

    @property
    def board(self) -> str:
        """Kind of board that curves of collectives are for: the generation of fast links, or pcie.

        A tray of Grace hosts joins four accelerators to a server, not eight, and has its own, and
        so have cards that do not copy to each other straight (``pcie-host``).
        """
        first = self.groups[0]
        return _board(first.node, first.accelerator)

    @property
    def nodes(self) -> int:
        """Servers of the whole run."""
        return sum(-(-group.gpus // group.node.accelerators) for group in self.groups)

    @property
    def network_bytes_per_s_per_gpu(self) -> float:
        """Scale-out rate of one accelerator that collectives reach, one direction."""
        node = self.groups[0].node
        out = node.scale_out
        rate = out.adapters * out.adapter_bytes_per_s / node.accelerators
        return rate * self.fabric.usable_fraction

    def links_of(self, group: str) -> Cluster:
        """The cluster as the collectives of one kind of groups see its links."""
        for links in self.left:
            if links.group == group:
                return weakened(self, links.scale_up, links.scale_out)
        return self


_FAST_LINKS = (
    "bandwidth_bytes_per_s", "bus_bytes_per_s", "all_to_all_bytes_per_s", "send_bytes_per_s",
    "nvls_bytes_per_s",
)  # fmt: skip


def weakened(cluster: Cluster, scale_up: float, scale_out: float) -> Cluster:
    """Leave every domain and every adapter this share of its rate."""
    groups = []
    for group in cluster.groups:
        fast, out = group.node.scale_up, group.node.scale_out
        rates = {name: getattr(fast, name) for name in _FAST_LINKS}
        less: dict[str, Any] = {
            name: _share(rate, scale_up) for name, rate in rates.items() if rate is not None
        }
        adapters = replace(out, adapter_bytes_per_s=_share(out.adapter_bytes_per_s, scale_out))
        node = replace(group.node, scale_up=replace(fast, **less), scale_out=adapters)
        groups.append(replace(group, node=node))
    kinds = tuple(weakened(kind, scale_up, scale_out) for kind in cluster.kinds)
    return replace(cluster, groups=tuple(groups), kinds=kinds)


def _share(figure: Figure, share: float) -> Figure:
    """A figure times a share, with its evidence."""
    return Figure(float(figure) * share, figure.grade, figure.source, figure.date, figure.spread)


def load_accelerator(name: str, *, where: str = "profiles", field: str = "") -> Accelerator:
    """Read an accelerator profile by name or path, or by the name that others give the device."""
    try:
        path = catalogue.find("accelerators", name, where=where, field=field)
    except InputError:
        spelled = accelerator_named(name, catalogue.names("accelerators"))
        if spelled is None:
            raise
        path = catalogue.find("accelerators", spelled, where=where, field=field)
    device = read_profile(Accelerator, path, kind="accelerators")
    if missing := [name for name in STREAMS if name not in device.stream]:
        raise InputError(f"{path}: stream.{name}: required table is missing" for name in missing)
    return device


def load_node(name: str, *, where: str = "profiles", field: str = "") -> Node:
    """Read a node profile by name or path."""
    path = catalogue.find("nodes", name, where=where, field=field)
    node = read_profile(Node, path, kind="nodes")
    if wrong := wrong_domain(node):
        raise InputError(f"{path}: {wrong}")
    return node


def load_library(name: str, *, where: str = "profiles", field: str = "") -> CollectiveLibrary:
    """Read the cost model of a collective library by name or path."""
    path = catalogue.find("collectives", name, where=where, field=field)
    return read_profile(CollectiveLibrary, path, kind="collectives")


EVERY_CLUSTER = "all"
"""In place of a name, all that there are."""


def clusters_meant(name: str) -> list[str]:
    """Return the clusters that a name means: all, those of accelerators so called, or itself.

    Examples
    --------
    >>> clusters_meant("l40s"), clusters_meant("dgx-a100")
    (['l40s-pcie', 'l40s-pcie-host'], ['dgx-a100'])
    """
    if name == EVERY_CLUSTER and name not in catalogue.names("clusters"):
        return catalogue.names("clusters")
    return [cluster for cluster, _ in _clusters_with(name)] or [name]


def _clusters_with(name: str) -> list[tuple[str, str]]:
    """Clusters and what they are and cost, where a name is no cluster's but of accelerators."""
    known = catalogue.names("clusters")
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    if name in known or name.endswith(".toml") or len(word) < 2:
        return []
    devices = {
        device
        for device in catalogue.names("accelerators")
        if device == name or word in (device.partition("-")[0], re.sub(r"[^a-z0-9]", "", device))
    }
    spelled = accelerator_named(name, catalogue.names("accelerators"))
    devices |= {spelled} if spelled else set()
    if not devices:
        return []
    holders = []
    for cluster in known:
        path = catalogue.find("clusters", cluster)
        profile = read_profile(ClusterProfile, path, kind="clusters")
        node = load_node(profile.node)
        if node.accelerator in devices:
            shared = f"{node.accelerator}, domain of {node.scale_up.domain}"
            holders.append((cluster, f"{shared}, {_hourly(profile.price)}"))
    return holders


def _spelled(name: str) -> str:
    """The cluster whose letters and digits a name has, as in ``DGX H100``; else the name."""
    known, word = catalogue.names("clusters"), re.sub(r"[^a-z0-9]", "", name.lower())
    if name in known or name.endswith(".toml") or "/" in name:
        return name
    alike = (cluster for cluster in known if cluster.replace("-", "") == word)
    return next(alike, name)


def _hourly(price: str) -> str:
    """The price of an accelerator's hour as its profile, or the one under it, states it."""
    for _ in range(4):
        table = read_toml(catalogue.find("prices", price))
        stated = table.get("usd_per_gpu_hour")
        figure = stated if isinstance(stated, dict) else {"value": stated}
        if isinstance(value := figure.get("value"), (int, float)):
            return f"{value:g} USD a GPU hour{', assumed' * (figure.get('grade') == 'assumed')}"
        price = str(table.get("base", ""))
        if not price:
            break
    return "price not known"


_MOST = 10_000_000
"""Accelerators of a cluster: a hundred times the largest; products of degrees stay in 32 bit."""


def load_cluster(
    name: str, gpus: int, *, where: str = "profiles", field: str = "cluster"
) -> Cluster:
    """Read a cluster profile by name or path and take `gpus` accelerators of it.

    Raises
    ------
    InputError
        If a profile is unknown or wrong, or `gpus` is not a positive number that fills servers.
    """
    name = _spelled(name)
    if holders := _clusters_with(name):
        words = "; ".join(f"{cluster} ({what})" for cluster, what in holders)
        rule = f"is no cluster; those with such accelerators: {words}"
        raise InputError(f"{where}: {field}.name: {brief(name)} {rule}")
    path = catalogue.find("clusters", name, where=where, field=f"{field}.name")
    profile = read_profile(ClusterProfile, path, kind="clusters")
    node = load_node(profile.node, where=str(path), field="node")
    per_node = node.accelerators
    if gpus < 1 or (gpus > per_node and gpus % per_node):
        servers = gpus // per_node
        near = f"{servers * per_node} or {(servers + 1) * per_node}" if gpus > 0 else "1"
        raise InputError(
            f"{where}: {field}.gpus: must be at most {per_node} or a multiple of {per_node} "
            f"(whole servers), got {gpus} (nearest: {near})"
        )
    if gpus > _MOST:
        raise InputError(f"{where}: {field}.gpus: must be at most {_MOST:,}, got {gpus:,}")
    if profile.largest is not None and gpus > profile.largest:
        raise InputError(
            f"{where}: {field}.gpus: must be at most {profile.largest} on {profile.name},"
            f" got {gpus}"
        )
    catalogue.find("prices", profile.price, where=str(path), field="price")
    accelerator = load_accelerator(node.accelerator, where=f"node {node.name}", field="accelerator")
    library = load_library(profile.collectives, where=str(path), field="collectives")
    timed = library.all_to_all_peer_s.keys() & library.send_base_s.keys()
    if (links := node.scale_up.kind) not in timed:
        known = ", ".join(sorted(timed - {"network"}))
        rule = f"must have figures for the links of node {node.name}, {links} (it has {known})"
        raise InputError(f"{path}: collectives: {rule}, got {brief(profile.collectives)}")
    cluster = Cluster(
        name=profile.name,
        groups=(NodeGroup(node=node, accelerator=accelerator, gpus=gpus),),
        fabric=profile.fabric,
        library=_of_board(library, _board(node, accelerator)),
        price=profile.price,
    )
    return with_edges(cluster, edges_of(profile.topology, path), where=str(path))


def with_edges(cluster: Cluster, edges: tuple[Edge, ...], *, where: str) -> Cluster:
    """Give a cluster its cables; one server has none where they only join adapters.

    Raises
    ------
    InputError
        If the edges do not join the servers of the cluster.
    """
    if not edges or (cluster.nodes == 1 and not has_gpus(edges)):
        return cluster
    servers = Servers(
        gpus=cluster.gpus,
        domain=cluster.domain,
        accelerators=cluster.node.accelerators,
        adapters=cluster.node.scale_out.adapters,
    )
    check_servers(edges, servers, where)
    return replace(cluster, edges=edges)


def _board(node: Node, accelerator: Accelerator) -> str:
    links = node.scale_up
    if links.kind != "nvlink":
        return links.kind if links.peer_to_peer else f"{links.kind}-host"
    return f"{accelerator.generation}-grace" if node.host == "grace" else accelerator.generation


@for_same_records(256)
def _of_board(library: CollectiveLibrary, board: str) -> CollectiveLibrary:
    """Leave only what a cluster's own boards read, so that evidence speaks of nothing else."""
    curves = {name: curve for name, curve in library.curves.items() if name == board}
    dispatch = {
        name: {kind: ways for kind, ways in table.items() if kind == board}
        or {kind: ways for kind, ways in table.items() if kind == library.dispatch_fallback}
        for name, table in library.dispatch.items()
    }
    return replace(library, curves=curves, dispatch=dispatch)


def with_release(cluster: Cluster, release: str, turned_off: tuple[str, ...] = ()) -> Cluster:
    """Take the collective library in another release, or in the next newer one that was measured.

    Parameters
    ----------
    release : str
        Two numbers, ``2.27``; blank for the newest that was measured.
    turned_off : tuple of str, optional
        Algorithms that it may not choose, by their words.
    """
    library = cluster.library
    known = sorted(library.releases, key=release_numbers)
    runs = release or known[-1]
    newer = [name for name in known if release_numbers(name) >= release_numbers(runs)]
    stands_in = newer[0] if newer else known[-1]
    running = "" if runs == stands_in else runs
    now = (library.release, library.running_release, library.turned_off)
    if (stands_in, running, turned_off) == now:
        return cluster
    return replace(cluster, library=_running(library, stands_in, running, turned_off))


@for_same_records(64)
def _running(
    library: CollectiveLibrary, release: str, running: str, turned_off: tuple[str, ...]
) -> CollectiveLibrary:
    """A library in a release that was measured, which stands in for the one that runs."""
    return replace(library, release=release, running_release=running, turned_off=turned_off)
