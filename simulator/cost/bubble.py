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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.passes import over_parts
from simulator.cost.paths import Paths
from simulator.layout.layout import Layouts
from simulator.layout.schedules import ASYNCHRONOUS, BREADTH_FIRST, SPLIT

__all__ = ["ASYNCHRONOUS", "BREADTH_FIRST", "SPLIT", "fill_and_drain", "on_path"]

Floats = NDArray[np.float64]


def on_path(paths: Paths, route: NDArray[Any], layouts: Layouts) -> Floats:
    """What lies on the longest path of every layout: columns as of `Paths.counts`."""
    further = np.maximum(layouts.micro_batches - paths.played[route], 0.0)
    counts = paths.counts[route]
    if not further.any():
        return counts
    return np.asarray(counts + further[:, None] * paths.growth[route])


def fill_and_drain(
    path: Floats, seconds: Sequence[Floats], steady_s: tuple[Floats, Floats], flushed: NDArray[Any]
) -> tuple[Floats, Floats]:
    """Seconds before and after the slowest stage's own passes.

    What the longest path takes beyond them: its further forward passes are fill, its further
    backward passes drain. Weight passes that fill idle time count against both.

    Parameters
    ----------
    path : ndarray
        Result of :func:`on_path`.
    seconds : sequence of ndarray
        Of each part in forward, backward and weight passes, recomputed, alone forward and backward;
        shape (layouts, parts).
    steady_s : tuple of ndarray
        Forward and backward passes of the slowest stage.
    flushed : ndarray
        Whether the pipeline fills and drains.
    """
    parts = seconds[0].shape[1]
    taken = [
        over_parts(path[:, i * parts : (i + 1) * parts], each) for i, each in enumerate(seconds)
    ]
    forward, backward = taken[0] - steady_s[0], taken[1] + taken[2] + taken[3] - steady_s[1]
    if len(taken) > 4:
        forward, backward = forward + taken[4], backward + taken[5]
    idle = np.maximum(forward + backward, 0.0) * flushed
    fill = np.clip(forward, 0.0, idle)
    return fill, idle - fill
