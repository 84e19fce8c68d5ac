"""What `make house` counts while a question runs, by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from tests.house.walks import Walk, walks_of

INNER = """
def price(count):
    return count

def check(count):
    return price(count)
"""
OUTER = """
from inner import check, price

def ask(count):
    for number in range(count):
        price(number)
        add(number)
    return check(count)

def add(number):
    return number + 1
"""


def module(folder: Path, name: str, text: str, **names: object) -> ModuleType:
    """A module of a file; `names` are what it would import."""
    path = folder / f"{name}.py"
    path.write_text("\n".join(line for line in text.splitlines() if "import" not in line))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    vars(made).update(names)
    return made


def test_stops_and_returns_of_a_sequence() -> None:
    walk = Walk()
    for file in ("a", "a", "b", "a", "c", "c", "b"):
        walk.enter(file)
    assert (walk.stops, walk.returns, walk.files) == (5, 2, {"a", "b", "c"})


def test_loops_count_in_all_calls_alone(tmp_path: Path) -> None:
    inner = module(tmp_path, "inner", INNER)
    outer = module(tmp_path, "outer", OUTER, price=inner.price, check=inner.check)
    package = str(tmp_path)
    walks = walks_of(lambda: outer.ask(3), package)
    # ask; three times price, add; check, price
    assert (walks.calls.stops, walks.calls.returns) == (8, 6)
    # ask, price, add, check
    assert (walks.once.stops, walks.once.returns, len(walks.functions)) == (4, 2, 4)
    assert walks.depth == 3

    before = walks_of(lambda: outer.ask(3), package, until=str(inner.__file__))
    assert (before.calls.stops, before.calls.returns, before.depth) == (1, 0, 1)
