"""What a collective takes once its algorithm and protocol are chosen: start, hops, ramp, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import CollectiveLibrary
from simulator.hardware.node import ScaleUp
from simulator.hardware.tuning import RESIDUAL_BYTES, Curve, Release, Start
from simulator.record_cache import for_same_records
from simulator.records import dataclass


class Regime(IntEnum):
    """Kinds of protocol that have a curve of their own."""

    LL = 0
    """Small messages."""
    BULK = 1
    """Simple."""
    NVLS = 2
    """In the switch of a domain."""
    LL128 = 3
    """Lines of 128 bytes."""


REGIMES = tuple(regime.name.lower() for regime in Regime)
"""Their words in profiles."""
_LL, _, _NVLS, _LL128 = map(int, Regime)
"""Looked up and compared sooner than members of an enumeration."""
_KNOTS = np.log2(RESIDUAL_BYTES)
"""Sizes at which what measurements leave over is stated."""
_RAMP_BYTES = 1e6
"""Moved bytes at which the ramp of a curve is stated."""


def curve_s(
    figures: Mapping[str, Any],
    *,
    regime: Any,
    near_steps: Any,
    start: Any,
    moved_bytes: Any,
    rate: Any,
    ll_rate: Any,
    far_start_s: Any = 0.0,
    far_bytes_s: Any = 0.0,
    fills: Any = True,
) -> Floats:
    """Seconds of a call by its `Regime`.

    Inside a domain: ``base + hop x steps + ramp sqrt(moved / 1 MB) + moved / rate``. The way over
    the network adds the start of its hops; bytes move at the slower of links and adapters; and a
    pipeline fed in pieces pays ``ramp sqrt(start x bytes / rate)`` between the two, as the best
    number of pieces of a pipeline with `start` to fill does.
    """
    f, small = figures, regime == _LL
    root = np.sqrt(np.asarray(moved_bytes) / _RAMP_BYTES)
    ll = f["ll_base_s"] + f["ll_hop_s"] * near_steps + f["ll_ramp_s"] * root
    bulk = start * (f["bulk_base_s"] + f["bulk_hop_s"] * near_steps) + f["bulk_ramp_s"] * root
    inside, bytes_per_s = np.where(small, ll, bulk), np.where(small, ll_rate, rate)
    lines = regime == _LL128
    inside = np.where(lines, start * (f["ll128_base_s"] + f["ll128_hop_s"] * near_steps), inside)
    bytes_per_s = np.where(lines, rate * f["ll128_fraction"], bytes_per_s)
    in_switch = regime == _NVLS
    inside = np.where(in_switch, f["nvls_base_s"] + f["nvls_ramp_s"] * root, inside)
    bytes_per_s = np.where(in_switch, f["nvls_bytes_per_s"], bytes_per_s)
    part = np.where(small, f["ll_far_share"], np.where(lines, f["ll128_far_share"], 1.0))
    far = far_bytes_s / part
    ramp_s = np.where(fills, f["network_ramp"] * np.sqrt(far_start_s * far), 0.0)
    return np.asarray(inside + far_start_s + ramp_s + np.maximum(moved_bytes / bytes_per_s, far))


def interpolated(shares: Mapping[str, Any], members: Any) -> Floats:
    """Share at so many members: between two stated numbers along the logarithm, flat beyond."""
    numbers, values = np.array([*shares], float), np.array([*shares.values()], float)
    known = np.argsort(numbers)
    power = np.log2(np.asarray(members, dtype=float))
    return np.interp(power, np.log2(numbers[known]), values[known])


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """The links of one cluster's servers as collectives meet them."""

    curve: Curve | None
    figures: Mapping[str, float]
    """What gathers and reductions take; :func:`curve_s` names them."""
    exchange: Mapping[str, float]
    """What all-to-alls take."""
    bus_bytes_per_s: float
    all_to_all_bytes_per_s: float
    pair_fraction: float
    reduces: bool
    """Whether the switch does."""
    release: Release
    """Of the collective library."""

    def rates(self, operation: str, members: Any, integer: Any = False) -> dict[str, Floats]:
        """Bus bandwidth of large calls over so many members of a domain, and what LL tends to.

        Of a board that was not measured at all: two members reach ``pair_fraction`` of what the
        whole domain does, and the gap closes with the square of their number.
        """
        exchange = operation == "all_to_all"
        whole = self.all_to_all_bytes_per_s if exchange else self.bus_bytes_per_s
        if self.curve is not None:
            share = interpolated(self.curve.share[operation], members)
            if operation in ("all_reduce", "reduce_scatter"):
                share = share * np.where(integer, float(self.curve.integer_fraction), 1.0)
        elif exchange:
            share = np.ones(np.shape(members))
        else:
            share = 1.0 - (1.0 - self.pair_fraction) * (2.0 / np.maximum(members, 2)) ** 2
        return {"rate": whole * share, "ll_rate": self.figures["ll_bytes_per_s"] * share}

    def start(self, operation: str) -> float:
        """Start and hops of an operation over those of a reduce-scatter."""
        return 1.0 if self.curve is None else float(self.curve.bulk_start.get(operation, 1.0))

    @property
    def exchange_kind(self) -> str:
        """What residuals call an all-to-all of this release."""
        return "all_to_all_older" if self.release.older_exchange else "all_to_all"

    def release_factor(self, regime: Any) -> Floats:
        """Time of a call over that with the newest release."""
        small, large = self.release.ll_time_fraction, self.release.time_fraction
        return np.where(regime == _LL, float(small), float(large))

    def residual(self, operation: str, regime: Any, members: Any, size_bytes: Any) -> Floats:
        """Factor that measurements of such calls leave over the formula; 1 where there are none."""
        factor = np.zeros(np.broadcast_shapes(np.shape(size_bytes), np.shape(members)))
        if self.curve is None:
            return factor + 1.0
        at = np.log2(np.maximum(size_bytes, 1.0))
        power = np.log2(np.maximum(members, 1))
        for kind, name in enumerate(REGIMES):
            tables = self.curve.residual.get(f"{operation}_{name}", {})
            if tables and (here := np.equal(regime, kind)).any():
                factor = np.where(here, _between(tables, power, at), factor)
        return np.asarray(np.exp(factor))


