"""Enumerate the layouts worth trying for a workload, a cluster and a software.

The grid is the product of divisors: tp, pp, vpp, cp, ep, etp, micro-batch, ways to share states
(``sharing.py``), sequence parallelism, recomputation and rank order; dp follows from the number of
accelerators. Pinned fields take their given value only. Every row is then judged by
``layout/rules/feasibility.py``; combinations that differ in nothing (two rank orders of a layout
without pipeline) appear once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.cluster import Cluster
from simulator.layout.degrees import accelerators, data_parallel_degree, divisors
from simulator.layout.layouts import (
    CP_KINDS,
    DISPATCHERS,
    RANK_ORDERS,
    RECOMPUTE,
    Layouts,
)
from simulator.planner.sharing_choices import shared_states
from simulator.schedules.registry import SCHEDULES, WORDS, usual
from simulator.software.profile import Software
from simulator.software.supports import Supports
from simulator.workload.architecture import MLP, Architecture
from simulator.workload.recipe import Workload

__all__ = ["LARGEST_MICRO_BATCH", "candidates"]

LARGEST_MICRO_BATCH = 16
"""Micro-batches above this are not tried unless pinned."""

_MOST_RECOMPUTE_STEPS = 8
"""Full recomputation of n layers of a rank is tried at most at this many n, evenly spaced."""

_MOST_CHUNKS = 20
"""Virtual pipeline chunks per rank above this are not tried unless pinned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """A field whose words are all tried where it is pinned to "any"."""

    words: Callable[[Supports], Sequence[str]]
    """What the software has, its default first."""
    matters: Callable[[Layouts], NDArray[np.bool_]]
    """Layouts that differ by it; the others are listed once."""


_CHOICES = {
    "schedule": _Choice(words=lambda can: can.schedules, matters=lambda x: x.pp > 1),
    "dispatcher": _Choice(words=lambda can: can.dispatchers, matters=lambda x: x.ep * x.etp > 1),
    "cp_kind": _Choice(words=lambda can: can.cp_kinds or CP_KINDS[:1], matters=lambda x: x.cp > 1),
}


def candidates(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any] | None = None,
) -> Layouts:
    """Enumerate layouts of the cluster's accelerators, distinct rows only.

    Parameters
    ----------
    workload, cluster, software
        What is trained, on what, with what.
    pinned : mapping, optional
        Layout fields with a fixed value.

    Returns
    -------
    Layouts
        Not all feasible; judge them with :func:`simulator.layout.rules.feasibility.reasons`.
    """
    pinned = dict(pinned or {})
    for field, choice in _CHOICES.items():
        if pinned.get(field) == "any":
            words = choice.words(software.supports)
            tables = [candidates(workload, cluster, software, {**pinned, field: w}) for w in words]
            return Layouts.concatenate([tables[0], *(x[choice.matters(x)] for x in tables[1:])])
    grids = _grids(workload, cluster, software, pinned)
    if not grids:
        grids = [_nearest(cluster, pinned)]
    columns = {name: np.concatenate([grid[name] for grid in grids]) for name in grids[0]}
    free = (
        "dp",
        "recompute_layers",
        "offload_layers",
        "optimizer_offload",
        "parameter_offload",
    )
    fixed: dict[str, Any] = {**columns, **{k: v for k, v in pinned.items() if k in free}}
    table = Layouts.of(global_batch=workload.recipe.global_batch, **fixed)
    schedule = pinned.get("schedule")
    if schedule is not None and not SCHEDULES[schedule].by_default:
        code = WORDS.index(schedule)
        table = table.replace(schedule=np.where(table.pp > 1, code, table.schedule))
    return _recomputation(table, workload.architecture, software, pinned)


