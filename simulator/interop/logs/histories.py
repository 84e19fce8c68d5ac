"""Histories of runs, as trackers keep them: a step, the time of day, and numbers by name.

- CSV of W&B (or of any tracker): a column of steps, and one of times (``_timestamp``,
  ``_runtime``, ``wall_time``) or of what a step took.
- ``run-ID.wandb`` of W&B's offline runs: records in blocks of 32 KiB (LevelDB's log format,
  wandb/sdk/internal/datastore.py), whose histories are names and JSON (wandb_internal.proto).
- JSON lines of any tracker, as ``wandb-history.jsonl`` of older offline runs.
- TensorBoard's event files: TFRecords of ``Event`` messages (tensorflow/core/util/event.proto).
- MLflow's folders: ``metrics/NAME`` of lines "milliseconds value step".
- ``trainer_state.json`` of transformers' Trainer, which has the run's mean alone.

Where a number says what a step took, that is taken; else the differences of the time of day, whose
median evaluation and checkpoints do not move.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.measured.log import LogReading, MeasuredLog
from simulator.measured.log_lines import Progress
from simulator.plain_files import open_file, read_text
from simulator.records import dataclass
from simulator.workload.recipe import Recipe

_LIMIT_BYTES = 2**26
_MOST_POINTS = 500_000
_MOST_FILES = 2_000

_STEPS = ("step", "_step", "global_step", "trainer/global_step", "train/global_step", "iteration")
_TIMES_S = ("_timestamp", "_runtime", "wall_time", "timestamp", "time", "relative time (process)")
_SECONDS = re.compile(
    r"(?:^|[/ ._-])(?:train_step_timing in s|step_time|step_time_s|step_time_seconds"
    r"|iteration[-_ ]time|iter_time|time_per_iteration|seconds_per_step|sec_per_step)$",
    re.I,
)
_MILLISECONDS = re.compile(r"(?:time_per_iteration_ms|step_time_ms|iteration_time_ms)$", re.I)
_TFLOPS = re.compile(
    r"(?:model_tflops_per_gpu|tflops_per_gpu|tflops/device|throughput/tflops)$", re.I
)


@dataclass
class History:
    """Numbers of a run by name: step, time of day in seconds (nan: not said) and value."""

    series: dict[str, list[tuple[int, float, float]]] = field(default_factory=dict)
    points: int = 0

    def add(self, name: str, step: Any, time_s: float, value: float) -> None:
        """Take a point; steps that are no whole number and values without bound are left out."""
        if self.points >= _MOST_POINTS or not isinstance(step, (int, float)):
            return
        if step % 1 or not abs(step) <= 2**53 or not math.isfinite(value):
            return
        self.points += 1
        self.series.setdefault(name, []).append((int(step), time_s, value))


def is_history(path: Path | str) -> bool:
    """Whether a path is a file or folder that :func:`read_history` knows."""
    place = Path(path)
    if place.is_dir():
        kept = (_event_files(place), _wandb_files(place), _jsonl(place))
        return (place / "metrics").is_dir() or any(kept)
    name = place.name
    return (
        name.startswith("events.out.tfevents")
        or name == "trainer_state.json"
        or name.endswith((".jsonl", ".wandb"))
        or (name.endswith(".csv") and _has_steps(place))
    )


def read_history(
    path: Path | str,
    recipe: Recipe,
    gpus: int,
    *,
    warm_up: int | None = None,
    progress: Progress | None = None,
) -> MeasuredLog:
    """Read step times from the history of a run.

    Arguments and errors as of all readers (``interop/logs/readers.py``).
    """
    place = Path(path)
    reading = LogReading("history", "a history of a run", place)
    if place.name == "trainer_state.json":
        _trainer_state(reading, place)
    else:
        _timed(reading, _series(place))
    if not len(reading):
        rule = "no two points with steps and times, and no number that says what a step took"
        raise InputError(f"{place}: {rule}")
    return reading.finish(recipe, gpus, warm_up)


def _series(place: Path) -> History:
    history = History()
    if place.is_dir() and (place / "metrics").is_dir():
        _of_mlflow(history, place / "metrics")
    elif (files := _wandb_files(place) if place.is_dir() else []) or place.suffix == ".wandb":
        for file in files or [place]:
            _of_rows(history, _wandb_rows(file))
    elif place.is_dir() and (lines := _jsonl(place)) is not None:
        _of_rows(history, _json_rows(lines))
    elif place.is_dir() or place.name.startswith("events.out.tfevents"):
        for file in _event_files(place) if place.is_dir() else [place]:
            _of_events(history, file)
    elif place.suffix == ".jsonl":
        _of_rows(history, _json_rows(place))
    else:
        text = read_text(place, _LIMIT_BYTES)
        _of_rows(history, _table_rows(text, str(place)))
    return history


def _timed(reading: LogReading, history: History) -> None:
    """Step times: of a number that says so, else of the time of day."""
    for pattern, times in ((_SECONDS, 1.0), (_MILLISECONDS, 1e-3)):
        named = [name for name in history.series if pattern.search(name)]
        if named:
            name = max(named, key=lambda name: len(history.series[name]))
            for number, (step, _, value) in enumerate(history.series[name], 1):
                if value > 0:
                    reading.add(step, value * times, line=number)
            reading.notes.append(f"step times: {name!r}")
            return
    flops = next((name for name in history.series if _TFLOPS.search(name)), None)
    rates = {step: value for step, _, value in history.series.get(flops or "", ())}
    dated = {name: points for name, points in history.series.items() if math.isfinite(points[0][1])}
    if not dated:
        return
    name = max(dated, key=lambda name: len(dated[name]))
    points = sorted(set(dated[name]))
    for number, (before, after) in enumerate(pairwise(points), 2):
        steps, seconds = after[0] - before[0], after[1] - before[1]
        if steps > 0 and seconds > 0:
            reading.add(
                after[0], seconds / steps, line=number, tflops=rates.get(after[0], math.nan)
            )
    reading.notes.append(f"step times: differences of the time of day between points of {name!r}")


# --- rows of names and numbers ------------------------------------------------------------


def _has_steps(place: Path) -> bool:
    """Whether a CSV file has a column of steps and one of times or of step times."""
    with open_file(place) as file:
        header = file.readline(2**16).decode("utf-8-sig", "replace")
    try:
        columns = next(csv.reader([header], delimiter=_delimiter(header)), [])
    except csv.Error:  # no table at all
        return False
    low = [column.strip().lower() for column in columns]
    stepped = any(name in low for name in _STEPS)
    timed = any(name in low for name in _TIMES_S)
    said = any(_SECONDS.search(name) or _MILLISECONDS.search(name) for name in columns)
    return stepped and (timed or said)


_Row = tuple[Sequence[str], Sequence[Any]]
"""Names and values; values may be fewer or more."""


class _Columns:
    """Places of what is read in rows of the same names; of a name that is there twice, the last."""

    def __init__(self, names: Sequence[str]) -> None:
        places = {name.strip().lower(): at for at, name in enumerate(names)}
        self._steps = [places[name] for name in _STEPS if name in places]
        self._times = [places[name] for name in _TIMES_S if name in places]
        telling = (_SECONDS, _MILLISECONDS, _TFLOPS)
        self._telling = [
            (name, at) for name, at in places.items() if any(x.search(name) for x in telling)
        ]

    def read(self, values: Sequence[Any], history: History) -> None:
        """Take the points of a row that has a step."""
        if (step := _first_number(values, self._steps)) is None:
            return
        time_s = _first_number(values, self._times)
        time_s = math.nan if time_s is None else time_s
        history.add("points", step, time_s, 0.0)
        for name, at in self._telling:
            if (number := _first_number(values, (at,))) is not None:
                history.add(name, step, time_s, number)


def _of_rows(history: History, rows: Iterable[_Row]) -> None:
    names: Sequence[str] = ()
    columns = _Columns(names)
    for row, values in rows:
        if row != names:
            names, columns = row, _Columns(row)
        columns.read(values, history)


def _table_rows(text: str, path: str) -> Iterator[_Row]:
    """Rows under the first line; what the reader of CSV cannot read is bad input.

    Spreadsheets part columns by semicolons where numbers have a comma.
    """
    between = _delimiter(text.partition("\n")[0])
    rows = csv.reader(io.StringIO(text), delimiter=between)
    try:
        names = next(rows, [])
        for values in rows:
            yield names, [x.replace(",", ".") for x in values] if between == ";" else values
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None


def _delimiter(header: str) -> str:
    """What parts the columns of a table, by its first line."""
    return max(",;\t", key=header.count)


def _first_number(values: Sequence[Any], places: Iterable[int]) -> float | None:
    """The first of some places in a row where a number stands."""
    for at in places:
        if at < len(values) and (number := _number(values[at])) is not None:
            return number
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _json_rows(place: Path) -> Iterator[_Row]:
    for line in read_text(place, _LIMIT_BYTES).splitlines():
        try:
            row = json.loads(line) if len(line) < 2**20 else None
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield tuple(row), tuple(row.values())


def _jsonl(folder: Path) -> Path | None:
    """The history that an offline run's folder keeps as JSON lines."""
    for place in (folder / "wandb-history.jsonl", folder / "files" / "wandb-history.jsonl"):
        if place.is_file():
            return place
    return None


