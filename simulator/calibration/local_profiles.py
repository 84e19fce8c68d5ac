"""Profiles of the machine at hand, from a document of ``kernels/step_parts.py``.

Kernels go through :func:`calibrate` like those of any device; what a process of a CPU has beside
them (its rates, the starts and rates of gloo, the host's work for a block) is fitted here. Nothing
is fitted on a step: those are what the profiles are to predict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.calibrate_machine import Calibration, calibrate
from simulator.calibration.classes import WIDTHS, accelerator_classes
from simulator.calibration.least_squares import Prior, fit_times
from simulator.calibration.profile_text import FigureText, Section, with_sections
from simulator.errors import InputError
from simulator.files import Figure, read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.measured.measurements import Call, Measurements
from simulator.records import dataclass

NAME = "local-cpu"
"""Of every profile that is written."""

_PER_KERNEL = "seconds_per_kernel"
_HOST_TEXT = (
    "tiny blocks, plain, cut by DTensor over one rank and wrapped by FSDP2 over all: what one more"
    " block keeps the thread at work; a sum of a few numbers, plain and by DTensor"
)
_RINGS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""How often each moves its bytes around the ring."""
_REFERENCE = "reduce_scatter"
"""The operation whose start the others' is stated over."""
_START = Prior(value=3e-4, width=1.5, low=1e-6, high=1.0)
_RATE = Prior(value=1e9, width=1.5, low=1e6, high=1e12)
_ABOVE = 1.02
"""A limit stands so far above the fastest call that was timed."""


@dataclass(frozen=True, kw_only=True)
class LocalProfiles:
    """What was fitted, and the texts of the profiles."""

    calibration: Calibration
    """Kernels, class by class."""
    collectives: Mapping[str, tuple[float, float, float]]
    """Operation -> start in seconds, bytes per second, median error of the line."""
    host: Mapping[str, float]
    """Figure of the software profile -> seconds."""
    core_share: float
    """What a collective beside a product takes of its core."""
    texts: Mapping[Path, str]
    """File under the profile folder -> text."""


def local_profiles(document: Measurements) -> LocalProfiles:
    """Fit the profiles of one core, its node, gloo and torch to what was measured.

    Raises
    ------
    InputError
        If parts are missing, or a class cannot be fitted.
    """
    _check(document)
    device = _start_device(document)
    found = calibrate([document], accelerator=device)
    limits = _limits(document)
    lines = {
        name: _line(_of(document.calls, name), limits["bytes_per_s"])
        for name in (*_RINGS, "send_recv")
    }
    host, share = _host(document.calls), _core_share(document.calls)
    writer = _Writer(document)
    distributed = {name: seconds for name, seconds in host.items() if name != _PER_KERNEL}
    plain = {_PER_KERNEL: host[_PER_KERNEL]}
    half = {"forward": _operators(document.calls) / 2}
    sections = {
        "accelerators": [*_device_sections(writer, limits), *found.sections(found.accelerator)],
        "nodes": [_links(writer, lines, limits)],
        "clusters": [],
        "collectives": _library(writer, lines, share),
        "software": [
            writer.section(("host",), plain, "host", _HOST_TEXT),
            *(
                writer.section(("host", "launches", part), half, "host", _HOST_TEXT)
                for part in ("attention", "mlp")
            ),
            writer.section(("host", "distributed"), distributed, "host", _HOST_TEXT),
        ],
    }
    return LocalProfiles(
        calibration=found,
        collectives=lines,
        host=host,
        core_share=share,
        texts={Path(kind) / f"{NAME}.toml": _text(kind, new) for kind, new in sections.items()},
    )


def _check(document: Measurements) -> None:
    kinds = {call.kernel for call in document.calls}
    wanted = ("gemm", "attention", "adamw", "host", "overlap", "train_step", "send_recv", *_RINGS)
    missing = [name for name in wanted if name not in kinds]
    if missing:
        raise InputError(
            f"{document.path}: records: no {', '.join(missing)}; is this a document of"
            " kernels/step_parts.py, run to its end?"
        )


def _of(calls: Iterable[Call], kernel: str) -> list[Call]:
    return [call for call in calls if call.kernel == kernel]


# --- one core -------------------------------------------------------------------------------


