"""Training logs: their kinds, a record each, and their lines, streamed, cleaned, and told apart."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import BinaryIO

from simulator.errors import InputError
from simulator.files import read_records, record
from simulator.plain_files import open_file, refuse_long_numbers

Progress = Callable[[int, int], None]
"""Told how many bytes of a file are read, of how many."""

_BLOCK_BYTES = 2**16
_LONGEST_BYTES = 2**20
"""A longer line is looked at in parts."""

_REPORT_BYTES = 2**22
_GLANCE_BYTES = 2**26

_OTHERS = {
    "a torch profiler trace": rb'"traceEvents"',
    "output of nccl-tests": rb"^#.*\bbusbw\b",
    "a table of measured runs": rb"^\W*run_id,|,run_id,",
    "a scenario file": rb"^\s*\[(?:model|training|cluster)\]",
}
"""Kinds of files that are no logs."""

_COLOUR = re.compile(r"\x1b?\[[0-9;]{1,20}m")
_JOINT = re.compile(rb"\r|(?=\[(?:rank|default|trainer)\d+\]:)")

_RANK = re.compile(
    r"\s*(?:\[(?:[A-Za-z_]+|\d+,)(\d{1,9})\]"  # torchrun's [rank3]: and [default3]:, mpirun's [1,3]
    r"|(\d{1,9}):\s)"  # srun's 3:
)


def marked_lines(
    path: Path | str, marks: Collection[bytes], *, progress: Progress | None = None
) -> Iterator[tuple[int, str]]:
    """Go through a log and yield (line number, text) of lines that contain one of the marks.

    The file is never held whole. Bytes that are not UTF-8 are replaced. A line is parted at
    carriage returns (a progress bar's) and before the prefix of a rank (two ranks that printed at
    once). The line end stays on, so that a last line that was cut can be told.

    Raises
    ------
    InputError
        If the file is not there, is empty, or is not text.
    """
    path = Path(path)
    with open_file(path) as file:
        _refuse_binary(path, file)
        total, number, report = path.stat().st_size, 1, _REPORT_BYTES
        while block := file.read(_BLOCK_BYTES):
            block += b"" if block.endswith(b"\n") else file.readline(_LONGEST_BYTES)
            if any(mark in block for mark in marks):
                yield from _marked(block, marks, number, path)
            number += block.count(b"\n")
            if progress is not None and file.tell() >= report:
                progress(file.tell(), total)
                report = file.tell() + _REPORT_BYTES


def _marked(
    block: bytes, marks: Collection[bytes], first: int, path: Path
) -> Iterator[tuple[int, str]]:
    """Lines of a block that contain a mark; most blocks of a long log have none."""
    for number, raw in enumerate(io.BytesIO(block), first):
        if any(mark in raw for mark in marks):
            refuse_long_numbers(raw, f"{path}: line {number}")
            for piece in _JOINT.split(raw.replace(b"\r\n", b"\n")):
                if any(mark in piece for mark in marks):
                    yield number, piece.decode("utf-8", "replace")


def looks_like(path: Path | str) -> str:
    """Name the kind of file that the beginning of one looks like; an empty word if none."""
    titles = {kind.title: kind.mark.encode() for kind in log_kinds().values()}
    return _first_marked(path, titles | _OTHERS)


def without_colours(text: str) -> str:
    """Leave out what colours a line, also where its escape character was lost."""
    return _COLOUR.sub("", text)


def rank_of(text: str) -> int | None:
    """Read the rank that a launcher puts before a line (torchrun, srun, mpirun), or None.

    Examples
    --------
    >>> [rank_of(s) for s in ("[rank3]:[titan] x", "[default0]: x", "12: x", "12:30:01 x", "x")]
    [3, 0, 12, None, None]
    """
    match = _RANK.match(text)
    return int(match.group(1) or match.group(2)) if match else None


def _refuse_binary(path: Path, file: BinaryIO) -> None:
    """Refuse what is no text, by its first bytes."""
    head = file.read(4096)
    file.seek(0)
    if not head:
        raise InputError(f"{path}: the file is empty")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{path}: is UTF-16 text; save it as UTF-8")
    if head[:2] == b"\x1f\x8b":
        raise InputError(f"{path}: is compressed; unpack it first")
    if b"\0" in head:
        raise InputError(f"{path}: is not a text file")


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
    return _first_marked(path, {name: kind.mark.encode() for name, kind in log_kinds().items()})


def _first_marked(path: Path | str, marks: Mapping[str, bytes]) -> str:
    """Whose mark the first line of a file that has one has; blank: no line near its beginning."""
    patterns = {name: re.compile(mark) for name, mark in marks.items()}
    read = 0
    with open_file(Path(path)) as file:
        while read < _GLANCE_BYTES and (raw := file.readline(_LONGEST_BYTES)):
            read += len(raw)
            for name, pattern in patterns.items():
                if pattern.search(raw):
                    return name
    return ""
