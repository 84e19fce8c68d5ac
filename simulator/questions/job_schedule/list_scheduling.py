"""Jobs on the parts of a cluster: which part, how many accelerators, and when.

A job runs on one part from its start to its end on as many accelerators as it was given. Jobs are
placed one after the other, each as early as its accelerators are free all the while it runs
(serial generation). For every goal here, which gains by no job that ends later, some order and
choice placed so is best (Sprecher, Kolisch, Drexl 1995), so that trying all of them is exact. Where
there are too many, orders and choices of some rules are bettered by exchanging two jobs in the
order, or the choice of one, which may become the first or the last, for as long as that helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations, product
from math import factorial, inf, prod
from typing import Literal

from simulator.records import dataclass

Goal = Literal["makespan", "completion", "slowdown"]
GOALS: tuple[Goal, ...] = ("makespan", "completion", "slowdown")


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One way to run a job."""

    part: int
    """Index of the part."""
    gpus: int
    days: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """A job that waits."""

    name: str
    options: tuple[Option, ...]
    """At least one."""
    arrives: float = 0.0
    """Day from which it can run."""
    weight: float = 1.0
    """What a day of it counts."""
    after: tuple[int, ...] = ()
    """Jobs that must have ended before it starts."""

    @property
    def alone(self) -> float:
        """Days that it takes with everything to itself."""
        return min(option.days for option in self.options)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A job with its place."""

    job: int
    """Index of the job."""
    option: Option
    start: float

    @property
    def end(self) -> float:
        """Day on which it is done."""
        return self.start + self.option.days


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Every job, in the order of the jobs."""

    jobs: tuple[Queued, ...]
    rows: tuple[Placed, ...]

    @property
    def makespan(self) -> float:
        """Day on which the last job is done."""
        return max(row.end for row in self.rows)

    @property
    def completion(self) -> float:
        """Mean days from arrival to end, by weight."""
        total = sum(job.weight for job in self.jobs)
        pairs = zip(self.jobs, self.rows, strict=True)
        return sum(job.weight * (row.end - job.arrives) for job, row in pairs) / total

    @property
    def slowdowns(self) -> tuple[float, ...]:
        """Days until the end over those that each job takes alone (finish-time fairness).

        From its arrival, or from when the last job has ended that it must wait for.
        """
        pairs = zip(self.jobs, self.rows, strict=True)
        return tuple((row.end - self._ready(job)) / job.alone for job, row in pairs)

    def _ready(self, job: Queued) -> float:
        return max([job.arrives, *(self.rows[i].end for i in job.after)])

    @property
    def slowdown(self) -> float:
        """That of the job which waits most."""
        return max(self.slowdowns)

    def value(self, goal: Goal) -> tuple[float, float, float]:
        """What is made least, and what decides between equals."""
        first = {"makespan": self.makespan, "completion": self.completion,
                 "slowdown": self.slowdown}[goal]  # fmt: skip
        return first, self.completion, self.makespan


def placed(
    jobs: Sequence[Queued], capacity: Sequence[int], order: Iterable[int], choice: Sequence[int]
) -> Schedule:
    """Place jobs in an order, each with the option that is chosen for it, as early as possible.

    A job that others must end before comes after them, wherever it stands in the order.

    Examples
    --------
    Two jobs of 4 GPUs on a part of 4: one after the other.

    >>> one = Option(part=0, gpus=4, days=2.0)
    >>> found = placed([Queued(name=x, options=(one,)) for x in "ab"], [4], [1, 0], [0, 0])
    >>> [row.start for row in found.rows], found.makespan
    ([2.0, 0.0], 4.0)
    """
    running: list[list[tuple[float, float, int]]] = [[] for _ in capacity]
    rows: dict[int, Placed] = {}
    for job in _in_turn(jobs, order):
        option = jobs[job].options[choice[job]]
        arrives = max([jobs[job].arrives, *(rows[i].end for i in jobs[job].after)])
        start = _earliest(running[option.part], capacity[option.part], option, arrives)
        running[option.part].append((start, start + option.days, option.gpus))
        rows[job] = Placed(job=job, option=option, start=start)
    return Schedule(jobs=tuple(jobs), rows=tuple(rows[i] for i in range(len(jobs))))


def _in_turn(jobs: Sequence[Queued], order: Iterable[int]) -> list[int]:
    """The order, each job behind those that must have ended before it."""
    turn: dict[int, None] = {}

    def take(job: int) -> None:
        for before in jobs[job].after:
            if before not in turn:
                take(before)
        turn.setdefault(job)

    for job in order:
        take(job)
    return list(turn)


def _earliest(
    running: Sequence[tuple[float, float, int]], capacity: int, option: Option, arrives: float
) -> float:
    """First day from which a part has room until the job is done."""
    for start in sorted({arrives, *(end for _, end, _ in running if end > arrives)}):
        end = start + option.days
        events = [start, *(s for s, _, _ in running if start < s < end)]
        used = (sum(n for s, e, n in running if s <= at < e) for at in events)
        if all(busy + option.gpus <= capacity for busy in used):
            return start
    return inf  # an option larger than its part, which nobody makes


