"""Figures of expert dispatch and combine, fitted to timings of DeepEP.

Both ways, normal and low-latency mode, by kind of board; rows that repeat those of another device
digit for digit are left out. Calls over several servers ran on H100 servers whose network is not
described: they are taken to have one 400 Gbit/s adapter for each GPU, as DeepEP asks for. Their
tokens go to four servers at most, as in DeepEP's own test. Dispatches over eight servers are scored
but not fitted: whatever the units, they got 17 GB/s out of an adapter, on machines whose combine
got 43 and where DeepEP's authors state 51.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, fit_times
from simulator.calibration.profile_text import FigureText, Section
from simulator.cost.collectives.calls import exchange_rate
from simulator.cost.collectives.dispatch import Traffic, dispatch_volumes, exchange_s
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.placement import Group
from simulator.measured.collective_calls import DEEPEP_DISPATCH_BYTES, DEEPEP_MOST_SERVERS
from simulator.measured.microbenchmarks import read_table
from workshop.facts import facts
from workshop.fits.collectives.rows import DEVICES, SOURCE
from workshop.fits.fitting.holdout_errors import LeftOut, left_out

_DATE = "2026-11-21"
_FACTS = facts(__file__, "dispatch")
_MODES: Mapping[str, str] = _FACTS["modes"]
_WAYS: Mapping[str, float] = {"dispatch": DEEPEP_DISPATCH_BYTES, "combine": 2.0}
"""Bytes of an element: eight bits and their scales out, sixteen bits back."""
_FOLDS = 8
_SEED = 20261121
_COPY: tuple[str, str] = tuple(_FACTS["copy"])
"""Device and framework whose rows repeat those of H100."""

_COMMON: Mapping[str, Prior] = {
    "start_s": Prior(value=20e-6, width=0.7, low=1e-6, high=300e-6),
    "token_bytes_per_s": Prior(value=2e9, width=1.0, low=1e7, high=1e13),
    "link_fraction": Prior(value=1.0, width=0.4, low=0.1, high=4.0),
    "sharpness": Prior(value=1.1, width=0.3, low=0.5, high=4.0),
}
"""Of one way in one mode on one kind of board."""
_OWN: Mapping[str, Mapping[str, Prior]] = {
    "normal": {
        "unit_bytes_per_s": Prior(value=15e9, width=0.5, low=1e9, high=300e9),
        "unit_copy_s": Prior(value=0.1e-6, width=1.0, low=1e-10, high=10e-6),
    },
    "low_latency": {"expert_s": Prior(value=15e-9, width=1.0, low=1e-11, high=1e-6)},
}
_NETWORK: Mapping[str, Mapping[str, Prior]] = {
    "normal": {
        "network_start_s": Prior(value=10e-6, width=0.7, low=0.1e-6, high=200e-6),
        "forward_fraction": Prior(value=0.6, width=0.4, low=0.05, high=2.0),
    },
    "low_latency": {"network_expert_s": Prior(value=60e-9, width=1.0, low=1e-11, high=2e-6)},
}
"""What only calls over several servers tell: other boards borrow it from those of hopper."""
_LEFT_BEHIND = "network_fraction"
_ADAPTERS = Prior(value=1.0, width=0.1, low=0.5, high=1.3)
"""Share of the adapters that the rows do not describe: fitted beside the others, left behind."""
_ODD_SERVERS = 8
"""Dispatches over so many are not fitted, see above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRows:
    """Timed dispatches and combines, column by column."""

    mode: NDArray[np.str_]
    way: NDArray[np.str_]
    device: NDArray[np.str_]
    curve: NDArray[np.str_]
    shape: NDArray[np.str_]
    """What a fold leaves out together: tokens, hidden size, experts, ranks."""
    token_bytes: Floats
    row_bytes: Floats
    near: Floats
    far: Floats
    experts: Floats
    share_beyond: Floats
    link_bytes_per_s: Floats
    far_bytes_per_s: Floats
    units: Floats
    fitted: NDArray[np.bool_]
    """Whether a fit may see the row."""
    measured_s: Floats

    def take(self, which: NDArray[np.bool_]) -> DispatchRows:
        """Return the rows of a boolean mask."""
        return replace(self, **{f.name: getattr(self, f.name)[which] for f in fields(self)})


