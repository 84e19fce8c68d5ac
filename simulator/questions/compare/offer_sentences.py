"""Offers in words: what no offer meets, which are best at equal GPUs, money and time, and why."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from simulator.answers import CAVEATS
from simulator.questions.compare.offers import excesses, nearest
from simulator.report.wording import AT_ASSUMED, MARK, chance_words
from simulator.units import (
    show_change,
    show_co2,
    show_count,
    show_days,
    show_days_span,
    show_percent,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from simulator.economics.unsure_totals import Span
    from simulator.questions.compare.answer import Comparison
    from simulator.questions.compare.offers import Asked, Offer

_MOST = 8
"""Lines of one view."""


def views(answer: Comparison) -> list[tuple[str, list[str]]]:
    """Say what to make of the offers: headings, and lines below each; nothing if none can run."""
    if not answer.feasible:
        return []
    said = "budget" if answer.asked.budget_usd is not None else f"money of {_reference(answer)}"
    budget = answer.budget_usd
    money = f"For {show_usd(budget)} ({said})" if budget else "For equal money"
    said = "deadline" if answer.asked.deadline_days is not None else f"time of {_reference(answer)}"
    days = answer.deadline_days
    time = f"Within {show_days(days)} ({said}), the cheapest" if days else "By equal time"
    front = "Beaten by no other in all of time, money, free memory and energy"
    asked = answer.asked
    both = f"Within {show_days(asked.deadline_days or 0.0)} and {show_usd(asked.budget_usd)},"
    found = [
        (f"{both} the cheapest", in_words(answer.at_both())),
        ("At equal GPUs, the fastest", _equal_gpus(answer)),
        (money, in_words(answer.at_equal_budget()) or _no_price(answer)),
        (time, in_words(answer.at_deadline())),
        (front, in_words(answer.pareto())),
        ("Speed-up over the number of GPUs", _curves(answer)),
        ("Useful time and carbon", _lost_and_carbon(answer)),
        ("Sizes", _sizes(answer)),
        (CAVEATS, _caveats(answer)),
    ]
    return [(title, lines) for title, lines in found if lines]


def _reference(answer: Comparison) -> str:
    """The offer that stands for what nobody gave, with the planning factor."""
    row = answer.reference
    return "no offer" if row is None else f"{row.named} x {row.gpus:,}, to plan for"


def missed(asked: Asked, rows: Sequence[Offer], tokens: float | None = None) -> str:
    """What no offer meets, the nearest, and what it would take; nothing where one does."""
    able = [row for row in rows if row.feasible]
    if not able:
        return "MISSED: the run fits on none of these clusters and sizes."
    if any(row.meets(asked) for row in able):
        return ""
    words = []
    chance = f" with a chance of {show_percent(asked.confidence)}"
    timed = [(row.days_to_plan.at(asked.confidence), row) for row in able if row.days_to_plan]
    if asked.deadline_days is not None and timed:
        days, best = min(timed, key=lambda pair: pair[0])
        words.append(
            f"the soonest{chance} is {best.cluster} x {best.gpus:,} in {show_days(days)},"
            f" {show_days(asked.deadline_days)} asked"
        )
    paid = [(row.usd_to_plan.at(asked.confidence), row) for row in able if row.usd_to_plan]
    if asked.budget_usd is not None and paid:
        usd, best = min(paid, key=lambda pair: pair[0])
        words.append(
            f"the cheapest{chance} is {best.cluster} x {best.gpus:,} for {show_usd(usd)},"
            f" {show_usd(asked.budget_usd)} asked"
        )
    said = f"MISSED: no offer meets what is asked; {'; '.join(words) or 'no price is known'}."
    return " ".join([said, *_would_take(asked, rows, tokens)])


def _would_take(asked: Asked, rows: Sequence[Offer], tokens: float | None) -> list[str]:
    """What the offer that misses the limits by least would take to meet them.

    A run that is faster costs less in proportion, so that only the rest is asked of prices.
    """
    near = nearest(rows, asked)
    over = excesses(near, asked) if near is not None else {}
    if near is None or not over or not isfinite(max(over.values())):
        return []
    words = []
    faster = max(over.get("time", 0.0), 1.0)
    dearer = over.get("money", 0.0) / faster
    if faster > 1.0:
        words.append(f"{faster:,.3g} times the speed")
    if dearer > 1.0:
        words.append(f"prices {100.0 * (1.0 - 1.0 / dearer):.3g} % lower")
    fewer = ""
    if tokens is not None:
        left = show_count(tokens / max(over.values()))
        fewer = f", or {left} tokens in place of {show_count(tokens)}"
    return [
        f"Nearest is {near.cluster} x {near.gpus:,}: it would take {' and '.join(words)}{fewer}."
    ]


def in_words(rows: Sequence[Offer]) -> list[str]:
    """Offers in a few words each."""
    lines = []
    for row in rows[:_MOST]:
        days = _days(row.days)
        usd = f"{show_usd(row.usd.p50)} (P90 {show_usd(row.usd.p90)})" if row.usd else "no price"
        usd += MARK * row.assumed_price
        headroom = show_percent(row.memory_headroom or 0.0)
        words = f"{row.named} x {row.gpus:,}: {days}, {usd}, {headroom} of memory free"
        words += " (TIGHT)" * (row.memory_verdict == "TIGHT")
        if row.planned_days is not None:
            words += f"; plan for {_planned(row)}"
        for what, held, without in (
            ("in time", row.deadline_chance, row.deadline_chance_without_factor),
            ("within the budget", row.budget_chance, row.budget_chance_without_factor),
        ):
            if held is not None and without is not None:
                words += f", {chance_words(held, without, what)}"
        if row.evidence and row.evidence.grade == "unmeasured":
            words += ", unmeasured"
        lines.append(words)
    if len(rows) > _MOST:
        lines.append(f"and {len(rows) - _MOST} more, in --json and --out")
    return lines


def _planned(row: Offer) -> str:
    """Days and money with the planning factor, P10 to P90."""
    days, usd = row.planned_days, row.planned_usd
    assert days is not None
    words = show_days_span(days.p50, days.p10, days.p90)
    if usd is not None:
        words += f", {show_usd(usd.p50)} ({show_usd_span(usd.p10, usd.p90)})"
    return words


def _days(days: Span | None) -> str:
    """Days of an offer with their P90."""
    if days is None:
        return ""
    p50, p90 = show_days(days.p50), show_days(days.p90)
    unit = p50.partition(" ")[2]
    return f"{p50} (P90 {p90.removesuffix(f' {unit}')})"


def _equal_gpus(answer: Comparison) -> list[str]:
    """The order of the clusters at every size that several have."""
    lines = []
    for gpus, rows in answer.at_equal_gpus().items():
        several = list({row.cluster: row for row in reversed(rows)}.values())[::-1]
        if len(several) < 2:
            continue
        first = several[0].step_time_s or 1.0
        words = [f"{r.cluster} {(r.step_time_s or 0.0) / first:.2f}" for r in several[1:]]
        lines.append(f"{gpus:,}: {several[0].cluster}; times as long: {', '.join(words)}")
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


def _lost_and_carbon(answer: Comparison) -> list[str]:
    """Share of the time that is useful, and what the run emits, from the fewest to the most."""
    lines = []
    for name, rows in _by_cluster(answer).items():
        good = [row.goodput for row in rows if row.goodput is not None]
        carbon = [row.co2_kg for row in rows if row.co2_kg is not None]
        words = [f"goodput {_ends([show_percent(share) for share in good])}"] if good else []
        words += [f"{_ends([show_co2(kg) for kg in carbon])} of CO2"] if carbon else []
        if words:
            sizes = _ends([f"{row.gpus:,}" for row in rows])
            lines.append(f"{name}, {sizes} GPUs: {', '.join(words)}")
    return lines


def _by_cluster(answer: Comparison) -> dict[str, list[Offer]]:
    """Offers that can run by cluster, the fewest accelerators first."""
    offers: dict[str, list[Offer]] = {}
    for row in sorted(answer.feasible, key=lambda one: one.gpus):
        offers.setdefault(row.named, []).append(row)
    return {row.named: offers[row.named] for row in answer.feasible}


def _ends(values: Sequence[str]) -> str:
    """The first and the last of them."""
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _sizes(answer: Comparison) -> list[str]:
    """Sizes over which the batch does not divide, and larger ones that are slower."""
    lines = [
        f"{row.cluster} x {row.gpus:,}: {row.note}{_beside(answer, row)}"
        for row in answer.rows
        if row.feasible and row.note
    ]
    for curve in answer.curves():
        for before, after, gain in zip(
            curve.gpus, curve.gpus[1:], curve.marginal[1:], strict=False
        ):
            if gain < 0.0:
                lines.append(f"{curve.cluster}: {after:,} GPUs are slower than {before:,}")
    return lines


def _beside(answer: Comparison, row: Offer) -> str:
    """How fast an accelerator of an offer is beside those of the next larger size compared."""
    larger = [x for x in answer.feasible if x.cluster == row.cluster and x.gpus > row.gpus]
    if not larger or not row.tokens_per_s_per_gpu:
        return ""
    beside = min(larger, key=lambda x: x.gpus)
    change = show_change(
        row.tokens_per_s_per_gpu, beside.tokens_per_s_per_gpu or 1.0, ("slower", "faster")
    )
    return f"; per GPU it is {change} than {beside.gpus:,}"


def _no_price(answer: Comparison) -> list[str]:
    if answer.budget_usd is not None:
        return []
    if all(row.usd is None for row in answer.feasible):
        return ["no cluster has a price: give --price USD"]
    reference = answer.reference
    named = "it" if reference is None else reference.named
    return [f"{named} has no price: give --price {named}=USD"]


def _caveats(answer: Comparison) -> list[str]:
    """Prices and evidence."""
    lines = []
    prices = {row.named: row for row in answer.feasible}
    for name, row in prices.items():
        if row.usd_per_gpu_hour is None:
            lines.append(f"{name}: no price known, give --price {row.cluster}=USD")
    named = [f"{name} {price_words(row)}" for name, row in prices.items() if row.usd_per_gpu_hour]
    if named:
        lines.append(f"USD per accelerator and hour: {'; '.join(named)}")
    if any(row.assumed_price for row in answer.feasible):
        lines.append(AT_ASSUMED)
    factor = next((row.planning_factor for row in answer.feasible if row.planning_factor), None)
    if factor is not None:
        lines.append(f"Plan for: {factor.sentence()}. Deadline and budget are held against it.")
    for row in prices.values():
        for what, usd in (row.beside_usd or {}).items():
            lines.append(f"{row.named}: beside its money, {what} of one checkpoint {show_usd(usd)}")
    if racks := sorted({row.named for row in answer.feasible if row.of_racks}):
        lines.append(f"Paid for by whole racks: {', '.join(racks)}")
    energy = sum(row.kwh.p50 for row in answer.feasible if row.kwh)
    if energy:
        lines.append(f"g CO2 per kWh: {_grams(answer)} (--region)")
        lines.append("Intervals of money hold those of time and price, of energy those of power.")
    weak = sorted({r.cluster for r in answer.feasible if r.evidence and r.evidence.runs == 0})
    if weak:
        lines.append(f"Nobody has measured anything like it: {', '.join(weak)}")
    tight = sum(row.memory_verdict == "TIGHT" for row in answer.feasible)
    if tight:
        lines.append(
            f"TIGHT: the P90 of the memory is more than is usable; {tight} of"
            f" {len(answer.feasible)} offers, on which no layout FITS; they stand behind the others"
            if not answer.asked.allow_tight
            else f"TIGHT: the P90 of the memory is more than is usable; {tight} of"
            f" {len(answer.feasible)} offers"
        )
    searched = sum(row.layouts for row in answer.rows)
    lines.append(f"Searched {show_count(searched)} layouts in all.")
    return lines


def price_words(row: Offer) -> str:
    """What an hour costs, who asks it on what terms and when, and whether it is assumed."""
    price = row.price or {}
    said = [price.get(name) for name in ("term", "provider", "date")]
    words = ", ".join([*filter(None, said), *["assumed"] * row.assumed_price])
    typed = price.get("base") == "typed"
    return f"{row.usd_per_gpu_hour:.2f} ({'yours' if typed else words or row.price_name})"


def _grams(answer: Comparison) -> str:
    """Carbon of a kWh, by cluster where it differs."""
    carbon = {r.cluster: (r.co2_kg or 0.0) / r.kwh.p50 for r in answer.feasible if r.kwh}
    words = {name: f"{1e3 * kg:.0f}" for name, kg in carbon.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{name} {grams}" for name, grams in words.items())
