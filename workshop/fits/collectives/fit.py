"""Least squares of the curves of collectives: one family of boards at once, then what is left.

Robust, on logarithms, each parameter held by a weak prior: starts and hops by NCCL's own table,
rates by the wires. Boards of a family share starts, ramps and what an operation reaches of the
bus; each device has its own bus, all-to-all and switch rate. Another release of NCCL than the
newest one costs a factor on time that is fitted beside and then left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.calibration.least_squares import Prior, fit_times
from simulator.cost.collectives.curves import REGIMES, Regime, curve_s
from simulator.hardware.tuning import RESIDUAL_BYTES
from workshop.facts import facts
from workshop.fits.collectives.rows import KINDS, CollectiveRows

NEWEST: str = facts(__file__)["nccl"]
"""Release of NCCL that the figures are for."""

_MEMBERS = (2, 4, 8)
_PRIOR_WEIGHT = 0.2
_WHOLE = {"all_gather": 8, "all_to_all": 8}
"""Operations whose rate over this many members the node's own figures state."""

_LINK_SHARE = {"bus": 0.75, "exchange": 0.7, "switch": 1.0}
"""Rates of one device as shares of the wires, before any measurement."""
_THROUGH_HOST = {"bus": 0.05, "exchange": 0.05, "switch": 1.0}
"""The same where all of a board pass the memory of the host."""