def read_dispatch(path: Path | str | None = None) -> DispatchRows:
    """Read both ways of every row that the fit uses (of the shipped table if no path is given)."""
    found = path or catalogue.folder("validation") / "microbenchmarks" / "moe_a2a.csv"
    table = read_table(found, "a2a")
    gpu, mode = table.text("gpu"), table.text("mode")
    kept = np.isin(gpu, list(DEVICES)) & np.isin(mode, list(_MODES))
    kept &= (table.text("excluded") == "") & np.char.startswith(table.text("source"), SOURCE)
    kept &= ~((gpu == _COPY[0]) & (table.text("framework") == _COPY[1]))
    kept &= (table.text("dispatch_us") != "") & (table.text("combine_us") != "")
    table = table.take(np.flatnonzero(kept))
    columns: dict[str, list[object]] = {f.name: [] for f in fields(DispatchRows)}
    for index in range(len(table)):
        row = {name: str(column[index]) for name, column in table.columns.items()}
        for way, element_bytes in _WAYS.items():
            for name, value in _call(row, way, element_bytes).items():
                columns[name].append(value)
    return DispatchRows(**{name: np.array(column) for name, column in columns.items()})


@lru_cache(maxsize=len(DEVICES))
def _cluster(profile: str) -> Cluster:
    return load_cluster(profile, 8)


