"""Figures of networks from sweeps of all-reduce over two servers.

Two systems were measured from bytes to gigabytes, both on AWS: four adapters of 100 Gbit/s for
eight A100, and thirty-two for eight H100. What a hop takes and what the adapters deliver belongs to
the fabric of each; how a pipeline over the network fills belongs to the library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, fit_times
from simulator.calibration.profile_text import FigureText, Section
from simulator.cost.collectives.calls import all_reduce_s
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.placement import Group
from simulator.measured.microbenchmarks import read_table
from workshop.facts import facts
from workshop.fits.fitting.holdout_errors import LeftOut, left_out

_DATE = "2026-11-21"
_FACTS = facts(__file__, "networks")
_SYSTEMS: Mapping[str, str] = _FACTS["systems"]
_HEIRS: Mapping[str, tuple[str, ...]] = {
    cluster: tuple(heirs) for cluster, heirs in _FACTS["heirs"].items()
}
"""Clusters of the same network and servers that were not measured."""
_SERVERS, _RANKS = 2, 16
_FOLDS = 8
_WIDER = 1.5
_BOUND_BY_ADAPTERS = tuple(_FACTS["bound_by_adapters"])
"""Systems whose large calls wait for the adapters: on the other, links inside a server limit."""

_SHARED: Mapping[str, Prior] = {
    "network_ramp": Prior(value=2.0, width=0.4, low=0.1, high=6.0),
    "nvls_tree_fraction": Prior(value=0.95, width=0.1, low=0.5, high=1.0),
}
_OWN: Mapping[str, Prior] = {
    "extra_hop_s": Prior(value=30e-6, width=1.0, low=0.1e-6, high=300e-6),
    "usable_fraction": Prior(value=0.9, width=0.1, low=0.3, high=1.0),
}

ANCHORS: Sequence[tuple[str, str, int, bool, float]] = tuple(map(tuple, _FACTS["anchors"]))
"""Bus bandwidth of the largest all-reduce that others published, in GB/s: system, cluster profile,
accelerators, whether the network reduces. None but the two AWS systems entered a fit."""
_ANCHOR_BYTES = 16.0 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep:
    system: NDArray[np.str_]
    size_bytes: Floats
    measured_s: Floats

    def take(self, which: NDArray[np.bool_]) -> _Sweep:
        return _Sweep(
            system=self.system[which],
            size_bytes=self.size_bytes[which],
            measured_s=self.measured_s[which],
        )


def _read(path: Path | str | None = None) -> _Sweep:
    found = path or catalogue.folder("validation") / "microbenchmarks" / "collectives.csv"
    table = read_table(found, "collectives")
    kept = np.isin(table.text("system"), list(_SYSTEMS)) & (table.text("operation") == "all_reduce")
    kept &= (table.text("nodes") == str(_SERVERS)) & (table.text("excluded") == "")
    kept &= table.text("lib_version") == "not stated"  # the others: a few points, an older plug-in
    table = table.take(np.flatnonzero(kept))
    return _Sweep(
        system=np.array([_SYSTEMS[name] for name in table.text("system").tolist()]),
        size_bytes=table.text("message_bytes").astype(float),
        measured_s=table.text("time_us").astype(float) * 1e-6,
    )


def _priors(systems: Sequence[str]) -> dict[str, Prior]:
    own = {f"{system}.{name}": prior for system in systems for name, prior in _OWN.items()}
    return {**_SHARED, **own}


def _with(cluster: Cluster, values: Mapping[str, float]) -> Cluster:
    """Put figures into a cluster and its library."""
    own = {
        name: Figure(values[f"{cluster.name}.{name}"])
        for name in _OWN
        if f"{cluster.name}.{name}" in values
    }
    shared = {name: Figure(values[name]) for name in _SHARED}
    return replace(
        cluster,
        fabric=replace(cluster.fabric, **own),  # type: ignore[arg-type]
        library=replace(cluster.library, **shared),  # type: ignore[arg-type]
    )


def _predict(values: Mapping[str, float], sweep: _Sweep) -> Floats:
    group = Group(size=np.array([_RANKS]), local=np.array([_RANKS // _SERVERS]))
    empty = np.empty(len(sweep.size_bytes))
    for system in np.unique(sweep.system).tolist():
        rows = sweep.system == system
        cluster = _with(load_cluster(system, _RANKS), values)
        empty[rows] = all_reduce_s(cluster, sweep.size_bytes[rows], group)
    return empty


def _fit(sweep: _Sweep) -> dict[str, float]:
    priors = _priors(sorted(set(sweep.system.tolist())))
    return fit_times(
        priors, lambda values: _predict(values, sweep), sweep.measured_s, most_steps=40
    )


@lru_cache(maxsize=1)
def _fits() -> tuple[_Sweep, dict[str, float], Floats, Floats]:
    """Rows, figures, each row predicted without its size, each system predicted by the other."""
    sweep = _read()
    unseen_s, strange_s = np.empty(len(sweep.size_bytes)), np.empty(len(sweep.size_bytes))
    _, size = np.unique(sweep.size_bytes, return_inverse=True)
    for fold in range(_FOLDS):  # every eighth size of both systems
        out = size % _FOLDS == fold
        unseen_s[out] = _predict(_fit(sweep.take(~out)), sweep.take(out))
    systems = sorted(set(sweep.system.tolist()))
    for system, other in zip(systems, reversed(systems), strict=True):
        out = sweep.system == system
        values = _fit(sweep.take(~out))
        lent = {f"{system}.{name}": values[f"{other}.{name}"] for name in _OWN}
        strange_s[out] = _predict({**values, **lent}, sweep.take(out))
    return sweep, _fit(sweep), unseen_s, strange_s


def network_sections() -> dict[str, list[Section]]:
    """Return the sections of networks and of the library that the sweeps give."""
    sweep, values, unseen_s, _ = _fits()
    error = np.abs(unseen_s / sweep.measured_s - 1.0)
    ratio = np.log(unseen_s / sweep.measured_s)
    spread = float(np.diff(np.percentile(ratio, [16, 84]))[0] / 2.0)
    text = (
        "all-reduce of 16 over two servers, 16 B to 16 GiB, aws-samples/"
        f"awsome-distributed-training@7217859f ({len(error)} rows of p4de and p5); least squares on"
        f" logarithms; sizes left out: median error {100 * np.median(error):.0f} %, p90"
        f" {100 * np.percentile(error, 90):.0f} %"
    )
    shared = {
        name: FigureText(value=values[name], grade="fitted", spread=spread) for name in _SHARED
    }
    found = {
        "collectives/nccl": [
            Section(path=(), figures=shared, source="sweeps", text=text, date=_DATE)
        ]
    }
    for system in sorted(set(sweep.system.tolist())):
        kept = _OWN if system in _BOUND_BY_ADAPTERS else ("extra_hop_s",)
        for name in (system, *_HEIRS.get(system, ())):
            own = name == system
            figures = {
                figure: FigureText(
                    value=values[f"{system}.{figure}"],
                    grade="fitted" if own else "assumed",
                    spread=spread * (1.0 if own else _WIDER),
                )
                for figure in kept
            }
            note = "" if own else f"not measured: the network of {system}; "
            found[f"clusters/{name}"] = [
                Section(
                    path=("fabric",), figures=figures, source="sweeps", text=note + text, date=_DATE
                )
            ]
    return found


def network_left_out() -> list[LeftOut]:
    """Return the errors on sizes, and on systems, that were left out."""
    sweep, _, unseen_s, strange_s = _fits()
    lines = []
    for system in ("all", *sorted(set(sweep.system.tolist()))):
        rows = (sweep.system == system) | (system == "all")
        for method, seconds in (("formula", unseen_s), ("one accelerator left out", strange_s)):
            lines.append(
                left_out(
                    seconds[rows],
                    sweep.measured_s[rows],
                    kernel="NCCL all_reduce, two nodes",
                    device=system,
                    library="nccl",
                    dtype="all",
                    method=method,
                )
            )
    return lines


def anchors() -> list[tuple[str, float, float]]:
    """Return published and predicted bus bandwidth of large all-reduces, in GB/s."""
    found = []
    for what, name, ranks, reduces, published in ANCHORS:
        cluster = load_cluster(name, ranks)
        fabric = replace(cluster.fabric, reduces_in_network=reduces)
        cluster = replace(cluster, fabric=fabric)
        group = Group(size=np.array([ranks]), local=np.array([cluster.domain]))
        seconds = float(all_reduce_s(cluster, _ANCHOR_BYTES, group)[0])
        moved = 2.0 * _ANCHOR_BYTES * (ranks - 1) / ranks
        found.append((what, published, moved / seconds / 1e9))
    return found
