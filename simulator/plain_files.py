"""Reading and writing regular files: of bounded size, never waited for, written whole or not.

A pipe or a device has no end, or none yet, and most files are read more than once (what kind is it,
what does it say), so that neither is read. Documents that are parsed whole are bounded by size and
by depth before anything is made of them. Nor is either written: a file is made beside its place and
renamed, which would put a file where the pipe was.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from simulator.errors import InputError, nearest

LIMIT_BYTES = 256 * 2**20
"""Largest file that is gone through line by line; anything larger is refused with a message."""

DOCUMENT_LIMIT_BYTES = 32 * 2**20
"""Largest text that is held whole."""

MOST_FIELDS = 10_000
"""Fields of a TOML table, each of which may be a mistake of its own."""

MOST_VALUES = 500_000
"""Values of a JSON document, each of which may take 200 bytes of memory, however short it is."""

TOML_LIMIT_BYTES = 2**20
"""Largest TOML file, whose tables may take 40 times its bytes. The largest shipped: 66 KiB."""

YAML_LIMIT_BYTES = 2**18
"""Largest YAML text, of which a MiB takes ten seconds to parse. Recipes of frameworks: 20 KiB."""

YAML_VALUES = 20_000
"""Values of a YAML file, those of aliases written out: frameworks' have some hundred."""

DEEPEST = 64
"""Levels of tables and lists in a document; the deepest that means anything has 8."""

MOST_DIGITS = 4_300
"""Of one number: Python turns no more into a whole number, and nothing has as many."""

_NEIGHBOURS = 500
"""Files of a folder among which the nearest name is looked for."""

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def kind_of_file(mode: int) -> str:
    """Word for what is no regular file, by its ``st_mode``; blank for a regular one or a folder."""
    return _KINDS.get(stat.S_IFMT(mode), "")


def open_file(path: Path | str) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises
    ------
    InputError
        If there is no such file (a name beside it that is near is given), it cannot be read, or it
        is a folder, a pipe or a device.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{nearest(path.name, _beside(path))}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # a null byte in the path
        raise InputError(f"{path}: cannot be read: {error}") from None
    raise InputError(f"{path}: is {kind_of_file(mode) or 'a folder'}, not a file")


def _beside(path: Path) -> list[str]:
    """Names of files in the folder in which a file was looked for."""
    try:
        with os.scandir(path.parent) as entries:
            return [entry.name for entry in islice(entries, _NEIGHBOURS) if entry.is_file()]
    except OSError:
        return []


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn what goes wrong while a text is read into an error about its file."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file (bytes that are not UTF-8)") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def text_within(file: BinaryIO, path: Path | str, most_bytes: int) -> None:
    """Refuse an open file that is larger than `most_bytes`."""
    size = os.fstat(file.fileno()).st_size
    if size > most_bytes:
        raise InputError(f"{path}: larger than {most_bytes // 2**20} MiB, got {size} bytes")


def read_text(path: Path | str, most_bytes: int = DOCUMENT_LIMIT_BYTES) -> str:
    """Read a text file as a whole; InputError where it is too large or not UTF-8."""
    with open_file(path) as file, reading(path):
        text_within(file, path, most_bytes)
        raw = file.read(most_bytes + 1)
        if len(raw) > MOST_DIGITS and _TOO_LONG in raw.translate(_AS_ZERO):
            refuse_long_numbers(raw, path)
        return raw.decode("utf-8-sig")


_AS_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_LONG = b"0" * (MOST_DIGITS + 1)


def refuse_long_numbers(raw: bytes, where: Path | str) -> None:
    """Refuse a text that holds a number of more digits than Python reads.

    Examples
    --------
    >>> refuse_long_numbers(b"1" * 4_300 + b" " + b"2" * 4_300, "job.sh")
    >>> refuse_long_numbers(b"--gpus " + b"9" * 4_301, "job.sh")
    Traceback (most recent call last):
        ...
    simulator.errors.InputError: job.sh: holds a number of more than 4300 digits
    """
    if len(raw) > MOST_DIGITS and _TOO_LONG in raw.translate(_AS_ZERO):
        raise InputError(f"{where}: holds a number of more than {MOST_DIGITS} digits")


def is_deeper(value: Any, most: int = DEEPEST) -> bool:
    """Whether tables and lists stand more than so many levels within one another.

    Examples
    --------
    >>> is_deeper({"a": [1]}, 2), is_deeper({"a": [[1]]}, 2)
    (False, True)
    """
    return _extent(value, (), most)[0] > most


def most_items(value: Any, *kinds: type) -> int:
    """Items of the table or list, of these kinds alone, that has most, at any level.

    Examples
    --------
    >>> found = {"a": [{"b": 1, "c": 2, "d": 3}, 0, 0, 0]}
    >>> most_items(found, dict), most_items(found, dict, list)
    (3, 4)
    """
    return _extent(value, kinds, None)[1]


def _extent(value: Any, kinds: tuple[type, ...], deepest: int | None) -> tuple[int, int]:
    """Levels of tables and lists, counted to one more than `deepest`, and most items of one.

    A loop, since profiles have thousands of them.
    """
    levels, most = 0, 0
    level = [value] if isinstance(value, (dict, list)) else []
    while level and (deepest is None or levels <= deepest):
        levels += 1
        below = []
        for table in level:
            if type(table) in kinds and len(table) > most:
                most = len(table)
            for item in table.values() if isinstance(table, dict) else table:
                if isinstance(item, (dict, list)):
                    below.append(item)
        level = below
    return levels, most


def check_place(path: Path, *, folder: bool = False) -> None:
    """See whether a file, or files of a folder, could be written, before the work for it starts.

    Raises
    ------
    OSError
        As writing would raise it.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        path.stat()  # a name too long, a folder that may not be entered
    into = path if folder else _real_place(path).parent
    above = next(place for place in (into, *into.absolute().parents) if os.path.exists(place))
    if not folder and os.path.isdir(path):
        number = errno.EISDIR
    elif not os.path.isdir(above):
        number = errno.EEXIST if above is path else errno.ENOTDIR
    elif not os.access(above, os.W_OK | os.X_OK):
        number = errno.EACCES
    else:
        return
    raise OSError(number, os.strerror(number), str(path))


def _real_place(path: Path) -> Path:
    """Where a file stands at the end of its links; OSError for what is there and no file."""
    mode = path.stat().st_mode if os.path.exists(path) else stat.S_IFREG
    if kind := kind_of_file(mode):
        raise OSError(errno.EINVAL, f"is {kind}, not a file", str(path))
    return Path(os.path.realpath(path))


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write several files, their folders made where missing: an error leaves all as they were.

    Each is made beside its place first and then renamed; readers see the old file or the new one. A
    link stays and what it leads to is written; a file that is there keeps its permissions.

    Raises
    ------
    OSError
        If one cannot be written, or is a pipe or a device.
    """
    places = {path: _real_place(path) for path in contents}
    parts = {
        place: place.with_name(f".{place.name}.{os.getpid()}.part") for place in places.values()
    }
    try:
        for path, place in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            parts[place].write_bytes(contents[path])
            if place.exists():
                parts[place].chmod(stat.S_IMODE(place.stat().st_mode))
        for place, part in parts.items():
            part.replace(place)
    except BaseException:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise
