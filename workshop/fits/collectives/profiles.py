"""Figures of collectives for the shipped profiles, and how well calls never seen come out.

Calls inside one server give the curves of a generation and the rates of a node; sweeps over two
servers (`networks.py`) and expert traffic (`dispatch.py`) the rest. The same facts give
the same figures, digit for digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.calibration.profile_text import FigureText, Section
from simulator.cost.collectives.curves import Regime
from workshop.facts import facts
from workshop.fits.collectives.dispatch import dispatch_left_out, dispatch_sections
from workshop.fits.collectives.fit import (
    NEWEST,
    CollectiveFit,
    Residual,
    fit_family,
    fit_residual,
    predict,
    residual_factor,
)
from workshop.fits.collectives.networks import network_left_out, network_sections
from workshop.fits.collectives.rows import (
    DEVICES,
    FAMILIES,
    OPERATIONS,
    CollectiveRows,
    boards,
    read_rows,
)
from workshop.fits.collectives.sends import send_sections, sends_left_out
from workshop.fits.fitting.holdout_errors import LeftOut, left_out

_DATE = "2026-11-21"
_SOURCE = "nccl_tests"
_FOLDS = 8
_SEED = 20261121
_SMALLEST, _LARGEST = 64.0 * 2**10, 512.0 * 2**20
"""Sizes that are scored: below, the start of a call is all there is."""
_WIDER = 1.5
"""How much wider the spread of a figure is that another device of the generation lends."""

_FACTS = facts(__file__)
_SAME_BOARD: Mapping[str, tuple[str, ...]] = {
    gpu: tuple(nodes) for gpu, nodes in _FACTS["same_board"].items()
}
"""Nodes that carry the board of a measured device and were not measured alone."""

_FEWER_LINKS: Mapping[str, tuple[str, float]] = {
    node: (board["of"], board["links"] / board["whole"])
    for node, board in _FACTS["fewer_links"].items()
}
"""Nodes of a chip with fewer links, and their share of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fits:
    """Everything that calls inside one server gave."""

    rows: CollectiveRows
    fits: Mapping[str, CollectiveFit]
    residual: Mapping[str, Residual]
    formula_s: Floats
    """Each row predicted by a fit that has not seen its shape."""
    corrected_s: Floats
    """The same with what is left of other shapes."""
    strange_s: Floats
    """Each row predicted by the other devices of its family; NaN where it has none."""


def collective_sections() -> dict[str, list[Section]]:
    """Return the sections of every profile that collectives write, by profile (kind/name)."""
    sections: dict[str, list[Section]] = {"collectives/nccl": []}
    for families in _TOGETHER:
        fits = _fits(families)
        sections["collectives/nccl"] += _library_sections(fits, families)
        for device in np.unique(fits.rows.device).tolist():
            for profile, section in _node_sections(fits, device):
                sections.setdefault(profile, []).append(section)
    for part in (network_sections(), send_sections(), dispatch_sections()):
        for profile, more in part.items():
            sections.setdefault(profile, []).extend(more)
    return sections


def left_out_lines() -> list[LeftOut]:
    """Return the errors on calls that were left out of the fits."""
    lines = []
    for families in _TOGETHER:
        lines += _family_lines(_fits(families), pooled=families is _PEERS)
    return lines + network_left_out() + sends_left_out() + dispatch_left_out()


def _family_lines(fits: _Fits, *, pooled: bool) -> list[LeftOut]:
    """Errors by operation, by device and of small calls; of one family alone by device."""
    rows, size = fits.rows, fits.rows.size_bytes
    scored = (size >= _SMALLEST) & (size <= _LARGEST)
    where: dict[tuple[str, str], NDArray[np.bool_]] = {}
    if pooled:
        where = {("all", "all"): scored}
        where |= {("all", name): scored & (rows.operation == name) for name in OPERATIONS}
    own = set(rows.device.tolist())
    where |= {(name, "all"): scored & (rows.device == name) for name in DEVICES if name in own}
    lines = []
    for (device, operation), mask in where.items():
        what = "collectives" if operation == "all" else operation
        kernel = f"NCCL {what}, one node, 64 KB to 512 MB"
        lines += _lines(fits, mask, kernel, device)
    if pooled:
        lines += _lines(fits, size < _SMALLEST, "NCCL collectives, one node, under 64 KB", "all")
    return lines


