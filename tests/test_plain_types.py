"""What is read without pydantic is what pydantic reads, for every type that a record has."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import itertools
import math
import pkgutil
import typing
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

import simulator
from simulator.files import Figure, record
from simulator.plain_types import read_fields, read_record

FLAT: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 3, -1, 4096, 10**9, 2**70, 10**400, 0.5, 2.0, 1e301, -0.0),
    *(math.nan, math.inf, "", "x", "bf16", "1", "true", b"x", datetime.date(2026, 1, 2)),
    *(Figure(0.25), Figure(2.0, "measured"), {"value": 0.5}, {"value": -1}, {"grade": "fitted"}),
)
NESTED: tuple[Any, ...] = (
    *([], [1], [1, 2], (1, 2), [1.5, 2], ["x"], [True], [[1]], {}, {"a": 1}, {"a": 1.5}, {1: 1}),
    *({"a": "b"}, {"a": ["b"]}, {"a": [1, 2.0]}, {"a": {"b": 1.0}}, {"a": {"b": [0.1]}}, {1}),
    *([None], {"a": None}, [{"value": 0.5}], {"a": {"value": 0.5, "spread": 0.1}}),
)


def records(within: str) -> list[type[Any]]:
    """Every record of some modules that a file can fill."""
    for item in pkgutil.walk_packages(simulator.__path__, "simulator."):
        if item.name.startswith(within) and not item.name.endswith("__main__"):
            importlib.import_module(item.name)
    waiting, known = [object], set[type[Any]]()
    while waiting:
        below = [kind for kind in type.__subclasses__(waiting.pop()) if kind not in known]
        known |= {kind for kind in below if kind.__module__.startswith("simulator.")}
        waiting += [kind for kind in below if kind.__module__.startswith("simulator.")]
    able = (kind for kind in known if "__pydantic_config__" in vars(kind))
    return [kind for kind in able if kind.__module__.startswith(within)]


def words_of(hint: Any) -> set[str]:
    """Words of its literals, and of marks that know some."""
    inner = set[str]().union(*map(words_of, get_args(hint))) if get_origin(hint) else set()
    if get_origin(hint) is Literal:
        return {word for word in get_args(hint) if isinstance(word, str)}
    return inner | set(getattr(hint, "known", ()))


def values_for(hint: Any) -> typing.Iterator[Any]:
    words = sorted(words_of(hint))[:3]
    yield from (*FLAT, *NESTED, *words, words, dict.fromkeys(words, 1.0), "+".join(words))


def same(one: Any, other: Any) -> bool:
    """Equal, of the same classes all through; figures with their evidence."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Figure):
        return one.__reduce__() == other.__reduce__()
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if dataclasses.is_dataclass(one):
        return all(
            same(getattr(one, x.name), getattr(other, x.name)) for x in dataclasses.fields(one)
        )
    return bool(one == other) or one != one != other


@pytest.mark.parametrize(
    ("within", "least"),
    [("simulator.workload.re", 25), pytest.param("simulator.", 150, marks=pytest.mark.evidence)],
)
def test_every_type_of_a_field_is_read_as_pydantic_reads_it(within: str, least: int) -> None:
    seen, read = set[str](), set[str]()
    for kind in records(within):
        hints = typing.get_type_hints(kind, include_extras=True)
        for item in dataclasses.fields(kind):
            hint = hints[item.name]
            if dataclasses.is_dataclass(hint) or str(hint) in seen:
                continue
            seen.add(str(hint))
            whole: Any = TypeAdapter(record(type("Of", (), {"__annotations__": {"x": hint}})))
            for value in values_for(hint):
                try:
                    made = read_fields(kind, {item.name: value})[item.name]
                except ValueError:
                    continue
                read.add(str(hint))
                theirs: Any = whole.validate_python({"x": value})  # no error, therefore
                assert same(made, theirs.x), (kind, item.name, value, made, theirs.x)
    assert len(seen) >= least
    assert len(read) > 0.95 * len(seen), seen - read


@record
class Inner:
    """A table in a table."""

    rate: Figure
    share: Annotated[float, "unit"] = 0.5


@record
class Outer:
    """With one that must be there, and what must go together."""

    inner: Inner
    named: dict[str, Inner] = dataclasses.field(default_factory=dict)
    low: int = 0
    high: int = 10

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low must not be above high")


PARTS: dict[str, tuple[Any, ...]] = {
    "inner": ({"rate": 1.0}, {"rate": {"value": 2, "grade": "fitted"}, "share": 1}, {"share": 1.0}),
    "named": ({}, {"a": {"rate": 1}}, {"a": {"rate": "1"}}, []),
    "low": (3, 11, 1.0, "4"),
    "other": (1,),
}


@pytest.mark.parametrize("names", [n for k in range(5) for n in itertools.combinations(PARTS, k)])
def test_tables_in_tables(names: tuple[str, ...]) -> None:
    adapter = TypeAdapter(Outer)
    for values in itertools.product(*(PARTS[name] for name in names)):
        raw = dict(zip(names, values, strict=True))
        try:
            made = read_record(Outer, raw)
        except ValueError:
            continue
        assert same(made, adapter.validate_python(raw))
    with pytest.raises(ValueError):
        read_record(Outer, {"inner": {"rate": 1.0}, "low": 11})
    with pytest.raises(ValidationError):
        adapter.validate_python({"inner": {"rate": 1.0}, "low": 11})
    assert read_record(Outer, {"inner": {"rate": 1.0}}) == Outer(inner=Inner(rate=Figure(1.0)))
