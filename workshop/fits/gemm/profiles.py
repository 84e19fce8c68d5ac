"""Figures of products for the shipped profiles: fitted, or typical.

What `make profiles` writes into the tables ``[gemm.*]`` of the profiles and into the files of
residuals: the same facts give the same bytes. `training_fraction` is left alone: training runs set
it (``workshop/fits/training/fit.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import pick
from simulator.calibration.profile_text import FigureText, Section
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.hardware.residuals import SIZES, TimedShapes, columns
from workshop.facts import facts
from workshop.fits.fitting.holdout_errors import LeftOut, left_out
from workshop.fits.fitting.smoothing import shape_lines
from workshop.fits.gemm.backward import Backward, backward_rates
from workshop.fits.gemm.fit import fit_parameters, gemm_model, has_one_clock
from workshop.fits.gemm.holdout import LARGE, Unseen, shipped_unseen, unseen_times
from workshop.fits.gemm.residual import residual_groups, residual_weights
from workshop.fits.gemm.series import Series, load_series
from workshop.fits.gemm.typical import typical_values

DATE = "2026-11-21"
"""Of the table of timings."""

_FACTS = facts(__file__)
_TABLES: dict[str, str] = _FACTS["tables"]
_SAME_UNITS = {"bf16": "fp16", "fp16": "bf16"}
_ASSUMED_SPREAD = 0.1
_FP16_SPREAD = 0.08
_LEAST_SPREAD = 0.1
"""Of what weight gradients show; two devices may agree by chance."""
_UNSEEN_SPREAD = {"bf16": 0.16, "fp8": 0.13, "fp8_blockwise": 0.13, "nvfp4": 0.3}
"""Spread of log(predicted / measured) of a device left out (left_out.csv, all devices)."""

Figures = Mapping[str, float]


# --- fits --------------------------------------------------------------------------------


def _figures(series: Series) -> dict[str, float]:
    """Fit the rows of a series; three digits, as a profile writes them."""
    rows = pick(series.rows, series.used)
    fitted = fit_parameters(rows, series.accelerator, dtype=series.dtype, library=series.library)
    return {name: float(f"{value:.3g}") for name, value in fitted.items()}


def _scored(unseen: Unseen) -> LeftOut:
    series = unseen.series
    large = series.large & series.used
    return left_out(
        unseen.seconds["formula"][large],
        series.rows["seconds"][large],
        kernel=LARGE,
        device=series.device,
        library=series.library,
        dtype=series.dtype,
        method="formula",
    )


def _text(unseen: Unseen, score: LeftOut) -> str:
    series = unseen.series
    name, _, release = series.framework.partition("/")
    table = f"{_TABLES[name]}, {release}" if name in _TABLES else _TABLES[_FACTS["other_table"]]
    casts = (
        "; the cast of the activation is inside the call"
        if "quantise_row_s" in _figures_of(series.dtype)
        else ""
    )
    never = "; the reduction is never split" if _never_splits(series) else ""
    if has_one_clock(series.dtype, series.library, series.accelerator):
        never += "; one clock for all long calls: shapes left out come out no better with another"
    kept = (
        f"; not used: {int(series.dropped.sum())} rows ({series.reason})" if series.reason else ""
    )
    kept = f"; noise throughout: {series.reason}" if series.dropped.all() else kept
    return (
        "fit of gemm_s (cost/kernels/gemm.py) by workshop/fits/gemm/fit.py to "
        f"{int(series.used.sum())} "
        f"{series.dtype} rows of the {table}{casts}{never}{kept}. Shapes left out on all devices"
        f" at once, M, N, K >= 512: median {100 * score.median:.1f} %, p90 {100 * score.p90:.0f} %"
    )


def _figures_of(dtype: str) -> tuple[str, ...]:
    return () if dtype in ("bf16", "fp16", "fp32") else ("quantise_row_s",)


def _never_splits(series: Series) -> bool:
    return series.dtype in ("fp8_blockwise", "nvfp4") or (series.dtype, series.library) == (
        "fp8",
        _FACTS["host_bound"],
    )


# --- sections ----------------------------------------------------------------------------


def gemm_sections(series: Sequence[Series] | None = None) -> dict[str, list[Section]]:
    """Return what the tables ``[gemm.*]`` of each profile should say."""
    found_unseen = shipped_unseen() if series is None else unseen_times(series)
    series = [unseen.series for unseen in found_unseen]
    fits = {curve.key: _figures(curve) for curve in series}
    backward = backward_rates(
        {
            device: fit
            for (device, dtype, library), fit in fits.items()
            if (dtype, library) == ("bf16", "cublas")
        }
    )
    sections: dict[str, list[Section]] = {}
    for unseen in found_unseen:
        one = unseen.series
        if one.dtype not in one.accelerator.matrix_flop_per_s:
            continue
        score = _scored(unseen)
        section = _section(one, fits[one.key], score, _text(unseen, score), backward)
        sections.setdefault(one.device, []).append(section)
    for device in list(sections):
        sections[device] = _with_untimed_types(load_accelerator(device), sections[device])
    return sections


def _section(
    series: Series, values: Figures, score: LeftOut, text: str, backward: Mapping[str, Backward]
) -> Section:
    figures = {name: FigureText(value=value, grade="fitted") for name, value in values.items()}
    figures["peak_fraction"] = FigureText(
        value=values["peak_fraction"], grade="fitted", spread=max(score.spread, 0.01)
    )
    figures["accumulate_exposed"], said = _accumulate(series.device, backward)
    if series.library != "cublas":
        machine = series.accelerator.gemm["cublas"][series.dtype].training_fraction
        figures["training_fraction"] = FigureText(
            value=float(machine), grade="assumed", spread=_ASSUMED_SPREAD
        )
        said += "; no training runs with this library: training_fraction is that of cuBLAS here"
    return Section(
        path=("gemm", series.library, series.dtype),
        figures=figures,
        date=DATE,
        source=f"gemm_{series.library}_{series.dtype}",
        text=text + said,
    )


def _accumulate(device: str, backward: Mapping[str, Backward]) -> tuple[FigureText, str]:
    """What a weight gradient shows of its fp32 sums: where it was timed; elsewhere the middle.

    The spread is how far the two timed devices are apart; twice that elsewhere.
    """
    shares = [way.exposed for way in backward.values()]
    apart = max(float(np.log(max(shares) / min(shares))), _LEAST_SPREAD)
    own = backward.get(device)
    if own is not None:
        chip = " (the PCIe card, same chip)" if device in _FACTS["on_the_card"] else ""
        return FigureText(value=own.exposed, grade="fitted", spread=apart), (
            f". accumulate_exposed: {own.rows} training products of "
            f"MooreThreads/SimuMax@4dcaae51{chip}, dgrad at {own.dgrad:.2f} of the forward rate"
        )
    return FigureText(value=float(np.median(shares)), grade="assumed", spread=2.0 * apart), (
        ". accumulate_exposed: inferred from A100 and B200 (SimuMax), no backward timings here"
    )


def _with_untimed_types(device: Accelerator, sections: list[Section]) -> list[Section]:
    """Add cuBLAS types without timings: the other 16-bit type, fp32 and tf32, mxfp8 as fp8."""
    own = {section.path[2]: section for section in sections if section.path[1] == "cublas"}
    made = list(sections)

    def add(dtype: str, source: str, text: str, grade: str, spread: float, like: str) -> None:
        if dtype in own or dtype not in device.matrix_flop_per_s or like not in own:
            return
        figures = {
            name: FigureText(
                value=figure.value,
                grade=grade if figure.grade == "fitted" else "assumed",
                spread=max(spread, figure.spread) if figure.spread is not None else None,
            )
            for name, figure in own[like].figures.items()
        }
        path = ("gemm", "cublas", dtype)
        made.append(Section(path=path, figures=figures, source=source, text=text, date=DATE))

    wide = "bf16" if "bf16" in own else "fp16"
    add(
        _SAME_UNITS[wide],
        f"gemm_{_SAME_UNITS[wide]}",
        f"the {wide} parameters: fp16 and bf16 run on the same units at the same rate. Check: "
        "vidur@7d47513 fp16 timings (71 large shapes each) over this formula at the sustained "
        "clock: A100 median 1.01, H100 1.04",
        "fitted",
        _FP16_SPREAD,
        wide,
    )
    for dtype in ("fp32", "tf32"):
        add(
            dtype,
            "gemm_other",
            f"the {wide} parameters of this device: no timings of this type",
            "assumed",
            _ASSUMED_SPREAD,
            wide,
        )
    add(
        "mxfp8",
        "gemm_mxfp8",
        "the fp8 parameters of this device: no timings of MXFP8 (one scale for 32 elements) found; "
        "the same units at the same dense rate. The fp8_block rows of "
        "ai-dynamo/aiconfigurator@095f58a5 are another kernel (DeepGEMM, scales for 128 x 128)",
        "assumed",
        _ASSUMED_SPREAD,
        "fp8",
    )
    return made


# --- residuals ---------------------------------------------------------------------------


def residual_tables(series: Sequence[Series] | None = None) -> dict[str, str]:
    """Return the files of residuals over :func:`gemm_sections`, by path under hardware_profiles."""
    series = load_series() if series is None else series
    series = [one for one in series if not one.dropped.all()]
    logs: list[Floats] = [
        np.log(
            curve.rows["seconds"]
            / gemm_model(_figures(curve), curve.rows, curve.accelerator, curve.dtype)
        )
        for curve in series
    ]
    lines: dict[str, list[str]] = {}
    for group in residual_groups(series):
        some = [series[i] for i in group]
        used = [one.used for one in some]
        for one, timed in zip(
            some, residual_weights(some, [logs[i] for i in group], used), strict=True
        ):
            if one.dtype in one.accelerator.matrix_flop_per_s:
                lines.setdefault(one.device, []).extend(_weighted(one, timed))
    head = ",".join(columns("gemm"))
    return {
        f"residuals/gemm/{device}.csv": "\n".join([head, *sorted(rows), ""])
        for device, rows in lines.items()
    }


def _weighted(series: Series, timed: TimedShapes) -> list[str]:
    shapes = np.stack([timed.sizes[name] for name in SIZES["gemm"]], axis=1)
    return shape_lines((series.library, series.dtype), shapes, timed.weight)


# --- devices without timings -------------------------------------------------------------


@lru_cache(maxsize=8)
def _fitted(dtype: str) -> tuple[tuple[Accelerator, dict[str, float]], ...]:
    """Devices whose profile has fitted cuBLAS figures of a type."""
    found = []
    for name in catalogue.names("accelerators"):
        device = load_accelerator(name)
        kernel = device.gemm.get("cublas", {}).get(dtype)
        if kernel is not None and kernel.peak_fraction.grade == "fitted":
            values = {
                field: float(getattr(kernel, field))
                for field in kernel.__dataclass_fields__
                if field != "training_fraction"
            }
            found.append((device, values))
    return tuple(found)


def typical_gemm(generation: str, dtype: str, *, stacked: bool = True) -> dict[str, FigureText]:
    """Return figures of cuBLAS for a device that nobody timed, all `assumed`.

    Parameters
    ----------
    generation : str
        Of the device; where none of it was timed, all timed devices with memory of its kind count.
    dtype : str
        ``bf16``, ``fp8``, ``nvfp4``, ...
    stacked : bool
        Whether it has HBM; GDDR and its large caches make other figures typical.

    Returns
    -------
    dict
        By figure of ``GemmKernel``, without `training_fraction`; the spread of `peak_fraction` is
        that of a device left out of the fits.
    """
    like = {"mxfp8": "fp8", "fp16": "bf16", "tf32": "bf16", "fp32": "bf16"}.get(dtype, dtype)
    values = typical_values(_fitted(like), generation, stacked)
    spread = _UNSEEN_SPREAD[like]
    return {
        name: FigureText(
            value=value, grade="assumed", spread=spread if name == "peak_fraction" else None
        )
        for name, value in values.items()
    }
