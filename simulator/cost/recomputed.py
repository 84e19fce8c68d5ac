"""What recomputation of whole blocks leaves out, and what blocks run again in any case.

`torch.utils.checkpoint` without re-entry counts the tensors that a block kept and, since PyTorch
2.1, leaves the block as soon as the last of them is there (`set_checkpoint_early_stop`); a compiler
finds the same by removing dead code. The last tensor of a block that ends in a dense MLP is the
input of its last linear, so that this product, the reduction of its output over tp and the residual
sum are not repeated. With dropout behind it the mask has to be drawn again, and the product with
it; the outputs of experts are read again to weight them. Checkpoints with re-entry (Megatron,
DeepSpeed, Transformer Engine) run to the end.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.operations import Operators, Stream
from simulator.software import Kernels

__all__ = ["left_out", "rerun_norms"]

_REDUCTIONS = ("reduce_scatter", "all_reduce")


def left_out(ops: Operators, kernels: Kernels) -> Operators:
    """Operators of a part's forward pass that recomputation of all of it does not add."""
    rest = Operators()
    if kernels.recompute_stops_early and ops.last_linear:
        rest.gemms = [g for g in ops.gemms if g.name == ops.last_linear]
        rest.streams = [s for s in ops.streams if s.name == "mlp residual"]
        rest.collectives = [
            c
            for c in ops.collectives
            if not c.backward and c.module == "mlp" and c.operation in _REDUCTIONS
        ]
    if kernels.reruns_norms:  # once, not twice
        rest.streams += [s for s in ops.streams if _is_rerun(s)]
    return rest


def rerun_norms(ops: Operators) -> None:
    """A block's norms, and the sum that the second one reads, run again in its backward pass."""
    ops.streams += [
        replace(
            s,
            name=f"{s.name} again",
            module="",
            forward_bytes=0.0 * s.forward_bytes,
            calls=0.0,
            backward_bytes=s.forward_bytes,
            backward_calls=s.calls,
        )
        for s in ops.streams
        if _is_rerun(s)
    ]


def _is_rerun(stream: Stream) -> bool:
    return stream.module == "norm" or stream.name == "attention residual"