def _between(tables: Mapping[str, tuple[float, ...]], power: Any, at: Any) -> Floats:
    """Interpolate tables over the logarithm of sizes, and between the two nearest counts."""
    known = sorted(tables, key=int)
    counts, only = np.log2(np.array(known, float)), np.eye(len(known))
    residual = np.zeros(np.broadcast_shapes(np.shape(power), np.shape(at)))
    for count, weights in zip(known, only, strict=True):
        weight = np.interp(power, counts, weights)
        residual = residual + weight * np.interp(at, _KNOTS, tables[count])
    return residual


def start_figures(start: Start) -> dict[str, float]:
    """Return the figures of a start by the names of :func:`curve_s`."""
    names = ("ll_base_s", "ll_hop_s", "bulk_base_s", "bulk_hop_s", "bulk_ramp_s")
    return {name: float(getattr(start, name)) for name in names}


def board(cluster: Cluster) -> Board:
    """Gather what a cluster's profiles say about its links."""
    return _board(cluster.groups[0].node.scale_up, cluster.library, cluster.board)


@for_same_records(64)
def _board(links: ScaleUp, library: CollectiveLibrary, kind: str) -> Board:
    curve = library.curves.get(kind)
    nvls = links.nvls_bytes_per_s
    common = {
        "nvls_bytes_per_s": 1.0 if nvls is None else float(nvls),
        "network_ramp": float(library.network_ramp),
        "ll_far_share": library.tuning.ll_fraction,
        "ll128_far_share": library.tuning.ll128_fraction,
    }
    if curve is None:
        ring = _as_nccl_counts(links, library)
        peer_s = float(library.all_to_all_peer_s[links.kind])
        exchange = {**ring, "bulk_hop_s": peer_s, "ll_hop_s": peer_s}
    else:
        names = (
            "ll_ramp_s",
            "ll_bytes_per_s",
            "nvls_base_s",
            "nvls_ramp_s",
            "ll128_base_s",
            "ll128_hop_s",
            "ll128_fraction",
        )
        common |= {name: float(getattr(curve, name)) for name in names}
        ring, exchange = start_figures(curve.ring), start_figures(curve.exchange)
    return Board(
        curve=curve,
        figures={**common, **ring},
        exchange={**common, **exchange, "network_ramp": float(library.exchange_ramp)},
        bus_bytes_per_s=float(links.bus_bytes_per_s),
        pair_fraction=float(links.pair_fraction),
        all_to_all_bytes_per_s=float(links.all_to_all_bytes_per_s),
        reduces=nvls is not None,
        release=library.releases[library.release],
    )


def _as_nccl_counts(links: ScaleUp, library: CollectiveLibrary) -> dict[str, float]:
    """Start and hops of NCCL's own table, for a board that no curve was fitted to."""
    base = library.ring_base_s
    hop = library.ring_hop_s.get(links.kind, library.ring_hop_s["nvlink"])
    bus = float(links.bus_bytes_per_s)
    return {
        "ll_base_s": float(base.ll),
        "ll_hop_s": float(hop.ll),
        "ll_ramp_s": 0.0,
        "ll_bytes_per_s": bus * library.tuning.ll_fraction,
        "bulk_base_s": float(base.simple),
        "bulk_hop_s": float(hop.simple),
        "bulk_ramp_s": 0.0,
        "nvls_base_s": float(library.nvls_base_s),
        "nvls_ramp_s": 0.0,
        "ll128_base_s": float(base.ll128),
        "ll128_hop_s": float(hop.ll128),
        "ll128_fraction": library.tuning.ll128_fraction,
    }
