"""Attention of heads wider than 128 where the fused library has no backward pass for them."""

from __future__ import annotations

from typing import Literal

from simulator.files import record

FUSED_HEAD = 128
"""Widest head that every fused library has both passes for."""


@record
class WideHeads:
    """What Transformer Engine takes in place of cuDNN, as `get_attention_backend` chooses it."""

    library: str = ""
    """Key of the accelerator's `attention` table for heads whose values are as wide as their keys:
    flash-attention 2 has both passes up to 256. Blank: as narrower heads."""
    unequal: Literal["fused", "unfused"] = "fused"
    """Latent attention, whose values are narrower than its keys; flash-attention 2 has nothing for
    it, so that scores stand in memory where cuDNN has nothing either."""
