"""Figures of expert dispatch and combine, fitted to timings of DeepEP.

Both ways, normal and low-latency mode, by kind of board; rows that repeat those of another device
digit for digit are left out. Calls over several servers ran on H100 servers whose network is not
described: they are taken to have one 400 Gbit/s adapter for each GPU, as DeepEP asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.calibration import Floats, Prior, fit_times
from simulator.calibration.collective_rows import DEVICES
from simulator.calibration.left_out import LeftOut, left_out
from simulator.calibration.profile_text import FigureText, Section
from simulator.cost.collectives import exchange_rate
from simulator.cost.dispatch import dispatch_volumes, exchange_s
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.placement import Group
from simulator.measured.collective_calls import DEEPEP_DISPATCH_BYTES
from simulator.measured.microbenchmarks import read_table

__all__ = ["DispatchRows", "dispatch_left_out", "dispatch_sections", "read_dispatch"]

_DATE = "2026-11-21"
_MODES: Mapping[str, str] = {"normal": "deepep", "low_latency": "deepep_low_latency"}
_WAYS: Mapping[str, float] = {"dispatch": DEEPEP_DISPATCH_BYTES, "combine": 2.0}
"""Bytes of an element: eight bits and their scales out, sixteen bits back."""
_FOLDS = 8
_SEED = 20261121
_COPY = ("h200_sxm", "sglang/0.5.6.post2")
"""Device and framework whose rows repeat those of H100."""
_SOURCE = "aiconfigurator"

_PRIORS: Mapping[str, Prior] = {
    "start_s": Prior(value=25e-6, width=0.5, low=2e-6, high=300e-6),
    "network_start_s": Prior(value=10e-6, width=0.7, low=0.1e-6, high=200e-6),
    "link_fraction": Prior(value=1.0, width=0.4, low=0.1, high=4.0),
    "unit_bytes_per_s": Prior(value=15e9, width=0.5, low=1e9, high=300e9),
    "forward_fraction": Prior(value=0.6, width=0.4, low=0.05, high=2.0),
    "sharpness": Prior(value=1.1, width=0.3, low=0.5, high=4.0),
    "network_fraction": Prior(value=1.0, width=0.1, low=0.5, high=1.3),
}
"""Of one way in one mode on one kind of board. `network_fraction` is of the adapters that the rows
do not describe: it is fitted beside the others and left behind."""
_NETWORK = ("network_start_s", "forward_fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRows:
    """Timed dispatches and combines, column by column."""

    mode: NDArray[np.str_]
    way: NDArray[np.str_]
    device: NDArray[np.str_]
    curve: NDArray[np.str_]
    shape: NDArray[np.str_]
    """What a fold leaves out together: tokens, hidden size, experts, ranks."""
    near_bytes: Floats
    far_s: Floats
    crosses: NDArray[np.bool_]
    link_bytes_per_s: Floats
    units: Floats
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
    kept &= (table.text("excluded") == "") & np.char.startswith(table.text("source"), _SOURCE)
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
    near, far = dispatch_volumes(group, copies, experts, once=once)
    token_bytes = float(row["tokens_per_rank"]) * float(row["hidden"]) * element_bytes
    units = row[f"{way}_sms"]
    return {
        "mode": row["mode"], "way": way, "device": row["gpu"], "curve": curve,
        "shape": " ".join(row[name] for name in ("tokens_per_rank", "hidden", "experts", "gpus")),
        "near_bytes": token_bytes * float(near[0]),
        "far_s": token_bytes * float(far[0]) / float(exchange_rate(cluster, nodes)),
        "crosses": nodes > 1,
        "link_bytes_per_s": float(cluster.node.scale_up.all_to_all_bytes_per_s),
        "units": float(units) if units else 1e6, "measured_s": float(row[f"{way}_us"]) * 1e-6,
    }  # fmt: skip


def _predict(values: Mapping[str, float], rows: DispatchRows) -> Floats:
    return exchange_s(
        values, near_bytes=rows.near_bytes, link_bytes_per_s=rows.link_bytes_per_s,
        far_s=rows.far_s / values["network_fraction"], crosses=rows.crosses, units=rows.units,
    )  # fmt: skip


def _fit(rows: DispatchRows) -> dict[str, float]:
    """Fit one way in one mode on one kind of board."""
    return fit_times(_PRIORS, lambda values: _predict(values, rows), rows.measured_s)


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
                found[mode, curve, way] = _fit(rows.take(own))
                for number in range(_FOLDS):
                    out = own & (fold == number)
                    unseen_s[out] = _predict(_fit(rows.take(own & ~out)), rows.take(out))
    return rows, found, unseen_s


def dispatch_sections() -> dict[str, list[Section]]:
    """Return the sections of expert traffic for the profile of the collective library."""
    rows, found, unseen_s = _fits()
    sections = []
    for (mode, curve, way), values in found.items():
        own = (rows.mode == mode) & (rows.curve == curve) & (rows.way == way)
        ratio = np.log(unseen_s[own] / rows.measured_s[own])
        error = np.abs(np.expm1(ratio))
        spread = float(np.diff(np.percentile(ratio, [16, 84]))[0] / 2.0)
        text = (
            f"DeepEP {mode.replace('_', ' ')} {way} in SGLang, ai-dynamo/aiconfigurator@095f58a5"
            f" ({int(own.sum())} rows of {', '.join(sorted(set(rows.device[own].tolist())))});"
            " least squares on logarithms; tokens, hidden size, experts and ranks left out: median"
            f" error {100 * np.median(error):.1f} %, p90 {100 * np.percentile(error, 90):.0f} %"
        )
        lent = found[mode, "hopper", way]  # the only boards that were timed over a network
        across = bool(rows.crosses[own].any())
        dropped = {"network_fraction"} | (
            set() if mode == "normal" else {"unit_bytes_per_s", "forward_fraction"}
        )
        figures = {
            name: FigureText(
                value=value if across or name not in _NETWORK else lent[name],
                grade="fitted" if across or name not in _NETWORK else "assumed", spread=spread,
            )
            for name, value in values.items()
            if name not in dropped
        }  # fmt: skip
        library = _MODES[mode]
        source = f"{library}_{curve.replace('-', '_')}_{way}"
        path = ("dispatch", library, curve, way)
        sections.append(Section(path=path, figures=figures, source=source, text=text, date=_DATE))
    return {"collectives/nccl": sections}


def dispatch_left_out() -> list[LeftOut]:
    """Return the errors on shapes that were left out, by mode and way."""
    rows, _, unseen_s = _fits()
    lines = []
    for mode in _MODES:
        for way in ("all", *_WAYS):
            for curve in ("all", *sorted(set(rows.curve.tolist()))):
                own = (rows.mode == mode) & ((rows.way == way) | (way == "all"))
                own &= (rows.curve == curve) | (curve == "all")
                if curve != "all" and way != "all":
                    continue
                what = "dispatch and combine" if way == "all" else way
                kernel = f"DeepEP {mode.replace('_', ' ')} {what}"
                lines.append(
                    left_out(unseen_s[own], rows.measured_s[own], kernel=kernel, device=curve,
                             library="deepep", dtype="all", method="formula")
                )  # fmt: skip
    return lines
