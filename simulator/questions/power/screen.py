"""The screen of a cap of power: choices under it, and the frontier over caps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from simulator.cli.screen import heading, notes, table_of
from simulator.glossary import CAVEATS
from simulator.units import (
    show_count,
    show_kwh,
    show_number_of_days,
    show_percent,
    show_seconds,
    show_usd,
)

if TYPE_CHECKING:
    from simulator.questions.power.answer import PowerChoices


def screen(answer: PowerChoices) -> Iterator[RenderableType]:
    """Give the fastest, the others, then what other caps would leave."""
    best, full = answer.best, answer.full
    yield heading(answer.scenario)
    free = answer.cap_kw >= full.kw and best.clock == 1.0 and best.gpus == full.gpus
    words = "the cap does not bind" if free else f"all at a full clock would draw {full.kw:,.1f} kW"
    yield Text(f"\n{answer.line}; {words}\n", style="bold")
    yield table_of(
        answer.choices,
        ("accelerators", lambda row: f"{row.gpus:,}"),
        ("clock", lambda row: show_percent(row.clock)),
        ("limit, W", lambda row: f"{row.limit_watt:,.0f}"),
        ("kW", lambda row: f"{row.kw:,.1f}"),
        ("step", lambda row: show_seconds(row.step_time_s)),
        ("tokens a kWh", lambda row: show_count(row.tokens_per_kwh)),
        ("days", lambda row: "" if row.days is None else show_number_of_days(row.days)),
        ("energy", lambda row: "" if row.kwh is None else show_kwh(row.kwh)),
        (
            f"USD{answer.scenario.tariff.price.mark}",
            lambda row: "" if row.usd is None else show_usd(row.usd),
        ),
        ("layout", lambda row: row.layout),
        left=("layout",),
    )
    yield ""
    yield notes("The fastest under other caps", [
        f"{point.cap_kw:,.1f} kW: {point.choice.gpus:,} at {show_percent(point.choice.clock)},"
        f" {show_seconds(point.choice.step_time_s)} a step,"
        f" {show_count(point.choice.tokens_per_kwh)} tokens a kWh"
        for point in answer.frontier
    ])  # fmt: skip
    yield notes(CAVEATS, answer.caveats)
