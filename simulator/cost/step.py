"""The time of one optimizer step and the memory of the fullest rank, for a table of layouts.

`evaluate` is the one road from layouts to numbers. It finds the distinct keys (pipeline plans,
block shapes, state shapes), prices each once, and gathers the prices back to the layouts. Every
stage's forward and backward pass is a sum over its parts; the slowest stage paces the pipeline;
what the others add is fill and drain; the data-parallel tail and the optimizer close the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, by_key, of_column, over_columns
from simulator.cost.estimate import Estimate, concatenate, memory_verdict
from simulator.cost.loading import supply_of
from simulator.cost.memory.offload import (
    activation_copies_s,
    host_step_s,
    offloaded_by_tier,
    offloaded_bytes,
    parameter_copies_s,
    room_bytes,
    uses_host,
)
from simulator.cost.memory.peak import MEMORY_KINDS, memory_spread, peak_bytes, peak_memory
from simulator.cost.passes import (
    FULL,
    SELECTIVE,
    block_passes,
    data_parallel,
    over_parts,
    part_passes,
    rank_passes,
    slowest_rank,
    steady_terms,
)
from simulator.cost.pipeline.bubble import pipeline, without_barrier
from simulator.cost.pricing import price
from simulator.cost.tables import (
    PartPasses,
    Paths,
    Priced,
    RankPasses,
    Selection,
    SlowestRank,
    StepTerms,
    covered_parts,
    select,
)
from simulator.cost.terms import HIDDEN, TERMS
from simulator.hardware.cluster import Cluster
from simulator.layout.keys import unique_rows
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

__all__ = ["Estimate"]


CHUNK = 8192
"""Layouts evaluated at once: their arrays stay in the processor's cache."""


def evaluate(
    layouts: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    *,
    every_rank: bool = False,
) -> Estimate:
    """Estimate step time and memory of every layout.

    Parameters
    ----------
    layouts : Layouts
        Feasible layouts (see ``layout/rules/feasibility.py``); degrees are not checked again.
    workload, cluster, software
        What is trained, on what, with what.
    every_rank : bool
        Keep a column for every pipeline rank instead of folding equal ones; same result, slower.

    Returns
    -------
    Estimate
    """
    priced = price(layouts, workload, cluster, software, every_rank=every_rank)
    pieces = list(priced_estimates(layouts, priced))
    return pieces[0] if len(pieces) == 1 else concatenate(pieces)


def estimates(
    layouts: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    *,
    coarse: bool = False,
) -> Iterator[Estimate]:
    """Yield the estimates of consecutive rows, a cache-sized table at a time.

    What a search over millions of layouts wants: it keeps the best of each table and lets go of
    the rest. Same numbers as :func:`evaluate`; with `coarse`, the longest paths of pipelines are
    those at coarsely rounded costs (``cost/pipeline/rounded.py``), to be followed by it for what is
    kept.
    """
    yield from priced_estimates(layouts, price(layouts, workload, cluster, software, coarse=coarse))


def priced_estimates(layouts: Layouts, priced: Priced) -> Iterator[Estimate]:
    """The same of layouts whose keys and paths are priced."""
    for start in range(0, max(len(layouts), 1), CHUNK):
        yield priced_estimate(layouts, priced, slice(start, start + CHUNK))


