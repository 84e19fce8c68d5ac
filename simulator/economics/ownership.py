"""Rent or buy: what a cluster costs month by month either way, and when buying is ahead.

Cash comes first: what was spent until a month either way. Then the same with the cost of capital,
on both sides: money of later months counts less, all flows are discounted to the day of the
purchase. What owned servers would sell for at the end of a month is assumed, and stands apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Gt

from simulator import catalogue
from simulator.answers import Answer
from simulator.arrays import Floats
from simulator.economics.price import Site
from simulator.errors import InputError, problem
from simulator.files import Figure, figures, read_profile, record
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass
from simulator.units import DAY_S

HOURS_PER_MONTH = 8766.0 / 12.0
"""Of a year of 365.25 days."""

Cooling = Literal["air", "liquid"]
Tier = Literal["on demand", "reserved", "spot"]

TIERS: tuple[Tier, ...] = ("on demand", "reserved", "spot")
"""Ways to rent."""


@record
class Rent:
    """What a cloud asks, by the hour of an accelerator with its share of server and network.

    Of what is not known there is no figure: nobody's discount stands in for another's.
    """

    on_demand_usd_per_gpu_hour: Figure | None = None
    """Paid for the hours in use."""
    reserved_discount_fraction: Figure | None = None
    """Less than on demand, paid for every hour of the term, in use or not."""
    spot_discount_fraction: Figure | None = None
    """Less than on demand, paid for the hours in use; the job may be interrupted at any time."""
    spot_interruptions_per_day: Figure
    """Of the whole job."""
    spot_lost_s: Figure
    """Useful time lost to each: the restart, and work since the last checkpoint."""


@record
class Purchase:
    """What servers cost that are bought, and what keeps them running."""

    server_usd: Figure
    """One server with accelerators and adapters."""
    network_one_tier_fraction: Figure
    """Switches and cables over the price of the servers, with one tier of switches."""
    network_two_tiers_fraction: Figure
    """The same with two tiers of switches."""
    network_three_tiers_fraction: Figure
    """The same with three."""
    network_quoted_bits_per_s: Annotated[float, Gt(0)] = 3.2e12
    """Adapters of a server times their rate, that these shares were quoted with; 8 x 400 Gbit/s."""
    one_tier_servers: int
    """Most servers that one tier of switches joins."""
    two_tiers_servers: int
    """Most servers that two tiers join."""
    storage_fraction: Figure
    """Storage over the price of the servers."""
    installation_fraction: Figure
    """Installation over the price of servers, network and storage."""
    space_usd_per_kw_month: Figure
    """Space and cooling plant, electricity apart, by the power that servers can draw."""
    staff_usd_per_server_year: Figure
    """People who run the servers, a year."""
    support_fraction: Figure
    """Support contracts and spare parts a year, over the price of the servers."""
    remaining_value_fraction: Figure
    """Of the price of the servers that is left after a year, and again after each further one."""
    capital_cost_fraction: Figure
    """Cost of capital a year."""
    air_power_usage_effectiveness: Figure
    """Energy at the meter over that of the machines, cooled by air."""
    liquid_power_usage_effectiveness: Figure
    """The same, cooled by liquid."""
    busy_fraction: Figure
    """Of a job's time, in which accelerators compute: what they draw power for."""
    fast_domain_usd_per_gpu: Figure | None = None
    """What an accelerator costs more in a fast domain of 72 than in one of 8: its share of the
    switches and cables of the rack. Without it candidate fabrics have a price with the domain of
    the cluster alone."""


def hourly_usd(rent: Rent, tier: Tier) -> Figure | None:
    """What an hour costs on a tier: the price on demand less the tier's discount; None: not known.

    Its spread holds both, its source names both.
    """
    asked = rent.on_demand_usd_per_gpu_hour
    discount = {"on demand": Figure(0.0), "reserved": rent.reserved_discount_fraction,
                "spot": rent.spot_discount_fraction}[tier]  # fmt: skip
    if asked is None or discount is None:
        return None
    if tier == "on demand":
        return asked
    left = 1.0 - float(discount)
    spread = asked.spread or 0.0
    if left > 0.0:
        spread = hypot(spread, float(discount) / left * (discount.spread or 0.0))
    guessed = discount.grade == "assumed" and discount.source != "user"
    grade = "assumed" if guessed else asked.grade
    source = f"{asked.source}; {100.0 * float(discount):.3g} % less: {discount.source}"
    return Figure(float(asked) * left, grade, source, asked.date, spread)


