"""What a framework does its own way: tables for Transformer Engine, DTensor, FSDP2 and ZeRO."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from simulator.files import Count, Figure, record

Quantised = Literal["fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"]
"""A type of linears of fewer than 16 bit, with its scales."""

Buffered = Literal["fp16", "bf16", "fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"]

_TE = "NVIDIA/TransformerEngine pytorch/module/base.py, get_default_config"

FUSED_HEAD = 128
"""Widest head that every fused library has both passes for."""


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


@record
class UserBuffers:
    """What Transformer Engine's user buffers do beside products (``tensor = "userbuffers"``).

    Gathers that feed a product are exchanged in a ring of as many pieces as ranks, by copy engines.
    """

    precisions: tuple[Buffered, ...] = ("fp16", "bf16", "fp8", "fp8_current", "mxfp8")
    """Types of products for which there are buffers; others run as with ``tensor = "backward"``
    (fill_userbuffers_buffer_for_all_gather of the same file refuses other quantised tensors)."""
    scatter: Literal["pipeline", "ring_exchange"] = "pipeline"
    """How a 16-bit product's result is scattered. pipeline: `splits` pieces along the features, by
    kernels that the product leaves `pipeline_units`. ring_exchange: as many pieces as ranks, along
    the tokens, by copy engines, and a sum of all ranks' parts in the end."""
    quantised_scatter: Literal["pipeline", "ring_exchange"] = "pipeline"
    """The same of products that take fewer than 16 bit."""
    splits: Count = 4
    """Pieces of a pipeline (num_splits)."""
    pipeline_units: Figure = Figure(16.0, "datasheet", _TE)
    """Compute units that a pipeline's product goes without, from its first piece to its last
    (num_sm with set_sm_margin)."""
    gather_units: Figure = Figure(16.0, "datasheet", _TE)
    """Compute units that a gather beside dgrad takes while it runs (num_sm of qkv_dgrad and
    fc1_dgrad, without set_sm_margin)."""
    scatter_units: Figure = Figure(16.0, "datasheet", _TE)
    """Compute units that a scatter beside wgrad takes while it runs (num_sm of qkv_wgrad and
    fc1_wgrad, without set_sm_margin)."""


@record
class DTensor:
    """torch's DTensor; as it stands, nothing of it."""

    keeps_gathered_inputs: bool = False
    """Sequence-parallel linears keep their gathered input for the backward pass (torch DTensor);
    otherwise they keep the shard and gather again (Megatron)."""
    whole_embedding_gradient: bool = False
    """Tensor-parallel ranks make the embedding's gradient for the whole vocabulary and then take
    their share of it (torch DTensor)."""
    gathers_logits: bool = False
    """The output head's columns are gathered over tp, and every rank computes the whole loss
    (ColwiseParallel with output_layouts=Replicate())."""
    reduces_each_projection: bool = False
    """Tensor parallelism without sequence parallelism: each of several linears that share an input
    (queries, keys and values; gate and up) reduces its gradient by itself (torch's
    ColwiseParallel), instead of once for their sum."""
    reduction_copies: Figure = Figure(0.0)
    """Memory traffic per byte of a reduction over tp, in the way of the compute: functional
    collectives copy what they reduce (torch DTensor)."""
    sequence_copies: Figure = Figure(0.0)
    """Memory traffic per byte that tensor parallelism gathers or scatters along the sequence, in
    the way of the compute: functional collectives gather and scatter along the first dimension,
    which is the batch, and put pieces in order by a copy (torch DTensor)."""


@record
class DistributedDispatch:
    """Host time of torch's DTensor and FSDP2, as `foreshard calibrate-here` measures it."""

    split_block_forward_s: Figure = Figure(0.0)
    """What the host takes longer for a block's forward pass where its linears are cut over tp
    (dispatch and redistribution of torch's DTensor)."""
    split_block_backward_s: Figure = Figure(0.0)
    """The same of its backward pass."""
    split_ends_forward_s: Figure = Figure(0.0)
    """The same of embedding, head and loss together, forward."""
    split_ends_backward_s: Figure = Figure(0.0)
    """The same of them, backward."""
    split_reduction_s: Figure = Figure(0.0)
    """What the host takes longer for one reduction over tp than a plain call of the collective
    library (redistribution of a DTensor, functional collectives)."""
    gathered_block_forward_s: Figure = Figure(0.0)
    """What the host takes longer for the forward pass of a block whose parameters are gathered for
    it (hooks and views of FSDP2); embedding and head count as one block. Read where the host waits
    for kernels: elsewhere it is ahead of them."""
    gathered_block_backward_s: Figure = Figure(0.0)
    """The same of its backward pass."""
    split_block_step_s: Figure = Figure(0.0)
    """What the host takes longer in the optimizer's step for a block whose parameters are cut over
    tp (distributed tensors); embedding and head count as one block. Read where the host waits."""
    gathered_block_step_s: Figure = Figure(0.0)
    """The same of a block whose parameters are sharded block by block (FSDP2)."""


