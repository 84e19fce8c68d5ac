"""Hjson (hjson.github.io/syntax.html) as JSON: what people write and DeepSpeed's loader reads.

Comments of three kinds, commas or ends of lines between values, commas behind the last, keys and
words without quotes, texts in single quotes or over several lines. A text without quotes goes to
the end of its line, unless a number, true, false or null stands there.
"""

from __future__ import annotations

import json
import re

_SKIPPED = re.compile(r"(?:[\s,]+|#[^\n]*|//[^\n]*)+")
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"")
_SINGLE = re.compile(r"'((?:[^'\\\n]|\\.)*)'")
_PLAIN = re.compile(
    r"(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"(?=[ \t\r]*(?:[,\]}#\n]|//|/\*|$))"
)
_KEY = re.compile(r"[^\s,:\[\]{}\"'][^\s,:\[\]{}]*")
_REST = re.compile(r"[^\n]+")


def json_text(text: str) -> str:
    r"""Return the same values as JSON; what is no Hjson becomes what is no JSON, or a ValueError.

    >>> json_text("{a: 1 # one\n b: two words\n 'c': [1, 2,], // three\n}")
    '{"a":1,"b":"two words","c":[1,2]}'
    """
    made: list[str] = []
    within, at = list[str](), 0
    while at < len(text):
        if (blank := _SKIPPED.match(text, at)) is not None:
            at = blank.end()
            continue
        if text.startswith("/*", at):
            at = text.index("*/", at + 2) + 2
            continue
        char, value = text[at], bool(made) and made[-1] == ":"
        if char in "]}:":
            made.append(char)
            at += 1
            if char != ":" and within:
                within.pop()
            continue
        if made and made[-1] not in ("{", "[", ":"):
            made.append(",")
        if char in "{[":
            within.append(char)
            made.append(char)
            at += 1
        else:
            word, at = _scalar(text, at, key=not value and within[-1:] == ["{"])
            made.append(word)
    return "".join(made)


def _scalar(text: str, at: int, *, key: bool) -> tuple[str, int]:
    """A key or a value as JSON writes it, and where it ends."""
    if text.startswith("'''", at):
        end = text.index("'''", at + 3)
        return json.dumps(text[at + 3 : end].strip()), end + 3
    if (match := _QUOTED.match(text, at)) is not None:
        return match[0], match.end()
    if (match := _SINGLE.match(text, at)) is not None:
        inside = re.sub(r"\\'", "'", re.sub(r'(?<!\\)"', r"\"", match[1]))
        return f'"{inside}"', match.end()
    if not key and (match := _PLAIN.match(text, at)) is not None:
        return match[0], match.end()
    match = (_KEY if key else _REST).match(text, at)
    return (json.dumps(match[0].strip()), match.end()) if match else (text[at], at + 1)
