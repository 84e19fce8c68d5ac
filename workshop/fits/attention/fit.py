"""Fits of the formula of fused attention: serving libraries, then those that training calls.

Serving libraries were timed on many shapes; the kernels of one library on one generation are fitted
together, with a rate and a clock for each device and, where keys are kept in fp8, a rate of its
own. Training libraries were timed on a few: the softmax, which those cannot tell, is that of
serving kernels. Training load has another clock than a timing loop: `training_fraction` is not
fitted here (workshop/fits/training/fit.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, Rows
from workshop.facts import facts
from workshop.fits.attention.rows import TRAINING, family, predicted_s, shapes
from workshop.fits.fitting.devices import Device
from workshop.fits.fitting.holdout_errors import LeftOut, left_out
from workshop.fits.fitting.pooled import Pool, PooledFit, Shared, deal, fit_pooled, unseen

Values = dict[str, float]

TILES = (64.0, 128.0, 256.0)
LONG = 1024.0
"""Queries of a sequence from which errors are reported."""

_LEAST_LONG = 20
"""Long calls that a library needs on a generation to be fitted."""

_SMALL_TOKENS = 512.0
_SMALL_WEIGHT = 0.5
"""Calls of few tokens are mostly start-up, of which there are many rows."""

_WIDE_STEP: dict[str, float] = facts(__file__)["wide_step"]
_NATIVE_STEP = 64.0
"""TRT-LLM pads heads of 192 to 256; flash-attention has a kernel for them."""

_RATE = Shared(prior=Prior(value=0.7, width=0.4, low=0.05, high=2.0), device=0.2, variant=0.15)

SERVING = {
    "launch_s": Shared(prior=Prior(value=10e-6, width=0.6, low=1e-6, high=60e-6)),
    "peak_fraction": _RATE,
    "heat": Shared(
        prior=Prior(value=0.04, width=0.03, low=0.0, high=0.4, linear=True), device=0.02
    ),
    "softmax_width": Shared(prior=Prior(value=60.0, width=0.7, low=4.0, high=1000.0)),
    "prologue_keys": Shared(prior=Prior(value=150.0, width=1.0, low=1.0, high=2000.0)),
    "tail_fraction": Shared(prior=Prior(value=0.8, width=0.3, low=0.0, high=2.0, linear=True)),
    "narrow_head_factor": Shared(
        prior=Prior(value=1.15, width=0.2, low=0.5, high=3.0), variant=0.1
    ),
    "wide_head_factor": Shared(prior=Prior(value=1.0, width=0.2, low=0.5, high=3.0), variant=0.1),
    "query_traffic": Shared(prior=Prior(value=1.5, width=0.6, low=0.05, high=20.0)),
    "key_traffic": Shared(prior=Prior(value=3.0, width=1.0, low=0.05, high=60.0), variant=1.5),
}
"""`heat` is c of ``sustained_fraction = 1 / (1 + 2 c)``, zero where the clock never falls."""

_BACKWARD = {
    "backward_fraction": Shared(prior=Prior(value=0.8, width=0.2, low=0.2, high=1.5)),
    "backward_tail_fraction": Shared(
        prior=Prior(value=0.4, width=0.3, low=0.0, high=1.0, linear=True)
    ),
}
ONE_CALL_S = 6e-6
"""Start-up of a fused call that writes no cache."""

_ONE_CALL = {
    "launch_s": Shared(prior=Prior(value=ONE_CALL_S, width=0.15, low=1e-6, high=60e-6)),
    "query_traffic": Shared(prior=Prior(value=0.7, width=0.2, low=0.05, high=20.0)),
    "key_traffic": Shared(prior=Prior(value=0.5, width=0.2, low=0.05, high=20.0)),
    "prologue_keys": Shared(prior=Prior(value=150.0, width=0.7, low=1.0, high=2000.0)),
    "narrow_head_factor": Shared(prior=Prior(value=1.15, width=0.2, low=0.5, high=3.0)),
}
"""Training keeps no cache: what the kernels without one (varlen) show."""

_BACKWARD_OF_DEVICES = 0.1
"""How far devices of a generation are apart in their backward over their forward rate."""

_SAME_KERNEL = ("softmax_width",)
_KNOWN = 0.02
"""Width of a parameter that other timings have settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFit:
    """One pooled fit and the tile that went with it."""

    fit: PooledFit
    tile_rows: float
    wide_head_step: float

    def values(self, device: str = "", library: str = "") -> Values:
        """Return the figures of ``AttentionKernel``, without `training_fraction`."""
        return self._figures(self.fit.values(device, library))

    def seconds(self, pool: Pool) -> Floats:
        """Predict the rows of a pool."""
        return predicted_s(_arguments(self.fit.of(pool), self._tiles()), pool.rows)

    def _tiles(self) -> Values:
        return {"tile_rows": self.tile_rows, "wide_head_step": self.wide_head_step}

    def _figures(self, values: Mapping[str, float]) -> Values:
        figures = {**values, **self._tiles()}
        figures["sustained_fraction"] = 1.0 / (1.0 + 2.0 * figures.pop("heat"))
        return figures


