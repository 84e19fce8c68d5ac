"""The screen of an admission: the decision, its reasons, the smallest request that does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from simulator.cli.screen import heading, notes
from simulator.glossary import CAVEATS
from simulator.units import show_usd

if TYPE_CHECKING:
    from simulator.questions.admit.answer import Admission

_INKS = {"allow": "bold FITS", "warn": "bold TIGHT", "refuse": "bold OOM"}


def screen(answer: Admission) -> Iterator[RenderableType]:
    """Give the decision first."""
    yield heading(answer.imported.scenario)
    yield Text(f"\n{answer.decision.upper()}", style=_INKS[answer.decision])
    if answer.prediction is not None:
        yield Text(answer.prediction.estimate.layouts.describe())
    yield notes("", [f"{reason.decision}: {reason.text}" for reason in answer.reasons])
    request = answer.smallest_request
    if request is not None:
        hours = "" if request.hours_p90 is None else f", {request.hours_p90:,.1f} hours (P90)"
        mark = answer.imported.scenario.tariff.price.mark
        usd = "" if request.usd_p90 is None else f", {show_usd(request.usd_p90)}{mark} (P90)"
        yield notes(
            "The smallest request that does it",
            [f"{request.gpus:,} accelerators{hours}{usd}: {request.layout}"],
        )
    elif answer.decision == "refuse":
        yield notes("", ["No size of this cluster, halved or doubled, does it."])
    yield notes(CAVEATS, answer.caveats)
