"""The page: one HTML file that opens by double click, offline, light or dark as the system is."""

from __future__ import annotations

import importlib.resources
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.cost.estimate import VERDICTS
from simulator.cost.terms import TERMS
from simulator.errors import visible
from simulator.events.step.streams import STREAMS
from simulator.planner.scaling import CAUSES
from simulator.report.comparison import show_change
from simulator.report.evidence import (
    FIT_RULE,
    FLOP_CONVENTION,
    NOT_MODELLED,
    memory_meaning,
    ties,
)
from simulator.report.figures import figures
from simulator.report.numbers import PlanNumbers
from simulator.report.palette import PALETTE, colour
from simulator.report.question import MARK
from simulator.units import (
    show_bytes,
    show_count,
    show_percent,
    show_seconds,
    show_signed_percent,
    show_usd,
    show_usd_span,
)

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["SECTIONS", "environment", "plotly_source", "render"]

SECTIONS = {
    "verdict": "Verdict",
    "layouts": "Best layouts",
    "launch": "Launch",
    "time": "Where the time goes",
    "why": "Why this layout wins",
    "memory": "Memory",
    "step": "The step, played",
    "run": "The run, with all that fails",
    "speedup": "Speed-up",
    "upgrades": "What would help most",
    "binding": "What binds",
    "defaults": "Defaults that bear on it",
    "search": "The search",
    "evidence": "Evidence and assumptions",
    "limits": "What is not modelled",
}
"""Sections of the page by anchor, in order."""


def render(numbers: PlanNumbers, *, launch: str, pipeline: bytes, run: bytes | None = None) -> str:
    """Write the page of a plan.

    Parameters
    ----------
    numbers : PlanNumbers
        Everything it shows.
    launch : str
        The command that starts the best layout, to copy.
    pipeline : bytes
        The picture of the played step (``pipeline_picture.py``).
    run : bytes, optional
        The picture of goodput (``run_picture.py``); None: nobody asked what goes wrong.
    """
    from markupsafe import Markup

    return (
        environment()
        .get_template("page.html.j2")
        .render(
            n=numbers,
            question_mark=MARK,
            pipeline=b64encode(pipeline).decode(),
            run=None if run is None else b64encode(run).decode(),
            streams=STREAMS,
            best=numbers.best,
            launch=launch,
            sections=SECTIONS,
            terms={term.name: term for term in TERMS},
            causes=CAUSES,
            not_modelled=NOT_MODELLED,
            flop_convention=FLOP_CONVENTION,
            tie=ties(numbers.tied, len(numbers.layouts)),
            fit_rule=FIT_RULE,
            verdict_class=dict(zip(VERDICTS, ("fits", "tight", "fails"), strict=True)),
            verdict_card=dict(zip(VERDICTS, ("ok", "close", "bad"), strict=True)),
            figures=figures(numbers),
            palette={name: {"light": c.light, "dark": c.dark} for name, c in PALETTE.items()},
            colour=colour,
            plotly=Markup(plotly_source()),  # plotly.js itself, from its own package
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
    )
    made.filters |= _FILTERS
    return made


def _shown(value: Any) -> Any:
    """Write out what a browser would obey in names: controls, marks that turn the direction."""
    is_name = isinstance(value, str) and not hasattr(value, "__html__")
    return visible(value) if is_name else value


def plotly_source() -> str:
    """Return plotly.js; made to be put inside a script element."""
    package = importlib.resources.files("plotly")
    return (package / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _show_days(days: float | None) -> str:
    return "no number of tokens given" if days is None else f"{days:,.1f} days"


def _show_kwh(kwh: float) -> str:
    return f"{kwh / 1e6:.3g} GWh" if kwh >= 1e6 else f"{kwh / 1e3:.3g} MWh"


_FILTERS: dict[str, Any] = {
    "bytes": show_bytes,
    "change": show_change,
    "count": show_count,
    "days": _show_days,
    "kwh": _show_kwh,
    "meaning": memory_meaning,
    "percent": show_percent,
    "seconds": show_seconds,
    "signed_percent": show_signed_percent,
    "usd": show_usd,
    "usd_span": lambda span: show_usd_span(*span),
}
