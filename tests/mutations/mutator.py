"""Inputs that are nearly right: bytes and structures of a sound file changed, lost, repeated.

Everything is drawn from a ``random.Random``, a seeded one or one of hypothesis, so that the same
seed makes the same inputs.
"""

from __future__ import annotations

import copy
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

__all__ = ["mutated", "to_toml"]

PIECES = (
    b"", b"0", b"-", b"-1", b"1e999", b"1e308", b"5e-324", b"nan", b"inf", b"Infinity", b"null",
    b"true", b"9" * 25, b"9" * 400, b"9" * 5_000, b"0.5", b"2147483648", b"9223372036854775808",
    b",", b".", b";", b":", b"=", b'"', b"'", b'"""', b"[", b"]", b"{", b"}", b"[" * 200,
    b"{" * 200, b"a." * 200, b"\n", b"\r", b"\r\n", b"\t", b"\x00", b"\x1b[31m", b"\xff",
    b"\xc3", b"\xe2\x80\xae", b"\xf0\x9f\x98\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"#", b"%s%n",
    b"\\", b"../", b"/dev/zero", b" " * 300, b"x" * 300, b"ProfilerStep#", b"base = ",
    b"| ", b":::MLLOG ",
)  # fmt: skip
"""What is put in a place: numbers no machine holds, marks of every format, bytes of no text."""

VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 8, 64, 0.5, -0.0, 1e-9, 1e9, 1e15, 1e300, 5e-324),
    *(2**31, 2**31 - 1, 2**53 + 1, 2**63, 10**400, -(10**30)),
    *(float("nan"), float("inf"), float("-inf"), True, False, None),
    *("", "x", "x" * 300, "8", "\x1b[2J", "\u202eb", "../../etc", "/dev/zero", "dgx-h100", "own"),
    *([], {}, [[]], [1, "x"], {"value": 1.0}, {"value": -1, "grade": "x"}, [None] * 50),
    {"value": 1e300, "spread": 1e300, "grade": "measured", "source": []},
)

LARGE = 2**18
"""Bytes to which a grown input is repeated at least."""


def mutated(raw: bytes, kind: str, chance: random.Random, *, grown: bool = False) -> bytes:
    """Change a sound file in one to six places, or grow it to some hundred kilobytes and change it.

    Parameters
    ----------
    raw : bytes
        The file.
    kind : str
        "toml", "json", "csv" or "text": what its structure is.
    chance : random.Random
        What is drawn from.
    grown : bool
        Repeat a piece of it until it is `LARGE`.
    """
    if grown:
        raw = (_grown_bytes if chance.random() < 0.3 else GROWN[kind])(raw, chance)
        if chance.random() < 0.5:
            return raw
    way = chance.random()
    if way < 0.7:
        with suppress(
            ValueError, ArithmeticError, RecursionError
        ):  # grown or nested beyond what is parsed
            raw = STRUCTURES[kind](raw, chance)
    if way > 0.5:
        for _ in range(chance.randint(1, 6)):
            raw = _bytes(raw, chance)
    return raw


def _bytes(raw: bytes, chance: random.Random) -> bytes:
    begin = chance.randint(0, len(raw))
    end = min(len(raw), begin + chance.choice((0, 1, 2, 5, 20, 80)))
    way = chance.randrange(6)
    if way == 0 and raw:  # cut off
        return raw[:begin]
    if way == 1:  # one bit
        changed = bytearray(raw)
        if begin < len(changed):
            changed[begin] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if way == 2:  # a piece again, somewhere else
        there = chance.randint(0, len(raw))
        return raw[:there] + raw[begin:end] + raw[there:]
    return raw[:begin] + chance.choice(PIECES) + raw[end:]


# --- growing -----------------------------------------------------------------------------------


