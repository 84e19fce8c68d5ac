"""One micro-batch through each part and each stage, and the once-per-step communication.

Gathers what ``cost/blocks/block_prices.py`` and ``cost/states/state_costs.py`` priced per key back
to layouts; sums run over parts in a fixed order, so that a layout costs the same alone and in a
table of a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.blocks.block_costs import PASS_TERMS, BlockCosts
from simulator.cost.blocks.input_copies import fetch_s, stages_s
from simulator.cost.collectives.calls import slowdown_share
from simulator.cost.states.state_costs import StateCosts
from simulator.cost.tables import PartPasses, Priced
from simulator.cost.terms import HIDDEN
from simulator.layout.layouts import RECOMPUTE, SHARDINGS, Layouts
from simulator.schedules.registry import BREADTH_FIRST, FLUSHES, SPLITS_BACKWARD, TAKES_ROUNDS

__all__ = [
    "FULL",
    "LAUNCH",
    "SELECTIVE",
    "ZERO2",
    "ZERO3",
    "alone_passes",
    "alone_terms",
    "data_parallel",
    "distinct_micro_batches",
    "hidden_communication",
    "over_parts",
    "part_passes",
    "pass_terms",
    "rank_tails",
    "recompute_s",
    "shown_maxima",
    "stage_passes",
    "steady_terms",
    "total",
]


FULL, SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")
ZERO2, ZERO3 = SHARDINGS.index("zero2"), SHARDINGS.index("zero3")

LAUNCH = PASS_TERMS.index("launch")


def part_passes(
    priced: Priced,
    layouts: Layouts,
    block_key: NDArray[Any],
    state_key: NDArray[Any],
    m: Floats,
    recomputed: Floats,
) -> PartPasses:
    """Passes through each part, with zero3's gathers and reductions beside them.

    Recomputation lengthens the window of the backward pass: selective as the layout says, full by
    the share of a part's blocks that is `recomputed`, shape (layouts, parts).

    Software that reduces only after the last micro-batch pays one reduction for all m of them.
    """
    b, s, mode = priced.blocks, priced.states, layouts.recompute
    forward, backward = total(b.forward_s)[block_key], total(b.backward_s)[block_key]
    fetched, ahead = (
        stages_s(b.input_s[block_key], layouts.pp > 1),
        priced.software.input.prefetched,
    )
    exchange = b.exchange_s[0][block_key]
    selective = np.where((mode == SELECTIVE)[:, None], b.recompute_s[SELECTIVE][block_key], 0.0)
    full = b.recompute_s[FULL][block_key]
    every = priced.software.states.reduces_every_micro_batch
    traffic = s.part_traffic_s[state_key] + _copies_s(s, state_key, m, every=every)
    host = s.part_host_s[0][state_key], s.part_host_s[1][state_key]
    forward, backward = forward + host[0], backward + traffic + host[1]
    repeated = np.where((mode == SELECTIVE)[:, None], b.exchange_s[2][block_key], 0.0)
    again = selective - repeated + recomputed * (full - exchange)
    # expert traffic that another micro-batch hides may last longer than its own pass
    windows = (
        np.maximum(forward - exchange, 0.0),
        np.maximum(backward - b.exchange_s[1][block_key] + again, 0.0),
    )
    gather, reduce = s.part_gather_s[state_key], s.part_reduce_s[state_key]
    if not gather.any():
        none = np.zeros((2, *forward.shape))
        return PartPasses(
            forward,
            backward,
            *windows,
            none,
            none,
            none,
            selective,
            full,
            traffic,
            np.stack(host),
            fetched,
            ahead,
        )
    reduce = reduce if every else reduce / m[:, None]
    whole: tuple[Floats, Floats] = (gather, s.part_regather_s[state_key] + reduce)
    shown = whole
    if priced.software.overlap.sharded_prefetch:
        shown = (np.maximum(whole[0] - windows[0], 0.0), np.maximum(whole[1] - windows[1], 0.0))
    hidden = (whole[0] - shown[0], whole[1] - shown[1])
    share = slowdown_share(priced.cluster)
    slowed = np.stack(hidden) * share
    return PartPasses(
        forward + shown[0] + slowed[0],
        backward + shown[1] + slowed[1],
        windows[0],
        windows[1],
        np.stack(shown),
        np.stack(hidden),
        slowed,
        selective,
        full,
        traffic,
        np.stack(host),
        fetched,
        ahead,
    )


def _copies_s(s: StateCosts, state_key: NDArray[Any], m: Floats, *, every: bool) -> Floats:
    """Mean over micro-batches of adding gradients up and of copies around gather and reduction."""
    m = np.maximum(m, 1.0)[:, None]
    once = s.keeps_gathered[state_key][:, None]
    gather, again, reduce = s.part_copies_s[:, state_key]
    reduces = s.by_block[state_key][:, None] & every
    copies = np.where(once, gather / m, gather + again) + np.where(reduces, reduce, reduce / m)
    first, later = s.part_accumulation_s[:, state_key]
    return np.asarray(copies + first / m + later * (m - 1.0) / m)


def total(terms: Floats | list[Floats]) -> Floats:
    """Sum over terms in a fixed order."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def over_parts(count: Floats, per_part: Floats) -> Floats:
    """Sum of count times cost over parts in a fixed order; shapes (..., parts)."""
    total = count[..., 0] * per_part[..., 0]
    for part in range(1, count.shape[-1]):
        total = total + count[..., part] * per_part[..., part]
    return total