_CURVE: Mapping[str, Prior] = {
    "ll_base_s": Prior(value=6.6e-6, width=0.4, low=1e-6, high=50e-6),
    "ll_hop_s": Prior(value=1.0e-6, width=0.4, low=0.05e-6, high=10e-6),
    "bulk_base_s": Prior(value=13e-6, width=0.4, low=1e-6, high=80e-6),
    "bulk_hop_s": Prior(value=3.4e-6, width=0.8, low=0.05e-6, high=30e-6),
    "bulk_ramp_s": Prior(value=3e-6, width=0.8, low=1e-9, high=60e-6),
    "exchange_ll_base_s": Prior(value=6.6e-6, width=0.4, low=1e-6, high=50e-6),
    "exchange_ll_hop_s": Prior(value=0.4e-6, width=0.4, low=0.01e-6, high=10e-6),
    "exchange_bulk_base_s": Prior(value=9e-6, width=0.4, low=1e-6, high=80e-6),
    "exchange_bulk_hop_s": Prior(value=0.4e-6, width=0.4, low=0.01e-6, high=10e-6),
    "exchange_bulk_ramp_s": Prior(value=4e-6, width=0.6, low=1e-9, high=60e-6),
    "ll_ramp_s": Prior(value=5e-6, width=0.6, low=1e-9, high=60e-6),
    "ll_bytes_per_s": Prior(value=350e9, width=0.6, low=2e9, high=2e12),
    "ll128_base_s": Prior(value=14e-6, width=0.4, low=1e-6, high=80e-6),
    "ll128_hop_s": Prior(value=1.9e-6, width=0.4, low=0.05e-6, high=10e-6),
}
"""Of each curve of a family."""
_FAMILY: Mapping[str, Prior] = {
    "nvls_base_s": Prior(value=19e-6, width=0.3, low=1e-6, high=200e-6),
    "nvls_ramp_s": Prior(value=8e-6, width=0.4, low=1e-9, high=60e-6),
    "ll128_fraction": Prior(value=0.92, width=0.1, low=0.5, high=1.2),
    "integer_fraction": Prior(value=0.93, width=0.05, low=0.5, high=1.2),
    "start_all_reduce": Prior(value=1.05, width=0.1, low=0.3, high=3.0),
    "start_all_gather": Prior(value=1.2, width=0.1, low=0.3, high=3.0),
}
_WHATEVER = ("ll_ramp_s", "ll_bytes_per_s", "ll128_base_s", "ll128_hop_s")
"""Figures of a curve that all operations have in common."""
_NO_NETWORK = {"ll_far_share": 1.0, "ll128_far_share": 1.0, "network_ramp": 0.0}
_SHARES = {
    "all_reduce": (0.87, 1.02, 1.08),
    "all_gather": (0.72, 0.93, 1.0),
    "reduce_scatter": (0.70, 0.92, 1.01),
    "all_to_all": (0.80, 0.95, 1.0),
}
"""Of the bus over 2, 4 and 8 members of fast links: what the families have in common."""
_SHARES_OF_SLOTS = {"pcie": (1.5, 1.1, 1.0), "pcie-host": (16.0, 4.0, 1.0)}
"""Neighbours on PCIe share no link; all of a board share those between its switches, or pass the
memory of the host and the link between its sockets."""
_SLOW_LL = {"pcie": 12e9, "pcie-host": 1.2e9}
"""What LL moves in bytes/s on boards without fast links, before any measurement."""
_SHARE_WIDTH = 0.1
_RELEASE = Prior(value=1.0, width=0.05, low=0.7, high=1.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """Fitted parameters of one family."""

    values: Mapping[str, float]
    """``CURVE.figure``, ``figure``, ``share.OPERATION.N``, ``DEVICE.bus``, ``release.2.23.ll``."""


def fit_family(rows: CollectiveRows, wires: Mapping[str, float]) -> CollectiveFit:
    """Fit all rows of a family.

    Parameters
    ----------
    wires : Mapping
        Datasheet rate of the links by device, in bytes/s.
    """
    priors = _priors(rows, wires)
    places = _Places(rows, list(priors))
    values = fit_times(
        priors,
        lambda at: places.seconds(np.array(list(at.values()))),
        rows.measured_s,
        prior_weight=_PRIOR_WEIGHT,
    )
    return CollectiveFit(values=values)


def predict(fit: CollectiveFit, rows: CollectiveRows) -> Floats:
    """Predicted seconds of rows by the formula alone, each with its own release."""
    names = list(fit.values)
    return _Places(rows, names).seconds(np.array([fit.values[name] for name in names]))


def _priors(rows: CollectiveRows, wires: Mapping[str, float]) -> dict[str, Prior]:
    priors = {
        f"{curve}.{name}": prior
        for curve in sorted(set(rows.curve.tolist()))
        for name, prior in _CURVE.items()
    }
    for curve, rate in _SLOW_LL.items():
        if curve in rows.curve:
            prior = Prior(value=rate, width=0.6, low=0.08 * rate, high=5.3 * rate)
            priors[f"{curve}.ll_bytes_per_s"] = prior
    priors |= _FAMILY
    slots = [_SHARES_OF_SLOTS[curve] for curve in _SHARES_OF_SLOTS if curve in rows.curve]
    shares = dict.fromkeys(_SHARES, slots[0]) if slots else _SHARES
    for operation, values in shares.items():
        for members, share in zip(_MEMBERS, values, strict=True):
            if _WHOLE.get(operation) != members:
                priors[f"share.{operation}.{members}"] = Prior(
                    value=share, width=_SHARE_WIDTH, low=0.1 * share, high=5.0 * share
                )
    for device in sorted(set(rows.device.tolist())):
        through_host = "pcie-host" in rows.curve[rows.device == device]
        for name, share in (_THROUGH_HOST if through_host else _LINK_SHARE).items():
            rate = share * wires[device]
            priors[f"{device}.{name}"] = Prior(value=rate, width=0.3, low=0.1 * rate, high=3 * rate)
    for release in sorted(set(rows.release.tolist()) - {NEWEST}):
        priors |= {f"release.{release}.{kind}": _RELEASE for kind in ("ll", "bulk")}
    return priors


class _Places:
    """Where in the vector of parameters each row finds its own."""

    def __init__(self, rows: CollectiveRows, names: Sequence[str]) -> None:
        place = {name: number for number, name in enumerate(names)}
        one = len(names)  # a parameter that is always 1
        self.rows = rows
        exchange = rows.operation == "all_to_all"

        def of(patterns: list[str]) -> Ints:
            return np.array([place.get(name, one) for name in patterns], dtype=np.int64)

        own = list(zip(rows.curve.tolist(), exchange.tolist(), strict=True))
        self.figures = {
            name: of([f"{curve}.{'exchange_' if other else ''}{name}" for curve, other in own])
            for name in _CURVE
            if not name.startswith("exchange") and name not in _WHATEVER
        }
        for name in _WHATEVER:
            self.figures[name] = of([f"{curve}.{name}" for curve, _ in own])
        for name in ("nvls_base_s", "nvls_ramp_s", "ll128_fraction"):
            self.figures[name] = np.full(len(rows), place[name])
        devices = rows.device.tolist()
        self.figures["nvls_bytes_per_s"] = of([f"{name}.switch" for name in devices])
        whole = zip(devices, exchange.tolist(), strict=True)
        self.whole = of([f"{name}.{'exchange' if other else 'bus'}" for name, other in whole])
        calls = list(zip(rows.operation.tolist(), rows.members.tolist(), strict=True))
        self.share = of([f"share.{operation}.{members}" for operation, members in calls])
        self.start = of([f"start_{operation}" for operation, _ in calls])
        adds = rows.integer & np.isin(rows.operation, ["all_reduce", "reduce_scatter"])
        self.integer = np.where(adds, place["integer_fraction"], one)
        kinds = np.where(rows.regime == Regime.LL, "ll", "bulk").tolist()
        releases = zip(rows.release.tolist(), kinds, strict=True)
        self.release = of([f"release.{release}.{kind}" for release, kind in releases])

    def seconds(self, values: Floats) -> Floats:
        """Predicted seconds with these parameters."""
        all_of = np.append(values, 1.0)
        figures = {name: all_of[where] for name, where in self.figures.items()}
        share = all_of[self.share] * all_of[self.integer]
        seconds = curve_s(
            {**figures, **_NO_NETWORK},
            regime=self.rows.regime,
            near_steps=self.rows.steps,
            start=all_of[self.start],
            rate=all_of[self.whole] * share,
            ll_rate=figures["ll_bytes_per_s"] * share,
            moved_bytes=self.rows.moved_bytes,
        )
        return seconds * all_of[self.release]


# --- what is left ------------------------------------------------------------------------

Residual = Mapping[str, Mapping[int, tuple[float, ...]]]
"""By ``OPERATION_REGIME``, then by members: logarithms of factors at `RESIDUAL_BYTES`."""

_CLIP = 0.4
"""Most that one row may say about what is left."""
_KNOT_WIDTH = 0.2
_BEND_WIDTH = 0.1
_NOISE = 0.05
_LEAST = 3
"""How large what is left is, how much it bends from one octave to the next, how much calls scatter;
fewest rows that say anything. Of a dozen trials the one with the smallest error on calls left out,
by 0.1 % before the next."""


def fit_residual(predicted_s: Floats, rows: CollectiveRows) -> dict[str, Residual]:
    """Smooth over sizes what rows say beyond the formula, by curve.

    Kinds, regimes and member counts apart; devices, types and releases pooled. First what all
    curves have in common (steps of the library's own making), then what each adds to it. Ridge:
    knots are drawn to zero and to a straight line.
    """
    left = np.clip(np.log(rows.measured_s / predicted_s), -_CLIP, _CLIP)
    found: dict[str, dict[str, dict[int, tuple[float, ...]]]] = {}
    for kind in KINDS:
        for number, regime in enumerate(REGIMES):
            for members in _MEMBERS:
                mask = (rows.kind == kind) & (rows.regime == number)
                mask &= rows.members == members
                for curve, values in _by_curve(mask, left, rows):
                    table = found.setdefault(curve, {}).setdefault(f"{kind}_{regime}", {})
                    table[members] = tuple(round(float(value), 3) + 0.0 for value in values)
    return found  # type: ignore[return-value]


def _by_curve(
    mask: NDArray[np.bool_], left: Floats, rows: CollectiveRows
) -> Iterator[tuple[str, Floats]]:
    """Yield the knots of every curve that has enough rows of the mask."""
    knots, at = np.log2(RESIDUAL_BYTES), np.log2(rows.size_bytes)
    if mask.sum() < _LEAST:
        return
    common = _smooth(at[mask], left[mask], knots)
    for curve in sorted(set(rows.curve[mask].tolist())):
        own = mask & (rows.curve == curve)
        if own.sum() >= _LEAST:
            rest = left[own] - np.interp(at[own], knots, common)
            yield curve, common + _smooth(at[own], rest, knots)


def _smooth(at: Floats, left: Floats, knots: Floats) -> Floats:
    """Values at the knots whose straight joins follow the points, in closed form."""
    count = len(knots)
    weights = np.stack([np.interp(at, knots, row) for row in np.eye(count)], axis=1)
    bends = np.diff(np.eye(count), n=2, axis=0)
    normal = weights.T @ weights / _NOISE**2 + np.eye(count) / _KNOT_WIDTH**2
    normal = normal + bends.T @ bends / _BEND_WIDTH**2
    return np.asarray(np.linalg.solve(normal, weights.T @ left / _NOISE**2))


def residual_factor(residual: Mapping[str, Residual], rows: CollectiveRows) -> Floats:
    """Factor of each row, 1 where nothing like it was measured."""
    knots, found = np.log2(RESIDUAL_BYTES), np.zeros(len(rows))
    for curve, tables in residual.items():
        for name, by_members in tables.items():
            kind, _, regime = name.rpartition("_")
            for members, values in by_members.items():
                mask = (rows.curve == curve) & (rows.kind == kind)
                mask &= (rows.regime == REGIMES.index(regime)) & (rows.members == members)
                found[mask] = np.interp(np.log2(rows.size_bytes[mask]), knots, values)
    return np.exp(found)
