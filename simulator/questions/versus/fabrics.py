"""Candidate fabrics: adapters, their rate, rails, over-subscription and domain; time and dollars.

Layouts are the best on the narrowest fabric, on the widest and on the cluster's own, with each
domain; on every fabric all of them are priced and the fastest that fits is taken. The network is
paid for by the bit: as the accelerator's page of prices says for the fabric that it was quoted
with, in proportion to adapters times rate, and what lies above the leaves over the
over-subscription. What a fast domain of 72 costs is asked for (`fast_domain_usd_per_gpu`): no
source of it is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import numpy as np

from simulator.answers import Answer, encoded
from simulator.cost.step import evaluate
from simulator.economics.economics_section import Economics, owned_page
from simulator.economics.ownership import Purchase, RentOrBuyPage, Use, page_of
from simulator.economics.rent_or_buy_cluster import rent_or_buy_cluster
from simulator.errors import InfeasibleError, InputError
from simulator.files import Figure
from simulator.frames import DataFrame, frame_of_rows
from simulator.layout.layouts import Layouts
from simulator.planner.changes import machine_with
from simulator.planner.prediction import refuse_mixed
from simulator.planner.variants import Variant
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.allowed import with_allowed
from simulator.search.fastest import explore_scenario
from simulator.search.with_failures import priced
from simulator.units import show_seconds

ADAPTERS, GBPS, NARROW, DOMAINS = (1, 2, 4, 8), (100, 200, 400, 800), (1, 2, 4, 8), (8, 72)
"""What is tried: adapters of a server, Gbit/s of each, over-subscription, fast domain."""

_NARROW_DOMAIN, _WIDE_DOMAIN = DOMAINS

_RAIL_SERVERS = 32
"""Servers below one set of rail switches, of which each adapter of a server reaches another."""
_KEEP = 8

_RAILS = (
    "rails are tried where something narrow lies above the leaves: elsewhere they change no time"
)
_USD = (
    "USD: servers that are bought, run for the hours of the run; the network by the bit, in"
    " proportion to what the page of prices was quoted with; --json has every fabric"
)
_DOMAIN = (
    "no price: a domain other than the cluster's. What a GPU costs more in one of 72 has no known"
    ' source; give it as fast_domain_usd_per_gpu in [economics.own] (basis = "own")'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FabricChoice(Variant):
    """One fabric and the best layout on it."""

    KEYS: tuple[str, ...] = (
        *("adapters", "gbps", "rails", "oversubscription", "domain", "layout"),
        *("step_time_s", "days", "network_usd", "usd"),
    )

    adapters: int
    gbps: int
    rails: bool
    oversubscription: int
    domain: int
    step_time_s: float
    days: float | None
    """Of the real run; None without tokens."""
    network_usd: float | None
    """Switches and cables, with those of a domain of 72 where their price is given; None where no
    page of prices is known, or what another domain than the cluster's costs is not given."""
    usd: float | None
    """Of the real run on servers that are bought, with this network."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FabricChoices(Answer):
    """All of them, the fastest first."""

    COMMAND: ClassVar[str] = "what-if --fabrics"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("model=scenario.workload.architecture.name", "assumed_training=scenario.assumed"),
        *("idle_fields=scenario.idle", "cluster", "rows=with_front", "caveats"),
    )

    scenario: Scenario
    rows: tuple[FabricChoice, ...]

    @property
    def line(self) -> str:
        """How many there are, and the shortest step."""
        return f"{len(self.rows)} fabrics, {self.rows[0].step_time_s:.3g} s at best"

    def to_frame(self) -> DataFrame:
        """One row per fabric."""
        return frame_of_rows(encoded(row) for row in self.rows)

    @property
    def cluster(self) -> dict[str, Any]:
        """Whose fabric is changed."""
        return {"name": self.scenario.cluster.name, "gpus": self.scenario.cluster.gpus}

    @property
    def with_front(self) -> list[dict[str, Any]]:
        """Every fabric, and whether none beats it in time and price, as JSON says it."""
        front = {id(row) for row in self.front()}
        return [{**encoded(row), "front": id(row) in front} for row in self.rows]

    @property
    def priced(self) -> bool:
        """Whether the network of some fabric has a price."""
        return any(row.network_usd is not None for row in self.rows)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What prices hold, fabrics that have none, and where rails are tried."""
        priced = [_USD] if self.priced else []
        if self.priced and any(row.network_usd is None for row in self.rows):
            priced += [_DOMAIN, *self._other_domains()]
        return (*priced, _RAILS)

    def _other_domains(self) -> list[str]:
        """The fastest fabric of each domain that has no price: its time is known all the same."""
        fastest: dict[int, FabricChoice] = {}
        for row in self.rows:
            if row.network_usd is None:
                fastest.setdefault(row.domain, row)
        return [
            f"domain {domain}, without a price: {show_seconds(row.step_time_s)} a step at best, on"
            f" {row.adapters} x {row.gbps} Gbit/s {row.oversubscription}:1, {row.layout}"
            for domain, row in fastest.items()
        ]

    def front(self) -> list[FabricChoice]:
        """Fabrics that none beats in both time and price of the network, the fastest first.

        Without prices, in time and the bits of adapters and of what lies above the leaves. Of equal
        ones the first: fewer adapters, slower ones, no rails, narrower.
        """
        fabric_choices: list[FabricChoice] = []
        known = [row for row in self.rows if row.network_usd is not None or not self.priced]
        for row in sorted(known, key=lambda row: (row.step_time_s, _dear(row))):
            if not fabric_choices or _dear(row) < _dear(fabric_choices[-1]):
                fabric_choices.append(row)
        return fabric_choices


