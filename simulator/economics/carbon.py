"""Carbon of electricity by region: hardware_profiles/carbon/NAME.toml."""

from __future__ import annotations

from simulator import catalogue
from simulator.errors import InputError, problem
from simulator.files import Figure, read_profile, record

_GRAM = 1e-3


@record
class CarbonTable:
    """Carbon of a kilowatt-hour at the meter."""

    name: str
    g_per_kwh: dict[str, Figure]
    """By region, grams of CO2 equivalent."""
    note: str = ""


def load_carbon(name: str = "national") -> CarbonTable:
    """Read a table of carbon by name or path."""
    return read_profile(CarbonTable, catalogue.find("carbon", name))


def co2_kg(kwh: float, region: str, *, where: str = "arguments", field: str = "region") -> float:
    """Return the CO2 equivalent of electricity in kg.

    Raises
    ------
    InputError
        If the region is unknown, with the nearest name.

    Examples
    --------
    A thousand kilowatt-hours in France, 56 g each:

    >>> co2_kg(1000.0, "france")
    56.0
    """
    table = load_carbon().g_per_kwh
    if region not in table:
        raise InputError(problem(where, field, "unknown region", region, table))
    return kwh * float(table[region]) * _GRAM
