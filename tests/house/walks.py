"""How often a question goes from file to file: a table of `make house`.

What is counted. ``sys.setprofile`` sees every call of a function of ``simulator/`` while one
question is answered. A *stop* is a file that calls enter after another file: of the sequence of
files of the functions called, consecutive equal ones count once. A *return* is a stop in a file
that was entered before. A return from a function is no stop of its own: what is called next from
the outer file makes the stop. So stops less returns is the number of files. Printed for each
question:

- *functions once*: every function counts when it first runs, lambdas and comprehensions with the
  function around them. That is the walk of somebody who reads the code along, does not grow with
  loops, and is the figure to compare between commits.
- *all calls*: the sequence as it runs. A loop that alternates between two files counts every time,
  so that this depends on the model and on the number of profiles read.
- *depth*: the most frames of the package on the stack.

Imports are done and caches are warm: each question is answered once before it is counted, so that
a figure hangs on the code and on the question alone. The review of 26 November 2026 followed one
parameter through the source text instead, through the calls that pass it on (``evaluate`` 133
stops and 97 returns, ``load_scenario`` 24 and 11, ``replay`` of a row 52 and 41): its figures are
smaller, since here every call counts, whatever it is handed. Compare figures of this program only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(ROOT / "simulator") + "/"


@dataclass
class Walk:
    """Files in the order in which they are entered."""

    stops: int = 0
    returns: int = 0
    files: set[str] = field(default_factory=set)
    _last: str = ""

    def enter(self, file: str) -> None:
        if file == self._last:
            return
        self.stops += 1
        self.returns += file in self.files
        self.files.add(file)
        self._last = file


@dataclass
class Walks:
    """What is counted of one question."""

    calls: Walk = field(default_factory=Walk)
    once: Walk = field(default_factory=Walk)
    functions: set[CodeType] = field(default_factory=set)
    depth: int = 0


def walks_of(question: Callable[[], object], package: str = PACKAGE, until: str = "") -> Walks:
    """Answer a question and count, until the file `until` is entered where one is named.

    Calls of files outside `package` are passed over; of several threads the first is counted.
    """
    walks = Walks()
    depth, reached = 0, False

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, reached
        code = frame.f_code
        reached = reached or code.co_filename == until
        if reached or not code.co_filename.startswith(package):
            return
        if event == "call":
            depth += 1
            walks.depth = max(walks.depth, depth)
            walks.calls.enter(code.co_filename)
            if code not in walks.functions and not code.co_name.startswith("<"):
                walks.functions.add(code)
                walks.once.enter(code.co_filename)
        elif event == "return":
            depth -= 1

    sys.setprofile(see)
    try:
        question()
    finally:
        sys.setprofile(None)
    return walks


@dataclass(frozen=True)
class Question:
    """A line of the table: what is asked, and the file at which counting ends, if any."""

    ask: Callable[[], object]
    until: str = ""


def questions() -> dict[str, Question]:
    """The questions of the table, each asked once before it is counted."""
    from simulator.cost import pricing
    from simulator.cost.step import evaluate
    from simulator.measured.replay import load_tables, replay
    from simulator.measured.rows import read_runs
    from simulator.planner.plan import plan
    from simulator.planner.prediction import predict
    from simulator.scenario import load_scenario

    path = ROOT / "examples" / "llama-3.1-8b.toml"
    scenario = load_scenario(path)
    layouts = predict(scenario).estimate.layouts
    row = read_runs([ROOT / "validation" / "runs" / "test.csv"])[0]
    tables = load_tables()
    parts = (scenario.workload, scenario.cluster, scenario.software)
    return {
        "load_scenario(path)": Question(lambda: load_scenario(path)),
        "evaluate(layouts), one layout": Question(lambda: evaluate(layouts, *parts)),
        "replay(row), a row of test.csv": Question(
            lambda: replay(row.fields, tables, where=row.where)
        ),
        "predict(scenario)": Question(lambda: predict(scenario)),
        "plan(scenario), until pricing": Question(lambda: plan(scenario), pricing.__file__),
        "plan(scenario)": Question(lambda: plan(scenario)),
    }


def main() -> None:
    print(f"{'files entered':32} {'functions once':>31} {'all calls':>19} {'depth':>6}")
    print(f"{'':32} {'stops returns files functions':>31} {'stops   returns':>19}")
    for name, question in questions().items():
        question.ask()
        counted = walks_of(question.ask, until=question.until)
        once, calls = counted.once, counted.calls
        print(
            f"{name:32} {once.stops:7,} {once.returns:7,} {len(once.files):5}"
            f" {len(counted.functions):9} {calls.stops:9,} {calls.returns:9,} {counted.depth:6}"
        )


if __name__ == "__main__":
    main()
