"""The screen of `foreshard rent-or-buy`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from simulator.cli.screen import notes, plain_table
from simulator.files import figures
from simulator.units import show_usd

if TYPE_CHECKING:
    from simulator.economics.ownership import RentOrBuy


def screen(answer: RentOrBuy) -> Iterator[RenderableType]:
    """Give both ways and what they are made of."""
    use = answer.use
    title = f"{use.gpus:,} x {answer.page.accelerator} ({answer.cluster}), {use.months} months"
    yield Text(f"{title}, in use {100 * use.in_use:.0f} % of the hours", style="bold")
    yield ""
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
    yield table
    yield ""
    yield notes("Bought, once", _items(answer.buying.once))
    yield notes("Bought, a month", _items(answer.buying.per_month))
    spent = sum(answer.buying.once.values()) + running * use.months
    sold = f"servers {show_usd(spent - _whole(answer))}, taken off the {show_usd(spent)} spent"
    yield notes(f"Sold after {use.months} months", [sold])
    yield notes("Read this with the numbers", _caveats(answer))


def _whole(answer: RentOrBuy) -> float:
    """What buying takes in all, less what servers are sold for, not discounted."""
    per_hour, rent = answer.usd_per_useful_gpu_hour, answer.rents_usd_per_month["reserved"]
    return per_hour["own"] / per_hour["reserved"] * rent * answer.use.months


def _usd(amount: float) -> str:
    return show_usd(amount).removesuffix(" USD")


def _items(parts: dict[str, float]) -> list[str]:
    return [f"{name} {show_usd(usd)}" for name, usd in parts.items()]


def _caveats(answer: RentOrBuy) -> list[str]:
    """Which figures nobody could give a source for, and what is counted how."""
    page = answer.page
    unknown = [
        name.rpartition(".")[2]
        for name, figure in figures(page)
        if figure.source.startswith("no source") or figure.source.startswith("no published")
    ]
    lines = [
        f"Prices are those of {page.name} (hardware_profiles/rent_or_buy), dated there; put yours"
        " over them with --page.",
        "Break-even discounts all months by the cost of capital and sells the servers at the end.",
        "Reserved is paid for every hour, on demand and spot for those in use; spot repeats what"
        " interruptions lose.",
    ]
    if unknown:
        lines.append(f"No source was found for: {', '.join(unknown)}")
    return [*lines, page.note] if page.note else lines
