"""Biases of a block's linear layers: kernels that add them, and sums over tokens back."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.operators.mlp import fuses_activation
from simulator.cost.operators.operations import Ranks, Stream, element_bytes
from simulator.cost.operators.roles import GemmRole, StreamRole
from simulator.software.kernels import Kernels
from simulator.workload.architecture import MLP, Block
from simulator.workload.recipe import Recipe


def linear_biases(
    kind: Block, hidden: int, ranks: Ranks, recipe: Recipe, kernels: Kernels
) -> list[Stream]:
    """List what biases of a block's dense linears cost beside the products.

    Forward, a kernel that adds the bias reads and writes the output, unless the product does it or
    a fused kernel behind it; backward, the gradient is read once more and summed over tokens
    (NVIDIA/Megatron-LM megatron/core/tensor_parallel/layers.py; torch.nn.functional.linear).
    Transformer Engine has both in its products and casts. Biases of routed experts are listed with
    them; those of shared experts, of cross attention and behind the last block are not listed.
    """
    att, size = kind.attention, element_bytes(recipe)
    tokens, own = ranks.tokens(recipe), ranks.own_tokens(recipe)
    streams: list[Stream] = []
    behind = "bias_dropout_add" in kernels.fused
    if att is not None and att.qkv_bias and not att.is_mla:
        kv_heads = np.maximum(att.kv_heads / ranks.tp, 1.0)
        keys = kv_heads * (att.head_dim * att.key_bias + att.value_dim)
        queries = att.heads / ranks.tp * att.head_dim * (1 + att.output_gate)
        wide = tokens * (queries + keys)
        streams.append(_bias("qkv", GemmRole.QUERY_KEY_VALUE, wide, size, kernels))
    if att is not None and att.output_bias:
        streams.append(
            _bias("proj", GemmRole.ATTENTION_OUTPUT, own * hidden, size, kernels, added=behind)
        )
    if isinstance(kind.mlp, MLP) and kind.mlp.bias:
        wide = (2 if kind.mlp.gated else 1) * kind.mlp.ffn_hidden / ranks.tp
        active = fuses_activation(kernels, kind.mlp.gated, kind.mlp.activation)
        streams.append(
            _bias("fc1", GemmRole.FC1, tokens * wide, size, kernels, added=active, module="mlp")
        )
        streams.append(
            _bias("fc2", GemmRole.FC2, own * hidden, size, kernels, added=behind, module="mlp")
        )
    return streams


def _bias(
    name: str,
    product: GemmRole,
    elements: Any,
    size: float,
    kernels: Kernels,
    *,
    added: bool = False,
    module: str = "",
) -> Stream:
    """One linear's bias; `added` by a kernel that is listed anyway."""
    adds = 0.0 if added or "linear_bias" in kernels.fused else 1.0
    sums = 0.0 if "bias_gradients" in kernels.fused else 1.0
    return Stream(
        name=f"{name} bias",
        role=StreamRole.BIAS,
        product=product,
        kind="elementwise",
        forward_bytes=adds * 2.0 * size * elements,
        backward_bytes=sums * size * elements,
        calls=adds,
        backward_calls=sums,
        module=module,
        for_weights=True,
    )
