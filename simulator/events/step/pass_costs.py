"""What every pass of every rank and chunk takes, term by term, as the closed form prices it.

The same per-part costs that ``cost/step.py`` adds up for the slowest stage are added up here for
each chunk of each rank (``cost/passes.py``), so that events and closed form differ only in what
they do with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Floats, by_key
from simulator.cost.blocks.block_costs import PASS_TERMS
from simulator.cost.collectives.calls import send_share
from simulator.cost.memory.offload import activation_copies_s, parameter_copies_s
from simulator.cost.memory.rank_tensors import stages_of
from simulator.cost.passes import (
    fetch_s,
    over_parts,
    part_passes,
    pass_terms,
    recompute_s,
    shown_maxima,
)
from simulator.cost.step import recomputed_share
from simulator.cost.tables import PartPasses, Priced, Selection
from simulator.cost.terms import HIDDEN, TERMS
from simulator.records import dataclass

CAUSE = {term.name: i for i, term in enumerate(TERMS)}
"""Column of each term."""

AHEAD, BACK = 0, 1
"""Ways of a pass through the model."""

_HIDES = {name: i for i, name in enumerate(HIDDEN)}


@dataclass(frozen=True, kw_only=True)
class Content:
    """What each chunk of each rank holds, shape (ranks, chunks, parts)."""

    parts: Floats
    covered: Floats
    """Blocks that full recomputation covers."""
    offloaded: Floats
    """Blocks whose activations wait in host memory."""

    @property
    def rows(self) -> tuple[Floats, Floats, Floats]:
        """The same with one row per chunk, as the functions of tables of layouts take them."""
        count = self.parts.shape[2]
        return tuple(x.reshape(1, -1, count) for x in (self.parts, self.covered, self.offloaded))  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Seconds of one micro-batch through one chunk; kinds as in KINDS: F, B, I, W."""

    shown_s: Floats
    """By cause, shape (ranks, chunks, kinds, causes); the sum over causes is the pass's time."""
    hidden_s: Floats
    """Communication beside the compute of the pass, shape (ranks, chunks, kinds, HIDDEN)."""
    alone_s: Floats
    """What a pass takes longer that has no other micro-batch beside it, by cause, as `shown_s`."""
    window_s: Floats
    """Of a forward and a backward pass, what gradients and parameters may travel beside; shape
    (ranks, chunks, 2)."""
    send_s: Floats
    """A send to the next stage that runs beside compute, of each rank; 0 where it is a part of the
    pass."""
    copy_s: Floats
    """A copy of a micro-batch's activations to the host that runs beside the passes of all chunks,
    and as long back, (ranks, chunks); 0 without a pipeline, where it is a part of its pass."""

    @property
    def seconds(self) -> Floats:
        """Time of each pass, shape (ranks, chunks, kinds)."""
        return np.asarray(self.shown_s.sum(axis=3))


def content(rows: Selection, priced: Priced) -> Content:
    """Deal what each rank holds to its chunks; covered and offloaded blocks are the first ones."""
    held = stages_of(rows.layouts, priced.workload)
    ranks, chunks = int(held.rank.max()) + 1, int(held.chunk.max()) + 1
    parts = np.column_stack([held.blocks, held.embedding, held.head]).astype(float)
    parts = parts.reshape(ranks, chunks, -1)
    order = np.argsort(rows.rank[0], kind="stable")

    def first(whole: Floats) -> Floats:
        left, by_part = whole[0, order], np.zeros_like(parts)
        for chunk in range(chunks):
            by_part[:, chunk] = np.minimum(parts[:, chunk], left)
            left = left - by_part[:, chunk]
        return by_part

    return Content(parts=parts, covered=first(rows.covered), offloaded=first(rows.offloaded))


def passes_of(rows: Selection, priced: Priced, held: Content) -> Passes:
    """Price the passes of one layout.

    Parameters
    ----------
    rows : Selection
        The layout, selected from a table that was priced with every rank.
    priced : Priced
    held : Content
    """
    layouts = rows.layouts
    per_part = part_passes(
        priced,
        layouts,
        rows.block_key,
        rows.state_key,
        layouts.micro_batches / layouts.copies,
        recomputed_share(rows),
    )
    shown, hidden = _ways(rows, priced, held, per_part)
    copy_s = _copies(rows, priced, held, shown, hidden)
    send_s = _sends(rows, priced, shown, hidden)
    weight = over_parts(held.parts, priced.blocks.wgrad_s[rows.block_key][0])
    alone = np.zeros_like(shown)
    for way in (AHEAD, BACK):
        costs = [x[0][None, None, :] for x in priced.blocks.alone_s[way][:, rows.block_key]]
        for name, seconds in zip(PASS_TERMS, costs, strict=True):
            alone[:, :, way, CAUSE[name]] = over_parts(held.parts, seconds)
    windows = (per_part.forward_window_s, per_part.backward_window_s)
    return Passes(
        shown_s=_by_kind(shown, weight),
        hidden_s=_by_kind(hidden),
        alone_s=_by_kind(alone),
        window_s=np.stack([over_parts(held.parts, x[0]) for x in windows], axis=2),
        send_s=np.full(len(shown), send_s),
        copy_s=copy_s,
    )


def _by_kind(ways: Floats, weight: Floats | None = None) -> Floats:
    """Forward and backward passes as F, B, I and W; the weight half is of GEMMs only."""
    kinds = np.concatenate([ways, ways[:, :, BACK:], np.zeros_like(ways[:, :, :1])], axis=2)
    if weight is not None:
        kinds[:, :, 2, CAUSE["gemm"]] -= weight
        kinds[:, :, 3, CAUSE["gemm"]] = weight
    return kinds