def stage_passes(
    parts: Floats, covered: Floats, passes: PartPasses
) -> tuple[Floats, Floats, Floats]:
    """Seconds of one micro-batch through every distinct rank, shape (layouts, columns).

    Forward, backward, and what the forward pass waits for its input.
    """
    forward_s = over_parts(parts, passes.forward_s[:, None, :])
    backward_s = over_parts(parts, passes.backward_s[:, None, :])
    backward_s = backward_s + recompute_s(parts, covered, passes)
    beside_s = passes.prefetched * (forward_s + backward_s)
    fetched_s, _ = fetch_s(parts, passes.input_s[:, None, :], beside_s)
    return forward_s + fetched_s, backward_s, fetched_s


def shown_maxima(
    priced: Priced, block_key: NDArray[Any], state_key: NDArray[Any], parts: Floats, chunks: Any
) -> tuple[Floats, Floats]:
    """Seconds that reducing the maxima behind fp8 scales adds to a forward and a backward pass.

    Each of the `chunks` of a rank reduces once; what the host takes longer than the pass hides it.
    Shapes (layouts, columns); `parts` has shape (layouts, columns, parts).
    """
    whole_s = (priced.states.maxima_s[state_key] * chunks)[:, None]
    if not whole_s.any():
        return np.zeros(parts.shape[:2]), np.zeros(parts.shape[:2])
    forward_s, backward_s = (
        np.maximum(whole_s - over_parts(parts, way[LAUNCH][block_key][:, None, :]), 0.0)
        for way in (priced.blocks.forward_s, priced.blocks.backward_s)
    )
    return forward_s, backward_s


def recompute_s(parts: Floats, covered: Floats, passes: PartPasses) -> Floats:
    """Recomputation of one micro-batch on every rank given by `parts`; leading axis is layouts."""
    axes = (slice(None), *(None,) * (parts.ndim - 2))
    selective, full = passes.selective_s[axes], passes.full_s[axes]
    return over_parts(parts, selective) + over_parts(covered, full)


