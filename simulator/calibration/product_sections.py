"""Figures of matrix products for the shipped profiles, from the table of kernel timings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from simulator import catalogue
from simulator.calibration import Fit
from simulator.calibration.fit_kernels import GEMM_TYPES, fit_gemm, read_gemm
from simulator.calibration.left_out import LeftOut
from simulator.calibration.profile_text import FigureText, Section
from simulator.errors import InputError
from simulator.hardware.cluster import load_accelerator
from simulator.measured.microbenchmarks import load_words

__all__ = ["left_out_lines", "product_sections"]

DATE = "2026-11-21"
"""Of the table of timings."""
_LIBRARY = "cublas"
_TABLE = "TRT-LLM tables (cuBLAS kernels) of ai-dynamo/aiconfigurator@095f58a5"


def product_sections(only: tuple[str, ...] = ()) -> dict[str, list[Section]]:
    """Return what ``[gemm.cublas.TYPE]`` of each timed accelerator should say, by profile."""
    found: dict[str, list[Section]] = {}
    for device, dtype, fit in _fits(only):
        text = (
            f"fit of gemm_s (cost/kernels.py) by calibration/fit_kernels.py to the {_TABLE},"
            f" five-fold: {dtype} {fit.rows} rows, left-out shapes with M, N, K >= 512: median"
            f" {100 * fit.median_error:.1f} %, p90 {100 * fit.p90_error:.0f} %"
        )
        figures = {
            name: FigureText(
                value=value, grade="fitted", spread=fit.spread if name == "peak_fraction" else None
            )
            for name, value in fit.values.items()
        }
        found.setdefault(device, []).append(
            Section(
                path=("gemm", _LIBRARY, dtype),
                figures=figures,
                source=f"gemm_{dtype}",
                text=text,
                date=DATE,
            )
        )
    return found


def left_out_lines(only: tuple[str, ...] = ()) -> list[LeftOut]:
    """Return the errors on shapes left out of each fit."""
    return [
        LeftOut(
            kernel="gemm, all dimensions >= 512",
            device=device,
            library=_LIBRARY,
            dtype=dtype,
            method="formula",
            rows=fit.rows,
            median=fit.median_error,
            p90=fit.p90_error,
            spread=fit.spread,
        )
        for device, dtype, fit in _fits(only)
    ]


@lru_cache(maxsize=4)
def _fits(only: tuple[str, ...]) -> tuple[tuple[str, str, Fit], ...]:
    return tuple(_fitted(only))


def _fitted(only: tuple[str, ...]) -> Iterator[tuple[str, str, Fit]]:
    """Fit every device and type of which the table has enough rows."""
    path = catalogue.folder("validation") / "microbenchmarks" / "kernels.csv"
    shipped = set(catalogue.names("accelerators"))
    # A device stands in the table by a word of its own or by its name with underscores.
    words = {name.replace("-", "_"): name for name in shipped} | load_words().accelerators
    for word, name in sorted(words.items()):
        if name not in shipped or (only and name not in only):
            continue
        device = load_accelerator(name)
        for dtype in GEMM_TYPES:
            if dtype in device.gemm.get(_LIBRARY, {}):
                yield from _one(path, word, name, dtype)


def _one(path: Path, word: str, name: str, dtype: str) -> Iterator[tuple[str, str, Fit]]:
    try:
        rows = read_gemm(path, gpu=word, dtype=dtype)
    except InputError:  # the table has no timings of this type on this device
        return
    yield name, dtype, fit_gemm(rows, load_accelerator(name), dtype=dtype)
