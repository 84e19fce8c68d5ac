"""Biases of routed experts: what they cost beside products that add them, or do not."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.operators.operations import Operators, Ranks, Stream
from simulator.layout.layouts import DISPATCHERS
from simulator.workload.architecture import MoE

_DEEPEP = DISPATCHERS.index("deepep")


def expert_bias_gradients(ops: Operators, rows: Any) -> None:
    """What is left of biases of routed experts where their products add them.

    That of the second linear is times the routing weight, and a kernel sums the gradients of both
    (Transformer Engine 2.15, triton/grouped_dbias_dscales.py), which reads the outputs' gradient of
    `rows` bytes; those of the first linear come out of the data gradient's epilogue.
    """
    ops.streams.append(
        Stream(
            name="expert bias gradients",
            kind="elementwise",
            calls=0,
            forward_bytes=0.0,
            backward_bytes=rows,
            backward_calls=1,
            module="moe",
        )
    )


def expert_biases(ops: Operators, moe: MoE, ranks: Ranks, rows: Any, inner: Any) -> None:
    """What biases of routed experts cost beside the products, whose fused kernels have none.

    Megatron-Core's TEGroupedMLP adds the second linear's bias, times the routing weight, expert by
    expert (`_apply_bias`): a product, a sum, a concatenation; back, two products and their sums.
    DeepEP and HybridEP hand out weights in fp32, so that all of it is fp32 and cast to 16 bit after
    (`_DeepepManager.get_permuted_hidden_states_by_experts`: "DeepEP only supports float32 probs").
    A clamped gate (gpt-oss) is cut to its limits and put together again before the fused
    activation (`weighted_bias_quick_geglu_impl`). `rows` and `inner` are bytes of the experts'
    outputs and of their inner activations, in 16 bit.
    """
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
