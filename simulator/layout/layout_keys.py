"""What a table of layouts shares: each distinct key is priced once for all of its layouts.

A key of one kind is an index into the distinct ones: of pipeline plans, of rank grids with what
their ranks hold, of shapes that a rank computes with.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.layout.keys import UniqueRows, unique_rows
from simulator.layout.layouts import RECOMPUTE, Layouts
from simulator.layout.placement import Placement, place
from simulator.layout.stages import Stages, StageTable, fold, stages
from simulator.records import dataclass
from simulator.schedules.registry import BREADTH_FIRST, TAKES_ROUNDS
from simulator.workload.architecture import Architecture

_SELECTIVE = RECOMPUTE.index("selective")


@dataclass(frozen=True, kw_only=True)
class LayoutKeys:
    """The keys of a table of layouts, and what layouts of one key have in common."""

    layouts: Layouts
    plans: UniqueRows
    """Pipeline plans."""
    micro_batches: NDArray[Any]
    """Of each plan, as far as stages tell them apart."""
    stages: Stages
    """What ranks and chunks of each plan hold."""
    table: StageTable
    """The same, folded by rank."""
    grids: UniqueRows
    """Rank grids with what they share: layouts whose states cost the same."""
    placement: Placement
    """Process groups of each grid."""

    @cached_property
    def shapes(self) -> UniqueRows:
        """Shapes that a rank computes with: layouts whose blocks cost the same."""
        return unique_rows(*self._shapes, recomputed_modules(self.layouts))

    @cached_property
    def _shapes(self) -> tuple[NDArray[Any], ...]:
        """What tells shapes apart, but for what they recompute."""
        layouts, placement = self.layouts, self.placement
        groups = (placement.tp, placement.cp, placement.ep, placement.etp)
        return (
            layouts.tp,
            layouts.sequence_parallel,
            layouts.cp,
            layouts.ep,
            layouts.etp,
            layouts.micro_batch,
            np.where(layouts.cp > 1, layouts.cp_kind, 0),
            layouts.cp_a2a,
            np.where(layouts.ep * layouts.etp > 1, layouts.dispatcher, 0),
            *(group.local[self.grids.inverse] for group in groups),
            layouts.world,
        )

    @property
    def shape_names(self) -> list[bytes]:
        """What tells the distinct shapes from others of the same setting, whatever the table."""
        first = self.shapes.first
        table = np.stack([column[first] for column in self._shapes], axis=1).astype(np.int64)
        size, rows = table.itemsize * table.shape[1], table.tobytes()
        return [rows[start : start + size] for start in range(0, len(rows), size)]


def layout_keys(
    layouts: Layouts,
    arch: Architecture,
    domain: int,
    *,
    every_rank: bool = False,
    each_round: bool = False,
) -> LayoutKeys:
    """Find the keys of layouts on scale-up domains of `domain` accelerators.

    With `every_rank`, ranks of a plan that hold the same layers stay apart. `each_round`: gradients
    are reduced after each round of micro-batches, so that states know whether there are several.
    """
    micro_batches = _distinct_micro_batches(layouts)
    plans = unique_rows(layouts.pp, layouts.vpp, micro_batches, layouts.schedule, layouts.stages)
    held = stages(
        pp=layouts.pp[plans.first],
        vpp=layouts.vpp[plans.first],
        micro_batches=micro_batches[plans.first],
        layer_kinds=arch.layer_kinds,
        kinds=len(arch.blocks),
        ahead=len(arch.layer_kinds) - arch.layers,
        schedule=layouts.schedule[plans.first],
        splits=[layouts.splits[code] for code in layouts.stages[plans.first].tolist()],
    )
    table = fold(held, by_content=not every_rank)
    waits = (layouts.micro_batches <= layouts.pp).astype(np.int64)
    if each_round:
        waits += 2 * (layouts.rounds > 1)
    grids = _rank_grids(layouts, plans, table, waits)
    return LayoutKeys(
        layouts=layouts,
        plans=plans,
        micro_batches=micro_batches[plans.first],
        stages=held,
        table=table,
        grids=grids,
        placement=place(layouts[grids.first], domain),
    )


def _distinct_micro_batches(layouts: Layouts) -> NDArray[Any]:
    """Micro-batches as far as stages tell them apart: those in flight, all in long rounds."""
    m, pp = layouts.micro_batches, layouts.pp
    longer = TAKES_ROUNDS[layouts.schedule] & (m % pp != 0)
    return np.where(longer | BREADTH_FIRST[layouts.schedule], m, np.minimum(m, 4 * pp))


def _rank_grids(
    layouts: Layouts, plans: UniqueRows, table: StageTable, waits: NDArray[Any]
) -> UniqueRows:
    """Distinct rank grids with what they share.

    Of a pipeline plan the states know what its ranks hold, not how many micro-batches pass, but for
    what that says of gradients that wait (``cost/states/gathered.py: _unreduced_bytes``), `waits`.
    """
    sizes = zip(table.parts, table.versions, layouts.vpp[plans.first].tolist(), strict=True)
    names: dict[tuple[bytes, bytes, int], int] = {}
    content = [
        names.setdefault((parts.tobytes(), versions.tobytes(), vpp), len(names))
        for parts, versions, vpp in sizes
    ]
    return unique_rows(
        layouts.tp,
        layouts.cp,
        layouts.dp,
        layouts.pp,
        layouts.ep,
        layouts.etp,
        layouts.rank_order,
        layouts.sharding,
        layouts.shard_group,
        layouts.reshard_after_forward,
        layouts.copies,
        np.array(content)[plans.inverse],
        waits,
    )


def recomputed_modules(layouts: Layouts) -> NDArray[Any]:
    """What selective recomputation names, where there is any."""
    return np.where(layouts.recompute == _SELECTIVE, layouts.recompute_modules, 0)