def _dear(row: FabricChoice) -> float:
    """What a network costs, or its bits where no price is known."""
    if row.network_usd is not None:
        return row.network_usd
    return row.adapters * row.gbps * (1.0 + 1.0 / row.oversubscription)


def fabric_choices(scenario: Scenario) -> FabricChoices:
    """Price a scenario on every candidate fabric.

    Raises
    ------
    InputError
        If servers are of several kinds.
    InfeasibleError
        If nothing runs and fits on any.
    """
    refuse_mixed(scenario)
    page, use = _bought(scenario)
    rows: list[FabricChoice] = []
    for domain in dict.fromkeys((scenario.cluster.node.scale_up.domain, *DOMAINS)):
        if domain > scenario.cluster.gpus or domain % scenario.cluster.node.accelerators:
            continue
        layouts = _layouts(scenario, domain)
        if layouts is not None:
            rows += _on_each(scenario, domain, layouts, page, use)
    if not rows:
        raise InfeasibleError(f"{scenario.where}: no layout can run and fit on any fabric")
    return FabricChoices(
        scenario=scenario,
        rows=tuple(sorted(rows, key=lambda row: (row.step_time_s, row.usd or 0.0))),
    )


def _bought(scenario: Scenario) -> tuple[RentOrBuyPage | None, Use]:
    """What servers cost and how they are used: as [economics.own] says, else by their page."""
    cluster, economics = scenario.cluster, scenario.section(Economics)
    use = Use(gpus=cluster.gpus)
    try:
        page: RentOrBuyPage | None = page_of(cluster)
    except InputError:
        page = None
    if economics is None or economics.basis != "own" or economics.own is None:
        return page, use
    return owned_page(economics, cluster), Use(
        gpus=cluster.gpus,
        in_use=economics.in_use,
        months=economics.months,
        cooling=economics.cooling,
    )


def _layouts(scenario: Scenario, domain: int) -> Layouts | None:
    """The best on the narrowest and the widest fabric, and as the cluster is."""
    machine = scenario.cluster, scenario.software
    ends = (
        _changed(scenario, (ADAPTERS[0], GBPS[0], False, NARROW[-1], domain)),
        _changed(scenario, (ADAPTERS[-1], GBPS[-1], True, NARROW[0], domain)),
        replace(scenario, cluster=machine_with(machine, ("scale_up.domain", domain))[0]),
    )
    pinned = with_allowed(scenario)
    tables = []
    for end in ends:
        found = explore_scenario(end, pinned, keep=_KEEP, counts=False)
        tables += [found.best.layouts] if len(found.best) else []
    return Layouts.concatenate(tables) if tables else None


