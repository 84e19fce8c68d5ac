"""What would help most, and what binds: the plan again with one thing better.

Each upgrade is a `dataclasses.replace` on cluster or software. The layout may change with it: all
near-winners are evaluated again, so that a gain is that of the best layout, not of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.cost.step import Estimate, evaluate
from simulator.cost.terms import TERMS
from simulator.planner.machine_changes import (
    Machine,
    faster_host,
    faster_links,
    faster_matrices,
    faster_memory,
    faster_network,
    later_network,
)
from simulator.planner.plan import Plan
from simulator.search.batch_division import batch_binds
from simulator.search.explore import TOO_LARGE
from simulator.search.memory_filter import ROOM
from simulator.units import show_bytes, show_chance, show_percent, show_usd

_OWN = ("gemm", "attention", "memory_bound", "launch", "stragglers", "input", "optimizer")
"""Terms that links and their latencies do not bear on."""

BETTER = ROOM
"""How much better each thing gets: as much as the search remembers near misses in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """One thing made better, and the fastest layout then."""

    name: str
    change: str
    """What was changed and by how much."""
    gain: float
    """Tokens/s over those of the fastest layout without it, minus 1."""
    step_time_s: float
    """Step time of the fastest layout with the upgrade."""
    same_layout_s: float
    """Step time of the plan's best layout with the upgrade."""
    layout: str
    """The fastest layout with the upgrade."""


def sensitivity(plan: Plan) -> list[Upgrade]:
    """Try every upgrade alone; the one that pays most comes first.

    Notes
    -----
    The plan's fastest layouts, and for memory its fastest near misses, are what upgrades choose
    from.
    """
    scenario = plan.scenario
    upgrades = [
        _judged(plan, name, change, better((scenario.cluster, scenario.software)))
        for name, change, better in _UPGRADES
    ]
    upgrades.append(_with_more_memory(plan))
    return sorted(upgrades, key=lambda upgrade: -upgrade.gain)


def _judged(plan: Plan, name: str, change: str, machine: Machine) -> Upgrade:
    """The fastest layout on another machine, among those that can be the fastest there."""
    rows = plan.estimate.layouts[_in_reach(plan)]
    estimate = evaluate(rows, plan.scenario.workload, *machine)
    best = int(np.argmin(estimate.step_time_s))
    after = float(estimate.step_time_s[best])
    return Upgrade(
        name=name,
        change=change,
        same_layout_s=float(estimate.step_time_s[0]),
        step_time_s=after,
        gain=float(plan.estimate.step_time_s.min()) / after - 1.0,
        layout=estimate.layouts.describe(best),
    )


def _in_reach(plan: Plan) -> NDArray[np.intp]:
    """Layouts that may be the fastest with any one upgrade, the plan's best one first.

    An upgrade takes at most 1 - 1 / BETTER of a step, or half of what links bear on: a layout that
    is slower than the fastest even then stays slower.
    """
    step_s = plan.estimate.step_time_s
    own_s = sum(plan.estimate.terms_s[name] for name in _OWN)
    reach_s = np.minimum(step_s / BETTER, (step_s + own_s) / 2.0)
    rows = np.flatnonzero(reach_s <= step_s.min())
    return np.concatenate([[0], rows[rows != 0]])


def _with_more_memory(plan: Plan) -> Upgrade:
    """More usable memory changes no step time: the fastest near miss has been timed."""
    before, roomy = plan.estimate.step_time_s, plan.found.roomy
    estimate, best = plan.estimate, int(np.argmin(before))
    if len(roomy) and roomy.step_time_s.min() < before[best]:
        estimate, best = roomy, int(np.argmin(roomy.step_time_s))
    after = float(estimate.step_time_s[best])
    return Upgrade(
        name="usable memory",
        change="+10 % usable bytes",
        same_layout_s=float(before[0]),
        step_time_s=after,
        gain=float(before.min()) / after - 1.0,
        layout=estimate.layouts.describe(best),
    )


def binding(plan: Plan) -> list[str]:
    """Say in sentences which limits bind: batch, memory, deadline, budget, the largest terms."""
    tight, batch = ([line] if line else [] for line in (safest(plan), batch_binds(plan.scenario)))
    rest = (*_limits(plan), *_largest_terms(plan), *_pinned(plan))
    return [*tight, *batch, _memory(plan), *rest]


def safest(plan: Plan) -> str:
    """For a best layout that is TIGHT: the fastest one whose P90 fits too; else nothing."""
    estimate = plan.estimate
    if estimate.verdict_word() != "TIGHT":
        return ""
    p90, usable = float(estimate.memory_p90_bytes[0]), estimate.usable_bytes
    tight = f"The best layout is TIGHT: its P90 lacks {show_bytes(p90 - usable)}."
    safe = min(_safe(plan), key=lambda one: float(one[0]), default=None)
    if safe is None:
        return f"{tight} No layout has a P90 within the usable {show_bytes(usable)}."
    slower = show_percent(safe[0] / float(estimate.step_time_s.min()) - 1.0)
    return f"{tight} The fastest that FITS is {safe[1]}, {slower} slower."


