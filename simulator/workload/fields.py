"""Typed reads from a foreign config, with every problem of the file reported at once.

A published ``config.json`` holds dozens of keys that no size depends on, so unlike
:func:`simulator.files.build` unknown keys pass, and a missing key may have a default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simulator.errors import InputError, problem

LARGEST = 2**31
"""Largest size that is taken for meant."""
_MOST_LAYERS = 10_000
_MISSING = object()


class _Shown(str):
    """Text that a message shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _brief(value: object) -> object:
    """Shorten what a message quotes: a container by its type, long text and long integers cut."""
    if isinstance(value, str):
        return value if len(value) <= 60 else value[:57] + "..."
    if isinstance(value, int) and abs(value) > 2**64:
        return _Shown(f"an integer of {value.bit_length()} bits")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _Shown(type(value).__name__)


def _are(value: object, kind: type) -> bool:
    return isinstance(value, (list, tuple)) and all(type(item) is kind for item in value)


REQUIRED = frozenset(
    (
        *("hidden_size", "n_embd", "d_model", "intermediate_size", "vocab_size"),
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        *("num_attention_heads", "n_head", "n_heads"),
    )
)
"""Sizes that make a model what it is. transformers leaves out of a nested config what equals the
default of its class, and writes all of one that is not nested: there these have no default."""

KINDS: Mapping[str, tuple[Callable[[Any], bool], str, Any]] = {
    "size": (
        lambda x: type(x) is int and 0 < x <= LARGEST,
        f"a whole number from 1 to {LARGEST}",
        1,
    ),
    "count": (
        lambda x: type(x) is int and 0 <= x <= LARGEST,
        f"a whole number from 0 to {LARGEST}",
        0,
    ),
    "layers": (
        lambda x: type(x) is int and 0 < x <= _MOST_LAYERS,
        f"a whole number from 1 to {_MOST_LAYERS}",
        1,
    ),
    "flag": (lambda x: isinstance(x, bool), "true or false", False),
    "probability": (
        lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x <= 1,
        "a probability from 0 to 1",
        0,
    ),
    "number": (
        lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and 0 < x < LARGEST,
        "a number above 0",
        1,
    ),
    "word": (lambda x: isinstance(x, str), "a word", ""),
    "words": (lambda x: _are(x, str), "a list of words", []),
    "layer words": (lambda x: _are(x, str), "a list of words", []),
    "numbers": (lambda x: _are(x, int), "a list of whole numbers", []),
    "layer numbers": (lambda x: _are(x, int), "a list of whole numbers", []),
    "table": (lambda x: isinstance(x, Mapping), "a table of fields", {}),
    "any": (lambda x: True, "", 1),
}
"""What a field may hold, how a message says so, and what stands in for what it may not."""

_BY_LAYER = {
    "layer words": "must name the type of each of {} layers",
    "layer numbers": "must have a number for each of {} layers",
}