def steady_terms(
    priced: Priced,
    block_key: NDArray[Any],
    parts: Floats,
    covered: Floats,
    m: Floats,
    passes: PartPasses,
) -> dict[str, Floats]:
    """Terms of m micro-batches on the slowest stage; parts of shape (layouts, parts)."""
    b = priced.blocks
    terms = pass_terms(
        [b.forward_s[i][block_key] + b.backward_s[i][block_key] for i in range(len(PASS_TERMS))],
        parts,
        slowdown_s=passes.slowdown_s.sum(axis=0),
        traffic_s=passes.traffic_s,
        host_s=passes.host_s.sum(axis=0),
        fsdp_s=passes.fsdp_s.sum(axis=0),
    )
    terms["recompute"] = recompute_s(parts, covered, passes)
    beside_s = passes.prefetched * total(list(terms.values()))
    terms["input"], _ = fetch_s(parts, passes.input_s, beside_s)
    return {name: m * seconds for name, seconds in terms.items()}


def pass_terms(
    blocks_s: Sequence[Floats],
    parts: Floats,
    *,
    slowdown_s: Floats,
    traffic_s: Floats,
    host_s: Floats,
    fsdp_s: Floats,
) -> dict[str, Floats]:
    """Terms of one micro-batch through all of `parts`, without recomputation.

    Costs are those of one part, of one direction or of both: `blocks_s` in the order of PASS_TERMS.
    """
    terms = {
        name: over_parts(parts, seconds) for name, seconds in zip(PASS_TERMS, blocks_s, strict=True)
    }
    terms["slowdown"] = terms["slowdown"] + over_parts(parts, slowdown_s)
    terms["memory_bound"] = terms["memory_bound"] + over_parts(parts, traffic_s)
    terms["launch"] = terms["launch"] + over_parts(parts, host_s)
    terms["fsdp"] = over_parts(parts, fsdp_s)
    return terms


def hidden_communication(
    b: BlockCosts,
    block_key: NDArray[Any],
    parts: Floats,
    m: Floats,
    alone: Floats,
    passes: PartPasses,
    shown_input_s: Floats,
) -> dict[str, Floats]:
    """Tensor, context, expert communication and input hidden under compute, over m micro-batches.

    Those that run `alone` hide no expert traffic where others do.
    """
    both = b.hidden_s[0] + b.hidden_s[1]
    hidden = {name: m * over_parts(parts, both[i][block_key]) for i, name in enumerate(HIDDEN[:3])}
    hidden["ep"] = hidden["ep"] * ((m - alone) / np.maximum(m, 1.0))
    hidden["input"] = m * fetch_s(parts, passes.input_s, 0.0)[0] - shown_input_s
    return hidden


def alone_passes(b: BlockCosts, block_key: NDArray[Any], parts: Floats) -> tuple[Floats, Floats]:
    """Seconds that a forward and a backward pass of a rank take longer with none beside them.

    `parts` has shape (layouts, columns, parts).
    """
    forward, backward = (total(way)[block_key][:, None, :] for way in b.alone_s)
    return over_parts(parts, forward), over_parts(parts, backward)


def alone_terms(
    terms: dict[str, Floats], b: BlockCosts, block_key: NDArray[Any], parts: Floats, alone: Floats
) -> None:
    """Add to the slowest stage's terms what its passes `alone` show of their expert traffic."""
    for i, name in enumerate(PASS_TERMS):
        longer = b.alone_s[0][i] + b.alone_s[1][i]
        terms[name] = terms[name] + alone * over_parts(parts, longer[block_key])


