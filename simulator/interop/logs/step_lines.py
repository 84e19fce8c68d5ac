"""Logs whose lines tell a step's time by themselves: a table of patterns for each kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from simulator.measured.log import LogReading, MeasuredLog
from simulator.measured.log_lines import (
    LogKind,
    Progress,
    StepLine,
    log_kinds,
    marked_lines,
    rank_of,
)
from simulator.units import GIB
from simulator.workload.recipe import Recipe

_COLOUR = re.compile(r"\x1b?\[[0-9;]{1,20}m")
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
        lines.take(number, _COLOUR.sub("", raw))
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
