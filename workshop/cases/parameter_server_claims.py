"""What the code says where figures of parameter servers were published."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulator.parameter_servers.rounds import SyncRound, ring_s, synchronous_s


def _round(values: float, hosts: int, servers: int, rate: float) -> SyncRound:
    """Hosts of one rate, 4 bytes a value, sums that take no time, in many pieces."""
    return SyncRound(
        push_bytes=4.0 * values,
        pull_bytes=4.0 * values,
        worker_bytes_per_s=rate,
        servers_bytes_per_s=servers * rate,
        sum_s=0.0,
        update_s=0.0,
        latency_s=0.0,
        pieces=1_000,
    )


def _million_values_of_a_host(*, values: float, hosts: int, colocated: bool) -> float:
    """Million values that a host sends and takes in for one matrix and step."""
    away = 1.0 - 1.0 / hosts if colocated else 1.0
    one = _round(values, hosts, hosts, 1.0)
    worker = (one.push_bytes + one.pull_bytes) * away / 4.0
    return (2.0 if colocated else 1.0) * worker / 1e6


def _gain_over_ring_percent(*, hosts: int, servers: int, values: float, gbit_per_s: float) -> float:
    """How much more often hosts step that compute no time, with servers of their own."""
    rate = gbit_per_s * 1.25e8
    served = synchronous_s([0.0] * hosts, _round(values, hosts, servers, rate))
    return float(100.0 * (ring_s(4.0 * values, hosts, rate) / served - 1.0))


SERVER_PREDICTORS: Mapping[str, Callable[..., float]] = {
    "million_values_of_a_host": _million_values_of_a_host,
    "gain_over_ring_percent": _gain_over_ring_percent,
}
