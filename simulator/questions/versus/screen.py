"""The screens of `foreshard versus` and `foreshard what-if`: answers side by side, fabrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.answers import CAVEATS
from simulator.cli.screen import (
    NO_FIT,
    amount,
    assumptions,
    gib,
    heading,
    notes,
    seconds_like,
    table_of,
    term_table,
)
from simulator.search.outcome import spans
from simulator.units import (
    show_days_span,
    show_percent,
    show_seconds,
    show_seconds_span,
    show_signed_percent,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from simulator.cost.step import Estimate
    from simulator.questions.versus.answer import Versus
    from simulator.questions.versus.fabrics import FabricChoice, FabricChoices
    from simulator.questions.versus.releases import ReleaseChoices, ReleaseRow
    from simulator.questions.versus.what_if import WhatIf
    from simulator.search.certainty import Certainty
    from simulator.search.outcome import Outcome

_MOST = 12
_RAILS = (
    "rails are tried where something narrow lies above the leaves: elsewhere they change no time"
)
_USD = (
    "USD: servers that are bought, run for the hours of the run; the network by the bit, in"
    " proportion to what the page of prices was quoted with; --json has every fabric"
)
_DOMAIN = (
    "no price: a domain other than the cluster's. What a GPU costs more in one of 72 has no known"
    ' source; give it as fast_domain_usd_per_gpu in [economics.own] (basis = "own")'
)


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
    if isfinite(float(answer.outcome.days[0])):
        lines += [
            f"whole run {name}: {_totals(estimate, answer.outcome, answer.certainty, i)}"
            for i, name in enumerate("ab")
        ]
        saved = float(answer.outcome.usd[1 - first] - answer.outcome.usd[first])
        if isfinite(saved):
            which = "within the error" if answer.tie else "beyond the error"
            lines.append(f"{'ab'[first]} costs {show_usd(saved)} less, {which}")
    yield notes("", lines)
    yield ""
    yield term_table({f"a: {sides[0]}": (estimate, 0), f"b: {sides[1]}": (estimate, 1)})
    how = "searched: each is the best of its kind" if answer.searched else "stated defaults"
    yield notes(CAVEATS, [f"What the sides do not say was {how}."])


def what_if_screen(answer: WhatIf, assumed: dict[str, Any]) -> Iterator[RenderableType]:
    """Give the answers before and after a change."""
    before, after = answer.before.estimate, answer.after.estimate
    yield heading(answer.before.scenario)
    yield from assumptions(assumed)
    changes = ", ".join(map(str, answer.changes))
    yield ""
    low, high = answer.span
    sure = "within the error" if answer.within_error else "beyond the error"
    yield Text(
        f"with {changes}: step time x {answer.ratio:.3f} ({low:.3f} to {high:.3f}, {sure}),"
        " the best layout of each",
        style="bold",
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
    if answer.days_change is not None:
        yield notes("", [*_whole_run(answer)])
    yield ""
    yield term_table(columns)


def _whole_run(answer: WhatIf) -> Iterator[str]:
    """Days and money before and after, with P10 to P90, and what the change makes of them."""
    for name, plan in (("before", answer.before), ("after", answer.after)):
        yield f"whole run {name}: {_totals(plan.estimate, plan.outcome, plan.certainty)}"
    days, usd = answer.days_change, answer.usd_change
    assert days is not None
    change = f"{days:+,.1f} days"
    if usd is not None:
        change += f", {'-' if usd < 0.0 else '+'}{show_usd(abs(usd))}"
    yield f"the change: {change}"


def _totals(estimate: Estimate, outcome: Outcome, sure: Certainty, i: int = 0) -> str:
    """Days and money of a layout with P10 to P90, at which price."""
    whole, days, usd = spans(estimate, outcome, sure), float(outcome.days[i]), float(outcome.usd[i])
    low, high = (float(end[i]) for end in whole.days)
    words = show_days_span(days, low, high)
    if not isfinite(usd):
        return f"{words}, no price known"
    low, high = (float(end[i]) for end in whole.usd)
    money = f"{show_usd(usd)} ({show_usd_span(low, high)})"
    return f"{words}, {money} at {outcome.price.words()}"


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


def fabrics_screen(answer: FabricChoices) -> Iterator[RenderableType]:
    """Give fabrics that none beats in time and price; without prices the fastest."""
    yield heading(answer.scenario)
    front = answer.front()
    words = f"{len(front)} of them have no other that is as fast with a cheaper network"
    if not answer.priced:
        words = f"no prices are known: {len(front)} have no other that is as fast with fewer bits"
    yield f"\n{len(answer.rows)} fabrics; {words}\n"
    yield _fabrics(front[:_MOST], answer.rows[0].step_time_s)
    unpriced = answer.priced and any(row.network_usd is None for row in answer.rows)
    said = [_USD] * answer.priced
    if unpriced:
        said += [_DOMAIN, *_other_domains(answer)]
    said += [_RAILS]
    yield notes("Read this", said)


def releases_screen(answer: ReleaseChoices) -> Iterator[RenderableType]:
    """Give every release, oldest first."""
    scenario = answer.prediction.scenario
    yield heading(scenario)
    yield f"\n{answer.prediction.estimate.layouts.describe()} on every release\n"
    unit, scale = seconds_like(answer.prediction.step_time_s)
    yield table_of(
        answer.rows,
        ("release", lambda row: f"{row.release}{' (here)' * row.here}"),
        (f"step ({unit})", lambda row: amount(scale * row.step_time_s) if row.step_time_s else "-"),
        ("gain", lambda row: _gain(row)),
        ("GiB", lambda row: gib(row.memory_total_bytes) if row.memory_total_bytes else ""),
        ("fit", lambda row: row.memory_verdict or "cannot run"),
        ("USD", lambda row: f"{row.usd:+,.0f}" if row.usd else ""),
        ("measured runs", lambda row: _behind(row)),
        (
            "its best",
            lambda row: _best(row, scale),
        ),
        ("layout", lambda row: row.best_layout or ""),
        left=("release", "fit", "measured runs", "layout"),
    )
    yield ""
    close = [row.release for row in answer.rows if row.within_error and not row.here]
    if close:
        yield notes("As far apart as releases that do the same", [", ".join(close)])
    yield notes("Cannot run there", [f"{r.release}: {r.reason}" for r in answer.rows if r.reason])
    yield notes("What each is", [f"{row.release}: {row.notes}" for row in answer.rows])
    yield notes(CAVEATS, answer.caveats)


def _best(row: ReleaseRow, scale: float) -> str:
    return "" if row.best_step_time_s is None else amount(scale * row.best_step_time_s)


def _gain(row: ReleaseRow) -> str:
    return "" if row.here or row.step_time_s is None else show_signed_percent(row.gain)


def _behind(row: ReleaseRow) -> str:
    card = row.evidence
    if card is None:
        return ""
    expected = "" if card.mean_error is None else f", {show_percent(card.mean_error)} off expected"
    return f"{card.grade}: {card.runs}{expected}"


def _fabrics(rows: Sequence[FabricChoice], best_s: float) -> Table:
    unit, scale = seconds_like(best_s)
    return table_of(
        rows,
        ("adapters", lambda row: f"{row.adapters} x {row.gbps} Gbit/s"),
        ("narrow", lambda row: f"{row.oversubscription}:1"),
        ("rails", lambda row: "yes" if row.rails else "no"),
        ("domain", lambda row: f"{row.domain}"),
        (f"step ({unit})", lambda row: amount(scale * row.step_time_s)),
        ("slower", lambda row: show_percent(row.step_time_s / best_s - 1.0)),
        ("days", lambda row: "" if row.days is None else f"{row.days:,.1f}"),
        ("network USD", lambda row: "" if row.network_usd is None else show_usd(row.network_usd)),
        ("run USD", lambda row: "" if row.usd is None else show_usd(row.usd)),
        ("layout", lambda row: str(row.layout)),
        left=("adapters", "layout"),
    )


def _other_domains(answer: FabricChoices) -> list[str]:
    """The fastest fabric of each domain that has no price: its time is known all the same."""
    fastest: dict[int, FabricChoice] = {}
    for row in answer.rows:
        if row.network_usd is None:
            fastest.setdefault(row.domain, row)
    return [
        f"domain {domain}, without a price: {amount(row.step_time_s)} s a step at best, on"
        f" {row.adapters} x {row.gbps} Gbit/s {row.oversubscription}:1, {row.layout}"
        for domain, row in fastest.items()
    ]
