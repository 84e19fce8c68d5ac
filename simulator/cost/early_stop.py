"""What full recomputation does not run again where it stops with the last tensor it has to rebuild.

`torch.utils.checkpoint` without re-entry counts the tensors that a block kept and, since PyTorch
2.1, leaves the block as soon as the last of them is there (`set_checkpoint_early_stop`); a compiler
finds the same by removing dead code. The last tensor of a block that ends in a dense MLP is the
input of its last linear, so that this product, the reduction of its output over tp and the residual
sum are not repeated. With dropout behind it the mask has to be drawn again, and the product with
it; the outputs of experts are read again to weight them. Checkpoints with re-entry (Megatron,
DeepSpeed, Transformer Engine) run to the end.
"""

from __future__ import annotations

from simulator.cost.operations import Operators
from simulator.software import Kernels

__all__ = ["after_last_saved"]

_REDUCTIONS = ("reduce_scatter", "all_reduce")


def after_last_saved(ops: Operators, kernels: Kernels) -> Operators:
    """Operators of a part's forward pass that recomputation of all of it leaves out."""
    last = ops.last_linear
    if not kernels.recompute_stops_early or not last:
        return Operators()
    return Operators(
        gemms=[g for g in ops.gemms if g.name == last],
        streams=[s for s in ops.streams if s.name == "mlp residual"],
        collectives=[
            c
            for c in ops.collectives
            if not c.backward and c.module == "mlp" and c.operation in _REDUCTIONS
        ],
    )
