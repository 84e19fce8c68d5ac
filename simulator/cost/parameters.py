"""Parameters that one rank holds of each part of the model, by tensor and expert parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.operations import padded_vocabulary
from simulator.software import Kernels
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE

__all__ = ["expert_parameters", "model_flop_per_step", "rank_parameters"]

Floats = NDArray[np.float64]


def rank_parameters(arch: Architecture, *, tp: Any, pp: Any, kernels: Kernels) -> Floats:
    """Count the non-expert parameters of each part on one rank, shape (keys, parts).

    Parts are the block kinds, the embedding and the head. Norms, routers and biases of
    row-parallel linears are held by every tensor-parallel rank; key/value heads are repeated where
    tp exceeds their number. A tied head on another stage than the embedding holds its own copy.
    """
    tp, pp = np.broadcast_arrays(np.asarray(tp, dtype=float), np.asarray(pp, dtype=float))
    blocks = [_block(kind, arch.hidden, tp) for kind in arch.blocks]
    rows = padded_vocabulary(arch.vocabulary, tp, kernels) / tp
    positions = arch.max_positions * arch.hidden if arch.position == "learned" else 0
    embedding = rows * arch.hidden + positions
    norm = arch.hidden * (2 if arch.final_norm == "layer" else 1)
    own_table = np.where(arch.tied_embeddings & (pp == 1), 0.0, rows * arch.hidden)
    return np.stack([*blocks, embedding, norm + own_table], axis=-1)


def expert_parameters(arch: Architecture, *, ep: Any, etp: Any) -> Floats:
    """Count the routed-expert parameters of each part on one rank, shape (keys, parts)."""
    ranks = np.asarray(ep, dtype=float) * np.asarray(etp, dtype=float)
    none = np.zeros_like(ranks)
    parts = [none + _routed(kind.mlp, arch.hidden) / ranks for kind in arch.blocks]
    return np.stack([*parts, none, none], axis=-1)


def _routed(mlp: MLP | MoE, hidden: int) -> float:
    if isinstance(mlp, MLP):
        return 0.0
    return float(mlp.experts * (3 if mlp.gated else 2) * hidden * mlp.ffn_hidden)


def _block(kind: Block, hidden: int, tp: Floats) -> Floats:
    norms = kind.norm_vectors * hidden * (2 if kind.norm == "layer" else 1)
    joined = kind.predicts_ahead * 2 * hidden * hidden / tp
    return norms + joined + _attention(kind.attention, hidden, tp) + _dense(kind.mlp, hidden, tp)


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
    return np.asarray(hidden * (query + 2 * kv) + query * hidden + biases)


def _dense(mlp: MLP | MoE, hidden: int, tp: Floats) -> Floats:
    if isinstance(mlp, MoE):
        shared = (3 if mlp.gated else 2) * hidden * mlp.shared_ffn_hidden / tp
        return np.asarray(shared + hidden * mlp.experts)
    wide = 2 if mlp.gated else 1
    weights = (wide + 1) * hidden * mlp.ffn_hidden / tp
    return np.asarray(weights + mlp.bias * (wide * mlp.ffn_hidden / tp + hidden))


def model_flop_per_step(arch: Architecture, *, tokens: float, sequence_length: int) -> float:
    """Model FLOPs of one optimizer step, the convention behind MFU.

    Three times the forward pass (Chowdhery et al. 2022, appendix B): two FLOPs per token and
    weight of every matrix multiplication, output head included and embedding look-up not;
    attention causal, i.e. half of the full score matrix. Recomputation does not count.
    """
    per_token = 2.0 * arch.vocabulary * arch.hidden
    for index in arch.layer_kinds:
        kind = arch.blocks[index]
        att = kind.attention
        matrices = kind.active_parameters(arch.hidden) - _vectors(kind, arch.hidden)
        span = min(att.window or sequence_length, sequence_length)
        pairs = span - span * span / (2.0 * sequence_length)
        per_token += 2.0 * matrices + 2.0 * pairs * att.heads * (att.head_dim + att.value_dim)
        per_token += 2.0 * kind.predicts_ahead * arch.vocabulary * arch.hidden
    return 3.0 * tokens * per_token


def _vectors(kind: Block, hidden: int) -> int:
    """Parameters of a block that take no matrix product: norms and biases."""
    att = kind.attention
    vectors = (
        kind.norm_vectors * hidden * (2 if kind.norm == "layer" else 1)
        + att.qk_norm * 2 * att.head_dim
    )
    vectors += (
        att.qkv_bias * (att.heads + 2 * att.kv_heads) * att.head_dim + att.output_bias * hidden
    )
    if att.is_mla:
        vectors += att.q_lora_rank + att.kv_lora_rank
    if isinstance(kind.mlp, MLP) and kind.mlp.bias:
        vectors += (2 if kind.mlp.gated else 1) * kind.mlp.ffn_hidden + hidden
    return vectors
