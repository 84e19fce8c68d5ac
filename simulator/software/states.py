"""Bytes and traffic of weights, gradients and optimizer states."""

from __future__ import annotations

from simulator.files import Figure, record


@record
class StateBytes:
    """Bytes per parameter in mixed precision (16-bit compute)."""

    weight: Figure
    """The 16-bit copy that stays; 0 when only the sharded fp32 weights stay (FSDP2)."""
    gradient: Figure
    """The gradient accumulator."""
    gradient_fp16: Figure | None = None
    """The same in fp16 training, accumulator and wire, where that is another one."""
    master: Figure
    """fp32 weights of the optimizer; 0 where it updates the 16-bit weights themselves."""
    moment: Figure = Figure(4.0, "datasheet", "AdamW keeps its moments in fp32")
    """One of the optimizer's moments."""
    reduce: Figure
    """Gradients on the wire."""
    gather: Figure
    """Weights on the wire."""
    optimizer_traffic: Figure
    """Memory traffic of one AdamW step, with gradient norm, clipping and zeroing."""
    optimizer_traffic_fp32: Figure = Figure(32.0, "datasheet", "AdamW moves 28 B, the norm 4 B")
    """The same where weights, gradients and moments are fp32 and there is no other copy."""
    step: Figure = Figure(0.0)
    """Bytes per parameter of the rank's share that the optimizer step allocates in single pieces:
    no free block of an activation holds them, so that they are reserved on top."""
    step_buffer_bytes: Figure = Figure(0.0)
    """A buffer of fixed size that the reduction before the step allocates likewise."""
    largest_copy: Figure = Figure(0.0)
    """Bytes per parameter of the rank's largest weight tensor, whose gradient is copied in one
    piece before it is added to its accumulator; reserved on top likewise."""
    step_tensor: Figure = Figure(0.0)
    """Bytes per parameter that the step makes of one tensor at a time, beside its states (an Adam
    that is not fused)."""
    quantised_weight_copies: Figure = Figure(0.0)
    """Copies of the blocks' weights in the type of the products, where that has fewer than 16 bit,
    that stay beside `weight`: 2 where rows and columns each have one (Transformer Engine)."""
    micro_batch_traffic: Figure = Figure(0.0)
    """Memory traffic of every micro-batch per whole parameter beside the GEMMs: casts,
    copies in and out of flat buffers, accumulation where the product does not fuse it."""
    accumulation_traffic: Figure = Figure(0.0)
    """Memory traffic per whole parameter of adding a micro-batch's gradient to that of the ones
    before it, from the second micro-batch on, where the product does not fuse it (eager torch: the
    sum and the gradient read, the sum written)."""
    reduce_copies: Figure = Figure(0.0)
    """Memory traffic per byte of gradients reduced over data-parallel ranks: copies into the flat
    buffer or bucket and out of it, division, in the way of the compute."""
    shared_reduce_copies: Figure = Figure(0.0)
    """The same on top where ranks share gradients (zero2, zero3)."""
    broadcasts_parameters: bool = False
    """zero1: every rank broadcasts its share of the updated parameters in turn (InternEvo, early
    DeepSpeed), where others gather all shares at once."""
    frees_gradients: bool = False
    """Gradients are freed after every step (torch's zero_grad): with a single micro-batch none is
    there before its backward pass, and they grow while activations shrink."""
    bucket_bytes: Figure
    """Size of one bucket of the gradient reduction."""
    bucket_bytes_per_rank: Figure = Figure(0.0)
    """The bucket is at least this times the data-parallel ranks, so that ring latency stays small
    (Megatron-Core)."""
    reduces_by_block: bool = False
    """One reduction per transformer block instead of buckets (FSDP2)."""
    reduces_every_micro_batch: bool = False
    """zero2 and zero3: gradients are reduced after every micro-batch, not once per step."""
