"""A log in the MLPerf training format: lines ``:::MLLOG {json}``.

Form as in ``_encode_log`` of mlperf_logging/mllog/mllog.py and keys as in its constants.py
(mlcommons/logging, release 4.1.68). Step times come from what a submission logs, the
finest first: ``train_step_time`` of tracked_stats, blocks (or epochs) between block_start and
block_stop over the steps in them, ``throughput`` of tracked_stats in samples per second.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.files import is_number
from simulator.measured.log import LogReading, MeasuredLog
from simulator.measured.log_lines import Progress, marked_lines, rank_of
from simulator.records import dataclass
from simulator.workload.recipe import Recipe

_MARK = ":::MLLOG"
_STATED = {"global_batch_size": "global_batch", "max_sequence_length": "sequence_length"}
_SOURCES = {
    "step": "train_step_time of tracked_stats",
    "block": "block_start to block_stop, over the steps between them",
    "epoch": "epoch_start to epoch_stop, over the steps between them",
    "throughput": "throughput of tracked_stats, in samples per second",
}
"""Where step times come from, the finest first."""


@dataclass(slots=True)
class _Interval:
    """A block or epoch that is open."""

    start_ms: float
    start: Mapping[str, Any]
    """Metadata of its start."""
    paused_ms: float = 0.0
    """Evaluation inside it."""


def read_mlperf_log(
    path: Path | str,
    recipe: Recipe,
    gpus: int,
    *,
    warm_up: int | None = None,
    progress: Progress | None = None,
) -> MeasuredLog:
    """Read step times from a log in the MLPerf training format.

    Arguments and errors as of all readers (``interop/logs/readers.py``). A batch that the
    log states goes before that of the recipe.
    """
    reader = _Reader(path, recipe.global_batch)
    for line, text in marked_lines(path, (_MARK.encode(),), progress=progress):
        reader.take(line, text)
    return reader.finest().finish(recipe, gpus, warm_up)


class _Reader:
    """Follows the events of a log; each source of step times gathers on its own."""

    def __init__(self, path: Path | str, batch: int) -> None:
        self._found = {name: LogReading("mlperf", "an MLPerf log", path) for name in _SOURCES}
        self._batch, self._epoch_samples = batch, 0.0
        self._count = Counter[tuple[str, int | None]]()
        self._open: dict[tuple[str, int | None], _Interval] = {}
        self._evaluating_ms: float | None = None
        self._last_samples = 0.0

    def finest(self) -> LogReading:
        """Choose the finest source that has anything, with what the log states."""
        name = next((n for n, found in self._found.items() if len(found)), "step")
        chosen = self._found[name]
        if len(chosen):
            chosen.notes.append(f"step times from {_SOURCES[name]}")
        return chosen

    def take(self, line: int, text: str) -> None:
        """Take one line."""
        event = _event(text)
        if event is None:
            for found in self._found.values():
                found.unreadable(line)
            return
        key, value, rank = event["key"], event.get("value"), rank_of(text)
        if key in _STATED and is_number(value) and value >= 1:
            for found in self._found.values():
                found.state(_STATED[key], int(value), line, key)
            self._batch = int(value) if key == "global_batch_size" else self._batch
        elif key == "train_samples" and is_number(value):
            self._epoch_samples = float(value)
        elif key == "tracked_stats" and isinstance(value, dict):
            self._stats(line, value, rank)
        else:
            self._interval(line, event, rank)

    def _stats(self, line: int, value: Mapping[str, Any], rank: int | None) -> None:
        seconds, rate = value.get("train_step_time"), value.get("throughput")
        if is_number(seconds):
            self._add("step", line, float(seconds), rank)
        if is_number(rate) and rate > 0:
            self._add("throughput", line, self._batch / float(rate), rank)

    def _add(self, name: str, line: int, seconds: float, rank: int | None) -> None:
        """Entries are numbered by their place: what a log calls step may be samples or tokens."""
        self._count[name, rank] += 1
        self._found[name].add(self._count[name, rank], seconds, line=line, rank=rank)

    def _interval(self, line: int, event: Mapping[str, Any], rank: int | None) -> None:
        kind, _, edge = event["key"].partition("_")
        now, where = float(event["time_ms"]), event["metadata"]
        if kind == "eval":
            self._evaluate(edge, now)
        elif kind in ("block", "epoch") and edge == "start":
            self._open.setdefault((kind, rank), _Interval(start_ms=now, start=where))
        elif kind in ("block", "epoch") and edge == "stop":
            interval = self._open.pop((kind, rank), None)
            steps = 0.0 if interval is None else self._steps(interval.start, where)
            if interval is not None and steps > 0.0:
                seconds = (now - interval.start_ms - interval.paused_ms) / 1e3 / steps
                self._add(kind, line, seconds, rank)

    def _evaluate(self, edge: str, now: float) -> None:
        """Evaluation is no training: it is taken out of what is open around it."""
        if edge == "start":
            self._evaluating_ms = now
        elif edge == "stop" and self._evaluating_ms is not None:
            for interval in self._open.values():
                interval.paused_ms += now - max(self._evaluating_ms, interval.start_ms)
            self._evaluating_ms = None

    def _steps(self, start: Mapping[str, Any], stop: Mapping[str, Any]) -> float:
        """Steps of an interval, from what its two ends say; 0 where they do not."""
        first, last = (end.get("step", end.get("step_num")) for end in (start, stop))
        if is_number(first) and is_number(last) and last > first:
            return float(last - first)
        first, last = (end.get("samples_count") for end in (start, stop))
        if is_number(last):
            before, self._last_samples = self._last_samples, float(last)
            begun = float(first) if is_number(first) else before
            samples = float(last) - begun if last != begun else float(last)
            return max(samples, 0.0) / self._batch
        epochs = start.get("epoch_count", 1)
        return float(epochs) * self._epoch_samples / self._batch if is_number(epochs) else 0.0


def _event(text: str) -> dict[str, Any] | None:
    """The JSON of a line, or None where it was cut or is something else."""
    try:
        event, _ = json.JSONDecoder().raw_decode(text, text.index("{", text.index(_MARK)))
    except (ValueError, RecursionError):
        return None
    if not (isinstance(event, dict) and isinstance(event.get("key"), str)):
        return None
    if not is_number(event.get("time_ms")):
        return None
    where = event.get("metadata")
    return {**event, "metadata": where if isinstance(where, dict) else {}}
