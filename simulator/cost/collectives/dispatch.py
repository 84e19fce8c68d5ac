"""Seconds of expert dispatch and combine by libraries of their own (DeepEP).

A call has a start and a transfer, which turn into each other smoothly. Links move what their own
rate and the given compute units allow; adapters move the rest at the same time. A unit pays for
the bytes of a copy and for the copy itself; the start waits for one token to pass, and in the
low-latency mode for a message to every expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.calls import exchange_rate
from simulator.cost.operators.routing import reached_places
from simulator.hardware.cluster import Cluster
from simulator.hardware.tuning import Dispatch
from simulator.layout.placement import Group
from simulator.records import dataclass

_CUBIC = 3.0
"""How sharply the limit of the units turns into that of the links."""
_AT_ONCE = 1e18
"""Bytes per second of what takes no time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What the tokens of one rank send, and over what."""

    token_bytes: Any
    """Of all tokens, each once."""
    row_bytes: Any
    """Of one token."""
    near: Any
    """Times that each token crosses links."""
    far: Any
    """Times that each token crosses adapters."""
    experts: Any
    share_beyond: Any
    """Share of the experts that is in other domains."""
    link_bytes_per_s: Any
    far_bytes_per_s: Any
    """Rate of a rank's share of the adapters."""
    message_s: Any = 0.0
    """What a message over adapters keeps the next one waiting."""
    message_tokens: Any = 1.0
    """Tokens of such a message."""


def dispatch_s(
    cluster: Cluster,
    token_bytes: Any,
    copies: int,
    group: Group,
    *,
    experts: int,
    row_bytes: Any,
    groups: int = 1,
    top_groups: int = 1,
    load: Any = 1.0,
    in_turn: bool = False,
    way: str = "dispatch",
    library: str = "deepep",
    units: Any = None,
) -> Floats:
    """Time of sending tokens to `copies` experts spread evenly over the group, in seconds.

    Parameters
    ----------
    token_bytes : array_like
        Bytes of the tokens of one rank, each once.
    copies, experts : int
        Experts per token, of how many.
    row_bytes : array_like
        Bytes of one token.
    groups, top_groups : int
        Groups of experts, and how many of them a token may take its experts from.
    load : array_like
        Tokens of the fullest rank over the mean: it gets so many more, at most every token once.
    in_turn : bool
        Every token gets the experts that follow the last one's.
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
    near, far = dispatch_volumes(group, copies, experts, once=once, in_turn=in_turn, **routed)
    known = cluster.library.dispatch[library]
    measured = (known.get(cluster.board) or known[cluster.library.dispatch_fallback])[way]
    figures = dispatch_figures(measured)
    nodes = group.domains
    message_s, message_tokens = 0.0, np.ones_like(nodes)
    if measured.message_tokens and cluster.node.scale_out.through_host:
        message_s = float(cluster.library.fence_hops * cluster.fabric.extra_hop_s)
        message_tokens = np.where(nodes > 2, *reversed(measured.message_tokens))
    traffic = Traffic(
        token_bytes=token_bytes,
        row_bytes=row_bytes,
        near=near,
        far=far,
        experts=experts,
        share_beyond=1.0 - group.local / group.size,
        link_bytes_per_s=float(cluster.node.scale_up.all_to_all_bytes_per_s),
        far_bytes_per_s=exchange_rate(cluster, nodes),
        message_s=message_s,
        message_tokens=message_tokens,
    )
    seconds = exchange_s(figures, traffic, units=units, hop_s=float(cluster.fabric.extra_hop_s))
    return np.where(group.size > 1, seconds, 0.0)


def dispatch_volumes(
    group: Group,
    copies: int,
    experts: int,
    *,
    once: bool,
    groups: int = 1,
    top_groups: int = 1,
    load: Any = 1.0,
    in_turn: Any = False,
) -> tuple[Floats, Floats]:
    """Times that each token crosses links and adapters, on average.

    ``cost/operators/routing.py`` has how many ranks and domains a token reaches.
    """
    n, local, nodes = group.size, group.local, group.domains
    if once:
        routed = {"picks": copies, "experts": experts, "groups": groups, "top_groups": top_groups}
        ranks = np.minimum(load * reached_places(n, in_turn=in_turn, **routed), n)
        domains = np.minimum(load * reached_places(nodes, in_turn=in_turn, **routed), nodes)
        return ranks * (local - 1) / local, domains * (nodes - 1) / nodes
    return np.asarray(load * copies * (local - 1) / n), np.asarray(load * copies * (n - local) / n)


def exchange_s(
    figures: Mapping[str, Any], traffic: Traffic, *, units: Any = None, hop_s: float = 0.0
) -> Floats:
    """``(start^x + transfer^x)^(1/x)``; the links' limits meet as the inverse third power."""
    f, t = figures, traffic
    crosses = np.asarray(t.share_beyond) > 0.0
    told_s = f["expert_s"] + f["network_expert_s"] * t.share_beyond
    beyond_s = np.where(crosses, f["network_start_s"] + hop_s, 0.0)
    start = f["start_s"] + beyond_s + told_s * t.experts + t.row_bytes / f["token_bytes_per_s"]
    given = f["units"] if units is None else units
    copies, near_bytes = t.near + t.far, t.near * t.token_bytes
    byte_s = 1.0 / f["unit_bytes_per_s"] + f["unit_copy_s"] / t.row_bytes
    units_s = (
        copies * t.token_bytes * byte_s / given / np.where(crosses, f["forward_fraction"], 1.0)
    )
    links_s = near_bytes / (f["link_fraction"] * t.link_bytes_per_s)
    moved_s = (links_s**_CUBIC + units_s**_CUBIC) ** (1.0 / _CUBIC)
    transfer = np.maximum(moved_s, t.far * t.token_bytes / t.far_bytes_per_s)
    messages = t.far * t.token_bytes / t.row_bytes / t.message_tokens
    transfer = np.maximum(transfer, messages * t.message_s)
    power = f["sharpness"]
    return np.asarray((start**power + transfer**power) ** (1.0 / power))


def dispatch_figures(known: Dispatch) -> dict[str, float]:
    """Return the figures of one way by the names of :func:`exchange_s`."""
    unit, token = known.unit_bytes_per_s, known.token_bytes_per_s
    names = (
        "start_s",
        "network_start_s",
        "expert_s",
        "network_expert_s",
        "link_fraction",
        "units",
        "unit_copy_s",
        "forward_fraction",
        "sharpness",
    )
    figures = {name: float(getattr(known, name)) for name in names}
    figures["unit_bytes_per_s"] = _AT_ONCE if unit is None else float(unit)
    figures["token_bytes_per_s"] = _AT_ONCE if token is None else float(token)
    return figures
