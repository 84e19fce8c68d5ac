"""Mutants change one place each, parse, and are the same for the same seed."""

import ast
from pathlib import Path

import pytest

from tests.mutations.mutants import ROOMS, ROOT, drawn, mutants

SOURCE = '''def wait_s(a: int | None, b) -> int | None:
    """é: bytes and characters differ."""
    label = "é"; return max(a * 2.0, b) if a < b and label else b - 1
'''


def test_every_kind_of_place_is_changed_once(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE, encoding="utf-8")
    made = {(mutant.before, mutant.after): mutant.text() for mutant in mutants(path)}
    assert set(made) == {
        ("a * 2.0", "a / 2.0"), ("2.0", "2.1"), ("max", "min"), ("a < b", "a <= b"),
        ("a < b and label", "a < b or label"), ("b - 1", "b + 1"), ("1", "2"),
    }  # fmt: skip
    for (_, after), text in made.items():
        ast.parse(text)
        assert f"({after})" in text and text != SOURCE


def test_a_seed_draws_the_same_from_every_room() -> None:
    rooms = ("economics", "search")
    few = drawn(7, 10, rooms)
    assert few == drawn(7, 10, rooms) != drawn(8, 10, rooms)
    for mutant in drawn(1, 100, rooms):
        ast.parse(mutant.text())
    assert {mutant.path.relative_to(ROOT).parts[1] for mutant in few} == set(rooms)


@pytest.mark.evidence
def test_mutants_of_any_room_parse() -> None:
    for mutant in drawn(1, 100, ROOMS):
        ast.parse(mutant.text())
