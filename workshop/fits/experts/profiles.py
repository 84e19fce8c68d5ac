"""Figures of expert layers for the shipped profiles, and what the formula leaves over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.calibration.profile_text import FigureText, Section
from simulator.hardware.residuals import SIZES, columns
from workshop.fits.experts.holdout import (
    EVEN,
    SPREAD,
    UnseenLayers,
    layer_points,
    unseen_layers,
)
from workshop.fits.fitting.holdout_errors import LeftOut, left_out
from workshop.fits.fitting.smoothing import pulls, weight_lines
from workshop.fits.gemm.profiles import DATE

__all__ = ["grouped_residuals", "grouped_sections"]

_STALE = ("l2_refetch", "row_passes")


def grouped_sections(found: Sequence[UnseenLayers] | None = None) -> dict[str, list[Section]]:
    """Return what the tables ``[grouped.cublas.TYPE]`` of each profile should say, by profile."""
    sections: dict[str, list[Section]] = {}
    for one in unseen_layers() if found is None else found:
        for dtype in np.unique(one.pool.calls.variant).tolist():
            score, text = _said(one, dtype)
            for device in _devices(one, dtype):
                values = one.fit.values(device, dtype)
                figures = {
                    name: FigureText(
                        value=value,
                        grade="fitted",
                        spread=score.spread if name == "peak_fraction" else None,
                    )
                    for name, value in values.items()
                }
                sections.setdefault(device, []).append(
                    Section(
                        path=("grouped", "cublas", dtype),
                        figures=figures,
                        text=text,
                        source=f"grouped_{dtype}",
                        date=DATE,
                        stale=_STALE,
                    )
                )
    return sections


def _devices(one: UnseenLayers, dtype: str) -> list[str]:
    found: list[str] = np.unique(one.pool.calls.device[one.pool.calls.variant == dtype]).tolist()
    return found


def _said(one: UnseenLayers, dtype: str) -> tuple[LeftOut, str]:
    """Errors of a type on shapes left out, and the words that go into the profile."""
    calls = one.pool.calls
    own = one.used & (calls.variant == dtype)
    score = left_out(
        one.seconds["formula"][own],
        calls.rows["seconds"][own],
        kernel=EVEN,
        device="all",
        library="cublas",
        dtype=dtype,
        method="formula",
    )
    types = np.unique(calls.variant)
    others = f", together with {', '.join(t for t in types.tolist() if t != dtype)}"
    return score, (
        "fit of expert_layer_s (cost/kernels/expert_layer.py) by "
        f"workshop/fits/experts/fit.py to {score.rows} "
        f"evenly routed {dtype} layers of {', '.join(_devices(one, dtype))}"
        f"{others if len(types) > 1 else ''}; TRT-LLM tables of "
        "ai-dynamo/aiconfigurator@095f58a5. Shapes left out on all of them at once: median "
        f"{100 * score.median:.1f} %, p90 {100 * score.p90:.0f} %"
    )


def grouped_residuals() -> dict[str, str]:
    """Return the files of residuals over :func:`grouped_sections`, by path."""
    found = {}
    for one in unseen_layers():
        calls = one.pool.calls.take(one.used)
        points = layer_points(one.pool).take(one.used)
        left = np.log(calls.rows["seconds"] / one.formula_s[one.used])
        pull = pulls(points, left, SPREAD)
        sizes = np.stack([calls.rows[name] for name in SIZES["experts"]], axis=1)
        for device in np.unique(calls.device).tolist():
            owners = list(_owners(one, device))
            lines = weight_lines(points, sizes, pull, SPREAD, owners)
            text = "\n".join([",".join(columns("experts")), *lines, ""])
            found[f"residuals/experts/{device}.csv"] = text
    return found


def _owners(one: UnseenLayers, device: str) -> Iterator[tuple[str, str, str, str]]:
    calls = one.pool.calls
    for dtype in np.unique(calls.variant[calls.device == device]).tolist():
        yield f"{device}|{dtype}", dtype, "cublas", dtype
