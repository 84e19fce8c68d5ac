"""How far money and energy may be off beyond the step time: prices, draws, the building.

Figures of profiles state relative standard deviations. Each is moved by its own through the formula
that uses it; the changes of the logarithm add as variances, as independent errors do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from simulator import catalogue
from simulator.arrays import Floats
from simulator.economics.energy import cluster_energy_joule
from simulator.economics.price import Price, Site
from simulator.economics.quotes import price_spread
from simulator.files import Figure, read_profile, record
from simulator.hardware.cluster import Cluster

_SITE = ("power_usage_effectiveness", "waiting_activity", "network_watt_fraction")


@record
class DrawError:
    """How far draws are off, as hardware_profiles/draws/default.toml says."""

    name: str
    draw: Figure
    """Relative standard deviation of the power of servers that state none themselves."""


@lru_cache(maxsize=1)
def _unstated() -> float:
    errors: DrawError = read_profile(DrawError, catalogue.find("draws", "default"))
    return float(errors.draw)


def _relative(figure: float, otherwise: float = 0.0) -> float:
    """The spread that a figure states, or `otherwise`."""
    stated = getattr(figure, "spread", None)
    return otherwise if stated is None else float(stated)


def _moved_sites(site: Site) -> Iterator[Site]:
    """The site with each of its figures one deviation higher."""
    for name in _SITE:
        figure = getattr(site, name)
        if spread := _relative(figure):
            moved: dict[str, Any] = {name: Figure(float(figure) * (1.0 + spread))}
            yield replace(site, **moved)


def energy_spread(cluster: Cluster, site: Site, *, step_time_s: Floats, busy_s: Floats) -> Floats:
    """Relative standard deviation of the energy of a step whose duration is known.

    Parameters
    ----------
    step_time_s, busy_s : ndarray
        As :func:`simulator.economics.energy.cluster_energy_joule` takes them.
    """

    def joule(where: Site) -> Floats:
        return cluster_energy_joule(cluster, where, step_time_s=step_time_s, busy_s=busy_s)

    draws = [
        _relative(figure, _unstated())
        for group in cluster.groups
        for figure in (group.accelerator.power.busy_watt, group.node.host_watt)
    ]
    # The draws of one kind of server are off together, so the largest stands for all.
    return np.sqrt(max(draws) ** 2 + _variance(joule, site))


def _variance(joule: Callable[[Site], Floats], site: Site) -> Floats:
    before = joule(site)
    changes = [np.log(joule(moved) / before) for moved in _moved_sites(site)]
    return np.asarray(sum((change**2 for change in changes), np.zeros(np.shape(before))))


def usd_spread(price: Price, site: Site, *, power_share: Floats, energy: Floats) -> Floats:
    """Relative standard deviation of the money of a run whose duration is known.

    A price that is assumed and states no spread is off as offers are apart.

    Parameters
    ----------
    power_share : ndarray
        Electricity over all money: 0 where the price includes it.
    energy : ndarray
        Relative standard deviation of the energy.

    Examples
    --------
    Rented at a price known to a fifth, electricity included:

    >>> from simulator.economics.price import load_price, load_site
    >>> rented, site = load_price("neocloud-h100"), load_site("default")
    >>> float(usd_spread(rented, site, power_share=np.zeros(1), energy=np.full(1, 0.1))[0])
    0.2
    """
    held = 0.0 if price.usd_per_gpu_hour is None else _relative(price.usd_per_gpu_hour)
    if price.assumed and getattr(price.usd_per_gpu_hour, "spread", None) is None:
        held = price_spread("", price.term)
    tariff = _relative(site.electricity_usd_per_kwh)
    power = power_share * np.sqrt(energy**2 + tariff**2)
    return np.sqrt(((1.0 - power_share) * held) ** 2 + power**2)
