"""A plan over several global batches and sequences: each searched, the best by the goal kept.

What may be chosen stands in `Scenario.choices` (lists and ranges of [training]) and in the goal's
`smallest_batch` and `largest_batch`. A step of a larger batch takes longer, so choices are compared
by what a token takes: days, money or energy of the run where ``training.tokens`` says how long it
is, else seconds. A larger batch needs more tokens (``training.critical_batch``); where nobody gave
the critical one, the scaling law's of a language model stands in, and `tokens` are those of
``training.global_batch``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.economics.scaling_law import USUAL_LAW, load_law
from simulator.errors import InfeasibleError, InputError
from simulator.layout.layouts import odd_part
from simulator.planner.plan import Plan, Tried, plan
from simulator.ranges import Choice
from simulator.scenario import Scenario
from simulator.search.explore import KEEP
from simulator.workload.architecture import Architecture

MOST_TRIED = 12
"""Values of a range that are searched; a list is searched whole."""


def plan_over(
    scenario: Scenario,
    *,
    keep: int = KEEP,
    exhaustive: bool = False,
    keep_near: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Plan for each batch and sequence that the scenario leaves open; arguments as in ``plan``.

    Returns the plan of the best by the goal, with what all of them came to (`Plan.tried`).

    Raises
    ------
    InfeasibleError
        If nothing fits with any of them; the message is that of the smallest.
    InputError
        If the bounds of the goal leave none.
    """
    batches, lengths = batches_of(scenario), _lengths(scenario)
    alone = batches == [scenario.workload.recipe.global_batch]
    scenario = scenario if alone else with_critical_batch(scenario)
    if alone and len(lengths) == 1 and not scenario.choices:
        how: dict[str, Any] = {"exhaustive": exhaustive, "keep_near": keep_near}
        return plan(scenario, keep=keep, progress=progress, **how)
    best: Plan | None = None
    tried: list[Tried] = []
    failed: InfeasibleError | None = None
    for length in lengths:
        for batch in batches:
            sizes = with_sizes(scenario, batch, length)
            try:
                answer = plan(sizes, keep=keep, exhaustive=exhaustive, progress=progress)
            except InfeasibleError as error:
                failed = failed or error
                reason = str(error).partition("\n")[0]
                tried.append(Tried(global_batch=batch, sequence_length=length, reason=reason))
                continue
            tried.append(_tried(answer))
            if best is None or _order(answer) < _order(best):
                best = answer
    if best is None:
        assert failed is not None
        raise failed
    return replace(best, tried=tuple(tried), sizes_left_out=_left_out(scenario))


def batches_of(scenario: Scenario) -> list[int]:
    """Global batches that a plan tries, smallest first.

    Of a range those that divide well: one, three, or an odd factor of the GPUs, times a power of
    two, and the ends; where these are more than MOST_TRIED, evenly spread ones of them.

    Raises
    ------
    InputError
        If the goal's bounds leave none of the batches that are listed.
    """
    stated, goal = scenario.workload.recipe.global_batch, scenario.goal
    choice = scenario.choices.get("global_batch")
    if choice is None:
        low = goal.smallest_batch or min(stated, goal.largest_batch or stated)
        high = goal.largest_batch or max(stated, low)
        choice = Choice(values=(low, high), is_range=True)
    low, high = goal.smallest_batch or 1, goal.largest_batch or choice.values[-1]
    if choice.is_range:
        low, high = max(low, choice.values[0]), min(high, choice.values[-1])
        batches = _spread(_between(low, high, scenario.cluster.gpus))
    else:
        batches = [batch for batch in choice.values if low <= batch <= high]
    if not batches:
        values = choice.values
        near = values[0] if high < values[0] else values[-1]
        name = "largest_batch" if high < values[0] else "smallest_batch"
        shown = f"{values[0]} to {values[-1]}"
        rule = f"must leave some of training.global_batch ({shown})"
        got = getattr(goal, name)
        raise InputError(f"{scenario.where}: goal.{name}: {rule}, got {got} (nearest: {near})")
    return batches


def with_sizes(scenario: Scenario, batch: int, length: int) -> Scenario:
    """The scenario with one batch and one sequence, and nothing left to choose of them."""
    stated = scenario.workload.recipe
    critical = stated.critical_batch  # of as many tokens
    if critical is not None:
        critical *= stated.sequence_length / length
    sizes_of: dict[str, Any] = {"global_batch": batch, "sequence_length": length}
    recipe = replace(stated, critical_batch=critical, **sizes_of)
    training, workload = scenario.document.get("training", {}), scenario.workload
    if recipe != stated:  # of the same record what is known stays known
        workload = replace(workload, recipe=recipe)
    return replace(
        scenario,
        workload=workload,
        choices={},
        goal=replace(scenario.goal, smallest_batch=None, largest_batch=None),
        document={**scenario.document, "training": {**training, **sizes_of}},
    )


