"""What one rank of a training run did in a step, from a trace of its events.

A reader (``interop/traces/kineto.py``) makes the `Trace`; `measure` shares out the time of steps.
Words and definitions are those of Holistic Trace Analysis: a gap is the host's where the kernel
that ends it was launched only after the device had run out of work.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.answers import Encoded
from simulator.arrays import Floats, Ints
from simulator.errors import InputError
from simulator.records import dataclass

CLASSES = ("gemm", "attention", "memory_bound", "optimizer", "other")
"""Classes of compute; all but the last are terms of ``cost/terms.py``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """Collectives that are alike, by kind and ranks that take part; host copies are one kind."""

    kind: str
    """A word of ``interop.traces.kineto_events.COLLECTIVES``."""
    group: str = ""
    """Name of the process group; empty if the trace does not say."""
    description: str = ""
    """What the trainer calls the group: ``TENSOR_MODEL_PARALLEL_GROUP``, ``mesh_tp``."""
    size: int | None = None
    ranks: tuple[int, ...] = ()
    """Members, if the trace lists them all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Events of one rank, in seconds from the first one."""

    where: str
    device: str
    """Name of the accelerator; empty for a trace of a run on processors."""
    rank: int | None
    world: int | None
    compute: Spans
    """Kernels and copies (on processors: operators less what they call); codes of CLASSES."""
    communication: Spans
    """Codes of `collectives`."""
    collectives: tuple[Collective, ...]
    calls: Spans
    """One span for each collective that is a call of its own, the same codes."""
    call_bytes: Floats
    """Input bytes of each call; NaN if the trace does not say."""
    start_s: Floats
    """Beginnings of everything that ran on the device, sorted; empty without a device."""
    end_s: Floats
    launched_s: Floats
    """When the host began to launch each of them; NaN if unknown."""
    steps: Spans
    """Steps as the host marked them, sorted; the code is their number."""
    optimizer_steps: int
    """Optimizer steps that the host ran."""
    span_s: tuple[float, float]
    """First beginning and last end of any event."""
    allocated_bytes: float | None
    reserved_bytes: float | None
    """Peaks of torch's allocator; None if memory was not profiled."""
    notes: tuple[str, ...]
    """What a reader of the numbers must know: the file was cut off, events were unreadable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTime:
    """One kind of collective of one group, per step."""

    KEYS: ClassVar[tuple[str, ...]] = (
        "*collective",
        *("calls", "bytes=bytes_", "exposed_s", "hidden_s"),
    )

    collective: Collective
    calls: float
    bytes_: float | None
    """Input of one call, the mean; None if the trace does not say."""
    exposed_s: float
    hidden_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime(Encoded):
    """One step of one rank, the mean over the steps of the trace, shared out."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("device?=trace.device", "rank=trace.rank", "world=trace.world", "steps"),
        *("counted_steps=counted", "step_s", "compute_s", "exposed_s", "launch_s", "idle_s"),
        *("collectives", "allocated_bytes=trace.allocated_bytes"),
        "reserved_bytes=trace.reserved_bytes",
    )

    trace: Trace
    steps: int
    """Steps that the trace holds."""
    counted: int
    """Steps that the means are over."""
    step_s: float
    compute_s: dict[str, float]
    """By class; with exposed communication, launch and idle it adds up to `step_s`."""
    collectives: tuple[CollectiveTime, ...]
    launch_s: float
    """The device waited for the host."""
    idle_s: float
    """Nothing ran and the host was not the reason: dependencies, launch latency."""
    notes: tuple[str, ...]

    @property
    def exposed_s(self) -> float:
        """Communication beside which nothing computed."""
        return sum(collective.exposed_s for collective in self.collectives)

    @property
    def hidden_s(self) -> float:
        """Communication beside compute; kinds that run at once count twice."""
        return sum(collective.hidden_s for collective in self.collectives)