def _lines(fits: _Fits, mask: NDArray[np.bool_], kernel: str, device: str) -> list[LeftOut]:
    methods = {
        "formula": fits.formula_s,
        "formula + residual": fits.corrected_s,
        "one accelerator left out": fits.strange_s,
    }
    lines = []
    for method, seconds in methods.items():
        rows = np.asarray(mask, dtype=bool) & np.isfinite(seconds)
        if rows.any():
            lines.append(
                left_out(
                    seconds[rows],
                    fits.rows.measured_s[rows],
                    kernel=kernel,
                    device=device,
                    library="nccl",
                    dtype="all",
                    method=method,
                )
            )
    return lines


# --- fits --------------------------------------------------------------------------------


_PEERS = tuple(_FACTS["pooled"]["peers"])
"""Families whose accelerators copy to each other straight: their errors are pooled."""
_TOGETHER = (_PEERS, tuple(_FACTS["pooled"]["host"]))


@lru_cache(maxsize=len(_TOGETHER))
def _fits(families: tuple[str, ...]) -> _Fits:
    rows = read_rows()
    rows = rows.take(np.isin(rows.curve, [curve for name in families for curve in FAMILIES[name]]))
    wires = {
        name: float(cluster.node.scale_up.bandwidth_bytes_per_s)
        for name, cluster in boards().items()
    }
    fits, formula_s, seen_s = {}, np.empty(len(rows)), np.empty(len(rows))
    corrected_s, strange_s = np.empty(len(rows)), np.full(len(rows), np.nan)
    fold, known_s = _folds(rows), np.empty((_FOLDS, len(rows)))
    for family in families:
        isin = np.isin(rows.curve, FAMILIES[family])
        fits[family] = fit_family(rows.take(isin), wires)
        seen_s[isin] = predict(fits[family], rows.take(isin))
        for number in range(_FOLDS):
            known_s[number, isin] = predict(
                fit_family(rows.take(isin & (fold != number)), wires), rows.take(isin)
            )
        strange_s[isin] = _by_the_others(rows.take(isin), wires)
    for number in range(_FOLDS):
        out = fold == number
        formula_s[out] = known_s[number, out]
        left = fit_residual(known_s[number, ~out], rows.take(~out))
        corrected_s[out] = formula_s[out] * residual_factor(left, rows.take(out))
    return _Fits(
        rows=rows,
        fits=fits,
        residual=fit_residual(seen_s, rows),
        formula_s=formula_s,
        corrected_s=corrected_s,
        strange_s=strange_s,
    )


def _folds(rows: CollectiveRows) -> Floats:
    """Deal the distinct calls (operation, members, size), in a fixed random order, to the folds."""
    keys = [
        f"{operation} {members} {size:.0f}"
        for operation, members, size in zip(
            rows.operation.tolist(), rows.members.tolist(), rows.size_bytes.tolist(), strict=True
        )
    ]
    _, call = np.unique(keys, return_inverse=True)
    dealt = np.random.default_rng(_SEED).permutation(int(call.max()) + 1) % _FOLDS
    return np.asarray(dealt[call])