def _call(row: Mapping[str, str], way: str, element_bytes: float) -> dict[str, object]:
    """One way of one row as a call."""
    curve, profile = DEVICES[row["gpu"]]
    ranks, nodes = int(float(row["gpus"])), int(float(row["nodes"] or 1))
    cluster = _cluster(profile)
    group = Group(size=np.array([ranks]), local=np.array([ranks // nodes]))
    copies, experts = int(float(row["topk"])), int(float(row["experts"]))
    once = row["mode"] == "normal"
    bound = {"groups": nodes, "top_groups": min(nodes, DEEPEP_MOST_SERVERS)} if once else {}
    near, far = dispatch_volumes(group, copies, experts, once=once, **bound)
    row_bytes = float(row["hidden"]) * element_bytes
    units = row[f"{way}_sms"]
    return {
        "mode": row["mode"],
        "way": way,
        "device": row["gpu"],
        "curve": curve,
        "shape": " ".join(row[name] for name in ("tokens_per_rank", "hidden", "experts", "gpus")),
        "token_bytes": float(row["tokens_per_rank"]) * row_bytes,
        "row_bytes": row_bytes,
        "near": float(near[0]),
        "far": float(far[0]),
        "experts": float(experts),
        "share_beyond": 1.0 - 1.0 / nodes,
        "link_bytes_per_s": float(cluster.node.scale_up.all_to_all_bytes_per_s),
        "far_bytes_per_s": float(exchange_rate(cluster, nodes)),
        "units": float(units) if units else 1e6,
        "measured_s": float(row[f"{way}_us"]) * 1e-6,
        "fitted": not (once and way == "dispatch" and nodes == _ODD_SERVERS),
    }


def _priors(mode: str, rows: DispatchRows) -> dict[str, Prior]:
    priors = {**_COMMON, **_OWN[mode]}
    if (rows.share_beyond > 0).any():
        priors |= {**_NETWORK[mode], _LEFT_BEHIND: _ADAPTERS}
    return priors


def _predict(values: Mapping[str, float], rows: DispatchRows) -> Floats:
    traffic = Traffic(
        token_bytes=rows.token_bytes,
        row_bytes=rows.row_bytes,
        near=rows.near,
        far=rows.far,
        experts=rows.experts,
        share_beyond=rows.share_beyond,
        link_bytes_per_s=rows.link_bytes_per_s,
        far_bytes_per_s=rows.far_bytes_per_s * values.get(_LEFT_BEHIND, 1.0),
    )
    return exchange_s({**_NOTHING, **values}, traffic, units=rows.units)


_NOTHING: Mapping[str, float] = {
    "network_start_s": 0.0, "expert_s": 0.0, "network_expert_s": 0.0, "unit_bytes_per_s": 1e18,
    "unit_copy_s": 0.0, "forward_fraction": 1.0,
}  # fmt: skip
"""What a mode or a board without a network leaves out of the formula."""


def _fit(mode: str, rows: DispatchRows) -> dict[str, float]:
    """Fit one way in one mode on one kind of board."""
    seen = rows.take(rows.fitted)
    return fit_times(_priors(mode, rows), lambda values: _predict(values, seen), seen.measured_s)


@lru_cache(maxsize=1)
def _fits() -> tuple[DispatchRows, dict[tuple[str, str, str], dict[str, float]], Floats]:
    """Rows, figures by (mode, curve, way), and each row predicted without its shape."""
    rows = read_dispatch()
    _, shape = np.unique(rows.shape, return_inverse=True)
    fold = (np.random.default_rng(_SEED).permutation(int(shape.max()) + 1) % _FOLDS)[shape]
    unseen_s, found = np.empty(len(shape)), {}
    for mode in _MODES:
        for curve in sorted(set(rows.curve.tolist())):
            for way in _WAYS:
                own = (rows.mode == mode) & (rows.curve == curve) & (rows.way == way)
                found[mode, curve, way] = _fit(mode, rows.take(own))
                for number in range(_FOLDS):
                    out = own & (fold == number)
                    unseen_s[out] = _predict(_fit(mode, rows.take(own & ~out)), rows.take(out))
    return rows, found, unseen_s


def dispatch_sections() -> dict[str, list[Section]]:
    """Return the sections of expert traffic for the profile of the collective library."""
    rows, found, unseen_s = _fits()
    sections = []
    for (mode, curve, way), values in found.items():
        own = (rows.mode == mode) & (rows.curve == curve) & (rows.way == way) & rows.fitted
        ratio = np.log(unseen_s[own] / rows.measured_s[own])
        error = np.abs(np.expm1(ratio))
        spread = float(np.diff(np.percentile(ratio, [16, 84]))[0] / 2.0)
        text = (
            f"DeepEP {mode.replace('_', ' ')} {way} in SGLang, ai-dynamo/aiconfigurator@095f58a5"
            f" ({int(own.sum())} rows of {', '.join(sorted(set(rows.device[own].tolist())))});"
            " least squares on logarithms; tokens, hidden size, experts and ranks left out: median"
            f" error {100 * np.median(error):.1f} %, p90 {100 * np.percentile(error, 90):.0f} %"
        )
        lent = {name: found[mode, _FACTS["lent_by"], way][name] for name in _NETWORK[mode]}
        figures = {
            name: FigureText(
                value=value, grade="fitted" if name in values else "assumed", spread=spread
            )
            for name, value in {**lent, **values}.items()
            if name != _LEFT_BEHIND
        }
        library = _MODES[mode]
        source = f"{library}_{curve.replace('-', '_')}_{way}"
        path = ("dispatch", library, curve, way)
        sections.append(Section(path=path, figures=figures, source=source, text=text, date=_DATE))
    return {"collectives/nccl": sections}


def dispatch_left_out() -> list[LeftOut]:
    """Return the errors on shapes that were left out, by mode and way."""
    rows, _, unseen_s = _fits()
    lines = []
    for mode, label in ((mode, f"DeepEP {mode.replace('_', ' ')}") for mode in _MODES):
        own = (rows.mode == mode) & rows.fitted
        both = f"{label} dispatch and combine"
        lines.append(_line(rows, unseen_s, own, both, "all"))
        for curve in sorted(set(rows.curve.tolist())):
            lines.append(_line(rows, unseen_s, own & (rows.curve == curve), both, curve))
        for way in _WAYS:
            lines.append(_line(rows, unseen_s, own & (rows.way == way), f"{label} {way}", "all"))
    odd = f"DeepEP normal dispatch over {_ODD_SERVERS} servers, not fitted"
    return [*lines, _line(rows, unseen_s, ~rows.fitted, odd, _FACTS["lent_by"])]


def _line(
    rows: DispatchRows, unseen_s: Floats, own: NDArray[np.bool_], kernel: str, device: str
) -> LeftOut:
    return left_out(
        unseen_s[own],
        rows.measured_s[own],
        kernel=kernel,
        device=device,
        library="deepep",
        dtype="all",
        method="formula",
    )
