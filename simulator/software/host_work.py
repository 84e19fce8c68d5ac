"""What a software's host does for every kernel, block and step."""

from __future__ import annotations

from simulator.files import Figure, record
from simulator.software.mechanisms.distributed_dispatch import DistributedDispatch


@record
class HostWork:
    """What the host needs to enqueue a block: a block never takes less."""

    seconds_per_kernel: Figure
    """Host time to enqueue one kernel through the framework."""
    kernels_per_block: Figure
    """Kernels of one dense block's forward pass; its backward pass has twice as many."""
    kernels_per_mlp: Figure = Figure(0.0)
    """Those of them that a block has not whose every MLP is a routed expert."""
    kernels_per_fp8_block: Figure = Figure(0.0)
    """Kernels that casts, amax and scale updates add to a block in fp8."""
    kernels_per_moe_block: Figure = Figure(0.0)
    """Kernels of routing, dispatch, experts and combine."""
    kernels_per_padded_moe_block: Figure = Figure(0.0)
    """The same where every expert is padded to a capacity, so that no rank has to learn how many
    tokens arrive; 0: as many."""
    kernels_per_biased_expert: Figure = Figure(0.0)
    """The same for each expert of the rank whose linears have biases, where these are added expert
    by expert."""
    kernels_per_overlapped_block: Figure = Figure(0.0)
    """Kernels' worth of host work that hiding expert traffic behind another micro-batch adds to a
    block with experts, which is then run in pieces: streams, events, one call of autograd each."""
    seconds_per_expert_product: Figure = Figure(0.0)
    """Host time to enqueue one expert's share of a grouped product, where the library calls a
    product for each expert of the rank (Transformer Engine's cuBLAS on several streams)."""
    kernels_per_latent_block: Figure = Figure(0.0)
    """Kernels that latent attention (MLA) adds: its further projections, rotary positions on parts
    of the heads, and putting the parts together."""
    kernels_per_context_step: Figure = Figure(0.0)
    """Kernels that each further block of keys adds to attention under context parallelism."""
    seconds_per_checkpoint: Figure = Figure(0.0)
    """Host time that setting one module aside adds to a forward pass: states of the generators, a
    function of its own to autograd, hooks. 0: not known, and selective recomputation is priced by
    the device alone."""
    seconds_per_replay: Figure = Figure(0.0)
    """Host time that running it again adds to a backward pass, beside the launches of its kernels:
    states of the generators restored twice, a call of autograd within its call."""
    captured_fraction: Figure = Figure(0.0, "datasheet", "no CUDA graphs")
    """Share of a dense block's kernels that a captured graph launches at once."""
    captured_moe_fraction: Figure = Figure(0.0, "datasheet", "no CUDA graphs")
    """The same of the kernels that routing, dispatch and combine add."""
    time_variation: Figure = Figure(0.0)
    """Standard deviation of that time from one host to another, a share of it; 0: not known."""
    waits_for_kernels: bool = False
    """The host waits until every kernel has ended (CUDA_LAUNCH_BLOCKING=1, or a CPU that is host
    and device in one): launches add to the device's time instead of hiding behind it."""
    distributed: DistributedDispatch = DistributedDispatch()
    """What distributed tensors add, where it was measured."""
