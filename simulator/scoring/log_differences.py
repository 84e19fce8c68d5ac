"""Where a log and its prediction differ, as far as a log can tell, and what a trace would add.

A log has step times, memory and ranks. From these follow what evaluation, checkpoints and hiccups
cost (the mean over the median), the warm-up, and whether the memory is nearly full; causes inside a
step need a profiler's trace.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Floats
from simulator.measured.log import Whole
from simulator.measured.log_lines import log_kinds
from simulator.scoring.logs import LogComparison
from simulator.units import show_percent, show_seconds, show_signed_percent

_NEARLY_FULL = 0.97
"""Share of the usable memory from which on torch's allocator begins to free and ask again."""

_LEAST = 0.01
"""Share of a step that is worth a line."""

_HOST = 0.03
"""Share of a predicted step that the host's launches take, from which on a slower host shows."""

_FAR_OUT = 3.0
"""Interquartile ranges above the third quartile beyond which a value is far out (J. W. Tukey,
Exploratory Data Analysis, 1977, 2D): most steps are alike, and these are another thing."""

_MOST_NAMED = 5


def differences(comparison: LogComparison) -> list[str]:
    """Sentences on the difference, the first on whether it is one at all."""
    return [
        _whether(comparison),
        *_tail(comparison),
        *_warm_up(comparison),
        *_memory(comparison),
        *_inside(comparison),
    ]


def _whether(comparison: LogComparison) -> str:
    """Whether the measured median lies between P10 and P90."""
    measured, (low, high) = comparison.log.median_step_s, comparison.prediction.interval_s
    words = f"measured {show_seconds(measured)}"
    if low <= measured <= high:
        return f"{words} lies inside P10 to P90 of the prediction: no difference to explain."
    side, edge = ("above P90", high) if measured > high else ("below P10", low)
    return (
        f"{words} lies {side} of the prediction ({show_seconds(edge)}) by"
        f" {show_percent(abs(measured / edge - 1.0))}: four of five such runs would not."
    )


def _tail(comparison: LogComparison) -> list[str]:
    """What steps far above the median cost the run."""
    times, median = comparison.log.kept_s, comparison.log.median_step_s
    lines = []
    mean = float(times.mean())
    slow = _incidents(times, median)
    if len(slow):
        steps = comparison.log.steps[comparison.log.dropped :]
        named = ", ".join(
            f"{steps[at]:,} (+{show_seconds(float(times[at]) - median)})"
            for at in slow[:_MOST_NAMED]
        )
        more = f" and {len(slow) - _MOST_NAMED} more" if len(slow) > _MOST_NAMED else ""
        lost = float((times[slow] - median).sum())
        lines.append(
            f"Incidents: {len(slow):,} of {len(times):,} step lines stand far above the others,"
            f" that of step {named}{more}: {show_seconds(lost)} in all, a mean step of"
            f" {show_signed_percent(mean / median - 1.0)} on the median (checkpoints, input,"
            " network, a retry). The prediction is of the median step."
        )
    elif mean > (1.0 + _LEAST) * median:
        lines.append(
            f"Tail: the mean step is {show_signed_percent(mean / median - 1.0)} on the median,"
            " with no step line far above the others. The prediction is of the median step."
        )
    high = comparison.log.spread_s[1]
    if high > 1.1 * median:
        lines.append(
            f"One step in ten takes {show_percent(high / median - 1.0)} more than the median:"
            " other jobs on the network, throttling or uneven input."
        )
    return lines


def _incidents(times: Floats, median: float) -> Whole:
    """Indices of step lines that took far longer than the others, the longest first."""
    first, third = np.percentile(times, (25, 75))
    fence = max(third + _FAR_OUT * (third - first), (1.0 + _LEAST) * median)
    order = np.argsort(-times, kind="stable")
    return order[times[order] > fence]


def _warm_up(comparison: LogComparison) -> list[str]:
    """What the steps that were left out took beyond the others."""
    log = comparison.log
    first = log.step_times_s[: log.dropped]
    extra = float((first - log.median_step_s).sum()) if len(first) else 0.0
    if extra <= log.median_step_s:
        return []
    return [
        f"Warm-up: {len(first):,} step lines took {show_seconds(extra)} more than the median steps"
        " in their place (compilation, allocation, first collectives)."
    ]


def _memory(comparison: LogComparison) -> list[str]:
    """Whether the memory is nearly full."""
    usable = float(comparison.prediction.estimate.usable_bytes)
    taken = comparison.log.memory_bytes
    held = max(taken.get("reserved", 0.0), taken.get("device", 0.0))
    if held < _NEARLY_FULL * usable:
        return []
    return [
        f"Memory: {show_percent(held / usable)} of what is usable is taken. An allocator that is"
        " full frees and asks again, which stops the device: try a smaller micro-batch, or"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    ]


def _inside(comparison: LogComparison) -> list[str]:
    """What of the prediction hangs on the host and on the slowest of many."""
    prediction = comparison.prediction
    terms = {name: float(c[0]) for name, c in prediction.estimate.terms_s.items()}
    whole, lines = prediction.step_time_s, []
    if terms.get("launch", 0.0) > _HOST * whole:
        share = show_percent(terms["launch"] / whole)
        lines.append(
            f"Host: {share} of the predicted step waits for kernel launches; a host that is slower,"
            " shared or without pinned processes makes it longer by as much again."
        )
    ranks, gpus = len(comparison.log.ranks), prediction.scenario.cluster.gpus
    if comparison.log.median_step_s > prediction.interval_s[1] and gpus > 1:
        seen = f"lines of {ranks} of {gpus:,} ranks" if ranks else "no rank by name"
        lines.append(
            f"Stragglers: the log has {seen}, and every rank waits for the slowest. Megatron-LM's"
            " --log-straggler prints the fastest and slowest rank of a step."
        )
    return lines


def how_to_trace(comparison: LogComparison) -> str:
    """What a trace adds, and how to take one."""
    kind = log_kinds().get(comparison.log.framework)
    flags = kind.trace if kind is not None else ""
    how = flags or "torch.profiler over two steps of one rank"
    return (
        "A trace of one rank tells compute, exposed communication and idle time apart, cause by"
        f" cause: take one with {how}, then"
        " foreshard validate --trace TRACE.json --scenario SCENARIO."
    )