def _safe(plan: Plan) -> Iterator[tuple[float, str]]:
    """Step time and words of layouts whose P90 fits: the plan's fastest, and the whole search's.

    The search keeps the fastest as the grid has it; those of the plan may have layers dealt anew.
    """
    estimate, safe = plan.estimate, plan.found.fastest_safe
    held = np.flatnonzero(estimate.memory_p90_bytes <= estimate.usable_bytes)
    for i in held[np.argsort(estimate.step_time_s[held], kind="stable")][:1]:
        yield float(estimate.step_time_s[i]), estimate.layouts.describe(int(i))
    if safe is not None:
        yield float(safe.step_time_s[0]), safe.layouts.describe()


def _memory(plan: Plan) -> str:
    """Whether the nearest miss would pay, and what it lacks."""
    found, best = plan.found, float(plan.estimate.step_time_s[0])
    count, miss = found.dropped.get(TOO_LARGE, 0), found.fastest_too_large
    if not count:
        return f"Memory does not bind: all {found.evaluated:,} layouts that can run fit."
    dropped = f"{count:,} of {found.evaluated:,} layouts do not fit"
    if miss is None:
        far = f"all of them need more than {ROOM:.1f} times the usable memory"
        return f"Memory does not bind: {dropped}, {far}."
    step, lack = float(miss.step_time_s[0]), float(miss.memory_total_bytes[0]) - miss.usable_bytes
    name = miss.layouts.describe()
    if step >= best:
        return (
            f"Memory does not bind: {dropped}, but the fastest of those that lack less than"
            f" {show_percent(ROOM - 1.0)} ({name}) would be {show_percent(step / best - 1.0)}"
            " slower than the best."
        )
    lacks = f"lacks {show_bytes(lack)} on its fullest GPU" if lack > 0 else _no_room(miss)
    return (
        f"Memory binds: {dropped}; the nearest miss that would pay ({name}) would be"
        f" {show_percent(best / step - 1.0)} faster and {lacks}."
    )


def _no_room(miss: Estimate) -> str:
    """What a server has no room for, of a layout that fits on its accelerators."""
    names = {"host": "host memory", "nvme": "the drives"}
    return " and ".join(
        f"needs {show_bytes(float(away[0]))} of {show_bytes(miss.room_bytes[tier])}"
        f" in {names[tier]} of a server"
        for tier, away in miss.offloaded_bytes.items()
        if away[0] > miss.room_bytes[tier]
    )


def _limits(plan: Plan) -> list[str]:
    """Deadline and budget: how likely the best layout stays within each, and by how much."""
    goal, result, chances = plan.scenario.goal, plan.outcome, plan.goal_chances
    sentences = []
    for name, limit, value, chance, show in (
        ("deadline", goal.deadline_days, result.days, chances.deadline, _show_days),
        ("budget", goal.budget_usd, result.usd, chances.budget, show_usd),
    ):
        taken = float(value[0])
        if limit is None or np.isnan(taken):
            continue
        word = _verdict(float(chance[0]))
        over = f"{show(abs(taken - limit))} {'over' if taken > limit else 'to spare'}"
        sentences.append(
            f"The {name} is {word}: {show_chance(float(chance[0]))} chance;"
            f" {show(taken)} of {show(limit)}, {over}."
        )
    return sentences


SAFE, LOST = 0.9, 0.1
"""A goal is safe where P90 keeps it, and missed where P10 does not; between them it is at risk."""


def _verdict(chance: float) -> str:
    return "safe" if chance >= SAFE else "at risk" if chance > LOST else "missed"


def _largest_terms(plan: Plan) -> list[str]:
    """Name the largest term of the step and the largest one that does not compute."""
    step = float(plan.estimate.step_time_s[0])
    shares = {term: float(plan.estimate.terms_s[term.name][0]) / step for term in TERMS}
    first = max(shares, key=lambda term: shares[term])
    sentences = [f"Largest time term: {first.label}, {show_percent(shares[first])} of the step."]
    waiting = {term: share for term, share in shares.items() if term.stream != "compute" and share}
    if waiting:
        second = max(waiting, key=lambda term: waiting[term])
        share = show_percent(waiting[second])
        sentences.append(f"Largest term that does not compute: {second.label}, {share}.")
    return sentences


def _pinned(plan: Plan) -> list[str]:
    """Name the layout fields that the scenario fixed, since only the rest was searched."""
    pinned = {name: value for name, value in plan.scenario.pinned.items() if value != "any"}
    if not pinned:
        return []
    fixed = ", ".join(f"{name} = {value}" for name, value in sorted(pinned.items()))
    return [f"Pinned by the scenario, so not searched: {fixed}."]


def _show_days(days: float) -> str:
    return f"{days:,.1f} days"


_UPGRADES: tuple[tuple[str, str, Callable[[Machine], Machine]], ...] = (
    ("matrix rate", "+10 % FLOP/s of every type", partial(faster_matrices, factor=BETTER)),
    ("memory bandwidth", "+10 % bytes/s of device memory", partial(faster_memory, factor=BETTER)),
    (
        "scale-up bandwidth",
        "+10 % bytes/s inside the fast domain",
        partial(faster_links, factor=BETTER),
    ),
    (
        "network bandwidth",
        "+10 % bytes/s of every adapter",
        partial(faster_network, factor=BETTER),
    ),
    (
        "network latency",
        "half of every network hop, send and peer",
        partial(later_network, factor=0.5),
    ),
    ("host launch rate", "+10 % kernels enqueued per second", partial(faster_host, factor=BETTER)),
)
