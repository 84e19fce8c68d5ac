"""Memory that a training framework holds beyond tensors."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Annotated

from annotated_types import Le

from simulator.files import Figure, record


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
