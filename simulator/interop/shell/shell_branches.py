"""Which branches of a script run, as far as its own variables decide it; first turns of loops.

A test of words that are all known is decided; what a variable of the surroundings decides is read
as if it were taken, and the script says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import field
from fnmatch import fnmatchcase

from simulator.records import dataclass

KEYWORDS = {
    *("if", "then", "else", "elif", "fi", "case", "esac"),
    *("for", "while", "until", "do", "done", "function", "!"),
}
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt,
    "-ge": operator.ge, "-lt": operator.lt, "-le": operator.le,
}  # fmt: skip
_TESTS = ("[", "[[", "test")
_LONGEST = 200
"""Characters of a word that is compared."""


@dataclass
class _Fork:
    """An ``if`` or a ``case`` that is being read."""

    value: str | None = None
    """Word that a case compares; None for an if."""
    asking: bool = True
    """Its condition or pattern is being read, not a branch of it."""
    tests: list[list[str]] = field(default_factory=list)
    negated: bool = False
    taken: bool | None = False
    """Whether a branch before this one runs; None: perhaps."""
    now: bool | None = None
    """Whether this branch runs."""


@dataclass
class Branches:
    """Forks and loops around the place that is being read."""

    forks: list[_Fork] = field(default_factory=list)
    skipped: int = 0
    """Forks around this place whose branch does not run."""
    undecided: bool = False
    """Whether a branch was read that may not run."""
    loops: list[str] = field(default_factory=list)
    """Variables of loops, whose first value was taken."""
    _looping: bool = False
    _negated: bool = False
    """Whether the test that begins here is turned round."""
    _chained: bool = False
    """Whether a test stands before, in a chain of ``&&`` and ``||``."""
    _holds: bool | None = None
    """What the chain came to so far; None: perhaps."""
    _left_out: bool = False
    """Whether the command that is being read is one that the chain leaves out."""

    def keyword(self, word: str) -> None:
        """Take a word that stands where a command begins."""
        fork = self.forks[-1] if self.forks else None
        if word in ("if", "case"):
            self.forks.append(_Fork(value="" if word == "case" else None))
        elif word in ("for", "while", "until"):
            self._looping = word == "for"
            self.undecided |= word != "for" and not self.skipped
        elif word == "!" and (fork is None or not fork.asking):
            self._negated = True
        elif fork is None:
            return
        elif word == "!":
            fork.negated = True
        elif word == "then" and fork.value is None:
            self._enter(fork, _truth(fork))
        elif word in ("elif", "else") and fork.value is None:
            self._leave(fork)
            if word == "else":
                self._enter(fork, True)
        elif word == ("fi" if fork.value is None else "esac"):
            self._leave(fork)
            self.forks.pop()

    def command(self, words: list[str], end: str) -> tuple[bool, tuple[str, str] | None]:
        """Take what stands before a break: whether it runs, and a variable that it sets."""
        runs, sets = self._command(words, end)
        asking = bool(self.forks) and self.forks[-1].asking
        tests = bool(words) and words[0] in _TESTS and not asking
        if tests and not self._left_out:
            self._chained = True
            self._holds = _truth(_Fork(tests=[words], negated=self._negated))
        elif self._chained and not self._left_out and self._holds is False:
            self._holds = True  # a command that ran: it went well
        self._negated = False
        self._chain(end)
        return runs and not tests, sets

    def _chain(self, end: str) -> None:
        """What stands behind ``&&`` or ``||`` runs as the chain before it says."""
        self.skipped -= self._left_out
        self._left_out = False
        self._chained &= end in ("&&", "||")
        if self._chained:
            self._left_out = self._holds is (end == "||")
            self.skipped += self._left_out
            self.undecided |= self._holds is None and not self.skipped

    def _command(self, words: list[str], end: str) -> tuple[bool, tuple[str, str] | None]:
        if self._looping and words:
            self._looping = False
            if len(words) > 2 and words[1] == "in" and words[0].isidentifier():
                self.loops += [words[0]] if len(words) > 3 and not self.skipped else []
                return False, None if self.skipped else (words[0], words[2])
            return False, None
        fork = self.forks[-1] if self.forks else None
        if fork is None:
            return not self.skipped, None
        if fork.value is not None and fork.asking:
            self._pattern(fork, words, end)
            return False, None
        if fork.value is not None and end == ";;":
            runs = not self.skipped
            self._leave(fork)
            return runs, None
        if fork.asking and words:
            fork.tests.append(words if len(fork.tests) < 2 else [])
            return not self.skipped and words[0] not in _TESTS, None
        return not self.skipped, None

    def _pattern(self, fork: _Fork, words: list[str], end: str) -> None:
        """``case VALUE in A|B)``."""
        if not fork.tests and len(words) > 1 and words[1] == "in":
            fork.value = words[0]
            fork.tests.append([])
            words = words[2:]
        if words and len(fork.tests) < 100:
            fork.tests.append(words[:1])
        if end == ")" and len(fork.tests) > 1:
            equal = [_alike(fork.value or "", test[0]) for test in fork.tests[1:]]
            del fork.tests[1:]
            self._enter(fork, True if True in equal else None if None in equal else False)

    def _enter(self, fork: _Fork, holds: bool | None) -> None:
        if fork.taken or holds is False:
            fork.now = False
        else:
            fork.now = None if fork.taken is None else holds
        fork.asking = False
        self.skipped += fork.now is False
        self.undecided |= fork.now is None and not self.skipped

    def _leave(self, fork: _Fork) -> None:
        """A branch ends; the next condition follows, or nothing."""
        if fork.asking:
            return
        self.skipped -= fork.now is False
        fork.taken = fork.taken or (fork.now if fork.now is not False else fork.taken)
        fork.asking, fork.negated, fork.now = True, False, None
        del fork.tests[1 if fork.value is not None else 0 :]


def _unknown(text: str) -> bool:
    return "$" in text or "`" in text or len(text) > _LONGEST


def _alike(value: str, pattern: str) -> bool | None:
    """Whether a case takes a pattern.

    >>> _alike("8B", "8?"), _alike("$SIZE", "8B"), _alike("$SIZE", "*")
    (True, None, True)
    """
    if pattern == "*":
        return True
    return None if _unknown(value) or _unknown(pattern) else fnmatchcase(value, pattern)


def _truth(fork: _Fork) -> bool | None:
    """Whether the one test of an if holds; None where its words do not decide it."""
    if len(fork.tests) != 1 or not fork.tests[0]:
        return None
    words = fork.tests[0]
    if (words[0], words[-1]) in (("[", "]"), ("[[", "]]")):
        words = words[1:-1]
    elif words[0] == "test":
        words = words[1:]
    else:
        return None
    found = None if any(_unknown(word) for word in words) else _holds(words)
    return found if found is None else found != fork.negated


def _holds(words: list[str]) -> bool | None:
    """A test of known words.

    >>> _holds(["bf16", "=", "fp8"]), _holds(["8", "-gt", "1"]), _holds(["-d", "logs"])
    (False, True, None)
    """
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return bool(words[1]) == (words[0] == "-n")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "==", "!=") and not any(char in right for char in "*?["):
        return (left == right) == (sign != "!=")
    if sign in _NUMBERS and left.isdecimal() and right.isdecimal():
        return _NUMBERS[sign](int(left), int(right))
    return None
