"""Does one layout fit, rank by rank; and if not, the cheapest changes that make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.answers import Encoded, plain
from simulator.cost.estimate import VERDICTS
from simulator.cost.memory.moments import MOMENTS
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.memory_trace import Replayed, replay_memory
from simulator.cost.rank_memory import RankMemory, rank_memory
from simulator.cost.step import Estimate, evaluate
from simulator.cost.terms import MEMORY_MEANING
from simulator.layout.layouts import (
    OFFLOADS,
    RECOMPUTE,
    SHARDINGS,
    Layouts,
    data_parallel_degree,
    divisors,
)
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.layout.rules.rule import Setting
from simulator.layout.rules.software_rules import unsaid_change
from simulator.planner.prediction import Prediction
from simulator.planner.variants import Variant, variant_of
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.candidates import longest_cp, widest_tp
from simulator.software.supports import Supports

_STEPS = 4
"""Values tried of a field on the way to its limit, so that the neighbourhood stays small."""

_MOST_TOGETHER = 3
"""Fields changed together before the search gives up."""

_FULL = RECOMPUTE.index("full")

_KEYS = ("set", "layout", "step_time_s", "added_s", "memory_total_bytes", "verdict=memory_verdict")
"""What documents say of a change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageMemory:
    """The fullest moment of one pipeline stage; all its other ranks hold the same."""

    stage: int
    moment: str
    """One of MOMENTS."""
    memory_bytes: dict[str, float]
    """By kind."""
    memory_total_bytes: float
    memory_p10_bytes: float | None
    memory_p90_bytes: float | None
    margin_bytes: float
    """Usable bytes that stay free."""
    fits: bool
    verdict: str
    replayed_allocated_bytes: float | None
    """What a trace through a model of the allocator comes to, where one was replayed."""
    replayed_reserved_bytes: float | None
    inputs: dict[str, dict[str, float]]
    """By kind, what its formula is fed with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitting(Encoded):
    """Memory of every pipeline rank against the usable bytes, and ways to make it fit."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("verdict", "p10_bytes", "p90_bytes", "usable_bytes", "capacity_bytes", "margin_bytes"),
        *("stages", "formulas", "changes", "nearest"),
    )

    ranks: RankMemory
    replayed: list[Replayed]
    """Of every rank: what a trace through a model of the allocator comes to, beside the closed form
    of `ranks` (``cost/memory_trace.py``)."""
    usable_bytes: float
    capacity_bytes: float
    room_for_offload: bool
    """Host memory and drives of a server hold what is offloaded to them."""
    changes: list[Variant]
    """Cheapest first: what makes an OOM layout fit (P50), and a TIGHT one FIT; empty where the
    layout FITS, or where no neighbour does."""
    nearest: Variant | None
    """The neighbour that needs least memory, where neither the layout nor any neighbour fits."""

    @property
    def stages(self) -> list[StageMemory]:
        """Every pipeline stage."""
        return stage_memory(self.ranks, self.usable_bytes, self.replayed)

    @property
    def formulas(self) -> dict[str, str]:
        """How each kind of memory is counted."""
        return {kind: MEMORY_MEANING[kind] for kind in MEMORY_KINDS}

    @property
    def margin_bytes(self) -> float:
        """Usable bytes that the fullest rank leaves free; below zero where it does not fit."""
        return self.usable_bytes - float(self.ranks.total_bytes.max())

    @property
    def p10_bytes(self) -> float:
        """What the fullest rank stays below with a probability of 10 %; NaN without a spread."""
        return float(self.ranks.p10_bytes.max())

    @property
    def p90_bytes(self) -> float:
        """What the fullest rank stays below with a probability of 90 %; NaN without a spread."""
        return float(self.ranks.p90_bytes.max())

    @property
    def verdict(self) -> str:
        """FITS, TIGHT or OOM of the fullest rank; OOM too where what is offloaded has no room."""
        if not self.room_for_offload:
            return "OOM"
        return VERDICTS[int(self.ranks.verdict(self.usable_bytes).max())]


def stage_memory(
    ranks: RankMemory, usable_bytes: float, replayed: Sequence[Replayed] = ()
) -> list[StageMemory]:
    """Tabulate the memory of every pipeline stage against the usable bytes."""
    verdicts = ranks.verdict(usable_bytes)
    return [
        StageMemory(
            stage=stage,
            moment=MOMENTS[int(ranks.moment[stage])],
            memory_bytes={kind: float(size[stage]) for kind, size in ranks.kinds_bytes.items()},
            memory_total_bytes=float(total),
            memory_p10_bytes=plain(ranks.p10_bytes[stage]),
            memory_p90_bytes=plain(ranks.p90_bytes[stage]),
            margin_bytes=usable_bytes - float(total),
            fits=bool(total <= usable_bytes),
            verdict=VERDICTS[int(verdicts[stage])],
            replayed_allocated_bytes=replayed[stage].allocated_bytes if replayed else None,
            replayed_reserved_bytes=replayed[stage].reserved_bytes if replayed else None,
            inputs=ranks.inputs[stage],
        )
        for stage, total in enumerate(ranks.total_bytes)
    ]