@record
class FSDP2:
    """torch's FSDP2; as it stands, nothing of it."""

    gather_copies: Figure = Figure(0.0)
    """Memory traffic per byte of weights gathered block by block: copies into and out of the flat
    buffer (FSDP2), in the way of the compute."""
    keeps_gathered_with_pipeline: bool = False
    """zero3 with pp > 1: parameters stay gathered and gradients unreduced until the last
    micro-batch (FSDP2 without reshard, torchtitan's default policy)."""
    reduces_each_round: bool = False
    """Where parameters stay gathered in a pipeline, a chunk's gradients are reduced once each round
    of micro-batches that it takes without a break, so that those of one chunk fill up while those
    of another leave; otherwise all of them wait for the last micro-batch."""
    adds_unreduced: bool = False
    """Where gradients stay whole until the last micro-batch, those of the first are cast to the
    type of the reduction and later ones added to them, by kernels of their own (FSDP2)."""
    reduces_after_passes: bool = False
    """Where gradients stay whole until the last micro-batch, a stage's are reduced once its last
    backward pass has ended, not beside it (torch.distributed.pipelining calls FSDP2's hooks
    then)."""
    pools_by_stream: bool = False
    """Gathered weights and reduced gradients come from the pools of streams of their own (FSDP2):
    what is idle there at the peak cannot serve the rest, so it is reserved on top."""
    lone_replica: Literal["wrapped", "autocast", "as_kept"] = "wrapped"
    """dp x cp = 1, where nothing is left to share. wrapped: fully_shard over one rank, with its
    casts and buffers. Otherwise parameters and gradients stay as they are kept: torch.autocast
    makes a 16-bit copy of a weight for each product where it is kept in more; as_kept is meant for
    weights of 16 bit, and priced alike for others."""
    hands_gradients_over_at_once: bool = False
    """A lone replica that is not wrapped is one compiled graph, whose backward pass returns the
    gradients of a micro-batch together, beside those that they are added to."""


@record
class DeepSpeedZero:
    """DeepSpeed's ZeRO; as it stands, nothing of it."""

    live_parameters: Figure = Figure(0.0)
    """zero3: parameters that stay whole on the device from their forward to their backward pass,
    which is near (half of DeepSpeed's stage3_max_reuse_distance); 0: none but the next block's."""
    reduces_everywhere: bool = False
    """zero1 and zero2: gradients are all-reduced, although every rank keeps its share only
    (DeepSpeed's use_multi_rank_bucket_allreduce)."""
    offloads_gradients: bool = False
    """Where the optimizer is offloaded, gradients go to the host after every micro-batch and are
    added up there (DeepSpeed); otherwise they stay and go once per step (Megatron-Core)."""


@record
class TorchOperators:
    """Operators of torch that run one by one, as modules that no compiler has seen issue them."""

    alone: bool = False
    """What is not fused is a kernel for every operator, at the device's rate of copies;
    layer norm is one kernel, RMS norm and rotation take the passes that they have in torch."""
    rotary_passes: tuple[int, int] = (10, 15)
    """Times that rotating queries and keys reads or writes them in 16 bit, forward and backward."""
    wide_rotary_passes: tuple[int, int] = (18, 28)
    """The same where what is rotated has the type of an fp32 stream (`wide_rotation`)."""
    wide_rotation: bool = False
    """Cosines and sines have the type of the stream between blocks, and so have rotated queries and
    keys (transformers); otherwise they have that of queries and keys."""
    wide_adapters: bool = False
    """Adapters stay in fp32 beside a base of 16 bit: the input of each is cast to fp32 and, under
    torch.autocast, back (peft)."""


@record
class WideHeads:
    """What Transformer Engine takes in place of cuDNN, as `get_attention_backend` chooses it."""

    library: str = ""
    """Key of the accelerator's `attention` table for heads whose values are as wide as their keys:
    flash-attention 2 has both passes up to 256. Blank: as narrower heads."""
    unequal: Literal["fused", "unfused"] = "fused"
    """Latent attention, whose values are narrower than its keys; flash-attention 2 has nothing for
    it, so that scores stand in memory where cuDNN has nothing either."""
