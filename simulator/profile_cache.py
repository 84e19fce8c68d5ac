"""Profiles as they were read, kept for the next command in a folder of the user's own.

To read a profile is to parse its files and those of its bases, to merge them, and to make the
schemas that check them: a fifth of what a cold `predict` takes. What came of it is written as JSON,
in which nothing can be run: numbers, texts, lists, and the fields of records of this package by
their names. It counts while the bytes of every file it was read from are the same, each base is
still found at the same place, and the program is of the same version, with the same modules of its
records; anything else, and anything that is wrong with it, is a profile that is read anew. So it is
safe to lose. It is read where the user owns it alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from simulator._version import __version__
from simulator.plain_files import write_files

SWITCH = "FORESHARD_CACHE"
"""Environment variable: the folder; ``off`` for none."""

MOST_BYTES = 8 * 2**20
"""Of one profile; the largest shipped takes 0.1 MiB."""

Base = tuple[str, str]
"""Kind and name by which a profile names the one below it."""

_FIGURE, _RECORD, _TUPLE, _LIST, _TABLE = range(5)
_PLAIN = (type(None), bool, int, float, str)
_WRONG = (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, RecursionError)
"""What a damaged or foreign file may end in."""


def usual_folder() -> Path | None:
    """Where a command keeps profiles; None where the user wants none or has no home."""
    if said := os.environ.get(SWITCH, "").strip():
        return None if said == "off" else Path(said)
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    return home / "foreshard" if home.is_absolute() else None


class ProfileCache:
    """Profiles by their files.

    Parameters
    ----------
    figure : type
        The class of floats with ``grade``, ``source``, ``date`` and ``spread``.
    find : callable
        Gives the path of a profile by kind and name.
    """

    def __init__(self, figure: type[float], find: Callable[[str, str], Path]) -> None:
        self.folder: Path | None = None
        """None: nothing is kept."""
        self._figure, self._find = figure, find
        self._read = dict[tuple[Any, ...], tuple[dict[str, Any], Any]]()

    def get(self, schema: type, path: Path, kind: str) -> Any | None:
        """The profile as it was kept; None where it was not, or anything has changed."""
        if self.folder is None:
            return None
        asked = self.folder, schema, path, kind
        try:
            if asked in self._read:
                entry, profile = self._read[asked]
                if entry["state"] == self._state_of(entry):
                    return profile
            place = self._place(schema, path, kind)
            if hasattr(os, "getuid") and place.stat().st_uid != os.getuid():
                return None
            raw = place.read_bytes()
            if len(raw) > MOST_BYTES:
                return None
            entry = json.loads(raw)
            if entry["state"] != self._state_of(entry):
                return None
            profile = self._decoder(entry)(entry.pop("profile"))
            self._read[asked] = entry, profile
            return profile
        except _WRONG:
            return None

    def put(
        self,
        schema: type,
        path: Path,
        kind: str,
        files: Iterable[Path],
        bases: Iterable[Base],
        profile: Any,
    ) -> None:
        """Keep a profile that was read from files, whose bases were found by kind and name."""
        if self.folder is None:
            return
        try:
            classes, texts = dict[Any, int](), dict[str, int]()
            body = self._encoded(profile, classes, texts)
            entry: dict[str, Any] = {
                "files": [str(file) for file in files],
                "bases": [[*base, str(self._find(*base))] for base in bases],
                "modules": sorted({kind.__module__ for kind in classes}),
                "classes": [
                    [x.__module__, x.__qualname__, *(item.name for item in fields(x))]
                    for x in classes
                ],
                "texts": list(texts),
                "profile": body,
            }
            entry["state"] = self._state_of(entry)
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_files({self._place(schema, path, kind): json.dumps(entry).encode()})
        except _WRONG:
            return  # what cannot be kept is read anew

    def _place(self, schema: type, path: Path, kind: str) -> Path:
        assert self.folder is not None
        said = "\0".join((schema.__module__, schema.__qualname__, os.path.abspath(path), kind))
        name = hashlib.blake2b(f"{__version__}\0{said}".encode(), digest_size=16).hexdigest()
        return self.folder / f"{name}.json"

    def _state_of(self, entry: Mapping[str, Any]) -> str:
        """Digest of all that a profile hangs on."""
        digest = hashlib.blake2b(digest_size=16)
        for file in entry["files"]:
            digest.update(Path(file).read_bytes())
            digest.update(b"\0")
        for kind, name, place in entry["bases"]:
            if str(self._find(kind, name)) != place:
                raise LookupError(name)
        for name in ("simulator.files", *entry["modules"]):
            if not name.startswith("simulator."):
                raise LookupError(name)
            source = os.stat(import_module(name).__file__ or "")
            digest.update(f"{name} {source.st_mtime_ns} {source.st_size}\n".encode())
        return digest.hexdigest()

    def _encoded(self, value: Any, classes: dict[Any, int], texts: dict[str, int]) -> Any:
        """A value of JSON; what is no number, text or name is a list that begins with its kind."""
        kind: Any = type(value)
        if kind in _PLAIN:
            return value
        inside: list[Any]
        if kind is self._figure:
            source = texts.setdefault(value.source, len(texts))
            return [_FIGURE, float(value), value.grade, source, value.date, value.spread]
        if is_dataclass(kind):
            head = [_RECORD, classes.setdefault(kind, len(classes))]
            inside = [getattr(value, item.name) for item in fields(kind)]
        elif kind is dict:
            head, inside = [_TABLE], [x for item in value.items() for x in item]
        else:
            head, inside = [{tuple: _TUPLE, list: _LIST}[kind]], list(value)
        return head + [self._encoded(item, classes, texts) for item in inside]

    def _decoder(self, entry: dict[str, Any]) -> Callable[[Any], Any]:
        """What makes values of an entry again."""
        figure, texts, put = self._figure, entry["texts"], object.__setattr__
        classes = [_record_class(*row) for row in entry["classes"]]

        def value(node: Any) -> Any:
            if type(node) is not list:
                return node
            kind = node[0]
            if kind == _FIGURE:
                made: Any = float.__new__(figure, node[1])
                made.grade, made.source, made.date, made.spread = node[2], texts[node[3]], *node[4:]
                return made
            if kind == _RECORD:
                record, names = classes[node[1]]
                made = object.__new__(record)
                for name, item in zip(names, node[2:], strict=True):
                    put(made, name, value(item) if type(item) is list else item)
                return made
            items = [value(item) if type(item) is list else item for item in node[1:]]
            if kind == _TABLE:
                return dict(zip(items[::2], items[1::2], strict=True))
            return tuple(items) if kind == _TUPLE else items

        return value


def _record_class(module: str, name: str, *names: str) -> tuple[type, tuple[str, ...]]:
    """A record of this package whose fields are those that were kept."""
    if not module.startswith("simulator."):
        raise LookupError(module)
    import_module(module)
    record: Any = getattr(sys.modules[module], name)
    if not (isinstance(record, type) and is_dataclass(record)):
        raise LookupError(name)
    if tuple(item.name for item in fields(record)) != names:
        raise LookupError(name)
    return record, names
