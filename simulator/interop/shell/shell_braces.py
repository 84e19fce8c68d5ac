"""Braces of the shell: ``{a,b}`` and ``{1..4}`` as the words that bash makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

_BRACE = re.compile(r"(?<!\$)\{[^\s}]")
_NUMBERS = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?")
_LETTERS = re.compile(
    r"([a-z])\.\.([a-z])(?:\.\.(-?\d{1,3}))?|([A-Z])\.\.([A-Z])(?:\.\.(-?\d{1,3}))?"
)
_DOUBLE = r"\"[^\"\\]*(?:\\.[^\"\\]*)*\"?|\\."
_KEPT = re.compile(r"'[^']*'?|\\.|`[^`]*`?", re.S)
"""What quotes keep whole."""
_OF_QUOTES = re.compile(r"\\.|\$\{|\"", re.S)
_WITHIN = re.compile(rf"'[^']*'?|{_DOUBLE}|\$\{{|\}}", re.S)
_WITHIN_QUOTES = re.compile(rf"{_DOUBLE}|\$\{{|\}}", re.S)
_LONGEST, _MOST = 4_000, 100
"""Characters and braces of a word whose braces are looked into; it stays as it is beyond."""


def has_braces(text: str) -> bool:
    """Whether any may stand in a text."""
    return _BRACE.search(text) is not None


def closing(text: str, at: int, opens: str, closes: str) -> int:
    """Place behind the bracket that closes the one at `at`."""
    depth = 0
    for match in re.compile(f"[{re.escape(opens + closes)}]").finditer(text, at):
        depth += 1 if match[0] == opens else -1
        if depth == 0:
            return match.end()
    return len(text)


def expansion_end(text: str, at: int, *, quoted: bool = False) -> int:
    """Place behind the ``${...}`` that begins at `at`; within double quotes, others are letters."""
    depth = 0
    for match in (_WITHIN_QUOTES if quoted else _WITHIN).finditer(text, at):
        depth += (match[0] == "${") - (match[0] == "}")
        if depth == 0:
            return match.end()
    return len(text)


def _quotes_end(text: str, at: int) -> int:
    """Place behind the double quotes that begin at `at`."""
    at += 1
    while (match := _OF_QUOTES.search(text, at)) is not None and match[0] != '"':
        opens = match[0] == "${"
        at = expansion_end(text, match.start(), quoted=True) if opens else match.end()
    return len(text) if match is None else match.end()


def _behind(text: str, at: int) -> int:
    """Place behind the sign at `at`, or behind what quotes or a dollar keep whole there."""
    if (kept := _KEPT.match(text, at)) is not None:
        return kept.end()
    if text[at] == '"':
        return _quotes_end(text, at)
    if text.startswith("${", at):
        return expansion_end(text, at)
    return closing(text, at + 1, "(", ")") if text.startswith("$(", at) else at + 1


def word_end(text: str, at: int, ends: str) -> int:
    """Place behind the word that begins at `at`, one of `ends` or the end of the text."""
    while at < len(text) and text[at] not in ends:
        at = _behind(text, at)
    return at


def without_braces(word: str) -> Iterator[str]:
    """Words that a word with braces stands for, quotes and variables as written.

    >>> [*without_braces("--x={a,b}{1..2}")]
    ['--x=a1', '--x=a2', '--x=b1', '--x=b2']
    >>> [*without_braces("{a}"), *without_braces("'{a,b}'"), *without_braces("{03..1}")]
    ['{a}', "'{a,b}'", '03', '02', '01']
    """
    few = len(word) <= _LONGEST and word.count("{") <= _MOST
    at = 0 if few else len(word)
    while at < len(word):
        if word[at] == "{" and (alternatives := _taken(word, at)) is not None:
            parts, end = alternatives
            yield from (
                f"{word[:at]}{part}{rest}" for part in parts for rest in without_braces(word[end:])
            )
            return
        at = _behind(word, at)
    yield word


def _taken(word: str, begin: int) -> tuple[Iterable[str], int] | None:
    """What the brace at `begin` stands for, and the place behind it; None: for itself."""
    depth, at, commas = 0, begin, list[int]()
    while at < len(word):
        depth += (word[at] == "{") - (word[at] == "}")
        if depth == 0:
            break
        if word[at] == "," and depth == 1:
            commas.append(at)
        at = _behind(word, at)
    else:
        return None
    if not commas:
        numbers = _sequence(word[begin + 1 : at])
        return None if numbers is None else (numbers, at + 1)
    edges = [begin, *commas, at]
    parts = (word[a + 1 : b] for a, b in pairwise(edges))
    return (inner for part in parts for inner in without_braces(part)), at + 1


def _sequence(inside: str) -> Iterable[str] | None:
    """``1..4``, ``08..10..2``, ``a..e``; None for anything else."""
    if (match := _NUMBERS.fullmatch(inside)) is not None:
        first, last, step = match.groups()
        padded = any(re.match("-?0[0-9]", end) for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        return (f"{n:0{width}d}" for n in _steps(int(first), int(last), step))
    if (match := _LETTERS.fullmatch(inside)) is not None:
        first, last, step = match.groups()[:3] if match[1] else match.groups()[3:]
        return (chr(n) for n in _steps(ord(first), ord(last), step))
    return None


def _steps(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1
    return range(first, last + 1, size) if first <= last else range(first, last - 1, -size)
