"""How long calls move bytes: the part of their time that links decide, without starts and latency.

The closed forms hand out whole seconds. With a hundredth less of the links of one kind of groups
everything is priced once more: what grows by a hundredth is the time of its bytes, the rest does
not grow. So it holds for every algorithm, ramp and protocol that the closed forms know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.terms import HIDDEN
from simulator.events.deviations.deviations import Deviation, replicas_of
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.play import Replica
from simulator.hardware.cluster import Cluster, LinksLeft
from simulator.records import dataclass

COMMUNICATION = ("recompute", "tp", "cp", "ep", "fsdp", "pp", "dp")
"""Terms with calls in them; what is computed again repeats those of the forward pass."""

_LESS = 0.01


@dataclass(frozen=True, kw_only=True)
class ByteTime:
    """Seconds for which the calls of one kind of groups move bytes, replicas one after another."""

    group: str
    """As the closed form names it: a field of ``Placement``."""
    far: bool
    """Over adapters; else inside domains."""
    passes_s: Floats
    """In passes, shown or hidden, by COMMUNICATION: (ranks, chunks, kinds, terms)."""
    sends_s: Floats
    """In a send that runs beside compute, (ranks,)."""
    reduce_s: Floats
    """In gradient reductions, (ranks, chunks)."""
    gather_s: Floats
    """In gathers of updated parameters, (ranks, chunks)."""


def call_seconds(replicas: Sequence[Replica]) -> ByteTime:
    """Whole seconds of all calls, in the same places."""
    columns = [CAUSE[name] for name in COMMUNICATION]
    whole = [replica.passes.shown_s[..., columns].copy() for replica in replicas]
    for replica, seconds in zip(replicas, whole, strict=True):
        for i, name in enumerate(COMMUNICATION):
            if name in HIDDEN:
                seconds[..., i] += replica.passes.hidden_s[..., HIDDEN.index(name)]
    return ByteTime(
        group="",
        far=False,
        passes_s=np.concatenate(whole),
        sends_s=np.concatenate([replica.passes.send_s for replica in replicas]),
        reduce_s=np.concatenate([replica.step_end.reduce_s for replica in replicas]),
        gather_s=np.concatenate([replica.step_end.gather_s for replica in replicas]),
    )


def byte_time(
    whole: ByteTime, group: str, far: bool, given: Any, deviations: Sequence[Deviation]
) -> ByteTime:
    """Time of the bytes of one kind of groups, over adapters or inside domains.

    Parameters
    ----------
    whole : ByteTime
        Whole seconds of all calls.
    given : tuple
        Layout, workload, cluster and software, which they are priced from.
    deviations : sequence of Deviation
        Likewise.
    """
    row, workload, cluster, software = given
    narrowed = [
        deviation
        if deviation.cluster is None
        else replace(deviation, cluster=_narrowed(deviation.cluster, group, far))
        for deviation in deviations
    ]
    slower = replicas_of(row, workload, _narrowed(cluster, group, far), software, narrowed)
    after = call_seconds(slower)
    grown = {
        name: np.maximum(getattr(after, name) - getattr(whole, name), 0.0) / _LESS
        for name in ("passes_s", "sends_s", "reduce_s", "gather_s")
    }
    return ByteTime(group=group, far=far, **grown)


def bytes_of_all(
    replicas: Sequence[Replica],
    whole: ByteTime,
    kinds: Sequence[tuple[str, bool]],
    given: Any,
    deviations: Sequence[Deviation],
) -> list[ByteTime]:
    """Time of the bytes of these kinds of groups, and of sends between stages."""
    replica = replicas[0]
    far = bool(replica.priced.hop_crosses[replica.rows.state_key[0]])
    return [
        byte_time(whole, group, outside, given, deviations)
        for group, outside in (*kinds, ("pp", far))
    ]


def _narrowed(cluster: Cluster, group: str, far: bool) -> Cluster:
    """The cluster with less left to one kind of groups."""
    left = {left_links.group: left_links for left_links in cluster.left}
    left_links = left.get(group, LinksLeft(group=group))
    name = "scale_out" if far else "scale_up"
    left[group] = replace(left_links, **{name: getattr(left_links, name) / (1.0 + _LESS)})
    return replace(cluster, left=tuple(left.values()))
