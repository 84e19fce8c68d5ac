"""Writing fitted figures into the text of a profile: comments, order and layout stay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

import tomlkit
from tomlkit.items import InlineTable, Table

from simulator.quoting import toml_value
from simulator.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureText:
    """One figure as a profile writes it."""

    value: float
    grade: str
    """``measured``, ``fitted``, ``datasheet`` or ``assumed``."""
    spread: float | None = None
    """Standard deviation of the logarithm; None: the figure states none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one fit puts into one table of a profile, ``gemm.cublas.bf16`` for instance."""

    path: tuple[str, ...]
    figures: Mapping[str, FigureText]
    """By name. Figures of the table that are not named here stay as they are."""
    source: str
    """Key under ``[sources]`` that every figure of this section points to."""
    text: str
    """What was fitted to what, with which error on shapes left out."""
    date: str
    """Of the fit's inputs (ISO), not of the day it is run: the same facts give the same bytes."""
    stale: tuple[str, ...] = field(default=())
    """Figures that the table no longer has."""
    lists: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Plain lists of numbers of the table, which carry no source of their own."""


def with_sections(text: str, sections: Iterable[Section]) -> str:
    """Return the text of a profile with the figures of `sections` put into it.

    A table or source that is missing is added at the end; sources that no figure points to any
    more are taken out. Applying the same sections again changes nothing.
    """
    document = tomlkit.parse(text)
    for section in sections:
        table = _table(document, section.path)
        for name in section.stale:
            table.pop(name, None)
        for name, figure in section.figures.items():
            table[name] = _inline(figure, section.source)
        for name, numbers in section.lists.items():
            table[name] = tomlkit.parse(f"x = [{', '.join(_number(n, 3) for n in numbers)}]")["x"]
        if section.figures:
            source = _table(document, ("sources", section.source))
            source["text"], source["date"] = section.text, section.date
    _drop_unused_sources(document)
    return _spaced(tomlkit.dumps(document), like=text).rstrip("\n") + "\n"


def _spaced(text: str, *, like: str) -> str:
    """Put back the blank line before every table that had one, and before tables of a new kind.

    A figure that is added to a table lands behind the blank line that ended it.
    """
    loose = set(re.findall(r"\n\n(\[[^\n]+\])", like))
    known = set(re.findall(r"^\[[^\n]+\]", like, flags=re.MULTILINE))

    def spaced(match: re.Match[str]) -> str:
        header = match[1]
        apart = header in loose or (header not in known and not header.startswith("[sources."))
        return f"\n\n{header}" if apart else f"\n{header}"

    return re.sub(r"\n+(\[[^\n]+\])", spaced, text)


def _table(document: tomlkit.TOMLDocument, path: tuple[str, ...]) -> Table | tomlkit.TOMLDocument:
    """Return the table at a path, made where it is missing; the document for an empty path."""
    here: tomlkit.TOMLDocument | Table = document
    for depth, name in enumerate(path):
        if name not in here:
            here[name] = tomlkit.table(is_super_table=depth + 1 < len(path))
        here = here[name]
    return here


def _inline(figure: FigureText, source: str) -> InlineTable:
    parts = [f"value = {_number(figure.value, 3)}", f"grade = {toml_value(figure.grade)}"]
    parts.append(f"source = {toml_value(source)}")
    if figure.spread is not None:
        parts.append(f"spread = {_number(figure.spread, 2)}")
    # Parsed, not built: only so do the spaces inside the braces match the hand-written figures.
    written = tomlkit.parse(f"figure = {{ {', '.join(parts)} }}")["figure"]
    assert isinstance(written, InlineTable)
    return written


def _number(value: float, digits: int) -> str:
    """Return a number as a profile writes it: ``2.5e-6``, not ``2.5e-06``."""
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.{digits}g}").replace("e+", "e")


def _drop_unused_sources(document: tomlkit.TOMLDocument) -> None:
    used: set[str] = set()

    def visit(item: object) -> None:
        if isinstance(item, Mapping):
            if isinstance(item.get("source"), str):
                used.add(str(item["source"]))
            for value in item.values():
                visit(value)

    visit({name: value for name, value in document.items() if name != "sources"})
    sources = document.get("sources", {})
    for name in [name for name in sources if name not in used]:
        del sources[name]
