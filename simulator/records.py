"""Records: dataclasses whose methods are made when they are first called.

`dataclasses.dataclass` compiles a handful of functions for every class when its module is
imported, five for a frozen one: a fifth of what a cold `predict` took. Here `__init__` alone is
compiled, once there are some instances; the other methods are the same for all records and go by
the names of the fields. What reads a dataclass (`fields`, pydantic, pickle, `match`) reads a
record.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


_SPECIAL = re.compile("ClassVar|InitVar|KW_ONLY")


class _Absent:
    """Stands for a value that a field makes for itself."""

    def __repr__(self) -> str:
        return "<factory>"


class _LazySignature:
    """What `inspect.signature` says of a record: that of its `__init__`, which this compiles."""

    def __get__(self, instance: Any, kind: type) -> inspect.Signature | None:
        owner = next(base for base in kind.__mro__ if "__init__" in base.__dict__)
        if "__signature__" not in owner.__dict__:
            return None  # a class below a record, with an __init__ that somebody wrote
        made: Any = owner.__init__  # type: ignore[misc]
        made.__annotations__ = {item.name: item.type for item in dataclasses.fields(owner)}
        made.__annotations__["return"] = None
        whole = inspect.signature(made)
        return whole.replace(parameters=list(whole.parameters.values())[1:])


@overload
def dataclass(kind: type[T], /) -> type[T]: ...


@overload
def dataclass(
    *,
    frozen: bool = False,
    kw_only: bool = False,
    slots: bool = False,
    eq: bool = True,
    repr: bool = True,
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    kind: type[Any] | None = None,
    /,
    *,
    frozen: bool = False,
    kw_only: bool = False,
    slots: bool = False,
    eq: bool = True,
    repr: bool = True,
) -> Any:
    """Make a class a record, as `dataclasses.dataclass` does of the same options.

    Examples
    --------
    >>> @dataclass(frozen=True, slots=True)
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    >>> Point(1.0), Point(1.0) == Point(1.0, y=0.0), {Point(1.0): 2}[Point(1.0)]
    (Point(x=1.0, y=0.0), True, 2)
    """
    options = {"frozen": frozen, "kw_only": kw_only, "slots": slots, "eq": eq, "repr": repr}
    return partial(_record, **options) if kind is None else _record(kind, **options)


def _record(
    plain: type[Any], /, *, frozen: bool, kw_only: bool, slots: bool, eq: bool, repr: bool
) -> type[Any]:
    """Make a record of a class; methods that somebody wrote stay."""
    written, types = plain.__dict__, inspect.get_annotations(plain)
    # of a text `dataclass` looks up three times whether it means a ClassVar or the like
    plain.__annotations__ = {
        name: text if _SPECIAL.search(str(text)) else object for name, text in types.items()
    }
    made: Any = dataclasses.dataclass(
        init=False, repr=False, eq=False, kw_only=kw_only, slots=slots
    )(plain)
    plain.__annotations__ = made.__annotations__ = types
    for item in dataclasses.fields(made):
        item.type = types.get(item.name, item.type)
    if "__init__" not in written:
        made.__init__, made.__signature__ = _FirstInit(made), _FIRST_SIGNATURE
    if frozen:
        made.__setattr__ = made.__delattr__ = _refuse
        if slots:
            made.__getstate__, made.__setstate__ = _state, _with_state
    if repr and "__repr__" not in written:
        made.__repr__ = _repr
    if eq:
        if "__eq__" not in written:
            made.__eq__ = _equal
        if written.get("__hash__") is None:
            made.__hash__ = _hash if frozen else None
    return made


_BEFORE_COMPILED = 6
"""Instances that are filled field by field: to compile an `__init__` takes as long as twenty."""


class _FirstInit:
    """Stands for the `__init__` of a record: fills its first instances, then compiles one.

    Threads that make an instance at once may each compile one; the last stays.
    """

    __slots__ = ("left", "owner")

    def __init__(self, owner: type[Any]) -> None:
        self.owner, self.left = owner, _BEFORE_COMPILED

    def __get__(self, instance: Any, kind: type) -> Callable[..., None]:
        """Bind it to an instance; what is bound to none is looked at, or called by a subclass."""
        self.left -= 1
        if instance is not None and self.left >= 0:
            return partial(_fill, self.owner, instance)
        made = _compiled(self.owner)
        self.owner.__init__ = made
        bound: Callable[..., None] = made.__get__(instance, kind)
        return bound


def _fill(owner: type[Any], instance: Any, /, *values: Any, **named: Any) -> None:
    """Do as the compiled `__init__` does, which is asked where there is something wrong."""
    known = dataclasses.fields(owner)
    places = [x.name for x in known if x.init and not x.kw_only] if values else []
    given = {**dict(zip(places, values, strict=False)), **named}
    wrong = len(given) < len(values) + len(named)
    for item in known:
        if item.init and item.name in given:
            value = given.pop(item.name)
        elif item.default_factory is not dataclasses.MISSING:
            value = item.default_factory()
        elif item.default is not dataclasses.MISSING:
            value = item.default
        elif item.init:
            wrong = True
            break
        else:
            continue
        object.__setattr__(instance, item.name, value)
    if wrong or given:
        _compiled(owner)(instance, *values, **named)  # which says what
    elif hasattr(owner, "__post_init__"):
        instance.__post_init__()


def _compiled(owner: type[Any]) -> Any:
    """Compile an `__init__`: one assignment a field, then the `__post_init__`."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_absent": _Absent()}
    by_place, by_name, lines = list[str](), list[str](), list[str]()
    for item in dataclasses.fields(owner):
        name = value = given = item.name
        if item.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = item.default_factory
            value = f"_make_{name}()"
            if item.init:
                given, value = f"{name}=_absent", f"{value} if {name} is _absent else {name}"
        elif item.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = item.default
            given = f"{name}=_default_{name}"
            value = name if item.init else f"_default_{name}"
        if item.init:
            (by_name if item.kw_only else by_place).append(given)
        if item.init or value != name:
            slot = getattr(owner, name, None)
            if isinstance(slot, MemberDescriptorType):  # half of the time that a name takes
                names[f"_put_{name}"] = slot.__set__
                lines.append(f"_put_{name}(_self, {value})")
            else:
                lines.append(f"_set(_self, {name!r}, {value})")
    if hasattr(owner, "__post_init__"):
        lines.append("_self.__post_init__()")
    given_words = ", ".join(["_self", *by_place, *(["*", *by_name] if by_name else [])])
    body = "\n    ".join(lines or ["pass"])
    exec(f"def __init__({given_words}):\n    {body}", names)  # names of fields alone
    made: Any = names["__init__"]
    made.__qualname__ = f"{owner.__qualname__}.__init__"
    made.__module__ = owner.__module__
    return made


_FIRST_SIGNATURE = _LazySignature()


def _refuse(self: Any, name: str, *_: Any) -> None:
    """Neither set nor delete a field of a frozen record."""
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in dataclasses.fields(self)]


def _with_state(self: Any, state: list[Any]) -> None:
    for item, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)


@recursive_repr()
def _repr(self: Any) -> str:
    """Write the record as it would be made."""
    shown = [item.name for item in dataclasses.fields(self) if item.repr]
    words = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({words})"


@cache
def _values(kind: type[Any]) -> Callable[[Any], Any]:
    """Take of a record what it is compared by."""
    names = [item.name for item in dataclasses.fields(kind) if item.compare]
    return attrgetter(*names) if names else type


def _equal(self: Any, other: Any) -> Any:
    """Whether both are records of the same class, and of the same values."""
    if other.__class__ is not self.__class__:
        return NotImplemented
    values = _values(self.__class__)
    return values(self) == values(other)


def _hash(self: Any) -> int:
    """Hash the values by which it is compared."""
    return hash(_values(self.__class__)(self))
