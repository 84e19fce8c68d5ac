"""What recomputation of whole blocks leaves out, and what blocks run again in any case.

`torch.utils.checkpoint` without re-entry counts the tensors that a block kept and, since PyTorch
2.1, leaves the block as soon as the last of them is there (`set_checkpoint_early_stop`); a compiler
finds the same by removing dead code, and casts for a dead product with it. The last tensor of a
block that ends in a dense MLP is the input of its last linear, so that this product, the reduction
of its output over tp and the residual sum are not repeated. With dropout behind it the mask has to
be drawn again, and the product with it; a norm behind it reads its output, an adapter its input;
the outputs of experts are read again to weight them. Linears that are functions of their own to
autograd (fp8) save what they keep after they have run. Checkpoints with re-entry (Megatron,
DeepSpeed, Transformer Engine) run to the end.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.operators.operations import Operators, Stream
from simulator.cost.operators.roles import StreamRole
from simulator.software.kernels import Kernels

_REDUCTIONS = ("reduce_scatter", "all_reduce")
_BEFORE = (
    *(StreamRole.CAST, StreamRole.WEIGHT_CAST, StreamRole.SCALES),
    StreamRole.DEQUANTISATION,
)
"""Kernels in front of a linear that serve its forward product alone."""


def left_out(ops: Operators, kernels: Kernels, *, quantised: bool) -> Operators:
    """Operators of a part's forward pass that recomputation of all of it does not add.

    Parameters
    ----------
    ops : Operators
        Of the whole part.
    kernels : Kernels
        Where the software's recomputation stops.
    quantised : bool
        Whether products take fewer than 16 bit.
    """
    rest, stops = Operators(), kernels.recompute_stops_early
    last = ops.last_linear
    if last is not None and stops != "never":
        compiled = stops == "always"
        serving = _BEFORE if compiled else ()
        if compiled or not quantised:
            serving = (*serving, StreamRole.BIAS)
            rest.gemms = [g for g in ops.gemms if g.role is last]
            rest.collectives = [
                c
                for c in ops.collectives
                if not c.backward and c.module == "mlp" and c.operation in _REDUCTIONS
            ]
        rest.streams = [
            s
            for s in ops.streams
            if s.role is StreamRole.MLP_RESIDUAL or (s.product is last and s.role in serving)
        ]
    # what the backward pass repeats in any case is repeated once, not twice
    rest.streams += [
        replace(s, forward_bytes=s.backward_bytes, calls=s.calls_back)
        for s in ops.streams
        if s.rerun and ops.is_block
    ]
    return rest


def rerun_norms(streams: list[Stream]) -> list[Stream]:
    """A block's norms, and the sum that the second one reads, run again in its backward pass."""
    return [
        replace(
            s,
            name=f"{s.name} again",
            role=StreamRole.OTHER,
            module="",
            forward_bytes=0.0 * s.forward_bytes,
            calls=0.0,
            backward_bytes=s.forward_bytes,
            backward_calls=s.calls,
            rerun=True,
        )
        for s in streams
        if (s.module == "norm" and not s.for_weights) or s.role is StreamRole.ATTENTION_RESIDUAL
    ]
