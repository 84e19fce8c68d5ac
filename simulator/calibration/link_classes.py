"""Timed collectives as classes: figures of a server's links and of the network between servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.calibration.classes import FitClass, Skipped
from simulator.calibration.least_squares import Prior, Rows
from simulator.cost.collectives.calls import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    send_s,
)
from simulator.files import Figure
from simulator.hardware.cluster import Cluster
from simulator.layout.placement import Group
from simulator.measured.measurements import COLLECTIVES, Call

LEAST_BYTES = 64 * 2**10
"""Smaller messages are latency, which is the library's and not the machine's."""
SCORED_BYTES = 2**20

RATE = Prior(value=0.0, width=0.3, low=1e8, high=4e12)
SHARE = Prior(value=0.0, width=0.15, low=0.05, high=1.0)
PAIR = Prior(value=0.0, width=0.25, low=0.05, high=10.0)

_FORMULAS: dict[str, Callable[[Cluster, Any, Group], Floats]] = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "all_to_all": all_to_all_s,
    "send_recv": lambda cluster, size, group: send_s(cluster, size, group.size > group.local),
}
_RING, _SWITCH = "ring collectives", "all-reduce in the switch"
_RING_FIGURES = ("bus_bytes_per_s", "pair_fraction")
_CODES = list(_FORMULAS)


def link_classes(calls: Iterable[Call], base: Cluster) -> tuple[list[FitClass], Skipped]:
    """Sort collectives inside one scale-up domain into classes of the node profile."""
    inside: dict[str, list[Call]] = {}
    skipped: Skipped = {}
    for call in calls:
        reason = _reason(call, base)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
        elif not _crosses(call, base):
            inside.setdefault(_kind(call, base), []).append(call)
    # Where the library's curves know how a board's rates fall with fewer ranks, no pair is asked.
    ring = ("bus_bytes_per_s",) if base.board in base.library.curves else _RING_FIGURES
    figures = {
        _RING: ring,
        _SWITCH: ("nvls_bytes_per_s",),
        "all-to-all": ("all_to_all_bytes_per_s",),
        "send": ("send_bytes_per_s",),
    }
    inside_rows = [
        _inside(kind, inside[kind], base, figures[kind]) for kind in figures if kind in inside
    ]
    return inside_rows, skipped


def network_classes(calls: Iterable[Call], base: Cluster) -> list[FitClass]:
    """Sort collectives that cross the network into classes of the cluster profile."""
    between = [call for call in calls if not _reason(call, base) and _crosses(call, base)]
    return [_between(between, base)] if between else []


def _crosses(call: Call, base: Cluster) -> bool:
    return call.shape["ranks"] > base.node.scale_up.domain


def _reason(call: Call, base: Cluster) -> str:
    """Return why a collective enters no fit; blank where it does."""
    if call.kernel not in COLLECTIVES:
        return f"{call.kernel}: no collective"
    if call.kernel not in _FORMULAS:
        return f"no formula for {call.kernel}"
    if not {"message_bytes", "ranks"} <= set(call.shape):
        return "collective without message_bytes and ranks"
    if call.shape["ranks"] < 2:
        return "a collective of one rank"
    if call.shape.get("stride", 1.0) > 1.0:
        return "sub-groups with a stride"
    if call.shape["message_bytes"] < LEAST_BYTES:
        return "messages below 64 KiB: latency is the library's"
    servers = max(1.0, np.ceil(call.shape["ranks"] / base.node.accelerators))
    if not _crosses(call, base) and call.shape.get("nodes", 1.0) > servers:
        return "ranks spread over more servers than they fill"
    return ""


def _kind(call: Call, base: Cluster) -> str:
    reduces = base.node.scale_up.nvls_bytes_per_s is not None
    switched = reduces and call.shape["ranks"] >= base.library.nvls_smallest_group
    if call.kernel == "all_reduce":
        return _SWITCH if switched else _RING
    return {"all_to_all": "all-to-all", "send_recv": "send"}.get(call.kernel, _RING)


def _rows(calls: list[Call], local: Floats) -> Rows:
    return {
        "kernel": np.array([float(_CODES.index(call.kernel)) for call in calls]),
        "size": np.array([call.shape["message_bytes"] for call in calls]),
        "ranks": np.array([call.shape["ranks"] for call in calls]),
        "local": local,
        "seconds": np.array([call.seconds for call in calls]),
    }


def _priced(cluster: Cluster, rows: Rows) -> Floats:
    seconds = np.empty(len(rows["size"]))
    group = Group(size=rows["ranks"].astype(np.intp), local=rows["local"].astype(np.intp))
    for code in np.unique(rows["kernel"]):
        which = np.flatnonzero(rows["kernel"] == code)
        formula = _FORMULAS[_CODES[int(code)]]
        seconds[which] = formula(cluster, rows["size"][which], group.take(which))
    return seconds


def _inside(kind: str, calls: list[Call], base: Cluster, figures: Iterable[str]) -> FitClass:
    """Calls whose ranks share a scale-up domain."""
    links = base.node.scale_up
    rows = _rows(calls, np.array([call.shape["ranks"] for call in calls]))
    sizes = set(rows["ranks"].tolist())
    pairs = 2.0 in sizes and len(sizes) > 1
    fitted = [name for name in figures if pairs or name != "pair_fraction"]

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        rates: dict[str, Any] = {name: Figure(value) for name, value in values.items()}
        changed = replace(links, **rates)
        group = replace(base.groups[0], node=replace(base.node, scale_up=changed))
        return _priced(replace(base, groups=(group,)), rows)

    known = {name: float(getattr(links, name)) for name in figures}
    wires = float(links.bandwidth_bytes_per_s) * (2.0 if kind == _SWITCH else 1.0)
    priors = {
        name: replace(PAIR, value=known[name])
        if name == "pair_fraction"
        else replace(RATE, value=known[name], high=1.05 * wires)
        for name in fitted
    }
    return FitClass(
        name=f"{kind}, one domain",
        path=("scale_up",),
        rows=rows,
        places=tuple(call.place for call in calls),
        parts=tuple(call.kernel for call in calls),
        scored=rows["size"] >= SCORED_BYTES,
        least_s=_bus_bytes(rows) / wires,
        base=known,
        priors=priors,
        headline=fitted[0],
        predict=lambda values, rows: predict({**known, **values}, rows),
    )


def _between(calls: list[Call], base: Cluster) -> FitClass:
    """Calls across the network: the share of the adapters' rate that they reach."""
    domain = min(base.node.scale_up.domain, base.node.accelerators)
    local = np.array(
        [call.shape["ranks"] / max(call.shape.get("nodes", 1.0), 1.0) for call in calls]
    )
    rows = _rows(calls, np.minimum(np.maximum(np.floor(local), 1.0), domain))

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        share = Figure({**known, **values}["usable_fraction"])
        return _priced(replace(base, fabric=replace(base.fabric, usable_fraction=share)), rows)

    known = {"usable_fraction": float(base.fabric.usable_fraction)}
    # Half of a ring's links may stay inside servers, and a switch may reduce: twice the adapters.
    out = base.node.scale_out
    adapters = rows["local"] * out.adapters * out.adapter_bytes_per_s / base.node.accelerators
    return FitClass(
        name="collectives between servers",
        path=("fabric",),
        rows=rows,
        places=tuple(call.place for call in calls),
        parts=tuple(call.kernel for call in calls),
        scored=rows["size"] >= SCORED_BYTES,
        least_s=_bus_bytes(rows) / (2.0 * np.maximum(adapters, 1.0)),
        base=known,
        priors={"usable_fraction": replace(SHARE, value=_start(predict, rows, known))},
        headline="usable_fraction",
        predict=predict,
    )


def _start(predict: Any, rows: Rows, known: Mapping[str, float]) -> float:
    """Where to start: the base's share, or a better one where the servers' links hide it there."""
    shares = [known["usable_fraction"], *np.arange(0.95, 0.05, -0.05)]

    def error(share: float) -> float:
        ratio = predict({"usable_fraction": share}, rows) / rows["seconds"]
        return float(np.mean(np.abs(np.log(ratio))))

    return float(min(shares, key=error))


def _bus_bytes(rows: Rows) -> Floats:
    """Bytes over the slowest link of a ring, as nccl-tests counts bus bandwidth."""
    n = rows["ranks"]
    factor = np.where(rows["kernel"] == _CODES.index("all_reduce"), 2.0, 1.0) * (n - 1.0) / n
    factor = np.where(rows["kernel"] == _CODES.index("send_recv"), 1.0, factor)
    return np.asarray(rows["size"] * factor)
