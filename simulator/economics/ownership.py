"""Rent or buy: what a cluster costs month by month either way, and when buying is ahead.

Money of later months counts less by the cost of capital: all flows are discounted to the day of the
purchase. Owned servers can be sold at the end of any month for what they are worth then.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from simulator.units import DAY_S

HOURS_PER_MONTH = 8766.0 / 12.0
"""Of a year of 365.25 days."""

Cooling = Literal["air", "liquid"]
Tier = Literal["on demand", "reserved", "spot"]

TIERS: tuple[Tier, ...] = ("on demand", "reserved", "spot")
"""Ways to rent."""


@record
class Rent:
    """What a cloud asks, by the hour of an accelerator with its share of server and network."""

    on_demand_usd_per_gpu_hour: Figure
    """Paid for the hours in use."""
    reserved_discount_fraction: Figure
    """Less than on demand, paid for every hour of the term, in use or not."""
    spot_discount_fraction: Figure
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
    in_use: float = 1.0
    """Share of the hours in which a job runs."""
    goodput: float = 1.0
    """Share of a job's time that is useful."""
    months: int = 48
    cooling: Cooling = "air"


@dataclass(frozen=True, kw_only=True, slots=True)
class Buying:
    """What buying costs, in USD and by cause."""

    once: dict[str, float]
    per_month: dict[str, float]
    servers_usd: float
    """Price of the servers: what can be sold."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RentOrBuy(Answer):
    """Both ways month by month. All amounts are discounted to the day of the purchase."""

    COMMAND: ClassVar[str] = "rent-or-buy"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("cluster", "gpus=use.gpus", "page=page.name", "use", "once_usd=buying.once"),
        *("per_month_usd=buying.per_month", "rents_usd_per_month", "break_even_month"),
        *("usd_per_useful_gpu_hour", "owned_usd", "rented_usd", "caveats"),
    )

    cluster: str = ""
    """Name of its profile; empty where servers and their draw were given by themselves."""
    page: RentOrBuyPage
    use: Use
    buying: Buying
    rents_usd_per_month: dict[str, float]
    """By tier, not discounted."""
    owned_usd: Floats
    """Spent until the end of each month, less what the servers then sell for."""
    rented_usd: dict[str, Floats]
    """Spent until the end of each month, by tier."""
    break_even_month: dict[str, int | None]
    """By tier, the first month at whose end owning has cost no more; None: not in this time."""
    usd_per_useful_gpu_hour: dict[str, float]
    """By tier, and ``own``: all months, over hours in which a job runs and makes progress."""

    @property
    def line(self) -> str:
        """When buying is ahead of renting on demand, and what a useful hour costs either way."""
        month, hours = self.break_even_month["on demand"], self.usd_per_useful_gpu_hour
        ahead = "never" if month is None else f"from month {month}"
        return (
            f"{self.use.gpus:,} of {self.page.accelerator}, {self.use.months} months: buying ahead"
            f" {ahead}; a useful GPU-hour {hours['own']:.2f} USD bought,"
            f" {hours['on demand']:.2f} on demand"
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
        return (
            f"Prices are those of {page.name} (hardware_profiles/rent_or_buy), dated there; put"
            " yours over them with --page.",
            "Break-even discounts all months by the cost of capital and sells the servers at the"
            " end.",
            "Reserved is paid for every hour, on demand and spot for those in use; spot repeats"
            " what interruptions lose.",
            *([f"No source was found for: {', '.join(unknown)}"] if unknown else ()),
            *filter(None, [page.note]),
        )

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

    Examples
    --------
    >>> page = load_page("h100")
    >>> asked = renting_usd_per_month(page.rent, Use(gpus=8, in_use=0.5))
    >>> round(asked["on demand"], 2)  # 8 x 730.5 h x 0.5 x 2.99 USD
    8736.78
    """
    hours = use.gpus * HOURS_PER_MONTH
    price = float(rent.on_demand_usd_per_gpu_hour)
    return {
        "on demand": hours * use.in_use * price,
        "reserved": hours * price * (1.0 - float(rent.reserved_discount_fraction)),
        "spot": hours * use.in_use * price * (1.0 - float(rent.spot_discount_fraction)),
    }


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
    running = sum(bought.per_month.values())
    owned = sum(bought.once.values()) + running * so_far - resale * worth
    rents = renting_usd_per_month(page.rent, use)
    rents["spot"] /= spot_useful(page.rent)
    rented = {tier: usd * so_far for tier, usd in rents.items()}
    useful = use.gpus * HOURS_PER_MONTH * use.months * use.in_use * use.goodput
    totals: dict[str, Any] = {tier: usd * use.months for tier, usd in rents.items()}
    last = sum(bought.once.values()) + running * use.months - float(resale[-1])
    per_hour = {name: float(usd) / useful for name, usd in {**totals, "own": last}.items()}
    return RentOrBuy(
        cluster=cluster,
        page=page,
        use=use,
        buying=bought,
        rents_usd_per_month=rents,
        owned_usd=owned,
        rented_usd=rented,
        break_even_month={tier: _first(owned <= usd) for tier, usd in rented.items()},
        usd_per_useful_gpu_hour=per_hour,
    )


def _first(true: Any) -> int | None:
    """Number of the first month in which something holds, from 1."""
    months = np.flatnonzero(true)
    return int(months[0]) + 1 if len(months) else None
