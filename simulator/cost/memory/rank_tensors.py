"""What a pipeline rank holds, tensor by tensor: the sizes that a trace of its memory plays with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.cost.memory.buffers import dummy_copies, receive_buffers, workspace
from simulator.cost.operators.block_operators import model_parts
from simulator.cost.operators.ends import loss_is_fused
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.states.state_bytes import kernels_of, part_states
from simulator.cost.tables import Priced, Selection
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import RECOMPUTE, Layouts
from simulator.layout.placement import place
from simulator.layout.stages import Stages, stages
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

_FULL, _SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One block, embedding or head on the rank: sizes of its tensors in bytes."""

    kept: list[float]
    """From the forward to the backward pass."""
    rebuilt: list[float]
    """Made by the forward pass, gone after it and made again in the backward pass."""
    passing: list[float]
    """Of the forward pass only."""
    transient: list[float]
    """Of the backward pass, all at once."""
    share: float
    """Of the rank's states."""
    gathered: float
    """Whole weights, where the rank keeps shards and gathers them for every pass."""
    reduced: float
    """Whole gradients in the type on the wire, where they are reduced block by block."""
    is_root: bool
    """Embedding or head."""
    away: bool = False
    """What it keeps waits in host memory."""


def stages_of(row: Layouts, workload: Workload) -> Stages:
    """The chunks of every pipeline rank of one layout."""
    arch = workload.architecture
    return stages(
        pp=row.pp,
        vpp=row.vpp,
        micro_batches=row.micro_batches,
        layer_kinds=arch.layer_kinds,
        kinds=len(arch.blocks),
        ahead=len(arch.layer_kinds) - arch.layers,
        schedule=row.schedule,
        splits=[row.splits[code] for code in row.stages.tolist()],
    )


def workspace_parts(rows: Selection, priced: Priced, column: int) -> list[float]:
    """What is there from the first step on, and each copy of the dummy gradients."""
    software = priced.software
    whole = workspace(rows, priced)
    dummy_bytes = 2.0 * float(priced.states.linear_shapes[rows.state_key[0], column])
    dummies = [dummy_bytes] * round(dummy_copies(software))
    return [float(whole[0, column]) - sum(dummies), *dummies]


def pipeline_buffers(rows: Selection, priced: Priced, column: int) -> list[float]:
    """Buffers that torch's pipelining receives into, for the whole run."""
    some = slice(column, column + 1)
    parts, flying = rows.parts[:, some], rows.in_flight[:, some]
    flights = np.max(flying[:, :, :-2] / np.maximum(parts[:, :, :-2], 1.0), axis=2)
    boundary_bytes = priced.blocks.boundary_bytes[rows.block_key]
    received = receive_buffers(
        priced.software, rows.layouts, boundary_bytes, parts, np.maximum(flights, 1.0)
    )
    count, rest = divmod(float(received[0, 0]), float(boundary_bytes[0]))
    return [float(boundary_bytes[0])] * int(count) + [rest]


