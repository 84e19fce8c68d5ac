"""Memory of every pipeline rank of one layout: the same prices, a column per rank, none folded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.estimate import P90, memory_verdict
from simulator.cost.memory.memory_inputs import memory_inputs
from simulator.cost.memory.peak import MEMORY_KINDS, memory_spread, peak_memory
from simulator.cost.pricing import price
from simulator.cost.tables import select
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload


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
