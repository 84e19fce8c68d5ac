"""Memory of every pipeline rank of one layout: the same prices, a column per rank, none folded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.estimate import P90, memory_verdict
from simulator.cost.memory.buffers import dummy_copies
from simulator.cost.memory.moments import MOMENTS
from simulator.cost.memory.peak import (
    MEMORY_KINDS,
    kept_bytes,
    memory_spread,
    peak_memory,
    saved_mode,
    waiting_casts,
)
from simulator.cost.operators.matrices import expert_parameters, rank_parameters
from simulator.cost.passes import FULL
from simulator.cost.pricing import price
from simulator.cost.states.state_costs import STATE_KINDS
from simulator.cost.tables import Priced, Selection, select
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

Inputs = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Memory at the fullest moment of each pipeline rank; arrays over ranks 0, 1, 2, ..."""

    kinds_bytes: dict[str, Floats]
    """By kind, in the order of MEMORY_KINDS."""
    total_bytes: Floats
    spread: float
    """Standard deviation of the logarithm of the totals, which all ranks share; NaN: none given."""
    moment: NDArray[Any]
    """Index into MOMENTS: when the rank peaks."""
    inputs: list[dict[str, dict[str, float]]]
    """Of each rank: kind -> name of an input of its formula -> value."""

    @property
    def p10_bytes(self) -> Floats:
        """P10 of the totals; NaN without a spread."""
        return np.asarray(self.total_bytes * np.exp(-P90 * self.spread))

    @property
    def p90_bytes(self) -> Floats:
        """P90 of the totals; NaN without a spread."""
        return np.asarray(self.total_bytes * np.exp(P90 * self.spread))

    def verdict(self, usable_bytes: float) -> NDArray[Any]:
        """Index into VERDICTS of every rank."""
        spread = np.full(len(self.total_bytes), self.spread)
        return memory_verdict(self.total_bytes, spread, usable_bytes)


