"""Predicted against measured times of collectives, by the formulas that price training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.calls import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcasts_s,
    one_way_send_s,
    reduce_scatter_s,
    send_s,
)
from simulator.cost.collectives.dispatch import dispatch_s
from simulator.hardware.cluster import Cluster, with_release
from simulator.layout.placement import Group
from simulator.measured.collective_calls import (
    DEEPEP_MOST_SERVERS,
    CollectiveCalls,
    read_a2a,
    read_collectives,
)
from simulator.measured.microbenchmarks import Table, Words, groups
from simulator.scoring.benchmark_score import BenchmarkKind, BenchmarkScore, score, size_decade


def _broadcast_s(cluster: Cluster, size_bytes: Any, group: Group) -> Floats:
    """Time of one broadcast, or of one reduction to a root, which is a broadcast backwards."""
    return broadcasts_s(cluster, np.asarray(size_bytes) * group.size, group) / group.size


_FORMULAS: dict[str, Callable[[Cluster, Any, Group], Floats]] = {
    "all_gather": all_gather_s,
    "all_to_all": all_to_all_s,
    "broadcast": _broadcast_s,
    "reduce": _broadcast_s,
}
_REDUCTIONS: dict[str, Callable[..., Floats]] = {
    "all_reduce": all_reduce_s,
    "reduce_scatter": reduce_scatter_s,
}
_SENDS: dict[str, Callable[[Cluster, Any, Any], Floats]] = {
    "send": send_s,
    "one_way_send": one_way_send_s,
}
_EXPERTS = {"dispatch": "deepep", "low_latency_dispatch": "deepep_low_latency"}


def score_collectives(table: Table, words: Words) -> BenchmarkScore:
    """Predict a table of times of collectives."""
    return _score("collectives", read_collectives(table, words))


def score_a2a(table: Table, words: Words) -> BenchmarkScore:
    """Predict a table of times of expert dispatch and combine."""
    return _score("a2a", read_a2a(table, words))


def _score(kind: BenchmarkKind, calls: CollectiveCalls) -> BenchmarkScore:
    predicted_s = np.full(len(calls.size_bytes), np.nan)
    servers = calls.group.domains
    labels = (
        calls.cluster,
        calls.operation,
        calls.copies.astype(str),
        calls.experts.astype(str),
        calls.release,
        calls.label,
        servers.astype(str),
    )
    for (name, operation, copies, experts, release, label, nodes), rows in groups(
        calls.sieve.kept, *labels
    ):
        cluster = with_release(calls.clusters[name], release)
        routed = (int(copies), int(experts), label, int(nodes))
        call_s = _call_s(cluster, calls, operation, rows, routed)
        predicted_s[rows] = np.maximum(call_s, _starts_s(cluster, calls, operation, rows))
    return score(
        kind,
        calls.sieve,
        predicted_s=predicted_s,
        measured_s=calls.measured_s,
        device=calls.cluster,
        library=calls.library,
        dtype=calls.dtype,
        kernel=calls.label,
        decade=size_decade(calls.size_bytes, "bytes"),
    )


def _call_s(
    cluster: Cluster,
    calls: CollectiveCalls,
    operation: str,
    rows: Ints,
    routed: tuple[int, int, str, int],
) -> Floats:
    """Seconds of rows of one operation; `routed`: copies, experts, the way, servers."""
    size_bytes, group = calls.size_bytes[rows], calls.group.take(rows)
    if operation in _SENDS:
        return _SENDS[operation](cluster, size_bytes, group.local < group.size)
    if operation in _EXPERTS:
        copies, experts, way, nodes = routed
        most = DEEPEP_MOST_SERVERS if operation == "dispatch" else nodes
        return dispatch_s(
            cluster,
            size_bytes,
            copies,
            group,
            experts=experts,
            way=way,
            library=_EXPERTS[operation],
            units=calls.units[rows],
            groups=nodes,
            row_bytes=calls.row_bytes[rows],
            top_groups=min(nodes, most),
        )
    if operation in _REDUCTIONS:
        integer = calls.dtype[rows] == "int8"
        return _REDUCTIONS[operation](cluster, size_bytes, group, integer=integer)
    return _FORMULAS[operation](cluster, size_bytes, group)


def _starts_s(cluster: Cluster, calls: CollectiveCalls, operation: str, rows: Ints) -> Floats:
    """What host threads take to start calls on several accelerators each; nothing with one each."""
    library, starts = cluster.library, calls.starts[rows]
    messages = 2.0 * calls.group.size[rows] if operation == "all_to_all" else 0.0
    each_s = float(library.enqueue_s) + float(library.enqueue_peer_s) * messages
    return np.where(starts > 1.0, starts * each_s, 0.0)
