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

_STALE = ("l2_refetch", "row_passes")


def grouped_sections(
    holdout_layers: Sequence[UnseenLayers] | None = None,
) -> dict[str, list[Section]]:
    """Return what the tables ``[grouped.cublas.TYPE]`` of each profile should say, by profile."""
    sections: dict[str, list[Section]] = {}
    for unseen_layer in unseen_layers() if holdout_layers is None else holdout_layers:
        for dtype in np.unique(unseen_layer.pool.calls.variant).tolist():
            score, text = _said(unseen_layer, dtype)
            for device in _devices(unseen_layer, dtype):
                values = unseen_layer.fit.values(device, dtype)
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


def _devices(unseen_layers: UnseenLayers, dtype: str) -> list[str]:
    tolist: list[str] = np.unique(
        unseen_layers.pool.calls.device[unseen_layers.pool.calls.variant == dtype]
    ).tolist()
    return tolist


def _said(unseen_layers: UnseenLayers, dtype: str) -> tuple[LeftOut, str]:
    """Errors of a type on shapes left out, and the words that go into the profile."""
    calls = unseen_layers.pool.calls
    own = unseen_layers.used & (calls.variant == dtype)
    score = left_out(
        unseen_layers.seconds["formula"][own],
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
        f"evenly routed {dtype} layers of {', '.join(_devices(unseen_layers, dtype))}"
        f"{others if len(types) > 1 else ''}; TRT-LLM tables of "
        "ai-dynamo/aiconfigurator@095f58a5. Shapes left out on all of them at once: median "
        f"{100 * score.median:.1f} %, p90 {100 * score.p90:.0f} %"
    )


def grouped_residuals() -> dict[str, str]:
    """Return the files of residuals over :func:`grouped_sections`, by path."""
    found = {}
    for unseen_layer in unseen_layers():
        calls = unseen_layer.pool.calls.take(unseen_layer.used)
        points = layer_points(unseen_layer.pool).take(unseen_layer.used)
        left = np.log(calls.rows["seconds"] / unseen_layer.formula_s[unseen_layer.used])
        pull = pulls(points, left, SPREAD)
        sizes = np.stack([calls.rows[name] for name in SIZES["experts"]], axis=1)
        for device in np.unique(calls.device).tolist():
            owners = list(_owners(unseen_layer, device))
            lines = weight_lines(points, sizes, pull, SPREAD, owners)
            text = "\n".join([",".join(columns("experts")), *lines, ""])
            found[f"residuals/experts/{device}.csv"] = text
    return found


def _owners(unseen_layers: UnseenLayers, device: str) -> Iterator[tuple[str, str, str, str]]:
    calls = unseen_layers.pool.calls
    for dtype in np.unique(calls.variant[calls.device == device]).tolist():
        yield f"{device}|{dtype}", dtype, "cublas", dtype
