"""The page: one HTML file that opens by double click, offline, light or dark as the system is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.cost.estimate import VERDICTS
from simulator.cost.terms import MEMORY_MEANING, TERMS
from simulator.economics.planning_factor import Span
from simulator.errors import visible
from simulator.events.step.streams import STREAMS
from simulator.evidence.card import Card
from simulator.layout.plain_words import layout_choices, plain_layout
from simulator.planner.layout_row import LayoutRow
from simulator.report.comparison import show_change
from simulator.report.decision import (
    GRADE_WORDS,
    Offer,
    badges,
    brief_chance,
    evidence_words,
    gpu_word,
    memory_words,
    options_words,
    price_words,
    verdict_sentence,
)
from simulator.report.evidence import (
    FIT_RULE,
    FLOP_CONVENTION,
    NOT_MODELLED,
    ties,
)
from simulator.report.numbers import PlanNumbers
from simulator.report.palette import CATEGORIES, PAGE, PALETTE, inks
from simulator.report.report_identity import MARK
from simulator.units import (
    show_bytes,
    show_chance,
    show_count,
    show_days,
    show_kwh,
    show_number_of_days,
    show_percent,
    show_seconds,
    show_signed_percent,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment
    from markupsafe import Markup

TABS = {
    "decision": "Decision",
    "engineering": "Engineering",
    "evidence": "Evidence",
    "search": "Search",
}
"""Parts of the page by anchor, in order; the first alone is printed."""

VERDICT_CLASS = dict(zip(VERDICTS, ("fits", "tight", "fails"), strict=True))
"""The style of each verdict."""


def render(numbers: PlanNumbers, *, launch: str, drawings: Mapping[str, Markup]) -> str:
    """Write the page of a plan.

    Parameters
    ----------
    numbers : PlanNumbers
        Everything it shows.
    launch : str
        The command that starts the best layout, to copy.
    drawings : mapping
        Pictures by name, as ``inline_svg.py`` makes them; a picture that is missing is left out.
    """
    sign, words = GRADE_WORDS[numbers.evidence.grade]
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            n=numbers,
            question_mark=MARK,
            drawings=drawings,
            tabs=TABS,
            streams=STREAMS,
            best=numbers.best,
            sentence=verdict_sentence(numbers.own, numbers.asked),
            options_line=options_words(numbers.offers, numbers.options, numbers.asked),
            badges=badges(numbers.own, numbers.asked),
            evidence_sign=sign,
            evidence_words=numbers.evidence.low_confidence.capitalize() or words,
            memory_line=f"{memory_words(numbers.own)}.",
            launch=launch,
            alike=_alike(numbers.layouts),
            terms={term.name: term for term in TERMS},
            not_modelled=NOT_MODELLED,
            left_out=[what for what, _ in NOT_MODELLED[:_LEFT_OUT]],
            flop_convention=FLOP_CONVENTION,
            tie=ties(numbers.tied, len(numbers.layouts)),
            fit_rule=FIT_RULE,
        )
    )


_LEFT_OUT = 4
"""Effects outside the range that the first part names."""


def _alike(rows: Sequence[LayoutRow]) -> set[int]:
    """Ranks of layouts whose tp and pp a better one has, and whose verdict."""
    seen: set[tuple[Any, ...]] = set()
    later = set()
    for row in rows:
        key = row.layout["tp"], row.layout["cp"], row.layout["pp"], row.memory_verdict
        if key in seen:
            later.add(row.rank)
        seen.add(key)
    return later


def environment() -> Environment:
    """Return what every page is made with: its templates and filters, and text escaped."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).resolve().parent),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_compiled_templates(),
    )
    made.filters |= _FILTERS
    made.globals |= {"inks": inks, "page_inks": PAGE, "palette": PALETTE | CATEGORIES}
    made.globals["verdict_class"] = VERDICT_CLASS
    return made


def _compiled_templates() -> BytecodeCache | None:
    """Templates as Python code, kept where Python keeps its own: half of the time of a page.

    None where that folder cannot be written, as Python keeps nothing there either.
    """
    import jinja2

    folder = Path(__file__).resolve().parent / "__pycache__"
    if sys.dont_write_bytecode or not os.access(folder, os.W_OK):
        return None
    return jinja2.FileSystemBytecodeCache(str(folder), "%s.template")


_PERCENT = re.compile(r"(?<=\d) %")
"""A number and its sign stay on one line."""


def _shown(value: Any) -> Any:
    """Write out what a browser would obey in names: controls, marks that turn the direction."""
    is_name = isinstance(value, str) and not hasattr(value, "__html__")
    return _PERCENT.sub("\u00a0%", visible(value)) if is_name else value


def _show_days(days: float | None) -> str:
    return "no number of tokens given" if days is None else show_days(days)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def _span_days(span: Span) -> str:
    return f"{show_number_of_days(span.p10)} to {show_number_of_days(span.p90)}"


def _span_usd(span: Span) -> str:
    return show_usd_span(span.p10, span.p90).removesuffix(" USD")


def _free_memory(offer: Offer) -> str:
    total, usable = offer.memory_total_bytes, offer.usable_bytes
    return "" if not total or not usable else f"{show_percent(1.0 - total / usable)} free"


def _brief_grade(card: Card | None) -> str:
    """The sign of a grade, and the error to expect."""
    if card is None:
        return "-"
    error = "" if card.mean_error is None else f" {100.0 * card.mean_error:.0f} %"
    return GRADE_WORDS[card.grade][0] + error


def _evidence_sentence(card: Card) -> str:
    """How many runs near were how far off, and which is the nearest."""
    return ". ".join([*card.sentences()[1:2], f"{card.assumed} input figures are assumed."])


_FILTERS: dict[str, Any] = {
    "brief_chance": brief_chance,
    "brief_grade": _brief_grade,
    "bytes": show_bytes,
    "choices": layout_choices,
    "free_memory": _free_memory,
    "gpus": gpu_word,
    "grade": evidence_words,
    "length_of_evidence": _evidence_sentence,
    "plain_layout": plain_layout,
    "price": price_words,
    "sentence": _sentence,
    "span_days": _span_days,
    "span_usd": _span_usd,
    "chance": show_chance,
    "change": show_change,
    "count": show_count,
    "days": _show_days,
    "day_number": show_number_of_days,
    "kwh": show_kwh,
    "meaning": MEMORY_MEANING.get,
    "percent": show_percent,
    "seconds": show_seconds,
    "signed_percent": show_signed_percent,
    "usd": show_usd,
    "usd_span": show_usd_span,
}
