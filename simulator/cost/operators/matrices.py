"""Weights that one rank holds: how many, and as matrices, which optimizers and adapters go by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.operations import padded_vocabulary
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.workload.architecture import Architecture, Block
from simulator.workload.weights import Weight, parameters

NO_LINEARS = (
    *("router", "shared_gate", "convolution", "filter"),
    *("head_gate", "indexer", "latent", "beside", "mixer_side"),
)
"""Matrices of blocks that no linear layer of the framework holds: kept in 16 bit where those are
quantised, without copies of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """`count` equal matrices of one part; sizes are arrays over the layout keys."""

    name: str
    """q, k, v, o, q_down, q_up, kv_down, kv_up, output_gate, head_gate, indexer, mixer_in,
    mixer_side, mixer_out, filter, gate, up, down, latent, router, shared_gate, join, convolution,
    beside, table, positions, projection, task; linear in a traced module."""
    part: int
    """Block kind, then embedding, then head."""
    rows: Any
    """Outputs on one rank."""
    columns: Any
    """Inputs on one rank."""
    count: Any = 1.0
    """Matrices on one rank: the experts it holds, else 1."""
    routed: bool = False
    """Whether it belongs to the routed experts."""

    @property
    def parameters(self) -> Floats:
        """Parameters of all of them, over the keys."""
        return np.asarray(self.count * self.rows * self.columns, dtype=float)


def weight_matrices(
    arch: Architecture, *, tp: Any, pp: Any, ep: Any, etp: Any, kernels: Kernels
) -> list[Matrix]:
    """List the weight matrices of every part on one rank.

    Parameters
    ----------
    arch : Architecture
        The model.
    tp, pp, ep, etp : array_like
        Degrees, over the layout keys.
    kernels : Kernels
        How the vocabulary is padded.

    Notes
    -----
    What ``cost/operators/matrices.py`` counts beyond these are norms, biases, what no token is
    multiplied by, and small layers of embedding and head.
    """
    tp, pp, ep, etp = (np.asarray(x, dtype=float) for x in (tp, pp, ep, etp))
    return [
        *(
            _matrix(w, part, tp, ep, etp)
            for part, kind in enumerate(arch.blocks)
            for w in kind.weights(arch.hidden)
            if w.per == "token"
        ),
        *_ends(arch, tp, pp, kernels),
    ]


def rows_on_rank(weight: Weight, ranks: Any) -> Any:
    """Rows, and elements of the bias, that one of `ranks` tensor-parallel ranks holds."""
    if weight.cut != "rows":
        return weight.rows
    if not weight.pieces:
        return weight.rows / ranks
    return np.maximum(weight.pieces / ranks, 1.0) * (weight.rows // weight.pieces)


def columns_on_rank(weight: Weight, ranks: Any) -> Any:
    """Columns that one of `ranks` tensor-parallel ranks holds."""
    return weight.columns / ranks if weight.cut == "columns" else weight.columns


def _matrix(weight: Weight, part: int, tp: Floats, ep: Floats, etp: Floats) -> Matrix:
    """One weight as a rank holds it; routed experts are shared over ep, and each over etp."""
    ranks = etp if weight.active else tp
    return Matrix(
        name=weight.name,
        part=part,
        rows=rows_on_rank(weight, ranks),
        columns=columns_on_rank(weight, ranks),
        count=weight.count / ep if weight.active else float(weight.count),
        routed=weight.active > 0,
    )


def _ends(arch: Architecture, tp: Floats, pp: Floats, kernels: Kernels) -> list[Matrix]:
    """Tables, projections and heads of tasks."""
    first, last = len(arch.blocks), len(arch.blocks) + 1
    rows, columns = padded_vocabulary(arch.vocabulary, tp, kernels) / tp, arch.table_columns
    held = np.where(arch.tied_embeddings & (pp == 1), 0.0, 1.0) * (arch.output_rows > 0)
    listed = {
        part: [
            replace(_matrix(w, part, tp, tp, tp), name=w.name.split()[0])
            for w in weights
            if w.name.split()[0] in ("positions", "projection", "task")
        ]
        for part, weights in ((first, arch.embedding_weights), (last, arch.head_weights))
    }
    return [
        Matrix(name="table", part=first, rows=rows, columns=columns),
        *listed[first],
        Matrix(name="table", part=last, rows=rows, columns=columns, count=held),
        *listed[last],
    ]


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