def priced_estimate(layouts: Layouts, priced: Priced, rows: slice) -> Estimate:
    """The estimate of some rows of a priced table."""
    estimate = _evaluate_rows(select(layouts, priced, rows), priced)
    # as they are asked for, not as they are wrapped
    return replace(estimate, layouts=layouts[rows])


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What layouts need, without their times; arrays over layouts."""

    memory_bytes: Floats
    """Of the fullest rank."""
    fits: NDArray[np.bool_]
    """As ``Estimate.fits``."""
    safe: NDArray[np.bool_]
    """Whether the P90 of memory fits too."""
    offload_fits: NDArray[np.bool_]
    """Whether a server has room for what is kept in host memory and on drives."""

    @staticmethod
    def joined(pieces: list[Needs]) -> Needs:
        """Join the needs of consecutive tables, one at the least."""
        names = ("memory_bytes", "fits", "safe", "offload_fits")
        columns = {name: [getattr(piece, name) for piece in pieces] for name in names}
        return Needs(**{name: np.concatenate(column) for name, column in columns.items()})


def memory_needs(layouts: Layouts, priced: Priced) -> Needs:
    """Memory alone of the rows of a priced table, as in their estimates; paths are not needed.

    Layouts that offload activations are not for it: what they send away hangs on their slowest
    rank, and so on their times.
    """
    assert not layouts.offload_layers.any()
    rows = select(layouts, priced, slice(None))
    needs = peak_bytes(rows, priced)
    usable = float(priced.cluster.accelerator.memory.usable_bytes)
    spread = memory_spread(layouts, priced.software)
    room = np.full(len(layouts), True)
    if uses_host(layouts):
        away = offloaded_by_tier(priced, layouts, rows.state_key, np.zeros(len(layouts)))
        for tier, most in room_bytes(priced.cluster).items():
            room &= away[tier] <= most
    return Needs(
        memory_bytes=needs,
        fits=(needs <= usable) & room,
        safe=(memory_verdict(needs, spread, usable) == 0) & room,
        offload_fits=room,
    )


def least_step_s(layouts: Layouts, priced: Priced) -> Floats:
    """The first of :func:`least_steps_s`."""
    return least_steps_s(layouts, priced)[0]


def least_steps_s(layouts: Layouts, priced: Priced) -> tuple[Floats, Floats]:
    """A lower bound on the step time of the rows of a priced table, (layouts,), without paths.

    A step is the sum of the terms of :data:`simulator.cost.terms.TERMS`, none of which is negative:
    shown parts of communication, offload, fill and drain are cut off at zero, and so is what a
    further micro-batch takes over the slowest rank's own passes. What is added up here is some of
    these terms alone: the blocks of m micro-batches, forward and backward with what is recomputed,
    on the rank that takes longest for them, the optimizer's step on the device, and the norm of the
    gradients. So no step is shorter, and no layout whose bound lies above the time of the n-th
    fastest is among the n fastest. The last 1e-9 are left to the rounding of sums in another order.

    The second is the same with the mean of all ranks in place of the slowest, and nothing else: no
    way to deal the layers makes a step shorter.

    Few layouts differ in what their ranks hold, what a block costs and what is recomputed.
    """
    again = (layouts.recompute, layouts.recompute_layers)
    keys = unique_rows(priced.plan, priced.block_key, *again)
    blocks, key = priced.blocks, priced.block_key[keys.first]
    parts = priced.table.parts[priced.plan[keys.first]]
    mode, layers = (column[keys.first] for column in again)
    ahead_s, back_s = block_passes(blocks)
    passes_s = by_key(ahead_s + back_s, key)
    passes_s = passes_s + np.where(
        (mode == SELECTIVE)[:, None], by_key(blocks.recompute_s[SELECTIVE], key), 0
    )
    ranks_s = over_parts(parts, passes_s[:, None, :])
    full = np.flatnonzero(mode == FULL)
    if len(full):
        covered = covered_parts(layers[full], parts[full])
        ranks_s[full] += over_parts(covered, blocks.recompute_s[FULL][key[full]][:, None, :])
    m = layouts.micro_batches / layouts.copies
    ranks = priced.table.ranks[priced.plan[keys.first]]
    mean_s = (ranks * ranks_s).sum(axis=1) / ranks.sum(axis=1)
    least_s = m * ranks_s.max(axis=1)[keys.inverse] + priced.states.norm_s[priced.state_key]
    if not uses_host(layouts):
        least_s = least_s + priced.states.longest_optimizer_s[priced.state_key]
    rounding = 1.0 - 1e-9
    return np.asarray(least_s * rounding), np.asarray(m * mean_s[keys.inverse] * rounding)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfilled:
    """Layouts as if their pipelines neither filled nor drained: for their paths to be added."""

    estimate: Estimate
    """Of steps that take no more than the passes of their slowest ranks."""
    steps: _Steps

    @classmethod
    def of(cls, layouts: Layouts, priced: Priced) -> Unfilled:
        """Evaluate all layouts of a priced table, whose paths are not known."""
        paths = Paths.empty(len(layouts), priced.table.parts.shape[2])
        priced = replace(priced, paths=paths)
        steps = _Steps.of(select(layouts, priced, slice(None)), priced)
        estimate = _estimate(steps, steps.terms(priced, steps.rows))
        return cls(estimate=replace(estimate, layouts=layouts), steps=steps)

    def filled(self, some: NDArray[np.intp], paths: Paths) -> Estimate:
        """The estimates of some of the layouts with their paths, as :func:`evaluate` has them."""
        steps, route = self.steps, np.zeros(len(self.estimate), np.intp)  # of others any
        route[some] = paths.route
        priced = replace(steps.priced, paths=replace(paths, route=route))
        terms = steps.terms(priced, replace(steps.rows, route=route))
        times = _times(steps.rows.layouts, priced, terms)
        return replace(self.estimate, **times).take(some)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Steps:
    """Steps of some rows of a priced table but for what hangs on the paths of their pipelines."""

    rows: Selection
    priced: Priced
    passes: PartPasses
    ranks: RankPasses
    slowest: SlowestRank
    before: StepTerms
    """Terms of the slowest ranks."""
    after: tuple[StepTerms, ...]
    """Those that come once a step."""

    @classmethod
    def of(cls, rows: Selection, priced: Priced) -> _Steps:
        """Passes of parts and of ranks, and the terms that they make."""
        layouts = rows.layouts
        m, again = layouts.micro_batches / layouts.copies, recomputed_share(rows)
        passes = part_passes(priced, layouts, rows.block_key, rows.state_key, m, again)
        ranks = rank_passes(rows, priced, passes)
        slowest = slowest_rank(rows, priced, ranks)
        terms = steady_terms(rows, priced, passes, slowest)
        return cls(
            rows=rows,
            priced=priced,
            passes=passes,
            ranks=ranks,
            slowest=slowest,
            before=terms.plus(_offload_terms(rows, priced, slowest, terms.shown_s["input"])),
            after=(data_parallel(rows, priced, ranks), *_step_terms(rows, priced, ranks, slowest)),
        )

    def terms(self, priced: Priced, rows: Selection) -> StepTerms:
        """All terms, with the paths of `priced` and the routes of `rows`."""
        bubbles = pipeline(rows, priced, self.passes, self.ranks, self.slowest)
        if priced.workload.recipe.optimizer_post_validation:
            bubbles = without_barrier(bubbles, rows, priced, self.ranks, self.slowest)
        terms = self.before.plus(bubbles)
        for once in self.after:
            terms = terms.plus(once)
        return terms


def _evaluate_rows(rows: Selection, priced: Priced) -> Estimate:
    """Assemble step time, terms and memory of some rows."""
    steps = _Steps.of(rows, priced)
    return _estimate(steps, steps.terms(priced, rows))


def _offload_terms(
    rows: Selection, priced: Priced, slowest: SlowestRank, input_s: Floats
) -> StepTerms:
    """Copies of activations to the host and back, each way behind its pass but for the input."""
    m = slowest.micro_batches
    passes_s = slowest.forward_s - input_s / np.maximum(m, 1.0), slowest.backward_s
    shown, hidden = activation_copies_s(
        priced,
        rows.layouts,
        rows.block_key,
        (rows.parts, rows.offloaded, rows.covered),
        slowest.column,
        m=m,
        passes_s=passes_s,
    )
    return StepTerms(shown_s={"offload": shown}, hidden_s={"offload": hidden})


def _step_terms(
    rows: Selection, priced: Priced, ranks: RankPasses, slowest: SlowestRank
) -> Iterator[StepTerms]:
    """Small reductions, the optimizer step, and copies of states to and from the host."""
    layouts, key, m = rows.layouts, rows.state_key, slowest.micro_batches
    maxima_s = of_column(ranks.maxima_s[0] + ranks.maxima_s[1], slowest.column)
    once = {"small_reductions": m * maxima_s + priced.states.norm_s[key]}
    if not uses_host(layouts):
        once["optimizer"] = priced.states.longest_optimizer_s[key]
        yield StepTerms(shown_s=once, hidden_s={})
        return
    once["optimizer"], shown, hidden = host_step_s(priced, layouts, key, m, ranks.backward_window_s)
    yield StepTerms(shown_s=once | {"offload": shown}, hidden_s={"offload": hidden})
    passes_s = slowest.forward_s, slowest.backward_s
    shown, hidden = parameter_copies_s(priced, layouts, key, m, slowest.column, passes_s)
    yield StepTerms(shown_s={"offload": shown}, hidden_s={"offload": hidden})


def recomputed_share(rows: Selection) -> Floats:
    """Share of each part's blocks that full recomputation covers, over all ranks."""
    if not rows.covered.any():
        return np.zeros((len(rows.layouts), rows.parts.shape[2]))
    ranks = rows.ranks[:, :, None]
    whole = over_columns(ranks * rows.parts)
    return np.asarray(over_columns(ranks * rows.covered) / np.maximum(whole, 1.0))


