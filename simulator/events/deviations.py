"""What breaks the symmetry of a step: slow GPUs, weaker links, other servers, loaded experts.

Equal replicas are simulated once. A deviation unfolds as little as it must: one more replica beside
the folded ones, joined where gradients are reduced; where ranks of several replicas keep step in
every layer (an expert group, gathered parameters) those replicas together. What differs is priced
by the same closed form, with the cluster or the workload that the deviation describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.passes import Priced
from simulator.cost.pricing import Selection, price, select
from simulator.errors import InputError, problem
from simulator.events.pass_phases import COMPUTE_TERMS
from simulator.events.passes import CAUSE
from simulator.events.play import Replica, replica_of
from simulator.hardware.cluster import Cluster, weakened
from simulator.layout.layout import Layouts
from simulator.software import Software
from simulator.workload.recipe import Workload

__all__ = ["Deviation", "check_deviations", "in_step", "replicas_of"]

Floats = NDArray[np.float64]

_COMPUTE = [CAUSE[name] for name in COMPUTE_TERMS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviation:
    """One stage, of one replica or of all, that is not like the others.

    A stage stands for its tensor- and context-parallel ranks, which wait for their slowest.
    """

    stage: int | None = None
    """Pipeline rank, from 0; None: every one."""
    replica: int | None = None
    """Data-parallel replica, from 0; None: every one, so that nothing is unfolded."""
    compute: float = 1.0
    """Time of its compute over that of the others: 1.2 is a GPU that takes 20 % longer."""
    scale_up: float = 1.0
    """Share of the links inside its scale-up domain that is left, above 0 and at most 1."""
    scale_out: float = 1.0
    """Share of its network adapters that is left, above 0 and at most 1; what it sends, its
    collectives, and the reductions that wait for it."""
    expert_load: float | None = None
    """Tokens that its fullest expert rank gets over the mean of all, at least 1; None: what the
    recipe says (moe_imbalance)."""
    cluster: Cluster | None = None
    """Other servers, on which it is priced; None: the same."""


def replicas_of(
    layouts_row: Layouts, workload: Workload, cluster: Cluster, software: Software,
    deviations: Sequence[Deviation] = (),
) -> list[Replica]:  # fmt: skip
    """Price the pipelines that must be simulated for one layout: equal ones once.

    Raises
    ------
    InputError
        If a deviation names a stage or replica that is not there, or a number out of range.
    """
    dp, pp = int(layouts_row.dp[0]), int(layouts_row.pp[0])
    check_deviations(deviations, workload, dp, pp)
    priced = price(layouts_row, workload, cluster, software, every_rank=True)
    rows = select(layouts_row, priced, slice(0, 1))
    plain = replica_of(rows, priced, dp)
    if not deviations:
        return [plain]
    span = min(in_step(layouts_row, priced, rows), dp)
    groups = sorted({one.replica // span for one in deviations if one.replica is not None})
    counts = [min(span, dp - group * span) for group in groups]
    given = (layouts_row, workload, cluster, software)
    everywhere = [one for one in deviations if one.replica is None]
    found = []
    if rest := dp - sum(counts):
        found.append(_changed(replace(plain, count=rest), everywhere, given))
    for group, count in zip(groups, counts, strict=True):
        own = [
            one for one in deviations if one.replica is not None and one.replica // span == group
        ]
        found.append(_changed(replace(plain, count=count), everywhere + own, given))
    return _joined(found)


def check_deviations(deviations: Sequence[Deviation], workload: Workload, dp: int, pp: int) -> None:
    """Refuse what is out of range, all at once."""
    wrong = []
    for i, one in enumerate(deviations):
        where = f"deviations[{i}]"
        for name, value, most in (("stage", one.stage, pp), ("replica", one.replica, dp)):
            if value is not None and not 0 <= value < most:
                near = f" (nearest: {0 if value < 0 else most - 1})"
                rule = f"must be from 0 to {most - 1}"
                wrong.append(problem("simulate", f"{where}.{name}", rule, value) + near)
        if not 0.0 < one.compute < np.inf:
            rule = "must be above 0 (1.2: takes 20 % longer)"
            wrong.append(problem("simulate", f"{where}.compute", rule, one.compute))
        for name in ("scale_up", "scale_out"):
            if not 0.0 < (value := getattr(one, name)) <= 1.0:
                rule = "must be above 0 and at most 1 (a dead link carries nothing: give what the"
                rule += " traffic that goes around it has left)"
                wrong.append(problem("simulate", f"{where}.{name}", rule, value))
        if one.expert_load is not None:
            if not workload.architecture.is_moe:
                rule = "must be left out of a model without experts"
                wrong.append(problem("simulate", f"{where}.expert_load", rule, one.expert_load))
            elif not 1.0 <= one.expert_load < np.inf:
                rule = "must be at least 1, the mean"
                wrong.append(problem("simulate", f"{where}.expert_load", rule, one.expert_load))
    if wrong:
        raise InputError(wrong)


def in_step(layouts: Layouts, priced: Priced, rows: Selection) -> int:
    """Replicas that wait for one another in every layer."""
    inside = int(layouts.tp[0] * layouts.cp[0])
    experts = -(-int(layouts.ep[0] * layouts.etp[0]) // inside)
    states, grid = priced.states, rows.grid[0]
    sharded = states.part_gather_s[grid].any() and not states.keeps_gathered[grid]
    group = -(-int(layouts.shard_group[0]) // int(layouts.cp[0]))
    return max(experts, group if sharded else 1)


def _changed(one: Replica, deviations: Sequence[Deviation], given: Any) -> Replica:
    """A replica with the deviations put over it, one after the other."""
    passes, tails = one.passes, one.tails
    for deviation in deviations:
        stage = slice(None) if deviation.stage is None else deviation.stage
        other = _priced_apart(deviation, one, given)
        columns: dict[str, dict[str, Any]] = {}
        for name, mine, theirs in (("passes", passes, other.passes), ("tails", tails, other.tails)):
            columns[name] = {
                field.name: _with_row(
                    getattr(mine, field.name),
                    getattr(theirs, field.name),
                    (slice(None), stage) if field.name == "slowed_s" else stage,
                )
                for field in fields(mine)
                if field.name not in _WHOLE
            }
        slowed = columns["passes"]["shown_s"]
        slowed[stage, ..., _COMPUTE] *= deviation.compute
        columns["passes"]["alone_s"][stage, ..., _COMPUTE] *= deviation.compute
        columns["tails"]["optimizer_s"][stage] *= deviation.compute
        passes = replace(passes, **columns["passes"])
        tails = replace(tails, **columns["tails"])
    return replace(one, passes=passes, tails=tails)


_WHOLE = (
    "overlaps", "reductions", "tables_s", "norm_s", "gradients_s", "hidden_gradients_s",
    "copies_each",
)  # fmt: skip
"""Fields that belong to the step, not to a stage."""


def _with_row(mine: Floats, theirs: Floats, at: Any) -> Floats:
    """A copy with some entries from the other."""
    found = mine.copy()
    found[at] = theirs[at]
    return found


def _priced_apart(deviation: Deviation, one: Replica, given: Any) -> Replica:
    """The replica as it would be if all of it were so."""
    row, workload, cluster, software = given
    links = (deviation.scale_up, deviation.scale_out)
    if links == (1.0, 1.0) and deviation.cluster is None and deviation.expert_load is None:
        return one
    cluster = weakened(deviation.cluster or cluster, *links)
    if deviation.expert_load is not None:
        recipe = replace(workload.recipe, moe_imbalance=deviation.expert_load, moe_load=None)
        workload = replace(workload, recipe=recipe)
    priced = price(row, workload, cluster, software, every_rank=True)
    return replica_of(select(row, priced, slice(0, 1)), priced, one.count)


def _joined(replicas: list[Replica]) -> list[Replica]:
    """Collectives of all replicas take as long as on the slowest of them."""
    reduce_s = np.max([one.tails.reduce_s for one in replicas], axis=0)
    gather_s = np.max([one.tails.gather_s for one in replicas], axis=0)
    return [
        replace(one, tails=replace(one.tails, reduce_s=reduce_s, gather_s=gather_s))
        for one in replicas
    ]
