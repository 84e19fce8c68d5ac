"""Settings of a framework as a table: each row states a field, and is written and read alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from simulator.interop.dialects.settings import Settings
from simulator.quoting import shell_word
from simulator.records import dataclass
from simulator.workload.recipe import Recipe

_IDLE = (None, 0, 1, "none", False)
"""Values of a field with which what hangs on it says nothing."""


@dataclass(frozen=True, slots=True)
class Word:
    """A setting: a whole number, a number, a word for each value, or a switch for one value."""

    field: str
    """Of a scenario: ``layout.tp``."""
    keys: str
    """Its names, the one that is written first; underscores between words."""
    words: Mapping[Any, Any] | None = None
    """Ours -> theirs; a mapping for theirs is several settings. None: a whole number."""
    also: Mapping[str, Any] | None = None
    """Theirs -> ours: words that are only read."""
    on: Any = None
    """A switch: the value that the field has where it is on."""
    needs: str = ""
    """The field that must be above 1, or other than none, for this one to mean something."""
    real: bool = False
    """A number that may have a fraction."""


def field_values(row: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Values of a layout and a recipe by the names of a scenario."""
    training = {f"training.{f.name}": getattr(recipe, f.name) for f in fields(recipe)}
    return {f"layout.{name}": value for name, value in row.items()} | training


def write_words(table: Iterable[Word], values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by key: true for a switch, else the number or word."""
    written: dict[str, Any] = {}
    for word in table:
        value, key = values[word.field], word.keys.split()[0]
        if value is None or (word.needs and values[word.needs] in _IDLE):
            continue
        if word.on is not None:
            written |= {key: True} if value == word.on else {}
        elif word.words is None:
            written[key] = f"{float(value):g}" if word.real else value
        elif isinstance(said := word.words.get(value), Mapping):
            written |= said
        elif said is not None:
            written[key] = said
    return written


def read_words(table: Iterable[Word], settings: Settings) -> None:
    """State the fields of all rows whose setting is there."""
    for word in table:
        keys = word.keys.split()
        idle = word.needs not in ("", word.field) and settings.value_of(word.needs) in _IDLE
        if idle:
            settings.take(*keys)
        elif word.on is not None:
            if settings.flag(*keys):
                settings.say(word.field, word.on, settings.at(*keys))
        elif word.words is not None:
            theirs = {
                ours: said[keys[0]] if isinstance(said, Mapping) else said
                for ours, said in word.words.items()
            }
            settings.word(word.field, {**read_as(theirs), **(word.also or {})}, *keys)
        elif word.real:
            settings.real(word.field, *keys)
        else:
            settings.whole(word.field, *keys)


def read_as(words: Mapping[Any, str]) -> dict[str, Any]:
    """Ours by theirs in small letters, of words that are written; the first of several holds."""
    return {said.lower(): ours for ours, said in reversed(list(words.items()))}


def as_flags(groups: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Settings as flags: ``a_b`` of 8 is ``--a-b 8``; lists are words behind a flag.

    >>> as_flags([{"fp8_format": "e4m3", "bf16": True}, {"moe_layer_freq": "([0]*3+[1]*58)"}])
    [['--fp8-format e4m3', '--bf16'], ["--moe-layer-freq '([0]*3+[1]*58)'"]]
    """
    return [[_flag(key, value) for key, value in group.items()] for group in groups if group]


def _flag(key: str, value: Any) -> str:
    name = f"--{key.replace('_', '-')}"
    if value is True:
        return name
    if isinstance(value, (list, tuple)):
        return f"{name} {' '.join(map(shell_word, value))}"
    return f"{name} {shell_word(value)}"
