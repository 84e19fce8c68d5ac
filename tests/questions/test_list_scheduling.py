"""Jobs on parts: by hand, against every start day there is, and what every schedule keeps."""

from __future__ import annotations

import random
from itertools import product

import pytest

from simulator.questions.job_schedule import list_scheduling
from simulator.questions.job_schedule.list_scheduling import (
    GOALS,
    Option,
    Queued,
    best_schedule,
    every_schedule,
    least_makespan,
    placed,
)


def job(name: str, *options: tuple[int, int, float], arrives: float = 0.0) -> Queued:
    made = tuple(Option(part=p, gpus=n, days=d) for p, n, d in options)
    return Queued(name=name, options=made, arrives=arrives)


def drawn(seed: int, jobs: int = 4) -> tuple[list[Queued], list[int]]:
    """Jobs of whole days on two parts, whose speeds differ by job."""
    random_ = random.Random(seed)
    capacity = [4, 2]
    found = []
    for i in range(jobs):
        work = random_.randint(2, 8)
        options = [(0, n, float(max(1, -(-work // n)))) for n in (1, 2, 4)]
        options += [(1, n, float(max(1, -(-work * random_.randint(1, 3) // n)))) for n in (1, 2)]
        arrives = float(random_.choice([0, 0, 1]))
        found.append(job(f"j{i}", *random_.sample(options, 2), arrives=arrives))
    return found, capacity


def test_two_parts_by_hand() -> None:
    """The long job takes the fast part; two short ones share the other, then the third follows."""
    long = job("long", (0, 4, 6.0), (1, 2, 20.0))
    short = [job(f"s{i}", (0, 4, 1.0), (1, 1, 3.0)) for i in range(3)]
    found = best_schedule([long, *short], [4, 2])
    assert [row.option.part for row in found.rows] == [0, 1, 1, 1]
    assert sorted(row.start for row in found.rows[1:]) == [0.0, 0.0, 3.0]
    assert found.makespan == 6.0 == least_makespan([long, *short], [4, 2])


def test_a_small_job_fills_a_gap_that_leaves_a_large_one_alone() -> None:
    jobs = [job("half", (0, 2, 5.0)), job("whole", (0, 4, 1.0)), job("other", (0, 2, 5.0))]
    found = placed(jobs, [4], [0, 1, 2], [0, 0, 0])
    assert [row.start for row in found.rows] == [0.0, 5.0, 0.0]


def brute(jobs: list[Queued], capacity: list[int]) -> float:
    """Least makespan over every choice and every whole day on which each job may start."""
    horizon = int(max(j.arrives for j in jobs) + sum(j.alone for j in jobs)) + 1
    best = float("inf")
    for choice in product(*(j.options for j in jobs)):
        starts = [range(int(j.arrives), horizon) for j in jobs]
        for days in product(*starts):
            end = max(d + o.days for d, o in zip(days, choice, strict=True))
            if end >= best:
                continue
            rows = list(zip(days, choice, strict=True))
            if all(
                sum(o.gpus for d, o in rows if o.part == part and d <= at < d + o.days) <= room
                for part, room in enumerate(capacity)
                for at in days
            ):
                best = end
    return best


@pytest.mark.parametrize("seed", range(4))
def test_orders_and_choices_hold_the_best_of_all_starts(seed: int) -> None:
    jobs, capacity = drawn(seed, jobs=3)
    found = min(schedule.makespan for schedule in every_schedule(jobs, capacity))
    assert found == brute(jobs, capacity)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("goal", GOALS)
def test_exchanges_find_what_trying_all_finds(
    goal: list_scheduling.Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(8):
        jobs, capacity = drawn(seed)
        exact = min(one.value(goal)[0] for one in every_schedule(jobs, capacity))
        monkeypatch.setattr(list_scheduling, "_EXACT", 0)
        found = best_schedule(jobs, capacity, goal).value(goal)[0]
        monkeypatch.undo()
        assert found == pytest.approx(exact)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(6))
def test_what_every_schedule_keeps(seed: int) -> None:
    jobs, capacity = drawn(seed, jobs=7)
    found = best_schedule(jobs, capacity)
    assert found.makespan >= least_makespan(jobs, capacity) - 1e-9
    for row in found.rows:
        assert row.start >= jobs[row.job].arrives
        for part, room in enumerate(capacity):
            there = (x for x in found.rows if x.option.part == part)
            assert sum(x.option.gpus for x in there if x.start <= row.start < x.end) <= room
    assert all(slow >= 1.0 - 1e-9 for slow in found.slowdowns)
    again = best_schedule(jobs, capacity)
    assert again == found


def test_more_room_is_never_worse_by_hand() -> None:
    jobs = [job(f"j{i}", (0, 2, 2.0)) for i in range(4)]
    assert best_schedule(jobs, [2]).makespan == 8.0
    assert best_schedule(jobs, [4]).makespan == 4.0
    assert best_schedule(jobs, [8]).makespan == 2.0
