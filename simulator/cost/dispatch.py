"""Seconds of expert dispatch and combine by libraries that send a token once (DeepEP)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.nccl_choice import spans as _spans
from simulator.hardware.cluster import Cluster
from simulator.layout.placement import Group

__all__ = ["dispatch_s"]

Floats = NDArray[np.float64]


def dispatch_s(
    cluster: Cluster, token_bytes: Any, copies: int, group: Group, *, experts: int
) -> Floats:
    """Time of sending tokens to `copies` experts spread evenly over the group, in seconds.

    DeepEP: a token crosses the network once for every other domain that has one of its experts,
    and the domain's links once for every rank there that has one. Of n equal places, k of E
    experts reach ``n (1 - C(E - E/n, k) / C(E, k))`` on average. A combine takes the road back.

    Parameters
    ----------
    token_bytes : array_like
        Bytes of the tokens of one rank, each once.
    copies, experts : int
        Experts per token, of how many.
    """
    n, local, spans = group.size, group.local, _spans(group)
    links, library = cluster.node.scale_up, cluster.library
    domains = _reached(spans, copies, experts)
    ranks = _reached(n, copies, experts)
    outside = cluster.network_bytes_per_s_per_gpu / cluster.fabric.oversubscription
    far = token_bytes * domains * (spans - 1) / spans / outside
    near = token_bytes * ranks * (local - 1) / local / links.all_to_all_bytes_per_s
    peers = (local - 1) * library.all_to_all_peer_s[links.kind]
    peers = peers + (spans - 1) * library.all_to_all_peer_s["network"]
    return np.where(n > 1, float(library.ring_base_s.ll) + peers + np.maximum(near, far), 0.0)


def _reached(places: Any, picks: int, experts: int) -> Floats:
    """Places with at least one of `picks` distinct experts of an even spread, on average."""
    missed: Floats = np.ones(np.shape(places))
    for i in range(picks):  # none of the picks so far is at the place, nor is the next one
        missed = missed * np.maximum(1.0 - experts / places / (experts - i), 0.0)
    return np.asarray(places * (1.0 - missed))


