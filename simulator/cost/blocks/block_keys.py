"""Layouts whose ranks compute with the same shapes: blocks are priced once for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.operators.operations import Ranks
from simulator.layout.keys import UniqueRows, unique_rows
from simulator.layout.layouts import RECOMPUTE, Layouts
from simulator.layout.placement import Placement

__all__ = ["block_keys", "shapes"]

_SELECTIVE = RECOMPUTE.index("selective")


def block_keys(
    layouts: Layouts, grid: UniqueRows, placement: Placement
) -> tuple[UniqueRows, Ranks]:
    """Distinct shapes that a rank computes with, and what each rank sees of them."""
    local = [getattr(placement, name).local[grid.inverse] for name in ("tp", "cp", "ep", "etp")]
    keys = unique_rows(
        layouts.tp,
        layouts.sequence_parallel,
        layouts.cp,
        layouts.ep,
        layouts.etp,
        layouts.micro_batch,
        np.where(layouts.cp > 1, layouts.cp_kind, 0),
        layouts.cp_a2a,
        np.where(layouts.ep * layouts.etp > 1, layouts.dispatcher, 0),
        *local,
        layouts.world,
        _modules(layouts),
    )
    return keys, shapes(layouts[keys.first], placement.take(grid.inverse[keys.first]))


def shapes(layouts: Layouts, placement: Placement) -> Ranks:
    """What a rank of each layout computes with; `placement` is theirs."""
    return Ranks(
        tp=layouts.tp.astype(float),
        sequence_parallel=layouts.sequence_parallel.astype(bool),
        cp=layouts.cp.astype(float),
        cp_kind=layouts.cp_kind,
        dispatcher=layouts.dispatcher,
        cp_a2a=layouts.cp_a2a.astype(float),
        ep=layouts.ep.astype(float),
        etp=layouts.etp.astype(float),
        micro_batch=layouts.micro_batch.astype(float),
        world=layouts.world.astype(float),
        recompute_modules=_modules(layouts),
        groups=placement.with_groups(layouts.cp_a2a.astype(np.int64)),
    )


def _modules(layouts: Layouts) -> NDArray[Any]:
    """What selective recomputation names, where there is any."""
    return np.where(layouts.recompute == _SELECTIVE, layouts.recompute_modules, 0)
