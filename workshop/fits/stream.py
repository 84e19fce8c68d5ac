"""Fitting the figures of memory-bound kernels that were timed, for every accelerator profile.

Only the kernels of serving stacks were timed alone. Those of training (elementwise, norm, softmax,
loss) are settled on training steps (workshop/fits/training/fit.py); optimizer and copy are
set from stream benchmarks.

``python -m workshop.fits.stream`` prints the errors on shapes left out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator import catalogue
from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, Rows
from simulator.calibration.profile_text import FigureText, Section
from simulator.cost.kernels.memory_bound import stream_s
from simulator.measured.kernel_calls import stream_shape
from simulator.measured.microbenchmarks import Sieve, load_words, read_table
from workshop.facts import facts
from workshop.fits.fitting.devices import Device, devices, profile_of, same_chip
from workshop.fits.fitting.holdout_errors import LeftOut, left_out, written
from workshop.fits.fitting.pooled import Pool, PooledFit, Shared, deal, fit_pooled

Values = dict[str, float]

LARGE_BYTES = 1e6
"""Bytes from which errors are reported."""

_DATE = "2026-11-21"
_ROWS_PER_UNIT = (1.0, 2.0, 4.0, 8.0, 16.0)
_METHODS = ("constant", "formula", "one accelerator left out")
_FACTS = facts(__file__)
_SOURCES: dict[str, str] = _FACTS["stream"]

_ROW_KERNELS = {
    "launch_s": Shared(prior=Prior(value=2e-6, width=0.4, low=0.2e-6, high=30e-6), device=0.2),
    "row_s_per_byte": Shared(
        prior=Prior(value=1.1e-10, width=0.5, low=1e-12, high=2e-9), device=0.2
    ),
    "memory_fraction": Shared(prior=Prior(value=0.8, width=0.15, low=0.05, high=1.0), device=0.1),
    "sharpness": Shared(prior=Prior(value=3.0, width=0.4, low=0.3, high=20.0)),
    "cached_gain": Shared(prior=Prior(value=0.3, width=1.0, low=0.0, high=30.0), device=0.5),
}
"""A block of threads walks each row: rows come in waves."""

_REDUCTION = {
    "launch_s": Shared(prior=Prior(value=7.5e-6, width=0.3, low=0.2e-6, high=30e-6), device=0.1),
    "memory_fraction": Shared(prior=Prior(value=0.5, width=0.4, low=0.05, high=1.3), device=0.3),
    "sharpness": Shared(prior=Prior(value=0.8, width=0.3, low=0.3, high=20.0), device=0.2),
    "cached_gain": Shared(prior=Prior(value=2.0, width=0.7, low=0.0, high=30.0), device=0.5),
}
"""One number of a whole tensor, in kernels that wait for one another: no waves."""

_CLASSES = dict.fromkeys(_FACTS["reductions"], _REDUCTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFit:
    """One class of kernels fitted on all devices that timed it."""

    fit: PooledFit
    rows_per_unit: float

    def values(self, device: str = "") -> Values:
        """Return the figures of ``StreamKernel``; a device not seen gets the common ones."""
        return self.fit.values(device) | {"rows_per_unit": self.rows_per_unit}

    def seconds(self, pool: Pool) -> Floats:
        """Predict the rows of a pool."""
        return _predicted_s(self.fit.of(pool), pool.rows, self.rows_per_unit)


def fit_stream(pool: Pool, kind: str) -> StreamFit:
    """Fit one class with each number of rows to a compute unit, and keep the best."""
    shared = _CLASSES.get(kind, _ROW_KERNELS)
    found = []
    for each in _ROWS_PER_UNIT if "row_s_per_byte" in shared else (1.0,):

        def predict(values: Mapping[str, Floats], rows: Rows, each: float = each) -> Floats:
            return _predicted_s(values, rows, each)

        found.append(StreamFit(fit=fit_pooled(shared, predict, pool), rows_per_unit=each))
    return min(found, key=lambda one: one.fit.cost)


def _predicted_s(values: Mapping[str, Floats], rows: Rows, rows_per_unit: float) -> Floats:
    given = {name: column for name, column in rows.items() if name != "seconds"}
    return stream_s(**given, **values, rows_per_unit=rows_per_unit)


def stream_calls(known: Mapping[str, Device], path: Path | None = None) -> Pool:
    """Read the timed kernels of the shipped table: device and class of every row."""
    path = path or catalogue.folder("validation") / "microbenchmarks" / "kernels.csv"
    words, table = load_words(), read_table(path, "kernels")
    sieve = Sieve(table)
    device = np.array([profile_of(gpu, words, known) for gpu in table.text("gpu").tolist()])
    kind = np.array([words.stream_classes.get(k, "") for k in table.text("kernel").tolist()])
    sieve.skip("another kernel", ~np.isin([k.partition("_")[0] for k in kind], [*_SOURCES]))
    sieve.skip("no profile", device == "")
    shape = stream_shape(sieve, sieve.kept.copy())
    seconds = sieve.positive("time_us", sieve.kept.copy()) * 1e-6
    take = np.flatnonzero(sieve.kept)
    owners = [known[name] for name in device[take].tolist()]
    rows: Rows = {name: column[take] for name, column in shape.items()}
    rows |= {
        "seconds": seconds[take],
        "bandwidth_bytes_per_s": np.array([one.bandwidth_bytes_per_s for one in owners]),
        "l2_bytes": np.array([owner.l2_bytes for owner in owners]),
        "compute_units": np.array([one.compute_units for one in owners]),
    }
    return Pool(rows=rows, device=device[take], variant=kind[take])


# --- errors ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """One class: its rows, its fit, and its rows predicted unseen by each method."""

    pool: Pool
    fit: StreamFit
    unseen: Mapping[str, Floats]


@functools.cache
def _classes() -> dict[str, _Class]:
    calls = stream_calls(devices())
    kinds = np.unique(calls.variant).tolist()
    pools = {kind: calls.take(calls.variant == kind) for kind in kinds}
    return {
        kind: _Class(pool=pool, fit=fit_stream(pool, kind), unseen=_unseen(pool, kind))
        for kind, pool in pools.items()
    }


def _unseen(pool: Pool, kind: str) -> dict[str, Floats]:
    """Predict each row from rows of other shapes, and from other devices."""
    sizes = (pool.rows["moved_bytes"].tolist(), pool.rows["row_bytes"].tolist())
    fold = deal(list(zip(*sizes, strict=True)))
    unseen = {name: np.full(len(pool), np.nan) for name in _METHODS}
    for number in np.unique(fold):
        out = fold == number
        unseen["formula"][out] = fit_stream(pool.take(~out), kind).seconds(pool.take(out))
        unseen["constant"][out] = _constant(pool, ~out, out)
    devices_ = np.unique(pool.device).tolist()
    for device in devices_ if len(devices_) > 1 else ():
        away = pool.device == device
        rest = fit_stream(pool.take(~away), kind)
        unseen["one accelerator left out"][away] = rest.seconds(pool.take(away))
    return unseen


def _constant(pool: Pool, seen: NDArray[np.bool_], out: NDArray[np.bool_]) -> Floats:
    """One rate for each device, the median over the large tensors that were seen."""
    moved = pool.rows["moved_bytes"]
    rate = moved / pool.rows["seconds"]
    full = np.full(len(pool), np.nan)
    for device in np.unique(pool.device).tolist():
        own = (pool.device == device) & seen & (moved >= LARGE_BYTES)
        rows = out & (pool.device == device)
        full[rows] = moved[rows] / np.median(rate[own]) if own.any() else np.nan
    return full[out]


def left_out_lines() -> list[LeftOut]:
    """Errors on tensors of 1 MB and more: over all classes, then of each class and device."""
    classes = _classes()
    lines = [_line(classes.values(), method, "memory-bound, >= 1 MB") for method in _METHODS]
    for kind, each in classes.items():
        for device in ("all", *np.unique(each.pool.device).tolist()):
            lines.append(_line([each], "formula", "memory-bound, >= 1 MB", device, kind))
    return lines


def _line(
    classes: object, method: str, kernel: str, device: str = "all", library: str = "all"
) -> LeftOut:
    predicted, measured = [], []
    for each in classes:  # type: ignore[attr-defined]
        seconds = each.unseen[method]
        rows = (each.pool.rows["moved_bytes"] >= LARGE_BYTES) & np.isfinite(seconds)
        rows &= (each.pool.device == device) | (device == "all")
        predicted.append(seconds[rows])
        measured.append(each.pool.rows["seconds"][rows])
    return left_out(
        np.concatenate(predicted),
        np.concatenate(measured),
        kernel=kernel,
        device=device,
        library=library,
        dtype="all",
        method=method,
    )


# --- profiles ----------------------------------------------------------------------------


def typical_stream(kind: str) -> tuple[Values, float]:
    """Figures of a class on a device that was never timed, and their spread.

    What the timed devices have in common; the spread is that of a device left out of the fit.
    """
    each = _classes()[kind]
    method = "one accelerator left out"
    if not np.isfinite(each.unseen[method]).any():
        method = "formula"
    spread = _line([each], method, "").spread
    return each.fit.values(), spread if method != "formula" else 2.0 * spread


def stream_sections() -> dict[str, list[Section]]:
    """What the profiles hold of timed memory-bound kernels, by profile."""
    known, classes = devices(), _classes()
    return {
        name: [
            section
            for kind, each in classes.items()
            if (section := _section(kind, each, device, known)) is not None
        ]
        for name, device in known.items()
    }


def _section(
    kind: str, each: _Class, device: Device, known: Mapping[str, Device]
) -> Section | None:
    timed = np.unique(each.pool.device).tolist()
    twin = same_chip(device, [known[name] for name in timed])
    source = f"{_SOURCES[kind.partition('_')[0]]} by workshop/fits/stream.py"
    if device.name in timed:
        line = _line([each], "formula", "", device.name)
        values, spread, grade = each.fit.values(device.name), line.spread, "fitted"
        text = (
            f"fit of stream_s (cost/kernels/memory_bound.py) to {source}: {line.rows} calls of "
            f"1 MB and more, shapes left out: median error {100 * line.median:.1f} %, "
            f"p90 {100 * line.p90:.1f} %"
        )
    elif twin:  # waves of rows are those of its units, whatever the memory
        line = _line([each], "formula", "", twin)
        values, spread, grade = each.fit.values(twin), max(line.spread, 0.15), "assumed"
        text = f"as {twin}: {source}"
    elif device.generation in {known[name].generation for name in timed}:
        (values, spread), grade = typical_stream(kind), "assumed"
        text = f"not timed here; what timed devices have in common: {source}"
    else:
        return None
    figures = {
        name: FigureText(
            value=value, grade=grade, spread=spread if name == "memory_fraction" else None
        )
        for name, value in sorted(values.items())
    }
    return Section(
        path=("stream", kind), figures=figures, source=f"stream_{kind}", text=text, date=_DATE
    )


if __name__ == "__main__":
    print(written(left_out_lines()), end="")