def _changed(scenario: Scenario, kind: tuple[int, int, bool, int, int]) -> Scenario:
    """The scenario on another fabric: adapters, Gbit/s, rails, over-subscription, domain."""
    adapters, gbps, rails, narrow, domain = kind
    cluster, _ = machine_with(
        (scenario.cluster, scenario.software),
        ("network.adapters", adapters),
        ("network.gbps", gbps),
        ("scale_up.domain", domain),
        ("network.oversubscription", narrow),
    )
    below = _RAIL_SERVERS if rails else max(_RAIL_SERVERS // adapters, 1)
    fabric = replace(
        cluster.fabric,
        topology="rail-optimised" if rails else "leaf-spine",
        leaf_servers=below,
    )
    return replace(scenario, cluster=replace(cluster, fabric=fabric))


def _on_each(
    scenario: Scenario, domain: int, layouts: Layouts, page: RentOrBuyPage | None, use: Use
) -> Iterator[FabricChoice]:
    """Every fabric with one domain; rails matter only where something narrow lies above leaves."""
    quoted = scenario.cluster.node.scale_up.domain
    for narrow, adapters, gbps, rails in product(NARROW, ADAPTERS, GBPS, (False, True)):
        if rails and (narrow == 1 or adapters == 1):
            continue
        made = _changed(scenario, (adapters, gbps, rails, narrow, domain))
        found = evaluate(layouts, made.workload, made.cluster, made.software)
        fits = np.flatnonzero(found.able(allow_tight=scenario.allow_tight))
        if not len(fits):
            continue
        best = int(fits[np.argmin(found.step_time_s[fits])])
        take = found.take(np.array([best]))
        result = priced(take, made)
        known = scenario.workload.recipe.tokens is not None and bool(np.isfinite(result.days[0]))
        network = hourly = None
        racks = None if page is None else _rack_usd(page.own, quoted, domain)
        if page is not None and racks is not None:
            network, hourly = _owned(made, page, use, (adapters * gbps * 1e9, narrow), racks)
        hours = float(result.gpu_hours[0]) if known else None
        yield FabricChoice(
            change=f"{adapters} x {gbps} Gbit/s {narrow}:1, domain {domain}",
            scenario=made,
            adapters=adapters,
            gbps=gbps,
            rails=rails,
            oversubscription=narrow,
            domain=domain,
            layout=take.layouts.describe(),
            step_time_s=float(take.step_time_s[0]),
            memory_total_bytes=float(take.memory_total_bytes[0]),
            memory_verdict=take.verdict_word(),
            days=float(result.days[0]) if known else None,
            network_usd=network,
            usd=None if hourly is None or hours is None else hourly * hours,
        )


def _rack_usd(purchase: Purchase, quoted: int, domain: int) -> tuple[float, float] | None:
    """What a domain costs in the network, and more than the quoted server does; by accelerator.

    None where the page does not say.
    """
    per_gpu = purchase.fast_domain_usd_per_gpu
    if per_gpu is None:
        return (0.0, 0.0) if domain == quoted else None
    usd = {_NARROW_DOMAIN: 0.0, _WIDE_DOMAIN: float(per_gpu)}
    if domain == quoted:
        return usd.get(domain, 0.0), 0.0
    if domain not in usd or quoted not in usd:
        return None
    return usd[domain], usd[domain] - usd[quoted]


def _owned(
    scenario: Scenario,
    page: RentOrBuyPage,
    use: Use,
    network: tuple[float, int],
    racks: tuple[float, float],
) -> tuple[float, float]:
    """Price of the network, and of an accelerator's hour with it.

    `network`: bits/s of a server's adapters, over-subscription; `racks`: as of :func:`_rack_usd`.
    """
    own, (bits_per_s, narrow) = page.own, network
    one = float(own.network_one_tier_fraction)
    quoted_usd = float(own.server_usd)
    server_usd = quoted_usd + racks[1] * scenario.cluster.node.accelerators
    scale = bits_per_s / own.network_quoted_bits_per_s * quoted_usd / server_usd

    def scaled(whole: Figure) -> Figure:
        value = scale * (one + (float(whole) - one) / narrow)
        return Figure(value, "assumed", whole.source, whole.date, whole.spread)

    price = own.server_usd
    made = replace(
        own,
        server_usd=Figure(server_usd, price.grade, price.source, price.date, price.spread),
        network_one_tier_fraction=scaled(own.network_one_tier_fraction),
        network_two_tiers_fraction=scaled(own.network_two_tiers_fraction),
        network_three_tiers_fraction=scaled(own.network_three_tiers_fraction),
    )
    bought = replace(page, own=made)
    economics = scenario.section(Economics)
    site = None if economics is None else economics.site
    costs = rent_or_buy_cluster(scenario.cluster, use, page=bought, site=site)
    whole = costs.buying.once["network"] + racks[0] * costs.use.paid
    return whole, costs.owned_usd_per_paid_gpu_hour
