"""The kind of a training log and what reads it; lines that tell a step's time by themselves.

Timers that trainers print beside them tell loading, and passes by their slowest rank:
Megatron-Core at ``--timing-log-level 2`` (megatron/core/timers.py: least and most over ranks, in ms
of an iteration; the forward pass has the loader in it), OLMo-core's
``throughput/device/data loading (s)``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from simulator.errors import InputError
from simulator.interop.logs.histories import is_history, read_history
from simulator.interop.logs.megatron_log import read_megatron_log
from simulator.interop.logs.mlperf_log import read_mlperf_log
from simulator.interop.logs.torchtitan_log import read_torchtitan_log
from simulator.measured.log import LogReading, MeasuredLog
from simulator.measured.log_lines import (
    LogKind,
    Progress,
    StepLine,
    kind_of,
    log_kinds,
    marked_lines,
    rank_of,
    without_colours,
)
from simulator.records import dataclass
from simulator.units import GIB
from simulator.workload.recipe import Recipe

_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def read_step_lines(
    name: str,
    path: Path | str,
    recipe: Recipe,
    gpus: int,
    *,
    warm_up: int | None = None,
    progress: Progress | None = None,
) -> MeasuredLog:
    """Read step times, TFLOP/s and memory from a log of a kind that ``log_kinds.toml`` describes.

    Parameters
    ----------
    name : str
        The kind.
    path : path
        What the run printed.
    recipe : Recipe
        Sequence length and global batch of the run, which turn rates into times.
    gpus : int
        GPUs of the run.
    warm_up : int, optional
        Step lines to leave out at the start; else as ``measured.log.warm_up`` says.
    progress : callable, optional
        Told how many bytes are read, of how many.

    Raises
    ------
    InputError
        If the file cannot be read or has no step line.
    """
    kind = log_kinds()[name]
    assert kind.line is not None, "kinds without have readers of their own"
    reading = LogReading(name, kind.title, path)
    reading.software = kind.software
    lines = _Lines(kind, kind.line, reading, recipe, gpus)
    marks = tuple(mark.encode() for mark in kind.line.marks)
    for number, raw in marked_lines(path, marks, progress=progress):
        lines.take(number, without_colours(raw))
    return reading.finish(recipe, gpus, warm_up)


class _Lines:
    """Step lines on their way into a reading."""

    def __init__(
        self, kind: LogKind, line: StepLine, reading: LogReading, recipe: Recipe, gpus: int
    ) -> None:
        self._patterns: Mapping[str, re.Pattern[str]] = {
            key: re.compile(text)
            for key in StepLine.__dataclass_fields__
            if key not in ("memory_kind", "marks") and (text := getattr(line, key))
        }
        self._reading, self._kind, self._memory_kind = reading, kind, line.memory_kind
        tokens = recipe.tokens_per_step
        self._times = {  # seconds of a step times the number that is printed
            "samples_per_s": recipe.global_batch,
            "tokens_per_s": tokens,
            "tokens_per_s_per_gpu": tokens / gpus,
        }
        self._step, self._passes_s = 0, 0.0

    def take(self, number: int, text: str) -> None:
        """Take what a line says of a step."""
        if (step := self._patterns["step"].search(text)) is not None:
            self._step = int(step[1])
        seconds = self._seconds(text)
        if seconds is None:
            if step is not None and re.search(self._kind.mark, text):
                self._reading.unreadable(number)
            return
        rate = self._number("tflops", text)
        self._reading.add(
            self._step, seconds, line=number, rank=rank_of(text), tflops=rate or np.nan
        )
        if (size := self._number("memory_gib", text)) is not None:
            self._reading.peak(self._memory_kind, size * GIB)

    def _seconds(self, text: str) -> float | None:
        """Seconds of a step; None where the line does not end any."""
        if (passed := self._number("seconds_a_pass", text)) is not None:
            self._passes_s += passed / 1e3
            if not self._patterns["last_pass"].search(text):
                return None
            seconds, self._passes_s = self._passes_s, 0.0
            return seconds
        if (seconds_ := self._number("seconds", text)) is not None:
            return seconds_
        if (milliseconds := self._number("milliseconds", text)) is not None:
            return milliseconds / 1e3
        for key, times in self._times.items():
            if rate := self._number(key, text):
                return float(times / rate)
        return None

    def _number(self, key: str, text: str) -> float | None:
        pattern = self._patterns.get(key)
        match = pattern.search(text) if pattern is not None else None
        if match is None:
            return None
        digits = match[1].replace(",", "")
        times = _SUFFIXES.get(digits[-1], 1.0)
        return float(digits.rstrip("KMBT")) * times


LogReader = Callable[..., MeasuredLog]

_OWN: dict[str, LogReader] = {
    "megatron": read_megatron_log,
    "torchtitan": read_torchtitan_log,
    "mlperf": read_mlperf_log,
    "history": read_history,
}


def reader_of(kind: str) -> LogReader:
    """What reads a kind of log: (path, recipe, gpus, warm_up=..., progress=...)."""
    return _OWN.get(kind) or partial(read_step_lines, kind)


def log_kind(path: Path | str) -> str:
    """The kind of a log or of a history of a run, by what stands in it.

    Raises
    ------
    InputError
        If it is of none, with the kinds that are read.
    """
    kind = "history" if is_history(path) else kind_of(path)
    if not kind:
        known = ", ".join(sorted(x.printed_by for x in log_kinds().values()))
        rule = f"must be a log of {known}, or a history (CSV, JSON lines, TensorBoard, MLflow)"
        raise InputError(f"{path}: log: {rule}; no line of any is in it")
    return kind


_MEGATRON = re.compile(
    r"^\s{0,16}(batch-generator|forward-compute|backward-compute) \.{3,64}: "
    r"\((\d{1,12}\.\d{1,6}), (\d{1,12}\.\d{1,6})\)"
)
_OLMO = re.compile(r"throughput/device/data loading \(s\)=(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timers:
    """Medians over a log, in seconds of a step; None where it prints none."""

    loading_s: float | None = None
    """Of the rank that waits longest for its batches."""
    passes_s: float | None = None
    """Forward and backward passes of the slowest rank, without loading."""
    rank_spread: float | None = None
    """Passes of the slowest rank over those of the fastest."""


def keep_timers(lines: Iterable[str], kept: list[str]) -> Iterator[str]:
    """Pass the lines of a log on; those with timers are added to `kept`."""
    for line in lines:
        if _MEGATRON.match(line) or _OLMO.search(line):
            kept.append(line)
        yield line


def read_timers(lines: Iterable[str]) -> Timers:
    """Read the timers of a log.

    Examples
    --------
    >>> read_timers(["    forward-compute ........: (1000.00, 1500.00)",
    ...              "    backward-compute .......: (2000.00, 3000.00)",
    ...              "    batch-generator ........: (2.00, 4.00)"]).rank_spread
    1.5
    """
    seconds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if match := _MEGATRON.match(line):
            seconds[match[1]].append((float(match[2]) / 1e3, float(match[3]) / 1e3))
        elif match := _OLMO.search(line):
            seconds["batch-generator"].append((float(match[1]), float(match[1])))
    least, most = (
        {name: float(np.median([pair[side] for pair in some])) for name, some in seconds.items()}
        for side in (0, 1)
    )
    loading_s, passes = most.get("batch-generator"), ("forward-compute", "backward-compute")
    if not all(least.get(name) for name in passes):
        return Timers(loading_s=loading_s)
    longest_s = sum(most[name] for name in passes)
    return Timers(
        loading_s=loading_s,
        passes_s=max(longest_s - (loading_s or 0.0), 0.0),
        rank_spread=longest_s / sum(least[name] for name in passes),
    )
