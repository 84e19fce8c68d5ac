"""The table of families: a row says how the fields of a ``config.json`` become sizes.

``families.csv`` has the columns family, base, words and defaults. Words are ``name=expression``; a
row has those of its base and its own before them. Defaults are what transformers' class gives a
field that a config lacks, as JSON. ``fields.csv`` says what a field may hold; others are sizes.
Kind ``idle``: the name speaks of a size, and no size depends on it.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import CodeType
from typing import Any

_NAME = re.compile(r"[A-Za-z_]\w*")

_HERE = Path(__file__).resolve().parent

_NODES = {
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.List, ast.IfExp, ast.Subscript),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Call),
}


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


def up(number: float, step: int) -> int:
    """Round up to a multiple.

    Examples
    --------
    >>> up(10, 4), up(12, 4)
    (12, 12)
    """
    return -(-int(number) // step) * step


def primes(start: int, skipped: int, count: int) -> int:
    """Sum `count` primes at or above `start`, after the first `skipped` of them.

    Examples
    --------
    >>> primes(10, 1, 2)  # 13 and 17
    30
    """
    total, number, left = 0, start, skipped + count
    while left:
        if all(number % factor for factor in range(2, int(number**0.5) + 1)):
            total += number if left <= count else 0
            left -= 1
        number += 1
    return total


def _item(value: object, at: int) -> object:
    return value[at] if isinstance(value, (list, tuple)) else value


FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "at": _item,
    "get": lambda table, field, missing: (table or {}).get(field, missing),
    "count": lambda items, item: list(items).count(item),
    "index": lambda items, item: list(items).index(item),
    "int": int,
    "len": len,
    "max": max,
    "min": min,
    "primes": primes,
    "round": round,
    "sum": sum,
    "up": up,
}
"""What an expression may call; ``at`` is a list's item, or the value that is no list."""


class Expression:
    """One expression, compiled after a look at every node of it.

    Parameters
    ----------
    text : str
        What is written in the row.
    word : str
        The word that it defines; in it the same name means the field of the config.

    Raises
    ------
    ValueError
        If it holds anything but what the head of this module lists.
    """

    def __init__(self, text: str, word: str) -> None:
        tree = ast.parse(text, mode="eval")
        names: dict[str, int] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = f".{word}" if node.id == word else node.id
                if node.id not in FUNCTIONS:
                    names[node.id] = node.col_offset
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") not in FUNCTIONS
            if called or type(node) not in _NODES:
                raise ValueError(f"{word}: an expression may not hold {ast.dump(node)[:60]}")
        self.names = tuple(sorted(names, key=names.__getitem__))
        self.code: CodeType = compile(tree, "families.csv", "eval")
