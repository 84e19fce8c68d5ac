"""The screen of `foreshard rent-or-buy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from simulator.answers import CAVEATS
from simulator.cli.screen import console, notes, plain_table
from simulator.units import show_usd

if TYPE_CHECKING:
    from simulator.economics.ownership import RentOrBuy


def show(answer: RentOrBuy) -> None:
    """Print both ways and what they are made of."""
    screen, use = console(), answer.use
    title = f"{use.gpus:,} x {answer.page.accelerator} ({answer.cluster}), {use.months} months"
    screen.print(Text(f"{title}, in use {100 * use.in_use:.0f} % of the hours", style="bold"))
    screen.print()
    table = plain_table(
        "", "USD a month", "all months", "useful GPU-hour", "buying ahead", left=("",)
    )
    for tier, usd in answer.rents_usd_per_month.items():
        month = answer.break_even_month[tier]
        table.add_row(
            f"rented, {tier}",
            _usd(usd),
            _usd(usd * use.months),
            f"{answer.usd_per_useful_gpu_hour[tier]:.2f}",
            f"month {month}" if month else f"not in {use.months} months",
        )
    own = answer.usd_per_useful_gpu_hour["own"]
    running = sum(answer.buying.per_month.values())
    table.add_row("bought", _usd(running), _usd(_whole(answer)), f"{own:.2f}", "")
    screen.print(table)
    screen.print()
    screen.print(notes("Bought, once", _items(answer.buying.once)))
    screen.print(notes("Bought, a month", _items(answer.buying.per_month)))
    spent = sum(answer.buying.once.values()) + running * use.months
    sold = f"servers {show_usd(spent - _whole(answer))}, taken off the {show_usd(spent)} spent"
    screen.print(notes(f"Sold after {use.months} months", [sold]))
    screen.print(notes(CAVEATS, answer.caveats))


def _whole(answer: RentOrBuy) -> float:
    """What buying takes in all, less what servers are sold for, not discounted."""
    per_hour, rent = answer.usd_per_useful_gpu_hour, answer.rents_usd_per_month["reserved"]
    return per_hour["own"] / per_hour["reserved"] * rent * answer.use.months


def _usd(amount: float) -> str:
    return show_usd(amount).removesuffix(" USD")


def _items(parts: dict[str, float]) -> list[str]:
    return [f"{name} {show_usd(usd)}" for name, usd in parts.items()]