def _arguments(values: Mapping[str, Floats], tiles: Mapping[str, float]) -> dict[str, Floats]:
    """Keyword arguments of ``attention_s``; a kernel without a backward pass gets a nominal one."""
    arguments: dict[str, Floats] = {
        "backward_fraction": np.array(1.0),
        "backward_tail_fraction": np.array(1.0),
        "training_fraction": np.array(1.0),
        **values,
        **{k: np.array(v) for k, v in tiles.items()},
    }
    arguments["sustained_fraction"] = 1.0 / (1.0 + 2.0 * arguments.pop("heat"))
    return arguments


def _fit(
    shared: Mapping[str, Shared], pool: Pool, wide_step: float, tiles: tuple[float, ...] = TILES
) -> AttentionFit:
    """Fit with each tile, and keep the one that leaves least."""
    tokens = pool.rows["queries"] * np.maximum(pool.rows["heads"], 1.0)
    weight = np.where(tokens >= _SMALL_TOKENS, 1.0, _SMALL_WEIGHT)
    found = []
    for tile in tiles:
        given = {"tile_rows": tile, "wide_head_step": wide_step}

        def predict(values: Mapping[str, Floats], rows: Rows, given: Values = given) -> Floats:
            return predicted_s(_arguments(values, given), rows)

        fit = fit_pooled(shared, predict, pool, weight)
        found.append(AttentionFit(fit=fit, tile_rows=tile, wide_head_step=wide_step))
    return min(found, key=lambda each: each.fit.cost)


# --- serving -----------------------------------------------------------------------------


def pool_keys(pool: Pool, known: Mapping[str, Device]) -> list[tuple[str, str]]:
    """Generation and library (whatever its cache) of every row."""
    generations = [known[name].generation for name in pool.device.tolist()]
    return list(zip(generations, family(pool.variant).tolist(), strict=True))


def fit_serving(pool: Pool, library: str) -> AttentionFit:
    """Fit one library on the devices of one generation."""
    return _fit(SERVING, pool, _WIDE_STEP.get(library.partition("_")[0], _NATIVE_STEP))


def serving_pools(pool: Pool, known: Mapping[str, Device]) -> dict[tuple[str, str], Pool]:
    """Rows by generation and library, of libraries that serve and that were timed enough."""
    pool = pool.take(~np.isin(pool.variant, TRAINING))
    keys = pool_keys(pool, known)
    found = {key: pool.take(np.array([each == key for each in keys])) for key in sorted(set(keys))}
    return {
        key: rows
        for key, rows in found.items()
        if (rows.rows["queries"] >= LONG).sum() >= _LEAST_LONG
    }


# --- training ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Figures of a training library on one device."""

    values: Values
    score: LeftOut
    """Errors; of shapes left out where there are enough."""


