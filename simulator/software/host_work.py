"""What a software's host does for every kernel, block and step, and for the input of each."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from simulator.files import Figure, record
from simulator.software.mechanisms import DistributedDispatch

Launched = Literal[
    "attention",
    "mlp",
    "shared_experts",
    "bias",
    "rotary",
    "rotary_apart",
    "head_norms",
    "latent",
    "unfused_attention",
    "context_step",
    "quantised",
    "delayed_scaling",
    "deterministic",
    "routed",
    "exchanged",
    "auxiliary_loss",
    "grouped_experts",
    "expert",
    "biased_expert",
]
"""What a block has, for each of which the host launches kernels: attention and a dense MLP with
their norms and residuals; shared experts; a linear with a bias; rotation of queries and keys in one
kernel, or in pieces; norms on queries and keys; what latent attention adds; scores in kernels of
their own; each further block of keys under context parallelism; products of fewer than 16 bit, with
scales of this step or the last ones'; kernels that runs need to come out alike. Of routed experts:
router and permutation; what taking tokens to other ranks adds; the loss that balances them; what
surrounds grouped products; each expert of the rank where they run one by one; biases of each."""


@record
class Launches:
    """What the host launches for one thing that a block has."""

    forward: Figure
    """Kernels of its forward pass."""
    backward: Figure | None = None
    """Kernels of its backward pass; None: twice as many, one for each gradient."""
    modules: Figure = Figure(0.0)
    """Modules of Python that its forward pass calls."""


@record
class HostWork:
    """What the host needs to enqueue a block: a block never takes less."""

    seconds_per_kernel: Figure
    """Host time to enqueue one kernel through the framework, with its share of views and of the
    graph of autograd."""
    seconds_per_module: Figure = Figure(0.0)
    """Host time of one call of a module in the forward pass."""
    seconds_per_collective: Figure = Figure(0.0)
    """Host time to enqueue one collective of a block."""
    seconds_per_expert_product: Figure = Figure(0.0)
    """Host time to enqueue one expert's share of a grouped product, where the library calls a
    product for each expert of the rank (Transformer Engine's cuBLAS on several streams)."""
    seconds_per_exchange: dict[str, Figure] = field(default_factory=dict)
    """Host time of taking tokens to experts of other ranks and back, once a block and micro-batch:
    split sizes that come to the host, the wait for them. By how they get there: alltoall,
    allgather, deepep, hybridep."""
    launches: dict[Launched, Launches] = field(default_factory=dict)
    """Kernels and modules of a block, by what it has."""
    deterministic: bool = False
    """Runs come out alike: torch fills what is new before it is used."""
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


@record
class InputFetch:
    """Copies of a micro-batch's tokens and labels to the device, whole sequences on every rank.

    Context-parallel ranks take their share of the sequence on the device.
    """

    token_bytes: Figure = Figure(8.0, "datasheet", "torch numbers tokens in 64 bit")
    """For every token, to the stage with the embedding: its number, where sent its position."""
    label_bytes: Figure = Figure(8.0, "datasheet", "torch numbers tokens in 64 bit")
    """For every token, to the stage with the loss: its label, where sent its weight in the loss."""
    shared_bytes: Figure = Figure(0.0)
    """For every token, to both of these stages; once where one stage is both."""
    mask_bytes: Figure = Figure(0.0)
    """For every pair of tokens of a sequence, to both: an attention mask that the loader makes."""
    broadcast: bool = False
    """One rank of every tensor-parallel group copies and broadcasts to the others; otherwise every
    rank copies for itself."""
    prefetched: bool = False
    """The copy runs beside the passes of the micro-batch before, on a stream of its own; otherwise
    the forward pass waits for it: because the host does, or because a copy that the host does not
    wait for is issued on the stream of the compute."""
