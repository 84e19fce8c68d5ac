"""Values in the syntax of the languages that are written: one writer for each.

What comes from input (a model's name, a folder, a profile) goes through these into scripts,
configurations and comments, so that it stays one value in one place. HTML is escaped by the
templates' environment (``report/page.py``), JSON is written by ``json``, CSV by ``csv``.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_STANDS_FOR = "\ufffd"
_PLAIN_YAML = re.compile(r"[A-Za-z0-9_./][\w.,/+-]*(?: [\w./+-]+)*", re.ASCII)


class Variable(str):
    """The name of a shell variable, which is written as its value: ``"$CHECKPOINT"``."""

    __slots__ = ()


def one_line(text: str) -> str:
    r"""Return a text with every character written out that ends a line or does not show.

    Examples
    --------
    >>> one_line("70b" + chr(10) + "touch x")
    '70b\\ntouch x'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def comment_line(text: str) -> str:
    r"""Write a comment of shell, Python, TOML or YAML, which ends where its line does.

    Examples
    --------
    >>> print(comment_line("of evil" + chr(10) + "touch x"))
    # of evil\ntouch x
    """
    return f"# {one_line(text)}"


def shell_word(value: Any) -> str:
    r"""Write one word of a shell's command, on one line.

    What does not show is written as bytes in ``$'...'``; no word can hold NUL, which becomes
    U+FFFD.

    Examples
    --------
    >>> shell_word("llama31_70b"), shell_word("a $(b)"), shell_word(Variable("CKPT"))
    ('llama31_70b', "'a $(b)'", '"$CKPT"')
    >>> print(shell_word("it's" + chr(10)))
    $'it\'s\x0a'
    """
    text = str(value)
    if isinstance(value, Variable) and re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII):
        return f'"${text}"'
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_shell_character, text))}'"


def _shell_character(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if character.isprintable():
        return character
    byte = "\udc80" <= character <= "\udcff"  # of a path that is no UTF-8
    raw = character if byte else _held(character.replace("\0", _STANDS_FOR))
    return "".join(f"\\x{byte:02x}" for byte in raw.encode("utf-8", "surrogateescape"))


def here_document(path: str, text: str, *, end: str) -> str:
    """Write the command that puts a text into a file; no line of the text ends it.

    Examples
    --------
    >>> print(here_document("job.toml", "steps = 1", end="TOML"))
    cat > job.toml <<'TOML'
    steps = 1
    TOML
    """
    while end in text.split("\n"):
        end += "_"
    return f"cat > {shell_word(path)} <<'{end}'\n{text}\n{end}"


def _held(character: str) -> str:
    """A character, or what stands for half of one, which no file of text can hold."""
    return _STANDS_FOR if "\ud800" <= character <= "\udfff" else character


def _quoted(text: str) -> str:
    """A string in double quotes, as TOML, YAML and Python all read it."""
    return f'"{"".join(map(_quoted_character, text))}"'


def _quoted_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    number = ord(_held(character))
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def option_word(value: object) -> str:
    """Write a value as ``--set`` takes it: a switch is true or false."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml_value(value: Any) -> str:
    r"""Write a value of TOML; a list of lists has a line for each.

    Examples
    --------
    >>> toml_value(True), toml_value(["a", 1]), toml_value('say "x"' + chr(127))
    ('true', '["a", 1]', '"say \\"x\\"\\u007f"')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        nested = any(isinstance(item, list) for item in value)
        start, between, end = ("[\n  ", ",\n  ", "\n]") if nested else ("[", ", ", "]")
        return start + between.join(map(toml_value, value)) + end
    return _quoted(value) if isinstance(value, str) else str(value)


def yaml_value(value: Any) -> str:
    r"""Write a scalar of YAML: a plain word where it is one, else in quotes.

    Examples
    --------
    >>> yaml_value(True), yaml_value("1e-4"), yaml_value("([0]*3)"), yaml_value("a: #" + chr(10))
    ('true', '1e-4', "'([0]*3)'", '"a: #\\n"')
    """
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if _PLAIN_YAML.fullmatch(text):
        return text
    return "'" + text.replace("'", "''") + "'" if text and text.isprintable() else _quoted(text)


def python_literal(value: Any) -> str:
    """Write a value as Python does, strings in double quotes.

    Examples
    --------
    >>> python_literal(["q", "v"]), python_literal(None)
    ('["q", "v"]', 'None')
    """
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(python_literal, value))}]"
    return _quoted(value) if isinstance(value, str) else repr(value)


def markdown_cell(text: str) -> str:
    r"""Write a cell of a table in Markdown, which a line's end or a bar would end.

    Examples
    --------
    >>> markdown_cell("a|b")
    'a\\|b'
    """
    return one_line(text).replace("|", "\\|")
