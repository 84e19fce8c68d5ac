"""The one encoder of answers: what a class declares, what JSON cannot say, keys that exist."""

from __future__ import annotations

import datetime
import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import simulator
from simulator._version import __version__
from simulator.answers import Answer, Encoded, encoded, head, plain
from simulator.errors import InputError
from simulator.files import Figure


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A record without keys of its own."""

    step_time_s: float
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Outer(Encoded):
    """One with every form of entry."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("twice", "reason?=inner.reason", "s=inner.step_time_s", "missing=nothing.step_time_s"),
        *("first=pair.0", "host=away.host", "said", "*inner", "*nothing"),
    )

    inner: Inner
    pair: tuple[float, float] = (1.0, 2.0)
    nothing: Inner | None = None

    @property
    def twice(self) -> float:
        return 2.0 * self.inner.step_time_s

    @property
    def away(self) -> dict[str, float]:
        return {"host": 3.0}

    def said(self) -> str:
        return "words"


def test_every_form_of_entry() -> None:
    document = Outer(inner=Inner(step_time_s=0.5)).document()
    assert document == {
        **{"twice": 1.0, "reason": None, "s": 0.5, "missing": None, "first": 1.0, "host": 3.0},
        **{"said": "words", "step_time_s": 0.5},
    } | {"reason": ""}  # all keys of a record in place, where its own key stood
    assert list(document)[:3] == ["twice", "reason", "s"]
    assert encoded(Outer(inner=Inner(step_time_s=0.5)), ("twice",)) == {"twice": 1.0}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), None),
        (np.float64("inf"), None),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (True, True),
        (Figure(1.5, "measured", "a source"), 1.5),
        (np.array([[1.0, np.nan]]), [[1.0, None]]),
        ({1: (2, [np.float32(0.5)])}, {"1": [2, [0.5]]}),
        (datetime.date(2026, 11, 26), "2026-11-26"),
        (Inner(step_time_s=float("inf")), {"step_time_s": None, "reason": ""}),
    ],
)
def test_plain_values(value: Any, said: Any) -> None:
    found = plain(value)
    assert found == said and type(found) is type(said)
    json.dumps(found, allow_nan=False)


def test_one_head() -> None:
    assert list(head("plan").items()) == [
        *(("schema", 1), ("version", __version__), ("command", "plan")),
    ]


def test_an_answer_without_a_command_has_no_document() -> None:
    class Silent(Answer):
        pass

    with pytest.raises(InputError, match="document: Silent has none; to_frame"):
        Silent().document()


def declared() -> Iterator[type]:
    """Every class of the package that declares its keys."""
    for module in pkgutil.walk_packages(simulator.__path__, "simulator."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and isinstance(vars(value).get("KEYS"), tuple):
                yield value


def attributes(record: type) -> set[str]:
    annotated = (vars(base).get("__annotations__", {}) for base in record.__mro__)
    return set(dir(record)).union(*annotated)


def test_every_declared_key_is_there() -> None:
    classes = set(declared())
    assert len(classes) > 40
    wrong = []
    for record in classes:
        keys = [entry.lstrip("*").partition("=") for entry in record.__dict__["KEYS"]]
        names = {(path or key).removesuffix("?").partition(".")[0] for key, _, path in keys}
        wrong += [f"{record.__name__}: {name}" for name in names - attributes(record)]
    assert sorted(wrong) == []