def _limits(document: Measurements) -> dict[str, float]:
    """Peak and bandwidth that no timed call passes, and what one process has of the memory."""
    products = [
        2.0 * call.shape["m"] * call.shape["n"] * call.shape["k"] / call.seconds
        for call in _of(document.calls, "gemm")
    ]
    streams = [call.moved_bytes / call.seconds for call in document.calls if call.moved_bytes]
    ranks = _ranks(document.calls)
    memory = document.device.memory_bytes if document.device is not None else None
    return {
        "flop_per_s": _ABOVE * max(products),
        "bytes_per_s": _ABOVE * max(streams),
        "memory_bytes": (memory or 8e9) / ranks,
        "ranks": float(ranks),
    }


def _ranks(calls: Iterable[Call]) -> int:
    return int(max(call.shape["ranks"] for call in calls if "ranks" in call.shape))


def _start_path(kind: str) -> Path:
    return catalogue.folder("hardware_profiles") / NAME / kind / f"{NAME}.toml"


def _start_device(document: Measurements) -> Accelerator:
    """The start of the fits: the limits that were seen, and the median share of each class."""
    base = read_profile(Accelerator, _start_path("accelerators"), kind="accelerators")
    limits = _limits(document)
    memory = replace(base.memory, bandwidth_bytes_per_s=Figure(limits["bytes_per_s"]))
    start = replace(base, memory=memory, matrix_flop_per_s={"fp32": Figure(limits["flop_per_s"])})
    classes, _ = accelerator_classes(document.calls, start)
    for one in classes:  # nobody knows where a CPU lies: a prior from the class itself
        share = float(np.median(one.predict({}, one.rows) / one.rows["seconds"]))
        start = _scaled(start, one.path, one.headline, share * one.base[one.headline])
    return start


def _scaled(device: Accelerator, path: tuple[str, ...], figure: str, value: float) -> Accelerator:
    """The device with one figure of one kernel at a value within its bounds."""
    bounds = WIDTHS[figure]
    changed = {figure: Figure(min(max(value, bounds.low), bounds.high))}
    table, *names = path
    if table == "gemm":
        library, dtype = names
        kernels = {**device.gemm[library], dtype: replace(device.gemm[library][dtype], **changed)}
        return replace(device, gemm={**device.gemm, library: kernels})
    known: dict[str, Any] = getattr(device, table)
    tables: dict[str, Any] = {table: {**known, names[0]: replace(known[names[0]], **changed)}}
    return replace(device, **tables)


# --- lines ----------------------------------------------------------------------------------


def _line(calls: Sequence[Call], most: float) -> tuple[float, float, float]:
    """Start and rate of an operation over the bytes that a ring of its ranks moves, or a send.

    No rate passes `most`, that of the memory.
    """
    n = np.array([call.shape["ranks"] for call in calls])
    moved = np.array([call.shape["message_bytes"] for call in calls])
    if calls[0].kernel in _RINGS:
        moved = _RINGS[calls[0].kernel] * moved * (n - 1.0) / n
    measured = np.array([call.seconds for call in calls])
    if len(calls) < 3:
        raise InputError(f"{calls[0].kernel}: needs at least 3 sizes, got {len(calls)}")

    def seconds(values: Mapping[str, float]) -> Floats:
        return np.asarray(values["start"] + moved / values["rate"])

    priors = {
        "start": _START,
        "rate": replace(_RATE, value=min(_RATE.value, most / 2.0), high=most),
    }
    values = fit_times(priors, seconds, measured, prior_weight=0.01)
    error = float(np.median(np.abs(seconds(values) / measured - 1.0)))
    return values["start"], values["rate"], error


# --- the host -------------------------------------------------------------------------------


def _host(calls: Sequence[Call]) -> dict[str, float]:
    """Seconds per operator of a plain block, and what wrapped blocks take longer than it."""
    seconds = {
        (call.note["wrapping"], int(call.shape["blocks"]), call.direction): call.seconds
        for call in _of(calls, "host")
    }
    asked = [seconds.pop((name, 0, "reduction")) for name in ("tensor", "plain")]
    most = max(blocks for _, blocks, _ in seconds)

    def block(wrapping: str, way: str) -> float:
        whole, one = seconds[wrapping, most, way], seconds[wrapping, 1, way]
        return max(whole - one, 0.0) / (most - 1)

    def ends(wrapping: str, way: str) -> float:
        return max(seconds[wrapping, 1, way] - block(wrapping, way), 0.0)

    plain_s = block("plain", "forward") + block("plain", "backward")
    host = {
        _PER_KERNEL: plain_s / (3.0 * _operators(calls)),
        "split_reduction_s": max(asked[0] - asked[1], 0.0),
    }
    for way in ("forward", "backward", "step"):
        for figure, wrapping in (("split", "tensor"), ("gathered", "sharded")):
            longer = block(wrapping, way) - block("plain", way)
            host[f"{figure}_block_{way}_s"] = max(longer, 0.0)
    for way in ("forward", "backward"):
        longer = ends("tensor", way) - ends("plain", way)
        host[f"split_ends_{way}_s"] = max(longer, 0.0)
    return host


