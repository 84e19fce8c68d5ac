"""Held predictions, screens and answers one at a time: what a mutant is asked first.

``python -m tests.mutations.held_samples write FILE`` asks each, and notes what it came to, its
seconds and which functions of `simulator/` ran. ``check FILE MODULE LINE`` asks those that ran the
function around a line again, the quickest first, and prints the first that came to something else.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.scoring import held_answers, held_models, held_runs, held_screens
from tests.scoring.held_runs import Held

ROOT = Path(__file__).resolve().parents[2]
Function = tuple[str, int]
"""Path of a module and first line."""


class Sample(NamedTuple):
    """What a question came to, in how many seconds, and what ran for it."""

    values: Held
    seconds: float
    functions: frozenset[Function]


@contextlib.contextmanager
def questions() -> Iterator[dict[str, Callable[[], Held]]]:
    """Every held question by name."""
    with held_screens.asked() as screens:
        yield {
            **{f"screen {name}": partial(_screen, said) for name, said in screens.items()},
            **{
                f"answer {name}": partial(held_answers.answered, name)
                for name in held_answers.COMMANDS
            },
            **{f"runs {path.stem}": partial(_runs, path) for path in held_runs.tables()},
            "models": held_models.predicted,
        }


def _screen(said: Callable[[], tuple[float, ...]]) -> Held:
    return {"screen": said()}


def _runs(path: Path) -> Held:
    return held_runs.of_tables([path])


def written() -> dict[str, Sample]:
    """Each question asked with nothing remembered from the one before."""
    with questions() as asked:
        return {name: _sample(question) for name, question in asked.items()}


def _sample(question: Callable[[], Held]) -> Sample:
    for thing in gc.get_objects():
        if isinstance(thing, functools._lru_cache_wrapper) and "simulator" in thing.__module__:
            thing.cache_clear()
    ran = set[tuple[str, int]]()

    def trace(frame: FrameType, _event: str, _value: Any) -> None:
        ran.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    threading.settrace(trace)
    sys.settrace(trace)
    begun = time.process_time()
    try:
        values = question()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    seconds = time.process_time() - begun
    inside = f"{ROOT / 'simulator'}/"
    functions = {(name[len(str(ROOT)) + 1 :], at) for name, at in ran if name.startswith(inside)}
    return Sample(values, seconds, frozenset(functions))


def function_around(path: Path, line: int) -> int | None:
    """First line of the innermost function with a line in its body; None outside of all."""
    found: list[ast.FunctionDef | ast.AsyncFunctionDef] = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    if not found:
        return None
    inner = max(found, key=lambda node: node.lineno)
    return min([inner.lineno, *(each.lineno for each in inner.decorator_list)])


def concerned(samples: dict[str, Sample], relative: str, first: int | None) -> list[str]:
    """Questions that ran a function, the quickest first; all where it is none, or runs compiled."""
    compiled = "simulator.compiled" in (ROOT / relative).read_text(encoding="utf-8")
    every = first is None or compiled
    names = [n for n, sample in samples.items() if every or (relative, first) in sample.functions]
    return sorted(names, key=lambda name: samples[name].seconds)


def moved(samples: dict[str, Sample], relative: str, line: int) -> str:
    """The first question that comes to something else now; blank where none does."""
    names = concerned(samples, relative, function_around(ROOT / relative, line))
    if not names:
        return ""
    with questions() as asked:
        for name in names:
            before = samples[name].values
            try:
                now = asked[name]()
            except Exception as error:
                return f"{name}: {type(error).__name__}"
            if set(now) != set(before):
                return f"{name}: other keys"
            width = len(next(iter(before.values()), ()))
            if lines := held_runs.moved(now, before, ("row", *map(str, range(width)))):
                return f"{name}: {len(lines)} moved"
    return ""


if __name__ == "__main__":
    what, place, *where = sys.argv[1:]
    if what == "write":
        Path(place).write_bytes(pickle.dumps(written()))
    else:
        print(moved(pickle.loads(Path(place).read_bytes()), where[0], int(where[1])))
