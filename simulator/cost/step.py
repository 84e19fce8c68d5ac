"""The time of one optimizer step and the memory of the fullest rank, for a table of layouts.

`evaluate` is the one road from layouts to numbers. It finds the distinct keys (pipeline plans,
block shapes, state shapes), prices each once, and gathers the prices back to the layouts. Every
stage's forward and backward pass is a sum over its parts; the slowest stage paces the pipeline;
what the others add is fill and drain; the data-parallel tail and the optimizer close the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.estimate import Estimate, concatenate
from simulator.cost.memory.offload import (
    activation_copies_s,
    away_bytes,
    host_step_s,
    offloaded_bytes,
    parameter_copies_s,
    room_bytes,
    uses_host,
)
from simulator.cost.memory.peak import MEMORY_KINDS, memory_spread, peak_memory
from simulator.cost.passes import (
    SELECTIVE,
    ZERO2,
    alone_passes,
    alone_terms,
    data_parallel,
    hidden_communication,
    over_parts,
    part_passes,
    shown_maxima,
    stage_passes,
    steady_terms,
)
from simulator.cost.pipeline.bubble import pipeline
from simulator.cost.pipeline.post_validation import without_barrier
from simulator.cost.pricing import price
from simulator.cost.tables import Priced, Selection, select
from simulator.cost.terms import HIDDEN, TERMS
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.schedules.registry import SPLITS_BACKWARD
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

__all__ = ["Estimate", "estimates", "evaluate", "recomputed_share"]


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
    pieces = list(_estimates(layouts, priced))
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
    yield from _estimates(layouts, price(layouts, workload, cluster, software, coarse=coarse))


def _estimates(layouts: Layouts, priced: Priced) -> Iterator[Estimate]:
    for start in range(0, max(len(layouts), 1), CHUNK):
        yield _evaluate_rows(select(layouts, priced, slice(start, start + CHUNK)), priced)


def _evaluate_rows(rows: Selection, priced: Priced) -> Estimate:
    """Assemble step time, terms and memory of some rows."""
    layouts = rows.layouts
    m = layouts.micro_batches / layouts.copies
    pieces = (layouts.pp * layouts.vpp * layouts.copies).astype(float)
    passes = part_passes(priced, layouts, rows.block_key, rows.state_key, m, recomputed_share(rows))
    forward_s, backward_s, fetched_s = stage_passes(rows.parts, rows.covered, passes)
    maxima = shown_maxima(
        priced, rows.block_key, rows.state_key, rows.parts, layouts.vpp * layouts.copies
    )
    forward_s, backward_s = forward_s + maxima[0], backward_s + maxima[1]
    both_s = forward_s + backward_s
    at, slowest = np.arange(len(layouts)), np.argmax(both_s, axis=1)
    held, covered = rows.parts[at, slowest], rows.covered[at, slowest]

    terms = steady_terms(priced, rows.block_key, held, covered, m, passes)
    alone = np.minimum(priced.unpaired[rows.plan], m)
    alone_terms(terms, priced.blocks, rows.block_key, held, alone)
    hidden = hidden_communication(
        priced.blocks, rows.block_key, held, m, alone, passes, terms["input"]
    )
    hidden["fsdp"] = m * over_parts(held, passes.hidden_s.sum(axis=0))
    slow_s = forward_s[at, slowest] - terms["input"] / np.maximum(m, 1.0), backward_s[at, slowest]
    blocks = (rows.parts, rows.offloaded, rows.covered)
    terms["offload"], hidden["offload"] = activation_copies_s(
        priced, layouts, rows.block_key, blocks, slowest, m, slow_s
    )
    longer = alone_passes(priced.blocks, rows.block_key, held[:, None, :])
    lone = alone * longer[0][:, 0], alone * longer[1][:, 0]
    slow_s = forward_s[at, slowest], backward_s[at, slowest]
    hidden["pp"] = pipeline(terms, rows, priced, (passes, fetched_s), slow_s, lone)
    if priced.workload.recipe.optimizer_post_validation:
        more = alone_passes(priced.blocks, rows.block_key, rows.parts)
        lonely_s = forward_s + more[0], backward_s + more[1]
        without_barrier(terms, rows, priced, lonely_s, slowest)
    windows = (
        over_parts(rows.parts, passes.forward_window_s[:, None, :]),
        over_parts(rows.parts, passes.backward_window_s[:, None, :]),
    )
    owned = priced.software.states
    once = priced.states.keeps_gathered[rows.state_key]
    every = (layouts.sharding == ZERO2) & owned.reduces_every_micro_batch & ~once
    terms["dp"], hidden["dp"], slowed_s = data_parallel(
        priced,
        layouts,
        rows.state_key,
        _behind(rows),
        rows.ranks,
        forward_s,
        backward_s,
        windows,
        pieces,
        np.where(every, m, 1.0),
    )
    terms["dp"] = terms["dp"] + priced.states.tables_s[rows.state_key]
    terms["small_reductions"] = (
        m * (maxima[0] + maxima[1])[at, slowest] + priced.states.norm_s[rows.state_key]
    )
    terms["slowdown"] = terms["slowdown"] + slowed_s
    terms["optimizer"] = priced.states.optimizer_s[rows.state_key].max(axis=1)
    if uses_host(layouts):
        terms["optimizer"], *copies = host_step_s(priced, layouts, rows.state_key, m, windows[1])
        more = parameter_copies_s(priced, layouts, rows.state_key, m, slowest, slow_s)
        terms["offload"] = terms["offload"] + copies[0] + more[0]
        hidden["offload"] = hidden["offload"] + copies[1] + more[1]
    mean_s = (rows.ranks * both_s).sum(axis=1) / rows.ranks.sum(axis=1)
    moved = offloaded_bytes(priced, layouts, rows.block_key, blocks, slowest)
    away = away_bytes(priced, layouts, rows.state_key, moved)
    return _estimate(rows, priced, terms, hidden, slowest, m * (both_s[at, slowest] - mean_s), away)


def recomputed_share(rows: Selection) -> Floats:
    """Share of each part's blocks that full recomputation covers, over all ranks."""
    ranks = rows.ranks[:, :, None]
    whole = (ranks * rows.parts).sum(axis=1)
    return np.asarray((ranks * rows.covered).sum(axis=1) / np.maximum(whole, 1.0))


