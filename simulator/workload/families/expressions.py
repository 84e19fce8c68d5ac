"""The expressions that the table of families is written in, over the fields of a config.

An expression holds fields, other words of its row, the number ``i`` of a layer (from 0), numbers,
text, lists, arithmetic, comparisons, ``in``, ``and or not``, ``x if c else y``, ``field[i]`` and
calls of `FUNCTIONS`. Anything else is refused, so that a row computes sizes and does nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import CodeType

_NODES = {
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.List, ast.IfExp, ast.Subscript),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Call),
}


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
