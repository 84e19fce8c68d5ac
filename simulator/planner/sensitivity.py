"""Most sensitive to, what binds, and how much an answer moves with every figure behind it.

The layout may change with an upgrade: all near-winners are evaluated again, so that a gain is that
of the best layout, not of the old one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.cost.estimate import VERDICTS, concatenate
from simulator.cost.step import Estimate, evaluate
from simulator.cost.terms import TERMS
from simulator.files import Figure, with_figure
from simulator.goal import goal_word
from simulator.hardware.cluster import Cluster
from simulator.planner.answer_evidence import UsedFigure, used_figures
from simulator.planner.changes import machine_with
from simulator.planner.plan import TRIAL, WORTH_A_TRIAL, Plan, goal_value, meets, pinned_words
from simulator.planner.prediction import Prediction
from simulator.planner.remedies import batch_binds
from simulator.planner.variants import Variant, variant_of
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.certainty import CLOSE, expected_errors
from simulator.search.explore import TOO_LARGE
from simulator.search.memory_filter import HEADROOM
from simulator.search.outcome import COMPUTING
from simulator.software.profile import Software
from simulator.units import show_bytes, show_chance, show_change, show_percent, show_usd

_COMPUTE_TERMS = ("gemm", "attention", "memory_bound", "launch", "stragglers", "input", "optimizer")
"""Terms that links and their latencies do not bear on."""

BETTER = HEADROOM
"""How much better each thing gets: as much as the search remembers near misses in memory."""

_UPGRADES = (
    ("GEMM throughput", "+10 % FLOP/s of every type", "matrix", BETTER),
    ("memory bandwidth", "+10 % bytes/s of device memory", "memory.bandwidth", BETTER),
    ("scale-up bandwidth", "+10 % bytes/s inside the fast domain", "scale_up", BETTER),
    ("network bandwidth", "+10 % bytes/s of every adapter", "network.adapter", BETTER),
    ("network latency", "half of every network hop, send and peer", "network.latency", 0.5),
    ("host launch rate", "+10 % kernels enqueued per second", "host", BETTER),
)
"""Names, words, and which of MACHINE_CHANGES by what factor."""

_KEYS = ("name", "change", "gain", "step_time_s", "same_layout_s", "layout")
"""What documents say of an upgrade."""

UNSTATED = 0.1
"""By how much a figure is moved whose profile states no spread, relative."""


def sensitivity(plan: Plan) -> list[Variant]:
    """Try every upgrade alone; the one that pays most comes first.

    Notes
    -----
    The plan's fastest layouts, and for memory its fastest near misses, are what upgrades choose
    from.
    """
    scenario, upgrades = plan.scenario, []
    for name, change, thing, factor in _UPGRADES:
        machine = machine_with((scenario.cluster, scenario.software), (thing, factor))
        changed = replace(scenario, cluster=machine[0], software=machine[1])
        reach = _in_reach(plan, links_alone=thing == "network.latency")
        estimate = evaluate(plan.estimate.layouts[reach], scenario.workload, *machine)
        same_s = float(estimate.step_time_s[0])
        upgrades.append(_upgrade(plan, changed, estimate, same_s, (name, change)))
    upgrades.append(_with_more_memory(plan))
    return sorted(upgrades, key=lambda upgrade: -upgrade.gain)


def _upgrade(
    plan: Plan, changed: Scenario, estimate: Estimate, same_s: float, words: tuple[str, str]
) -> Variant:
    """The fastest layout on another machine, among those that can be the fastest there."""
    return variant_of(
        changed,
        estimate,
        int(np.argmin(estimate.step_time_s)),
        name=words[0],
        change=words[1],
        before_s=_fastest_s(plan),
        same_layout_s=same_s,
        KEYS=_KEYS,
    )


def _in_reach(plan: Plan, *, links_alone: bool) -> NDArray[np.intp]:
    """Layouts that may be the fastest with an upgrade, the plan's best one first.

    An upgrade takes at most 1 - 1 / BETTER of a step, or half of what links bear on where it bears
    on `links_alone`: a layout that is slower than the fastest even then stays slower.
    """
    step_s = plan.estimate.step_time_s
    compute_s = sum(plan.estimate.terms_s[name] for name in _COMPUTE_TERMS)
    reach_s = (step_s + compute_s) / 2.0 if links_alone else step_s / BETTER
    able = plan.estimate.able(allow_tight=plan.scenario.allow_tight)
    rows = np.flatnonzero(able & (reach_s <= _fastest_s(plan)))
    return np.concatenate([[0], rows[rows != 0]])


def _fastest_s(plan: Plan) -> float:
    """Step time of the fastest layout that may win."""
    able = plan.estimate.able(allow_tight=plan.scenario.allow_tight)
    return float(plan.estimate.step_time_s[able].min())


def _with_more_memory(plan: Plan) -> Variant:
    """More usable memory changes no step time: the fastest near miss has been timed."""
    scenario = plan.scenario
    same_s = float(plan.estimate.step_time_s[0])
    both = concatenate([plan.estimate, plan.found.roomy])
    both = replace(both, usable_bytes=BETTER * both.usable_bytes)
    estimate = both.take(np.flatnonzero(both.able(allow_tight=scenario.allow_tight)))
    machine = machine_with((scenario.cluster, scenario.software), ("memory", BETTER))
    changed = replace(scenario, cluster=machine[0])
    return _upgrade(plan, changed, estimate, same_s, ("usable memory", "+10 % usable bytes"))


def binding(plan: Plan) -> list[str]:
    """Say in sentences which limits bind: batch, memory, deadline, budget, the largest terms."""
    first = filter(None, (memory_margin(plan), batch_binds(plan.scenario)))
    return [*first, _memory(plan), *_limits(plan), *_largest_terms(plan), *_pinned(plan)]


def memory_margin(plan: Plan) -> str:
    """What a TIGHT layout would bring, or that the best is one and what FITS; else nothing."""
    estimate, usable = plan.estimate, show_bytes(plan.estimate.usable_bytes)
    tight = plan.tight_alternative
    if tight is not None:
        return (
            f"TIGHT, {estimate.layouts.describe(tight)}: {better_words(plan, tight)}, {TRIAL}:"
            f" {lack_words(estimate, tight)} (--allow-tight takes it)."
        )
    if plan.memory_verdict != "TIGHT":
        return ""
    lacks = f"The best layout is TIGHT: {lack_words(estimate, 0)}."
    fitting = np.flatnonzero(estimate.verdict == VERDICTS.index("FITS"))
    safe = plan.found.fastest_safe
    if len(fitting):
        safe = estimate.take(fitting[[np.argmin(estimate.step_time_s[fitting])]])
    if safe is None:
        return f"{lacks} No layout FITS (has a P90 within the usable {usable}): try it first."
    slower = show_change(float(safe.step_time_s[0]), float(estimate.step_time_s[0]))
    return f"{lacks} The fastest that FITS is {safe.layouts.describe()}, {slower}."


def surer_words(plan: Plan) -> str:
    """Where one that FITS is faster by prediction than the best: why it is not taken; else blank.

    (``simulator/search/certainty.py: by_expectation``)
    """
    estimate, scenario = plan.estimate, plan.scenario
    value = goal_value(estimate.step_time_s, plan.outcome, scenario.goal)[:CLOSE]
    alike = estimate.verdict[:CLOSE] == estimate.verdict[0]
    kept = meets(plan.outcome, scenario)
    alike &= kept[:CLOSE] == kept[0]
    least = int(np.argmin(np.where(alike, value, np.inf)))
    if value[least] >= value[0] * (1.0 - WORTH_A_TRIAL):
        return ""
    spread = expected_errors(
        estimate.take([0, least]), scenario.workload, scenario.cluster, scenario.software
    )
    return (
        f"{estimate.layouts.describe(least)} is {better_words(plan, least)} by prediction, but"
        f" further from what was measured: {spread[1]:.0%} off is to be expected of it,"
        f" {spread[0]:.0%} of the best".replace("%", " %").replace("  %", " %")
    )


def lack_words(estimate: Estimate, i: int) -> str:
    """By how much a layout's P90 of memory is over what is usable, and how likely it fits."""
    over = float(estimate.memory_p90_bytes[i]) - estimate.usable_bytes
    chance = show_chance(float(estimate.fit_chance[i]))
    return f"its P90 is {show_bytes(over)} over the limit, {chance} chance to fit"


