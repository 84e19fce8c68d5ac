"""Uneven pipeline stages as a decision: layers dealt over time and memory for layouts worth it.

The grid of candidates deals layers by one rule (``layout/stages.py``). For the fastest of them, and
the fastest of those that nearly fit, layers are dealt once more by dynamic programming
(``layout/layer_split.py``), with seconds and bytes per layer and rank read off the priced layout:
embedding, head, layers that predict ahead, dense first layers, recomputation and micro-batches in
flight are in them. What comes out is priced in full like any layout and kept only where it is
faster, or where it fits and the even one does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.estimate import P90
from simulator.cost.memory.peak import memory_spread, peak_memory
from simulator.cost.passes import FULL, over_parts, part_passes
from simulator.cost.pricing import price_keys, with_paths
from simulator.cost.step import Estimate, priced_estimate, recomputed_share
from simulator.cost.tables import Priced, select
from simulator.layout.layer_split import split_each
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.layout.stages import even_pieces, held_pieces, pieces_of
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

MOST_REBALANCED = 8
"""Of a list of layouts with pipelines, so many of the fastest are rebalanced, and so many of
those that would be fastest with ranks all alike."""


def worth_rebalancing(
    layouts: Layouts, workload: Workload, software: Software
) -> NDArray[np.bool_]:
    """Layouts with a pipeline whose ranks hold a piece of their own and more than a layer."""
    if not software.supports.uneven_stages:
        return np.full(len(layouts), False)
    able = (layouts.pp > 1) & (layouts.copies == 1) & (layouts.stages == 0)
    able &= workload.architecture.layers >= 2 * layouts.pp
    return np.asarray(able & (layouts.offload_layers == 0))


def rebalanced_stages(layouts: Layouts, priced: Priced) -> tuple[Ints, Estimate] | None:
    """Deal the layers of some layouts so that they fit and are fastest.

    Returns which of them have such a split, and their estimates with it; None where none has. One
    that is split one way to FIT and another, faster way to be TIGHT is there twice. `priced` are
    the prices of `layouts`, as they are.
    """
    several = RankCosts.of(layouts, priced).splits()
    splits = [(i, split) for i, dealt in enumerate(several) for split in dealt]
    if not splits:
        return None
    rows = np.array([i for i, _ in splits])
    table = layouts[rows].replace(stages=[split for _, split in splits])
    setting = priced.workload, priced.cluster, priced.software
    able = np.flatnonzero((table.stages > 0) & (reasons(table, *setting) == FEASIBLE))
    if not len(able):
        return None
    rows, table = rows[able], table[able]
    known = price_keys(table, *setting, like=priced.of(rows))
    return rows, priced_estimate(table, with_paths(known, table, coarse=False), slice(None))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCosts:
    """What ranks of some layouts take and hold, by rank (columns beyond pp are empty)."""

    layouts: Layouts
    layer_kinds: Ints
    """Kinds of the layers that are dealt."""
    block_s: Floats
    """Both passes of one block, shape (layouts, parts)."""
    fixed_s: Floats
    """Of embedding, head and what predicts ahead, shape (layouts, ranks)."""
    layer_bytes: Floats
    """What one more layer holds, shape (layouts, ranks)."""
    fixed_bytes: Floats
    """What a rank would hold without layers, of the same shape."""
    usable_bytes: float
    memory_spread: Floats
    """Standard deviation of the logarithm of memory, (layouts,); NaN where none is given."""

    @staticmethod
    def of(layouts: Layouts, priced: Priced) -> RankCosts:
        """Look at layouts with a column for each rank, and once more with layers moved about."""
        arch = priced.workload.architecture
        kinds = np.array(arch.layer_kinds[: arch.layers])
        known, held, moved, then = _by_rank(layouts, priced)
        rows = select(layouts, known, slice(None))
        m = layouts.micro_batches / layouts.copies
        share = recomputed_share(rows)
        passes = part_passes(known, layouts, rows.block_key, rows.state_key, m, share)
        every = (layouts.recompute == FULL) & (layouts.recompute_layers == 0)
        block_s = passes.forward_s + passes.backward_s + passes.selective_s
        block_s = block_s + np.where(every[:, None], passes.full_s, 0.0)
        other_parts = rows.parts.copy()
        other_parts[:, :, np.unique(kinds)] = 0.0
        some = rows.covered * ~every[:, None, None]
        fixed_s = over_parts(other_parts, block_s[:, None]) + over_parts(
            some, passes.full_s[:, None]
        )
        counts, after = (x[:, :, np.unique(kinds)].sum(axis=2) for x in (rows.parts, moved))
        step = after - counts
        slope = np.maximum((then - held) / np.where(step == 0, np.inf, step), 0.0)
        slope = np.where(step == 0, slope.max(axis=1, keepdims=True), slope)
        return RankCosts(
            layouts=layouts,
            layer_kinds=kinds,
            block_s=block_s,
            fixed_s=fixed_s,
            layer_bytes=slope,
            fixed_bytes=held - slope * counts,
            usable_bytes=float(priced.cluster.accelerator.memory.usable_bytes),
            memory_spread=memory_spread(layouts, priced.software),
        )

    def splits(self) -> list[list[tuple[int, ...]]]:
        """Layers of every piece of each layout: of the fastest split that fits, and that FITS.

        Where the fastest that fits FITS, it is both; none where none fits.
        """
        every = np.arange(len(self.layouts))
        known = self._balanced(every, surely=False)
        splits = [[] if split is None else [split] for split in known]
        risky = [i for i, split in enumerate(known) if split and not self._surely(i, split)]
        sure = self._balanced(np.array(risky, dtype=np.intp), surely=True)
        for i, split in zip(risky, sure, strict=True):
            splits[i] += [] if split is None else [split]
        return splits

    def _surely(self, i: int, split: tuple[int, ...]) -> bool:
        """Whether every rank of a layout FITS with such a split."""
        counts = np.array(split)[pieces_of(self.layouts[i])].sum(axis=1)
        ranks = slice(0, len(counts))
        held = self.fixed_bytes[i, ranks] + self.layer_bytes[i, ranks] * counts
        return bool(held.max() <= self.most_bytes(i, surely=True))

    def most_bytes(self, i: int, *, surely: bool) -> float:
        """The P50 of memory with which a rank of a layout fits, `surely`: with which it FITS."""
        spread = float(self.memory_spread[i])
        return self.usable_bytes * math.exp(-P90 * spread * (surely and not math.isnan(spread)))

    def _balanced(self, rows: Ints, *, surely: bool) -> list[tuple[int, ...] | None]:
        """What `balance_layers` says of some rows, those of as many ranks together."""
        splits: list[tuple[int, ...] | None] = [None] * len(rows)
        pp = self.layouts.pp[rows]
        for ranks in np.unique(pp).tolist():
            some = np.flatnonzero(pp == ranks)
            dealt = balance_layers([self] * ranks, rows[some], surely=surely)
            for place, split in zip(some.tolist(), dealt, strict=True):
                splits[place] = split
        return splits


def balance_layers(
    ranks: Sequence[RankCosts], rows: Ints, *, surely: bool
) -> list[tuple[int, ...] | None]:
    """Layers of every piece of some layouts, of which rank s takes and holds what `ranks[s]` says.

    Ranks of one kind of servers all say the same; None where no split fits, with its P90 if
    `surely`. All of the layouts have as many ranks.
    """
    layouts = ranks[0].layouts

    def of(name: str) -> Floats:
        return np.stack([getattr(costs, name)[rows, s] for s, costs in enumerate(ranks)], axis=-1)

    seconds = np.stack([costs.block_s[rows][:, costs.layer_kinds] for costs in ranks], axis=-1)
    most = [[costs.most_bytes(i, surely=surely) for costs in ranks] for i in rows.tolist()]
    splits = split_each(
        seconds[:, None],
        np.broadcast_to(of("layer_bytes")[:, None, None], seconds[:, None].shape),
        np.array(most),
        fixed_s=of("fixed_s"),
        fixed_bytes=of("fixed_bytes"),
        micro_batches=layouts.micro_batches[rows],
    )
    return [
        None if split is None else tuple(_pieces(split.layers, layouts[i]))
        for i, split in zip(rows.tolist(), splits, strict=True)
    ]


def _pieces(layers: Ints, row: Layouts) -> list[int]:
    """Deal the layers of every rank to its chunks; what does not divide goes away from the ends."""
    return _dealt_to(pieces_of(row), layers)


def _dealt_to(held: Ints, layers: Ints) -> list[int]:
    """The same of ranks that hold such pieces."""
    pieces = [0] * held.size
    for rank, count in zip(held.tolist(), layers.tolist(), strict=True):
        base, more = divmod(count, len(rank))
        inner = sorted(rank, key=lambda piece: (piece in (0, held.size - 1), -piece))
        for piece in rank:
            pieces[piece] = base + (piece in inner[:more])
    return pieces


def _by_rank(layouts: Layouts, priced: Priced) -> tuple[Priced, Floats, Floats, Floats]:
    """Prices of layouts with a column for each rank, and their memory at the fullest moment.

    Then the same layouts with every second rank a layer heavier and the others one lighter: what
    ranks hold of each part, and the memory.
    """
    size = len(layouts)
    both = Layouts.concatenate([layouts, _moved(layouts, priced)])
    twice = priced.of(np.tile(np.arange(size), 2))
    setting = priced.workload, priced.cluster, priced.software
    known = price_keys(both, *setting, every_rank=True, like=twice)
    rows = select(both, known, slice(None))
    held = peak_memory(rows, known).total_bytes
    return known.of(np.arange(size)), held[:size], rows.parts[size:], held[size:]


def _moved(layouts: Layouts, priced: Priced) -> Layouts:
    """Every second rank with a layer more, and the others with one less."""
    arch = priced.workload.architecture
    ahead = len(arch.layer_kinds) - arch.layers
    columns = (layouts.schedule, layouts.pp, layouts.vpp * layouts.copies)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return layouts.replace(stages=[_swayed(*row, arch.layers, ahead) for row in rows])


@lru_cache(256)
def _swayed(code: int, pp: int, chunks: int, layers: int, ahead: int) -> list[int]:
    """Layers of the pieces of such a layout; `code` is that of its schedule."""
    held = held_pieces(code, pp, chunks)
    counts = even_pieces(layers, held.size, ahead=ahead)[held].sum(axis=1)
    more = np.where(np.arange(pp) % 2 == 0, 1, -1)
    more[-1] *= pp % 2 == 0
    return _dealt_to(held, counts + more)
