"""Fill and drain of a pipeline: what a step takes beyond the passes of its slowest stage.

The longest path through the schedule (``cost/pipeline/paths.py``) less the slowest stage's own
passes. With F, I and W the forward, input-gradient and weight-gradient passes of a stage and p
stages of v chunks it gives for equal stages what is published, and for unequal ones what events
play:

=======================  ============================================  =========================
schedule                 equal stages                                  source
=======================  ============================================  =========================
gpipe, 1f1b              (p - 1)(F + I + W)                            Narayanan et al. 2021
interleaved, looped_bfs  (p - 1)(F + I + W) / v                        Narayanan et al. 2021
zb_h1, interleaved_zb    (p - 1)(F + I - W) / v                        Qi et al. 2023, table 2
zb_h2                    (p - 1) max(F + I - 2W, F)                    the same, flushed
zb_v                     (p - 1) max(F + I - 2W, F, I) / 2             played, flushed
dualpipe, on p / 2       (p / 2 - 1)(2F + I - W)                       DeepSeek-V3, table 2, F = I
dualpipe_v               (p - 1)(2F + I - W) / 2                       the same
pipedream, pipedream_2bw 0                                             Narayanan et al. 2019
=======================  ============================================  =========================

Flushed: Qi et al. count from each rank's own first action to its own last one, since their
optimizer does not wait for the norm of all gradients. Every software here does, so a step lasts
until the last rank has ended.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.arrays import Floats, by_key, of_column, over_columns
from simulator.cost.collectives.calls import send_share
from simulator.cost.passes import LAUNCH, alone_passes, over_parts, total
from simulator.cost.tables import (
    PartPasses,
    Priced,
    RankPasses,
    Selection,
    SlowestRank,
    StepTerms,
)
from simulator.schedules.registry import BREADTH_FIRST, FLUSHES, SCHEDULES, by_code

_ASKEW = by_code(lambda schedule: schedule.barrier_free_idle_s is not None)


def pipeline(
    rows: Selection,
    priced: Priced,
    passes: PartPasses,
    ranks: RankPasses,
    slowest: SlowestRank,
) -> StepTerms:
    """Sends, shown and hidden, fill and drain of a step's pipeline."""
    paths, layouts, m = priced.paths, rows.layouts, slowest.micro_batches
    v = (layouts.vpp * layouts.copies).astype(float)
    flushed = (layouts.pp > 1) & FLUSHES[layouts.schedule]
    counts = by_key(paths.counts[:, -3:], rows.route)
    played = np.where(flushed, paths.played[rows.route], 0.0) / layouts.copies
    further = np.where(flushed, m - played, 0.0)
    crosses = priced.hop_crosses[rows.state_key]
    send_s = priced.send_s[crosses, rows.block_key]
    beside = priced.software.overlap.pipeline_send & (v > 1)
    window_s = (slowest.forward_s + slowest.backward_s) / v
    covered = np.where(beside, np.minimum(2.0 * send_s, window_s), 0.0)
    sends = counts[:, -3] + counts[:, -2] + 2.0 * (m - played) * v
    waiting = m * v * (2.0 * send_s - covered) + (layouts.pp - 1.0) * send_s
    queued = np.maximum(counts[:, -1] * send_s, waiting)
    sent = np.where(layouts.pp > 1, np.where(beside, queued, sends * send_s), 0.0)
    slowed = np.where(layouts.pp > 1, sends * covered / 2.0, 0.0)
    slowed = slowed * send_share(priced.cluster, crosses)
    lone = np.where(BREADTH_FIRST[layouts.schedule], played / np.maximum(m, 1.0), flushed * 1.0)
    steady = tuple(
        played * seconds + lone * (slowest.alone * longer[:, 0])
        for seconds, longer in zip(
            (slowest.forward_s, slowest.backward_s),
            alone_passes(priced.blocks, rows.block_key, slowest.parts[:, None, :]),
            strict=True,
        )
    )
    path_s = _path_s(rows, priced, passes, ranks.input_s)
    fill, drain = fill_and_drain(path_s, (steady[0], steady[1]))
    waits = further * (paths.pace[rows.route] - 1.0)
    shown = {
        "pp": sent,
        "slowdown": slowed,
        "bubble_warmup": fill + waits * slowest.forward_s,
        "bubble_drain": drain + waits * slowest.backward_s,
    }
    return StepTerms(shown_s=shown, hidden_s={"pp": np.where(layouts.pp > 1, m * v * covered, 0.0)})