def operators_of(
    row: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> list[Operators]:
    """The operators of every part on one rank."""
    ranks = Ranks.of_each(row, place(row, cluster.domain))
    either = cluster.accelerator.fp8_either_layout
    kernels = kernels_of(software.on(cluster.accelerator.generation), workload.recipe)
    return model_parts(workload, ranks, kernels, either_layout=either)


def chunk_parts(
    rows: Selection, priced: Priced, operators: list[Operators], column: int, held: Stages
) -> list[list[Part]]:
    """Parts of every chunk of one rank, each in the order of its forward pass.

    Blocks that full recomputation covers, and those that wait in host memory, are the first ones;
    several chunks have equal shares of them. torch's pipelining keeps the output of a chunk.
    """
    row = rows.layouts
    either = priced.cluster.accelerator.fp8_either_layout
    per_part = part_states(priced.workload, priced.software, row, either_layout=either)
    parameters = (per_part.parameters[0] + per_part.parameters[1])[0]
    whole = max(float((rows.parts[0, column] * parameters).sum()), 1.0)
    shards = per_part.shards_only and int(row.sharding[0]) > 0
    gathered = (per_part.gather[0] + per_part.gather[1])[0] * shards
    reduced = (per_part.reduce[0] + per_part.reduce[1])[0] * shards
    counts = _counts(held, int(rows.rank[0, column]))
    again = _dealt(rows.covered[0, column], counts)
    away = _dealt(rows.offloaded[0, column], counts)
    kinds = len(operators)
    keeps_output = priced.software.allocator.pipeline_buffers and int(row.pp[0]) > 1
    chunks = []
    for chunk, count in enumerate(counts):
        parts = []
        for kind in (kinds - 2, *range(kinds - 2), kinds - 1):
            for index in range(int(count[kind])):
                is_covered = bool(index < again[chunk, kind])
                kept, rebuilt = _kept(operators[kind], priced, rows, kind, is_covered)
                size = float(np.max(operators[kind].transient_bytes))
                passing: list[float] = []
                transient = [size / 3, size * 2 / 3]
                if kind == kinds - 2:
                    transient = [float(priced.states.embedding_gradient[rows.state_key[0], column])]
                arch = priced.workload.architecture
                if kind == kinds - 1 and arch.traced is None and arch.output_rows:
                    kept, passing, transient = _loss(kept, operators[kind], priced, row)
                parts.append(
                    Part(
                        kept=kept,
                        rebuilt=rebuilt,
                        passing=passing,
                        transient=transient,
                        share=float(parameters[kind]) / whole,
                        gathered=float(gathered[kind]),
                        reduced=float(reduced[kind]),
                        is_root=kind >= kinds - 2,
                        away=bool(index < away[chunk, kind]),
                    )
                )
        if parts and keeps_output and not count[-1]:
            parts[-1].kept.append(float(priced.blocks.boundary_bytes[rows.block_key[0]]))
        chunks.append(parts)
    return chunks


def _counts(held: Stages, rank: int) -> NDArray[np.int64]:
    """What every chunk of a rank holds, shape (chunks, parts)."""
    content = np.column_stack([held.blocks, held.embedding, held.head])
    some = np.flatnonzero(held.rank == rank)
    return np.asarray(content[some[np.argsort(held.chunk[some])]])


def _dealt(some: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Deal a number of blocks of each kind over chunks by how many they hold; whole blocks."""
    share = np.zeros(counts.shape[1])
    share[: len(some)] = some
    running = np.cumsum(counts, axis=0) * (share / np.maximum(counts.sum(axis=0), 1))
    return np.diff(np.round(running), axis=0, prepend=0.0)


def _kept(
    ops: Operators, priced: Priced, rows: Selection, kind: int, whole: bool
) -> tuple[list[float], list[float]]:
    """Tensors that a part keeps, and those that it rebuilds; `whole`: it is recomputed in full."""
    key = int(rows.block_key[0])
    mode = _FULL if whole else int(rows.layouts.recompute[0])
    saved = [float(np.max(x.size_bytes)) for x in ops.saved if np.max(x.size_bytes) > 0]
    if not ops.is_block or (mode == _FULL and not whole) or mode not in (_FULL, _SELECTIVE):
        casts = float(priced.states.cast_copies[rows.state_key[0], kind])
        return [casts, *saved] if casts else saved, []
    if mode == _FULL:
        return [float(np.max(ops.checkpoint_bytes))], saved
    share = float(priced.blocks.saved_bytes[_SELECTIVE, key, kind]) / max(sum(saved), 1.0)
    rest = max(1.0 - share, 0.0)
    return [share * size for size in saved], [rest * size for size in saved if rest]


def _loss(
    kept: list[float], ops: Operators, priced: Priced, row: Layouts
) -> tuple[list[float], list[float], list[float]]:
    """Kept, passing and transient tensors of the head, by how the software computes the loss.

    torch: 16-bit logits, which are freed once their fp32 copy is there, the log-softmax, which
    stays, and fp32 gradients of the backward pass. Else logits and their gradient in place.
    """
    kernels, last = priced.software.kernels, float(np.max(ops.transient_bytes))
    bytes_per_logit, fused = kernels.loss_bytes_per_logit, loss_is_fused(kernels, row.tp).all()
    if not bytes_per_logit or fused or priced.workload.recipe.loss_chunks > 1:
        return kept, [], [last]
    *others, logits = kept
    elements = logits / 6.0
    if int(row.tp[0]) > 1 and kernels.split_loss_bytes_per_logit is not None:
        bytes_per_logit = kernels.split_loss_bytes_per_logit
    return (
        [*others, 4.0 * elements],
        [2.0 * elements, 4.0 * elements],
        [4.0 * elements] * (round(float(bytes_per_logit) / 4) - 1),
    )
