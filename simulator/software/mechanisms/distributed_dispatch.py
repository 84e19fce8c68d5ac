"""What dispatching distributed tensors costs a host that waits for every kernel."""

from __future__ import annotations

from simulator.files import Figure, record


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