def fill_and_drain(
    path_s: tuple[Floats, Floats], steady_s: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Seconds before and after the slowest stage's own passes.

    What the longest path takes beyond them: its further forward passes are fill, its further
    backward passes drain. Weight passes that fill idle time count against both.

    Parameters
    ----------
    path_s, steady_s : tuple of ndarray
        What the path, and the slowest stage for as many micro-batches, take forward and backward.
    """
    forward, backward = (x - steady for x, steady in zip(path_s, steady_s, strict=True))
    idle = np.maximum(forward + backward, 0.0)
    fill = np.clip(forward, 0.0, idle)
    return fill, idle - fill


def _path_s(
    rows: Selection, priced: Priced, passes: PartPasses, fetched_s: Floats
) -> tuple[Floats, Floats]:
    """Forward and backward passes on the longest path of each layout."""
    b, key, counts = priced.blocks, rows.block_key, by_key(priced.paths.counts, rows.route)
    parts = counts.shape[1] // 6
    ahead, behind, weights, again, *lone = (
        counts[:, i * parts : (i + 1) * parts] for i in range(6)
    )
    forward = over_parts(ahead, passes.forward_s)
    if fetched_s.any():
        forward = forward + over_parts(ahead[:, -2:], _ends_s(rows.parts, passes, fetched_s))
    backward = over_parts(behind, passes.backward_s + passes.selective_s)
    backward = (
        backward + over_parts(weights, by_key(b.wgrad_s, key)) + over_parts(again, passes.full_s)
    )
    if priced.software.overlap.expert:
        forward, backward = (
            seconds + over_parts(count, by_key(total(way), key))
            for seconds, count, way in zip((forward, backward), lone, b.alone_s, strict=True)
        )
    maxima_s = priced.states.maxima_s[rows.state_key]
    if maxima_s.any():  # as `shown_maxima` of a rank, here of the passes on the path
        forward, backward = (
            seconds
            + np.maximum(number * maxima_s - over_parts(count, by_key(way[LAUNCH], key)), 0.0)
            for seconds, number, count, way in zip(
                (forward, backward),
                counts.T[-3:-1],
                (ahead, behind),
                (b.forward_s, b.backward_s),
                strict=True,
            )
        )
    return forward, backward


def _ends_s(parts: Floats, passes: PartPasses, fetched_s: Floats) -> Floats:
    """What embedding and head wait for their input, shape (layouts, 2): the share that shows."""
    ends, each = parts[:, :, -2:], passes.input_s
    if not passes.prefetched:
        return each
    share = fetched_s / np.maximum(over_parts(ends, each[:, None, :]), 1e-300)
    return np.asarray(each * np.where(ends > 0, share[:, :, None], 0.0).max(axis=1))


def without_barrier(
    terms: StepTerms, rows: Selection, priced: Priced, ranks: RankPasses, slowest: SlowestRank
) -> StepTerms:
    """Shorten fill and drain of layouts whose schedule gains by steps that lie askew.

    `terms` have ``bubble_warmup`` and ``bubble_drain`` of steps with a barrier.
    """
    layouts = rows.layouts
    askew = _ASKEW[layouts.schedule]
    if not askew.any():
        return terms
    longer = alone_passes(priced.blocks, rows.block_key, rows.parts)
    forward_s, backward_s = ranks.forward_s + longer[0], ranks.backward_s + longer[1]
    weights = over_parts(rows.parts, by_key(priced.blocks.wgrad_s, rows.block_key)[:, None, :])
    others = layouts.pp - 1.0
    forward, back = (
        over_columns(rows.ranks * x) - of_column(x, slowest.column)
        for x in (forward_s, backward_s - weights)
    )
    own = of_column(weights, slowest.column) * others
    idle = np.zeros_like(own)
    for code, schedule in enumerate(SCHEDULES.values()):
        if schedule.barrier_free_idle_s:
            rule_s = schedule.barrier_free_idle_s(forward, back, own)
            idle = np.where(layouts.schedule == code, rule_s, idle)
    barrier = terms.shown_s["bubble_warmup"] + terms.shown_s["bubble_drain"]
    share = np.where(askew, np.minimum(idle / np.maximum(barrier, 1e-300), 1.0), 1.0)
    bubbles = {name: terms.shown_s[name] * share for name in ("bubble_warmup", "bubble_drain")}
    return replace(terms, shown_s={**terms.shown_s, **bubbles})