def fitting(prediction: Prediction, *, most: int = 3) -> Fitting:
    """Break the memory of a prediction down and, where it does not fit, look for what would.

    Parameters
    ----------
    prediction : Prediction
        One layout.
    most : int
        Changes to return.

    Examples
    --------
    >>> from simulator.planner.prediction import predict
    >>> from simulator.scenario import make_scenario
    >>> scenario = make_scenario({
    ...     "model": {"name": "llama-3.1-8b"},
    ...     "training": {"sequence_length": 8192, "global_batch": 64},
    ...     "cluster": {"name": "dgx-h100", "gpus": 8},
    ... })
    >>> found = fitting(predict(scenario, micro_batch=2))
    >>> found.verdict, all(x.memory_total_bytes <= found.usable_bytes for x in found.changes)
    ('OOM', True)
    """
    scenario, row = prediction.scenario, prediction.estimate.layouts
    memory = scenario.cluster.accelerator.memory
    ranks = rank_memory(row, scenario.workload, scenario.cluster, scenario.software)
    verdict = prediction.estimate.verdict_word()
    changes, nearest = ([], None) if verdict == "FITS" else _changes(prediction, most)
    return Fitting(
        ranks=ranks,
        replayed=replay_memory(row, scenario.workload, scenario.cluster, scenario.software),
        usable_bytes=float(memory.usable_bytes),
        capacity_bytes=float(memory.capacity_bytes),
        room_for_offload=_room_for_offload(prediction.estimate),
        changes=changes,
        nearest=nearest,
    )


def _room_for_offload(estimate: Estimate) -> bool:
    rooms = estimate.room_bytes.items()
    return all(float(estimate.offloaded_bytes[tier][0]) <= room for tier, room in rooms)


def _changes(prediction: Prediction, most: int) -> tuple[list[Variant], Variant | None]:
    """The fastest neighbours that fit, no two with the same fields changed; else the smallest.

    A change is left out where part of it alone fits and is no slower. Neighbours of a TIGHT layout
    must have a P90 that fits.
    """
    allowed = 1 if prediction.estimate.verdict_word() == "OOM" else 0
    table, changed = _neighbours(prediction)
    scenario = prediction.scenario
    for together in range(2, _MOST_TOGETHER + 1):
        rows = np.flatnonzero(changed.sum(axis=1) <= together)
        if len(rows) == 0:
            return [], None
        estimate = evaluate(table[rows], scenario.workload, scenario.cluster, scenario.software)
        good = estimate.verdict <= allowed
        if good.any():
            fastest_rows = _fastest_by_fields(estimate, changed[rows], good)[:most]
            return [_change(prediction, estimate, i) for i in fastest_rows], None
    return [], _change(prediction, estimate, int(np.argmin(estimate.memory_total_bytes)))


def _fastest_by_fields(
    estimate: Estimate, changed: NDArray[np.bool_], good: NDArray[np.bool_]
) -> list[int]:
    """The fastest `good` row of every set of changed fields, fastest first."""
    best: list[tuple[frozenset[str], int]] = []
    fits = np.flatnonzero(good)
    order = np.lexsort((changed[fits].sum(axis=1), estimate.step_time_s[fits]))
    for i in fits[order]:
        names = frozenset(np.array(_AXES)[changed[i]])
        if not any(smaller <= names for smaller, _ in best):
            best.append((names, int(i)))
    return [i for _, i in best]


def _change(prediction: Prediction, estimate: Estimate, i: int) -> Variant:
    before, after = prediction.estimate.layouts.row(), estimate.layouts.row(i)
    follow = ("dp", "shard_group", "etp", "sequence_parallel")
    return variant_of(
        prediction.scenario,
        estimate,
        i,
        fields={k: (before[k], v) for k, v in after.items() if v != before[k] and k not in follow},
        before_s=prediction.step_time_s,
        KEYS=_KEYS,
    )


_AXES = (
    "recompute", "offload_layers", "micro_batch", "tp", "pp", "cp", "ep", "sharding",
    "optimizer_offload", "parameter_offload",
)  # fmt: skip
"""Fields that are varied; recompute_layers goes with recompute."""


def _neighbours(prediction: Prediction) -> tuple[Layouts, NDArray[np.bool_]]:
    """Layouts that can run and differ in at most _MOST_TOGETHER fields, and which fields those are.

    Degrees grow, the micro-batch shrinks, sharding, recomputation and offload go up; dp follows.
    """
    scenario, layouts = prediction.scenario, prediction.estimate.layouts
    choices = _choices(scenario, layouts)
    index = _near([len(choices[name]) for name in _AXES])
    changed = index > 0
    fields: dict[str, Any] = {}
    for axis, name in enumerate(_AXES):
        values = np.array(choices[name])[index[:, axis]]
        if name == "recompute":
            fields["recompute"], fields["recompute_layers"] = values.T
        else:
            fields[name] = values
    repeated = layouts[np.zeros(len(index), dtype=np.intp)]
    table = repeated.replace(**fields, **_following(scenario, layouts, fields))
    workload, cluster, software = scenario.workload, scenario.cluster, scenario.software
    at = Setting(workload=workload, cluster=cluster, software=software)
    possible = reasons(table, workload, cluster, software) == FEASIBLE
    possible &= table.world == scenario.cluster.gpus
    possible &= ~unsaid_change(table, at, layouts)
    return table[np.flatnonzero(possible)], changed[possible]