def _by_the_others(rows: CollectiveRows, wires: Mapping[str, float]) -> Floats:
    """Predict each device from the rest of its family, its rates by the ratio of the wires."""
    full = np.full(len(rows), np.nan)
    devices = sorted(set(rows.device.tolist()))
    for device in devices if len(devices) > 1 else []:
        out = rows.device == device
        others = fit_family(rows.take(~out), wires)
        rest = [name for name in devices if name != device]
        values = dict(others.values)
        for rate in ("bus", "exchange", "switch"):
            ratios = [values[f"{name}.{rate}"] / wires[name] for name in rest]
            values[f"{device}.{rate}"] = wires[device] * float(np.exp(np.mean(np.log(ratios))))
        curve = str(rows.curve[out][0])
        if f"{curve}.ll_base_s" in values:
            full[out] = predict(CollectiveFit(values=values), rows.take(out))
    return full


# --- sections ----------------------------------------------------------------------------


def _spread(fits: _Fits, mask: NDArray[np.bool_]) -> float:
    """Half the distance between the 16th and 84th percentile of log(predicted / measured)."""
    chosen = np.asarray(mask, dtype=bool)
    ratio = np.log(fits.corrected_s[chosen] / fits.rows.measured_s[chosen])
    low, high = np.percentile(ratio, [16, 84])
    return float((high - low) / 2.0)


def _text(fits: _Fits, mask: NDArray[np.bool_], what: str) -> str:
    """What was fitted to what, and how well calls never seen come out."""
    chosen = np.asarray(mask, dtype=bool)
    rows, ratio = fits.rows, fits.corrected_s / fits.rows.measured_s
    size = rows.size_bytes
    error = np.abs(ratio - 1.0)[chosen & (size >= _SMALLEST) & (size <= _LARGEST)]
    releases = sorted(set(rows.release[chosen].tolist()))
    span = releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
    return (
        f"{what}: nccl-tests inside one server, 2 to {rows.members[chosen].max()} GPUs, 16-bit and"
        f" int8, NCCL {span}, ai-dynamo/aiconfigurator@095f58a5 ({int(chosen.sum())} rows); least"
        " squares on logarithms; of 64 KB to 512 MB, with operation, members and size left out,"
        f" median error {100 * np.median(error):.1f} %, p90 {100 * np.percentile(error, 90):.0f} %"
    )


def _library_sections(fits: _Fits, families: tuple[str, ...]) -> list[Section]:
    sections = []
    for family in families:
        for curve in FAMILIES[family]:
            sections += _curve_sections(fits, family, curve)
    told = [
        (family, name) for family in families for name in _told_apart(fits.rows, FAMILIES[family])
    ]
    for release in sorted({name for _, name in told}):
        figures = {}
        for figure, kind in (("time_fraction", "bulk"), ("ll_time_fraction", "ll")):
            values = [
                fits.fits[family].values[f"release.{name}.{kind}"]
                for family, name in told
                if name == release
            ]
            mean = float(np.exp(np.mean(np.log(values))))
            figures[figure] = FigureText(value=mean, grade="fitted", spread=0.03)
        text = (
            f"factor on time beside the fits of the curves, whose rates are those of {NEWEST}:"
            " nccl-tests of the same device under both, ai-dynamo/aiconfigurator@095f58a5"
        )
        sections.append(
            Section(
                path=("releases", release),
                figures=figures,
                source="releases",
                text=text,
                date=_DATE,
            )
        )
    return sections


def _told_apart(rows: CollectiveRows, curves: Iterable[str]) -> list[str]:
    """Releases that a device of these curves was measured under beside the newest."""
    isin = np.isin(rows.curve, list(curves))
    newest = set(rows.device[isin & (rows.release == NEWEST)].tolist())
    older = isin & np.isin(rows.device, sorted(newest)) & (rows.release != NEWEST)
    return sorted(set(rows.release[older].tolist()))


