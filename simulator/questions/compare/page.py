"""The page of a comparison: every offer in a table to sort, its picture, what to make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.questions.compare.offer_sentences import missed, price_words, views
from simulator.questions.compare.offers import Offer
from simulator.questions.compare.offers_page import Cell, offers_page
from simulator.report.inline_svg import inline
from simulator.report.wording import MARK, length_words
from simulator.units import (
    show_chance,
    show_co2,
    show_kwh,
    show_number_of_days,
    show_percent,
    show_seconds,
    show_usd,
)

if TYPE_CHECKING:
    from simulator.economics.unsure_totals import Span
    from simulator.questions.compare.answer import Comparison

_COLUMNS = {
    "cluster": True,
    "GPUs": False,
    "days": False,
    "in time": False,
    "USD": False,
    "memory": False,
    "layout": True,
    "evidence": True,
    "step": False,
    "MFU": False,
    "goodput": False,
    "energy": False,
    "CO2": False,
    "USD an hour": True,
}
"""Columns, and whether they hold words; below days and USD stand their P10 to P90, and what to plan
for."""

_ASIDE = ("step", "MFU", "goodput", "energy", "CO2", "USD an hour")
"""Columns on demand: what is left fits a small window and paper."""


def compare_page(answer: Comparison, wide: str, narrow: str) -> str:
    """Write a comparison as one page that needs nothing else.

    Parameters
    ----------
    answer : Comparison
    wide, narrow : str
        Its picture as SVG, for screens and for phones.
    """
    workload = answer.scenario.workload
    clusters = list(dict.fromkeys(row.cluster for row in answer.rows))
    alt = "Speed-up, MFU and money over the number of GPUs; money against days"
    return offers_page(
        "compare",
        f"{workload.architecture.name} on {', '.join(clusters)}",
        _job(answer),
        list(_COLUMNS.items()),
        [_row(row) for row in answer.rows],
        table="Offers",
        naming=2,
        aside=_ASIDE,
        missed=missed(answer.asked, answer.rows, workload.recipe.run_tokens),
        picture=("Over the number of GPUs", inline(wide, narrow, alt=alt)),
        views=views(answer),
    )


def _job(answer: Comparison) -> str:
    """The run in a line, and how many offers can do it."""
    recipe = answer.scenario.workload.recipe
    words = [f"batch {recipe.global_batch:,} x {recipe.sequence_length:,}", recipe.precision]
    if recipe.tokens:
        words.insert(0, length_words(recipe))
    able = f"{len(answer.feasible)} of {len(answer.rows)} offers can run"
    return f"{', '.join(words)}, {recipe.optimizer}; {able}, each with its best layout"


def _row(row: Offer) -> list[Cell]:
    """Cells in the order of the columns; an offer that cannot run says why."""
    if not row.feasible:
        known = {
            "cluster": _words(row.named),
            "GPUs": (row.gpus, f"{row.gpus:,}", ""),
            "layout": _words(row.reason),
        }
        return [known.get(name, (None, "-", "")) for name in _COLUMNS]
    free = show_percent(row.memory_headroom or 0.0)

    def usd(amount: float) -> str:
        return show_usd(amount).removesuffix(" USD")

    return [
        _words(row.named),
        (row.gpus, f"{row.gpus:,}", ""),
        _spanned(row.days, show_number_of_days, row.planned_days),
        _value(row.deadline_chance, show_chance),
        _spanned(row.usd, usd, row.planned_usd, MARK * row.assumed_price),
        (row.memory_headroom, row.memory_verdict or "-", f"{free} free"),
        _words(row.described),
        _words(row.evidence.grade if row.evidence else "-"),
        _value(row.step_time_s, show_seconds),
        _value(row.mfu, show_percent),
        _value(row.goodput, show_percent),
        _value(row.kwh.p50 if row.kwh else None, show_kwh),
        _value(row.co2_kg, show_co2),
        _words(price_words(row) if row.usd_per_gpu_hour else "-"),
    ]


def _words(text: str) -> Cell:
    return text, text, ""


def _value(value: float | None, show: Callable[[float], str]) -> Cell:
    return (None, "-", "") if value is None else (value, show(value), "")


def _spanned(
    span: Span | None, show: Callable[[float], str], planned: Span | None = None, mark: str = ""
) -> Cell:
    """The middle, and below it P10 to P90 and the same with the planning factor."""
    if span is None:
        return None, "-", ""
    below = f"{show(span.p10)} to {show(span.p90)}"
    if planned is not None:
        below += f"; plan for {show(planned.p50)} ({show(planned.p10)} to {show(planned.p90)})"
    return span.p50, show(span.p50) + mark, below
