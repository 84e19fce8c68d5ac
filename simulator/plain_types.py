"""Values of a file that are plainly of the types of a record, read without pydantic.

To import pydantic and to make schemas takes a fifth of a cold `predict`. What is not plainly right
is left to it: it converts what can be converted, and says what is wrong.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import get_annotations
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

Reader = Callable[[Any], Any]
"""Gives a value as a record has it, or raises a ValueError."""


class NotPlain(ValueError):
    """Somebody else shall look at a value."""


def read_record(schema: type[Any], raw: Any) -> Any:
    """Fill a record from a table; ValueError where somebody else shall look at it."""
    if type(raw) is not dict:
        raise NotPlain
    values = read_fields(schema, raw)
    try:
        return schema(**values)
    except TypeError:  # a field is missing
        raise NotPlain from None


def read_fields(schema: type[Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read some fields of a record; ValueError as above."""
    kind: Any = schema  # mypy takes no class for hashable
    return {name: _reader_of(kind, name)(value) for name, value in raw.items()}


@lru_cache(maxsize=2**14)
def _reader_of(schema: Any, name: str) -> Reader:
    """What reads one field, whose type may be the text of it."""
    item = getattr(schema, "__dataclass_fields__", {}).get(name)
    if item is None or not item.init or "__pydantic_config__" not in schema.__dict__:
        return _refuse
    hint = item.type
    if isinstance(hint, str):
        try:
            hint = eval(hint, _names_of(schema, name))  # our own source text
        except (NameError, KeyError):
            return _refuse
    return _reader(hint)


def _names_of(schema: Any, field: str) -> dict[str, Any]:
    """What the type of a field is written in: the module of the class that has it."""
    for kind in schema.__mro__:
        if field in get_annotations(kind):
            return vars(sys.modules[kind.__module__])
    raise NameError(field)


def _reader(hint: Any) -> Reader:
    """What reads values of a type."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is None and hasattr(hint, "read_value"):
        read: Reader = hint.read_value
        return read
    if origin is None and dataclasses.is_dataclass(hint):
        return _record_reader(hint)
    if origin is Annotated:
        return _annotated(hint)
    if origin in (Union, UnionType):
        return _one_of([_reader(kind) for kind in inner])
    if origin is Literal and all(type(word) is str for word in inner):
        return _word_reader(inner)
    if origin in _MANY:
        return _MANY[origin](*inner)
    return _refuse


def _refuse(value: Any) -> Any:
    raise NotPlain


def _checked(kind: type[Any]) -> Reader:
    """What reads values of this very class."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise NotPlain
        return value

    return read


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        raise NotPlain
    return float(value)


def _word_reader(words: tuple[str, ...]) -> Reader:
    """What reads one of some words."""

    def read(value: Any) -> Any:
        if type(value) is not str or value not in words:
            raise NotPlain
        return value

    return read


def _record_reader(schema: Any) -> Reader:
    """What reads a table, or lets a record pass."""
    return lambda raw: raw if isinstance(raw, schema) else read_record(schema, raw)


_HOLDS: dict[type[Any], Callable[[Any, Any], bool]] = {
    Gt: lambda value, limit: bool(value > limit.gt),
    Ge: lambda value, limit: bool(value >= limit.ge),
    Lt: lambda value, limit: bool(value < limit.lt),
    Le: lambda value, limit: bool(value <= limit.le),
    MinLen: lambda value, limit: len(value) >= limit.min_length,
    MaxLen: lambda value, limit: len(value) <= limit.max_length,
}


def _annotated(hint: Any) -> Reader:
    """What reads a type with marks; a mark may read in its place, hold a limit, or say a unit."""
    kind, *marks = get_args(hint)
    readers = [mark.read_value for mark in marks if hasattr(mark, "read_value")]
    limits = [(_HOLDS[type(mark)], mark) for mark in marks if type(mark) in _HOLDS]
    if get_origin(kind) in (Union, UnionType) or (readers and limits):
        return _refuse
    read: Reader = readers[-1] if readers else _reader(kind)

    def limited(value: Any) -> Any:
        made = read(value)
        for holds, limit in limits:
            if not holds(made, limit):
                raise NotPlain
        return made

    return limited if limits else read


def _one_of(readers: list[Reader]) -> Reader:
    """What reads values that exactly one of some types has."""
    none = _PLAIN[NoneType]
    if _refuse in readers:
        return none if none in readers else _refuse
    if none in readers:
        (*others,) = (reader for reader in readers if reader is not none)
        return _optional(others[0] if len(others) == 1 else _one_of(others))

    def read(value: Any) -> Any:
        made = list[Any]()
        for reader in readers:
            try:
                made.append(reader(value))
            except ValueError:
                continue
        if len(made) != 1:
            raise NotPlain
        return made[0]

    return read


def _optional(read: Reader) -> Reader:
    """What reads None, which nothing else is, or values of a type."""
    return lambda value: None if value is None else read(value)


def _tuple_reader(*kinds: Any) -> Reader:
    """What reads a list as a tuple."""
    readers = [_reader(kind) for kind in kinds if kind is not ...]
    size = None if kinds[1:] == (...,) else len(readers)
    if set(readers) == {_number}:
        return _numbers_reader(size)

    def read(value: Any) -> Any:
        if type(value) not in (list, tuple) or size not in (None, len(value)):
            raise NotPlain
        of_items = readers if size is not None else readers * len(value)
        made = list[Any]()
        for reader, item in zip(of_items, value, strict=True):
            made.append(reader(item))
        return tuple(made)

    return read


def _numbers_reader(size: int | None) -> Reader:
    """The same of numbers alone, which curves have by thousands."""
    numbers = {int, float}

    def read(value: Any) -> Any:
        if type(value) not in (list, tuple) or size not in (None, len(value)):
            raise NotPlain
        try:
            if set(map(type, value)) <= numbers and all(map(isfinite, value)):
                return tuple(map(float, value))
        except OverflowError:
            pass
        raise NotPlain

    return read


def _list_reader(kind: Any) -> Reader:
    read, read_list = _reader(kind), _PLAIN[list]
    return lambda value: list(map(read, read_list(value)))


def _dict_reader(key: Any, kind: Any) -> Reader:
    read_key, read, read_dict = _reader(key), _reader(kind), _PLAIN[dict]

    def read_all(value: Any) -> Any:
        table = read_dict(value)
        return dict(zip(map(read_key, table), map(read, table.values()), strict=True))

    return read_all


_MANY: dict[Any, Callable[..., Reader]] = {
    tuple: _tuple_reader,
    list: _list_reader,
    dict: _dict_reader,
}
_PLAIN: dict[Any, Reader] = {
    **{kind: _checked(kind) for kind in (bool, int, str, list, dict, NoneType)},
    float: _number,
    Any: lambda value: value,
}
