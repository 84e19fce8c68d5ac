"""Functions as Python has them and as numba compiles them: the same numbers."""

import subprocess
import sys

import numpy as np
import pytest

from simulator.events.engine import engine, graph
from simulator.events.engine.compiled import PLAIN, Compiled, short, within
from simulator.events.engine.engine import longest_path
from simulator.events.step import programs
from simulator.events.step.programs import program, step_graph


@within
def doubled(value):  # type: ignore[no-untyped-def]
    return 2.0 * value


@short
def total(values):  # type: ignore[no-untyped-def]
    found = 0.0
    for value in values:
        found += doubled(value)
    return found


def test_little_work_runs_as_it_is_and_more_is_compiled() -> None:
    assert total(np.ones(3)) == 6.0
    assert total._made is None
    assert total(np.ones(PLAIN + 1)) == 2.0 * (PLAIN + 1)
    assert total._made is not None
    assert total(np.ones(3)) == 6.0  # compiled by now, with its part


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp"), [("1f1b", 4, 1), ("interleaved", 4, 2), ("zb_v", 3, 2)]
)
def test_a_step_is_the_same_both_ways(
    schedule: str, pp: int, vpp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program(schedule, pp, 2 * pp, vpp)
    seconds = np.random.default_rng(1).random((pp, made.chunks, 4))
    found = []
    for plain in (np.inf, 0):
        for module, name in ((programs, "unfold"), (engine, "_sweep"), (graph, "_fault")):
            known = getattr(module, name).function
            monkeypatch.setattr(module, name, Compiled(known, {}, plain))
        step = step_graph(made, seconds, 0.01)
        found.append((step.graph, step.task_of_send, longest_path(step.graph)))
    (one, sends, times), (other, other_sends, other_times) = found
    for name in ("duration_s", "stream", "first", "predecessor"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert np.array_equal(sends, other_sends)
    for name in ("start_s", "end_s", "cause"):
        assert getattr(times, name).tobytes() == getattr(other_times, name).tobytes()


def test_a_small_step_is_played_without_numba() -> None:
    script = f"""
import sys
from {programs.__name__} import program, step_graph
from {engine.__name__} import longest_path
step = step_graph(program("1f1b", 2, 2), [[[1.0, 2.0, 0.0, 0.0]]] * 2)
print(longest_path(step.graph).makespan_s)
print("numba" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["9.0", "False"]
