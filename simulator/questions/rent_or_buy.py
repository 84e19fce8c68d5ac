"""`foreshard rent-or-buy`: a cluster rented or bought, month by month.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from simulator.cli.runner import Reply, question
from simulator.cli.screen import notes, plain_table
from simulator.glossary import CAVEATS
from simulator.units import show_usd

if TYPE_CHECKING:
    from simulator.economics.ownership import RentOrBuy


ClusterNeeded = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="Cluster profile, or path of one.")
]
GpusNeeded = Annotated[int, typer.Option("--gpus", metavar="N", min=1, help="Accelerators.")]
Page = Annotated[
    str | None,
    typer.Option(
        "--page",
        metavar="NAME",
        help="Page of prices (hardware_profiles/rent_or_buy), or path of one; unless given the"
        " accelerator's for servers, and the cluster's own price for rent.",
    ),
]
InUse = Annotated[
    float, typer.Option("--in-use", metavar="SHARE", help="Share of the hours in which a job runs.")
]
Goodput = Annotated[
    float, typer.Option("--goodput", metavar="SHARE", help="Share of a job's time that is useful.")
]
Months = Annotated[int, typer.Option("--months", metavar="N", help="How long, 1 to 240.")]
Busy = Annotated[
    float | None,
    typer.Option("--busy", metavar="SHARE", help="Share of a job's time that GPUs compute."),
]
Price = Annotated[
    float | None,
    typer.Option(
        "--price",
        metavar="USD",
        help="USD of an accelerator's hour on demand; reserved and spot are less by the discounts"
        " of page or provider.",
    ),
]
Liquid = Annotated[bool, typer.Option("--liquid", help="Liquid cooling instead of air.")]


@question("rent-or-buy", "rent-or-buy --cluster dgx-h100 --gpus 1024 --months 36")
def ask(
    *,
    cluster: ClusterNeeded,
    gpus: GpusNeeded,
    page: Page = None,
    in_use: InUse = 1.0,
    goodput: Goodput = 1.0,
    months: Months = 48,
    busy: Busy = None,
    price: Price = None,
    liquid: Liquid = False,
) -> Reply:
    """Compare renting a cluster with buying it: costs by cause, and when buying pays back."""
    from simulator.economics.ownership import Use, load_page
    from simulator.economics.rent_or_buy_cluster import rent_or_buy_cluster
    from simulator.hardware.cluster import load_cluster

    where = "command line"
    machines = load_cluster(cluster, gpus, where=where)
    use = Use(
        gpus=gpus,
        in_use=in_use,
        goodput=goodput,
        months=months,
        cooling="liquid" if liquid else "air",
    )
    chosen = load_page(page, where=where, field="--page") if page else None
    answer = rent_or_buy_cluster(
        machines, use, page=chosen, busy=busy, usd_per_gpu_hour=price, where=where
    )
    return Reply(answer, screen)


_AHEAD = {
    "pay_back_month": "pays back",
    "pay_back_month_with_capital": "with capital",
    "break_even_month": "if sold then, assumed",
    "break_even_month_with_capital": "sold, with capital",
}
"""Months from which buying is ahead, in cash first."""


def screen(answer: RentOrBuy) -> Iterator[RenderableType]:
    """Give both ways and what they are made of."""
    use = answer.use
    title = f"{use.gpus:,} x {answer.page.accelerator} ({answer.cluster}), {use.months} months"
    paid = f"; {use.paid:,} paid for, racks whole" if use.paid != use.gpus else ""
    words = f"{title}, in use {100 * use.in_use:.0f} % of the hours{paid}"
    yield Text(words, style="bold")
    yield ""
    table = plain_table("", "USD a month", "all months", "productive GPU-hour", left=("",))
    ahead = plain_table("", *_AHEAD.values(), left=("",))
    months = f"not in {use.months} months"
    for tier, usd in answer.rents_usd_per_month.items():
        table.add_row(f"rented, {tier}", _usd(usd), _usd(usd * use.months), _hours(answer, tier))
        numbers = [getattr(answer, name)[tier] for name in _AHEAD]
        cells = [f"month {month}" if month else months for month in numbers]
        if (sold := answer.resale_at_break_even_usd[tier]) is not None:
            cells[2] += f" ({show_usd(sold)})"
        ahead.add_row(tier, *cells)
    running, spent = sum(answer.buying.per_month.values()), float(answer.owned_cash_usd[-1])
    resale = float(answer.resale_usd[-1])
    table.add_row("bought, then sold", _usd(running), _usd(spent - resale), _hours(answer, "own"))
    yield table
    yield ""
    yield Text("Buying is ahead of renting", style="bold")
    yield ahead
    yield ""
    if answer.price is not None:
        said = (answer.price[name] for name in ("provider", "date", "grade", "source"))
        words = "; ".join(filter(None, said))
        yield notes("Rent", [f"{answer.price['usd_per_gpu_hour']:.2f} USD on demand: {words}"])
    if answer.discounts:
        yield notes("Discounts", [_less(*item) for item in answer.discounts.items()])
    yield notes("Bought, once", _items(answer.buying.once))
    yield notes("Bought, a month", _items(answer.buying.per_month))
    left = f"servers {show_usd(resale)}, taken off the {show_usd(spent)} spent"
    yield notes(f"Sold after {use.months} months (assumed)", [left])
    yield notes(CAVEATS, answer.caveats)


def _less(tier: str, asked: dict[str, Any]) -> str:
    """A tier, its discount and who says so."""
    said = (asked["date"], asked["grade"], asked["source"])
    words = "; ".join(filter(None, said))
    return f"{tier} {100.0 * asked['fraction']:.3g} % less than on demand: {words}"


def _hours(answer: RentOrBuy, name: str) -> str:
    """USD of a useful hour, and the same with the cost of capital where that is another."""
    cash = f"{answer.usd_per_useful_gpu_hour[name]:.2f}"
    capital = f"{answer.usd_per_useful_gpu_hour_with_capital[name]:.2f}"
    return cash if cash == capital else f"{cash} ({capital} with capital)"


def _usd(amount: float) -> str:
    return show_usd(amount).removesuffix(" USD")


def _items(parts: dict[str, float]) -> list[str]:
    return [f"{name} {show_usd(usd)}" for name, usd in parts.items()]
