"""What bash makes of a variable's value in ``${NAME//a/b}``, ``${NAME%.*}``, ``${NAME^^}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_FORM = re.compile(
    r"([A-Za-z_]\w*)(?:(##|#|%%|%)(.*)"
    r"|(//|/#|/%|/)((?:\\.|[^/\\])*)(?:/(.*))?|(\^\^|,,|\^|,))",
    re.S,
)
_SLICE = re.compile(r"([A-Za-z_]\w*):(?![-=+?])([^:]{1,40})(?::([^:]{1,40}))?")
_LONGEST = 10_000
"""Characters of a value that is changed; it stays as it is written beyond."""
_LONGEST_PATTERN = 100
_MOST_STARS = 2


def is_change(inside: str) -> bool:
    """Whether what stands in the braces changes a value.

    >>> is_change("N//_"), is_change("N:-4"), is_change("N:0:2"), is_change("N")
    (True, False, True, False)
    """
    return (_FORM.fullmatch(inside) or _SLICE.fullmatch(inside)) is not None


def changed(
    inside: str,
    value_of: Callable[[str], str | None],
    number_of: Callable[[str], int | None],
) -> str | None:
    """The changed value; None where the variable, a number or a word of the pattern is not known.

    `value_of` gives a variable's value by its name, `number_of` what arithmetic makes.

    >>> words = {"P": "/a/b.tar.gz", "D": ","}
    >>> [changed(form, words.get, int) for form in ("P##*/", "P%%.*", "P/a/A", "P:1:3", "P^^")]
    ['b.tar.gz', '/a/b', '/A/b.tar.gz', 'a/b', '/A/B.TAR.GZ']
    """
    piece = _SLICE.fullmatch(inside)
    form = _FORM.fullmatch(inside)
    name = (piece or form or ("", ""))[1]
    value = value_of(name)
    if value is None or len(value) > _LONGEST:
        return None
    if piece is not None:
        start = number_of(piece[2])
        length = number_of(piece[3]) if piece[3] else len(value)
        return None if start is None or length is None else _sliced(value, start, length)
    if form is None:
        return None
    if form[7]:
        return _in_letters(value, form[7])
    sign = form[2] or form[4]
    pattern = _expression(form[3] if form[2] else form[5], value_of)
    other = _plain(form[6] or "", value_of)
    if pattern is None or other is None:
        return None
    if form[2]:
        return _without(value, pattern, sign)
    return _replaced(value, pattern, sign, other)


def _sliced(value: str, start: int, length: int) -> str | None:
    start += len(value) if start < 0 else 0
    end = (start if length >= 0 else len(value)) + length
    return None if start < 0 or (length < 0 and end < start) else value[start:end]


def _in_letters(value: str, sign: str) -> str:
    turned = value.upper() if sign[0] == "^" else value.lower()
    return turned if len(sign) == 2 else turned[:1] + value[1:]


def _without(value: str, pattern: str, sign: str) -> str:
    """The value without a start (``#``) or an end (``%``) that is like the pattern."""
    fits, size = re.compile(pattern, re.S).fullmatch, len(value)
    longest_first = len(sign) == 2
    cuts = range(size, -1, -1) if longest_first is (sign[0] == "#") else range(size + 1)
    for cut in cuts:
        start, end = value[:cut], value[cut:]
        if fits(start if sign[0] == "#" else end):
            return end if sign[0] == "#" else start
    return value


def _replaced(value: str, pattern: str, sign: str, other: str) -> str | None:
    if re.fullmatch(pattern, "", re.S):
        return None
    if sign in ("/#", "/%"):
        pattern = rf"\A(?:{pattern})" if sign == "/#" else rf"(?:{pattern})\Z"
    return re.sub(pattern, lambda _: other, value, count=int(sign != "//"), flags=re.S)


_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


def _plain(text: str, value_of: Callable[[str], str | None]) -> str | None:
    """Words of bash as they are after it took variables, quotes and backslashes out."""
    return "".join(part for part, _ in parts) if (parts := _parts(text, value_of)) else None


def _expression(text: str, value_of: Callable[[str], str | None]) -> str | None:
    """The regular expression of a pattern: stars and question marks outside quotes, words."""
    parts = _parts(text, value_of)
    if parts is None or sum(map(len, dict(parts))) > _LONGEST_PATTERN:
        return None
    signs = {"*": ".*", "?": "."}
    made, stars = "", 0
    for part, quoted in parts:
        if not quoted and ("[" in part or "(" in part):
            return None
        stars += 0 if quoted else part.count("*")
        made += "".join(re.escape(x) if quoted else signs.get(x, re.escape(x)) for x in part)
    return made if stars <= _MOST_STARS else None


def _parts(text: str, value_of: Callable[[str], str | None]) -> list[tuple[str, bool]] | None:
    """Pieces of a word, and whether each was quoted; None where a variable is not known."""
    pieces: list[tuple[str, bool]] = [("", False)]
    for part, quoted in _pieces(text, value_of):
        if part is None:
            return None
        pieces.append((part, quoted))
    return pieces


def _pieces(text: str, value_of: Callable[[str], str | None]) -> Iterator[tuple[str | None, bool]]:
    at, quoted = 0, False
    while at < len(text):
        char = text[at]
        variable = _VARIABLE.match(text, at)
        if variable is not None:
            yield value_of(variable[1] or variable[2]), quoted
            at = variable.end()
        elif char in "$`":
            yield None, quoted
            return
        elif char == "'" and not quoted:
            end = text.find("'", at + 1)
            yield (text[at + 1 : end] if end > 0 else None), True
            at = end + 1 if end > 0 else len(text)
        elif char == '"':
            quoted, at = not quoted, at + 1
        elif char == "\\":
            yield text[at + 1 : at + 2], True
            at += 2
        else:
            yield char, quoted
            at += 1
