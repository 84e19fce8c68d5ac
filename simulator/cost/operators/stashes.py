"""Compressed stashes: tensors that wait for the backward pass in fewer bytes per element.

Gist (Jain et al., ISCA 2018, doi 10.1109/ISCA.2018.00070) encodes a stash behind its last use of
the forward pass and decodes it in front of its first use of the backward pass: one bit for what
only masks a gradient, sparse storage of rectified outputs, 16 or 8 bit for the rest. The forward
pass computes with the whole values. Megatron-Core's activation_func_fp8_input_store does the third
for the input of the activation function.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from simulator.cost.operators.operations import Operators, Stream, element_bytes
from simulator.workload.recipe import Recipe

__all__ = ["compress_stashes", "stash_class"]

_CLASSES = (
    ("mask", re.compile(r"dropout mask$")),
    ("activation_input", re.compile(r"fc1 output$|fc gate$")),
    ("activation_output", re.compile(r"activation output$")),
    ("norm_input", re.compile(r"^([a-z]+ )?norm[0-9]?( of [a-z]+)? input$")),
    ("linear_input", re.compile(
        r"^(attention|mlp|moe|cross attention|merge|join) input$|^permuted tokens$|, normed$")),
    ("attention", re.compile(
        r"^(cross )?(queries|keys|values|keys and values|attention output|attention weights)$")),
)  # fmt: skip
"""Which saved tensors belong to which field of ``StashBytes``; the others keep their type."""

_TOGETHER = ("attention",)
"""Classes whose tensors are decoded all at once: attention's backward pass reads them together."""


def stash_class(tensor: str) -> str:
    """Class of a saved tensor by its name; empty where it is never compressed.

    Examples
    --------
    >>> stash_class("fc1 output"), stash_class("norm1 input"), stash_class("log-sum-exp")
    ('activation_input', 'norm_input', '')
    """
    return next((name for name, words in _CLASSES if words.search(tensor)), "")


def compress_stashes(ops: Operators, recipe: Recipe) -> None:
    """Shrink what is kept, and add the kernels that encode and decode it.

    A kernel reads one form and writes the other. What is decoded stands beside the block's other
    temporaries: the tensors of attention together, any other one alone.
    """
    if recipe.stash_bytes is None:
        return
    kept: list[tuple[str, str, Any]] = []
    decoded: dict[str, Any] = {}
    for tensor, module, size in ops.saved:
        name = stash_class(tensor)
        per = getattr(recipe.stash_bytes, name) if name else None
        whole = 1.0 if name == "mask" else element_bytes(recipe)
        if per is None or per >= whole:
            kept.append((tensor, module, size))
            continue
        small = size * (per / whole)
        kept.append((tensor, module, small))
        moved = size + small
        ops.streams.append(
            Stream(
                name=f"stash of {tensor}",
                kind="elementwise",
                forward_bytes=moved,
                backward_bytes=moved,
                module=module,
                stash=True,
            )
        )
        group = name if name in _TOGETHER else tensor
        decoded[group] = decoded.get(group, 0.0) + size
    ops.saved = kept
    if decoded:
        largest: Any = 0.0
        for size in decoded.values():
            largest = np.maximum(largest, size)
        ops.transient_bytes = ops.transient_bytes + largest
