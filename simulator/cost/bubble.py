"""Fill and drain of a pipeline: what a step takes beyond the passes of its slowest stage.

The longest path through the schedule (``cost/paths.py``) less the slowest stage's own passes. With
F, I and W the forward, input-gradient and weight-gradient passes of a stage and p stages of v
chunks it gives for equal stages what is published, and for unequal ones what events play:

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

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.collectives import slowdown_share
from simulator.cost.passes import PartPasses, Priced, over_parts, passes_on_path
from simulator.layout.layout import Layouts
from simulator.layout.schedules import ASYNCHRONOUS, BREADTH_FIRST, SPLIT

__all__ = ["ASYNCHRONOUS", "BREADTH_FIRST", "SPLIT", "fill_and_drain", "pipeline"]

Floats = NDArray[np.float64]


def pipeline(
    terms: dict[str, Floats],
    layouts: Layouts,
    priced: Priced,
    where: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    passes: PartPasses,
    slow_s: tuple[Floats, Floats],
    alone: tuple[Floats, Floats],
) -> Floats:
    """Add sends, fill and drain to the terms; return the sends that are hidden.

    `where` are route, block key and state key of each layout, `slow_s` the slowest stage's passes
    of one micro-batch, `alone` what its passes take longer that have no other micro-batch beside
    them.
    """
    paths, (route, key, grid) = priced.paths, where
    m, v = layouts.micro_batches / layouts.copies, (layouts.vpp * layouts.copies).astype(float)
    flushed = (layouts.pp > 1) & ~np.isin(layouts.schedule, ASYNCHRONOUS)
    counts = paths.counts[route]
    played = np.where(flushed, paths.played[route], 0.0) / layouts.copies
    further = np.where(flushed, m - played, 0.0)
    send_s = priced.send_s[priced.hop_crosses[grid], key]
    beside = priced.software.overlap.pipeline_send & (v > 1)
    covered = np.where(beside, np.minimum(2.0 * send_s, (slow_s[0] + slow_s[1]) / v), 0.0)
    sends = counts[:, -2] + 2.0 * (m - played) * v
    queued = np.maximum(counts[:, -1] * send_s, m * v * (2.0 * send_s - covered))
    terms["pp"] = np.where(layouts.pp > 1, np.where(beside, queued, sends * send_s), 0.0)
    hidden = np.where(layouts.pp > 1, m * v * covered, 0.0)
    slowed = np.where(layouts.pp > 1, sends * covered / 2.0, 0.0) * slowdown_share(priced.cluster)
    terms["slowdown"] = terms["slowdown"] + slowed
    lone = np.where(np.isin(layouts.schedule, BREADTH_FIRST), played / m, flushed * 1.0)
    steady = played * slow_s[0] + lone * alone[0], played * slow_s[1] + lone * alone[1]
    fill, drain = fill_and_drain(counts, passes_on_path(priced, key, passes), steady)
    waits = further * (paths.pace[route] - 1.0)
    terms["bubble_warmup"], terms["bubble_drain"] = (
        fill + waits * slow_s[0],
        drain + waits * slow_s[1],
    )
    return hidden


def fill_and_drain(
    counts: Floats, seconds: Sequence[Floats], steady_s: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Seconds before and after the slowest stage's own passes.

    What the longest path takes beyond them: its further forward passes are fill, its further
    backward passes drain. Weight passes that fill idle time count against both.

    Parameters
    ----------
    counts : ndarray
        What lies on the path; columns as of `Paths.counts`.
    seconds : sequence of ndarray
        Of each part in forward, backward and weight passes, recomputed, alone forward and backward;
        shape (layouts, parts).
    steady_s : tuple of ndarray
        What the slowest stage takes for as many micro-batches, forward and backward.
    """
    ahead, behind = _both_ways(counts, seconds)
    forward, backward = ahead - steady_s[0], behind - steady_s[1]
    idle = np.maximum(forward + backward, 0.0)
    fill = np.clip(forward, 0.0, idle)
    return fill, idle - fill


def _both_ways(path: Floats, seconds: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Forward and backward passes of a path."""
    parts = seconds[0].shape[1]
    taken = [
        over_parts(path[:, i * parts : (i + 1) * parts], each) for i, each in enumerate(seconds)
    ]
    ahead, behind, weight, again, *alone = taken
    behind = behind + weight + again
    return (ahead + alone[0], behind + alone[1]) if alone else (ahead, behind)