def _ways(
    rows: Selection, priced: Priced, held: Content, per_part: PartPasses
) -> tuple[Floats, Floats]:
    """Shown and hidden seconds of both ways, shapes (ranks, chunks, 2, causes or HIDDEN)."""
    b, shape = priced.blocks, held.parts.shape[:2]
    parts, covered, _ = held.rows
    shown, hidden = np.zeros((*shape, 2, len(TERMS))), np.zeros((*shape, 2, len(HIDDEN)))
    none = np.zeros_like(per_part.traffic_s)
    for way, (costs, traffic) in enumerate(
        ((b.forward_s, none), (b.backward_s, per_part.traffic_s))
    ):
        terms = pass_terms(
            by_key(costs, rows.block_key, 1)[:, :, None, :],
            parts,
            slowdown_s=per_part.slowdown_s[way][:, None, :],
            traffic_s=traffic[:, None, :],
            host_s=per_part.host_s[way][:, None, :],
            fsdp_s=per_part.fsdp_s[way][:, None, :],
        )
        for name, seconds in terms.items():
            shown[:, :, way, CAUSE[name]] = seconds.reshape(shape)
        besides = over_parts(parts, by_key(b.hidden_s[way], rows.block_key, 1)[:, :, None, :])
        for name, beside in zip(HIDDEN[:3], besides, strict=True):
            hidden[:, :, way, _HIDES[name]] = beside.reshape(shape)
        beside = over_parts(parts, per_part.hidden_s[way][:, None, :])
        hidden[:, :, way, _HIDES["fsdp"]] = beside.reshape(shape)
    for way, seconds in enumerate(shown_maxima(priced, rows.block_key, rows.state_key, parts, 1.0)):
        shown[:, :, way, CAUSE["small_reductions"]] = seconds.reshape(shape)
    shown[:, :, BACK, CAUSE["recompute"]] = recompute_s(parts, covered, per_part).reshape(shape)
    beside_s = per_part.prefetched * shown.sum(axis=(2, 3))
    fetched, early = fetch_s(held.parts, per_part.input_s[0], beside_s)
    shown[:, :, AHEAD, CAUSE["input"]] = fetched
    hidden[:, :, AHEAD, _HIDES["input"]] = early
    return shown, hidden


def _copies(
    rows: Selection, priced: Priced, held: Content, shown: Floats, hidden: Floats
) -> Floats:
    """Add copies of activations and parameters to and from the host, each behind its pass.

    Returns those of activations that are tasks of their own: in a pipeline.
    """
    layouts, (ranks, chunks, _) = rows.layouts, held.parts.shape
    apart = np.zeros((ranks, chunks))
    if not (layouts.offload_layers.any() or layouts.parameter_offload.any()):
        return apart
    pass_s = shown.sum(axis=3) - shown[..., CAUSE["input"]]  # which takes the same link
    count = ranks * chunks
    again = np.zeros(count, dtype=np.int64)
    parts, covered, away = (x.reshape(count, 1, -1) for x in held.rows)
    for way in (AHEAD, BACK):
        beside: list[Any] = [np.full(count, np.inf)] * 2
        beside[way] = pass_s[:, :, way].ravel()
        exposed, covered_s = activation_copies_s(
            priced,
            layouts[again],
            rows.block_key[again],
            (parts, away, covered),
            again,
            m=np.ones(count),
            passes_s=(beside[0], beside[1]),
        )
        one_way_s = (exposed + covered_s) / 2.0
        if ranks > 1:
            apart = one_way_s.reshape(ranks, chunks)
            exposed, one_way_s = np.zeros(count), np.zeros(count)
        whole_s, share = pass_s[:, :, way].sum(axis=1), pass_s[:, :, way]
        share = share / np.maximum(whole_s, 1e-300)[:, None]
        beside = [np.full(ranks, np.inf)] * 2
        beside[way] = whole_s
        counts = np.zeros(ranks, dtype=np.int64)
        column = np.argsort(rows.rank[0], kind="stable")
        late, early = parameter_copies_s(
            priced,
            layouts[counts],
            rows.state_key[counts],
            np.ones(ranks),
            column,
            (beside[0], beside[1]),
        )
        more = exposed.reshape(ranks, chunks) + late[:, None] * share
        total = one_way_s.reshape(ranks, chunks) + ((late + early) / 2.0)[:, None] * share
        shown[:, :, way, CAUSE["offload"]] += more
        hidden[:, :, way, _HIDES["offload"]] += total - more
    return apart


def _sends(rows: Selection, priced: Priced, shown: Floats, hidden: Floats) -> float:
    """Charge one send to every pass; return how long one takes that runs beside compute.

    A pass whose result stays on the rank is charged its receive. Beside compute, what does not fit
    behind a forward and a backward pass of the chunk shows, and the rest slows them.
    """
    layouts = rows.layouts
    if layouts.pp[0] == 1:
        return 0.0
    crosses = priced.hop_crosses[rows.state_key[0]]
    send_s = float(priced.send_s[crosses, rows.block_key[0]])
    beside = priced.software.overlap.pipeline_send and layouts.vpp[0] * layouts.copies[0] > 1
    if not beside:
        shown[:, :, :, CAUSE["pp"]] += send_s
        return 0.0
    window = shown.sum(axis=(2, 3))
    covered = np.minimum(2.0 * send_s, window)[:, :, None] / 2.0
    hidden[:, :, :, _HIDES["pp"]] += covered
    shown[:, :, :, CAUSE["slowdown"]] += covered * float(send_share(priced.cluster, crosses))
    return send_s