def _behind(rows: Selection) -> NDArray[Any]:
    """Stages that finish after a rank; where weight passes fill the drain, all finish together."""
    late = SPLITS_BACKWARD[rows.layouts.schedule]
    return np.where(late[:, None], 0, rows.rank) if late.any() else rows.rank


def _estimate(
    rows: Selection,
    priced: Priced,
    terms: dict[str, Floats],
    hidden: dict[str, Floats],
    slowest: NDArray[Any],
    imbalance_s: Floats,
    away: dict[str, Floats],
) -> Estimate:
    """Add the terms up in the order of TERMS and join time with memory."""
    ordered = {term.name: terms[term.name] for term in TERMS}
    total: Floats = np.zeros(len(rows.layouts))
    for seconds in ordered.values():
        total = total + seconds
    mem = peak_memory(rows, priced)
    at, peak = np.arange(len(rows.layouts)), mem.peak_column
    return Estimate(
        layouts=rows.layouts,
        step_time_s=total,
        terms_s=ordered,
        hidden_s={name: hidden[name] for name in HIDDEN},
        memory_bytes={kind: mem.kinds_bytes[i, at, peak] for i, kind in enumerate(MEMORY_KINDS)},
        memory_total_bytes=mem.peak_bytes,
        peak_stage=rows.rank[at, peak],
        peak_moment=mem.moment[at, peak],
        slowest_stage=rows.rank[at, slowest],
        imbalance_s=imbalance_s,
        model_flop=priced.model_flop,
        executed_flop=priced.model_flop + _repeated_flop(rows, priced),
        usable_bytes=float(priced.cluster.accelerator.memory.usable_bytes),
        away_bytes=away,
        room_bytes=room_bytes(priced.cluster),
        memory_spread=memory_spread(rows.layouts, priced.software),
    )


def _repeated_flop(rows: Selection, priced: Priced) -> Floats:
    """FLOPs that recomputation repeats on all accelerators in one step."""
    b, layouts = priced.blocks, rows.layouts
    selective = np.where(
        (layouts.recompute == SELECTIVE)[:, None], b.selective_flop[rows.block_key], 0.0
    )
    again = over_parts(rows.parts, selective[:, None, :])
    again = again + over_parts(rows.covered, b.full_flop[rows.block_key][:, None, :])
    replicas = (
        layouts.micro_batches
        / layouts.copies
        * (layouts.dp * layouts.cp * layouts.tp).astype(float)
    )
    return np.asarray(replicas * (rows.ranks * again).sum(axis=1))
