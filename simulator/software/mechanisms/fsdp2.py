"""How torch's FSDP2 (fully_shard) gathers, reduces and holds what it shards."""

from __future__ import annotations

from simulator.files import Figure, record


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