def data_parallel(
    priced: Priced,
    layouts: Layouts,
    state_key: NDArray[Any],
    rank: NDArray[Any],
    ranks: Floats,
    forward_s: Floats,
    backward_s: Floats,
    windows: tuple[Floats, Floats],
    pieces: Floats,
    reductions: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Exposed and hidden data-parallel communication, and what hiding it costs the compute.

    Each rank hides its reduction behind its last backward pass (`windows`); the last bucket
    cannot hide, nor can any where the software reduces after its passes. A rank behind the first
    finishes earlier by the backward passes before it, and starts later by the forward passes, so
    the same holds for its gather. Sharded gradients (zero2) may have to be reduced after every
    micro-batch: `reductions` of them, each behind a pass.

    The first bucket is ready when its share of the pass has run. What is reduced and gathered
    beside the last and the first pass slows it; where ranks wait for one another's, all of them
    lengthen drain and fill.
    """
    s = priced.states
    reduce_s, gather_s = s.reduce_s[state_key], s.gather_s[state_key]
    mean_forward = (ranks * forward_s).sum(axis=1) / pieces
    mean_backward = (ranks * backward_s).sum(axis=1) / pieces
    times = reductions[:, None]
    exposed, hidden = rank_tails(priced, layouts, state_key, windows, times)
    slacks = (rank * mean_backward[:, None], rank * mean_forward[:, None])
    shown = sum(np.maximum(x - slack, 0.0) for x, slack in zip(exposed, slacks, strict=True))
    share = slowdown_share(priced.cluster)
    slowed = (hidden[0] + hidden[1]) * share
    worst = (shown + slowed).argmax(axis=1)
    at = np.arange(len(worst))
    own, chunks = slowed[at, worst], pieces / ranks.sum(axis=1)
    flushed = FLUSHES[layouts.schedule]
    chained = (flushed & ~SPLITS_BACKWARD[layouts.schedule], flushed)
    for covered, waits in zip(hidden, chained, strict=True):
        others = (ranks * covered).sum(axis=1) - covered[at, worst]
        own = own + waits * share * others / chunks
    left = shown[at, worst]
    return left, (times * reduce_s + gather_s)[at, worst] - left, own


def rank_tails(
    priced: Priced,
    layouts: Layouts,
    state_key: NDArray[Any],
    windows: tuple[Floats, Floats],
    times: Floats,
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """What every rank shows and hides of its reductions and of its gather, in this order.

    `windows` are a forward and a backward pass of the whole rank, `times` the reductions of a step.
    A rank's chunks end one after the other, with a round of passes between them. Shapes (layouts,
    columns).
    """
    s, overlap = priced.states, priced.software.overlap
    v, rounds = layouts.vpp[:, None].astype(float), _round(layouts)[:, None]
    after = priced.software.states.reduces_after_passes & s.keeps_gathered[state_key][:, None]
    shown, covered = [], []
    for seconds, window, hides, n in (
        (s.reduce_s[state_key], windows[1], overlap.gradient_reduce & ~after, times),
        (s.gather_s[state_key], windows[0], overlap.parameter_gather, 1.0),
    ):
        last = 1.0 / s.reduce_buckets[state_key]
        over = np.maximum(seconds - window * (1.0 + (v - 1.0) * rounds) / v, 0.0)
        over = np.maximum(over, (seconds - window) / v)
        every = (n - 1.0) * np.maximum(seconds - window, 0.0)
        tail = seconds * last + (1.0 - last) * over + every
        shown.append(np.where(hides, tail, n * seconds))
        covered.append(np.asarray(n * seconds - shown[-1]))
    return (shown[0], shown[1]), (covered[0], covered[1])


def _round(layouts: Layouts) -> Floats:
    """Passes of a chunk between the last ones of two chunks of a rank."""
    m, rounds = layouts.micro_batches, TAKES_ROUNDS[layouts.schedule]
    size = m // np.maximum(m // layouts.pp, 1)
    return np.select([rounds, BREADTH_FIRST[layouts.schedule]], [size, m], default=1).astype(float)


def distinct_micro_batches(layouts: Layouts) -> NDArray[Any]:
    """Micro-batches as far as stages tell them apart: those in flight, all in long rounds."""
    m, pp = layouts.micro_batches, layouts.pp
    longer = TAKES_ROUNDS[layouts.schedule] & (m % pp != 0)
    return np.where(longer | BREADTH_FIRST[layouts.schedule], m, np.minimum(m, 4 * pp))
