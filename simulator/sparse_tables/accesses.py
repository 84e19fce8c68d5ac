"""Which rows are read: distinct rows of a batch and hits of a cache under Zipf's law."""

from __future__ import annotations

import numpy as np

from simulator.arrays import Floats

_EXACT = 4096
"""Most popular rows that are counted one by one; further ones in runs."""
_RUNS = 2000


def _rows(rows: int) -> tuple[Floats, Floats]:
    """Places of rows by popularity (a run by its middle), and how many rows each stands for."""
    head = np.arange(1.0, min(rows, _EXACT) + 1)
    if rows <= _EXACT:
        return head, np.ones_like(head)
    edges = np.geomspace(_EXACT, rows, _RUNS + 1)
    counts = np.diff(edges)
    return np.concatenate([head, edges[:-1] + counts / 2]), np.concatenate(
        [np.ones_like(head), counts]
    )


def distinct_rows_read(rows: int, reads: float, skew: float) -> float:
    """Expected number of distinct rows among so many reads.

    A row of probability p is read at least once with ``1 - exp(-reads p)`` (reads are many and
    independent).

    Examples
    --------
    A thousand reads of a thousand rows that are all alike leave 1/e of them unread.

    >>> round(distinct_rows_read(1000, 1000, 0.0))
    632
    """
    places, counts = _rows(rows)
    weight = places**-skew
    share = weight / (counts * weight).sum()
    return float((counts * -np.expm1(-reads * share)).sum())


def hit_fraction(rows: int, kept_fraction: float, skew: float) -> float:
    """Share of the reads that find their row among the most popular ones that are kept.

    Examples
    --------
    >>> hit_fraction(10**6, 0.1, 0.0), round(hit_fraction(10**6, 0.1, 1.0), 2)
    (0.1, 0.84)
    """
    if skew == 0.0:
        return kept_fraction
    places, counts = _rows(rows)
    weight = counts * places**-skew
    below = np.cumsum(weight) / weight.sum()
    return float(np.interp(kept_fraction * rows, np.cumsum(counts), below))
