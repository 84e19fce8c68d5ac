"""The weight matrices that one rank holds: what optimizers, adapters and quantisation go by.

Shapes are those of separate matrices (queries, keys and values apart, gate and up apart), as
checkpoints hold them and as optimizers that treat a matrix as a whole see them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.operators.operations import padded_vocabulary
from simulator.software.profile import Kernels
from simulator.workload.architecture import MLP, Architecture, Attention, MoE

__all__ = ["NO_LINEARS", "Matrix", "weight_matrices"]


NO_LINEARS = ("router", "convolution", "filter")
"""Matrices of blocks that no linear layer of the framework holds: kept in 16 bit where those are
quantised, without copies of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """`count` equal matrices of one part; sizes are arrays over the layout keys."""

    name: str
    """q, k, v, o, q_down, q_up, kv_down, kv_up, filter, gate, up, down, router, join, convolution,
    table, positions, projection, task; linear in a traced module."""
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
    What ``cost/operators/parameters.py`` counts beyond these are norms, biases and small
    embeddings.
    """
    tp, pp, ep, etp = (np.asarray(x, dtype=float) for x in (tp, pp, ep, etp))
    found: list[Matrix] = []
    for part, kind in enumerate(arch.blocks):
        if kind.traced is not None:
            found += [
                Matrix(name="linear", part=part, rows=g.n.fixed, columns=g.k.fixed)
                for g in kind.traced.gemms
                if g.weights
            ]
            continue
        width = kind.width or arch.hidden
        shapes = _attention(kind.attention, width, tp)
        if kind.cross_attention is not None:
            shapes += _attention(kind.cross_attention, width, tp)
        if isinstance(kind.mlp, MLP):
            shapes += _feed_forward(kind.mlp, width, kind.mlp.ffn_hidden / tp)
        else:
            shapes.append(("router", kind.mlp.experts, width))
            if kind.mlp.shared_ffn_hidden:
                shapes += _feed_forward(kind.mlp, width, kind.mlp.shared_ffn_hidden / tp)
        if kind.predicts_ahead or kind.merges_patches:
            shapes.append(("join", width / tp, 2 * width))
        if kind.convolution:
            seen = kind.convolution * (width // kind.convolution_groups)
            shapes.append(("convolution", width, seen))
        found += [Matrix(name=n, part=part, rows=r, columns=c) for n, r, c in shapes]
        if isinstance(kind.mlp, MoE):
            count = kind.mlp.experts / ep
            found += [
                Matrix(name=n, part=part, rows=r, columns=c, count=count, routed=True)
                for n, r, c in _feed_forward(kind.mlp, width, kind.mlp.ffn_hidden / etp)
            ]
    rows = padded_vocabulary(arch.vocabulary, tp, kernels) / tp
    last = len(arch.blocks)
    found.append(Matrix(name="table", part=last, rows=rows, columns=arch.table_columns))
    if arch.position == "learned":
        found.append(
            Matrix(name="positions", part=last, rows=arch.max_positions, columns=arch.hidden)
        )
    own = np.where(arch.tied_embeddings & (pp == 1), 0.0, 1.0) * (arch.output_rows > 0)
    columns = arch.table_columns
    found.append(Matrix(name="table", part=last + 1, rows=rows, columns=columns, count=own))
    if arch.table_width:
        found += [
            Matrix(name="projection", part=last, rows=arch.hidden, columns=columns),
            Matrix(
                name="projection",
                part=last + 1,
                rows=columns,
                columns=arch.hidden,
                count=float(arch.output_rows > 0),
            ),
        ]
    if arch.tasks is not None:
        found += [
            Matrix(name="task", part=last + 1, rows=r, columns=c, count=float(n))
            for _, r, c, n in arch.tasks.products(arch.last_width or arch.hidden)
        ]
    return found


def _attention(att: Attention, hidden: int, tp: Floats) -> list[tuple[str, Any, Any]]:
    """(name, outputs, inputs) of the projections; latent down-projections are on every rank."""
    heads = att.heads / tp
    out = ("o", hidden, heads * att.value_dim)
    if att.is_mla:
        nope = att.head_dim - att.rope_head_dim
        rank = att.q_lora_rank
        query = (
            [("q_down", rank, hidden), ("q_up", heads * att.head_dim, rank)]
            if rank
            else [("q", heads * att.head_dim, hidden)]
        )
        down = ("kv_down", att.kv_lora_rank + att.rope_head_dim, hidden)
        return [*query, down, ("kv_up", heads * (nope + att.value_dim), att.kv_lora_rank), out]
    kv = np.maximum(att.kv_heads / tp, 1.0)
    half = hidden // 2
    filters = [("filter", half, 2 * hidden), ("filter", hidden, 2 * half)] if att.filtered else []
    return [
        *filters,
        ("q", heads * att.head_dim, hidden),
        ("k", kv * att.head_dim, hidden),
        ("v", kv * att.value_dim, hidden),
        out,
    ]


def _feed_forward(mlp: MLP | MoE, hidden: int, width: Any) -> list[tuple[str, Any, Any]]:
    """(name, outputs, inputs) of a feed-forward module of this width on one rank."""
    gate = [("gate", width, hidden)] if mlp.gated else []
    return [*gate, ("up", width, hidden), ("down", hidden, width)]
