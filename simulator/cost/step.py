"""The time of one optimizer step and the memory of the fullest rank, for a table of layouts.

`evaluate` is the one road from layouts to numbers. It finds the distinct keys (pipeline plans,
block shapes, state shapes), prices each once, and gathers the prices back to the layouts. Steps:
every stage's forward and backward pass is a sum over its parts; the slowest stage paces the pipeline;
what the other stages add is fill and drain; the data-parallel tail and the optimizer close the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.blocks import PASS_TERMS, BlockCosts, block_costs
from simulator.cost.collectives import all_gather_s, send_s
from simulator.cost.memory import MEMORY_KINDS, Memory, memory, recomputed_parts
from simulator.cost.operators import Ranks
from simulator.cost.parameters import model_flop_per_step
from simulator.cost.states import StateCosts, state_costs
from simulator.cost.terms import HIDDEN, TERMS
from simulator.hardware.cluster import Cluster
from simulator.layout.keys import UniqueRows, unique_rows
from simulator.layout.layout import RECOMPUTE, Layouts
from simulator.layout.placement import Group, Placement, place
from simulator.layout.stages import StageTable, fold, stages
from simulator.software import Software
from simulator.workload.recipe import Workload

__all__ = ["Estimate", "evaluate"]

Floats = NDArray[np.float64]

CHUNK = 8192
"""Layouts evaluated at once: their arrays stay in the processor's cache."""

