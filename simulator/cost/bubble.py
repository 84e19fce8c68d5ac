"""Fill and drain of a pipeline: what a step takes beyond the passes of its slowest stage.

Closed forms for every schedule of ``layout/schedules.py``, written so that they hold for equal
stages exactly and for unequal ones nearly; playing the table of actions is exact for both. With F,
I and W the forward, input-gradient and weight-gradient passes of a stage and p stages of v chunks:

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

import numpy as np
from numpy.typing import NDArray

from simulator.cost.passes import over_parts
from simulator.layout.schedules import ASYNCHRONOUS, BREADTH_FIRST, SPLIT

__all__ = ["ASYNCHRONOUS", "BREADTH_FIRST", "SPLIT", "fill_and_drain"]

Floats = NDArray[np.float64]


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
