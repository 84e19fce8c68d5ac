"""The screen of `foreshard compare`: a line per offer as it comes, then what to make of them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from simulator.cli.screen import NO_FIT, console, heading, notes
from simulator.decisions.offers import excesses, nearest
from simulator.units import (
    show_chance,
    show_count,
    show_days,
    show_kwh,
    show_percent,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from simulator.decisions.cluster_comparison import Comparison
    from simulator.decisions.offers import Asked, Offer
    from simulator.economics.unsure_totals import Span
    from simulator.scenario import Scenario

__all__ = ["HEADER", "begin", "in_words", "line", "missed", "show_views"]

_SHAPE = (
    "{cluster:<16} {gpus:>6} {days:>8} {days_span:>15} {chance:>7} {usd:>8} {usd_span:>15}"
    " {energy:>8} {mfu:>6}"
)
HEADER = _SHAPE.format(
    cluster="cluster", gpus="GPUs", days="days", days_span="P10 to P90", chance="in time",
    usd="USD", usd_span="P10 to P90", energy="energy", mfu="MFU",
) + "\n    layout; evidence"  # fmt: skip
"""Names of what stands in the two rows of :func:`line`."""

_WIDTH = 100

_MOST = 8
"""Lines of one view."""


def begin(scenario: Scenario, assumed: dict[str, Any]) -> Callable[[Offer], None]:
    """Return what prints an offer, and before the first what is compared: input may be refused."""
    screen = console()
    ahead = [scenario]

    def row(offer: Offer) -> None:
        while ahead:
            _head(screen, ahead.pop(), assumed)
        style = "" if offer.feasible else NO_FIT
        screen.print(Text(line(offer), style=style), soft_wrap=True)
        screen.file.flush()

    return row


def _head(screen: Console, scenario: Scenario, assumed: dict[str, Any]) -> None:
    """Print what is compared and the names of the columns."""
    first, second = heading(scenario).plain.split("\n", 1)
    screen.print(Text(first.partition(" on ")[0], style="bold"))
    screen.print(Text(second.split("\n")[-1]))
    if assumed:
        words = ", ".join(f"training.{name} = {value}" for name, value in assumed.items())
        screen.print(Text(f"assumed, because not given: {words}"))
    screen.print()
    screen.print(Text(HEADER, style="bold"), soft_wrap=True)


def line(row: Offer) -> str:
    """One offer under HEADER: its numbers, below them its layout and how well that is known."""
    if not row.feasible:
        return f"{row.cluster:<16} {row.gpus:>6,} {'-':>8}\n{_below(row.reason)}"
    days, usd, kwh = row.days, row.usd, row.kwh
    chance = row.deadline_chance
    numbers = _SHAPE.format(
        cluster=row.cluster,
        gpus=f"{row.gpus:,}",
        days=_number(days.p50) if days else "-",
        days_span=f"{_number(days.p10)}-{_number(days.p90)}" if days else "-",
        chance="-" if chance is None else f"{100.0 * chance:.0f} %",
        usd=show_usd(usd.p50).removesuffix(" USD") if usd else "-",
        usd_span=_usd_ends(usd) if usd else "no price",
        energy=show_kwh(kwh.p50) if kwh else "-",
        mfu=show_percent(row.mfu or 0.0),
    )
    known = f"; {row.evidence.grade}" if row.evidence else ""
    return f"{numbers}\n{_below(row.described + known)}"


def _below(text: str) -> str:
    """What stands below the numbers of an offer."""
    return textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")


def _number(days: float) -> str:
    """A digit behind the point, of less than half a day two that count."""
    return f"{days:,.1f}" if days >= 0.5 else f"{days:.2g}"


def _days(days: Span | None) -> str:
    """Days of an offer with their P90."""
    if days is None:
        return ""
    p50, p90 = show_days(days.p50), show_days(days.p90)
    unit = p50.partition(" ")[2]
    return f"{p50} (P90 {p90.removesuffix(f' {unit}')})"


def _usd_ends(usd: Span) -> str:
    """P10 to P90 of the money."""
    return show_usd_span(usd.p10, usd.p90).removesuffix(" USD").replace(" to ", "-")


def show_views(answer: Comparison) -> None:
    """Print what to make of the offers."""
    screen = console()
    screen.print()
    if said := missed(answer.asked, answer.rows, answer.scenario.workload.recipe.tokens):
        screen.print(Text(said, style=NO_FIT))
    if not answer.feasible:
        return
    screen.print(_notes("At equal GPUs, the fastest", _equal_gpus(answer)))
    said = "budget" if answer.asked.budget_usd is not None else "money of the reference"
    budget = answer.budget_usd
    title = f"For {show_usd(budget)} ({said})" if budget else "For equal money"
    screen.print(_notes(title, in_words(answer.at_equal_budget()) or _no_price(answer)))
    said = "deadline" if answer.asked.deadline_days is not None else "time of the reference"
    days = answer.deadline_days
    title = f"Within {show_days(days)} ({said}), the cheapest" if days else "By equal time"
    screen.print(_notes(title, in_words(answer.at_deadline())))
    if front := answer.pareto():
        title = "Beaten by no other in all of time, money, free memory and energy"
        screen.print(_notes(title, in_words(front)))
    screen.print(_notes("Speed-up over the number of GPUs", _curves(answer)))
    screen.print(_notes("Sizes", _sizes(answer)))
    screen.print(_notes("Read this with the numbers", _caveats(answer)))


def _notes(title: str, lines: Sequence[str]) -> Group:
    """A heading and lines that stay as narrow as the table above."""
    return notes(title, [textwrap.fill(one, _WIDTH - 2, subsequent_indent="  ") for one in lines])


def _equal_gpus(answer: Comparison) -> list[str]:
    """The order of the clusters at every size that several have."""
    lines = []
    for gpus, rows in answer.at_equal_gpus().items():
        if len({row.cluster for row in rows}) < 2:
            continue
        first = rows[0].step_time_s or 1.0
        words = [f"{r.cluster} {(r.step_time_s or 0.0) / first:.2f}" for r in rows[1:]]
        lines.append(f"{gpus:,}: {rows[0].cluster}; times as long: {', '.join(words)}")
    return lines


def in_words(rows: Sequence[Offer]) -> list[str]:
    """Offers in a few words each."""
    lines = []
    for row in rows[:_MOST]:
        days = _days(row.days)
        usd = f"{show_usd(row.usd.p50)} (P90 {show_usd(row.usd.p90)})" if row.usd else "no price"
        headroom = show_percent(row.memory_headroom or 0.0)
        words = f"{row.cluster} x {row.gpus:,}: {days}, {usd}, {headroom} of memory free"
        if row.deadline_chance is not None:
            words += f", {show_chance(row.deadline_chance)} chance in time"
        if row.evidence and row.evidence.runs == 0:
            words += ", unmeasured"
        lines.append(words)
    if len(rows) > _MOST:
        lines.append(f"and {len(rows) - _MOST} more, in --json and --out")
    return lines


def _curves(answer: Comparison) -> list[str]:
    """Where more accelerators stop paying."""
    lines = []
    for curve in answer.curves():
        if len(curve.gpus) < 2:
            continue
        last = f"{curve.gpus[0]:,} to {curve.gpus[-1]:,} GPUs: x {curve.speedup[-1]:.1f}"
        mfu = f"MFU {show_percent(curve.mfu[0])} to {show_percent(curve.mfu[-1])}"
        knee = f"knee at {curve.knee:,}" if curve.knee else "no knee in this range"
        lines.append(f"{curve.cluster}, {last}, {mfu}, {knee}")
    return lines


def _sizes(answer: Comparison) -> list[str]:
    """Sizes over which the batch does not divide, and larger ones that are slower."""
    lines = [f"{r.cluster} x {r.gpus:,}: {r.note}" for r in answer.rows if r.feasible and r.note]
    for curve in answer.curves():
        for before, after, gain in zip(
            curve.gpus, curve.gpus[1:], curve.marginal[1:], strict=False
        ):
            if gain < 0.0:
                lines.append(f"{curve.cluster}: {after:,} GPUs are slower than {before:,}")
    return lines


def _no_price(answer: Comparison) -> list[str]:
    return ["no cluster has a price: give --price USD"] if answer.budget_usd is None else []


def missed(asked: Asked, rows: Sequence[Offer], tokens: float | None = None) -> str:
    """What no offer meets, the nearest, and what it would take; nothing where one does."""
    able = [row for row in rows if row.feasible]
    if not able:
        return "MISSED: the run fits on none of these clusters and sizes."
    if any(row.meets(asked) for row in able):
        return ""
    words = []
    chance = f" with a chance of {show_percent(asked.confidence)}"
    timed = [row for row in able if row.days]
    if asked.deadline_days is not None and timed:
        best = min(timed, key=lambda row: row.days.at(asked.confidence) if row.days else 0.0)
        days = best.days.at(asked.confidence) if best.days else 0.0
        words.append(
            f"the soonest{chance} is {best.cluster} x {best.gpus:,} in {show_days(days)} of"
            f" {show_days(asked.deadline_days)}"
        )
    paid = [row for row in able if row.usd]
    if asked.budget_usd is not None and paid:
        best = min(paid, key=lambda row: row.usd.at(asked.confidence) if row.usd else 0.0)
        usd = best.usd.at(asked.confidence) if best.usd else 0.0
        words.append(
            f"the cheapest of these{chance} is {best.cluster} x {best.gpus:,} for"
            f" {show_usd(usd)} of {show_usd(asked.budget_usd)}"
        )
    said = f"MISSED: no offer meets what is asked; {'; '.join(words) or 'no price is known'}."
    return " ".join([said, *_would_take(asked, rows, tokens)])


def _would_take(asked: Asked, rows: Sequence[Offer], tokens: float | None) -> list[str]:
    """What the offer that misses the limits by least would take to meet them."""
    near = nearest(rows, asked)
    over = excesses(near, asked) if near is not None else {}
    if near is None or not over or not isfinite(max(over.values())):
        return []
    words = []
    if over.get("time", 0.0) > 1.0:
        words.append(f"{over['time']:,.3g} times the speed")
    if over.get("money", 0.0) > 1.0:
        words.append(f"prices {100.0 * (1.0 - 1.0 / over['money']):.3g} % lower")
    fewer = ""
    if tokens is not None:
        left = show_count(tokens / max(over.values()))
        fewer = f", or {left} tokens in place of {show_count(tokens)}"
    return [
        f"Nearest is {near.cluster} x {near.gpus:,}: it would take {' and '.join(words)}{fewer}."
    ]


def _caveats(answer: Comparison) -> list[str]:
    """Prices and evidence."""
    lines = []
    prices = {row.cluster: row for row in answer.feasible}
    for name, row in prices.items():
        if row.usd_per_gpu_hour is None:
            lines.append(f"{name}: no price known, give --price {name}=USD")
    named = [
        f"{name} {row.usd_per_gpu_hour:.2f} ({row.price})"
        for name, row in prices.items()
        if row.usd_per_gpu_hour is not None
    ]
    if named:
        lines.append(f"USD per accelerator and hour: {', '.join(named)}")
    energy = sum(row.kwh.p50 for row in answer.feasible if row.kwh)
    if energy:
        carbon = {r.cluster: (r.co2_kg or 0.0) / r.kwh.p50 for r in answer.feasible if r.kwh}
        grams = ", ".join(f"{name} {1e3 * kg:.0f}" for name, kg in carbon.items())
        lines.append(f"g CO2 per kWh: {grams} (--region); kg in --json")
        lines.append("Intervals of money hold those of time and price, of energy those of power.")
    weak = sorted({r.cluster for r in answer.feasible if r.evidence and r.evidence.runs == 0})
    if weak:
        lines.append(f"Nobody has measured anything like it: {', '.join(weak)}")
    searched = sum(row.layouts for row in answer.rows)
    lines.append(f"Searched {show_count(searched)} layouts in all.")
    return lines
