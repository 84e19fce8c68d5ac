"""What a training framework holds in memory: bytes of states, and what lies beyond tensors."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Annotated

from annotated_types import Le

from simulator.files import Figure, record


@record
class StateBytes:
    """Bytes per parameter in mixed precision (16-bit compute)."""

    weight: Figure
    """The 16-bit copy that stays; 0 when only the sharded fp32 weights stay (FSDP2), or fp32
    weights of which passes make copies (`autocasts`)."""
    autocasts: bool = False
    """Weights stay in fp32, and torch.autocast makes a 16-bit copy of each for its products, which
    autograd keeps until the backward pass is through with it; no replica is wrapped by anything
    that casts."""
    frozen: Figure | None = None
    """Weights that are not trained; none given: as those that are."""
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
    bucket_copies: Figure = Figure(0.0)
    """Copies of all gradients in the buckets of their reduction, which stay from step to step where
    replicas reduce them (DistributedDataParallel without gradient_as_bucket_view)."""
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


@record
class Workspaces:
    """Workspaces of matrix-multiplication libraries, where a generation of devices has its own."""

    workspace_bytes: Figure | None = None
    """Those that stay allocated."""
    head_workspace_bytes: Figure | None = None
    """Further ones on the rank with the output head."""
    grouped_workspace_bytes: Figure | None = None
    """Further ones on ranks that hold experts."""


@record
class Allocator:
    """Memory beyond tensors."""

    workspace_bytes: Figure
    """Workspaces that stay allocated: matrix-multiplication library, fused kernels."""
    dummy_gradient_copies: Figure = Figure(0.0)
    """Copies of the rank's linears, one of every shape, kept for gradient-accumulation fusion."""
    grouped_workspace_bytes: Figure = Figure(0.0)
    """Further workspaces on ranks that hold experts: one for every stream of a grouped product."""
    head_workspace_bytes: Figure = Figure(0.0)
    """Further workspaces on the rank with the output head, whose product is torch's own."""
    workspaces_of: dict[str, Workspaces] = field(default_factory=dict)
    """By generation of devices, workspaces that differ from the three above."""
    grouped_products: bool = True
    """A rank's experts are one grouped product; otherwise one by one, without its workspaces."""
    local_blocks: bool = False
    """Blocks are not Transformer Engine's: they call torch's product library on every stage. The
    product of the router is Transformer Engine's there, too (Megatron-LM
    megatron/core/transformer/moe/moe_utils.py: RouterGatingLinearFunction)."""
    deterministic_workspace_bytes: Figure | None = None
    """What torch's product library keeps for its two threads where runs must come out alike."""
    scores_buffer: bool = False
    """Unfused attention keeps a buffer for the scores of one layer, into which every layer's first
    product writes (Megatron's global memory buffer)."""
    context_bytes: Figure = Figure(0.0)
    """What the process takes of the device before its first tensor: CUDA context and kernels."""
    communicators: Figure = Figure(0.0)
    """Communicators of a rank beside one for every degree above 1."""
    pipeline_communicators: Figure = Figure(0.0)
    """The same that come with pp > 1: to neighbours, for tied tables and split sends."""
    keeps_input_gradient: bool = False
    """Stages other than the first hold the gradient of their input until the next one replaces it
    (a variable of Megatron's schedules outlives the next backward pass)."""
    pipeline_buffers: bool = False
    """Stages receive into a buffer for every micro-batch and direction, and keep their outputs
    until the backward pass (torch.distributed.pipelining)."""
    fragmentation_fraction: Figure = Figure(0.0)
    """Reserved over allocated memory, less one."""
    reserved_spread: Annotated[Figure, Le(3)] | None = None
    """Standard deviation of the logarithm of measured over predicted reserved memory, the error
    that all layouts share; none given: memory has no P10 and P90."""
    split_reserved_spread: Annotated[Figure, Le(3)] | None = None
    """The same with tp or pp above 1, where no such layout was read; none given: no other."""

    def on(self, generation: str) -> Allocator:
        """The same with the workspaces that libraries take on a generation of devices."""
        there = self.workspaces_of.get(generation)

        def usual(name: str) -> Figure:
            figure: Figure | None = getattr(there, name, None)
            return getattr(self, name) if figure is None else figure

        blocks, head = usual("workspace_bytes"), usual("head_workspace_bytes")
        grouped = usual("grouped_workspace_bytes")
        if not self.grouped_products:
            grouped = Figure(0.0)
        if self.deterministic_workspace_bytes is not None:
            head = self.deterministic_workspace_bytes
        if self.local_blocks:
            blocks, head, grouped = head, Figure(0.0), blocks
        return replace(
            self,
            workspace_bytes=blocks,
            head_workspace_bytes=head,
            grouped_workspace_bytes=grouped,
        )
