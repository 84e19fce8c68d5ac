"""Documents of the measuring programs: timed calls of one machine, checked record by record.

The format is that of ``kernels/README.md``: one JSON object with ``schema`` 1, the device, the
software and a list of records, each with its kernel, type, shape and all readings in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import InputError, first_of, problem
from simulator.files import is_number, read_json
from simulator.records import dataclass

SCHEMA = 1

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
"""Kernels of more than one rank."""

LEAST_S, MOST_S, MOST_SIZE = 1e-12, 1e9, 1e18
"""No time in seconds and no size is outside."""

_MOST_PROBLEMS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call that was timed."""

    place: str
    """File and record, for messages."""
    kernel: str
    dtype: str
    direction: str
    library: str
    shape: Mapping[str, float]
    """Sizes by name; a collective has message_bytes, ranks and nodes."""
    seconds: float
    """Median of the readings."""
    readings_s: tuple[float, ...] = ()
    """All of them."""
    moved_bytes: float | None = None
    """Least traffic, where the program says."""
    cold: bool = True
    """Its data were not in the cache."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """What else the record says: output, scaling, load, words of its shape, ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What a document says of the device that it measured; None where it does not."""

    kind: str
    """``cuda`` or ``cpu``."""
    name: str
    count: int | None = None
    compute_units: int | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """What one file measured."""

    path: str
    source: str
    """Program and versions, for the profile."""
    date: str
    """Day of the measurement (ISO); blank where the file does not say."""
    device: Device | None
    calls: tuple[Call, ...]


def read_measurements(path: Path | str) -> Measurements:
    """Read a document of ``kernels/`` (or of ``foreshard measure``).

    Raises
    ------
    InputError
        With every record that cannot be: no shape, no time, a time that is not positive.
    """
    document = read_json(path)
    if not isinstance(document, dict) or "records" not in document:
        raise InputError(f"{path}: not a document of measurements: it has no records")
    if document.get("schema") != SCHEMA:
        raise InputError(problem(str(path), "schema", f"must be {SCHEMA}", document.get("schema")))
    device = _device(document.get("device"), str(path))
    records, problems = document["records"], []
    if not isinstance(records, list):
        raise InputError(f"{path}: records: must be a list, got {type(records).__name__}")
    calls = []
    for index, record in enumerate(records):
        where = f"{path}: records[{index}]"
        wrong = _problems(record, where)
        problems += wrong
        if not wrong:
            calls.append(_call(record, where))
    if problems:
        raise InputError(first_of(problems, str(path), _MOST_PROBLEMS))
    software = document.get("software") or {}
    versions = [
        f"{name} {software[name]}"
        for name in ("torch", "cuda", "nccl", "driver")
        if isinstance(software, dict) and software.get(name)
    ]
    return Measurements(
        path=str(path),
        source=", ".join([Path(path).name, *versions]),
        date=str(document.get("started") or "")[:10],
        device=device,
        calls=tuple(calls),
    )


def _device(raw: Any, path: str) -> Device:
    if not isinstance(raw, dict) or raw.get("kind") not in ("cuda", "cpu"):
        raise InputError(f"{path}: device: must say kind (cuda or cpu) and name, got {raw!r:.80}")
    return Device(
        kind=raw["kind"],
        name=str(raw.get("name") or "device without a name"),
        count=_whole(raw.get("count")),
        compute_units=_whole(raw.get("sms")),
        memory_bytes=memory if is_number(memory := raw.get("memory_bytes")) else None,
    )


def _whole(value: Any) -> int | None:
    return int(value) if is_number(value) else None


def _is_size(value: Any) -> bool:
    return is_number(value, MOST_SIZE) and value >= 0.0


def _is_time(value: Any) -> bool:
    return is_number(value, MOST_S) and value >= LEAST_S


def _problems(record: Any, where: str) -> list[str]:
    """What keeps a record from being a timed call."""
    if not isinstance(record, dict):
        return [f"{where}: must be an object, got {type(record).__name__}"]
    if not isinstance(record.get("kernel"), str):
        return [problem(where, "kernel", "must be a word", record.get("kernel"))]
    problems = []
    where = f"{where} ({record['kernel']})"
    shape, times = record.get("shape"), record.get("times_s")
    if not isinstance(shape, dict):
        problems.append(problem(where, "shape", "must be an object of sizes", shape))
    else:
        for name, size in shape.items():
            if type(size) in (int, float) and not _is_size(size):
                problems.append(problem(where, f"shape.{name}", "must be a size", size))
    if not isinstance(times, list) or not times:
        problems.append(problem(where, "times_s", "must be a list of seconds", times))
    elif not all(map(_is_time, times)):
        wrong = next(time for time in times if not _is_time(time))
        problems.append(problem(where, "times_s", "must be positive numbers of seconds", wrong))
    moved = record.get("bytes")
    if moved is not None and not (_is_size(moved) and moved > 0):
        problems.append(problem(where, "bytes", "must be a positive number", moved))
    return problems


def _call(record: Mapping[str, Any], where: str) -> Call:
    shape = {
        name: float(size)
        for name, size in record["shape"].items()
        if isinstance(size, (bool, int, float))
    }
    known = {"kernel", "dtype", "shape", "direction", "times_s", "library", "bytes", "cold"}
    return Call(
        place=f"{where} ({record['kernel']})",
        kernel=record["kernel"],
        dtype=str(record.get("dtype") or ""),
        direction=str(record.get("direction") or ""),
        library=str(record.get("library") or ""),
        shape=shape,
        seconds=float(np.median(record["times_s"])),
        readings_s=tuple(record["times_s"]),
        moved_bytes=record.get("bytes"),
        cold=record.get("cold") is not False,
        note={name: word for name, word in record["shape"].items() if isinstance(word, str)}
        | {name: value for name, value in record.items() if name not in known},
    )