@record
class RentOrBuyPage:
    """Both ways for one accelerator, as hardware_profiles/rent_or_buy/NAME.toml gives them."""

    name: str
    accelerator: str
    """Name of its profile."""
    rent: Rent
    own: Purchase
    site: str = "default"
    """Name of the site that owned servers stand in."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """How a cluster is used."""

    KEYS: ClassVar[tuple[str, ...]] = ("in_use", "goodput", "months", "cooling")

    gpus: int
    """Of the job."""
    paid_gpus: int | None = None
    """With the rest of racks that are let and sold whole; those of the job unless given."""
    in_use: float = 1.0
    """Share of the hours in which a job runs."""
    goodput: float = 1.0
    """Share of a job's time that is useful."""
    months: int = 48
    cooling: Cooling = "air"

    @property
    def paid(self) -> int:
        """Accelerators that are paid for."""
        return self.gpus if self.paid_gpus is None else self.paid_gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Buying:
    """What buying costs, in USD and by cause."""

    once: dict[str, float]
    per_month: dict[str, float]
    servers_usd: float
    """Price of the servers: what can be sold."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RentOrBuy(Answer):
    """Both ways month by month."""

    COMMAND: ClassVar[str] = "rent-or-buy"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("cluster", "gpus=use.gpus", "paid_gpus=use.paid", "page=page.name", "use"),
        *("once_usd=buying.once", "per_month_usd=buying.per_month", "price"),
        *("rents_usd_per_month", "pay_back_month"),
        *("pay_back_month_with_capital", "break_even_month", "break_even_month_with_capital"),
        *("resale_at_break_even_usd", "discounts"),
        *("usd_per_useful_gpu_hour", "usd_per_useful_gpu_hour_with_capital"),
        *("owned_cash_usd", "rented_cash_usd", "resale_usd", "owned_usd", "rented_usd", "caveats"),
    )

    cluster: str = ""
    """Name of its profile; empty where servers and their draw were given by themselves."""
    page: RentOrBuyPage
    use: Use
    buying: Buying
    rents_usd_per_month: dict[str, float]
    """By tier, not discounted."""
    price: dict[str, Any] | None = None
    """Of an hour on demand, who asks it and how sure it is; None where a page said it."""
    owned_cash_usd: Floats
    """Spent until the end of each month on servers that are bought."""
    rented_cash_usd: dict[str, Floats]
    """Rent until the end of each month, by tier."""
    resale_usd: Floats
    """What the servers would sell for at the end of each month: assumed."""
    owned_usd: Floats
    """Spent until the end of each month, less what the servers then sell for, discounted."""
    rented_usd: dict[str, Floats]
    """Spent until the end of each month, by tier, discounted."""
    pay_back_month: dict[str, int | None]
    """By tier, the first month at whose end buying has taken no more cash; None: not in this time.
    """
    pay_back_month_with_capital: dict[str, int | None]
    """The same with both sides discounted."""
    break_even_month: dict[str, int | None]
    """In cash, the servers sold at the end of that month: what was spent less what they sell for.
    """
    break_even_month_with_capital: dict[str, int | None]
    """The same with both sides discounted."""
    usd_per_useful_gpu_hour: dict[str, float]
    """By tier, and ``own``: all months, over hours in which a job runs and makes progress; of
    ``own`` less what the servers then sell for."""
    usd_per_useful_gpu_hour_with_capital: dict[str, float]
    """The same with money and hours discounted: what an hour must earn on either side."""

    @property
    def resale_at_break_even_usd(self) -> dict[str, float | None]:
        """By tier, what the servers are assumed to sell for in the month of `break_even_month`."""
        return {
            tier: None if month is None else float(self.resale_usd[month - 1])
            for tier, month in self.break_even_month.items()
        }

    @property
    def discounts(self) -> dict[str, dict[str, Any]]:
        """By tier with one, how much less than on demand it asks, and who says so."""
        rent = self.page.rent
        asked = {"reserved": rent.reserved_discount_fraction, "spot": rent.spot_discount_fraction}
        return {
            tier: {"fraction": float(less), "grade": less.grade, "date": less.date or None,
                   "source": less.source, "spread": less.spread}
            for tier, less in asked.items() if less is not None
        }  # fmt: skip

    @property
    def owned_usd_per_paid_gpu_hour(self) -> float:
        """The hour of ``own``, of each accelerator that is paid for: what a plan multiplies."""
        return self.usd_per_useful_gpu_hour["own"] * self.use.gpus / self.use.paid

    @property
    def line(self) -> str:
        """When buying has taken less cash than renting, and what a useful hour costs either way."""
        tier, hours = next(iter(self.pay_back_month)), self.usd_per_useful_gpu_hour
        month = self.pay_back_month[tier]
        ahead = "never" if month is None else f"in month {month}"
        return (
            f"{self.use.gpus:,} of {self.page.accelerator}, {self.use.months} months: buying pays"
            f" back {ahead}, in cash; a productive GPU-hour {hours['own']:.2f} USD bought,"
            f" {hours[tier]:.2f} {tier}"
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """Which figures nobody could give a source for, and what is counted how."""
        page = self.page
        unknown = [
            name.rpartition(".")[2]
            for name, figure in figures(page)
            if figure.source.startswith(("no source", "no published"))
        ]
        kept = float(page.own.remaining_value_fraction)
        capital = 100.0 * float(page.own.capital_cost_fraction)
        missing = [tier for tier in TIERS if tier not in self.rents_usd_per_month]
        return (
            f"What servers cost is that of {page.name} (hardware_profiles/rent_or_buy), dated"
            " there; put yours over it with --page. Rent is the cluster's own price unless --page"
            " or --price says another.",
            "Pays back: the month at whose end buying has taken no more cash than renting; if sold"
            " then: the same with what the servers sell for; both without the cost of capital. With"
            f" capital: both sides discounted by {capital:.3g} % a year.",
            f"Resale is assumed: {100.0 * kept:.3g} % of the price of the servers is left after a"
            " year, and again after each further one, from the first day on.",
            "Reserved is paid for every hour, on demand and spot for those in use; spot repeats"
            " what interruptions lose.",
            *self._whole,
            *(f"No discount of this provider is known: {tier} is left out." for tier in missing),
            *([f"No source was found for: {', '.join(unknown)}"] if unknown else ()),
            *filter(None, [page.note]),
        )

    @property
    def _whole(self) -> list[str]:
        """What is paid beside the accelerators of the job, on both sides."""
        gpus, paid = self.use.gpus, self.use.paid
        if paid == gpus:
            return []
        return [
            f"Racks are let and sold whole: {paid:,} GPUs are paid for on both sides, as plan pays"
            f" for them, {paid - gpus:,} more than the job has. A productive GPU-hour is one of the"
            " job's."
        ]

    def to_frame(self) -> DataFrame:
        """One row per month: USD spent until its end, discounted, owned and by tier of rent."""
        rents = {
            f"{tier.replace(' ', '_')}_usd": usd.tolist() for tier, usd in self.rented_usd.items()
        }
        return frame_of_rows(
            [
                {"month": month, "owned_usd": usd, **{t: s[month - 1] for t, s in rents.items()}}
                for month, usd in enumerate(self.owned_usd.tolist(), start=1)
            ]
        )


def load_page(name: str, *, where: str = "profiles", field: str = "page") -> RentOrBuyPage:
    """Read a page by name or path."""
    path = catalogue.find("rent_or_buy", name, where=where, field=field)
    return read_profile(RentOrBuyPage, path, kind="rent_or_buy")


def page_of(cluster: Cluster, *, where: str = "arguments") -> RentOrBuyPage:
    """Find the page of a cluster's accelerator.

    Raises
    ------
    InputError
        If there is none, naming those that there are.
    """
    pages = {page.accelerator: page for page in map(load_page, catalogue.names("rent_or_buy"))}
    name = cluster.accelerator.name
    if name not in pages:
        rule = "no page says what it costs to rent and to buy; copy one and give it with --page"
        raise InputError(problem(where, "accelerator", rule, name, pages))
    return pages[name]


def buying(
    purchase: Purchase, site: Site, use: Use, *, servers: int, most_watt: float, mean_watt: float
) -> Buying:
    """List what so many servers cost to buy and to keep running.

    Parameters
    ----------
    most_watt : float
        Power of all servers with every accelerator busy: what space is paid for.
    mean_watt : float
        Power of all servers, network included, averaged over hours in use and not.
    """
    price = servers * float(purchase.server_usd)
    tiers = purchase.network_three_tiers_fraction
    if servers <= purchase.two_tiers_servers:
        tiers = purchase.network_two_tiers_fraction
    if servers <= purchase.one_tier_servers:
        tiers = purchase.network_one_tier_fraction
    network = price * float(tiers)
    storage = price * float(purchase.storage_fraction)
    ratio = purchase.air_power_usage_effectiveness
    if use.cooling == "liquid":
        ratio = purchase.liquid_power_usage_effectiveness
    kwh = mean_watt / 1e3 * float(ratio) * HOURS_PER_MONTH
    return Buying(
        once={
            "servers": price,
            "network": network,
            "storage": storage,
            "installation": float(purchase.installation_fraction) * (price + network + storage),
        },
        per_month={
            "electricity": kwh * float(site.electricity_usd_per_kwh),
            "space": most_watt / 1e3 * float(purchase.space_usd_per_kw_month),
            "staff": servers * float(purchase.staff_usd_per_server_year) / 12.0,
            "support": price * float(purchase.support_fraction) / 12.0,
        },
        servers_usd=price,
    )


def renting_usd_per_month(rent: Rent, use: Use) -> dict[str, float]:
    """Rent of a month by tier: on demand and spot for the hours in use, reserved for all of them.

    A tier whose price is not known is left out.

    Examples
    --------
    >>> page = load_page("h100")
    >>> asked = renting_usd_per_month(page.rent, Use(gpus=8, in_use=0.5))
    >>> round(asked["on demand"], 2)  # 8 x 730.5 h x 0.5 x 2.99 USD
    8736.78
    """
    hours = use.paid * HOURS_PER_MONTH
    asked = {tier: hourly_usd(rent, tier) for tier in TIERS}
    paid = {tier: 1.0 if tier == "reserved" else use.in_use for tier in TIERS}
    return {tier: hours * paid[tier] * float(usd) for tier, usd in asked.items() if usd is not None}


def spot_useful(rent: Rent) -> float:
    """Share of a spot job's time that interruptions leave.

    So many interruptions a day of useful time each cost their loss again.
    """
    lost_s = float(rent.spot_interruptions_per_day) * float(rent.spot_lost_s)
    return 1.0 / (1.0 + lost_s / DAY_S)


def rent_or_buy(
    page: RentOrBuyPage,
    site: Site,
    use: Use,
    *,
    servers: int,
    most_watt: float,
    mean_watt: float,
    cluster: str = "",
) -> RentOrBuy:
    """Compare renting and buying over some months.

    Parameters are those of :func:`buying`, and the name of the `cluster`'s profile. A spot job
    needs more hours for the same work, and pays for them.
    """
    purchase = page.own
    bought = buying(purchase, site, use, servers=servers, most_watt=most_watt, mean_watt=mean_watt)
    month = np.arange(1, use.months + 1, dtype=float)
    worth = (1.0 + float(purchase.capital_cost_fraction)) ** (-month / 12.0)
    so_far = np.cumsum(worth)
    resale = bought.servers_usd * float(purchase.remaining_value_fraction) ** (month / 12.0)
    running, spent = sum(bought.per_month.values()), sum(bought.once.values())
    rents = renting_usd_per_month(page.rent, use)
    if "spot" in rents:
        rents["spot"] /= spot_useful(page.rent)
    owned_cash, owned = spent + running * month, spent + running * so_far
    rented_cash = {tier: usd * month for tier, usd in rents.items()}
    rented = {tier: usd * so_far for tier, usd in rents.items()}
    hours = use.gpus * HOURS_PER_MONTH * use.in_use * use.goodput
    last = {
        "own": owned_cash[-1] - resale[-1],
        **{tier: usd[-1] for tier, usd in rented_cash.items()},
    }
    now = {
        "own": owned[-1] - resale[-1] * worth[-1],
        **{tier: usd[-1] for tier, usd in rented.items()},
    }
    return RentOrBuy(
        cluster=cluster,
        page=page,
        use=use,
        buying=bought,
        rents_usd_per_month=rents,
        owned_cash_usd=owned_cash,
        rented_cash_usd=rented_cash,
        resale_usd=resale,
        owned_usd=owned - resale * worth,
        rented_usd=rented,
        pay_back_month={tier: _first(owned_cash <= usd) for tier, usd in rented_cash.items()},
        pay_back_month_with_capital={tier: _first(owned <= usd) for tier, usd in rented.items()},
        break_even_month={
            tier: _first(owned_cash - resale <= usd) for tier, usd in rented_cash.items()
        },
        break_even_month_with_capital={
            tier: _first(owned - resale * worth <= usd) for tier, usd in rented.items()
        },
        usd_per_useful_gpu_hour=_per_hour(last, hours * use.months),
        usd_per_useful_gpu_hour_with_capital=_per_hour(now, hours * float(so_far[-1])),
    )


def _per_hour(usd: Mapping[str, Any], hours: float) -> dict[str, float]:
    """Amounts over hours, tiers of rent first."""
    return {name: float(usd[name]) / hours for name in (*TIERS, "own") if name in usd}


def _first(true: Any) -> int | None:
    """Number of the first month in which something holds, from 1."""
    months = np.flatnonzero(true)
    return int(months[0]) + 1 if len(months) else None
