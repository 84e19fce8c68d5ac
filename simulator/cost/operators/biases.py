"""Biases of linear layers and of routed experts: kernels that add them, sums over tokens back."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.operators.operations import ModuleOperators, Ranks, Stream, element_bytes
from simulator.cost.operators.roles import GemmRole, StreamRole
from simulator.layout.layouts import DISPATCHERS
from simulator.software.kernels import Kernels
from simulator.workload.architecture import MLP, Block, MoE
from simulator.workload.recipe import Recipe

_DEEPEP = DISPATCHERS.index("deepep")


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


def fuses_activation(
    kernels: Kernels, gated: bool, activation: str, *, weighted: bool = False
) -> bool:
    """Whether bias, activation and gate are one kernel, as they are for smooth activations.

    With weights of routing (`weighted`) gated ones alone are (Megatron-Core's TEGroupedMLP).
    """
    smooth = gated or (activation.startswith("gelu") and not weighted)
    return smooth and "bias_activation" in kernels.fused


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


def expert_bias_gradients(rows: Any) -> Stream:
    """What is left of biases of routed experts where their products add them.

    That of the second linear is times the routing weight, and a kernel sums the gradients of both
    (Transformer Engine 2.15, triton/grouped_dbias_dscales.py), which reads the outputs' gradient of
    `rows` bytes; those of the first linear come out of the data gradient's epilogue.
    """
    return Stream(
        name="expert bias gradients",
        kind="elementwise",
        calls=0,
        forward_bytes=0.0,
        backward_bytes=rows,
        backward_calls=1,
        module="moe",
    )


def expert_biases(moe: MoE, ranks: Ranks, rows: Any, inner: Any) -> ModuleOperators:
    """What biases of routed experts cost beside the products, whose fused kernels have none.

    Megatron-Core's TEGroupedMLP adds the second linear's bias, times the routing weight, expert by
    expert (`_apply_bias`): a product, a sum, a concatenation; back, two products and their sums.
    DeepEP and HybridEP hand out weights in fp32, so that all of it is fp32 and cast to 16 bit after
    (`_DeepepManager.get_permuted_hidden_states_by_experts`: "DeepEP only supports float32 probs").
    A clamped gate (gpt-oss) is cut to its limits and put together again before the fused
    activation (`weighted_bias_quick_geglu_impl`). `rows` and `inner` are bytes of the experts'
    outputs and of their inner activations, in 16 bit.
    """
    ops = ModuleOperators()
    wide = 2.0 if moe.gated else 1.0
    wide_weights = np.asarray(ranks.dispatcher) == _DEEPEP
    ops.biased_experts = moe.experts / ranks.ep
    bias_gradients = rows + wide * inner
    ops.streams.append(
        Stream(
            name="expert biases",
            kind="elementwise",
            calls=3,
            forward_bytes=np.where(wide_weights, 14.0, 6.0) * rows,
            backward_bytes=np.where(wide_weights, 20.0, 8.0) * rows + bias_gradients,
            module="moe",
        )
    )
    if moe.clamped:
        ops.streams.append(
            Stream(
                name="clamp",
                kind="elementwise",
                calls=2,
                forward_bytes=4.0 * wide * inner,
                backward_bytes=5.0 * wide * inner,
                module="moe+moe_act+mlp_act",
            )
        )
    return ops
