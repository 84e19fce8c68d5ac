"""Parameters that one rank holds of each part of the model, by tensor and expert parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.model_flop import model_flop_per_step
from simulator.cost.operators.operations import padded_vocabulary
from simulator.software.profile import Kernels
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.modules import filter_parameters

__all__ = ["expert_parameters", "model_flop_per_step", "rank_parameters"]


def rank_parameters(arch: Architecture, *, tp: Any, pp: Any, kernels: Kernels) -> Floats:
    """Count the non-expert parameters of each part on one rank, shape (keys, parts).

    Parts are the block kinds, the embedding and the head. Norms, routers and biases of
    row-parallel linears are held by every tensor-parallel rank; key/value heads are repeated where
    tp exceeds their number. A tied head on another stage than the embedding holds its own copy, and
    so does the first layer of a decoder; with two stages it shares that of the head. Layers that
    predict ahead look words up, too: the last stage has one more copy unless it is the head's
    (Megatron-Core, LanguageModule.setup_embeddings_and_output_layer).
    """
    tp, pp = np.broadcast_arrays(np.asarray(tp, dtype=float), np.asarray(pp, dtype=float))
    rows = padded_vocabulary(arch.vocabulary, tp, kernels) / tp
    table = rows * arch.table_columns
    blocks = [
        _block(kind, arch.hidden, tp) + kind.starts_decoder * np.where(pp > 2, table, 0.0)
        for kind in arch.blocks
    ]
    for part, kind in enumerate(arch.blocks):
        if kind.predicts_ahead and not arch.tied_embeddings:
            copy = np.where(pp > 1, table, 0.0)
            blocks[part] = blocks[part] + copy / arch.layer_kinds.count(part)
    own_table = np.where(arch.tied_embeddings & (pp == 1), 0.0, table)
    output = (own_table + arch.head_bias * rows) * (arch.output_rows > 0)
    head = arch.small_head_parameters + output
    return np.stack([*blocks, table + arch.small_embedding_parameters, head], axis=-1)


def expert_parameters(arch: Architecture, *, ep: Any, etp: Any) -> Floats:
    """Count the routed-expert parameters of each part on one rank, shape (keys, parts)."""
    ep, etp = np.broadcast_arrays(np.asarray(ep, dtype=float), np.asarray(etp, dtype=float))
    parts = [_routed(kind.mlp, kind.width or arch.hidden, ep, etp) for kind in arch.blocks]
    none = np.zeros_like(ep)
    return np.stack([*parts, none, none], axis=-1)


def _routed(mlp: MLP | MoE, hidden: int, ep: Floats, etp: Floats) -> Floats:
    """Routed experts of one rank; the biases of their last linears are not cut by etp."""
    if isinstance(mlp, MLP):
        return np.zeros_like(ep)
    whole = mlp.bias * hidden
    return np.asarray(mlp.experts / ep * ((mlp.expert_parameters(hidden) - whole) / etp + whole))


def _block(kind: Block, hidden: int, tp: Floats) -> Floats:
    if kind.traced is not None:
        return np.full_like(tp, kind.traced.parameters)
    width = kind.width or hidden
    total = kind.vector_parameters(width) + kind.joint_parameters(width) / tp
    total = total + kind.convolution_parameters(width)
    if kind.cross_attention is not None:
        total = total + _attention(kind.cross_attention, width, tp)
    return total + _attention(kind.attention, width, tp) + _dense(kind.mlp, width, tp)


def _attention(att: Attention, hidden: int, tp: Floats) -> Floats:
    if att.is_mla:
        heads, nope = att.heads / tp, att.head_dim - att.rope_head_dim
        down = hidden * (att.kv_lora_rank + att.rope_head_dim) + att.kv_lora_rank
        up = att.kv_lora_rank * heads * (nope + att.value_dim)
        rank = att.q_lora_rank
        query = (
            hidden * rank + rank + rank * heads * att.head_dim
            if rank
            else hidden * heads * att.head_dim
        )
        return np.asarray(query + down + up + heads * att.value_dim * hidden)
    query = att.heads * att.head_dim / tp
    kv = np.maximum(att.kv_heads / tp, 1.0) * att.head_dim
    biases = (
        att.qkv_bias * (query + 2 * kv) + att.output_bias * hidden + att.qk_norm * 2 * att.head_dim
    )
    extra = att.heads / tp * (att.sinks + att.relative_buckets) + filter_parameters(att, hidden)
    extra = extra + 2 * att.position_projections * (hidden + 1) * query
    return np.asarray(hidden * (query + 2 * kv) + query * hidden + biases + extra)


def _dense(mlp: MLP | MoE, hidden: int, tp: Floats) -> Floats:
    if isinstance(mlp, MoE):
        shared = (3 if mlp.gated else 2) * hidden * mlp.shared_ffn_hidden / tp
        return np.asarray(shared + (hidden + mlp.bias) * mlp.experts)
    wide = 2 if mlp.gated else 1
    weights = (wide + 1) * hidden * mlp.ffn_hidden / tp
    return np.asarray(weights + mlp.bias * (wide * mlp.ffn_hidden / tp + hidden))
