"""Mutants change one place each, parse, are the same for the same seed, and can be switched."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.mutations.drawn_mutants import ROOT, Mutant, drawn, mutants
from tests.mutations.switches import Switched

SOURCE = '''def wait_s(a: int | None, b) -> int | None:
    """é: bytes and characters differ."""
    label = "é"; return max(a * 2.0, b) if a < b and label else b - 1
'''


def test_every_kind_of_place_is_changed_once(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE, encoding="utf-8")
    assert {(mutant.before, mutant.after) for mutant in mutants(path)} == {
        ("a * 2.0", "a / 2.0"), ("2.0", "2.1"), ("max", "min"), ("a < b", "a <= b"),
        ("a < b and label", "a < b or label"), ("b - 1", "b + 1"), ("1", "2"),
    }  # fmt: skip


def test_a_seed_draws_the_same_from_every_room() -> None:
    rooms = ("economics", "search")
    few = drawn(7, 10, rooms)
    assert few == drawn(7, 10, rooms) != drawn(8, 10, rooms)
    assert {mutant.room for mutant in few} == set(rooms)
    many = dict(enumerate(drawn(1, 20, ("software",)), 1))
    switched = Switched(many, ROOT / "simulator" / "software")
    for path in {mutant.path for mutant in many.values()}:
        ast.parse(switched.text(path))


PARTS = """from __future__ import annotations
_SLOW = 3
class Wait:
    pieces: int = 2
def wait_s(a, b=5):
    match a:
        case 4:
            return b
    return max(_SLOW * a, b)
def other(a):
    return Wait.pieces
@short
def compiled_s(a):
    return a + 7
def calls(a):
    return compiled_s(a)
"""


def test_a_mutant_is_switched_where_it_runs_and_written_where_it_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "module.py"
    path.write_text(PARTS, encoding="utf-8")
    numbered = dict(enumerate(mutants(path), 1))
    by_change = {(mutant.before, mutant.after): n for n, mutant in numbered.items()}
    switched, ran = Switched(numbered, tmp_path), set[int]()
    active = 0

    def say(number: int) -> bool:
        ran.add(number)
        return number == active

    monkeypatch.setitem(sys.modules, "simulator._switches", SimpleNamespace(switched=say))
    written = [("3", "4"), ("2", "3"), ("5", "6"), ("4", "5"), ("a + 7", "a - 7"), ("7", "8")]
    assert switched.written == sorted(by_change[change] for change in written)

    def made(number: int = 0) -> dict[str, Any]:
        names: dict[str, Any] = {"short": lambda function: function}
        exec(switched.text(path, number), names)
        return names

    usual = made()
    assert (usual["wait_s"](2), usual["wait_s"](4), usual["calls"](1)) == (6, 5, 8)
    assert by_change["3", "4"] in ran  # wait_s names _SLOW
    assert by_change["2", "3"] not in ran
    assert usual["other"](1) == 2 and by_change["2", "3"] in ran
    assert by_change["a + 7", "a - 7"] in ran  # `calls` names what is compiled
    for change, was in ((("_SLOW * a", "_SLOW / a"), 5), (("max", "min"), 5)):
        active = by_change[change]
        assert usual["wait_s"](2) == was
    active = 0
    assert made(by_change["3", "4"])["wait_s"](2) == 8
    assert made(by_change["5", "6"])["wait_s"](1) == 6
    assert made(by_change["4", "5"])["wait_s"](4) == 12
    assert made(by_change["7", "8"])["calls"](1) == 9


def test_a_mutant_says_where_it_is() -> None:
    mutant = Mutant(ROOT / "simulator" / "cost" / "step.py", (3, 0, 3, 1), "1", "2")
    assert (str(mutant), mutant.room) == ("simulator/cost/step.py:3: 1 -> 2", "cost")
