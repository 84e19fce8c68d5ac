"""What `foreshard plan` prints for servers of several kinds."""

from __future__ import annotations

from rich.text import Text

from simulator.cli.screen import amount, console, heading, notes, plain_table, seconds_like
from simulator.planner.mixed_plan import MixedOption, MixedPlan
from simulator.units import show_percent, show_usd

__all__ = ["show_mixed_plan"]

_NOTES = (
    "stages: pipeline stages lie on one kind of servers each, layers dealt by what each kind does"
    " and holds; played on discrete events",
    "shares: replicas lie on one kind each and take unlike numbers of micro-batches, which few"
    " frameworks offer; each kind played with its share",
    "days: goodput as on servers of the first kind; other layouts for each kind at once are not"
    " tried",
)


def show_mixed_plan(answer: MixedPlan) -> None:
    """Print every way to use the servers, the fastest first."""
    screen = console()
    screen.print(heading(answer.scenario))
    screen.print(Text(f"\n{answer.verdict}\n", style="bold"))
    unit, scale = seconds_like(answer.best.step_s)
    table = plain_table(
        "way", "GPUs", f"step ({unit})", "slower", "micro-batches", "days", "USD", "layout",
        left=("way", "layout"),
    )  # fmt: skip
    for one in answer.options:
        slower = show_percent(one.step_s / answer.best.step_s - 1.0)
        days = "" if one.days is None else f"{one.days:,.1f}"
        usd = "" if one.usd is None else show_usd(one.usd)
        cells = (f"{one.gpus:,}", amount(scale * one.step_s), slower, _counts(one), days, usd)
        table.add_row(one.way, *cells, one.described)
    screen.print(table)
    screen.print(notes("Read this", list(_NOTES)))


def _counts(one: MixedOption) -> str:
    return " + ".join(f"{count:,}" for count in dict.fromkeys(one.micro_batches))
