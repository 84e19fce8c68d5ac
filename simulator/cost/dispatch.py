"""Seconds of expert dispatch and combine by libraries of their own (DeepEP).

A call has a start and a transfer, which turn into each other smoothly. Links move what their own
rate and the given compute units allow; adapters move the rest at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.collectives import exchange_rate
from simulator.cost.nccl_choice import spans
from simulator.cost.routing import reached_places
from simulator.hardware.cluster import FALLBACK_BOARD, Cluster
from simulator.hardware.tuning import Dispatch
from simulator.layout.placement import Group

__all__ = ["dispatch_figures", "dispatch_s", "dispatch_volumes", "exchange_s"]

Floats = NDArray[np.float64]

_CUBIC = 3.0
"""How sharply the limit of the units turns into that of the links."""


def dispatch_s(
    cluster: Cluster, token_bytes: Any, copies: int, group: Group, *, experts: int,
    groups: int = 1, top_groups: int = 1, load: Any = 1.0, way: str = "dispatch",
    library: str = "deepep", units: Any = None,
) -> Floats:  # fmt: skip
    """Time of sending tokens to `copies` experts spread evenly over the group, in seconds.

    Parameters
    ----------
    token_bytes : array_like
        Bytes of the tokens of one rank, each once.
    copies, experts : int
        Experts per token, of how many.
    groups, top_groups : int
        Groups of experts, and how many of them a token may take its experts from.
    load : array_like
        Tokens of the fullest rank over the mean: it gets so many more, at most every token once.
    way : str
        ``dispatch``, or ``combine``, which takes the road back.
    library : str
        ``deepep``, ``hybridep``: a token crosses the network once for every other domain, the links
        once for every rank that has one of its experts. ``deepep_low_latency``: once for every one.
    units : array_like, optional
        Compute units that the call is given; the library's default if None.
    """
    once = library != "deepep_low_latency"
    routed = {"groups": groups, "top_groups": top_groups, "load": load}
    near, far = dispatch_volumes(group, copies, experts, once=once, **routed)
    known = cluster.library.dispatch[library]
    figures = dispatch_figures((known.get(cluster.board) or known[FALLBACK_BOARD])[way])
    links = float(cluster.node.scale_up.all_to_all_bytes_per_s)
    nodes = spans(group)
    seconds = exchange_s(
        figures, near_bytes=token_bytes * near, link_bytes_per_s=links,
        far_s=token_bytes * far / exchange_rate(cluster, nodes), crosses=nodes > 1, units=units,
        hop_s=float(cluster.fabric.extra_hop_s),
    )  # fmt: skip
    return np.where(group.size > 1, seconds, 0.0)


def dispatch_volumes(
    group: Group, copies: int, experts: int, *, once: bool, groups: int = 1, top_groups: int = 1,
    load: Any = 1.0,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Times that each token crosses links and adapters, on average.

    ``cost/routing.py`` has how many ranks and domains a token reaches.
    """
    n, local, nodes = group.size, group.local, spans(group)
    if once:
        routed = {"picks": copies, "experts": experts, "groups": groups, "top_groups": top_groups}
        ranks = np.minimum(load * reached_places(n, **routed), n)
        domains = np.minimum(load * reached_places(nodes, **routed), nodes)
        return ranks * (local - 1) / local, domains * (nodes - 1) / nodes
    return np.asarray(load * copies * (local - 1) / n), np.asarray(load * copies * (n - local) / n)


def exchange_s(
    figures: Mapping[str, Any], *, near_bytes: Any, link_bytes_per_s: Any, far_s: Any, crosses: Any,
    units: Any = None, hop_s: float = 0.0,
) -> Floats:  # fmt: skip
    """``(start^x + transfer^x)^(1/x)``; the links' limits meet as the inverse third power."""
    f = figures
    start = f["start_s"] + np.where(crosses, f["network_start_s"] + hop_s, 0.0)
    given = f["units"] if units is None else units
    one = f["unit_bytes_per_s"] * np.where(crosses, f["forward_fraction"], 1.0)
    by_links = (f["link_fraction"] * link_bytes_per_s) ** -_CUBIC
    rate = (by_links + (one * given) ** -_CUBIC) ** (-1.0 / _CUBIC)
    transfer = np.maximum(near_bytes / rate, far_s)
    power = f["sharpness"]
    return np.asarray((start**power + transfer**power) ** (1.0 / power))


def dispatch_figures(known: Dispatch) -> dict[str, float]:
    """Return the figures of one way by the names of :func:`exchange_s`."""
    unit = known.unit_bytes_per_s
    return {
        "start_s": float(known.start_s), "network_start_s": float(known.network_start_s),
        "link_fraction": float(known.link_fraction), "units": float(known.units),
        "unit_bytes_per_s": 1e15 if unit is None else float(unit),
        "forward_fraction": float(known.forward_fraction), "sharpness": float(known.sharpness),
    }  # fmt: skip