def every_schedule(jobs: Sequence[Queued], capacity: Sequence[int]) -> Iterator[Schedule]:
    """All orders with all choices."""
    choices = list(product(*(range(len(job.options)) for job in jobs)))
    for order in permutations(range(len(jobs))):
        for choice in choices:
            yield placed(jobs, capacity, order, choice)


_EXACT = 3_000
"""Schedules up to which all of them are tried."""

_TRIES = 6_000
"""Exchanges that are tried at most."""

_WASTE = (1.0, 1.5, 2.5, inf)
"""Accelerator-days that a choice may take, over the fewest that the job can take there."""


def best_schedule(
    jobs: Sequence[Queued], capacity: Sequence[int], goal: Goal = "makespan"
) -> Schedule:
    """Find the best schedule that orders, choices and exchanges of them lead to.

    All are tried where there are few. What is found does not depend on anything but the input.
    """
    number = factorial(len(jobs)) * prod(len(job.options) for job in jobs)
    if number <= _EXACT:
        return min(every_schedule(jobs, capacity), key=lambda found: found.value(goal))
    starts = list(_starts(jobs, capacity))
    ranked = sorted(starts, key=lambda pair: placed(jobs, capacity, *pair).value(goal))
    best, left = placed(jobs, capacity, *ranked[0]), _TRIES
    for order, choice in ranked:
        found, left = _bettered(jobs, capacity, goal, order, choice, tries=left)
        best = min(best, found, key=lambda one: one.value(goal))
    return best


def _starts(
    jobs: Sequence[Queued], capacity: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Orders by some rules, each job with the option that lets it end first among those thrifty."""
    rules: tuple[Callable[[int], float], ...] = (
        lambda i: -min(o.days * o.gpus for o in jobs[i].options),
        lambda i: -jobs[i].alone,
        lambda i: jobs[i].alone / jobs[i].weight,
        lambda i: min(o.days * o.gpus for o in jobs[i].options) / jobs[i].weight,
        lambda i: jobs[i].arrives,
    )
    for rule in rules:
        order = sorted(range(len(jobs)), key=lambda i: (rule(i), i))
        for waste in _WASTE:
            yield order, _greedy(jobs, capacity, order, waste)


def _greedy(
    jobs: Sequence[Queued], capacity: Sequence[int], order: Sequence[int], waste: float
) -> list[int]:
    """For each job in turn the thrifty option with which it ends first (list scheduling)."""
    running: list[list[tuple[float, float, int]]] = [[] for _ in capacity]
    choice = [0] * len(jobs)
    ends: dict[int, float] = {}
    for i in _in_turn(jobs, order):
        found = []
        arrives = max([jobs[i].arrives, *(ends[k] for k in jobs[i].after)])
        least = {o.part: min(x.days * x.gpus for x in jobs[i].options if x.part == o.part)
                 for o in jobs[i].options}  # fmt: skip
        for number, option in enumerate(jobs[i].options):
            if option.days * option.gpus <= waste * least[option.part] * (1.0 + 1e-9):
                room = capacity[option.part]
                start = _earliest(running[option.part], room, option, arrives)
                found.append((start + option.days, option.gpus, number, start))
        end, gpus, choice[i], start = min(found)
        ends[i] = end
        running[jobs[i].options[choice[i]].part].append((start, end, gpus))
    return choice


def _bettered(
    jobs: Sequence[Queued],
    capacity: Sequence[int],
    goal: Goal,
    order: list[int],
    choice: list[int],
    *,
    tries: int,
) -> tuple[Schedule, int]:
    """Exchange two jobs, or one choice, while that helps; returns how many tries are left, too."""
    best = placed(jobs, capacity, order, choice)
    moved = True
    while moved and tries > 0:
        moved = False
        for new_order, new_choice in _neighbours(jobs, order, choice):
            if tries <= 0:
                break
            tries -= 1
            found = placed(jobs, capacity, new_order, new_choice)
            if found.value(goal) < best.value(goal):
                best, order, choice, moved = found, new_order, new_choice, True
                break
    return best, tries


def _neighbours(
    jobs: Sequence[Queued], order: list[int], choice: list[int]
) -> Iterator[tuple[list[int], list[int]]]:
    for i, job in enumerate(jobs):
        for number in range(len(job.options)):
            if number != choice[i]:
                other = [*choice[:i], number, *choice[i + 1 :]]
                yield order, other
                yield [i, *(k for k in order if k != i)], other
                yield [*(k for k in order if k != i), i], other
    for i in range(len(order)):
        for j in range(i + 1, len(order)):
            swapped = list(order)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            yield swapped, choice


def least_makespan(jobs: Sequence[Queued], capacity: Sequence[int]) -> float:
    """Days that no schedule undercuts.

    No job ends before those that it waits for and itself have run alone, and every job takes of
    some part at least its smallest share of that part's accelerator-days.
    """
    ends: dict[int, float] = {}
    for i in _in_turn(jobs, range(len(jobs))):
        ends[i] = max([jobs[i].arrives, *(ends[k] for k in jobs[i].after)]) + jobs[i].alone
    longest = max(ends.values())
    shares = sum(min(o.days * o.gpus / capacity[o.part] for o in job.options) for job in jobs)
    first = min(job.arrives for job in jobs)
    return max(longest, first + shares / len(capacity))