def _of_mlflow(history: History, folder: Path) -> None:
    for number, file in enumerate(sorted(folder.rglob("*"))):
        if number >= _MOST_FILES:
            break
        if not file.is_file():
            continue
        name = file.relative_to(folder).as_posix()
        for line in read_text(file, _LIMIT_BYTES).splitlines():
            words = [_number(word) for word in line.split()]
            if len(words) == 3 and None not in words:
                milliseconds, value, step = (word or 0.0 for word in words)
                history.add(name, step, milliseconds / 1e3, value)


def _trainer_state(reading: LogReading, place: Path) -> None:
    """The mean of a run: the seconds that it trained over the steps that it took."""
    try:
        document = json.loads(read_text(place, _LIMIT_BYTES))
    except (ValueError, RecursionError):
        raise InputError(f"{place}: not valid JSON") from None
    entries = document.get("log_history") if isinstance(document, dict) else None
    for number, entry in enumerate(entries if isinstance(entries, list) else [], 1):
        if not isinstance(entry, dict):
            continue
        seconds, step = _number(entry.get("train_runtime")), _number(entry.get("step"))
        if seconds and step and step >= 1:
            reading.add(int(step), seconds / step, line=number)
            rule = "the mean of the run, evaluation, checkpoints and the first steps in it"
            reading.notes.append(f"train_runtime over {int(step)} steps: {rule}")


