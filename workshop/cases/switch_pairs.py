"""Pairs of measured runs that differ in one switch: what it is worth, measured and predicted.

Errors that both runs share cancel, so a pair tests the piece of the model that the switch turns
on, not its level. Two runs of one source are a pair if every column agrees but those of one switch;
what is alike within noise has no sign. Releases are no switch: what changes between them stands in
no column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from simulator.measured.rows import COLUMNS, LABEL_COLUMNS
from simulator.scoring.scores import ScoredRow
from simulator.software.releases import parsed

SWITCHES: dict[str, tuple[str, ...]] = {
    "precision": ("precision", "fp8_weights"),
    "recomputation": ("recompute", "recompute_layers", "recompute_modules"),
    "chunks of a pipeline rank": ("vpp",),
    "tensor-parallel overlap": ("tp_comm_overlap",),
    "sequence parallelism": ("sequence_parallel",),
    "captured graphs": ("cuda_graphs", "cuda_graph_scope"),
    "offloaded activations": ("cpu_offload", "offload_layers"),
    "overlap of expert traffic": ("expert_overlap",),
    "dispatcher": ("dispatcher",),
    "capacity of experts": ("capacity_factor",),
    "pieces of the loss": ("loss_chunks",),
    "optimizer in the backward pass": ("optimizer_in_backward",),
    "variant of the software": ("software",),
}
"""Columns of each switch. Of the software only the variant: compiled or eager."""

NOISE = 0.02
"""Pairs closer than that have no sign: two runs alike are 1.9 % apart (validation/README.md)."""

_SWITCHED = tuple(column for columns in SWITCHES.values() for column in columns)
_SAME = tuple(name for name in COLUMNS if name not in (*LABEL_COLUMNS, *_SWITCHED))


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchPair:
    """Two runs of one source, the slower one first."""

    switch: str
    before: ScoredRow
    after: ScoredRow

    @property
    def measured(self) -> float:
        """Step time of `after` over that of `before`, less 1: at most 0."""
        return (
            float(self.after.measured_step_s or 0.0) / float(self.before.measured_step_s or 1) - 1
        )

    @property
    def predicted(self) -> float:
        """The same of the predictions."""
        after, before = self.after.predicted_step_s, self.before.predicted_step_s
        return float(after or 0.0) / float(before or 1.0) - 1

    @property
    def right(self) -> bool | None:
        """Whether the prediction has the sign that was measured; None within noise."""
        return None if abs(self.measured) < NOISE else self.predicted < 0.0

    @property
    def miss(self) -> float:
        """Points by which the prediction is off."""
        return abs(self.predicted - self.measured)

    @property
    def near(self) -> bool:
        """Whether it is within 3 points, or within a third of what was measured."""
        return is_near(self.miss, self.measured)


def is_near(miss: float, effect: float) -> bool:
    """Whether a prediction misses an effect by at most 3 points, or by a third of it."""
    return abs(miss) <= max(0.03, abs(effect) / 3.0)


def switch_pairs(rows: Iterable[ScoredRow]) -> list[SwitchPair]:
    """Every pair of predicted runs, of measured step times, that differ in one switch alone."""
    groups: dict[Hashable, list[ScoredRow]] = defaultdict(list)
    for row in rows:
        if row.step_error is not None and not row.composed:
            shared = tuple(row.run.get(name) for name in _SAME)
            groups[(row.run.get("source"), _release(row), shared)].append(row)
    found = []
    for alike in groups.values():
        for pair in combinations(alike, 2):
            changed = _changed(*pair)
            if len(changed) == 1:
                slow, fast = sorted(pair, key=lambda row: -float(row.measured_step_s or 0.0))
                found.append(SwitchPair(switch=changed[0], before=slow, after=fast))
    return found


def switch_figures(rows: Iterable[ScoredRow]) -> list[dict[str, Any]]:
    """Sum up the pairs of every switch, and of all of them, as docs/accuracy.json has them."""
    pairs = switch_pairs(rows)
    by_switch = [(name, [x for x in pairs if x.switch == name]) for name in SWITCHES]
    return [_figures(name, some) for name, some in [*by_switch, ("all", pairs)] if some]


def _figures(name: str, pairs: list[SwitchPair]) -> dict[str, Any]:
    signs = [pair.right for pair in pairs if pair.right is not None]
    return {
        "switch": name,
        "sources": sorted({pair.before.run.get("source") for pair in pairs}),
        "n": len(pairs),
        "beyond_noise": len(signs),
        "right": float(np.mean(signs)) if signs else None,
        "measured": float(np.median([pair.measured for pair in pairs])),
        "predicted": float(np.median([pair.predicted for pair in pairs])),
        "miss": float(np.median([pair.miss for pair in pairs])),
        "near": float(np.mean([pair.near for pair in pairs])),
    }


def _release(row: ScoredRow) -> str:
    """The software without its variant."""
    word = row.run.get("software")
    release = parsed(word)
    variant = f"-{release.variant}" if release is not None and release.variant else ""
    return word.removesuffix(variant)


def _changed(scored_row: ScoredRow, other: ScoredRow) -> list[str]:
    """Switches in which two runs differ."""
    return [
        name
        for name, columns in SWITCHES.items()
        if any(scored_row.run.get(column) != other.run.get(column) for column in columns)
    ]