def _grown_bytes(raw: bytes, chance: random.Random) -> bytes:
    """A piece of the file again and again."""
    begin = chance.randint(0, len(raw))
    end = min(len(raw), begin + chance.choice((1, 3, 40, 400, 10_000)))
    piece = raw[begin:end] or b"x"
    return raw[:begin] + piece * (LARGE // len(piece) + 1) + raw[end:]


def _grown_lines(raw: bytes, chance: random.Random) -> bytes:
    """Some lines again and again."""
    lines = raw.splitlines(keepends=True)
    begin = chance.randrange(len(lines))
    piece = lines[begin : begin + chance.choice((1, 2, len(lines)))]
    size = sum(map(len, piece))
    return b"".join([*lines[:begin], *piece * (LARGE // size + 1), *lines[begin:]])


def _grown_json(raw: bytes, chance: random.Random) -> bytes:
    return json.dumps(_grown_tree(json.loads(raw), chance)).encode()


def _grown_toml(raw: bytes, chance: random.Random) -> bytes:
    return to_toml(_grown_tree(tomllib.loads(raw.decode()), chance)).encode()


def _grown_tree(tree: Any, chance: random.Random) -> Any:
    """A list of a document with many items, or a table with many fields."""
    tree = {"": tree}
    holder, key = chance.choice([place for place in _places(tree) if place[0] is not tree] or [])
    value = holder[key]
    item = chance.choice((value, 1, "x" * 30, [], {}, [1, 2], {"a": 1}, 0.123456789))
    count = LARGE // (len(json.dumps(item)) + 2) + 1
    if isinstance(holder, list):
        holder.extend([item] * count)
    elif chance.random() < 0.5:
        holder[key] = [item] * count
    else:
        holder.update((f"{key}{i}", item) for i in range(count // 4))
    return tree[""]


GROWN: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "json": _grown_json,
    "toml": _grown_toml,
    "csv": _grown_lines,
    "text": _grown_lines,
}

# --- structures --------------------------------------------------------------------------------


def _json(raw: bytes, chance: random.Random) -> bytes:
    tree = _tree(json.loads(raw), chance)
    return json.dumps(tree, indent=chance.choice((None, 1))).encode()


def _toml(raw: bytes, chance: random.Random) -> bytes:
    tree = _tree(tomllib.loads(raw.decode()), chance)
    return to_toml(tree).encode() if isinstance(tree, dict) else raw


def _tree(tree: Any, chance: random.Random) -> Any:
    """Replace, drop, rename, move or repeat one to three nodes of a document."""
    tree = {"": copy.deepcopy(tree)}
    for _ in range(chance.randint(1, 3)):
        places = list(_places(tree))
        holder, key = chance.choice(places)
        way = chance.randrange(8)
        if way == 0 and holder is not tree:
            del holder[key]
        elif way == 1:
            other, name = chance.choice(places)
            holder[key] = copy.deepcopy(other[name])
        elif way == 2 and isinstance(holder, dict) and holder is not tree:
            other, name = chance.choice(places)
            holder[str(name)] = holder.pop(key)
        elif way == 3 and isinstance(holder, list):
            holder.extend([copy.deepcopy(holder[key])] * chance.choice((1, 3, 100)))
        elif way == 4 and isinstance(holder[key], (int, float)):
            holder[key] = _scaled(holder[key], chance)
        elif way == 5:
            for _ in range(chance.choice((1, 5, 70))):
                holder[key] = chance.choice(([holder[key]], {"x": holder[key]}))
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    return tree[""]


def _scaled(number: float, chance: random.Random) -> float:
    factor = chance.choice((-1, 0, 2, 3, 7, 0.5, 1000, 1e-6, 10**12))
    scaled = number * factor
    return int(scaled) if isinstance(number, int) and abs(scaled) < 1e300 else scaled


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document: its holder and key, without recursion."""
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])


def _csv(raw: bytes, chance: random.Random) -> bytes:
    """Cells replaced, columns and rows dropped, repeated, swapped; quotes are left as they are."""
    rows = [line.split(b",") for line in raw.split(b"\n")]
    for _ in range(chance.randint(1, 4)):
        row = chance.randrange(len(rows))
        cell = chance.randrange(len(rows[row])) if rows[row] else 0
        way = chance.randrange(7) if rows[row] else 1
        if way == 0 and len(rows) > 1:
            del rows[row]
        elif way == 1:
            rows.insert(row, list(chance.choice(rows)))
        elif way == 2:  # a whole column
            for line in rows:
                del line[cell : cell + 1]
        elif way == 3:
            rows[row][cell] = chance.choice(rows[chance.randrange(len(rows))] or [b""])
        elif way == 4:
            rows[row].insert(cell, chance.choice(PIECES))
        else:
            rows[row][cell] = chance.choice((*PIECES, *(str(x).encode() for x in _numbers())))
    return b"\n".join(b",".join(row) for row in rows)


def _numbers() -> Iterator[float]:
    return (x for x in VALUES if isinstance(x, (int, float)) and abs(x) < 1e308)


def _text(raw: bytes, chance: random.Random) -> bytes:
    """Lines dropped, repeated, moved; numbers of a line replaced."""
    lines = raw.split(b"\n")
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(lines))
        way = chance.randrange(5)
        if way == 0 and len(lines) > 1:
            del lines[at]
        elif way == 1:
            lines.insert(at, chance.choice(lines))
        elif way == 2:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            words = lines[at].split(b" ")
            words[chance.randrange(len(words))] = chance.choice(PIECES)
            lines[at] = b" ".join(words)
    return b"\n".join(lines)


STRUCTURES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "json": _json,
    "toml": _toml,
    "csv": _csv,
    "text": _text,
}


def to_toml(tree: dict[str, Any]) -> str:
    """Write a document as TOML, every value inline; what TOML lacks (null) becomes a word."""
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict) and value and "value" not in value:
            lines.append(f"[{_key(key)}]")
            lines += [f"{_key(name)} = {_value(inner)}" for name, inner in value.items()]
        else:
            lines.insert(0, f"{_key(key)} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _key(key: Any) -> str:
    return json.dumps(str(key), ensure_ascii=True)


_LONGEST = 10**4000


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if abs(value) < _LONGEST else "0"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps("null" if value is None else str(value), ensure_ascii=True)