# --- W&B's offline runs ---------------------------------------------------------------------

_BLOCK_BYTES, _HEAD_BYTES = 2**15, 7
_WHOLE, _FIRST, _LAST = 1, 2, 4


def _wandb_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.wandb"))[:_MOST_FILES]


def _wandb_rows(place: Path) -> Iterator[_Row]:
    """Rows of names and numbers that a run logged; a file that is cut ends there."""
    with open_file(place) as file:
        raw = file.read(_LIMIT_BYTES)
    if raw[:4] != b":W&B":
        raise InputError(f"{place}: is no file of an offline run of W&B: it begins otherwise")
    at, record = _HEAD_BYTES, b""
    while at + _HEAD_BYTES <= len(raw):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEAD_BYTES:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        at += _HEAD_BYTES
        if not _WHOLE <= kind <= _LAST or length > len(raw) - at:
            return
        record = (b"" if kind in (_WHOLE, _FIRST) else record) + raw[at : at + length]
        at += length
        if kind in (_WHOLE, _LAST):
            history = dict(_fields(record)).get(2)
            if isinstance(history, bytes):
                row = _wandb_row(history)
                yield tuple(row), tuple(row.values())


def _wandb_row(history: bytes) -> dict[str, str]:
    row = {}
    for number, item in _fields(history):
        if number != 1 or not isinstance(item, bytes):
            continue
        parts = list(_fields(item))
        names = [_text(x) for k, x in parts if k in (1, 2)]
        row["/".join(names)[:200]] = next((_text(x) for k, x in parts if k == 16), "")
    return row


def _text(value: int | bytes) -> str:
    """The beginning of a text; blank for a number."""
    return value[:200].decode("utf-8", "replace") if isinstance(value, bytes) else ""


# --- TensorBoard --------------------------------------------------------------------------


def _event_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.out.tfevents*"))[:_MOST_FILES]


def _of_events(history: History, place: Path) -> None:
    """TFRecords: length, its checksum, an Event, its checksum; one that is cut ends the file."""
    with open_file(place) as file:
        raw = file.read(_LIMIT_BYTES)
    at = 0
    while at + 12 <= len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        at += 12
        if length > len(raw) - at:
            return
        _of_event(history, raw[at : at + length])
        at += length + 4


def _of_event(history: History, raw: bytes) -> None:
    event = dict(_fields(raw))
    wall, step, summary = event.get(1), event.get(2, 0), event.get(5)
    if not isinstance(summary, bytes) or not isinstance(wall, bytes) or len(wall) != 8:
        return
    time_s = float(struct.unpack("<d", wall)[0])
    for number, value in _fields(summary):
        if number != 1 or not isinstance(value, bytes):
            continue
        entry = dict(_fields(value))
        tag, scalar = entry.get(1), _scalar(entry)
        if isinstance(tag, bytes) and scalar is not None:
            history.add(_text(tag), step if isinstance(step, int) else 0, time_s, scalar)


def _scalar(entry: Mapping[int, int | bytes]) -> float | None:
    """``simple_value``, or the one float of a tensor (TensorFlow 2 and torch write either)."""
    simple, tensor = entry.get(2), entry.get(8)
    if isinstance(simple, bytes) and len(simple) == 4:
        return float(struct.unpack("<f", simple)[0])
    if isinstance(tensor, bytes):
        inner = dict(_fields(tensor))
        content = inner.get(4, inner.get(5))
        if isinstance(content, bytes) and len(content) == 4:
            return float(struct.unpack("<f", content)[0])
    return None


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a protocol buffer: whole numbers, and bytes of all else; ends where it is cut."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(raw, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            return
        if length > len(raw) - at:
            return
        yield key >> 3, raw[at : at + length]
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(raw) and shift < 70:
        byte = raw[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    return number, len(raw)
