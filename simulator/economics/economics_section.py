"""The section [economics] of a scenario: what an accelerator's hour costs, rented or owned.

Without it the price is that of the cluster's profile, dated there. With it every figure of a page
of prices (`hardware_profiles/rent_or_buy/`) and of the site can be put over the shipped one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Gt, Le

from simulator import records
from simulator.economics.energy import co2_kg
from simulator.economics.ownership import (
    TIERS,
    Cooling,
    Purchase,
    Rent,
    RentOrBuyPage,
    Use,
    hourly_usd,
    load_page,
    page_of,
)
from simulator.economics.price import Base, Price, Site, Term, load_price, load_site
from simulator.economics.rent_or_buy_cluster import USUAL_PAGE, rent_of, rent_or_buy_cluster
from simulator.errors import InputError, problem
from simulator.files import Figure, Number, Whole, build, record
from simulator.hardware.cluster import Cluster
from simulator.inheritance import merged
from simulator.record_cache import for_same_records
from simulator.section import Rule, Section

Basis = Literal["profile", "on demand", "reserved", "spot", "own"]


@record
class Economics:
    """What the run costs: an hour's price, or what servers cost that are rented or bought."""

    basis: Basis = "profile"
    """profile: the cluster's own price. on demand, reserved, spot: that price, less its provider's
    discount; what [economics.rent] says comes first, and where neither knows the price or the
    discount it must be given. Reserved is paid in idle hours too, and spot is interrupted as often
    as [economics.rent] says ([run.causes] may say otherwise). own: [economics.own], all that is
    spent in `months`, less what the servers then sell for, over the hours in use."""
    usd_per_gpu_hour: Figure | None = None
    """Your price of an accelerator's hour, power included, in place of any other."""
    page: str | None = None
    """Page of prices (hardware_profiles/rent_or_buy) that lies below [economics.rent], in place of
    the cluster's price, and below [economics.own], where it is the accelerator's unless given."""
    in_use: Annotated[Number, Gt(0), Le(1)] = 1.0
    """Share of the hours in which a job runs; reserved and owned servers cost the others, too."""
    months: Annotated[Whole, Ge(1), Le(240)] = 48
    """How long owned servers are kept."""
    cooling: Cooling = "air"
    """Of owned servers: by it their power usage effectiveness."""
    region: str | None = None
    """Where the electricity comes from, for its carbon; that of the site unless given."""
    rent: Rent | None = None
    """What a cloud asks; every field over that of the cluster's price."""
    own: Purchase | None = None
    """What servers cost that are bought; every field over that of the page."""
    site: Site | None = None
    """Where they stand; every field over that of the price's site."""


def _basis(word: Any) -> Any:
    """A basis as the section spells it: ``on_demand`` is on demand, ``owned`` is own."""
    if not isinstance(word, str):
        return word
    plain = " ".join(word.lower().replace("_", " ").replace("-", " ").split())
    return "own" if plain == "owned" else plain if plain in get_args(Basis) else word


def read_economics(raw: Any, cluster: Cluster, *, where: str) -> Economics:
    """Read the section; its tables lie over the page of the cluster's accelerator.

    Raises
    ------
    InputError
        With every problem; where no page is known, with the figures that must be given.
    """
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, "economics", "must be a table", raw))
    tables_given = dict(raw)
    basis, name = _basis(tables_given.get("basis", "profile")), tables_given.get("page")
    if "basis" in tables_given:
        tables_given["basis"] = basis
    page = None
    if cluster.kinds and basis != "profile":
        rule = "must be profile with servers of several kinds, each at the price of its cluster"
        raise InputError(problem(where, "economics.basis", rule, basis))
    if name is not None or basis == "own" or "own" in tables_given:
        page = _page(cluster, name, tables_given, where)
    if page is not None:
        tables_given["own"] = _over(page.own, tables_given.get("own", {}))
    if "rent" in tables_given or basis in TIERS:
        asked = page.rent if page is not None and name is not None else rent_of(cluster)
        tables_given["rent"] = _over(asked, tables_given.get("rent", {}))
    if "site" in tables_given:
        below = load_site(page.site if page is not None else load_price(cluster.price).site)
        tables_given["site"] = _over(below, tables_given["site"])
    economics: Economics = build(Economics, tables_given, where=where, prefix="economics")
    if wrong := _wrong(economics, cluster, where):
        raise InputError(wrong)
    for field, region in (
        ("region", economics.region),
        ("site.region", economics.site.region if economics.site else None),
    ):
        if region is not None:
            co2_kg(1.0, region, where=where, field=f"economics.{field}")
    return economics


def _page(
    cluster: Cluster, name: Any, section: Mapping[str, Any], where: str
) -> RentOrBuyPage | None:
    """The page below; None where there is none and the section may say all of it."""
    if name is not None:
        if not isinstance(name, str):
            raise InputError(problem(where, "economics.page", "must be the name of a page", name))
        return load_page(name, where=where, field="economics.page")
    try:
        return page_of(cluster, where=where)
    except InputError as error:
        if isinstance(section.get("own"), Mapping):
            return None
        rule = "needs [economics.own], or economics.page: no page of prices is known for"
        known = f"{where}: economics.basis: {rule} {cluster.accelerator.name}"
        raise InputError([known]) from error


