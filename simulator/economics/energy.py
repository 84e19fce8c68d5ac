"""Energy of training, up to the meter, and its carbon: the draw of servers by how busy they are.

A server draws ``host + sum over devices of (idle + (busy - idle) activity)``, where activity is 1
while a device computes and the site's `waiting_activity` while it waits or communicates. Measured
8-GPU H100 servers draw 7.2-8.4 kW in training (arXiv 2412.08602, arXiv 2506.14551).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from simulator import catalogue
from simulator.arrays import Floats
from simulator.economics.price import Site
from simulator.errors import InputError, problem
from simulator.files import Figure, read_profile, record
from simulator.hardware.cluster import Cluster

_GRAM = 1e-3

_Kwh = TypeVar("_Kwh", float, Floats)


def mean_activity(*, step_time_s: Any, busy_s: Any, waiting_activity: float) -> Floats:
    """Activity of a device averaged over a step in which it computes for `busy_s`.

    Examples
    --------
    Three quarters computing, one quarter waiting at half activity:

    >>> float(mean_activity(step_time_s=4.0, busy_s=3.0, waiting_activity=0.5))
    0.875
    """
    busy = np.clip(np.asarray(busy_s, dtype=float) / step_time_s, 0.0, 1.0)
    return np.asarray(busy + (1.0 - busy) * waiting_activity)


def draw_watt(
    *,
    gpus: Any,
    gpus_per_server: int,
    host_watt: float,
    idle_watt: float,
    busy_watt: float,
    activity: Any,
    whole: bool = True,
) -> Floats:
    """Draw of the servers that hold `gpus` devices; devices left over in the last one idle.

    With `whole` false the last server counts by the share of its devices that are held: the others
    are somebody else's.

    Examples
    --------
    One server of eight at full activity, 2 kW of host and 650 W devices:

    >>> float(draw_watt(gpus=8, gpus_per_server=8, host_watt=2000.0, idle_watt=90.0,
    ...                 busy_watt=650.0, activity=1.0))
    7200.0
    """
    servers = np.asarray(gpus, dtype=float) / gpus_per_server
    servers = np.ceil(servers) if whole else servers
    resting = servers * (host_watt + gpus_per_server * idle_watt)
    return np.asarray(resting + np.asarray(gpus) * (busy_watt - idle_watt) * np.asarray(activity))


def energy_joule(
    *,
    seconds: Any,
    servers_watt: Any,
    network_watt_fraction: float,
    power_usage_effectiveness: float,
) -> Floats:
    """Energy at the meter: servers, their share of network and storage, cooling and conversion.

    Examples
    --------
    7.2 kW for an hour, a tenth of all power in the network, PUE 1.25: 10 kWh.

    >>> float(energy_joule(seconds=3600.0, servers_watt=7200.0, network_watt_fraction=0.1,
    ...                    power_usage_effectiveness=1.25)) / 3.6e6
    10.0
    """
    machines = np.asarray(servers_watt, dtype=float) / (1.0 - network_watt_fraction)
    return np.asarray(machines * np.asarray(seconds, dtype=float) * power_usage_effectiveness)


def cluster_energy_joule(cluster: Cluster, site: Site, *, step_time_s: Any, busy_s: Any) -> Floats:
    """Energy of one step on the whole cluster, at the meter of `site`.

    A part of a server burns its part.

    Parameters
    ----------
    step_time_s : array_like
        Duration of the step.
    busy_s : array_like
        Seconds of it in which a device computes, averaged over devices.
    """
    activity = mean_activity(
        step_time_s=step_time_s, busy_s=busy_s, waiting_activity=float(site.waiting_activity)
    )
    total: Floats = np.zeros(np.shape(activity))
    for group in cluster.groups:
        total = total + draw_watt(
            gpus=group.gpus,
            gpus_per_server=group.node.accelerators,
            host_watt=float(group.node.host_watt),
            idle_watt=float(group.accelerator.power.idle_watt),
            busy_watt=float(group.accelerator.power.busy_watt),
            activity=activity,
            whole=False,
        )
    return energy_joule(
        seconds=step_time_s,
        servers_watt=total,
        network_watt_fraction=float(site.network_watt_fraction),
        power_usage_effectiveness=float(site.power_usage_effectiveness),
    )


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


def co2_kg(kwh: _Kwh, region: str, *, where: str = "arguments", field: str = "region") -> _Kwh:
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
    return kwh * (float(table[region]) * _GRAM)
