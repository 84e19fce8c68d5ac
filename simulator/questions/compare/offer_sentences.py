"""Offers in words: what no offer meets, which are best at equal GPUs, money and time, and why."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from simulator.economics.price import MARK
from simulator.glossary import CAVEATS, section_title
from simulator.planner.assumptions import ASSUMED
from simulator.planner.plan import TRIAL
from simulator.questions.compare.offer import excesses, nearest
from simulator.report.wording import AT_ASSUMED, IDEAL, chance_words, speed_words
from simulator.units import (
    show_change,
    show_co2,
    show_count,
    show_days,
    show_days_span,
    show_percent,
    show_seconds,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from simulator.economics.planning_factor import Span
    from simulator.questions.compare.answer import Comparison
    from simulator.questions.compare.offer import Asked, Offer

_MOST = 8
"""Lines of one view."""


def views(answer: Comparison) -> list[tuple[str, list[str]]]:
    """Say what to make of the offers: headings, and lines below each; nothing if none can run.

    The first are those of :func:`verdict`.
    """
    if not answer.feasible:
        return []
    said = [
        *verdict(answer),
        ("Evidence for the best of each cluster", _evidence(answer)),
        ("Fastest at equal GPUs, and the relative time of the others", _equal_gpus(answer)),
        *_limited(answer),
        (section_title("pareto"), _sizes_of(answer.pareto())),
        ("Speed-up over the number of GPUs", _curves(answer)),
        ("Goodput and carbon", _lost_and_carbon(answer)),
        ("Sizes", _sizes(answer)),
        (CAVEATS, caveats_of(answer)),
    ]
    return [(title, lines) for title, lines in said if lines]


def verdict(answer: Comparison) -> list[tuple[str, list[str]]]:
    """Say which offers to take, on which assumptions and prices: what stands above all else."""
    above = [_decision(answer), _assumed(answer), ("USD per GPU-hour", _prices(answer))]
    return [(title, lines) for title, lines in above if lines]


_LABELS = {
    "cheapest": "cheapest",
    "cheapest_quoted": "cheapest at a quoted price",
    "soonest": "soonest",
    "safest": "safest",
}


def limit_words(asked: Asked) -> str:
    """Deadline and budget as asked; blank without."""
    late, dear = asked.deadline_days, asked.budget_usd
    limits = [show_days(late)] if late is not None else []
    limits += [show_usd(dear)] if dear is not None else []
    return " and ".join(limits)


def _decision(answer: Comparison) -> tuple[str, list[str]]:
    """Which offers to take, by what and with which chance."""
    asked = answer.asked
    title = "Which to take (no deadline and no budget given)"
    if limits := limit_words(asked):
        title = f"Within {limits}, with a chance of {show_percent(asked.confidence)}"
    labels: dict[int, list[str]] = {}
    rows = {name: row for name, row in answer.decision.items() if row is not None}
    for name, row in rows.items():
        guessed = name == "cheapest" and row.assumed_price
        labels.setdefault(id(row), []).append(_LABELS[name] + " at an assumed price" * guessed)
    named = {id(row): row for row in rows.values()}
    return title, [f"{', '.join(labels[key])}: {in_words([row])[0]}" for key, row in named.items()]


def _assumed(answer: Comparison) -> tuple[str, list[str]]:
    """What the offer to take, or else the nearest, takes for granted."""
    row = answer.recommended or nearest(answer.rows, answer.asked)
    named = "" if row is None else f" on {row.named} x {row.gpus:,}"
    return f"{ASSUMED}{named}", [choice.words(brief=True) for choice in answer.assumptions]


def _limited(answer: Comparison) -> list[tuple[str, list[str]]]:
    """Of each cluster the best within what is asked, or with money and time of the reference."""
    if answer.asked.deadline_days is not None or answer.asked.budget_usd is not None:
        met = answer.at_both()
        title = "Of each cluster the cheapest that meets what is asked"
        return [(title, in_words(met) if len(met) > 1 else []), ("Prices", _no_price(answer))]
    reference = answer.reference
    named = "" if reference is None else f"{reference.named} x {reference.gpus:,}"
    budget, days = answer.budget_usd, answer.deadline_days
    money = f"Fastest for the planned money of {named} ({show_usd(budget)})"
    time = f"Cheapest in the planned time of {named} ({show_days(days or 0.0)})"
    if budget is None:
        money = "Fastest for equal money"
    return [
        (money, in_words(answer.at_equal_budget()) or _no_price(answer)),
        (time, in_words(answer.at_deadline())),
    ]


def _prices(answer: Comparison) -> list[str]:
    """What an hour costs on each cluster, who asks it, when, and whether it is assumed."""
    chosen = [row for row in answer.decision.values() if row is not None]
    paid = [row for row in (*chosen, *answer.feasible) if row.usd_per_gpu_hour is not None]
    rows = {row.named: row for row in paid}
    lines = [f"{name}: {price_words(row)}" for name, row in rows.items()]
    return [*lines[:_MOST], *_more(len(lines))]


def _sizes_of(rows: Sequence[Offer]) -> list[str]:
    """Offers by their sizes, a line for each cluster: their numbers stand in the table."""
    sizes: dict[str, list[str]] = {}
    for row in rows:
        sizes.setdefault(row.named, []).append(f"{row.gpus:,}")
    lines = [f"{name} x {', '.join(counts)}" for name, counts in sizes.items()]
    return [*lines[:_MOST], *_more(len(lines))]


def _more(count: int) -> list[str]:
    """That a view has not room for all of them."""
    return [f"and {count - _MOST} more, in --json and --out"] if count > _MOST else []


def _evidence(answer: Comparison) -> list[str]:
    """How well the best offer of each cluster is known, with the nearest measured run."""
    lines = []
    for row in answer.of_each_cluster():
        if row.evidence is not None:
            said = ". ".join(row.evidence.sentences()).removeprefix("Evidence: ")
            lines.append(f"{row.named} x {row.gpus:,}: {said}")
    return [*lines[:_MOST], *_more(len(lines))]


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
            f"the soonest{chance} is {best.named} x {best.gpus:,} in {show_days(days)},"
            f" {show_days(asked.deadline_days)} asked"
        )
    paid = [(row.usd_to_plan.at(asked.confidence), row) for row in able if row.usd_to_plan]
    if asked.budget_usd is not None and paid:
        usd, best = min(paid, key=lambda pair: pair[0])
        words.append(
            f"the cheapest{chance} is {best.named} x {best.gpus:,} for"
            f" {show_usd(usd)}{MARK * best.assumed_price}, {show_usd(asked.budget_usd)} asked"
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
        words.append(speed_words(faster))
    if dearer > 1.0:
        words.append(f"prices {100.0 * (1.0 - 1.0 / dearer):.3g} % lower")
    fewer = ""
    if tokens is not None:
        left = show_count(tokens / max(over.values()))
        fewer = f", or {left} tokens in place of {show_count(tokens)}"
    return [f"Nearest is {near.named} x {near.gpus:,}: it would take {' and '.join(words)}{fewer}."]


def in_words(rows: Sequence[Offer]) -> list[str]:
    """Offers in a few words each."""
    lines = []
    for row in rows[:_MOST]:
        mark = MARK * row.assumed_price
        words = [_days_words(row.days) if row.days else step_words(row)]
        if row.usd or row.days:  # a run of unknown length has no money, whatever an hour costs
            words.append(_usd_words(row.usd, mark) if row.usd else "no price")
        words.append(f"{show_percent(row.memory_headroom or 0.0)} of memory free")
        said = f"{row.named} x {row.gpus:,}: {', '.join(words)}"
        said += " (TIGHT)" * (row.memory_verdict == "TIGHT") + on_top_words(row)
        for what, held, without in (
            ("in time", row.deadline_chance, row.deadline_chance_without_factor),
            ("within the budget", row.budget_chance, row.budget_chance_without_factor),
        ):
            if held is not None and without is not None:
                said += f", {chance_words(held, without, what)}"
        if row.evidence and row.evidence.low_confidence:
            said += f", {row.evidence.low_confidence}"
        lines.append(said)
    return [*lines, *_more(len(rows))]


def step_words(row: Offer) -> str:
    """The step of an offer."""
    return f"{show_seconds(row.step_time_s or 0.0)} a step"


def on_top_words(row: Offer) -> str:
    """Days and money with the planning factor, or that there is nothing on top."""
    if row.ideal:
        return f"; {IDEAL}"
    if row.planned_days is None:
        return ""
    words = f"; plan for {_days_words(row.planned_days)}"
    if row.planned_usd is not None:
        words += f", {_usd_words(row.planned_usd, MARK * row.assumed_price)}"
    return words


def tight_words(row: Offer) -> str:
    """The layout that is better and may run out of memory; blank without one."""
    tight = row.tight_alternative
    if tight is None:
        return ""
    better = f"{show_percent(tight['faster'])} faster"
    if tight["faster"] <= 0.0:
        better = "less of what the goal makes least"
    return f"TIGHT {tight['layout']}: {better}, {TRIAL}"


def _days_words(days: Span) -> str:
    return show_days_span(days.p50, days.p10, days.p90)


def _usd_words(usd: Span, mark: str = "") -> str:
    return f"{show_usd(usd.p50)}{mark} ({show_usd_span(usd.p10, usd.p90)})"


def _equal_gpus(answer: Comparison) -> list[str]:
    """The order of the clusters at every size that several have."""
    lines = []
    for gpus, rows in answer.at_equal_gpus().items():
        several = list({row.cluster: row for row in reversed(rows)}.values())[::-1]
        if len(several) < 2:
            continue
        first = several[0].step_time_s or 1.0
        words = [f"{r.cluster} {(r.step_time_s or 0.0) / first:.2f}x" for r in several[1:]]
        lines.append(f"{gpus:,}: {several[0].cluster}; {', '.join(words)}")
    return lines


def _curves(answer: Comparison) -> list[str]:
    """Where more accelerators stop paying."""
    lines = []
    for curve in answer.curves():
        if len(curve.gpus) < 2:
            continue
        last = f"{curve.gpus[0]:,} to {curve.gpus[-1]:,} GPUs: x {curve.speedup[-1]:.1f}"
        mfu = f"MFU {show_percent(curve.mfu[0])} to {show_percent(curve.mfu[-1])}"
        knee = "no diminishing returns in this range"
        if curve.knee:
            knee = f"diminishing returns from {curve.knee:,}"
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
    if all(row.days is None for row in answer.feasible):
        return ["how long the run is nobody says: give --tokens N"]
    if all(row.usd is None for row in answer.feasible):
        return ["no cluster has a price: give --price USD"]
    reference = answer.reference
    named = "it" if reference is None else reference.named
    return [f"{named} has no price: give --price {named}=USD"]


def caveats_of(answer: Comparison) -> list[str]:
    """Assumed prices, planning factor, racks, carbon, memory, search."""
    lines = []
    prices = {row.named: row for row in answer.feasible}
    unpriced = [name for name, row in prices.items() if row.usd_per_gpu_hour is None]
    if unpriced:
        lines.append(f"No price known (give --price CLUSTER=USD): {', '.join(unpriced)}")
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
        lines.append(f"g CO2 per kWh: {_grams(answer)} (--region or economics.region)")
        lines.append(
            "Ranges are P10 to P90: of cost with uncertainty of time and price, of energy with that"
            " of power."
        )
    weak = [row for row in answer.feasible if row.evidence and row.evidence.runs == 0]
    if weak:
        named = "; ".join(_sizes_of(sorted(weak, key=lambda row: (row.named, row.gpus))))
        lines.append(f"No comparable benchmark, low confidence: {named}")
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