def _over(below: Any, table: Any) -> Any:
    """Fields that are given over those of a record; what is no table is told when it is read."""
    if not isinstance(table, Mapping):
        return table
    fields = {field.name: getattr(below, field.name) for field in dataclasses.fields(below)}
    return merged(fields, table)


def _wrong(economics: Economics, cluster: Cluster, where: str) -> list[str]:
    """What each field allows but the whole does not."""
    basis, rent = economics.basis, economics.rent
    if basis in TIERS and economics.usd_per_gpu_hour is None:
        assert rent is not None
        if hourly_usd(rent, basis) is None:
            return [_unknown(economics, cluster, where)]
    if basis == "own" and economics.own is None:
        return [f"{where}: economics.own: required with basis = 'own'"]
    shares: dict[str, Figure | None] = {}
    prices = {"usd_per_gpu_hour": economics.usd_per_gpu_hour}
    if economics.rent is not None:
        prices["rent.on_demand_usd_per_gpu_hour"] = economics.rent.on_demand_usd_per_gpu_hour
        shares["rent.reserved_discount_fraction"] = economics.rent.reserved_discount_fraction
        shares["rent.spot_discount_fraction"] = economics.rent.spot_discount_fraction
    if economics.own is not None:
        shares["own.remaining_value_fraction"] = economics.own.remaining_value_fraction
        shares["own.busy_fraction"] = economics.own.busy_fraction
    wrong = [
        problem(where, f"economics.{name}", "must be above 0, as every price", float(price))
        for name, price in prices.items()
        if price == 0.0
    ]
    for name, share in shares.items():
        free = name.endswith("discount_fraction")  # nothing would be left to pay at 1
        if share is not None and (share > 1.0 or (free and share == 1.0)):
            rule = f"must be {'below' if free else 'at most'} 1"
            wrong.append(problem(where, f"economics.{name}", rule, float(share)))
    return wrong


def _unknown(economics: Economics, cluster: Cluster, where: str) -> str:
    """Say which figure of a tier is not known, and what may be given instead."""
    tier, rent = economics.basis, economics.rent
    field = {"reserved": "reserved_discount_fraction", "spot": "spot_discount_fraction"}.get(tier)
    asked = None if rent is None else rent.on_demand_usd_per_gpu_hour
    name = cluster.price
    if asked is None:
        known = f"no price on demand of {cluster.name} is known ({name})"
        field = "on_demand_usd_per_gpu_hour"
    else:
        who = load_price(name).provider or name
        known = f"no discount of {who} on {float(asked):,.2f} USD an hour ({name}) is known"
    return (
        f"{where}: economics.basis: {known}: give economics.rent.{field}, or the price itself as"
        f" economics.usd_per_gpu_hour, got {tier!r}"
    )


def usual_economics() -> Economics:
    """Return what stands below the section: no price of one's own, and the usual page."""
    page = load_page(USUAL_PAGE)
    return Economics(rent=page.rent, own=page.own, site=load_site(page.site))


@records.dataclass(frozen=True, slots=True)
class Tariff:
    """What an hour of a cluster's accelerators costs, and where they stand."""

    price: Price
    site: Site
    region: str | None = None
    """Where [economics] says that the electricity comes from; None: where the site's does."""

    def site_at(self, price: Price) -> Site:
        """Where accelerators at another price stand."""
        if price.site == self.price.site:
            return self.site
        return _in_region(load_site(price.site), self.region)


@for_same_records(64)
def tariff_of(economics: Economics | None, cluster: Cluster) -> Tariff:
    """Find what an hour on a cluster costs: as the scenario says, else by the cluster's profile."""
    price = _price_of(economics, cluster)
    if economics is None:
        economics = Economics()
    site = economics.site or load_site(price.site)
    return Tariff(price, _in_region(site, economics.region), economics.region)


def _in_region(site: Site, region: str | None) -> Site:
    return site if region is None else dataclasses.replace(site, region=region)


def _price_of(economics: Economics | None, cluster: Cluster) -> Price:
    """Return the price of an hour: the scenario's, by its basis, else that of the cluster."""
    profile = load_price(cluster.price)
    if economics is None:
        return profile
    if economics.usd_per_gpu_hour is not None:
        return _made("given", _typed(economics.usd_per_gpu_hour), profile.site, base="typed")
    if economics.basis == "profile":
        return profile
    if economics.basis == "own":
        return _owned(economics, cluster, profile.site)
    rent = economics.rent
    assert rent is not None
    asked, listed = rent.on_demand_usd_per_gpu_hour, profile.usd_per_gpu_hour
    assert asked is not None
    typed = dataclasses.replace(rent, on_demand_usd_per_gpu_hour=_typed(asked))
    figure = hourly_usd(typed, economics.basis)
    assert figure is not None
    if economics.basis == "reserved" and economics.in_use < 1.0:
        idle = f"{figure.source}; paid in idle hours, too"
        paid = float(figure) / economics.in_use
        figure = Figure(paid, figure.grade, idle, figure.date, figure.spread)
    of_cluster = listed is not None and (float(asked), asked.source) == (
        float(listed),
        listed.source,
    )
    return dataclasses.replace(
        profile,
        name=f"{profile.name if of_cluster else 'given'}, {economics.basis}",
        provider=profile.provider if of_cluster else economics.page or "",
        term=economics.basis,
        base="cluster" if of_cluster else "typed",
        usd_per_gpu_hour=figure,
        included_power=True,
    )