def better_words(plan: Plan, i: int) -> str:
    """How much faster another layout is than the best, or what the goal makes least takes less."""
    step_s, goal, words = plan.estimate.step_time_s, plan.scenario.goal, ("faster", "slower")
    value = step_s
    if step_s[i] >= step_s[0]:
        value = goal_value(step_s, plan.outcome, goal)
        words = ("less of what the goal makes least", "more of it")
    better = show_change(float(value[i]), float(value[0]), words)
    kept = meets(plan.outcome, plan.scenario)
    return f"{better}, and within the limits of the goal" if kept[i] and not kept[0] else better


def _memory(plan: Plan) -> str:
    """Whether the nearest miss would pay, and what it lacks."""
    result, best = plan.found, _fastest_s(plan)
    count, miss = result.dropped.get(TOO_LARGE, 0), result.fastest_too_large
    free = "Memory does not bind"
    if plan.tight_alternative is not None:
        free = "Beyond that memory does not bind"
    if not count:
        return f"{free}: all {result.evaluated:,} layouts that can run fit."
    dropped = f"{count:,} of {result.evaluated:,} layouts do not fit"
    if miss is None:
        far = f"all of them need more than {HEADROOM:.1f} times the usable memory"
        return f"{free}: {dropped}, {far}."
    step, lack = float(miss.step_time_s[0]), float(miss.memory_total_bytes[0]) - miss.usable_bytes
    name, change = miss.layouts.describe(), show_change(step, best)
    if step >= best * (1.0 - WORTH_A_TRIAL):
        return (
            f"{free}: {dropped}, but the fastest of those that miss by less than"
            f" {show_percent(HEADROOM - 1.0)} ({name}) would be {change} than the best."
        )
    lacks = f"lacks {show_bytes(lack)} on its worst rank" if lack > 0 else _no_room(miss)
    return (
        f"Memory binds: {dropped}; the fastest layout that just misses on memory ({name}) would be"
        f" {change} and {lacks}."
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
    factor = plan.planning_factor
    with_factor = "" if factor is None else " with the planning factor"
    to_plan = 1.0 if factor is None else factor.value
    for name, limit, value, chance, show in (
        ("deadline", goal.deadline_days, result.days, chances.deadline, _show_days),
        ("budget", goal.budget_usd, result.usd, chances.budget, show_usd),
    ):
        taken = to_plan * float(value[0])
        if limit is None or np.isnan(taken):
            continue
        word = goal_word(float(chance[0]))
        over = f"{show(abs(taken - limit))} {'over' if taken > limit else 'to spare'}"
        sentences.append(
            f"The {name} is {word}: {show_chance(float(chance[0]))} chance{with_factor};"
            f" {show(taken)} {'to plan for ' * (factor is not None)}of {show(limit)}, {over}."
        )
    return sentences


def _largest_terms(plan: Plan) -> list[str]:
    """Name the largest term of the step and the largest one that does not compute."""
    step = float(plan.estimate.step_time_s[0])
    shares = {term: float(plan.estimate.terms_s[term.name][0]) / step for term in TERMS}
    first = max(shares, key=lambda term: shares[term])
    sentences = [f"Largest time term: {first.label}, {show_percent(shares[first])} of the step."]
    waiting = {
        term: share for term, share in shares.items() if term.name not in COMPUTING and share
    }
    if waiting:
        second = max(waiting, key=lambda term: waiting[term])
        share = show_percent(waiting[second])
        sentences.append(f"Largest term that does not compute: {second.label}, {share}.")
    return sentences


def _pinned(plan: Plan) -> list[str]:
    """Name the layout fields that the scenario fixed, since only the rest was searched."""
    fixed = pinned_words(plan.scenario)
    return [f"Pinned by the scenario, so not searched: {fixed}."] if fixed else []


def _show_days(days: float) -> str:
    return f"{days:,.1f} days"


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureEffect(Variant):
    """A figure that is moved, and what that does to a step time, or to one term of it."""

    KEYS: tuple[str, ...] = (
        *("profile=figure.profile", "figure=figure.name", "value=figure.value"),
        *("grade=figure.grade", "spread=figure.spread", "moved", "step_time_change_s=change_s"),
        "source=figure.source",
    )

    figure: UsedFigure
    moved: float
    """By how much it was made larger, relative: its spread, or UNSTATED."""
    change_s: float
    """Step time (or the term) then, less what it was."""


def figure_effects(prediction: Prediction, term: str | None = None) -> list[FigureEffect]:
    """Make every figure larger by its spread, one at a time, and price the layout again.

    Parameters
    ----------
    prediction : Prediction
        The layout.
    term : str, optional
        What is watched: a term of the step time; the whole of it unless given.

    Returns
    -------
    list of FigureEffect
        Those that move it most first; figures of price and site have no part in it.
    """
    scenario, layouts = prediction.scenario, prediction.estimate.layouts
    before_s = _watched(prediction.estimate, term)
    effects = []
    for figure in used_figures(scenario.workload.recipe, scenario.cluster, scenario.software):
        moved = figure.spread or UNSTATED
        value = Figure(figure.value * (1.0 + moved), figure.grade, figure.source)
        cluster, software = _with(scenario.cluster, scenario.software, figure, value)
        estimate = evaluate(layouts, scenario.workload, cluster, software)
        effects.append(
            FigureEffect(
                change=f"{figure.profile} {figure.name} x {1.0 + moved:g}",
                scenario=replace(scenario, cluster=cluster, software=software),
                before_s=prediction.step_time_s,
                step_time_s=float(estimate.step_time_s[0]),
                memory_total_bytes=float(estimate.memory_total_bytes[0]),
                memory_verdict=estimate.verdict_word(),
                figure=figure,
                moved=moved,
                change_s=_watched(estimate, term) - before_s,
            )
        )
    return sorted(effects, key=lambda effect: -abs(effect.change_s))


def _watched(estimate: Estimate, term: str | None) -> float:
    return float((estimate.step_time_s if term is None else estimate.terms_s[term])[0])


def _with(
    cluster: Cluster, software: Software, figure: UsedFigure, value: Figure
) -> tuple[Cluster, Software]:
    """The machine and software with one figure replaced, in every group that has it."""
    kind, _, name = figure.profile.partition(" ")
    if kind == "software":
        return cluster, with_figure(software, figure.name, value)
    if kind in ("cluster", "collectives"):
        part = "fabric" if kind == "cluster" else "library"
        changed = with_figure(getattr(cluster, part), figure.name, value)
        return replace(cluster, **{part: changed}), software
    groups = [
        replace(group, **{kind: with_figure(getattr(group, kind), figure.name, value)})
        if getattr(group, kind).name == name
        else group
        for group in cluster.groups
    ]
    return replace(cluster, groups=tuple(groups)), software
