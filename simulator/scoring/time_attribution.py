"""Who has which instant: spans on several streams -> seconds that add up to the window.

Every instant of a window goes to exactly one account: compute, if any runs (shared evenly where
several classes run at once); else communication, which is then exposed; else nobody. What hides
under compute is a memo beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """Stretches of time, each with a code; arrays of equal length."""

    start_s: Floats
    end_s: Floats
    code: Ints
    """What the stretch is, an index into a table that its owner keeps."""

    def __len__(self) -> int:
        return len(self.start_s)

    @classmethod
    def join(cls, *parts: Spans) -> Spans:
        """Return the spans of all parts, one after the other."""
        none = np.zeros(0)
        return cls(
            start_s=np.concatenate([none, *(part.start_s for part in parts)]),
            end_s=np.concatenate([none, *(part.end_s for part in parts)]),
            code=np.concatenate([none.astype(np.int64), *(part.code for part in parts)]),
        )

    def take(self, some: NDArray[Any]) -> Spans:
        """Return the spans that an index or a mask names."""
        return Spans(start_s=self.start_s[some], end_s=self.end_s[some], code=self.code[some])

    def within(self, begin_s: float, end_s: float) -> Spans:
        """Return what lies in a window, cut at its edges."""
        some = (self.end_s > begin_s) & (self.start_s < end_s)
        return Spans(
            start_s=np.maximum(self.start_s[some], begin_s),
            end_s=np.minimum(self.end_s[some], end_s),
            code=self.code[some],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounts:
    """Seconds of a window by account; compute, exposed and the gaps add up to the window."""

    compute_s: Floats
    """By code of the compute spans."""
    exposed_s: Floats
    """By code of the communication spans: nothing computes meanwhile."""
    hidden_s: Floats
    """By code of the communication spans: something computes meanwhile."""
    gap_start_s: Floats
    """Stretches in which nothing runs."""
    gap_end_s: Floats


def account(
    compute: Spans, communication: Spans, window: tuple[float, float], codes: tuple[int, int]
) -> Accounts:
    """Share a window out between compute, communication and gaps.

    Parameters
    ----------
    compute, communication : Spans
        May overlap each other and themselves.
    window : tuple of float
        Begin and end, in seconds.
    codes : tuple of int
        How many codes the compute and the communication spans have.

    Examples
    --------
    A product runs from 0 to 4 and a reduction from 3 to 6, in a window of 0 to 10: one second of
    the reduction is hidden and two are exposed; four seconds are idle.

    >>> spans = lambda a, b: Spans(start_s=np.array([a]), end_s=np.array([b]), code=np.array([0]))
    >>> found = account(spans(0.0, 4.0), spans(3.0, 6.0), (0.0, 10.0), (1, 1))
    >>> found.compute_s, found.exposed_s, found.hidden_s, found.gap_start_s
    (array([4.]), array([2.]), array([1.]), array([6.]))
    """
    compute, communication = compute.within(*window), communication.within(*window)
    ends = [array for spans in (compute, communication) for array in (spans.start_s, spans.end_s)]
    edges = np.unique(np.concatenate([*ends, np.array(window)]))
    width, at = np.diff(edges), edges[:-1]
    works, talks = _running(compute, at), _running(communication, at)
    computing = works > 0
    shared = np.divide(width, works, out=np.zeros_like(width), where=computing)
    alone = ~computing & (talks > 0)
    open_s = np.divide(width, talks, out=np.zeros_like(width), where=alone)
    gaps = _gaps(edges, ~computing & ~alone)
    return Accounts(
        compute_s=_by_code(compute, edges, shared, codes[0]),
        exposed_s=_by_code(communication, edges, open_s, codes[1]),
        hidden_s=_by_code(_joined(communication), edges, width * computing, codes[1]),
        gap_start_s=gaps[0],
        gap_end_s=gaps[1],
    )


def _by_code(spans: Spans, edges: Floats, share_s: Floats, codes: int) -> Floats:
    """Seconds of each code: its spans' sums of what an open span gets between two edges.

    One running sum serves all spans, whatever the number of codes.
    """
    until = np.concatenate([[0.0], np.cumsum(share_s)])
    begin, end = (np.searchsorted(edges, at) for at in (spans.start_s, spans.end_s))
    bincount = np.bincount(spans.code, weights=until[end] - until[begin], minlength=codes)
    return bincount.astype(np.float64)


def _joined(spans: Spans) -> Spans:
    """The spans of each code without what an earlier one of the same code covers."""
    order = np.lexsort((spans.start_s, spans.code))
    code, start_s = spans.code[order], spans.start_s[order]
    times, rank = np.unique(spans.end_s[order], return_inverse=True)
    first_of_code = code * len(times)  # ranks of one code lie above those of the codes before
    reach = np.maximum.accumulate(rank + first_of_code)
    before = np.concatenate([[-1], reach[:-1]]) - first_of_code
    covered_s = np.where(before >= 0, times[np.maximum(before, 0)], -np.inf)
    start_s = np.maximum(start_s, covered_s)
    end_s = spans.end_s[order]
    return Spans(start_s=start_s, end_s=np.maximum(start_s, end_s), code=code)


def _running(spans: Spans, at: Floats) -> Ints:
    """How many spans are open just after each instant."""
    begun = np.searchsorted(np.sort(spans.start_s), at, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(spans.end_s), at, side="right"))


def _gaps(edges: Floats, empty: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Join neighbouring empty stretches."""
    change = np.diff(np.concatenate([[False], empty, [False]]).astype(np.int8))
    return edges[:-1][change[:-1] > 0], edges[1:][change[1:] < 0]