def fit_timed(pool: Pool, serving: Values) -> Timed:
    """Fit a library timed in both directions; the softmax is that of `serving`."""
    shared = {**SERVING, **_ONE_CALL, **_BACKWARD, **_settled(serving, _SAME_KERNEL)}
    found = _fit(shared, pool, _NATIVE_STEP, (128.0, 256.0))
    fold = deal(shapes(pool.rows))

    def fit(seen: NDArray[np.bool_]):  # type: ignore[no-untyped-def]
        part = _fit(shared, pool.take(seen), _NATIVE_STEP, (found.tile_rows,))
        return lambda rows: part.seconds(pool.take(rows))

    return _timed(found, pool, unseen(fold, fit))


def fit_timed_on_each(pool: Pool, serving: Values) -> dict[str, Timed]:
    """Fit a library timed in both directions on several devices of a generation, by device.

    Devices share all but the rates of both directions.
    """
    shared = {**SERVING, **_ONE_CALL, **_BACKWARD, **_settled(serving, _SAME_KERNEL)}
    back = shared["backward_fraction"]
    shared["backward_fraction"] = replace(back, device=_BACKWARD_OF_DEVICES)
    found = _fit(shared, pool, _NATIVE_STEP, (128.0, 256.0))
    fold = deal(shapes(pool.rows))

    def fit(seen: NDArray[np.bool_]):  # type: ignore[no-untyped-def]
        part = _fit(shared, pool.take(seen), _NATIVE_STEP, (found.tile_rows,))
        return lambda rows: part.seconds(pool.take(rows))

    seconds, timed = unseen(fold, fit), {}
    for device in np.unique(pool.device).tolist():
        of = pool.device == device
        score = _timed(found, pool.take(of), seconds[of]).score
        timed[device] = Timed(values=found.values(device), score=score)
    return timed


PUBLISHED: dict[str, dict[str, Prior]] = {
    "sdpa": {},
    "triton": {"backward_fraction": Prior(value=0.7, width=0.3, low=0.2, high=1.5)},
    "flash1": {"backward_fraction": Prior(value=1.0, width=_KNOWN, low=0.2, high=1.5)},
    "flash2": {
        "backward_fraction": Prior(value=0.8, width=0.2, low=0.2, high=1.5),
        "narrow_head_factor": Prior(value=1.0, width=0.2, low=0.5, high=3.0),
    },
}
"""Libraries with rates in papers, and what is known of their backward pass beside that of flash.

flash-attention 1 runs both directions at one rate: 65 and 64 TFLOP/s in Tables 18 and 19 of Dao
2022 (arXiv 2205.14135)."""

_FREE = {
    "peak_fraction": Prior(value=0.6, width=0.4, low=0.05, high=2.0),
    "prologue_keys": Prior(value=100.0, width=0.7, low=1.0, high=2000.0),
}


def fit_published(pool: Pool, known: Values, library: str) -> Timed:
    """Fit rate and prologue to the rates of a paper; the rest is what flash has (`known`)."""
    shared = {name: Shared(prior=prior) for name, prior in (_FREE | PUBLISHED[library]).items()}
    rest = {**SERVING, **_ONE_CALL, **_BACKWARD}
    fixed = _settled(known, [name for name in rest if name not in shared and name != "heat"])
    fixed["heat"] = Shared(prior=Prior(value=0.0, width=1e-3, low=0.0, high=1e-3, linear=True))
    fit = _fit({**fixed, **shared}, pool, _NATIVE_STEP, (known["tile_rows"],))
    return _timed(fit, pool, fit.seconds(pool))


def _timed(attention_fit: AttentionFit, pool: Pool, seconds: Floats) -> Timed:
    line = left_out(
        seconds, pool.rows["seconds"], kernel="", device="", library="", dtype="", method=""
    )
    return Timed(values=attention_fit.values(), score=line)


def _settled(values: Values, names: tuple[str, ...] | list[str]) -> dict[str, Shared]:
    """Parameters held at figures that other timings gave."""
    rest = {**SERVING, **_ONE_CALL, **_BACKWARD}
    return {
        name: Shared(prior=replace(rest[name].prior, value=values[name], width=_KNOWN))
        for name in names
    }


def training_pool(pool: Pool, library: str, known: Mapping[str, Device], generation: str) -> Pool:
    """Rows of one training library on one generation."""
    alike = np.array([known[name].generation == generation for name in pool.device.tolist()])
    return pool.take((pool.variant == library) & alike)
