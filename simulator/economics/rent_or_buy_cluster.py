"""Rent or buy for a cluster: its servers and their draw put into a page of prices."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np

from simulator.economics.energy import draw_watt, mean_activity
from simulator.economics.ownership import (
    Cooling,
    Rent,
    RentOrBuy,
    RentOrBuyPage,
    Use,
    load_page,
    page_of,
    rent_or_buy,
)
from simulator.economics.price import Price, Site, load_price, load_site
from simulator.errors import InputError, problem
from simulator.files import Figure
from simulator.hardware.cluster import Cluster

MOST_USD_PER_GPU_HOUR = 1e6
"""Of a price that somebody types; the dearest offer is some hundred USD."""

USUAL_PAGE = "h100"
"""Page of prices whose figures are shown where no accelerator is named."""


def rent_of(cluster: Cluster) -> Rent:
    """What a cluster's own price says of renting it: nobody's discount but its provider's.

    How often spot servers are interrupted is published by none; the usual page has a guess.
    """
    price, usual = load_price(cluster.price), load_page(USUAL_PAGE).rent
    rented = price.included_power
    return replace(
        usual,
        on_demand_usd_per_gpu_hour=price.usd_per_gpu_hour if rented else None,
        reserved_discount_fraction=price.reserved_discount_fraction,
        spot_discount_fraction=price.spot_discount_fraction,
    )


def rent_or_buy_cluster(
    cluster: Cluster,
    use: Use,
    *,
    page: RentOrBuyPage | None = None,
    busy: float | None = None,
    usd_per_gpu_hour: float | None = None,
    site: Site | None = None,
    where: str = "arguments",
) -> RentOrBuy:
    """Compare renting and buying a cluster, its racks whole on both sides where they are let so.

    Parameters
    ----------
    use : Use
        Its `gpus` are those of the cluster.
    page : RentOrBuyPage, optional
        Unless given, that of the accelerator for what servers cost; rent is the cluster's own
        price.
    busy : float, optional
        Share of a job's time in which accelerators compute; as the page says unless given.
    usd_per_gpu_hour : float, optional
        What an hour costs on demand, in place of any other; reserved and spot are less by the
        discounts of page or cluster.
    site : Site, optional
        Where owned servers stand; as the page says unless given.

    Raises
    ------
    InputError
        If a share is none, cooling is of no known kind, no page is known for the accelerator, or
        no price on demand.
    """
    chosen = page or replace(page_of(cluster, where=where), rent=rent_of(cluster))
    origin = None if page is not None else load_price(cluster.price).origin
    if usd_per_gpu_hour is not None:
        asked = Figure(usd_per_gpu_hour, "measured", "given")
        typed = Price(name="given", usd_per_gpu_hour=asked, included_power=True, base="typed")
        origin = typed.origin
        chosen = replace(chosen, rent=replace(chosen.rent, on_demand_usd_per_gpu_hour=asked))
    busy = float(chosen.own.busy_fraction) if busy is None else busy
    if problems := _wrong(chosen, use, busy, where):
        raise InputError(problems)
    site = site or load_site(chosen.site)
    device, node = cluster.accelerator, cluster.node
    use = replace(use, paid_gpus=cluster.rented(cluster.gpus))
    servers = -(-use.paid // node.accelerators)
    waiting = float(site.waiting_activity)
    working = float(mean_activity(step_time_s=1.0, busy_s=busy, waiting_activity=waiting))
    most, mean = draw_watt(
        gpus=use.paid,
        gpus_per_server=node.accelerators,
        host_watt=float(node.host_watt),
        idle_watt=float(device.power.idle_watt),
        busy_watt=float(device.power.busy_watt),
        activity=np.array([1.0, use.in_use * working * cluster.gpus / use.paid]),
    ).tolist()
    comparison = rent_or_buy(
        chosen,
        site,
        use,
        servers=servers,
        most_watt=most,
        mean_watt=mean / (1.0 - float(site.network_watt_fraction)),
        cluster=cluster.name,
    )
    return replace(comparison, price=origin)


def _wrong(page: RentOrBuyPage, use: Use, busy: float, where: str) -> list[str]:
    """What of a use, or of the price on demand, makes no sense; all at once."""
    problems = [
        problem(where, name, "must be above 0 and at most 1", value)
        for name, value in (("in_use", use.in_use), ("goodput", use.goodput), ("busy", busy))
        if not 0.0 < value <= 1.0
    ]
    if not 1 <= use.months <= 240:
        problems.append(problem(where, "months", "must be 1 to 240", use.months))
    if use.cooling not in get_args(Cooling):
        rule = f"must be {' or '.join(get_args(Cooling))}"
        problems.append(problem(where, "cooling", rule, use.cooling, get_args(Cooling)))
    asked = page.rent.on_demand_usd_per_gpu_hour
    if asked is None:
        problems.append(f"{where}: usd_per_gpu_hour: needed, no price of this cluster is known")
    elif not 0.0 < asked <= MOST_USD_PER_GPU_HOUR:
        rule = f"must be above 0 and at most {MOST_USD_PER_GPU_HOUR:,.0f}"
        problems.append(problem(where, "usd_per_gpu_hour", rule, asked))
    return problems