def _grids(
    workload: Workload, cluster: Cluster, software: Software, pinned: Mapping[str, Any]
) -> list[dict[str, NDArray[Any]]]:
    """One product of the inner choices per (tp, pp, cp)."""
    gpus, grids = cluster.gpus, []
    for tp, pp, cp in _outer(workload, cluster, software, pinned):
        dp = data_parallel_degree(gpus, tp, pp, cp)
        if "dp" in pinned and pinned["dp"] != dp:
            continue
        shared = shared_states(software, pinned, tp, pp, cp * dp, cluster.domain)
        axes = _inner(workload, cluster, software, pinned, tp=tp, pp=pp, cp=cp, dp=dp)
        axes["states"] = np.arange(len(shared["sharding"]))
        mesh = np.meshgrid(*axes.values(), indexing="ij")
        grid = {name: x.ravel() for name, x in zip(axes, mesh, strict=True)}
        which = grid.pop("states")
        grid |= {name: values[which] for name, values in shared.items()}
        size = len(grid["vpp"])
        grid |= {
            name: np.full(size, value)
            for name, value in (("tp", tp), ("pp", pp), ("cp", cp), ("dp", dp))
        }
        grids.append(grid)
    return grids


def _outer(
    workload: Workload, cluster: Cluster, software: Software, pinned: Mapping[str, Any]
) -> list[tuple[int, int, int]]:
    """Degrees (tp, pp, cp) whose product divides the number of accelerators."""
    gpus, arch = cluster.gpus, workload.architecture
    shares = [*(att.heads for att in arch.attentions), *(n for m in arch.mixers for n in m.shares)]
    heads = max(shares, default=1)
    can = software.supports
    shares = divisors(gpus)

    def choices(name: str, most: int, supported: bool) -> list[int]:
        if name in pinned:
            return [int(pinned[name])]
        return [d for d in shares if d <= (most if supported else 1)]

    tps = choices("tp", min(heads, 2 * cluster.domain), can.tensor)
    pps = choices("pp", arch.layers, can.pipeline)
    longest = max(workload.recipe.sequence_length // 2048, 1)
    cps = choices("cp", min(longest, 64), bool(can.cp_kinds))
    return [
        (tp, pp, cp)
        for tp in tps
        for pp in pps
        for cp in cps
        if gpus % accelerators(tp, pp, cp) == 0
    ]


def _inner(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any],
    *,
    tp: int,
    pp: int,
    cp: int,
    dp: int,
) -> dict[str, NDArray[Any]]:
    """Choices that are independent of one another once tp, pp, cp are fixed."""
    arch, recipe, can = workload.architecture, workload.recipe, software.supports
    micro = [b for b in divisors(max(recipe.global_batch // dp, 1)) if b <= LARGEST_MICRO_BATCH]
    orders = [order for order in can.rank_orders if pp > 1 and dp > 1] or list(can.rank_orders[:1])
    axes: dict[str, list[Any]] = {
        "vpp": _chunk_axis(arch, software, pp, pinned.get("schedule")),
        "micro_batch": micro,
        "sequence_parallel": _sequence_axis(arch, software, tp),
        "cp_kind": list(can.cp_kinds[:1]) or [CP_KINDS[0]],
        "dispatcher": list(can.dispatchers[:1]) or [DISPATCHERS[0]],
        "cp_a2a": _group_axis(pinned.get("cp_kind"), cp),
        "rank_order": orders,
        **_expert_axes(arch, software, tp * cp * dp, tp),
    }
    for name in axes:
        if name in pinned:
            axes[name] = [pinned[name]]
    return {
        name: np.array([_code(name, v) for v in values], dtype=np.int64)
        for name, values in axes.items()
    }


def _group_axis(kind: str | None, cp: int) -> list[int]:
    """Sizes of the all-to-all groups of hierarchical context parallelism."""
    proper = [size for size in divisors(cp) if 1 < size < cp]
    return proper if kind == "hierarchical" and proper else [1]


def _code(name: str, value: Any) -> int:
    """Number of a word of a coded axis; anything else is a number already."""
    coded = {"rank_order": RANK_ORDERS, "cp_kind": CP_KINDS, "dispatcher": DISPATCHERS}
    words = coded.get(name, ())
    return words.index(value) if isinstance(value, str) else int(value)


def _chunk_axis(arch: Architecture, software: Software, pp: int, schedule: str | None) -> list[int]:
    """Chunks per rank; a pinned schedule says whether there may or must be more than one."""
    most = min(arch.layers // pp, _MOST_CHUNKS)
    if pp == 1 or (schedule is None and usual(2) not in software.supports.schedules):
        return [1]
    named = None if schedule is None else SCHEDULES[schedule]
    if named and named.fewest_chunks == named.most_chunks:
        return [named.fewest_chunks]
    first = named.fewest_chunks if named else 1
    return [v for v in range(first, most + 1) if _worth(v, pp, arch, software)] or [1]


def _sequence_axis(arch: Architecture, software: Software, tp: int) -> list[int]:
    """Sequence parallelism needs tp > 1, and experts with tp > 1 need it."""
    if tp == 1:
        return [0]
    return [int(x) for x in software.supports.sequence_parallel if x or not arch.is_moe]


def _worth(chunks: int, pp: int, arch: Architecture, software: Software) -> bool:
    """Chunks that divide the layers, or that leave uneven stages where the software takes them."""
    if arch.layers % (pp * chunks) == 0:
        return True
    whole = any(arch.layers % (pp * v) == 0 for v in range(1, arch.layers // pp + 1))
    return software.supports.uneven_stages and not whole


def _expert_axes(
    arch: Architecture, software: Software, ranks: int, tp: int
) -> dict[str, list[int]]:
    """Expert-parallel degrees that divide the experts and the ranks of a pipeline stage."""
    moes = arch.moes
    if not moes or not software.supports.expert:
        return {"ep": [1], "etp": [1]}
    experts = min(moe.experts for moe in moes)
    return {
        "ep": [d for d in divisors(experts) if ranks % d == 0],
        "etp": sorted({1, tp}),
    }


def _recomputation(
    table: Layouts, arch: Architecture, software: Software, pinned: Mapping[str, Any]
) -> Layouts:
    """Repeat every row for each kind of recomputation.

    Selective also by what it names, full by the number of layers.
    """
    modes: list[str] = list(software.supports.recompute)
    if pinned.get("recompute_modules"):
        modes = ["selective"]
    if "recompute" in pinned:
        modes = [str(pinned["recompute"])]
    tables = [
        table.replace(recompute=mode, recompute_layers=0, recompute_modules=modules)
        for mode in modes
        if mode in RECOMPUTE
        for modules in (_module_sets(arch, software, pinned) if mode == "selective" else [""])
    ]
    if "recompute_layers" in pinned:
        return Layouts.concatenate(
            [part.replace(recompute_layers=pinned["recompute_layers"]) for part in tables]
        )
    if "full" in modes:
        per_rank = arch.layers // table.pp
        for step in range(1, _MOST_RECOMPUTE_STEPS):
            count = per_rank * step // _MOST_RECOMPUTE_STEPS
            before = per_rank * (step - 1) // _MOST_RECOMPUTE_STEPS
            rows = (count > 0) & (count != before)
            some = table[rows]
            tables.append(some.replace(recompute="full", recompute_layers=count[rows]))
    return Layouts.concatenate(tables)


def _module_sets(arch: Architecture, software: Software, pinned: Mapping[str, Any]) -> list[str]:
    """What selective recomputation may name, without what the model lacks; "": the usual."""
    if "recompute_modules" in pinned:
        return [pinned["recompute_modules"]]
    has = {"core_attn", "norm"}
    has |= {"mlp", "mlp_act"} if any(isinstance(block.mlp, MLP) for block in arch.blocks) else set()
    has |= {"moe", "moe_act"} if arch.is_moe else set()
    has |= {"shared_experts"} if any(moe.shared_ffn_hidden for moe in arch.moes) else set()
    has |= {"mla_up_proj"} if any(attention.is_mla for attention in arch.attentions) else set()
    usual = has & set(software.kernels.selective_modules)
    sets = [[word for word in words if word in has] for words in software.supports.recompute_sets]
    named = dict.fromkeys("+".join(words) for words in sets if words and set(words) != usual)
    return ["", *named]


def _nearest(cluster: Cluster, pinned: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """A single row with the pinned degrees, so that the reason why nothing fits can be counted."""
    names = ("tp", "pp", "cp", "vpp", "ep", "etp", "micro_batch")
    more = {k: np.array([int(pinned[k])]) for k in ("shard_group",) if k in pinned}
    row = {name: np.array([int(pinned.get(name, 1))]) for name in names}
    dp = np.maximum(data_parallel_degree(cluster.gpus, row["tp"], row["pp"], row["cp"]), 1)
    return {**row, **more, "dp": dp}