def with_critical_batch(scenario: Scenario) -> Scenario:
    """Charge larger batches with the tokens that they need more, where nobody said how many.

    The critical batch is the scaling law's at the loss that the run ends with, for language models
    with known `tokens`; those of the scenario's own batch stay as they are.
    """
    recipe, arch = scenario.workload.recipe, scenario.workload.architecture
    if recipe.critical_batch is not None or recipe.tokens is None or not _is_language(arch):
        return scenario
    tokens = load_law(USUAL_LAW).critical_batch(arch.active_parameters, recipe.tokens)
    if tokens is None:
        return scenario
    critical = tokens / recipe.sequence_length
    small = recipe.tokens / (1.0 + recipe.global_batch / critical)
    charged = replace(recipe, critical_batch=critical, tokens=small)
    return replace(scenario, workload=replace(scenario.workload, recipe=charged))


def _is_language(arch: Architecture) -> bool:
    alone = arch.tasks is None and arch.traced is None
    return alone and arch.vocabulary > 0 and not arch.patch_values and not arch.classes


def _lengths(scenario: Scenario) -> list[int]:
    choice = scenario.choices.get("sequence_length")
    if choice is None:
        return [scenario.workload.recipe.sequence_length]
    low, high = choice.values[0], choice.values[-1]
    return _spread(_between(low, high, 1)) if choice.is_range else list(choice.values)


def _left_out(scenario: Scenario) -> str:
    """Say which values of a range were searched, where others that divide well were not."""
    words = []
    for name, field, tried, gpus in (
        ("batches", "global_batch", batches_of(scenario), scenario.cluster.gpus),
        ("sequences", "sequence_length", _lengths(scenario), 1),
    ):
        choice = scenario.choices.get(field)
        if choice is not None and not choice.is_range:
            continue
        every = _between(tried[0], tried[-1], gpus)
        if len(every) > len(tried):
            odd = odd_part(gpus)
            factors = "1 or 3" if odd in (1, 3) else f"1, 3 or {odd}"
            words.append(
                f"{name} tried: {len(tried)} of the {len(every)} from {tried[0]:,} to"
                f" {tried[-1]:,} that are a power of two times {factors}, evenly spread"
            )
    return "; ".join(words)


def _between(low: int, high: int, gpus: int) -> list[int]:
    """Numbers of a range that divide well, and its ends.

    >>> _between(256, 1024, 8), _between(100, 400, 24)
    ([256, 384, 512, 768, 1024], [100, 128, 192, 256, 384, 400])
    """
    if low > high:
        return []
    numbers = {low, high}
    for factor in {1, 3, odd_part(gpus)}:
        number = factor
        while number <= high:
            numbers |= {number} if number >= low else set()
            number *= 2
    return sorted(numbers)


def _spread(every: list[int]) -> list[int]:
    """MOST_TRIED of them at the most, evenly spread, the ends among them."""
    if not every:
        return []
    places = np.unique(np.linspace(0, len(every) - 1, MOST_TRIED).round().astype(int))
    return [every[i] for i in places]


def _order(plan: Plan) -> tuple[bool, bool, float]:
    """What the goal compares plans of different batches by, least first; what FITS first."""
    goal, result, recipe = plan.scenario.goal, plan.outcome, plan.scenario.workload.recipe
    value = {"time": result.days, "cost": result.usd, "energy": result.kwh}[goal.minimize][0]
    if not np.isfinite(value):
        value = plan.estimate.step_time_s[0] / recipe.tokens_per_step
    met = plan.meets_deadline and plan.meets_budget
    risky = plan.memory_verdict == "TIGHT" and not plan.scenario.allow_tight
    return risky, not met, float(value)


def _tried(plan: Plan) -> Tried:
    recipe = plan.scenario.workload.recipe
    return Tried(
        global_batch=recipe.global_batch,
        sequence_length=recipe.sequence_length,
        layout=plan.estimate.layouts.describe(0),
        step_time_s=float(plan.estimate.step_time_s[0]),
        tokens_per_s=float(plan.outcome.tokens_per_s[0]),
        days=float(plan.outcome.days[0]),
        tokens=None if recipe.steps is None else recipe.steps * recipe.tokens_per_step,
    )
