"""The table of families: a row says how the fields of a ``config.json`` become sizes.

``families.csv`` has the columns family, base, words and defaults. Words are ``name=expression``; a
row has those of its base and its own before them. Defaults are what transformers' class gives a
field that a config lacks, as JSON. ``fields.csv`` says what a field may hold; others are sizes.
Kind ``idle``: the name speaks of a size, and no size depends on it.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from simulator.workload.families.expressions import Expression

_NAME = re.compile(r"[A-Za-z_]\w*")

_HERE = Path(__file__).resolve().parent


class Row:
    """A family: its words, those of its bases among them, and the defaults of its class.

    ``also`` among the defaults has other spellings of fields (``attribute_map`` of the class).
    """

    def __init__(
        self,
        bases: tuple[str, ...],
        words: Mapping[str, str],
        defaults: Mapping[str, Any],
    ) -> None:
        self.bases, self.words, self.defaults = bases, words, defaults
        self.also: Mapping[str, str] = defaults.get("also", {})
        self.compiled: dict[str, Expression] = {}

    def expression(self, word: str) -> Expression:
        """Return what a word stands for, compiled."""
        if word not in self.compiled:
            self.compiled[word] = Expression(self.words[word], word)
        return self.compiled[word]

    @cached_property
    def varying(self) -> frozenset[str]:
        """Words that differ from layer to layer: those that name ``i``, or another of them."""
        names = {word: set(_NAME.findall(text)) for word, text in self.words.items()}
        varying, before = {"i"}, 0
        while len(varying) > before:
            before = len(varying)
            for word, used in names.items():
                if used & varying:
                    varying.add(word)
        return frozenset(varying - {"i"})

    def fields(self, word: str) -> list[str]:
        """Fields of the config that a word is made of, in the order of its expression."""
        listed: dict[str, None] = {}
        for name in self.expression(word).names:
            if name in self.words:
                listed |= dict.fromkeys(self.fields(name))
            elif name != "i":
                listed[name.removeprefix(".")] = None
        return list(listed)


@cache
def _rows() -> dict[str, list[str]]:
    with (_HERE / "families.csv").open(newline="", encoding="utf-8") as file:
        return {row[0]: row[1:] for row in list(csv.reader(file))[1:]}


def names() -> list[str]:
    """List the families in alphabetical order."""
    return sorted(_rows())


def has(family: str) -> bool:
    """Say whether there is a row of this family."""
    return family in _rows()


@cache
def row(family: str) -> Row:
    """Look a family up."""
    base, words, defaults = _rows()[family]
    before = row(base) if base else Row((), {}, {})
    pairs = dict([pair.split("=", 1) for pair in words.split("; ") if pair])
    merged = {**before.words, **pairs}
    filled = {**before.defaults, **(json.loads(defaults) if defaults else {})}
    return Row((family, *before.bases), merged, filled)


@cache
def kinds() -> dict[str, str]:
    """What a field may hold, by its name; those not listed are sizes."""
    with (_HERE / "fields.csv").open(newline="", encoding="utf-8") as file:
        rows = [(line["kind"], line["fields"].split()) for line in csv.DictReader(file)]
    return {name: kind for kind, listed in rows for name in listed}


@cache
def every_name() -> frozenset[str]:
    """Every name that some row uses, fields of configs among them."""
    return frozenset(_NAME.findall((_HERE / "families.csv").read_text(encoding="utf-8")))
