"""Seconds of an expert layer: routing, two grouped products, an activation, putting back.

A grouped product is one call for all experts of a rank: tiles of all of them fill the device
together, so that it is a batch of :func:`~simulator.cost.kernels.gemm.gemm_s` with figures of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.kernels.gemm import NO_SPLIT_S, DeviceRates, gemm_s
from simulator.hardware.accelerator import GemmKernel, GroupedKernel

PRODUCT_FIGURES = (
    *("peak_fraction", "memory_fraction", "prologue_k", "wave_quantisation"),
    "small_tile_penalty",
)
"""Figures of ``GroupedKernel`` that stand in for those of ``GemmKernel`` in a grouped product."""

_FUSED_CHOICES = 16.0
"""Experts of one token that TensorRT-LLM's own kernel picks; more are left to ``torch.topk``
(``RenormalizeMoeRoutingMethod`` in tensorrt_llm/_torch/modules/fused_moe/routing.py)."""

_CACHE_FILLED = 0.9
"""Share of the last-level cache that a working set may fill and still be found there again."""

_CACHE_STEEPNESS = 6.0
"""A set that is touched in a circle drops out all at once when it outgrows the cache."""


def as_grouped(kernel: GemmKernel, layer: GroupedKernel, experts: Any) -> GemmKernel:
    """The library in a grouped product of a training step; the reduction is never split.

    In a timed layer the share of the peak and the passes around the products trade off against
    one another. Here those passes are priced as kernels of their own, and products reach the share
    that plain ones of the library reach.
    """
    figures: dict[str, Any] = {name: getattr(layer, name) for name in PRODUCT_FIGURES}
    figures |= {"peak_fraction": kernel.peak_fraction, "split_k_s": 2.0 * NO_SPLIT_S}
    launch_s: Any = kernel.launch_s + layer.per_expert_s * experts
    return replace(kernel, launch_s=launch_s, **figures)


def expert_layer_s(
    *,
    tokens: Any,
    experts: Any,
    hidden: Any,
    ffn: Any,
    gated: Any,
    all_tokens: Any,
    all_experts: Any,
    top_k: Any,
    rates: DeviceRates,
    figures: Mapping[str, Any],
    sustained_fraction: Any = 1.0,
    clock_exponent: Any = 0.0,
) -> Floats:
    """Time of a forward call of one rank's experts at the burst clock, in seconds.

    Parameters
    ----------
    tokens, experts : array_like
        Tokens that each expert of the rank gets; experts of the rank.
    hidden, ffn, gated : array_like
        Widths of the layer and of one expert's share on this rank; 1 where a gate doubles the
        first product.
    all_tokens, all_experts, top_k : array_like
        Tokens before they are routed and experts, on whichever rank, and experts for each token.
    rates : DeviceRates
    figures : mapping
        Fields of ``GroupedKernel``.
    sustained_fraction, clock_exponent : array_like
        Of ``GemmKernel``: how far the clock falls in a long call, and by how much less where a
        call leaves units idle.

    Returns
    -------
    ndarray
        Seconds.

    Notes
    -----
    Beside the products: choosing experts where each token has more than the fused kernel takes
    (`choice_s`, and `score_s` for every score of a token and an expert); a sort of all routed
    copies (`routed_s` each); passes over all tokens (`token_passes`, 16 bit); and passes over the
    rank's copies, in the width of the layer (`hidden_passes`, a read and a write each) and in that
    of the experts (`ffn_passes`, what the activation reads and writes). A timing loop calls the
    same layer again and again: where weights and copies fit into the last-level cache, all of them
    move faster by `cached_gain`.
    """
    m, e, h, f, wide = (np.asarray(x, float) for x in (tokens, experts, hidden, ffn, gated))
    everyone, top_k = np.asarray(all_tokens, float), np.asarray(top_k, float)
    wide, copies = 1.0 + wide, m * e
    hidden_bytes, ffn_bytes = 4.0 * copies * h, 2.0 * copies * (wide + 1.0) * f
    held = _held(
        rates.operand_bytes * (e * h * f * (1.0 + wide) + copies * (h + f))
        + 2.0 * copies * (h + wide * f),
        rates.l2_bytes,
    )
    bandwidth = rates.bandwidth_bytes_per_s * (1.0 + figures["cached_gain"] * held)
    device = replace(rates, bandwidth_bytes_per_s=bandwidth)
    unlaunched: dict[str, Any] = {"launch_s": 0.0, "l2_refetch": 0.0, "split_k_s": 2.0 * NO_SPLIT_S}
    kernel = GemmKernel(
        **{name: figures[name] for name in PRODUCT_FIGURES},
        **unlaunched,
        sustained_fraction=sustained_fraction,
        training_fraction=sustained_fraction,
        clock_exponent=clock_exponent,
    )
    products_s = sum(
        gemm_s(device, kernel, m=m, n=n, k=k, batch=e, result_bytes=2.0, sustained=False)
        for n, k in ((wide * f, h), (h, f))
    )
    moved = figures["hidden_passes"] * hidden_bytes + figures["ffn_passes"] * ffn_bytes
    moved = moved + figures["token_passes"] * 2.0 * everyone * h
    scored_s = figures["choice_s"] + figures["score_s"] * everyone * all_experts
    chosen_s = figures["routed_s"] * everyone * top_k
    chosen_s = chosen_s + np.where(top_k > _FUSED_CHOICES, scored_s, 0.0)
    fixed_s = figures["launch_s"] + figures["per_expert_s"] * e
    return np.asarray(fixed_s + products_s + moved / bandwidth + chosen_s)


def _held(touched_bytes: Any, l2_bytes: Any) -> Floats:
    """Share of what a call touches that the call before it has left in the last-level cache."""
    filled = np.asarray(touched_bytes, float) / (_CACHE_FILLED * np.asarray(l2_bytes, float))
    return np.asarray(1.0 / (1.0 + filled**_CACHE_STEEPNESS))
