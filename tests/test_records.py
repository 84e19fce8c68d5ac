"""Records: what the library's own dataclasses do of the same fields, and no method made early."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from dataclasses import dataclass as library
from dataclasses import field
from typing import Any

import pytest
from pydantic import TypeAdapter

from simulator.records import dataclass as record

OPTIONS = [
    {"frozen": True, "slots": True},
    {"frozen": True, "kw_only": True},
    {"slots": True},
    {"frozen": True, "slots": True, "eq": False},
]


def pair(**options: Any) -> tuple[Any, Any]:
    """Two classes of the same fields: one by the library, one by ours."""

    def body() -> type[Any]:
        class Span:
            """A stretch of time."""

            start_s: float
            end_s: float = 1.0
            marks: tuple[int, ...] = field(default=(), compare=False, repr=False)
            notes: list[str] = field(default_factory=list, hash=False)
            length_s: float = field(init=False, default=0.0)

            def __post_init__(self) -> None:
                object.__setattr__(self, "length_s", self.end_s - self.start_s)

        return Span

    return library(**options)(body()), record(**options)(body())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_the_library_has_it(options: dict[str, Any]) -> None:
    theirs, ours = pair(**options)
    for kind in (theirs, ours):
        with pytest.raises(TypeError, match="start_s"):
            kind()
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            kind(start_s=1.0, colour="red")
        again = dataclasses.replace(span := kind(start_s=0.25), end_s=2.0)
        assert again.length_s == 1.75
        assert (span == kind(start_s=0.25)) is options.get("eq", True)
        assert span != kind(start_s=0.5) and span != 3
        assert copy.copy(again).length_s == copy.deepcopy(again).length_s == 1.75
        assert kind(start_s=0.25).notes is not span.notes
        if options.get("frozen"):
            with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field"):
                span.end_s = 3.0
    assert str(inspect.signature(theirs)) == str(inspect.signature(ours))
    assert repr(theirs(start_s=1.0)) == repr(ours(start_s=1.0))
    assert dataclasses.asdict(theirs(start_s=1.0)) == dataclasses.asdict(ours(start_s=1.0))
    assert hasattr(ours, "__slots__") is hasattr(theirs, "__slots__")


@record(frozen=True, slots=True)
class Point:
    """A place; pickle needs it by its name."""

    x: float
    y: float = 0.0


@record(frozen=True, slots=True)
class Body(Point):
    """A place that weighs something."""

    mass_kg: float = 1.0


def test_hash_pickle_match_and_pydantic() -> None:
    assert {Point(1.0): 2}[Point(1.0, y=0.0)] == 2
    assert pickle.loads(pickle.dumps(Body(1.0, 2.0, 3.0))) == Body(1.0, 2.0, 3.0)
    assert Body(1.0, 0.0) != Point(1.0, 0.0)
    match Body(1.0, 2.0):
        case Point(x, y):
            assert (x, y) == (1.0, 2.0)
    assert TypeAdapter(Body).validate_python({"x": 1, "mass_kg": 2}) == Body(1.0, 0.0, 2.0)


def test_written_methods_stay() -> None:
    @record(frozen=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Named("a")), Named("a") == Named("b"), hash(Named("a"))) == ("a", True, 7)


def test_nothing_is_compiled_for_a_class_or_its_first_instances() -> None:
    """The library compiles five functions for a frozen class, which is what a start waits for."""
    compiled = list[str]()

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "compile" and watching:
            compiled.append(str(arguments[0]))

    body = {"__doc__": "A place.", "__annotations__": {"x": int}}
    watching = True
    sys.addaudithook(heard)
    try:
        class_made = record(frozen=True, slots=True)(type("P", (), body))
        made = [class_made(x) for x in range(3)]
        before = len(compiled)
        made += [class_made(x=x) for x in range(3, 40)]
    finally:
        watching = False
    assert (before, len(compiled)) == (0, 1)
    assert [item.x for item in made] == list(range(40))


class Base:
    """Fields of every kind."""

    x: float
    words: list[str] = field(default_factory=list)
    y: float = 2.0
    last: int = field(default=3, kw_only=True)
    made: float = field(init=False, default=0.5)
    total: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.x + self.y + self.last)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1.0,), {}),
    ((1.0, ["a"], 4.0), {"last": 5}),
    ((), {"y": 1.0, "x": 3.0}),
    ((1.0,), {"words": ["b"]}),
    ((), {}),
    ((1.0,), {"x": 2.0}),
    ((1.0, [], 2.0, 3), {}),
    ((1.0,), {"z": 2.0}),
    ((1.0,), {"made": 2.0}),
    (("1", [], 2.0), {}),
]


@pytest.mark.parametrize(("values", "named"), CALLS)
def test_first_and_later_instances_are_filled_as_by_the_library(
    values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    def copied() -> type[Any]:
        return type("Base", (), dict(vars(Base)))

    def said(kind: Any) -> tuple[Any, ...]:
        try:
            made = kind(*values, **named)
        except TypeError as error:
            return (str(error),)
        return tuple(getattr(made, item.name) for item in dataclasses.fields(made))

    wanted = said(library(frozen=True)(copied()))
    kind = record(frozen=True)(copied())
    assert [said(kind) for _ in range(30)] == [wanted] * 30
    if len(wanted) > 1:
        first, second = kind(1.0), kind(1.0)
        assert first.words is not second.words


def test_a_thread_makes_its_first_instance_while_another_compiles() -> None:
    """It holds the constructor that the other has replaced: one answer in hundreds was lost."""
    _, kind = pair(frozen=True, slots=True)
    begun, late = kind.__init__, kind.__new__(kind)
    made = kind(1.0)
    begun(late, 1.0)
    assert late == made
