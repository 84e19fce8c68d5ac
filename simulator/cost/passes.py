"""One micro-batch through each part and each stage, and the once-per-step communication.

Gathers what ``cost/blocks/block_prices.py`` and ``cost/states/state_costs.py`` priced per key back
to layouts; sums run over parts in a fixed order, so that a layout costs the same alone and in a
table of a million.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, by_key, of_column, over_columns, stacked
from simulator.cost.blocks.block_costs import PASS_TERMS, BlockCosts
from simulator.cost.collectives.calls import slowdown_share
from simulator.cost.states.state_traffic import reductions, round_passes
from simulator.cost.tables import (
    PartPasses,
    Priced,
    RankPasses,
    Selection,
    SlowestRank,
    StepTerms,
)
from simulator.cost.terms import HIDDEN
from simulator.layout.layouts import RECOMPUTE, SHARDINGS, Layouts
from simulator.record_cache import for_same_records
from simulator.schedules.registry import FLUSHES, SPLITS_BACKWARD

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
    forward, backward = (by_key(way, block_key) for way in block_passes(b))
    exchange, exchange_back, exchange_again = by_key(b.exchange_s, block_key, 1)
    is_selective = (mode == SELECTIVE)[:, None]
    selective = np.where(is_selective, by_key(b.recompute_s[SELECTIVE], block_key), 0.0)
    full = by_key(b.recompute_s[FULL], block_key)
    traffic = by_key(s.part_traffic_s, state_key) + _copies_s(priced, layouts, state_key, m)
    if s.casts_s.any():
        casts = by_key(s.casts_s, state_key, 1)
        uses = 1.0 + np.where(is_selective, 1.0, recomputed)
        traffic = traffic + uses * casts[0] + casts[1]
    host = by_key(s.part_host_s, state_key, 1)
    forward, backward = forward + host[0], backward + traffic + host[1]
    repeated = np.where(is_selective, exchange_again, 0.0)
    again = selective - repeated + recomputed * (full - exchange)
    # expert traffic that another micro-batch hides may last longer than its own pass
    windows = (
        np.maximum(forward - exchange, 0.0),
        np.maximum(backward - exchange_back + again, 0.0),
    )
    shown, hidden, slowed = _gathers_s(priced, state_key, m, windows)
    if slowed.any() or shown.any():
        forward, backward = forward + shown[0] + slowed[0], backward + shown[1] + slowed[1]
    return PartPasses(
        forward_s=forward,
        backward_s=backward,
        forward_window_s=windows[0],
        backward_window_s=windows[1],
        fsdp_s=shown,
        hidden_s=hidden,
        slowdown_s=slowed,
        selective_s=selective,
        full_s=full,
        traffic_s=traffic,
        host_s=host,
        input_s=stages_s(by_key(b.input_s, block_key), layouts.pp > 1),
        prefetched=priced.software.input.prefetched,
    )


@for_same_records(4)
def block_passes(blocks: BlockCosts) -> tuple[Floats, Floats]:
    """Forward and backward pass of one micro-batch through each part, of every block key.

    Kept: it is asked for with every table of the layouts that share these prices.
    """
    return total(blocks.forward_s), total(blocks.backward_s)


def _gathers_s(
    priced: Priced, state_key: NDArray[Any], m: Floats, windows: tuple[Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """What gathers and reductions of parts show, hide behind `windows`, and cost the compute.

    Forward and backward, shape (2, layouts, parts).
    """
    s = priced.states
    gather, reduce = by_key(s.part_gather_s, state_key), by_key(s.part_reduce_s, state_key)
    if not gather.any():
        none = stacked((np.zeros_like(gather),) * 2)
        return none, none, none
    if not priced.software.states.reduces_every_micro_batch:
        reduce = reduce / m[:, None]
    whole: tuple[Floats, Floats] = (gather, by_key(s.part_regather_s, state_key) + reduce)
    shown = whole
    overlap = priced.software.overlap
    if overlap.sharded_prefetch:
        alone = 0.0 if overlap.sharded_reduce else reduce
        again = np.maximum(whole[1] - alone - windows[1], 0.0) + alone
        shown = (np.maximum(whole[0] - windows[0], 0.0), again)
    hidden = stacked((whole[0] - shown[0], whole[1] - shown[1]))
    return stacked(shown), hidden, hidden * slowdown_share(priced.cluster)


def _copies_s(priced: Priced, layouts: Layouts, state_key: NDArray[Any], m: Floats) -> Floats:
    """Mean over micro-batches of adding gradients up and of copies around gather and reduction."""
    s, every = priced.states, priced.software.states.reduces_every_micro_batch
    m, once = np.maximum(m, 1.0)[:, None], s.keeps_gathered[state_key][:, None]
    each_round = once & priced.software.fsdp2.reduces_each_round
    times = np.where(each_round, reductions(layouts, priced.software, once[:, 0])[:, None], 1.0)
    gather, again, reduce = by_key(s.part_copies_s, state_key, 1)
    reduces = s.by_block[state_key][:, None] & every
    copies = np.where(once, gather / m, gather + again)
    copies = copies + np.where(reduces, reduce, times * reduce / m)
    first, later = by_key(s.part_accumulation_s, state_key, 1)
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
        total += count[..., part] * per_part[..., part]
    return total


def rank_passes(rows: Selection, priced: Priced, passes: PartPasses) -> RankPasses:
    """Seconds of one micro-batch through every distinct rank, all its chunks."""
    parts = rows.parts
    forward_s = over_parts(parts, passes.forward_s[:, None, :])
    backward_s = over_parts(parts, passes.backward_s[:, None, :])
    backward_s = backward_s + recompute_s(parts, rows.covered, passes)
    beside_s = passes.prefetched * (forward_s + backward_s)
    input_s, _ = fetch_s(parts, passes.input_s[:, None, :], beside_s)
    chunks = rows.layouts.vpp * rows.layouts.copies
    maxima_s = shown_maxima(priced, rows.block_key, rows.state_key, parts, chunks)
    return RankPasses(
        forward_s=forward_s + input_s + maxima_s[0],
        backward_s=backward_s + maxima_s[1],
        input_s=input_s,
        maxima_s=np.array(maxima_s),
        forward_window_s=over_parts(parts, passes.forward_window_s[:, None, :]),
        backward_window_s=over_parts(parts, passes.backward_window_s[:, None, :]),
    )


def slowest_rank(rows: Selection, priced: Priced, ranks: RankPasses) -> SlowestRank:
    """Find the rank with the longest passes of each layout."""
    column = np.argmax(ranks.forward_s + ranks.backward_s, axis=1)
    m = rows.layouts.micro_batches / rows.layouts.copies
    return SlowestRank(
        column=column,
        parts=of_column(rows.parts, column),
        covered=of_column(rows.covered, column),
        forward_s=of_column(ranks.forward_s, column),
        backward_s=of_column(ranks.backward_s, column),
        micro_batches=m,
        alone=np.minimum(priced.unpaired[rows.plan], m),
    )


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
        np.maximum(whole_s - over_parts(parts, by_key(way[LAUNCH], block_key)[:, None, :]), 0.0)
        for way in (priced.blocks.forward_s, priced.blocks.backward_s)
    )
    return forward_s, backward_s


def recompute_s(parts: Floats, covered: Floats, passes: PartPasses) -> Floats:
    """Recomputation of one micro-batch on every rank given by `parts`; leading axis is layouts."""
    axes = (slice(None), *(None,) * (parts.ndim - 2))
    selective, full = passes.selective_s[axes], passes.full_s[axes]
    return over_parts(parts, selective) + over_parts(covered, full)


def steady_terms(
    rows: Selection, priced: Priced, passes: PartPasses, slowest: SlowestRank
) -> StepTerms:
    """Terms of all micro-batches on the slowest rank, and what hides beside them."""
    b, key, parts, m = priced.blocks, rows.block_key, slowest.parts, slowest.micro_batches
    terms = pass_terms(
        by_key(b.forward_s + b.backward_s, key, 1),
        parts,
        slowdown_s=total(passes.slowdown_s),
        traffic_s=passes.traffic_s,
        host_s=total(passes.host_s),
        fsdp_s=total(passes.fsdp_s),
    )
    terms["recompute"] = recompute_s(parts, slowest.covered, passes)
    beside_s = passes.prefetched * total(list(terms.values()))
    terms["input"], _ = fetch_s(parts, passes.input_s, beside_s)
    shown = {name: m * seconds for name, seconds in terms.items()}
    if b.alone_s.any():  # expert traffic that passes alone show
        longer = over_parts(parts, by_key(total(b.alone_s), key, 1))
        for name, seconds in zip(PASS_TERMS, longer, strict=True):
            shown[name] = shown[name] + slowest.alone * seconds
    hidden = _hidden_s(rows, priced, passes, slowest)
    hidden["input"] = m * fetch_s(parts, passes.input_s, 0.0)[0] - shown["input"]
    hidden["fsdp"] = m * over_parts(parts, total(passes.hidden_s))
    return StepTerms(shown_s=shown, hidden_s=hidden)


def _hidden_s(
    rows: Selection, priced: Priced, passes: PartPasses, slowest: SlowestRank
) -> dict[str, Floats]:
    """Tensor, context and expert communication hidden under compute, over all micro-batches.

    Those that run alone hide no expert traffic where others do.
    """
    m, both = slowest.micro_batches, by_key(total(priced.blocks.hidden_s), rows.block_key, 1)
    hidden = dict(zip(HIDDEN[:3], m * over_parts(slowest.parts, both), strict=True))
    hidden["ep"] = hidden["ep"] * ((m - slowest.alone) / np.maximum(m, 1.0))
    return hidden


def pass_terms(
    blocks_s: Floats,
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
    terms = dict(zip(PASS_TERMS, over_parts(parts, blocks_s), strict=True))
    terms["slowdown"] = terms["slowdown"] + over_parts(parts, slowdown_s)
    terms["memory_bound"] = terms["memory_bound"] + over_parts(parts, traffic_s)
    terms["launch"] = terms["launch"] + over_parts(parts, host_s)
    terms["fsdp"] = over_parts(parts, fsdp_s)
    return terms


def alone_passes(b: BlockCosts, block_key: NDArray[Any], parts: Floats) -> tuple[Floats, Floats]:
    """Seconds that a forward and a backward pass of a rank take longer with none beside them.

    `parts` has shape (layouts, columns, parts).
    """
    forward, backward = (by_key(total(way), block_key)[:, None, :] for way in b.alone_s)
    return over_parts(parts, forward), over_parts(parts, backward)


def data_parallel(rows: Selection, priced: Priced, passes: RankPasses) -> StepTerms:
    """Exposed and hidden data-parallel communication, and what hiding it costs the compute.

    Each rank hides its reduction behind its last backward pass (its window); the last bucket
    cannot hide, nor can any where the software reduces after its passes. A rank behind the first
    finishes earlier by the backward passes before it, and starts later by the forward passes, so
    the same holds for its gather. Sharded gradients (zero2) may have to be reduced after every
    micro-batch, each time behind a pass.

    The first bucket is ready when its share of the pass has run. What is reduced and gathered
    beside the last and the first pass slows it; where ranks wait for one another's, all of them
    lengthen drain and fill. The sum of a word table that two stages hold comes last.
    """
    s, layouts, ranks, key = priced.states, rows.layouts, rows.ranks, rows.state_key
    stages = (layouts.pp * layouts.vpp * layouts.copies).astype(float)
    mean_forward = over_columns(ranks * passes.forward_s) / stages
    mean_backward = over_columns(ranks * passes.backward_s) / stages
    times = reductions(layouts, priced.software, s.keeps_gathered[key])[:, None]
    after = _ranks_after(rows)
    windows = (passes.forward_window_s, passes.backward_window_s)
    exposed, hidden = rank_tails(priced, layouts, key, windows, times)
    slacks = (after * mean_backward[:, None], after * mean_forward[:, None])
    shown = sum(np.maximum(x - slack, 0.0) for x, slack in zip(exposed, slacks, strict=True))
    share = slowdown_share(priced.cluster)
    slowed = (hidden[0] + hidden[1]) * share
    worst = (shown + slowed).argmax(axis=1)
    slower, chunks = of_column(slowed, worst), stages / over_columns(ranks)
    flushed = FLUSHES[layouts.schedule]
    chained = (flushed & ~SPLITS_BACKWARD[layouts.schedule], flushed)
    last = (hidden[0] / times, hidden[1])  # those before run beside passes of a full pipeline
    for covered, waits in zip(last, chained, strict=True):
        others = over_columns(ranks * covered) - of_column(covered, worst)
        slower = slower + waits * share * others / chunks
    left = of_column(shown, worst)
    whole = of_column(times * by_key(s.reduce_s, key) + by_key(s.gather_s, key), worst)
    return StepTerms(
        shown_s={"dp": left + s.tables_s[key], "slowdown": slower}, hidden_s={"dp": whole - left}
    )


def _ranks_after(rows: Selection) -> NDArray[Any]:
    """Stages that finish after a rank; where weight passes fill the drain, all finish together."""
    late = SPLITS_BACKWARD[rows.layouts.schedule]
    return np.where(late[:, None], 0, rows.rank) if late.any() else rows.rank


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
    v, rounds = layouts.vpp[:, None].astype(float), round_passes(layouts)[:, None]
    once = s.keeps_gathered[state_key][:, None]
    after = priced.software.fsdp2.reduces_after_passes & once
    shown, covered = [], []
    for seconds, window, hides, n in (
        (by_key(s.reduce_s, state_key), windows[1], overlap.gradient_reduce & ~after, times),
        (by_key(s.gather_s, state_key), windows[0], overlap.parameter_gather, 1.0),
    ):
        last = 1.0 / by_key(s.reduce_buckets, state_key)
        over = np.maximum(seconds - window * (1.0 + (v - 1.0) * rounds) / v, 0.0)
        over = np.maximum(over, (seconds - window) / v)
        between = window * np.where(once, rounds, 1.0)  # a round of passes, or one
        every = (n - 1.0) * np.maximum(seconds - between, 0.0)
        tail = seconds * last + (1.0 - last) * over + every
        shown.append(np.where(hides, tail, n * seconds))
        covered.append(np.asarray(n * seconds - shown[-1]))
    return (shown[0], shown[1]), (covered[0], covered[1])


def stages_s(copies_s: Floats, apart: NDArray[np.bool_]) -> Floats:
    """What the first and the last stage fetch, which are `apart` or one; shape (keys, 2)."""
    tokens, labels, shared = copies_s.T
    return np.array([tokens + shared, labels + apart * shared]).T


def fetch_s(parts: Floats, stages_s: Floats, beside_s: Any) -> tuple[Floats, Floats]:
    """Fetch of one micro-batch on a rank that holds `parts`: what shows, and what is hidden.

    `stages_s` is what the first and the last stage fetch, of shape (..., 2), `beside_s` the passes
    that the copy may run beside.
    """
    whole = parts[..., -2] * stages_s[..., 0] + parts[..., -1] * stages_s[..., 1]
    shown = np.maximum(whole - beside_s, 0.0)
    return shown, whole - shown
