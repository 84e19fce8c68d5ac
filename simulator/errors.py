"""One family of errors, written for the person who typed the input."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_LONGEST_VALUE = 120
"""Characters of a value that a message quotes."""

_LONGEST_PROBLEM = 4_000
"""Characters of a message; lists of what is known are the longest pieces."""


class ForeshardError(ValueError):
    """Base of every error that a user's input can cause."""


class InputError(ForeshardError):
    """One or more things wrong with the input; the command exits with 2.

    Parameters
    ----------
    problems : iterable of str
        Every problem found, each as ``file: field: rule, got value (did you mean ...?)``.
    """

    def __init__(self, problems: Iterable[str] | str) -> None:
        lines = (problems,) if isinstance(problems, str) else problems
        self.problems = tuple(brief_text(line, _LONGEST_PROBLEM) for line in lines)
        super().__init__("\n".join(self.problems))


class InfeasibleError(ForeshardError):
    """The input is sound but no layout satisfies it; the command exits with 1.

    `can_run` says whether one could run on more memory, so that what is pinned is not wrong.
    """

    def __init__(self, message: str, *, can_run: bool = False) -> None:
        super().__init__(message)
        self.can_run = can_run


def first_of(problems: Sequence[str], where: str, most: int = 20) -> list[str]:
    """Return the first problems of a file and, where there are others, how many.

    Examples
    --------
    >>> first_of(["run.csv: line 2: x", "run.csv: line 3: y"], "run.csv", most=1)
    ['run.csv: line 2: x', 'run.csv: and 1 more problems']
    """
    more = len(problems) - most
    return [*problems[:most], *([f"{where}: and {more} more problems"] if more > 0 else [])]


def brief_text(text: str, most: int = _LONGEST_VALUE) -> str:
    """Cut a text that is longer than `most` characters, and say how long it was.

    Examples
    --------
    >>> brief_text("x" * 1_000, most=3)
    'xxx... (1,000 characters)'
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def brief(value: object) -> str:
    """Return what a message quotes of a value: as Python writes it, as far as that goes.

    Examples
    --------
    >>> brief(8), brief("tp"), brief(2**20_000)
    ('8', "'tp'", 'an integer of 20001 bits')
    """
    try:
        return brief_text(repr(value))
    except ValueError:  # Python writes no whole number of over 4,300 digits
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        return type(value).__name__


_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys: controls, and those that turn the direction of the text."""


def visible(text: str) -> str:
    """Return a text whose every character shows: what a terminal would obey is written out.

    Examples
    --------
    >>> visible(chr(27) + "[2J") == repr(chr(27))[1:-1] + "[2J"
    True
    """
    return _HIDDEN.sub(lambda match: repr(match.group())[1:-1], text)


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known word, or nothing if none is near."""
    if len(wrong) > _LONGEST_VALUE:
        return ""
    words = sorted({str(word) for word in known})
    near = difflib.get_close_matches(str(wrong).lower(), words, n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return what :func:`nearest` returns or, if no word is near, the list of known words."""
    words = sorted({str(word) for word in known})
    return nearest(wrong, words) or (f" (known: {', '.join(words)})" if words else "")


def problem(where: str, field: str, rule: str, got: object, known: Iterable[str] = ()) -> str:
    """Word one problem the way every message of this program is worded.

    Examples
    --------
    >>> problem("run.toml", "layout.tp", "must divide 64 attention heads", 7)
    'run.toml: layout.tp: must divide 64 attention heads, got 7'
    """
    shown = brief(got)
    hint = did_you_mean(got if isinstance(got, str) else shown, known) if known else ""
    place = f"{where}: {field}" if field else where
    return f"{place}: {rule}, got {shown}{hint}"