def _operators(calls: Iterable[Call]) -> float:
    return float(_of(calls, "host")[0].note["operators"])


def _core_share(calls: Iterable[Call]) -> float:
    """Share of a core that a collective takes from a product beside it."""
    seconds = {call.direction: call.seconds for call in _of(calls, "overlap")}
    alone = min(seconds["product"], seconds["collective"])
    longer = seconds["both"] - max(seconds["product"], seconds["collective"])
    return float(np.clip(longer / alone, 0.0, 1.0))


# --- texts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Writer:
    """Writes sections that name the document as their source."""

    document: Measurements

    def section(
        self,
        path: tuple[str, ...],
        figures: Mapping[str, float],
        key: str,
        text: str,
        grade: str = "measured",
    ) -> Section:
        return Section(
            path=path,
            source=key,
            date=self.document.date,
            figures={name: FigureText(value=value, grade=grade) for name, value in figures.items()},
            text=f"foreshard calibrate-here: {text} ({self.document.source})",
        )


def _device_sections(writer: _Writer, limits: Mapping[str, float]) -> list[Section]:
    memory = {
        "bandwidth_bytes_per_s": limits["bytes_per_s"],
        "capacity_bytes": limits["memory_bytes"],
        "usable_bytes": limits["memory_bytes"],
    }
    text = "a little above the fastest call that was timed; memory shared out to the processes"
    return [
        writer.section(("memory",), memory, "limits", text),
        writer.section(("matrix_flop_per_s",), {"fp32": limits["flop_per_s"]}, "limits", text),
    ]


def _links(
    writer: _Writer, lines: Mapping[str, tuple[float, float, float]], limits: Mapping[str, float]
) -> Section:
    rate, send = lines["all_reduce"][1], lines["send_recv"][1]
    figures = {
        "bandwidth_bytes_per_s": limits["bytes_per_s"],
        "bus_bytes_per_s": rate,
        "all_to_all_bytes_per_s": send,
        "send_bytes_per_s": send,
    }
    return writer.section(("scale_up",), figures, "gloo", _line_text(lines), "fitted")


def _line_text(lines: Mapping[str, tuple[float, float, float]]) -> str:
    errors = ", ".join(f"{name} {100 * error:.0f} %" for name, (_, _, error) in lines.items())
    return f"start and rate of each collective; median error {errors}"


def _library(
    writer: _Writer, lines: Mapping[str, tuple[float, float, float]], share: float
) -> list[Section]:
    """Starts and rates of gloo as the curve of a board; a ring has one start and share each."""
    start_s, bus = lines[_REFERENCE][0], lines["all_reduce"][1]
    text = _line_text(lines)

    def fitted(path: tuple[str, ...], figures: Mapping[str, float]) -> Section:
        return writer.section(path, figures, "gloo", text, "fitted")

    curve = ("curves", "host")
    bases = {"ll_base_s": start_s, "bulk_base_s": start_s}
    starts = {name: lines[name][0] / start_s for name in _RINGS}
    shares = [fitted((*curve, "share", name), {"2": lines[name][1] / bus}) for name in _RINGS]
    return [
        writer.section(
            (),
            {"compute_units": share},
            "cores",
            "a row of products alone, an all-reduce alone, both at once",
        ),
        fitted(curve, {"ll_bytes_per_s": bus, "ll128_base_s": start_s}),
        fitted((*curve, "ring"), bases),
        fitted((*curve, "exchange"), bases),
        fitted((*curve, "bulk_start"), starts),
        *shares,
        fitted(("send_base_s",), {"host": lines["send_recv"][0]}),
    ]


def _text(kind: str, sections: Sequence[Section]) -> str:
    text = _start_path(kind).read_text(encoding="utf-8")
    return with_sections(text, sections) if sections else text
