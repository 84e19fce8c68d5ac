"""What Transformer Engine does around linears of fewer than 16 bit."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from simulator.files import record

Quantised = Literal["fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"]
"""A type of linears of fewer than 16 bit, with its scales."""


@record
class TransformerEngine:
    """Transformer Engine; as it stands, nothing of it."""

    pads_experts: bool = False
    """Where products take fewer than 16 bit, every expert's tokens are copied into rows that end at
    a multiple of 16 or 32, and the outputs back (Transformer Engine's Fp8Padding), unless experts
    are padded to a capacity or the dispatch leaves room itself (HybridEP)."""
    saves_quantised_inputs: bool = False
    """Where products take fewer than 16 bit, linears keep their input in that type, for the weight
    gradient (Transformer Engine); otherwise in 16 bit and cast it again (torchao's float8)."""
    keeps_attention_output_once: bool = False
    """The output of attention waits once, for its own backward pass and for the weight gradient of
    the linear behind it (DeepSeek's E5M6); otherwise in 16 bit and as the linear's own input."""
    keeps_exchanged_output: bool = False
    """Context parallelism that exchanges sequence for heads keeps the result of attention as it was
    before the exchange, beside what the next linear reads, and does not exchange it again for the
    backward pass (AttnFuncWithCPAndQKVOA2A since release 2.8)."""
    norm_casts: tuple[Quantised, ...] = ()
    """Types in which norms write their result themselves, for the linear in the same module
    (Transformer Engine's LayerNormLinear: fp8 with delayed scaling; mxfp8 with cuDNN's norms)."""
    columns_cast_apart: tuple[Quantised, ...] = ()
    """Types whose numbers along columns a kernel of its own makes, which reads the 16-bit operand
    once more (nvfp4 with random Hadamard transforms until release 2.13)."""
    norm_maxima: tuple[Quantised, ...] = ()
    """Types for whose scale these norms take the maximum of their result, so that the cast does not
    read it once more (fp8_current in Transformer Engine since August 2025)."""
    activation_casts: tuple[Quantised, ...] = ()
    """Types in which the kernels of a dense MLP's activation write its result, and the gradient of
    its input, for the linears on either side (Transformer Engine's fused operations,
    pytorch/csrc/extensions/activation.cpp: fp8 with delayed scaling, mxfp8)."""
    activation_maxima: tuple[Quantised, ...] = ()
    """Types for whose scale these kernels take the maximum of what they write (the same:
    fp8_current, and nvfp4 without Hadamard transforms)."""
    swizzled_weights: tuple[Quantised, ...] = ()
    """Types with block scales for whose weights a kernel of its own puts the scales into the tiles
    that products read, before each product."""
    swizzled_inputs: tuple[Quantised, ...] = ()
    """Types for whose inputs and gradients it does, too: all that have block scales in release 2.0
    to 2.11; after that casts to mxfp8 write tiles."""
    fused_grouped_mlp: tuple[Quantised, ...] = ()
    """Types in which the products of routed experts add biases, activate, weigh and cast what they
    compute themselves, both ways: cuDNN's grouped products with an epilogue (Transformer Engine
    2.15, ops/fused/grouped_mlp.py; NVTE_CUTEDSL_FUSED_GROUPED_MLP). Only their own input and the
    gradient of their output are cast by kernels."""
    fused_grouped_mlp_in_graphs: tuple[Quantised, ...] = ()
    """The same where a captured graph holds the whole step, and nowhere else."""
    quantised_attention: tuple[Quantised, ...] = ()
    """Types of linears under which attention takes such operands, too, by cuDNN 9.21 and newer on
    Blackwell; result and gradients are in 16 bit (release 2.16; Megatron-Bridge's
    fp8_dot_product_attention)."""
    quantised_head: tuple[Quantised, ...] = ()
    """Types of linears in which the output head is one of them (Megatron-Core 0.18's
    fp8_output_proj)."""
    mask_bytes: float = 0.0
    """Bytes that the mask of causal unfused attention takes to make for each query and key, for all
    heads together and in every pass (get_full_mask, since release 2.0; its softmax reads it)."""
    flash_attn_on: tuple[str, ...] = ()
    """Generations of devices on which 16-bit attention is flash-attn's, not cuDNN's (below compute
    capability 9.0: get_attention_backend in attention/dot_product_attention/utils.py; on all where
    a recipe sets NVTE_FUSED_ATTN=0)."""
    flash_attn_library: dict[str, str] = field(default_factory=dict)
    """Key of the accelerator's `attention` table that holds flash-attn's kernels, by generation;
    where none is named they are the software's usual ones."""
    reduces_maxima: bool = False
    """fp8 with delayed scaling: the maxima behind the scales are reduced over all ranks that share
    a tensor, in every pass (Transformer Engine's reduce_amax)."""
