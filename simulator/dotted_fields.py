"""A field of a document by its dotted name: ``training.optimizer``, ``cluster.groups.1.gpus``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.errors import InputError, problem


def put(document: dict[str, Any], key: str, value: Any, *, where: str) -> None:
    """Set one field of a document; tables on the way are made, those that it shares are copied.

    Parameters
    ----------
    document : dict
        Changed in place at its first level alone: what lies deeper may belong to other documents.
    key : str
        Names joined by dots; within a list the place of the entry, from 0.
    value
        As TOML would give it.
    where : str
        Named in problems.

    Raises
    ------
    InputError
        If the key has no section or field, or what lies on the way is no table and no list that
        has the entry.
    """
    *tables, last = key.split(".")
    if not (tables and last and all(tables)):
        raise InputError(problem(where, "", "must name section.field", key))
    inside: dict[str, Any] | list[Any] = document
    for done, name in enumerate(tables, start=1):
        place = _place(inside, name, key, where)
        table = inside[place] if isinstance(inside, list) else inside.get(name, {})
        if isinstance(table, Mapping):
            copied: dict[str, Any] | list[Any] = dict(table)
        elif isinstance(table, Sequence) and not isinstance(table, str):
            copied = list(table)
        else:
            so_far = ".".join(tables[:done])
            raise InputError(problem(where, key, f"{so_far} must be a table", table))
        inside[place] = copied
        inside = copied
    inside[_place(inside, last, key, where)] = value


def given(document: Mapping[str, Any], key: str) -> Any:
    """The value of a field by its dotted name; None where nobody gave it.

    Examples
    --------
    >>> given({"run": {"spares": {"hot": 2}}}, "run.spares.hot"), given({}, "run.spares")
    (2, None)
    """
    value: Any = document
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _place(inside: dict[str, Any] | list[Any], name: str, key: str, where: str) -> Any:
    """Name of a table's entry as it is; of a list's its place."""
    if isinstance(inside, dict):
        return name
    places = ", ".join(str(n) for n in range(min(len(inside), 8)))
    if not (name.isascii() and name.isdigit() and len(name) < 8 and int(name) < len(inside)):
        few = f" of {places}" if places else "; the list is empty"
        raise InputError(problem(where, key, f"{name} must be a place in a list{few}", name))
    return int(name)
