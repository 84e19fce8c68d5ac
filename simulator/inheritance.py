"""Tables of a profile: over those of a base, with some of a relative's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from simulator.errors import InputError, did_you_mean

SAME_CHIP_SPREAD = 0.15
"""Of a rate measured on another part with the same chip: power, clock and cooling differ."""


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; a figure (a table with a value) is replaced whole."""
    tables = dict(under)
    for key, value in over.items():
        old = tables.get(key)
        if (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and not ("value" in old or "value" in value)
        ):
            tables[key] = merged(old, value)
        else:
            tables[key] = value
    return tables


def lent(
    raw: Mapping[str, Any],
    *,
    of: str,
    tables: Iterable[str],
    without: Iterable[str],
    spread: float,
    source: str,
    where: str,
) -> dict[str, Any]:
    """Tables of a relative, every figure graded assumed and its spread widened.

    Parameters
    ----------
    raw : mapping
        The relative's tables.
    of, where : str
        Its name and the borrower's file, for messages.
    tables, without : iterable of str
        Dotted names: what is taken, and what is left out of it.
    spread : float
        Relative error of taking one device's figure for another's, added in quadrature.
    source : str
        What the figures say about where they come from.

    Raises
    ------
    InputError
        If the relative has no such table.
    """
    problems = [
        f"{where}: borrowed: {of} has no {name}{did_you_mean(name.rsplit('.', 1)[-1], known)}"
        for name in (*tables, *without)
        if (known := _missing(raw, name)) is not None
    ]
    if problems:
        raise InputError(problems)
    left_out = {tuple(name.split(".")) for name in without}

    def take(item: Any, path: tuple[str, ...]) -> Any:
        if isinstance(item, Mapping) and "value" not in item:
            kept = {name: (*path, name) for name in item if (*path, name) not in left_out}
            return {name: take(item[name], place) for name, place in kept.items()}
        figure = dict(item) if isinstance(item, Mapping) else {"value": item}
        has_spread = _is_spread(figure.get("spread"))
        wide = {"spread": math.hypot(figure["spread"], spread)} if has_spread else {}
        return {"value": figure["value"], "grade": "assumed", "source": source, **wide}

    taken: dict[str, Any] = {}
    for name in tables:
        path = tuple(name.split("."))
        here: Any = raw
        for part in path:
            here = here[part]
        nested = take(here, path)
        for part in reversed(path):
            nested = {part: nested}
        taken = merged(taken, nested)
    return taken


def taken_over(raw: Mapping[str, Any], of: str) -> dict[str, Any]:
    """Tables of the part `of` as they stand for another part with the same chip.

    What was measured on it or fitted to it is assumed of the other part, and its spread is at least
    SAME_CHIP_SPREAD.
    """

    def take(item: Any) -> Any:
        if not isinstance(item, Mapping):
            return item
        if "value" not in item:
            return {key: take(value) for key, value in item.items()}
        if item.get("grade") not in ("measured", "fitted"):
            return item
        has_spread = _is_spread(item.get("spread"))
        wide = {"spread": max(item["spread"], SAME_CHIP_SPREAD)} if has_spread else {}
        return {**item, "grade": "assumed", **wide}

    sources = raw.get("sources", {})
    if not isinstance(sources, Mapping):
        return {**take(raw), "sources": sources}  # refused by who looks figures up in it
    said = {
        key: {**source, "text": f"as {of}, same chip: {source.get('text', '')}"}
        if isinstance(source, Mapping)
        else source
        for key, source in sources.items()
    }
    return {**take(raw), "sources": said}


def _is_spread(value: object) -> bool:
    """Whether what stands as a spread can be one; what cannot is refused where figures are made."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _missing(raw: Mapping[str, Any], dotted: str) -> Iterable[str] | None:
    """Names that are there instead, where the dotted name leads nowhere; else None."""
    here: Any = raw
    for name in dotted.split("."):
        if not isinstance(here, Mapping) or name not in here:
            return list(here) if isinstance(here, Mapping) else []
        here = here[name]
    return None