def _times(layouts: Layouts, priced: Priced, terms: StepTerms) -> dict[str, Any]:
    """Times of an estimate: terms added up in the order of TERMS."""
    ordered = {term.name: terms.shown_s[term.name] for term in TERMS}
    step_s: Floats = np.zeros(len(layouts))
    for seconds in ordered.values():
        step_s = step_s + seconds
    waiting_s = _waiting_s(layouts, priced, step_s)
    ordered["input"], step_s = ordered["input"] + waiting_s, step_s + waiting_s
    return {
        "step_time_s": step_s,
        "terms_s": ordered,
        "hidden_s": {name: terms.hidden_s[name] for name in HIDDEN},
        "waiting_s": waiting_s,
    }


def _estimate(steps: _Steps, terms: StepTerms) -> Estimate:
    """Join time with memory."""
    rows, priced, ranks, slowest = steps.rows, steps.priced, steps.ranks, steps.slowest
    both_s = ranks.forward_s + ranks.backward_s
    mean_s = over_columns(rows.ranks * both_s) / over_columns(rows.ranks)
    blocks = (rows.parts, rows.offloaded, rows.covered)
    moved = offloaded_bytes(priced, rows.layouts, rows.block_key, blocks, slowest.column)
    mem = peak_memory(rows, priced)
    peak = mem.peak_column
    return Estimate(
        layouts=rows.layouts,
        **_times(rows.layouts, priced, terms),
        memory_bytes=dict(
            zip(MEMORY_KINDS, (of_column(x, peak) for x in mem.kinds_bytes), strict=True)
        ),
        memory_total_bytes=mem.peak_bytes,
        peak_stage=of_column(rows.rank, peak),
        peak_moment=of_column(mem.moment, peak),
        slowest_stage=of_column(rows.rank, slowest.column),
        imbalance_s=slowest.micro_batches * (of_column(both_s, slowest.column) - mean_s),
        model_flop=priced.model_flop,
        executed_flop=priced.model_flop + _repeated_flop(rows, priced),
        usable_bytes=float(priced.cluster.accelerator.memory.usable_bytes),
        offloaded_bytes=offloaded_by_tier(priced, rows.layouts, rows.state_key, moved),
        room_bytes=room_bytes(priced.cluster),
        memory_spread=memory_spread(rows.layouts, priced.software),
    )


def _waiting_s(layouts: Layouts, priced: Priced, step_s: Floats) -> Floats:
    """Seconds that steps of `step_s` wait for their samples; none without a section [data]."""
    supply = supply_of(layouts, priced.workload, priced.cluster, priced.software)
    return np.zeros(len(layouts)) if supply is None else supply.wait_s(step_s)


def _repeated_flop(rows: Selection, priced: Priced) -> Floats:
    """FLOPs that recomputation repeats on all accelerators in one step."""
    b, layouts = priced.blocks, rows.layouts
    selective = np.where(
        (layouts.recompute == SELECTIVE)[:, None], by_key(b.selective_flop, rows.block_key), 0.0
    )
    again = over_parts(rows.parts, selective[:, None, :])
    again = again + over_parts(rows.covered, by_key(b.full_flop, rows.block_key)[:, None, :])
    replicas = (
        layouts.micro_batches
        / layouts.copies
        * (layouts.dp * layouts.cp * layouts.tp).astype(float)
    )
    return np.asarray(replicas * over_columns(rows.ranks * again))
