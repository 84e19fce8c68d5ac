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

With fewer micro-batches than ranks, interleaved ones wait until the first has come round to their
next chunk: (v - 1)(p - m)(F + I + W) / v more.

Flushed: Qi et al. count from each rank's own first action to its own last one, since their
optimizer does not wait for the norm of all gradients. Every software here does, so a step lasts
until the last rank has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.layout.layout import SCHEDULES, Layouts
from simulator.layout.schedules import splits_backward, takes_rounds

__all__ = ["ASYNCHRONOUS", "BREADTH_FIRST", "ROUNDS", "SPLIT", "fill_and_drain"]

Floats = NDArray[np.float64]

BREADTH_FIRST = tuple(SCHEDULES.index(word) for word in ("gpipe", "looped_bfs"))
ASYNCHRONOUS = tuple(SCHEDULES.index(word) for word in ("pipedream", "pipedream_2bw"))
ROUNDS = tuple(i for i, word in enumerate(SCHEDULES) if takes_rounds(word))
SPLIT = tuple(i for i, word in enumerate(SCHEDULES) if splits_backward(word))

_WAITS = {
    "zb_h1": (1.0, 1.0, 1.0, 0.0),
    "interleaved_zb": (1.0, 1.0, 1.0, 0.0),
    "zb_h2": (1.0, 2.0, 0.0, 0.0),
    "zb_v": (1.0, 2.0, 1.0, np.inf),
    "dualpipe": (2.0, 1.0, 0.0, 2.0),
    "dualpipe_v": (2.0, 1.0, 0.0, 2.0),
}
"""Of schedules with weight passes, counted per other stage: forward passes that the slowest stage
waits for, own weight passes that fill the time, input passes that nothing fills, and micro-batches
that the other stages pace (V-shaped: the stage with embedding and head is slow alone)."""

_FEW = tuple(SCHEDULES.index(word) for word in ("zb_h1", "zb_h2", "zb_v"))
"""Schedules of which a step may have too few micro-batches to fill the first one's way there and
back, (p - 1)(F + I)."""

_FORWARD, _FILLS, _INPUT, _PACED = np.array([_WAITS.get(word, (0.0,) * 4) for word in SCHEDULES]).T


def fill_and_drain(
    layouts: Layouts,
    ranks: Floats,
    forward_s: Floats,
    backward_s: Floats,
    weight_s: Callable[[], Floats],
    slowest: NDArray[Any],
) -> tuple[Floats, Floats]:
    """Seconds before and after the slowest stage's own passes.

    Parameters
    ----------
    layouts : Layouts
    ranks : ndarray
        Ranks that each column stands for, shape (layouts, columns), as the next two.
    forward_s, backward_s : ndarray
        One micro-batch through all chunks of a rank.
    weight_s : callable
        Gives the share of `backward_s` that weight gradients take; asked for only if needed.
    slowest : ndarray
        The column with the longest passes, shape (layouts,).
    """
    at, v = np.arange(len(slowest)), (layouts.vpp * layouts.copies).astype(float)
    fill = ((ranks * forward_s).sum(axis=1) - forward_s[at, slowest]) / v
    drain = ((ranks * backward_s).sum(axis=1) - backward_s[at, slowest]) / v
    code = layouts.schedule
    if (few := layouts.micro_batches < layouts.pp).any():
        turns = np.where(few & np.isin(code, ROUNDS), v - 1.0, 0.0)
        for idle, each in ((fill, forward_s), (drain, backward_s)):
            own = layouts.micro_batches * each[at, slowest]
            idle += turns * np.maximum((ranks * each).sum(axis=1) - own, 0.0) / v
    if not (code > SCHEDULES.index("interleaved")).any():
        return fill, drain
    breadth = np.isin(code, BREADTH_FIRST)
    whole = [_breadth_first(layouts, ranks, x, x[at, slowest]) for x in (forward_s, backward_s)]
    fill, drain = np.where(breadth, whole, (fill, drain))
    split = np.isin(code, SPLIT)
    if split.any():
        weights = weight_s()
        halves = _zero_bubble(layouts, ranks, forward_s, backward_s - weights, weights, slowest)
        fill, drain = np.where(split, halves, (fill, drain))
    flushed = ~np.isin(code, ASYNCHRONOUS)
    return fill * flushed, drain * flushed


def _breadth_first(layouts: Layouts, ranks: Floats, pass_s: Floats, slow_s: Floats) -> Floats:
    """All micro-batches one way: the stage that is slowest this way paces, the others add one pass.

    With fewer micro-batches than ranks a rank waits for the first one to come round to its next
    chunk.
    """
    m, v = layouts.micro_batches.astype(float), layouts.vpp.astype(float)
    most = pass_s.max(axis=1)
    waits = np.maximum(layouts.pp - m, 0.0) * (v - 1.0) / v
    others = ((ranks * pass_s).sum(axis=1) - most) / v
    return np.asarray((m + waits) * most - m * slow_s + others)


def _zero_bubble(
    layouts: Layouts, ranks: Floats, forward_s: Floats, input_s: Floats, weight_s: Floats,
    slowest: NDArray[Any],
) -> tuple[Floats, Floats]:  # fmt: skip
    """Idle time of the slowest stage less what its delayed weight passes fill.

    A stage that is slow alone does not wait for the others while they pace the pipeline; at the
    least it waits for their input passes at the end, as far as its own weight passes do not fill.
    """
    at, code, copies = np.arange(len(slowest)), layouts.schedule, layouts.copies
    v, others = layouts.vpp * copies, layouts.pp / copies - 1.0
    forward, back = (
        (ranks * x).sum(axis=1) / copies - x[at, slowest] for x in (forward_s, input_s)
    )
    own = weight_s[at, slowest] * others
    fill = _FORWARD[code] * forward
    idle = np.maximum(np.maximum(fill + back - _FILLS[code] * own, fill), _INPUT[code] * back) / v
    paced = np.minimum(layouts.micro_batches / copies, _PACED[code] * others)
    excess = _excess(ranks, forward_s + input_s + weight_s, slowest, copies)
    least = np.where(_PACED[code] > 0, np.maximum(back - own, 0.0) / v, idle)
    idle = np.maximum(idle - paced * excess, least)
    few = forward + back - _filled(layouts, forward_s[at, slowest], weight_s[at, slowest])
    idle = np.where(np.isin(code, _FEW), np.maximum(idle, few), idle)
    fill = np.minimum(fill / v, idle)
    return fill, idle - fill


def _filled(layouts: Layouts, forward_s: Floats, weight_s: Floats) -> Floats:
    """Seconds of a few micro-batches' passes beside the first one's way there and back.

    Weight passes of all but one; where the first rank also holds the last chunk (zb_v), forward
    passes until the first micro-batch is back, at most p - 1, then weight passes.
    """
    others, turns = layouts.micro_batches - 1.0, layouts.schedule == SCHEDULES.index("zb_v")
    ahead = np.minimum(others, layouts.pp - 1.0) * turns
    return np.asarray(ahead * forward_s + (others - ahead) * weight_s)


def _excess(ranks: Floats, both_s: Floats, slowest: NDArray[Any], copies: NDArray[Any]) -> Floats:
    """Seconds by which the slowest stage passes the next one; 0 where it is not the only one."""
    at, rest = np.arange(len(slowest)), both_s.copy()
    alone = ranks[at, slowest] <= copies
    rest[at, slowest] = np.where(alone, 0.0, both_s[at, slowest])
    return np.asarray(both_s[at, slowest] - rest.max(axis=1))
