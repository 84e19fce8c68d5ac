"""Read a torch profiler (Kineto) trace: Chrome trace JSON, also gzipped, of any size.

Events are decoded one at a time from a window of text, so that a trace of gigabytes takes no more
memory than the numbers that are kept of it. A file that was cut off (a killed job leaves one) is
read as far as its events are whole. Format: pytorch/kineto, libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from simulator.errors import InputError
from simulator.interop.traces.kineto_events import Events
from simulator.interop.traces.kineto_table import make_trace
from simulator.plain_files import open_file
from simulator.scoring.trace import Trace

_CHUNK = 1 << 20
"""Bytes read, and characters decoded, at a time."""

_LONGEST_HEAD = 1 << 22
"""Characters before the events; Kineto writes some thousands."""

_LONGEST_EVENT = 1 << 22
"""Characters of one event; one that is longer is taken for broken."""

_MOST_UNREADABLE = 1_000
"""Broken events that are skipped; with more the file is no trace any more."""

_MOST_UNPACKED = 200
"""Bytes that a packed one may stand for; traces are at 10 to 40, blanks at 1,000."""

_GZIP = b"\x1f\x8b"
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_NEXT = re.compile(r"\}\s*,\s*(?=\{)")


def read_trace(path: Path | str) -> Trace:
    """Read the trace of one rank.

    Parameters
    ----------
    path : path
        What ``torch.profiler`` exported: ``.json`` or ``.json.gz``.

    Raises
    ------
    InputError
        If the file cannot be read, is no torch profiler trace, holds no event that took time,
        names a GPU but has no kernel, or holds several ranks.
    """
    events = Events(str(path))
    with _open(Path(path)) as handle:
        file = TraceFile(handle, str(path))
        for event in file.events():
            events.add(event)
    notes = file.notes()
    if events.malformed:
        rule = "have no time, process or thread that can be, and are left out"
        notes.append(f"{events.malformed} events {rule}")
    return make_trace(events, file.head, where=str(path), notes=notes)


def _open(path: Path) -> BinaryIO:
    # os.path, not Path.is_dir: open_file words the error where a parent folder may not be read
    inside = sorted(entry.name for entry in path.glob("*.json*"))[:3] if os.path.isdir(path) else []
    if inside:
        raise InputError(
            f"{path}: is a folder, not a file (give one of its files: {', '.join(inside)})"
        )
    return open_file(path)


class TraceFile:
    """The events of a trace file, in its order, and what stands around them."""

    def __init__(self, handle: BinaryIO, where: str) -> None:
        self.head: dict[str, Any] = {}
        """Fields beside the events: ``deviceProperties``, ``distributedInfo``."""
        self.cut = False
        """Whether the file ends before its last event does."""
        self.unreadable = 0
        """Events that are not JSON."""
        self._where = where
        self._chunks = _text(handle, where)
        self._text, self._at = "", 0

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield every event that is a JSON object; then `head`, `cut` and `unreadable` are final.

        Raises
        ------
        InputError
            If the file is empty, not JSON, or has no list of events.
        """
        self._find_events()
        decode = json.JSONDecoder(strict=False).raw_decode
        while self._more_events():
            try:
                event, self._at = decode(self._text, self._at)
            except (ValueError, RecursionError):
                if not self._read_on():
                    return
            else:
                if isinstance(event, dict):
                    yield event
                else:
                    self.unreadable += 1

    def notes(self) -> list[str]:
        """What a reader of the numbers must know."""
        notes = []
        if self.cut:
            notes.append("the file is cut off: events behind that are missing from every part")
        if self.unreadable:
            notes.append(f"{self.unreadable} events could not be read and are left out")
        return notes

    def _find_events(self) -> None:
        """Move to the first event; read the fields before it."""
        found = None
        while found is None and len(self._text) < _LONGEST_HEAD and self._extend():
            begun = self._text.lstrip()
            if begun and begun[0] not in "{[":
                raise InputError(f"{self._where}: not JSON: begins with {begun[:20]!r}")
            found = re.match(r"\s*\[", begun) or _EVENTS.search(self._text)
        if not self._text.strip():
            raise InputError(f"{self._where}: the file is empty")
        if found is None:
            raise InputError(
                f"{self._where}: not a torch profiler trace: it has no list traceEvents"
            )
        before = self._text[: found.start()].rstrip().rstrip(",")
        self._at = self._text.index("[", found.start()) + 1
        self._fields(f"{before}}}")

    def _fields(self, text: str) -> None:
        """Take the fields of a JSON object; nothing where it is none."""
        try:
            loads = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return
        if isinstance(loads, dict):
            self.head.update(loads)

    def _more_events(self) -> bool:
        """Move to the next event; at the end of the list read the fields after it."""
        while True:
            between = _BETWEEN.match(self._text, self._at)
            self._at = between.end() if between else self._at
            if self._at < len(self._text):
                break
            if not self._extend():
                self.cut = True
                return False
        if self._text[self._at] != "]":
            return True
        while len(self._text) - self._at < _LONGEST_HEAD and self._extend():
            pass
        self._fields("{" + self._text[self._at + 1 :].lstrip(", \t\r\n"))
        return False

    def _read_on(self) -> bool:
        """Read more of an event that is not whole; skip one that is broken. False at the end."""
        if len(self._text) - self._at < _LONGEST_EVENT and self._extend():
            return True
        following = _NEXT.search(self._text, self._at + 1)
        if following is None:
            self.cut = True
            return False
        self.unreadable += 1
        if self.unreadable > _MOST_UNREADABLE:
            raise InputError(f"{self._where}: more than {_MOST_UNREADABLE} events are not JSON")
        self._at = following.end()
        return True

    def _extend(self) -> bool:
        """Append text, forgetting what was decoded; False at the end of the file."""
        chunk = next(self._chunks, "")
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)


def _text(handle: BinaryIO, where: str) -> Iterator[str]:
    """Yield the text of a file in pieces, unpacked if it is gzipped."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    try:
        first = handle.read(_CHUNK)
        packed = first.startswith(_GZIP)
        pieces, read = _unpacked(handle, first) if packed else _plain(handle, first), 0
        for piece in pieces:
            read += len(piece)
            if packed and read > max(_MOST_UNPACKED * handle.tell(), 16 * _CHUNK):
                raise InputError(f"{where}: unpacks to over {_MOST_UNPACKED} times its size")
            if text := decoder.decode(piece):
                yield text
    except (OSError, zlib.error) as error:
        raise InputError(f"{where}: cannot be read: {error}") from None


def _plain(handle: BinaryIO, first: bytes) -> Iterator[bytes]:
    while first:
        yield first
        first = handle.read(_CHUNK)


def _unpacked(handle: BinaryIO, packed: bytes) -> Iterator[bytes]:
    """Unpack gzip members as far as they go; ``gzip.open`` would lose the end of a cut file."""
    unpack = zlib.decompressobj(wbits=31)
    while packed:
        yield unpack.decompress(packed, _CHUNK)
        packed = unpack.unconsumed_tail
        if unpack.eof:
            packed = unpack.unused_data if unpack.unused_data.startswith(_GZIP) else b""
            unpack = zlib.decompressobj(wbits=31)
        packed = packed or handle.read(_CHUNK)
    yield unpack.flush()