def _near(lengths: list[int]) -> NDArray[np.int64]:
    """Index rows with one to _MOST_TOGETHER entries above zero; axis i has `lengths[i]` values."""
    rows: list[NDArray[np.int64]] = []
    for together in range(1, _MOST_TOGETHER + 1):
        for axes in combinations(range(len(lengths)), together):
            mesh = np.meshgrid(*(np.arange(1, lengths[axis]) for axis in axes), indexing="ij")
            block = np.zeros((mesh[0].size, len(lengths)), dtype=np.int64)
            block[:, list(axes)] = np.stack([x.ravel() for x in mesh], axis=1)
            rows.append(block)
    return np.concatenate(rows)


def _following(scenario: Scenario, layouts: Layouts, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields that follow from the varied ones, as the defaults of a layout do."""
    before = layouts.row()
    tp, pp, cp = fields["tp"], fields["pp"], fields["cp"]
    dp = np.maximum(data_parallel_degree(scenario.cluster.gpus, tp, pp, cp), 1)
    whole = before["shard_group"] == before["dp"] * before["cp"]
    sequence = before["sequence_parallel"] or (
        before["tp"] == 1 and True in scenario.software.supports.sequence_parallel
    )
    return {
        "dp": dp,
        "shard_group": np.where(whole, dp * cp, before["shard_group"]),
        "sequence_parallel": (tp > 1) & sequence,
        "etp": np.where((before["etp"] == before["tp"]) & (before["tp"] > 1), tp, before["etp"]),
    }


def _choices(scenario: Scenario, layouts: Layouts) -> dict[str, list[Any]]:
    """Values of every varied field, the layout's own first."""
    row, can, arch = layouts.row(), scenario.software.supports, scenario.workload.architecture
    per_rank = -(-arch.layers // row["pp"])
    gpus, length = scenario.cluster.gpus, scenario.workload.recipe.sequence_length
    experts = [moe.experts for moe in arch.moes]
    mode_now = (int(layouts.recompute[0]), int(layouts.recompute_layers[0]))
    modes = [(RECOMPUTE.index(word), 0) for word in can.recompute]
    modes += [(_FULL, n) for n in _spread(per_rank - 1)]
    more = [mode for mode in modes if _saves(mode, per_rank) > _saves(mode_now, per_rank)]
    level = int(layouts.sharding[0])

    def degrees(name: str, most: int, supported: bool) -> list[int]:
        larger = [d for d in divisors(gpus) if d > row[name] and d % row[name] == 0 and d <= most]
        return [row[name], *(larger[:_STEPS] if supported else [])]

    smaller = [b for b in divisors(row["micro_batch"]) if b < row["micro_batch"]]
    return {
        "recompute": [mode_now, *more],
        "offload_layers": [
            row["offload_layers"],
            *(n for n in _spread(per_rank) if can.offload and n > row["offload_layers"]),
        ],
        "micro_batch": [row["micro_batch"], *smaller],
        "tp": degrees("tp", widest_tp(scenario.cluster.domain), can.tensor),
        "pp": degrees("pp", arch.layers, can.pipeline),
        "cp": degrees("cp", longest_cp(length), bool(can.cp_kinds)),
        "ep": degrees("ep", max(experts, default=1), can.expert),
        "optimizer_offload": _tiers(row["optimizer_offload"], can, can.optimizer_offload),
        "parameter_offload": _tiers(row["parameter_offload"], can, can.parameter_offload),
        "sharding": [
            level,
            *(SHARDINGS.index(w) for w in can.sharding if SHARDINGS.index(w) > level),
        ],
    }


def _tiers(tier: str, can: Supports, offloads: bool) -> list[int]:
    """Tiers from a layout's own outwards: the device, host memory, drives."""
    words = OFFLOADS if can.nvme_offload else OFFLOADS[:2]
    first = OFFLOADS.index(tier)
    return list(range(first, len(words))) if offloads else [first]


def _saves(mode: tuple[int, int], per_rank: int) -> float:
    """Order of the recomputation modes by what they save: none, selective, n layers, all."""
    word, layers = mode
    return word + (layers or per_rank) / per_rank if word == _FULL else word


def _spread(most: int) -> list[int]:
    """At most 2 _STEPS numbers of 1 to `most`, evenly spaced, `most` among them.

    >>> _spread(3), _spread(80)
    ([1, 2, 3], [10, 20, 30, 40, 50, 60, 70, 80])
    """
    steps = min(2 * _STEPS, most)
    return sorted({most * step // steps for step in range(1, steps + 1)})
