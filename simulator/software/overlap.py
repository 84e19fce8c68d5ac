"""Which communication of a training framework has compute to hide behind."""

from __future__ import annotations

from typing import Literal

from simulator.files import Figure, record
from simulator.software.mechanisms import UserBuffers


@record
class Overlap:
    """Which communication has compute to hide behind; the window is that compute's time."""

    tensor: Literal["none", "backward", "userbuffers", "async"] = "none"
    """backward: the column-parallel linears' collectives of the backward pass run beside dgrad and
    wgrad. userbuffers: these, and all others of a block's linears beside pieces of the product that
    they feed or follow (Transformer Engine's tp_comm_overlap). async: these others alone, gathers
    and scatters in a ring of as many pieces as ranks (torch's asynchronous tensor parallelism)."""
    tensor_pipelined: Literal["userbuffers", "async"] = "userbuffers"
    """What `tensor` is where a run pipelines these collectives (the switch tp_comm_overlap)."""
    user_buffers: UserBuffers = UserBuffers()
    """How userbuffers does it."""
    gradient_reduce: bool = False
    """Bucketed gradient reduction runs beside the backward pass of the last micro-batch."""
    parameter_gather: bool = False
    """The sharded optimizer's gather of parameters runs beside the next forward pass."""
    sharded_prefetch: bool = False
    """zero3: the next layer's parameters are gathered beside the current layer's compute."""
    sharded_reduce: bool = True
    """zero3 that prefetches: a layer's gradients are reduced beside the next layer's backward pass,
    too."""
    pipeline_send: bool = False
    """Interleaved schedule: sends run beside the next chunk's compute."""
    expert: bool = False
    """Dispatch and combine of one micro-batch run beside the compute of another (Megatron-Core's
    combined 1F1B). Passes that have no other beside them show theirs: the first ones forward, as
    many at the end, and those that fill and drain the pipeline. One more block's activations are
    there."""
    hybridep_units: Figure = Figure(0.0)
    """Compute units that HybridEP holds while it runs beside compute; 0: as many as the collective
    library's reductions."""
    deepep_units: Figure = Figure(0.0)
    """Compute units that DeepEP holds while it runs beside compute; 0: as many as the collective
    library's reductions."""
    context_ring: bool = True
    """Exchange of keys and values runs beside attention that does not wait for it: all but the last
    block of a ring, the first block of torch's gather."""
