"""Fitting the layer of experts to timed calls: one generation at a time, all its types together.

What the devices differ in (peak, memory, units, falling clock) their profiles say. Types of one
generation share the passes around the products, and each moves rates and tiles a little.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.calibration.least_squares import Prior, Rows
from simulator.cost.kernels.expert_layer import expert_layer_s
from simulator.cost.kernels.gemm import DeviceRates
from workshop.fits.experts.rows import CLOCK, RATES, ExpertPool, busiest_load
from workshop.fits.fitting.pooled import PooledFit, Shared, fit_pooled

LAYER = {
    "peak_fraction": Shared(prior=Prior(value=0.85, width=0.15, low=0.2, high=1.0), variant=0.15),
    "memory_fraction": Shared(prior=Prior(value=0.8, width=0.15, low=0.3, high=1.05), variant=0.08),
    "prologue_k": Shared(prior=Prior(value=250.0, width=0.6, low=20.0, high=3000.0), variant=0.5),
    "wave_quantisation": Shared(
        prior=Prior(value=0.5, width=0.4, low=0.0, high=1.0, linear=True), variant=0.2
    ),
    "small_tile_penalty": Shared(
        prior=Prior(value=0.2, width=0.4, low=0.0, high=3.0, linear=True), variant=0.3
    ),
    "launch_s": Shared(prior=Prior(value=20e-6, width=0.6, low=1e-6, high=200e-6), variant=0.15),
    "per_expert_s": Shared(prior=Prior(value=20e-9, width=1.0, low=0.5e-9, high=1e-6)),
    "routed_s": Shared(prior=Prior(value=0.2e-9, width=1.0, low=0.005e-9, high=10e-9)),
    "choice_s": Shared(prior=Prior(value=10e-6, width=0.6, low=0.1e-6, high=60e-6)),
    "score_s": Shared(prior=Prior(value=1e-12, width=1.5, low=1e-17, high=1e-9)),
    "token_passes": Shared(prior=Prior(value=1.0, width=0.6, low=0.05, high=30.0), variant=0.2),
    "hidden_passes": Shared(prior=Prior(value=1.5, width=0.6, low=0.05, high=20.0), variant=0.2),
    "ffn_passes": Shared(prior=Prior(value=1.0, width=0.6, low=0.02, high=20.0), variant=0.3),
    "cached_gain": Shared(prior=Prior(value=1.0, width=1.0, low=0.0, high=6.0, linear=True)),
}
"""Parameters of a generation: what to expect of them, and how far types may differ."""

_SIZES = ("experts", "hidden", "ffn", "gated", "all_tokens", "all_experts", "top_k")


def layer_s(values: Mapping[str, Floats], rows: Rows) -> Floats:
    """Seconds of timed layers, with figures of ``GroupedKernel`` for every row.

    Where tokens are routed unevenly, the busiest rank decides.
    """
    loads = zip(*(rows[name].tolist() for name in ("skew", "all_experts", "experts")), strict=True)
    load = np.array([busiest_load(skew, int(all_), round(all_ / own)) for skew, all_, own in loads])
    return expert_layer_s(
        tokens=rows["tokens"] * load,
        rates=DeviceRates(**{name: rows[name] for name in RATES}),
        figures=values,
        **{name: rows[name] for name in (*_SIZES, *CLOCK)},
    )


def fit_layers(pool: ExpertPool, used: NDArray[np.bool_]) -> PooledFit:
    """Fit the `used` rows of a pool."""
    return fit_pooled(LAYER, layer_s, pool.calls.take(used))
