"""Bytes beside the tensors of autograd: workspaces, buffers of pipeline and communicators."""

from __future__ import annotations

import numpy as np

from simulator.arrays import Floats, by_key
from simulator.cost.states.state_costs import STATE_KINDS
from simulator.cost.tables import Priced, Selection
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.software.profile import Software

_GRADIENTS = STATE_KINDS.index("gradients")


def workspace(rows: Selection, priced: Priced) -> Floats:
    """Library workspaces, and what a framework holds on to: dummy gradients, an input's gradient.

    Buckets of gradients that replicas reduce, where those are copies. Dummy gradients serve
    gradient-accumulation fusion. The gradient of a stage's input outlives the next backward pass on
    all stages but the first, which has the embedding and no such input.
    """
    layouts, states = rows.layouts, priced.states
    allocator = priced.software.allocator.on(priced.cluster.accelerator.generation)
    size_bytes = dummy_copies(priced.software) * by_key(states.linear_shapes, rows.state_key) * 2.0
    size_bytes = size_bytes + float(allocator.workspace_bytes)
    if float(allocator.grouped_workspace_bytes):
        grouped = float(allocator.grouped_workspace_bytes)
        size_bytes = size_bytes + by_key(states.has_experts, rows.state_key) * grouped
    size_bytes = size_bytes + (rows.parts[:, :, -1] > 0) * float(allocator.head_workspace_bytes)
    if copies := float(priced.software.states.bucket_copies):
        reduced = (layouts.dp * layouts.cp > 1)[:, None]
        gradients = by_key(states.state_bytes[_GRADIENTS], rows.state_key)
        size_bytes = size_bytes + copies * reduced * gradients
    if allocator.scores_buffer:
        size_bytes = size_bytes + _scores_bytes(layouts, priced)[:, None]
    if allocator.keeps_input_gradient:
        holds = (layouts.pp > 1) & (layouts.micro_batches > 1)
        gradient = np.where(holds, priced.blocks.boundary_bytes[rows.block_key], 0.0)[:, None]
        size_bytes = size_bytes + (rows.parts[:, :, -2] == 0) * gradient
    return np.asarray(size_bytes)


def _scores_bytes(layouts: Layouts, priced: Priced) -> Floats:
    """16-bit scores of one layer and micro-batch; shape (layouts,)."""
    workload = priced.workload
    if priced.software.kernels.attention == "flash":
        return np.zeros(len(layouts))
    heads = max((att.heads for att in workload.architecture.attentions), default=0)
    pairs = float(workload.recipe.sequence_length) ** 2 / layouts.cp
    return np.asarray(2.0 * layouts.micro_batch * heads / layouts.tp * pairs)


def dummy_copies(software: Software) -> float:
    """Copies of dummy gradients: none where products do not add to gradients themselves."""
    fused = "gradient_accumulation" in software.kernels.fused
    return float(software.allocator.dummy_gradient_copies) if fused else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StageBuffers:
    """Buffers between stages, shape (layouts, columns)."""

    received: Floats
    """That stages receive into."""
    inputs: Floats
    """What stages receive of one micro-batch."""
    outputs: Floats
    """That stages hold until their backward pass."""


def stage_buffers(rows: Selection, priced: Priced, flights: Floats) -> StageBuffers:
    """Buffers between stages; `flights` are micro-batches in flight, (layouts, columns)."""
    boundary = priced.blocks.boundary_bytes[rows.block_key]
    stage = (priced.software, rows.layouts, boundary, rows.parts)
    return StageBuffers(
        received=receive_buffers(*stage, flights),
        inputs=_input_bytes(*stage),
        outputs=_kept_outputs(*stage, flights),
    )


def receive_buffers(
    software: Software, layouts: Layouts, boundary: Floats, parts: Floats, flights: Floats
) -> Floats:
    """Bytes that stages of torch.distributed.pipelining receive into, (layouts, columns).

    A stage has a buffer for every micro-batch of the step, in both directions. The input of a
    micro-batch in flight is counted with the blocks already. torch/distributed/pipelining/stage.py:
    _create_act_recv_info, _create_grad_recv_info.
    """
    if not software.allocator.pipeline_buffers:
        return np.zeros_like(flights)
    m, chunks = layouts.micro_batches[:, None], np.maximum(layouts.vpp, 1)[:, None]
    inputs = _input_bytes(software, layouts, boundary, parts) * np.maximum(m - flights, 0.0)
    gradients = boundary[:, None] * (chunks - (parts[:, :, -1] > 0)) * m
    return inputs + np.where(layouts.pp[:, None] > 1, gradients, 0.0)


def _input_bytes(software: Software, layouts: Layouts, boundary: Floats, parts: Floats) -> Floats:
    """What a rank's stages receive of one micro-batch into such buffers, (layouts, columns)."""
    buffered = (layouts.pp > 1) & software.allocator.pipeline_buffers
    chunks = np.maximum(layouts.vpp, 1)[:, None] - (parts[:, :, -2] > 0)
    return np.where(buffered, boundary, 0.0)[:, None] * chunks


def _kept_outputs(
    software: Software, layouts: Layouts, boundary: Floats, parts: Floats, flights: Floats
) -> Floats:
    """Bytes of outputs that its stages hold until their backward pass (stage.py: fwd_cache)."""
    if not software.allocator.pipeline_buffers:
        return np.zeros_like(flights)
    chunks = np.maximum(layouts.vpp, 1)[:, None] - (parts[:, :, -1] > 0)
    return np.where(layouts.pp[:, None] > 1, boundary[:, None] * chunks * flights, 0.0)


def communicators(cluster: Cluster, software: Software, layouts: Layouts) -> Floats:
    """Buffers of the communicators that a rank takes part in: one per degree above 1, and more."""
    replicas = layouts.dp * layouts.cp
    degrees = (layouts.tp, layouts.cp, layouts.pp, replicas, layouts.ep, layouts.etp)
    allocator = software.allocator
    count = np.where(layouts.world > 1, float(allocator.communicators), 0.0)
    count = count + np.where(layouts.pp > 1, float(allocator.pipeline_communicators), 0.0)
    for degree in degrees:
        count = count + (degree > 1)
    return count * float(cluster.library.communicator_bytes)
