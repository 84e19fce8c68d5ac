"""What an accelerator costs by the hour, and the building it stands in.

Money is linear: hours of accelerators, and kilowatt-hours where the price leaves them out.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.files import Figure, read_profile, record
from simulator.units import HOUR_S, KWH_J

MARK = "*"
"""Of money at a price that is assumed."""

Base = Literal["cluster", "offer", "typed"]
Term = Literal["on demand", "reserved", "spot", "owned"]


@record
class Price:
    """The price of one accelerator, as hardware_profiles/prices/NAME.toml gives it."""

    name: str
    provider: str = ""
    """Who asks it."""
    term: Term = "on demand"
    base: Base = "cluster"
    """Where it comes from: the cluster's profile, a row of a table of offers, what was typed."""
    usd_per_gpu_hour: Figure | None = None
    """One accelerator with its share of server and network, for one hour; None: not known, and so
    is every cost."""
    included_power: bool
    """The price covers electricity and cooling (rented); otherwise `cost_usd` adds them (owned)."""
    note: str = ""
    """What the figure is and is not: list price, middle of a range, purchase amortised."""
    site: str = "default"
    """Name of the site profile."""
    reserved_discount_fraction: Figure | None = None
    """Less for a year's commitment, paid for every hour of it; None: not known."""
    spot_discount_fraction: Figure | None = None
    """Less where the job may be interrupted at any time; None: not known."""

    @property
    def origin(self) -> dict[str, Any]:
        """What an hour costs, who asks it and how sure that is, as JSON says it."""
        figure = self.usd_per_gpu_hour
        known = figure is not None
        return {
            "usd_per_gpu_hour": float(figure) if figure is not None else None,
            "provider": self.provider or None,
            "term": self.term if known else None,
            "date": (figure.date if figure is not None else "") or None,
            "source": figure.source if figure is not None else None,
            "grade": figure.grade if figure is not None else None,
            "base": self.base if known else None,
        }

    @property
    def assumed(self) -> bool:
        """Whether the figure is a guess: no quote, no list that was read."""
        return self.usd_per_gpu_hour is not None and self.usd_per_gpu_hour.grade == "assumed"

    @property
    def mark(self) -> str:
        """What stands behind money at this price: a sign where it is assumed."""
        return MARK * self.assumed

    def words(self) -> str:
        """Say what an hour costs, of whom, when, and whether it is assumed."""
        figure = self.usd_per_gpu_hour
        if figure is None:
            return "no price known"
        if self.base == "typed" and not figure.date:
            return f"{float(figure):,.2f} USD per GPU-hour, yours"
        said = [self.term, self.provider, figure.date, "assumed" * self.assumed]
        return f"{float(figure):,.2f} USD per GPU-hour ({', '.join(filter(None, said))})"


@record
class Site:
    """A data centre, as hardware_profiles/sites/NAME.toml describes it."""

    name: str
    """What the site is called."""
    region: str = "world"
    """Where its electricity comes from (hardware_profiles/carbon)."""
    power_usage_effectiveness: Figure
    """Energy at the meter over that of servers, switches and storage."""
    electricity_usd_per_kwh: Figure
    """Price of a kilowatt-hour at the meter."""
    waiting_activity: Figure
    """Where a device's draw lies between idle (0) and busy (1) while it waits or communicates."""
    network_watt_fraction: Figure
    """Share of switches, optics and storage in the power of all machines."""


def load_price(name: str, *, where: str = "profiles", field: str = "price") -> Price:
    """Read a price profile by name or path."""
    return read_profile(Price, catalogue.find("prices", name, where=where, field=field))


def load_site(name: str, *, where: str = "profiles", field: str = "site") -> Site:
    """Read a site profile by name or path."""
    path = catalogue.find("sites", name, where=where, field=field)
    return read_profile(Site, path, kind="sites")


def cost_usd(
    *,
    seconds: Any,
    gpus: Any,
    energy_joule: Any,
    usd_per_gpu_hour: float,
    electricity_usd_per_kwh: float,
    included_power: bool,
) -> NDArray[np.float64]:
    """Cost of holding `gpus` accelerators for `seconds`, with electricity where it is not included.

    Parameters
    ----------
    seconds, gpus, energy_joule : array_like
        Wall-clock time, accelerators held, energy at the meter; broadcast against each other.

    Examples
    --------
    Eight accelerators for one hour at 2 USD, 10 kWh at 0.1 USD:

    >>> money = {"usd_per_gpu_hour": 2.0, "electricity_usd_per_kwh": 0.1}
    >>> used = {"seconds": 3600.0, "gpus": 8, "energy_joule": 36e6}
    >>> float(cost_usd(**used, **money, included_power=True))
    16.0
    >>> float(cost_usd(**used, **money, included_power=False))
    17.0
    """
    held = np.asarray(seconds, dtype=float) * gpus / HOUR_S * float(usd_per_gpu_hour)
    power = np.asarray(energy_joule, dtype=float) / KWH_J * float(electricity_usd_per_kwh)
    return np.asarray(held + (0.0 if included_power else 1.0) * power)
