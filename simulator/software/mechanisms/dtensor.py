"""What torch's distributed tensors (DTensor) do differently under tensor parallelism."""

from __future__ import annotations

from simulator.files import Figure, record


@record
class DTensor:
    """torch's DTensor; as it stands, nothing of it."""

    keeps_gathered_inputs: bool = False
    """Sequence-parallel linears keep their gathered input for the backward pass (torch DTensor);
    otherwise they keep the shard and gather again (Megatron)."""
    whole_embedding_gradient: bool = False
    """Tensor-parallel ranks make the embedding's gradient for the whole vocabulary and then take
    their share of it (torch DTensor)."""
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