def measure(trace: Trace, *, steps: int | None = None) -> StepTime:
    """Share the steps of a trace out between compute, collectives, the host and nobody.

    Parameters
    ----------
    trace : Trace
    steps : int, optional
        Steps that the whole trace covers; overrules its own marks (``ProfilerStep#N``). Without
        either, optimizer steps are counted.

    Raises
    ------
    InputError
        If nothing ran in the trace.

    Notes
    -----
    A device lags behind the host. With two marks or more, a step begins with the first kernel that
    the host launched in it, and the last step, whose end nothing marks, is left out.
    """
    begin_s, end_s, found, counted, notes = _window(trace, steps)
    if end_s <= begin_s:
        raise InputError(f"{trace.where}: nothing ran in this trace")
    codes = (len(CLASSES), len(trace.collectives))
    shares = account(trace.compute, trace.communication, (begin_s, end_s), codes)
    launch_s = _waits_for_host(trace, shares)
    gaps_s = float((shares.gap_end_s - shares.gap_start_s).sum())
    per_step = 1.0 / counted
    compute = (float(seconds) * per_step for seconds in shares.compute_s)
    return StepTime(
        trace=trace,
        steps=found,
        counted=counted,
        step_s=(end_s - begin_s) * per_step,
        compute_s=dict(zip(CLASSES, compute, strict=True)),
        collectives=_collectives(trace, shares, (begin_s, end_s), per_step),
        launch_s=launch_s * per_step,
        idle_s=(gaps_s - launch_s) * per_step,
        notes=(*trace.notes, *notes),
    )


def _window(trace: Trace, steps: int | None) -> tuple[float, float, int, int, list[str]]:
    """Begin, end, steps found, steps between begin and end, and what was assumed."""
    whole, marks = trace.span_s, trace.steps
    if steps is not None:
        return *whole, steps, steps, []
    if len(marks) == 0:
        count = max(trace.optimizer_steps, 1)
        how = "optimizer steps were counted" if trace.optimizer_steps else "it counts as one step"
        note = f"no ProfilerStep marks: the whole trace was taken, and {how} ({count})"
        return *whole, count, count, [note]
    begun = _first_work(trace)
    if len(begun) >= 2:
        return float(begun[0]), float(begun[-1]), len(marks), len(begun) - 1, []
    begin_s, end_s = float(marks.start_s[0]), float(marks.end_s.max())
    launched = (trace.launched_s >= begin_s) & (trace.launched_s <= end_s)
    end_s = float(trace.end_s[launched].max(initial=end_s))  # what the last step asked for
    return begin_s, end_s, len(marks), len(marks), []


def _first_work(trace: Trace) -> Floats:
    """When the device began the first thing launched in each step; steps without any left out."""
    known = ~np.isnan(trace.launched_s)
    launched, start_s = trace.launched_s[known], trace.start_s[known]
    number = np.searchsorted(trace.steps.start_s, launched, side="right") - 1
    inside = (number >= 0) & (launched <= trace.steps.end_s[np.maximum(number, 0)])
    first = np.full(len(trace.steps), np.inf)
    np.minimum.at(first, number[inside], start_s[inside])
    return np.sort(first[np.isfinite(first)])


def _waits_for_host(trace: Trace, shares: Accounts) -> float:
    """Seconds of gaps that ended with something launched after the gap had begun."""
    if len(trace.start_s) == 0:
        return 0.0
    next_ = np.searchsorted(trace.start_s, shares.gap_end_s, side="left")
    known = next_ < len(trace.start_s)
    launched = np.full(len(next_), np.nan)
    launched[known] = trace.launched_s[next_[known]]
    late = launched > shares.gap_start_s  # False where unknown
    return float((shares.gap_end_s - shares.gap_start_s)[late].sum())


def _collectives(
    trace: Trace, shares: Accounts, window: tuple[float, float], per_step: float
) -> tuple[CollectiveTime, ...]:
    """Every kind of collective that took time in the window, the most exposed first."""
    begun, codes = trace.calls.start_s, len(trace.collectives)
    inside = (begun >= window[0]) & (begun < window[1])
    known = inside & ~np.isnan(trace.call_bytes)
    calls = np.bincount(trace.calls.code[inside], minlength=codes)
    sized = np.bincount(trace.calls.code[known], minlength=codes)
    moved = np.bincount(trace.calls.code[known], trace.call_bytes[known], minlength=codes)
    collective_times = [
        CollectiveTime(
            collective=collective,
            calls=float(calls[code]) * per_step,
            bytes_=float(moved[code] / sized[code]) if sized[code] else None,
            exposed_s=float(shares.exposed_s[code]) * per_step,
            hidden_s=float(shares.hidden_s[code]) * per_step,
        )
        for code, collective in enumerate(trace.collectives)
        if shares.exposed_s[code] + shares.hidden_s[code] > 0.0
    ]
    return tuple(
        sorted(
            collective_times,
            key=lambda collective_time: (-collective_time.exposed_s, -collective_time.hidden_s),
        )
    )


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