_FULL, _SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What each layout of a table costs; arrays over layouts."""

    layouts: Layouts
    step_time_s: Floats
    terms_s: dict[str, Floats]
    """Critical-path terms by name (TERMS); they add up to `step_time_s`."""
    hidden_s: dict[str, Floats]
    """Communication hidden under compute."""
    memory_bytes: dict[str, Floats]
    """Memory of the fullest rank by kind (MEMORY_KINDS)."""
    memory_total_bytes: Floats
    peak_stage: NDArray[Any]
    """Pipeline rank that is fullest."""
    peak_moment: NDArray[Any]
    """Index into MOMENTS."""
    slowest_stage: NDArray[Any]
    """Pipeline rank that paces the step."""
    imbalance_s: Floats
    """Time that the slowest stage spends above the mean stage (inside the terms, a memo)."""
    model_flop: float
    """Model FLOPs of one step over all accelerators."""
    executed_flop: Floats
    """The same with what recomputation repeats."""
    usable_bytes: float

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Whether the fullest rank stays within usable memory."""
        return self.memory_total_bytes <= self.usable_bytes

    def __len__(self) -> int:
        return len(self.step_time_s)

    def take(self, rows: Any) -> Estimate:
        """Return the estimate of some of the layouts."""

        def pick(columns: dict[str, Floats]) -> dict[str, Floats]:
            return {name: column[rows] for name, column in columns.items()}

        return Estimate(
            layouts=self.layouts[rows],
            step_time_s=self.step_time_s[rows],
            terms_s=pick(self.terms_s),
            hidden_s=pick(self.hidden_s),
            memory_bytes=pick(self.memory_bytes),
            memory_total_bytes=self.memory_total_bytes[rows],
            peak_stage=self.peak_stage[rows],
            peak_moment=self.peak_moment[rows],
            slowest_stage=self.slowest_stage[rows],
            imbalance_s=self.imbalance_s[rows],
            model_flop=self.model_flop,
            executed_flop=self.executed_flop[rows],
            usable_bytes=self.usable_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Everything that layouts share, priced once per distinct key."""

    workload: Workload
    cluster: Cluster
    software: Software
    table: StageTable
    plan: NDArray[Any]
    blocks: BlockCosts
    block_key: NDArray[Any]
    states: StateCosts
    state_key: NDArray[Any]
    send_s: Floats
    """One pipeline send, per block key and whether the hop crosses the network: shape (2, keys)."""
    hop_crosses: NDArray[Any]
    """Per state key: whether stages are joined by the network."""


def evaluate(
    layouts: Layouts, workload: Workload, cluster: Cluster, software: Software, *, every_rank: bool = False
) -> Estimate:
    """Estimate step time and memory of every layout.

    Parameters
    ----------
    layouts : Layouts
        Feasible layouts (see ``layout/feasibility.py``); degrees are not checked again.
    workload, cluster, software
        What is trained, on what, with what.
    every_rank : bool
        Keep a column for every pipeline rank instead of folding equal ones; same result, slower.

    Returns
    -------
    Estimate
    """
    priced = price(layouts, workload, cluster, software, every_rank=every_rank)
    pieces = [
        _evaluate_rows(layouts[start : start + CHUNK], priced, slice(start, start + CHUNK))
        for start in range(0, len(layouts), CHUNK)
    ]
    return pieces[0] if len(pieces) == 1 else _concatenate(pieces)


def price(
    layouts: Layouts, workload: Workload, cluster: Cluster, software: Software, *, every_rank: bool = False
) -> Priced:
    """Find the distinct keys of a table of layouts and price each once."""
    arch = workload.architecture
    micro_batches = np.minimum(layouts.micro_batches, 4 * layouts.pp)
    plans = unique_rows(layouts.pp, layouts.vpp, micro_batches)
    table = fold(
        stages(
            pp=layouts.pp[plans.first],
            vpp=layouts.vpp[plans.first],
            micro_batches=micro_batches[plans.first],
            layer_kinds=arch.layer_kinds,
            kinds=len(arch.blocks),
        ),
        by_content=not every_rank,
    )
    grid = unique_rows(
        layouts.tp, layouts.cp, layouts.dp, layouts.pp, layouts.ep, layouts.etp,
        layouts.rank_order, layouts.sharding, layouts.shard_group, plans.inverse,
    )  # fmt: skip
    corner = layouts[grid.first]
    placement = place(corner, cluster.domain)
    states = state_costs(
        workload, cluster, software, corner, placement, table, plans.inverse[grid.first]
    )
    keys, ranks = _block_keys(layouts, grid, placement)
    blocks = block_costs(workload, cluster, software, ranks)
    sends = np.stack([_send(cluster, blocks, ranks, crosses) for crosses in (False, True)])
    return Priced(
        workload=workload, cluster=cluster, software=software, table=table, plan=plans.inverse,
        blocks=blocks, block_key=keys.inverse, states=states, state_key=grid.inverse,
        send_s=sends, hop_crosses=(placement.pp.local == 1).astype(np.int64),
    )  # fmt: skip


def _block_keys(layouts: Layouts, grid: UniqueRows, placement: Placement) -> tuple[UniqueRows, Ranks]:
    """Distinct shapes that a rank computes with, and what each rank sees of them."""
    local = [getattr(placement, name).local[grid.inverse] for name in ("tp", "cp", "ep", "etp")]
    keys = unique_rows(
        layouts.tp, layouts.sequence_parallel, layouts.cp, layouts.ep, layouts.etp,
        layouts.micro_batch, *local,
    )  # fmt: skip
    some = layouts[keys.first]
    ranks = Ranks(
        tp=some.tp.astype(float),
        sequence_parallel=some.sequence_parallel.astype(bool),
        cp=some.cp.astype(float),
        ep=some.ep.astype(float),
        etp=some.etp.astype(float),
        micro_batch=some.micro_batch.astype(float),
        groups=placement.take(grid.inverse[keys.first]),
    )
    return keys, ranks


def _send(cluster: Cluster, blocks: BlockCosts, ranks: Ranks, crosses: bool) -> Floats:
    """One send between stages. Without sequence parallelism every tensor rank sends its share and
    the receivers gather (Narayanan et al. 2021, section 4.1)."""
    whole = blocks.boundary_bytes
    split = ~ranks.sequence_parallel & (ranks.tp > 1)
    share = np.where(split, whole / ranks.tp, whole)
    gather = np.where(split, all_gather_s(cluster, whole, ranks.groups.tp), 0.0)
    return send_s(cluster, share, np.full(len(whole), crosses)) + gather


def _evaluate_rows(layouts: Layouts, priced: Priced, rows: slice) -> Estimate:
    """Gather prices for some layouts and assemble step time, terms and memory."""
    b, s, table = priced.blocks, priced.states, priced.table
    key, grid, plan = priced.block_key[rows], priced.state_key[rows], priced.plan[rows]
    parts, in_flight, ranks = table.parts[plan], table.in_flight[plan], table.ranks[plan]
    covered = recomputed_parts(layouts, parts)
    m, v = layouts.micro_batches.astype(float), layouts.vpp.astype(float)
    pp = layouts.pp.astype(float)
    mode = layouts.recompute

    passes = _part_passes(priced, key, grid, m)
    forward_s, backward_s = _stage_passes(priced, key, mode, parts, covered, passes)
    both_s = forward_s + backward_s
    slowest = np.argmax(both_s, axis=1)
    at = np.arange(len(layouts))
    slow_forward_s, slow_backward_s = forward_s[at, slowest], backward_s[at, slowest]

    terms = _steady_terms(priced, key, mode, parts[at, slowest], covered[at, slowest], m, passes)
    sends = 2.0 * priced.send_s[priced.hop_crosses[grid], key]
    covered_send = priced.software.overlap.pipeline_send & (layouts.vpp > 1)
    window = (slow_forward_s + slow_backward_s) / v
    sends_shown = np.where(covered_send, np.maximum(sends - window, 0.0), sends)
    terms["pp"] = np.where(pp > 1, m * v * sends_shown + (pp - 1.0) * sends, 0.0)
    terms["bubble_warmup"] = ((ranks * forward_s).sum(axis=1) - slow_forward_s) / v
    terms["bubble_drain"] = ((ranks * backward_s).sum(axis=1) - slow_backward_s) / v
    dp_s, dp_hidden_s, dp_slow_s = _data_parallel(
        priced, grid, table.rank[plan], ranks, forward_s, backward_s, pp * v
    )
    terms["dp"] = dp_s
    terms["slowdown"] = terms["slowdown"] + dp_slow_s
    terms["optimizer"] = s.optimizer_s[grid].max(axis=1)
    terms = {term.name: terms[term.name] for term in TERMS}
    total = np.zeros(len(layouts))
    for seconds in terms.values():
        total = total + seconds

    hidden = _hidden(b, key, parts[at, slowest], m)
    hidden["fsdp"] = m * _over_parts(parts[at, slowest], passes.hidden_s)
    hidden["dp"] = dp_hidden_s
    mem = memory(
        priced.cluster, priced.software, layouts, blocks=b, block_key=key, states=s, state_key=grid,
        parts=parts, in_flight=in_flight, covered=covered,
    )  # fmt: skip
    return _estimate(layouts, priced, terms, hidden, total, mem, key, plan, slowest, both_s, ranks, parts, covered)


@dataclass(frozen=True, slots=True)
class _PartPasses:
    """One micro-batch through each part: seconds of shape (layouts, parts)."""

    forward_s: Floats
    backward_s: Floats
    """Without recomputation."""
    fsdp_s: Floats
    """Exposed gathers and reductions of zero3, both directions."""
    hidden_s: Floats


def _part_passes(priced: Priced, key: NDArray[Any], grid: NDArray[Any], m: Floats) -> _PartPasses:
    """Passes through each part, with zero3's gathers and reductions beside them.

    Software that reduces only after the last micro-batch pays one reduction for all m of them.
    """
    b, s = priced.blocks, priced.states
    forward, backward = _total(b.forward_s)[key], _total(b.backward_s)[key]
    gather, reduce = s.part_gather_s[grid], s.part_reduce_s[grid]
    if not gather.any():
        none = np.zeros_like(forward)
        return _PartPasses(forward, backward, none, none)
    if not priced.software.states.reduces_every_micro_batch:
        reduce = reduce / m[:, None]
    if priced.software.overlap.sharded_prefetch:
        shown_forward = np.maximum(gather - forward, 0.0)
        shown_backward = np.maximum(gather + reduce - backward, 0.0)
    else:
        shown_forward, shown_backward = gather, gather + reduce
    hidden = 2.0 * gather + reduce - shown_forward - shown_backward
    return _PartPasses(
        forward + shown_forward, backward + shown_backward, shown_forward + shown_backward, hidden
    )


def _total(terms: Floats) -> Floats:
    """Sum over terms in a fixed order."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _over_parts(count: Floats, per_part: Floats) -> Floats:
    """Sum of count times cost over parts in a fixed order; shapes (..., parts)."""
    total = count[..., 0] * per_part[..., 0]
    for part in range(1, count.shape[-1]):
        total = total + count[..., part] * per_part[..., part]
    return total


def _stage_passes(
    priced: Priced, key: NDArray[Any], mode: NDArray[Any], parts: Floats, covered: Floats, passes: _PartPasses
) -> tuple[Floats, Floats]:
    """Seconds of one micro-batch through every distinct rank, shape (layouts, columns)."""
    forward_s = _over_parts(parts, passes.forward_s[:, None, :])
    backward_s = _over_parts(parts, passes.backward_s[:, None, :])
    backward_s = backward_s + _recompute(priced, key, mode, parts, covered)
    return forward_s, backward_s


def _recompute(
    priced: Priced, key: NDArray[Any], mode: NDArray[Any], parts: Floats, covered: Floats
) -> Floats:
    """Recomputation of one micro-batch on every rank given by `parts`; leading axis is layouts."""
    again = priced.blocks.recompute_s
    axes = (slice(None), *(None,) * (parts.ndim - 2))
    selective = np.where((mode == _SELECTIVE)[:, None], again[_SELECTIVE][key], 0.0)[axes]
    full = again[_FULL][key][axes]
    return _over_parts(parts, selective) + _over_parts(covered, full)


def _steady_terms(
    priced: Priced, key: NDArray[Any], mode: NDArray[Any], parts: Floats, covered: Floats, m: Floats,
    passes: _PartPasses,
) -> dict[str, Floats]:  # fmt: skip
    """Terms of m micro-batches on the slowest stage; parts of shape (layouts, parts)."""
    b = priced.blocks
    terms = {
        name: m * _over_parts(parts, b.forward_s[i][key] + b.backward_s[i][key])
        for i, name in enumerate(PASS_TERMS)
    }
    terms["recompute"] = m * _recompute(priced, key, mode, parts, covered)
    terms["fsdp"] = m * _over_parts(parts, passes.fsdp_s)
    return terms


def _hidden(b: BlockCosts, key: NDArray[Any], parts: Floats, m: Floats) -> dict[str, Floats]:
    return {name: m * _over_parts(parts, b.hidden_s[i][key]) for i, name in enumerate(HIDDEN[:3])}


def _data_parallel(
    priced: Priced, grid: NDArray[Any], rank: NDArray[Any], ranks: Floats, forward_s: Floats,
    backward_s: Floats, pieces: Floats,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """Exposed and hidden data-parallel communication, and what hiding it costs the compute.

    Each rank hides its reduction behind the backward pass of its last micro-batch; the last bucket
    cannot hide. A rank behind the first finishes earlier by the backward passes before it, and
    starts later by the forward passes, so the same holds for its gather.
    """
    s, overlap = priced.states, priced.software.overlap
    reduce_s, gather_s, buckets = s.reduce_s[grid], s.gather_s[grid], s.reduce_buckets[grid]
    mean_forward = (ranks * forward_s).sum(axis=1) / pieces
    mean_backward = (ranks * backward_s).sum(axis=1) / pieces
    shown = np.zeros_like(reduce_s)
    for seconds, window, slack, hides in (
        (reduce_s, backward_s, rank * mean_backward[:, None], overlap.gradient_reduce),
        (gather_s, forward_s, rank * mean_forward[:, None], overlap.parameter_gather),
    ):
        if hides:
            exposed = np.maximum(seconds - window, seconds / buckets)
        else:
            exposed = seconds
        shown = shown + np.maximum(exposed - slack, 0.0)
    worst = shown.argmax(axis=1)
    at = np.arange(len(worst))
    exposed = shown[at, worst]
    hidden = (reduce_s + gather_s)[at, worst] - exposed
    units = float(priced.cluster.accelerator.compute_units)
    share = min(float(priced.cluster.library.compute_units) / units, 1.0)
    beside = hidden if overlap.gradient_reduce else 0.0 * hidden
    return exposed, hidden, beside * share


def _estimate(
    layouts: Layouts, priced: Priced, terms: dict[str, Floats], hidden: dict[str, Floats], total: Floats,
    mem: Memory, key: NDArray[Any], plan: NDArray[Any], slowest: NDArray[Any], both_s: Floats, ranks: Floats,
    parts: Floats, covered: Floats,
) -> Estimate:  # fmt: skip
    at = np.arange(len(layouts))
    arch, recipe = priced.workload.architecture, priced.workload.recipe
    model = model_flop_per_step(
        arch, tokens=float(recipe.tokens_per_step), sequence_length=recipe.sequence_length
    )
    m = layouts.micro_batches.astype(float)
    mean = (ranks * both_s).sum(axis=1) / ranks.sum(axis=1)
    return Estimate(
        layouts=layouts,
        step_time_s=total,
        terms_s=terms,
        hidden_s={name: hidden[name] for name in HIDDEN},
        memory_bytes={
            kind: mem.kinds_bytes[i, at, mem.peak_column] for i, kind in enumerate(MEMORY_KINDS)
        },
        memory_total_bytes=mem.peak_bytes,
        peak_stage=priced.table.rank[plan, mem.peak_column],
        peak_moment=mem.moment[at, mem.peak_column],
        slowest_stage=priced.table.rank[plan, slowest],
        imbalance_s=m * (both_s[at, slowest] - mean),
        model_flop=model,
        executed_flop=model + _repeated_flop(layouts, priced, key, ranks, parts, covered),
        usable_bytes=float(priced.cluster.accelerator.memory.usable_bytes),
    )


def _repeated_flop(
    layouts: Layouts, priced: Priced, key: NDArray[Any], ranks: Floats, parts: Floats, covered: Floats
) -> Floats:
    """FLOPs that recomputation repeats on all accelerators in one step."""
    b = priced.blocks
    selective = np.where((layouts.recompute == _SELECTIVE)[:, None], b.selective_flop[key], 0.0)
    again = _over_parts(parts, selective[:, None, :])
    again = again + _over_parts(covered, b.forward_flop[key][:, None, :])
    replicas = layouts.micro_batches * (layouts.dp * layouts.cp * layouts.tp).astype(float)
    return np.asarray(replicas * (ranks * again).sum(axis=1))


def _concatenate(pieces: list[Estimate]) -> Estimate:
    """Join the estimates of consecutive chunks."""

    def join(name: str) -> Any:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    def join_columns(name: str) -> dict[str, Floats]:
        columns = getattr(pieces[0], name)
        return {k: np.concatenate([getattr(piece, name)[k] for piece in pieces]) for k in columns}

    arrays = (
        "step_time_s", "memory_total_bytes", "peak_stage", "peak_moment", "slowest_stage", "imbalance_s",
        "executed_flop",
    )  # fmt: skip
    return Estimate(
        layouts=Layouts.concatenate([piece.layouts for piece in pieces]),
        terms_s=join_columns("terms_s"),
        hidden_s=join_columns("hidden_s"),
        memory_bytes=join_columns("memory_bytes"),
        model_flop=pieces[0].model_flop,
        usable_bytes=pieces[0].usable_bytes,
        **{name: join(name) for name in arrays},
    )