def _curve_sections(fits: _Fits, family: str, curve: str) -> list[Section]:
    values, rows = fits.fits[family].values, fits.rows
    asarray = np.asarray(rows.curve == curve)
    text = _text(fits, asarray, f"curves of {curve}")
    source = f"{_SOURCE}_{curve.replace('-', '_')}"
    small, large = asarray & (rows.regime == Regime.LL), asarray & (rows.regime != Regime.LL)

    def figures(
        names: Iterable[str], mask: NDArray[np.bool_], prefix: str = ""
    ) -> dict[str, FigureText]:
        spread = _spread(fits, mask)
        return {
            name: FigureText(value=values[prefix + name], grade="fitted", spread=spread)
            for name in names
        }

    def section(path: tuple[str, ...], some: Mapping[str, FigureText]) -> Section:
        return Section(
            path=("curves", curve, *path), figures=some, source=source, text=text, date=_DATE
        )

    common = figures(("ll_ramp_s", "ll_bytes_per_s"), small, f"{curve}.")
    common |= figures(("ll128_base_s", "ll128_hop_s"), large, f"{curve}.")
    common |= figures(("nvls_base_s", "nvls_ramp_s", "ll128_fraction", "integer_fraction"), large)
    sections = [section((), common)]
    for part, prefix in (("ring", f"{curve}."), ("exchange", f"{curve}.exchange_")):
        start = figures(("ll_base_s", "ll_hop_s"), small, prefix)
        start |= figures(("bulk_base_s", "bulk_hop_s", "bulk_ramp_s"), large, prefix)
        sections.append(section((part,), start))
    spread = _spread(fits, large)
    starts = {
        name: FigureText(value=values[f"start_{name}"], grade="fitted", spread=spread)
        for name in ("all_reduce", "all_gather")
    }
    sections.append(section(("bulk_start",), starts))
    for operation in OPERATIONS:
        shares = {
            members: FigureText(
                value=values.get(f"share.{operation}.{members}", 1.0), grade="fitted", spread=spread
            )
            for members in ("2", "4", "8")
        }
        sections.append(section(("share", operation), shares))
    for name, by_members in fits.residual.get(curve, {}).items():
        lists = {str(members): numbers for members, numbers in by_members.items()}
        sections.append(replace(section(("residual", name), {}), lists=lists))
    return sections


def _node_sections(fits: _Fits, device: str) -> list[tuple[str, Section]]:
    """Rates of a device's node, and of nodes that borrow them."""
    curve, _ = DEVICES[device]
    family = next(name for name, curves in FAMILIES.items() if curve in curves)
    values, rows = fits.fits[family].values, fits.rows
    asarray = np.asarray((rows.device == device) & (rows.regime != Regime.LL))
    spread = _spread(fits, asarray)
    text = _text(fits, rows.device == device, "rates of large calls")
    rates = {
        "bus_bytes_per_s": values[f"{device}.bus"],
        "all_to_all_bytes_per_s": values[f"{device}.exchange"],
    }
    rates["send_bytes_per_s"] = rates["all_to_all_bytes_per_s"] * values["share.all_to_all.2"]
    if (asarray & (rows.regime == Regime.NVLS)).any():
        rates["nvls_bytes_per_s"] = values[f"{device}.switch"]
    node = boards()[device].node.name

    def section(share: float, grade: str, wide: float, note: str) -> Section:
        figures = {
            name: FigureText(value=rate * share, grade=grade, spread=spread * wide)
            for name, rate in rates.items()
            if not (share < 1.0 and name == "nvls_bytes_per_s")
        }
        return Section(
            path=("scale_up",), figures=figures, source=_SOURCE, text=note + text, date=_DATE
        )

    part = "scaled to the domain from a tray of four; " if curve == "blackwell-grace" else ""
    made = [(f"nodes/{node}", section(1.0, "fitted", 1.0, part))]
    for other in _SAME_BOARD.get(device, ()):
        note = f"not measured: the board of {node}; "
        made.append((f"nodes/{other}", section(1.0, "assumed", _WIDER, note)))
    for other, (of, share) in _FEWER_LINKS.items():
        if of == device:
            note = f"not measured: {node} times {share:.2f}, the share of its links; "
            made.append((f"nodes/{other}", section(share, "assumed", _WIDER, note)))
    return made
