"""Compressed stashes: tensors that wait for the backward pass in fewer bytes per element.

Gist (Jain et al., ISCA 2018, doi 10.1109/ISCA.2018.00070) encodes a stash behind its last use of
the forward pass and decodes it in front of its first use of the backward pass: one bit for what
only masks a gradient, sparse storage of rectified outputs, 16 or 8 bit for the rest. The forward
pass computes with the whole values. Megatron-Core's activation_func_fp8_input_store does the third
for the input of the activation function.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.cost.operators.operations import Operators, Saved, Stream, element_bytes
from simulator.cost.operators.roles import SavedRole
from simulator.workload.recipe import Recipe

_CLASSES = {
    SavedRole.MASK: "mask",
    SavedRole.ACTIVATION_INPUT: "activation_input",
    SavedRole.ACTIVATED_GATE: "activation_input",
    SavedRole.ACTIVATION_OUTPUT: "activation_output",
    SavedRole.RECTIFIED_OUTPUT: "activation_output",
    SavedRole.NORM_INPUT: "norm_input",
    SavedRole.LINEAR_INPUT: "linear_input",
    SavedRole.ROUTED_INPUT: "linear_input",
    SavedRole.MERGED_INPUT: "linear_input",
    SavedRole.LATENT_NORMED: "linear_input",
    SavedRole.QUERIES: "attention",
    SavedRole.KEYS: "attention",
    SavedRole.VALUES: "attention",
    SavedRole.ATTENTION_WEIGHTS: "attention",
    SavedRole.ATTENTION_OUTPUT: "attention",
    SavedRole.CROSS_QUERIES: "attention",
    SavedRole.CROSS_KEYS_AND_VALUES: "attention",
    SavedRole.CROSS_ATTENTION_OUTPUT: "attention",
}
"""Field of ``StashBytes`` that kept tensors belong to; others keep their type."""

_TOGETHER = ("attention",)
"""Classes whose tensors are decoded all at once: attention's backward pass reads them together."""


def stash_class(role: SavedRole) -> str:
    """Field of ``StashBytes`` for a kept tensor; empty where it is never compressed.

    Examples
    --------
    >>> stash_class(SavedRole.ACTIVATION_INPUT), stash_class(SavedRole.LOG_SUM_EXP)
    ('activation_input', '')
    """
    return _CLASSES.get(role, "")


def compress_stashes(ops: Operators, recipe: Recipe) -> Operators:
    """Shrink what is kept, and add the kernels that encode and decode it.

    A kernel reads one form and writes the other. What is decoded stands beside the block's other
    temporaries: the tensors of attention together, any other one alone.
    """
    if recipe.stash_bytes is None:
        return ops
    kept: list[Saved] = []
    streams: list[Stream] = []
    decoded: dict[str, Any] = {}
    for tensor in ops.saved:
        name, size = stash_class(tensor.role), tensor.size_bytes
        per = getattr(recipe.stash_bytes, name) if name else None
        whole = 1.0 if name == "mask" else element_bytes(recipe)
        if per is None or per >= whole:
            kept.append(tensor)
            continue
        small = size * (per / whole)
        kept.append(replace(tensor, size_bytes=small))
        moved = size + small
        streams.append(
            Stream(
                name=f"stash of {tensor.name}",
                kind="elementwise",
                forward_bytes=moved,
                backward_bytes=moved,
                module=tensor.module,
                stashes=tensor.role,
            )
        )
        group = name if name in _TOGETHER else tensor.name
        decoded[group] = decoded.get(group, 0.0) + size
    if not decoded:
        return ops
    largest: Any = 0.0
    for size in decoded.values():
        largest = np.maximum(largest, size)
    return replace(
        ops,
        saved=kept,
        streams=[*ops.streams, *streams],
        transient_bytes=ops.transient_bytes + largest,
    )
