"""Sends of one way between two accelerators of a server: a start by protocol, a share of the links.

Timed by vidur as calls of torch.distributed: one rank sends, the other receives, and nothing comes
back meanwhile. Steps are priced with sends of both ways (`calls.send_s`), so that these figures
serve for timings of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, Rows, fit_values, pick
from simulator.calibration.profile_text import FigureText, Section
from simulator.measured.microbenchmarks import read_table
from workshop.fits.collectives.rows import DEVICES, boards
from workshop.fits.fitting.holdout_errors import LeftOut, left_out

_DATE = "2026-11-25"
_SOURCE = "microsoft/vidur"
_SMALL_BYTES = 16384.0
"""NCCL_P2P_LL_THRESHOLD: the largest message that NCCL sends with LL."""
_FOLDS = 8
_PRIORS: Mapping[str, Prior] = {
    "small_s": Prior(value=7e-6, width=0.5, low=1e-6, high=50e-6),
    "large_s": Prior(value=11e-6, width=0.5, low=1e-6, high=80e-6),
    "link_fraction": Prior(value=0.85, width=0.1, low=0.3, high=1.0),
}


def read_sends() -> dict[str, Rows]:
    """Rows of every board: bytes, rate of its links, measured seconds."""
    path = catalogue.folder("validation") / "microbenchmarks" / "collectives.csv"
    table = read_table(path, "collectives")
    kept = (table.text("operation") == "sendrecv") & (table.text("nodes") == "1")
    kept &= np.char.startswith(table.text("source"), _SOURCE) & (table.text("excluded") == "")
    sends = {}
    for gpu in sorted(set(table.text("gpu")[kept].tolist()) & set(DEVICES)):
        take = table.take(np.flatnonzero(kept & (table.text("gpu") == gpu)))
        size_bytes = take.text("message_bytes").astype(float)
        wire = float(boards()[gpu].node.scale_up.bandwidth_bytes_per_s)
        sends[gpu] = {
            "bytes": size_bytes,
            "wire": np.full(len(size_bytes), wire),
            "seconds": take.text("time_us").astype(float) * 1e-6,
        }
    return sends


def _predict(values: Mapping[str, float], rows: Rows) -> Floats:
    start_s = np.where(rows["bytes"] <= _SMALL_BYTES, values["small_s"], values["large_s"])
    return np.asarray(start_s + rows["bytes"] / (values["link_fraction"] * rows["wire"]))


def _fit(rows: Rows) -> dict[str, float]:
    return fit_values(_PRIORS, _predict, rows)


@lru_cache(maxsize=1)
def _unseen() -> dict[str, Floats]:
    """Every board's rows, each predicted without every eighth size, its own among them."""
    unseen = {}
    for gpu, rows in read_sends().items():
        fold = np.argsort(np.argsort(rows["bytes"])) % _FOLDS
        unseen[gpu] = np.empty(len(fold))
        for number in range(_FOLDS):
            out: NDArray[np.bool_] = fold == number
            unseen[gpu][out] = _predict(_fit(pick(rows, ~out)), pick(rows, out))
    return unseen


def send_sections() -> dict[str, list[Section]]:
    """Return the sections of the library's profile."""
    sections = []
    for gpu, rows in read_sends().items():
        curve, _ = DEVICES[gpu]
        ratio = np.log(_unseen()[gpu] / rows["seconds"])
        spread = float(np.diff(np.percentile(ratio, [16, 84]))[0] / 2.0)
        text = (
            f"sends of one way on {curve}: torch.distributed between two accelerators of a server,"
            f" 2 KB to 51 MB, {_SOURCE}@7d475133 ({len(ratio)} rows); least squares on logarithms;"
            f" every eighth size left out: mean error {100 * np.abs(np.expm1(ratio)).mean():.0f} %"
        )
        figures = {
            name: FigureText(value=value, grade="fitted", spread=spread)
            for name, value in _fit(rows).items()
        }
        figures["small_bytes"] = FigureText(value=_SMALL_BYTES, grade="datasheet")
        source = f"sends_{curve}"
        path = ("curves", curve, "one_way")
        sections.append(Section(path=path, figures=figures, source=source, text=text, date=_DATE))
    return {"collectives/nccl": sections}


def sends_left_out() -> list[LeftOut]:
    """Return the errors on sizes, and on boards, that were left out."""
    rows, unseen_s = read_sends(), _unseen()
    strange_s = {}
    for gpu in rows:
        others = [values for other, values in rows.items() if other != gpu]
        joined = {name: np.concatenate([one[name] for one in others]) for name in others[0]}
        strange_s[gpu] = _predict(_fit(joined), rows[gpu])
    lines = []
    for method, seconds in (("formula", unseen_s), ("one accelerator left out", strange_s)):
        for devices in (list(rows), *([gpu] for gpu in rows)):
            lines.append(
                left_out(
                    np.concatenate([seconds[gpu] for gpu in devices]),
                    np.concatenate([rows[gpu]["seconds"] for gpu in devices]),
                    kernel="NCCL send of one way, one node",
                    device=devices[0] if len(devices) == 1 else "all",
                    library="nccl",
                    dtype="all",
                    method=method,
                )
            )
    return lines
