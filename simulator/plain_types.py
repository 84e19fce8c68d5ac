"""Values of a file that are plainly of the types of a record, read without pydantic.

To import pydantic and to make a schema takes a sixth of a cold `predict`. What is not plainly right
is left to it: it converts what can be converted, and says what is wrong.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

Reader = Callable[[Any], Any]
"""Gives a value as a record has it, or raises `NotPlain`."""


class NotPlain(Exception):
    """Somebody else shall look at a value."""


def read_record(schema: type[Any], raw: Any) -> Any:
    """Fill a record from a table."""
    if type(raw) is not dict:
        raise NotPlain
    values = read_fields(schema, raw)
    try:
        return schema(**values)
    except (TypeError, ValueError):  # a field is missing, or they do not go together
        raise NotPlain from None


def read_fields(schema: type[Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read some fields of a record."""
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
        owner = next(kind for kind in schema.__mro__ if name in vars(kind)["__annotations__"])
        try:
            hint = eval(hint, vars(sys.modules[owner.__module__]))  # our own source text
        except (NameError, KeyError):
            return _refuse
    return _reader(hint)


def _reader(hint: Any) -> Reader:
    """What reads values of a type."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is None and hasattr(hint, "plainly"):
        return _of_marker(hint.plainly)
    if origin is None and dataclasses.is_dataclass(hint):
        return _record_reader(hint)
    if origin is Annotated:
        return _annotated(hint)
    if origin in (Union, UnionType):
        return _one_of([_reader(kind) for kind in inner])
    if origin is Literal and all(type(word) is str for word in inner):
        return _checked(str, lambda word: word in inner)
    if origin in _MANY:
        return _MANY[origin](*inner)
    return _refuse


def _refuse(value: Any) -> Any:
    raise NotPlain


def _checked(kind: type[Any], holds: Callable[[Any], bool] = lambda _: True) -> Reader:
    """What reads values of this very class of which something holds."""

    def read(value: Any) -> Any:
        if type(value) is not kind or not holds(value):
            raise NotPlain
        return value

    return read


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        raise NotPlain
    return float(value)


def _record_reader(schema: Any) -> Reader:
    """What reads a table, or lets a record pass."""
    return lambda raw: raw if isinstance(raw, schema) else read_record(schema, raw)


def _of_marker(read: Reader) -> Reader:
    """What reads as a class or a marker says, whose ValueError says what is wrong."""

    def reader(value: Any) -> Any:
        try:
            return read(value)
        except ValueError:
            raise NotPlain from None

    return reader


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
    readers = [_of_marker(mark.plainly) for mark in marks if hasattr(mark, "plainly")]
    limits = [(_HOLDS[type(mark)], mark) for mark in marks if type(mark) in _HOLDS]
    if get_origin(kind) in (Union, UnionType) or (readers and limits):
        return _refuse
    read = readers[-1] if readers else _reader(kind)

    def reader(value: Any) -> Any:
        made = read(value)
        if not all(holds(made, limit) for holds, limit in limits):
            raise NotPlain
        return made

    return reader


def _one_of(readers: list[Reader]) -> Reader:
    """What reads values that exactly one of some types has."""

    def read(value: Any) -> Any:
        made = list[Any]()
        for reader in readers if value is None or _refuse not in readers else ():
            try:
                made.append(reader(value))
            except NotPlain:
                continue
        if len(made) != 1:
            raise NotPlain
        return made[0]

    return read


def _tuple_reader(*kinds: Any) -> Reader:
    """What reads a list as a tuple."""
    readers = [_reader(kind) for kind in kinds if kind is not ...]
    alike = kinds[1:] == (...,)

    def read(value: Any) -> Any:
        if type(value) not in (list, tuple) or not (alike or len(value) == len(readers)):
            raise NotPlain
        each = readers * len(value) if alike else readers
        return tuple(reader(item) for reader, item in zip(each, value, strict=True))

    return read


def _list_reader(kind: Any) -> Reader:
    read = _reader(kind)
    return lambda value: [read(item) for item in _checked(list)(value)]


def _dict_reader(key: Any, kind: Any) -> Reader:
    read_key, read = _reader(key), _reader(kind)
    return lambda value: {read_key(k): read(item) for k, item in _checked(dict)(value).items()}


_MANY: dict[Any, Callable[..., Reader]] = {
    tuple: _tuple_reader,
    list: _list_reader,
    dict: _dict_reader,
}
_PLAIN: dict[Any, Reader] = {
    **{kind: _checked(kind) for kind in (bool, int, str, NoneType)},
    float: _number,
    Any: lambda value: value,
}
