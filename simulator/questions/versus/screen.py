"""The screens of `foreshard versus` and `foreshard what-if`: two answers side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from simulator.cli.screen import NO_FIT, assumptions, heading, notes, term_table
from simulator.units import show_percent, show_seconds, show_seconds_span

if TYPE_CHECKING:
    from simulator.cost.step import Estimate
    from simulator.questions.versus.answer import Versus
    from simulator.questions.versus.what_if import WhatIf


def versus_screen(answer: Versus, assumed: dict[str, Any]) -> Iterator[RenderableType]:
    """Give two layouts of one run."""
    estimate = answer.estimate
    yield heading(answer.scenario)
    yield from assumptions(assumed)
    chance, sides = answer.chance_a_faster, [_words(side) for side in answer.sides]
    first = 0 if chance >= 0.5 else 1
    sure = max(chance, 1.0 - chance)
    ahead = float(estimate.step_time_s[1 - first] / estimate.step_time_s[first])
    verdict = "A tie, either may be faster: " if answer.tie else ""
    verdict += f"{sides[first]} is faster by x {ahead:.3f}, with a chance of {show_percent(sure)}"
    if estimate.layouts.row(0) == estimate.layouts.row(1):
        verdict = "A tie: both are the same layout"
    yield ""
    yield Text(verdict, style="bold")
    lines = [_line(f"{name} ({sides[i]})", answer, i) for i, name in enumerate("ab")]
    yield notes("", lines)
    yield ""
    yield term_table({f"a: {sides[0]}": (estimate, 0), f"b: {sides[1]}": (estimate, 1)})
    how = "searched: each is the best of its kind" if answer.searched else "stated defaults"
    yield notes("Read this with the numbers", [f"What the sides do not say was {how}."])


def what_if_screen(answer: WhatIf, assumed: dict[str, Any]) -> Iterator[RenderableType]:
    """Give the answers before and after a change."""
    before, after = answer.before.estimate, answer.after.estimate
    yield heading(answer.before.scenario)
    yield from assumptions(assumed)
    changes = ", ".join(map(str, answer.changes))
    yield ""
    yield (
        Text(
            f"with {changes}: step time x {answer.ratio:.3f}, the best layout of each", style="bold"
        )
    )
    lines = [
        f"before: {_step(before)}, {before.layouts.describe()}",
        f"after:  {_step(after)}, {after.layouts.describe()}",
    ]
    columns = {"before": (before, 0), "after": (after, 0)}
    if answer.same is not None:
        same = answer.same.estimate
        lines.append(f"the old layout then: {_step(same)}, {same.verdict_word()}")
        if same.layouts.describe() != after.layouts.describe():
            columns["old layout then"] = (same, 0)
    yield notes("", lines)
    if answer.same is None:
        yield Text(f"the old layout cannot run then: {answer.same_reason}", style=NO_FIT)
    days = [float(plan.outcome.days[0]) for plan in (answer.before, answer.after)]
    if days[0] == days[0] and days[1] == days[1]:
        yield Text(f"whole run: {days[0]:,.1f} days before, {days[1]:,.1f} after")
    yield ""
    yield term_table(columns)


def _words(side: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in side.items())


def _step(estimate: Estimate) -> str:
    return show_seconds(float(estimate.step_time_s[0]))


def _line(name: str, answer: Versus, i: int) -> str:
    """One side in a line."""
    estimate, sure = answer.estimate, answer.certainty
    span = show_seconds_span(float(sure.p10_s[i]), float(sure.p90_s[i]))
    step = show_seconds(float(estimate.step_time_s[i]))
    return (
        f"{name}: {step} (P10 to P90: {span}), {estimate.verdict_word(i)},"
        f" {estimate.layouts.describe(i)}"
    )
