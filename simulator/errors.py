"""One family of errors, written for the person who typed the input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "ForeshardError",
    "InfeasibleError",
    "InputError",
    "did_you_mean",
    "first_of",
    "nearest",
    "problem",
]


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
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class InfeasibleError(ForeshardError):
    """The input is sound but no layout satisfies it; the command exits with 1."""


def first_of(problems: Sequence[str], where: str, most: int = 20) -> list[str]:
    """Return the first problems of a file and, where there are others, how many.

    Examples
    --------
    >>> first_of(["run.csv: line 2: x", "run.csv: line 3: y"], "run.csv", most=1)
    ['run.csv: line 2: x', 'run.csv: and 1 more problems']
    """
    more = len(problems) - most
    return [*problems[:most], *([f"{where}: and {more} more problems"] if more > 0 else [])]


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known word, or nothing if none is near."""
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
    hint = did_you_mean(str(got), known) if known else ""
    place = f"{where}: {field}" if field else where
    return f"{place}: {rule}, got {got!r}{hint}"
