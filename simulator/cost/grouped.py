"""Seconds of an expert layer: routing, two grouped products, an activation, putting back.

A grouped product is one call for all experts of a rank: tiles of all of them fill the device
together, so that it is a batch of :func:`~simulator.cost.kernels.gemm_s` with figures of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.kernels import NO_SPLIT_S, gemm_s
from simulator.hardware.accelerator import GroupedKernel

__all__ = ["PRODUCT_FIGURES", "as_grouped", "expert_layer_s", "product_figures"]

Floats = NDArray[np.float64]

PRODUCT_FIGURES = (
    *("peak_fraction", "memory_fraction", "prologue_k", "wave_quantisation"),
    *("small_tile_penalty", "l2_refetch"),
)
"""Figures of ``GroupedKernel`` that stand in for those of ``GemmKernel`` in a grouped product."""


def as_grouped(given: Mapping[str, Any], layer: GroupedKernel, experts: Any) -> dict[str, Any]:
    """Arguments of :func:`gemm_s` for a grouped product of a training step, from a plain one's."""
    own = {field.name: float(getattr(layer, field.name)) for field in fields(layer)}
    launch_s = given["launch_s"] + own["per_expert_s"] * experts
    figures = product_figures(own, share_of=given["peak_fraction"])
    return dict(given) | figures | {"launch_s": launch_s}


def product_figures(figures: Mapping[str, float], share_of: float = 0.0) -> dict[str, float]:
    """Arguments of :func:`gemm_s` for a grouped product; the reduction is never split.

    In a timed layer the share of the peak and the passes around the products trade off against
    one another. Where those passes are priced as kernels of their own, as in a training step,
    `share_of` puts the share that plain products of the library reach in its place.
    """
    own = {name: figures[name] for name in PRODUCT_FIGURES} | {"split_k_s": 2.0 * NO_SPLIT_S}
    return own | ({"peak_fraction": share_of} if share_of else {})


def expert_layer_s(
    *,
    tokens: Any,
    experts: Any,
    hidden: Any,
    ffn: Any,
    gated: Any,
    all_tokens: Any,
    top_k: Any,
    rates: Mapping[str, float],
    figures: Mapping[str, float],
    sustained_fraction: float = 1.0,
) -> Floats:
    """Time of a forward call of one rank's experts at the burst clock, in seconds.

    Parameters
    ----------
    tokens, experts : array_like
        Tokens that each expert of the rank gets; experts of the rank.
    hidden, ffn, gated : array_like
        Widths of the layer and of one expert's share on this rank; 1 where a gate doubles the
        first product.
    all_tokens, top_k : array_like
        Tokens before they are routed, on whichever rank, and experts for each.
    rates : mapping
        What :func:`gemm_rates` says of device and type.
    figures : mapping
        ``GroupedKernel``.
    sustained_fraction : float
        Of ``GemmKernel``: how far the clock falls in a long call.

    Returns
    -------
    ndarray
        Seconds.

    Notes
    -----
    Beside the products: a sort of all routed copies (`routed_s` each), passes over all tokens
    (`token_passes`, 16 bit), and passes over the rank's copies that read, activate and write
    (`row_passes` over 16-bit rows in and out of both products).
    """
    m, e, h, f, wide = (np.asarray(x, float) for x in (tokens, experts, hidden, ffn, gated))
    wide = 1.0 + wide
    bandwidth = rates["bandwidth_bytes_per_s"]
    own: dict[str, Any] = dict(rates) | product_figures(figures)
    products_s = sum(
        gemm_s(m=m, n=n, k=k, batch=e, result_bytes=2.0, launch_s=0.0,
               sustained_fraction=sustained_fraction, sustained=False, **own)
        for n, k in ((wide * f, h), (h, f))
    )  # fmt: skip
    row_bytes = m * e * (4.0 * h + 2.0 * (wide + 1.0) * f)
    token_bytes = 2.0 * np.asarray(all_tokens, float) * h
    moved = figures["row_passes"] * row_bytes + figures["token_passes"] * token_bytes
    routed_s = figures["routed_s"] * np.asarray(all_tokens, float) * top_k
    fixed_s = figures["launch_s"] + figures["per_expert_s"] * e
    return np.asarray(fixed_s + products_s + moved / bandwidth + routed_s)
