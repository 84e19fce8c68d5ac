"""The page of a comparison: every offer in a table to sort, its picture, what to make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.decisions.offers import Offer
from simulator.report.inline_svg import inline
from simulator.report.offers_page import Cell, offers_page
from simulator.report.offers_words import missed, views
from simulator.units import (
    show_chance,
    show_count,
    show_kwh,
    show_number_of_days,
    show_percent,
    show_seconds,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from simulator.decisions.cluster_comparison import Comparison
    from simulator.economics.unsure_totals import Span

__all__ = ["compare_page"]

_COLUMNS = {
    "cluster": True,
    "GPUs": False,
    "days": False,
    "P10 to P90": True,
    "in time": False,
    "USD": False,
    "its P10 to P90": True,
    "energy": False,
    "step": False,
    "MFU": False,
    "memory": True,
    "layout": True,
    "evidence": True,
}
"""Columns, and whether they hold words."""


def compare_page(answer: Comparison, wide: bytes, narrow: bytes) -> str:
    """Write a comparison as one page that needs nothing else.

    Parameters
    ----------
    answer : Comparison
    wide, narrow : bytes
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
        missed=missed(answer.asked, answer.rows, workload.recipe.tokens),
        picture=("Over the number of GPUs", inline(wide, narrow, name="compare", alt=alt)),
        views=views(answer),
    )


def _job(answer: Comparison) -> str:
    """The run in a line, and how many offers can do it."""
    recipe = answer.scenario.workload.recipe
    words = [f"batch {recipe.global_batch:,} x {recipe.sequence_length:,}", recipe.precision]
    if recipe.tokens:
        words.insert(0, f"{show_count(recipe.tokens)} tokens")
    able = f"{len(answer.feasible)} of {len(answer.rows)} offers can run"
    return f"{', '.join(words)}, {recipe.optimizer}; {able}, each with its best layout"


def _row(row: Offer) -> list[Cell]:
    """Cells in the order of the columns; an offer that cannot run says why."""
    if not row.feasible:
        empty: list[Cell] = [(None, "-")] * (len(_COLUMNS) - 4)
        return [(row.cluster, row.cluster), (row.gpus, f"{row.gpus:,}"), *empty,
                (row.reason, row.reason), ("", "")]  # fmt: skip
    chance = row.deadline_chance
    grade = row.evidence.grade if row.evidence else "-"
    usd_ends = show_usd_span(row.usd.p10, row.usd.p90).removesuffix(" USD") if row.usd else "-"
    free = show_percent(row.memory_headroom or 0.0)
    memory = f"{row.memory_verdict or ''} {free} free".strip()
    return [
        (row.cluster, row.cluster),
        (row.gpus, f"{row.gpus:,}"),
        _middle(row.days, show_number_of_days),
        _ends(row.days),
        (None, "-") if chance is None else (chance, show_chance(chance)),
        _middle(row.usd, lambda usd: show_usd(usd).removesuffix(" USD")),
        (usd_ends, usd_ends),
        _middle(row.kwh, show_kwh),
        (row.step_time_s, show_seconds(row.step_time_s or 0.0)),
        (row.mfu, show_percent(row.mfu or 0.0)),
        (memory, memory),
        (row.described, row.described),
        (grade, grade),
    ]


def _middle(span: Span | None, show: Callable[[float], str]) -> Cell:
    return (None, "-") if span is None else (span.p50, show(span.p50))


def _ends(days: Span | None) -> Cell:
    if days is None:
        return None, "-"
    text = f"{show_number_of_days(days.p10)} to {show_number_of_days(days.p90)}"
    return text, text