def _typed(figure: Figure) -> Figure:
    """A figure that was typed as a plain number: its owner's, and no guess of ours."""
    if figure.source != "user":
        return figure
    return Figure(float(figure), "measured", "given", figure.date, figure.spread)


def _made(name: str, figure: Figure, site: str, *, term: Term = "on demand", base: Base) -> Price:
    return Price(
        name=name, usd_per_gpu_hour=figure, included_power=True, site=site, term=term, base=base
    )


def owned_page(economics: Economics, cluster: Cluster) -> RentOrBuyPage:
    """Return [economics.own] as a page of prices."""
    assert economics.own is not None
    rent = economics.rent or load_page(USUAL_PAGE).rent  # it is not asked for
    name = cluster.accelerator.name
    return RentOrBuyPage(name="scenario", accelerator=name, rent=rent, own=economics.own)


def _owned(economics: Economics, cluster: Cluster, site: str) -> Price:
    """An hour in use of owned servers: everything of `months`, less resale, over hours in use."""
    page = dataclasses.replace(owned_page(economics, cluster), site=site)
    use = Use(
        gpus=cluster.gpus,
        in_use=economics.in_use,
        months=economics.months,
        cooling=economics.cooling,
    )
    comparison = rent_or_buy_cluster(cluster, use, page=page, site=economics.site)
    purchase = page.own
    spread = purchase.server_usd.spread or 0.0
    usd = comparison.owned_usd_per_paid_gpu_hour
    figure = Figure(usd, "assumed", purchase.server_usd.source, purchase.server_usd.date, spread)
    return _made("own", figure, site, term="owned", base="cluster")


def _interrupted(
    run: Any, economics: Economics, cluster: Cluster, document: Mapping[str, Any], *, where: str
) -> Any:
    """[run] with preemptions as often as [economics.rent] says of spot, where [run] does not."""
    causes = document.get("run", {}).get("causes", {})
    if economics.basis != "spot" or "preemption" in causes:
        return run
    rent = economics.rent
    assert rent is not None
    often = rent.spot_interruptions_per_day
    rate = Figure(float(often) / cluster.nodes, often.grade, often.source, often.date, often.spread)
    preemption = dataclasses.replace(run.causes["preemption"], per_device_day=rate)
    return dataclasses.replace(run, causes={**run.causes, "preemption": preemption})


_BEARS: Mapping[Basis, tuple[str, ...]] = {
    "profile": (),
    "on demand": ("page", "rent.on_demand_usd_per_gpu_hour"),
    "reserved": (
        *("page", "rent.on_demand_usd_per_gpu_hour"),
        *("rent.reserved_discount_fraction", "in_use"),
    ),
    "spot": (
        *("page", "rent.on_demand_usd_per_gpu_hour"),
        *("rent.spot_discount_fraction", "rent.spot_interruptions_per_day"),
    ),
    "own": ("page", "own", "months", "cooling", "in_use"),
}
"""Fields on which an hour's price, or the run, hangs with each basis."""


def _idle(economics: Economics, cluster: Cluster, *, where: str) -> dict[str, str]:
    """Fields on which nothing hangs: they make a price that is not taken."""
    basis, bears = economics.basis, _BEARS[economics.basis]
    reason = f"economics.basis is {basis}"
    if economics.usd_per_gpu_hour is not None:
        reason = "economics.usd_per_gpu_hour is the price"
        bears = tuple(x for x in bears if basis == "spot" and "interruptions" in x)
    every = {name for names in _BEARS.values() for name in names}
    idle = {name: reason for name in sorted(every) if name not in bears}
    if economics.usd_per_gpu_hour is not None and basis != "spot":
        idle["basis"] = reason
    idle["rent.spot_lost_s"] = "what a run loses follows from [run]; rent-or-buy asks for it"
    if basis != "own" and _price_of(economics, cluster).included_power:
        idle["site.electricity_usd_per_kwh"] = "the price of an hour includes power"
    return idle


ECONOMICS = Section(
    name="economics",
    schemas=(Economics,),
    read=Rule(read_economics, needs=("cluster",)),
    makes=(("run", Rule(_interrupted, needs=("run", "economics", "cluster", "document"))),),
    idle=Rule(_idle, needs=("economics", "cluster")),
    base=usual_economics,
)
