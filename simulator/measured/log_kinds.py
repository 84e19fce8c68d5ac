"""Kinds of training logs: one record each, by which every place that knows logs knows them."""

from __future__ import annotations

import re
from dataclasses import field
from functools import cache
from pathlib import Path

from simulator.files import read_records, record
from simulator.plain_files import open_file

_GLANCE_BYTES = 2**26
_LONGEST_BYTES = 2**20


@record
class StepLine:
    """Patterns of a line that tells of a step; the first group of each is a number."""

    marks: tuple[str, ...]
    """What lines that matter have: one of these."""
    step: str
    seconds: str = ""
    milliseconds: str = ""
    seconds_a_pass: str = ""
    """Milliseconds of a forward and backward pass, which add up to a step."""
    last_pass: str = ""
    samples_per_s: str = ""
    tokens_per_s: str = ""
    tokens_per_s_per_gpu: str = ""
    tflops: str = ""
    memory_gib: str = ""
    memory_kind: str = ""


@record
class LogKind:
    """A kind of log, as ``log_kinds.toml`` says."""

    title: str
    mark: str
    printed_by: str
    trace: str = ""
    profile: bool = False
    software: tuple[str, ...] = ()
    line: StepLine | None = None
    says: dict[str, str] = field(default_factory=dict)
    """Fields of the run that its listing at the start says; the first group is the value."""


@cache
def log_kinds() -> dict[str, LogKind]:
    """Every kind by its name, in the order in which files are looked through."""
    path = Path(__file__).resolve().parent / "log_kinds.toml"
    return read_records(LogKind, path, "kinds")


def kind_of(path: Path | str) -> str:
    """The name of the kind of log that a file begins as; blank: none."""
    marks = {name: re.compile(kind.mark.encode()) for name, kind in log_kinds().items()}
    read = 0
    with open_file(Path(path)) as file:
        while read < _GLANCE_BYTES and (raw := file.readline(_LONGEST_BYTES)):
            read += len(raw)
            for name, mark in marks.items():
                if mark.search(raw):
                    return name
    return ""
