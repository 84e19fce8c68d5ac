"""How much of `plan` over drawn scenarios is the walk at its end, processor seconds of one thread.

``python -m tests.benchmarks.walk_share [PLANS]`` plans the first scenarios of two draws that fit
(``drawn_scenario`` of ``tests/search/test_never_beaten.py``), 40 of each unless given, and prints
for each draw: seconds of all plans, of their walks, of ordering what walks lead to by the goal, and
the shares of both. A tenth is asked of the walk.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from simulator.errors import ForeshardError
from simulator.planner import plan as plans
from simulator.scenario import Scenario
from simulator.search.in_threads import one_thread
from tests.search.test_never_beaten import drawn_scenario

DRAWS = ("{}", "never beaten {}")
"""What numbers of scenarios are drawn by."""


def scenarios(draw: str) -> Iterator[Scenario]:
    """Scenarios of a draw without end."""
    for number in range(sys.maxsize):
        seed = draw.format(number)
        chance = random.Random(int(seed) if seed.isdigit() else seed)
        made = None
        while made is None:
            made = drawn_scenario(chance)
        yield made


class Clock:
    """Processor seconds of the calls of some functions."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def of(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return work(*given, **named)
            finally:
                self.spent_s += time.process_time() - began

        return timed


def shares(draw: str, most: int) -> tuple[float, float, float]:
    """Seconds of the plans of a draw, of their walks without their order, and of the order."""
    walks, orders, whole_s, walks_s, orders_s, count = Clock(), Clock(), 0.0, 0.0, 0.0, 0
    walk, ahead = plans.walk, plans._ByGoal.ahead
    plans.walk, plans._ByGoal.ahead = walks.of(walk), orders.of(ahead)
    try:
        for scenario in scenarios(draw):
            walks.spent_s = orders.spent_s = 0.0
            began = time.process_time()
            try:
                plans.plan(scenario)
            except ForeshardError:
                continue
            whole_s += time.process_time() - began
            walks_s += walks.spent_s - orders.spent_s
            orders_s += orders.spent_s
            count += 1
            if count == most:
                break
    finally:
        plans.walk, plans._ByGoal.ahead = walk, ahead
    return whole_s, walks_s, orders_s


def main(most: int = 40) -> None:
    """Measure and print."""
    print(f"{'draw':16} {'plans s':>8} {'walks s':>8} {'order s':>8}  walk   with order")
    with one_thread():
        for draw in DRAWS:
            whole_s, walks_s, orders_s = shares(draw, most)
            both = [f"{100 * x / whole_s:5.1f} %" for x in (walks_s, walks_s + orders_s)]
            print(f"{draw:16} {whole_s:8.2f} {walks_s:8.2f} {orders_s:8.2f}  {'  '.join(both)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
