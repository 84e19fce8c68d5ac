"""Words of the field, as every surface uses them: headings, what a word means, what is not said."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_suffix(".toml")


@cache
def glossary() -> dict[str, dict[str, str]]:
    """Return the tables of the file: ``headings`` by key, ``words`` with their meaning, ``avoid``.

    The last has phrases that no surface uses, each with the word of the field in its place.
    """
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def section_title(key: str) -> str:
    """Return what stands over a part of an answer.

    >>> section_title("failures")
    'Failures and goodput'
    """
    return glossary()["headings"][key]


CAVEATS = section_title("notes")
"""Head of what an answer leaves out or takes for granted."""


def meaning(word: str) -> tuple[str, str] | None:
    """Return a word as it is written and what it means, in whatever case it is given.

    >>> meaning("mfu")[0], meaning("flux capacitor")
    ('MFU', None)
    """
    words = {name.lower(): name for name in glossary()["words"]}
    name = words.get(word.lower())
    return None if name is None else (name, glossary()["words"][name])
