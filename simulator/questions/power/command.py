"""`foreshard power`: a cap in kW for the hall, clock against accelerators that run.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import ScenarioFile, check_out, writing
from simulator.cli.runner import Reply, question
from simulator.cli.screen import heading, notes, table_of, waiting
from simulator.errors import InputError
from simulator.glossary import CAVEATS
from simulator.goal import Goal
from simulator.units import (
    show_chance,
    show_count,
    show_kwh,
    show_number_of_days,
    show_percent,
    show_seconds,
    show_usd,
)

if TYPE_CHECKING:
    from simulator.questions.power.answer import PowerChoice, PowerChoices


Cap = Annotated[
    float, typer.Option("--cap", metavar="KW", help="Power of the hall at the meter, in kW.")
]
Picture = Annotated[
    Path | None,
    typer.Option("--picture", metavar="FILE", help="Draw the frontier over caps: .png or .svg."),
]


@question(
    "power",
    "power run.toml --cap 800",
    "power run.toml --cap 800 --picture frontier.svg",
)
def ask(
    *,
    scenario: ScenarioFile = None,
    cap: Cap,
    picture: Picture = None,
    options: ScenarioOptions,
) -> Reply:
    """Find how to run under a cap of power: how many accelerators, and at which clock.

    Exit 0: done; 1: nothing fits, or nothing stays under the cap; 2: bad input.
    """
    from simulator.questions.power.answer import power_choices

    check_out("--picture", picture)
    if picture is not None and picture.suffix not in (".png", ".svg"):
        raise InputError(f"--picture: must end in .png or .svg, got {picture.name!r}")
    described = options.scenario(scenario)
    with waiting("searching every size"):
        answer = power_choices(described, cap)
    return Reply(answer, screen, write=None if picture is None else partial(_write, path=picture))


def _write(answer: PowerChoices, path: Path) -> list[str]:
    """Write the picture of the frontier."""
    from simulator.plain_files import write_files
    from simulator.questions.power.picture import power_picture
    from simulator.report.canvas import file_bytes

    with writing(path, "--picture"):
        write_files({path: file_bytes(power_picture(answer), path.suffix)})
    return [f"Picture: {path}"]


def _goal_columns(goal: Goal) -> Iterator[tuple[str, Callable[[PowerChoice], str]]]:
    """How likely each choice is to keep deadline and budget, where there are such."""

    def words(chance: float | None) -> str:
        return "" if chance is None else show_chance(chance)

    if goal.deadline_days is not None:
        yield "in time", lambda row: words(row.deadline_chance)
    if goal.budget_usd is not None:
        yield "in budget", lambda row: words(row.budget_chance)


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
        *_goal_columns(answer.scenario.goal),
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