class Fields:
    """Typed reads from one config; a problem is noted and a harmless value handed back.

    Parameters
    ----------
    config : mapping
        The document to read.
    name : str
        Name of the model that it describes.
    where, prefix : str
        What messages call the document, and what they put before each field.
    """

    def __init__(self, config: Mapping[str, Any], *, name: str, where: str, prefix: str) -> None:
        self.config, self.name, self.where, self.prefix = config, name, where, prefix
        self.family = ""
        self.depth = 0
        self.filled: dict[str, Any] = {}
        self._below: list[Fields] = []
        self.known: set[str] = set()
        self._problems: dict[str, tuple[str, object]] = {}

    def size(
        self,
        field: str,
        absent: int | None = None,
        null: int | None = None,
        *,
        least: int = 1,
        most: int = LARGEST,
    ) -> int:
        """Read an integer; `absent` stands in for a missing key, `null` for a null."""
        self.known.add(field)
        value = self.config.get(field, _MISSING)
        if value is _MISSING or value is None:
            default = absent if value is _MISSING or null is None else null
            if default is not None:
                return default
        elif isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return int(value)
        return self._note(field, f"must be a whole number from {least} to {most}", value, least)

    def layers(self, field: str = "num_hidden_layers") -> int:
        """Read the number of layers, which is bounded more tightly than a size."""
        return self.size(field, most=_MOST_LAYERS)

    def inner(self, key: str, family: str) -> Fields:
        """Return a table of fields as a config of its own; ``.`` is this one."""
        config = self.config if key == "." else self.table(key)
        prefix = self.prefix if key == "." else f"{self.prefix}{key}."
        below = Fields(config, name=self.name, where=self.where, prefix=prefix)
        below.family = family
        self._below.append(below)
        return below

    def value(self, field: str, default: Any, kind: str = "size") -> Any:
        """Read a field of a `kind` of `KINDS`; null stays null, except of what is true or false.

        A list of an item for each layer is `depth` long, once that is known.
        """
        self.known.add(field)
        value = self.config.get(field, default)
        if value is None:
            return default if kind == "flag" else None
        holds, rule, harmless = KINDS[kind]
        if not holds(value):
            self._note(field, f"must be {rule}", value)
            return harmless
        if kind in _BY_LAYER and value and self.depth and len(value) != self.depth:
            rule = _BY_LAYER[kind].format(f"num_hidden_layers ({self.depth})")
            self.require(False, field, rule, len(value), "num_hidden_layers")
            return []
        return value

    def blame(self, fields: Iterable[str]) -> None:
        """Note that some fields give no size: the first that is missing, or all together."""
        listed = list(fields)
        if self._problems.keys() & set(listed):
            return
        absent = [field for field in listed if self.config.get(field) is None]
        absent.sort(key=REQUIRED.__contains__, reverse=True)
        if absent:
            value = self.config.get(absent[0], _MISSING)
            self._note(absent[0], f"must be {KINDS['size'][1]}", value)
        elif listed:
            beside = f" beside {', '.join(listed[1:4])}" if listed[1:] else ""
            value = self.config[listed[0]]
            self._note(listed[0], f"must give a size{beside}", value)

    def per_head(self, width: str, heads: str, unless: str = "") -> int:
        """Split the field `width` evenly over the field `heads`."""
        wide, count = self.size(width), self.size(heads)
        rule = f"must be a multiple of {heads} ({count}){unless}"
        self.require(wide % count == 0, width, rule, wide, heads)
        return max(1, wide // count)

    def flag(self, field: str, default: bool) -> bool:
        """Read true or false; missing and null mean `default`."""
        self.known.add(field)
        value = self.config.get(field)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._note(field, "must be true or false", value)
        return default

    def drops(self, field: str, default: float) -> bool:
        """Read a dropout probability and say whether it is above zero; null means zero."""
        self.known.add(field)
        value = self.config.get(field, default)
        value = 0.0 if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            self._note(field, "must be a probability from 0 to 1", value)
            return False
        return value > 0

    def number(self, field: str, default: float, null: float | None = None) -> float:
        """Read a number above zero; `default` stands in for a missing key, `null` for a null."""
        self.known.add(field)
        value = self.config.get(field, default)
        if value is None and null is not None:
            return null
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        if fits and 0 < value < LARGEST:
            return float(value)
        return float(self._note(field, "must be a number above 0", value))

    def word(self, field: str, default: str) -> str:
        """Read a word; missing and null mean `default`."""
        self.known.add(field)
        value = self.config.get(field)
        if value is None or isinstance(value, str):
            return default if value is None else value
        self._note(field, "must be a word", value)
        return default

    def ending(self, field: str, known: tuple[str, ...]) -> str:
        """Read the ending, one of `known`, of a list's only word; no list means the first one.

        ``ForRewardModel`` and its like have a head of their own: no ``Model`` without one.
        """
        words = self.items(field, str)
        if not words:
            return known[0]
        for ending in sorted(known, key=len, reverse=True):
            if words[0].endswith(ending) and not (ending == "Model" and "For" in words[0]):
                return ending
        self._note(field, f"must end in {' or '.join(known)}", words[0])
        return known[0]

    def table(self, field: str) -> Mapping[str, Any]:
        """Read a table of fields; missing and null mean an empty one."""
        self.known.add(field)
        value = self.config.get(field)
        if value is not None and not isinstance(value, Mapping):
            self._note(field, "must be a table of fields", value)
        return value if isinstance(value, Mapping) else {}

    def sizes(self, field: str, default: tuple[int, ...]) -> list[int]:
        """Read a list of sizes above zero; missing, null and empty mean `default`."""
        values = self.items(field, int) or list(default)
        fits = len(values) <= 16 and all(0 < value <= _MOST_LAYERS for value in values)
        self.require(fits, field, f"must be at most 16 numbers from 1 to {_MOST_LAYERS}", values[0])
        return values if fits else list(default)

    def items(self, field: str, kind: type) -> list[Any]:
        """Read a list whose items are all of one type; missing and null mean an empty list."""
        self.known.add(field)
        value = self.config.get(field)
        if value is None:
            return []
        if isinstance(value, (list, tuple)) and all(type(item) is kind for item in value):
            return list(value)
        self._note(field, f"must be a list of {'whole numbers' if kind is int else 'words'}", value)
        return []

    def require(self, holds: bool, field: str, rule: str, got: int, *others: str) -> None:
        """Note that `field` breaks `rule`, unless it or one of `others` is wrong already."""
        if holds or not self._problems.keys().isdisjoint((field, *others)):
            return
        default = "" if self.config.get(field) is not None else " (field missing, default taken)"
        self._note(field, rule + default, got)

    def refuse(self, field: str, why: str) -> None:
        """Note a switch, of a table inside behind a full stop, that must be off because `why`."""
        if "." not in field:
            on = self.flag(field, False)
        else:
            table, _, name = field.partition(".")
            on = bool(self.table(table).get(name))
        if on:
            self._note(field, f"must be false ({why})", True)

    def _note(self, field: str, rule: str, got: object, value: int = 1) -> int:
        self._problems.setdefault(field, (rule, got))
        return max(1, value)

    def finish(self) -> None:
        """Raise every noted problem at once."""
        if problems := self._lines():
            raise InputError(problems)

    def _lines(self) -> list[str]:
        """Word every problem, those of tables inside too."""
        below = [line for fields in self._below for line in fields._lines()]
        return [self._line(field, *noted) for field, noted in self._problems.items()] + below

    def _line(self, field: str, rule: str, got: object) -> str:
        if got is not _MISSING:
            return problem(self.where, self.prefix + field, rule, _brief(got))
        missing = "required field is missing"
        rest = [key for key in self.config if isinstance(key, str) and key not in self.known]
        near = difflib.get_close_matches(field, rest, n=1, cutoff=0.8)
        if near:
            return problem(self.where, self.prefix + field, missing, _brief(near[0]), [field])
        return f"{self.where}: {self.prefix}{field}: {missing}"
