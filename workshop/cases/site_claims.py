"""What the code says where figures of runs over several sites were published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.between_sites.exchange import cycle_s, exchange_s, sent_bytes, slowest_uplink
from simulator.between_sites.sites_section import load_compression, low_rank_values, message_bytes
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from simulator.units import MIB

_GBIT = 1.25e8
"""Bytes per second of a Gbit/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Matrices of a model (rows, columns, how many) and values that are none."""

    matrices: tuple[tuple[int, ...], ...]
    vectors: int

    @property
    def values(self) -> float:
        """All of them."""
        rows, columns, count = np.array(self.matrices, float).T
        return float((rows * columns * count).sum()) + self.vectors

    def low_rank(self, rank: int) -> float:
        """Values of the factors, vectors whole."""
        rows, columns, count = np.array(self.matrices, float).T
        return float(low_rank_values(rows, columns, count, rank).sum()) + self.vectors


def _inner_minutes(*, scenario: Mapping[str, Any], inner_steps: int) -> float:
    """Minutes of some steps of a site."""
    return inner_steps * predict(make_scenario(scenario)).step_time_s / 60.0


def _exchange_seconds(
    *, values: float, compression: str, sites: int, gbit_per_s: float, latency_s: float
) -> float:
    """Seconds of one exchange round the ring."""
    way = load_compression(compression)
    ring = {"uplink_bytes_per_s": gbit_per_s * _GBIT, "latency_s": latency_s}
    return float(exchange_s(message_bytes(values, way), sites, sums=way.sums, **ring))


def _utilisation_percent(*, inner_step_s: float, inner_steps: int, exchange_s: float) -> float:
    """Share of the time in steps."""
    total = cycle_s(
        inner_step_s,
        inner_steps=inner_steps,
        fragments=1,
        overlap_steps=0,
        exchange_s=exchange_s,
        own_s=0.0,
    )
    return float(100.0 * inner_steps * inner_step_s / total)


def _uplink_gbit_per_s(
    *,
    values: float,
    step_s: float,
    inner_steps: int,
    utilisation: float,
    beside: float,
    fragments: int = 1,
    layers: int | None = None,
    compression: str = "bf16",
) -> float:
    """Rate between two sites, where `beside` steps hide what is sent.

    With `layers`, what hides it is the backward pass: the gradients of the last layer are there
    when the pass ends, so that sending them shows at any rate.
    """
    message = message_bytes(values, load_compression(compression)) / fragments
    sent = sent_bytes(message, 2, sums=True)
    given: dict[str, Any] = {
        "inner_steps": inner_steps,
        "fragments": fragments,
        "hops_s": 0.0,
        "own_s": 0.0,
    }
    whole = slowest_uplink(utilisation, step_s, overlap_steps=beside, sent_bytes=sent, **given)
    if layers is None:
        return float(whole / _GBIT)
    last = slowest_uplink(utilisation, step_s, overlap_steps=0, sent_bytes=sent / layers, **given)
    return float(max(whole, last) / _GBIT)


def _low_rank_mib(*, model: Shapes, rank: int, messages: float) -> float:
    """MiB of all messages of one worker."""
    way = load_compression("powersgd")
    return float(message_bytes(model.low_rank(rank), way)) * messages / MIB


def _low_rank_saving_ms(
    *, model: Shapes, rank: int, workers: int, gbit_per_s: float, memory_bytes_per_s: float
) -> float:
    """Milliseconds of the plain sum, less those of the factors' and of making and reading them."""
    way, plain = load_compression("powersgd"), load_compression("none")
    ring: dict[str, Any] = {
        "uplink_bytes_per_s": gbit_per_s * _GBIT,
        "latency_s": 0.0,
        "sums": True,
    }
    whole = exchange_s(message_bytes(model.values, plain), workers, **ring)
    thin = exchange_s(message_bytes(model.low_rank(rank), way), workers, **ring)
    traffic = float(way.encode_bytes_per_value) + float(way.decode_bytes_per_value)
    return float(1e3 * (whole - thin - traffic * model.values / memory_bytes_per_s))


SITE_PREDICTORS: Mapping[str, Callable[..., float]] = {
    "inner_minutes": _inner_minutes,
    "exchange_seconds": _exchange_seconds,
    "utilisation_percent": _utilisation_percent,
    "uplink_gbit_per_s": _uplink_gbit_per_s,
    "low_rank_mib": _low_rank_mib,
    "low_rank_saving_ms": _low_rank_saving_ms,
}
