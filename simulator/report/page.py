"""The page: one HTML file that opens by double click, offline, light or dark as the system is."""

from __future__ import annotations

import importlib.resources
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.cost.estimate import VERDICTS
from simulator.cost.terms import MEMORY_MEANING, TERMS
from simulator.errors import visible
from simulator.events.step.streams import STREAMS
from simulator.planner.assumptions import ASSUMED
from simulator.planner.scaling import CAUSES
from simulator.report.comparison import show_change
from simulator.report.evidence import (
    FIT_RULE,
    FLOP_CONVENTION,
    NOT_MODELLED,
    ties,
)
from simulator.report.numbers import PlanNumbers
from simulator.report.palette import PALETTE, inks
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

SECTIONS = {
    "verdict": "Verdict",
    "layouts": "Best layouts",
    "time": "Where the time goes",
    "why": "Why this layout wins",
    "launch": "Launch",
    "memory": "Memory",
    "step": "The step, played",
    "pareto": "Time against free memory",
    "speedup": "Speed-up",
    "cost": "What the money goes to",
    "run": "The run, with all that fails",
    "upgrades": "What would help most",
    "otherwise": "The same training otherwise",
    "binding": "What binds",
    "defaults": "Defaults that bear on it",
    "search": "The search",
    "evidence": "Evidence and assumptions",
    "limits": "What is not modelled",
}
"""Sections of the page by anchor, in order; ``otherwise`` where other trainings were searched."""

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
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            n=numbers,
            question_mark=MARK,
            drawings=drawings,
            streams=STREAMS,
            best=numbers.best,
            launch=launch,
            sections={
                anchor: title
                for anchor, title in SECTIONS.items()
                if anchor != "otherwise" or numbers.others
            },
            terms={term.name: term for term in TERMS},
            causes=CAUSES,
            not_modelled=NOT_MODELLED,
            flop_convention=FLOP_CONVENTION,
            tie=ties(numbers.tied, len(numbers.layouts)),
            fit_rule=FIT_RULE,
            assumed=ASSUMED,
            verdict_class=VERDICT_CLASS,
            verdict_card=dict(zip(VERDICTS, ("ok", "close", "bad"), strict=True)),
            palette={name: {"light": c.light, "dark": c.dark} for name, c in PALETTE.items()},
        )
    )


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
    made.globals["inks"] = inks
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


def plotly_source() -> str:
    """Return plotly.js, which the page of a validation draws with."""
    package = importlib.resources.files("plotly")
    return (package / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _show_days(days: float | None) -> str:
    return "no number of tokens given" if days is None else show_days(days)


_FILTERS: dict[str, Any] = {
    "bytes": show_bytes,
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