def rank_memory(
    layouts_row: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> RankMemory:
    """Break the memory of one layout down by pipeline rank and kind.

    Parameters
    ----------
    layouts_row : Layouts
        A feasible layout, a table with one row.
    workload, cluster, software
        What is trained, on what, with what.

    Notes
    -----
    The largest total is ``Estimate.memory_total_bytes`` of the same layout.
    """
    assert len(layouts_row) == 1, "one layout at a time"
    priced = price(layouts_row, workload, cluster, software, every_rank=True)
    rows = select(layouts_row, priced, slice(0, 1))
    held = peak_memory(rows, priced)
    order = np.argsort(rows.rank[0], kind="stable")
    kinds = held.kinds_bytes[:, 0, order]
    found = dict(zip(MEMORY_KINDS, kinds, strict=True))
    inputs = [
        memory_inputs(
            rows,
            priced,
            {kind: float(size[i]) for kind, size in found.items()},
            int(column),
            int(held.moment[0, column]),
        )
        for i, column in enumerate(order)
    ]
    return RankMemory(
        kinds_bytes=found,
        total_bytes=held.total_bytes[0, order],
        spread=float(memory_spread(layouts_row, software)[0]),
        moment=held.moment[0, order],
        inputs=inputs,
    )


def memory_inputs(
    rows: Selection, priced: Priced, kinds_bytes: dict[str, float], column: int, moment: int
) -> Inputs:
    """List what each kind of memory of one rank was computed from.

    Parameters
    ----------
    rows, priced : Selection, Priced
        One layout, priced.
    kinds_bytes : dict
        Bytes of the rank by kind.
    column, moment : int
        Column of the rank in `rows`, and index into MOMENTS at which it peaks.

    Returns
    -------
    dict
        Kind -> name of an input -> value; kinds that take no memory are left out.
    """
    layouts = rows.layouts
    inputs_of: Inputs = {
        kind: _states(rows, priced, kinds_bytes, kind, column) for kind in STATE_KINDS
    }
    inputs_of["activations"] = _activations(rows, priced, column, kinds_bytes["activations"])
    at_loss = MOMENTS[moment] == "loss and head"
    inputs_of["loss"] = _head(rows, priced, kinds_bytes["loss"], at_loss=at_loss)
    if MOMENTS[moment] == "backward of the embedding":
        inputs_of["temporaries"] = {"whole gradient of the embedding": kinds_bytes["temporaries"]}
    elif not at_loss:
        inputs_of["temporaries"] = _temporaries(rows, priced, column)
    allocator = priced.software.allocator.on(priced.cluster.accelerator.generation)
    library = priced.cluster.library
    dummies = dummy_copies(priced.software)
    linears = float(priced.states.linear_shapes[rows.state_key][0, column])
    inputs_of["workspace"] = {
        "library bytes": float(allocator.workspace_bytes),
        "copies of the linears' gradients": dummies,
        "parameters of the linears, each shape once": linears,
    }
    more = kinds_bytes["workspace"] - float(allocator.workspace_bytes)
    more -= 2.0 * dummies * linears
    if more > 0.5:
        inputs_of["workspace"]["workspaces of experts and head, and a kept input gradient"] = more
    communicator_bytes = float(library.communicator_bytes)
    inputs_of["communicators"] = {
        "communicators": round(kinds_bytes["communicators"] / communicator_bytes)
        if communicator_bytes
        else 0.0,
        "bytes of one": communicator_bytes,
    }
    outside = sum(kinds_bytes[kind] for kind in ("communicators", "fragmentation", "context"))
    allocated = sum(kinds_bytes.values()) - outside
    fraction = float(allocator.fragmentation_fraction)
    inputs_of["fragmentation"] = {
        "allocated bytes": allocated,
        "fraction": fraction,
        "idle bytes": max(kinds_bytes["fragmentation"] - allocated * fraction, 0.0),
    }
    inputs_of["context"] = {"bytes of a process": float(allocator.context_bytes)}
    assert len(layouts) == 1, "one layout at a time"
    return {kind: inputs for kind, inputs in inputs_of.items() if kinds_bytes[kind]}


def _states(
    rows: Selection, priced: Priced, kinds_bytes: dict[str, float], kind: str, column: int
) -> dict[str, float]:
    """Parameters of the rank and the bytes that this kind takes for each of them."""
    row, arch = rows.layouts, priced.workload.architecture
    parts = rows.parts[0, column]
    kernels = priced.software.kernels
    dense = float((parts * rank_parameters(arch, tp=row.tp, pp=row.pp, kernels=kernels)[0]).sum())
    routed = float((parts * expert_parameters(arch, ep=row.ep, etp=row.etp)[0]).sum())
    inputs = {"parameters of the rank": dense + routed}
    if routed:
        inputs["of them in experts"] = routed
    inputs["bytes per parameter"] = kinds_bytes[kind] / max(dense + routed, 1.0)
    if int(row.sharding[0]):
        inputs["shard group"] = float(row.shard_group[0])
    return inputs


def _activations(
    rows: Selection, priced: Priced, column: int, all_bytes: float
) -> dict[str, float]:
    """Blocks, micro-batches in flight and the mean bytes of one block and micro-batch.

    The peak may come when some of them are gone, and a pipeline may have buffers of its own.
    """
    some = slice(column, column + 1)
    parts, flying = rows.parts[:, some], rows.in_flight[:, some]
    held = 0.0
    for part in range(parts.shape[2] - 1):
        kept = kept_bytes(
            priced.blocks,
            saved_mode(rows.layouts),
            rows.block_key,
            part,
            flying=flying[:, :, part],
            count=parts[:, :, part],
            again=rows.covered[:, some, part],
        )
        held += float(kept[0, 0])
    blocks = float(parts[0, 0, :-2].sum())
    in_flight = float(flying[0, 0, :-2].sum())
    inputs = {
        "blocks": blocks,
        "micro-batches in flight": in_flight / max(blocks, 1.0),
        "bytes of a block and micro-batch": held / max(in_flight, 1.0),
    }
    recomputed = float(rows.covered[0, column].sum())
    away = float(rows.offloaded[0, column].sum())
    casts = float(waiting_casts(rows, priced)[0, column, :-1].sum())
    more = all_bytes - held - casts
    if casts:
        inputs["casts of weights"] = casts
    if abs(more) > 0.5 and not away:
        inputs["pipeline buffers, less blocks gone by then"] = more
    return inputs | {
        name: count
        for name, count in (("blocks recomputed", recomputed), ("blocks in host memory", away))
        if count
    }


def _head(rows: Selection, priced: Priced, held_bytes: float, *, at_loss: bool) -> dict[str, float]:
    """What the loss keeps, what the head's backward pass adds, and the logits that wait."""
    blocks, key = priced.blocks, rows.block_key
    inputs = {
        "bytes kept by head and loss": float(blocks.saved_bytes[0, key, -1][0]) * at_loss,
        "temporaries of the head": float(blocks.transient_bytes[key, -1][0]) * at_loss,
        "cast of its weights": float(priced.states.cast_copies[rows.state_key[0], -1]) * at_loss,
    }
    waiting = held_bytes - sum(inputs.values())
    if waiting > 0.5:
        inputs["bytes of micro-batches that wait for their backward pass"] = waiting
    return {name: size for name, size in inputs.items() if size}


def _temporaries(rows: Selection, priced: Priced, column: int) -> dict[str, float]:
    """The backward pass of the block with the largest temporaries, and what it rebuilds."""
    blocks, key, mode = priced.blocks, rows.block_key[0], int(saved_mode(rows.layouts)[0])
    best = (0.0, 0.0)
    for part in range(rows.parts.shape[2] - 1):
        if rows.parts[0, column, part]:
            again = FULL if rows.covered[0, column, part] else mode
            pair = (
                float(blocks.transient_bytes[key, part]),
                float(blocks.rebuilt_bytes[again, key, part]),
            )
            best = max(best, pair, key=sum)
    return {"temporaries of a block": best[0], "bytes rebuilt by recomputation": best[1]}
