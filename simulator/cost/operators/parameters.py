"""Parameters that one rank holds of each part of the model, by tensor and expert parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.matrices import columns_on_rank, rows_on_rank
from simulator.cost.operators.operations import padded_vocabulary
from simulator.software.kernels import Kernels
from simulator.workload.architecture import Architecture, Block
from simulator.workload.weights import Weight, parameters


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
    return np.stack([*blocks, table + parameters(arch.embedding_weights), head], axis=-1)


def expert_parameters(arch: Architecture, *, ep: Any, etp: Any) -> Floats:
    """Count the routed-expert parameters of each part on one rank, shape (keys, parts)."""
    ep, etp = np.broadcast_arrays(np.asarray(ep, dtype=float), np.asarray(etp, dtype=float))
    none = np.zeros_like(ep)
    parts = [
        sum((_held(w, etp) / ep for w in kind.weights(arch.hidden) if w.active), start=none)
        for kind in arch.blocks
    ]
    return np.stack([*parts, none, none], axis=-1)


def _block(kind: Block, hidden: int, tp: Floats) -> Floats:
    """Parameters of one block on one of tp ranks, routed experts left out."""
    if kind.traced is not None:
        return np.full_like(tp, kind.traced.parameters)
    dense = (_held(w, tp) for w in kind.weights(hidden) if not w.active)
    return sum(dense, start=np.zeros_like(tp))


def _held(weight: Weight, ranks: Floats) -> Floats:
    """Parameters of a weight on one of `ranks` tensor-parallel ranks; every rank has whole ones."""
    inputs = columns_on_rank(weight, ranks) + weight.bias
    return np.asarray(weight.count * (rows_on_rank(weight, ranks) * inputs))
