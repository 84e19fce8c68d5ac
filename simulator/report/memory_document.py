"""The `memory` key of `foreshard predict --memory --json`: every rank, formulas, what would fit."""

from __future__ import annotations

import math
from typing import Any

from simulator.cost.estimate import VERDICTS
from simulator.cost.memory.moments import MOMENTS
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.planner.fitting import CHANGE, Fitting
from simulator.report.evidence import memory_meaning


def memory_document(fitting: Fitting) -> dict[str, Any]:
    """Write the memory of every pipeline rank as plain numbers and words, sizes in bytes."""
    return {
        "verdict": fitting.verdict,
        "p10_bytes": _known(fitting.p10_bytes),
        "p90_bytes": _known(fitting.p90_bytes),
        "usable_bytes": fitting.usable_bytes,
        "capacity_bytes": fitting.capacity_bytes,
        "margin_bytes": fitting.margin_bytes,
        "stages": [_stage(fitting, rank) for rank in range(len(fitting.ranks.total_bytes))],
        "formulas": {kind: memory_meaning(kind) for kind in MEMORY_KINDS},
        "changes": [change.values(*CHANGE) for change in fitting.changes],
        "nearest": None if fitting.nearest is None else fitting.nearest.values(*CHANGE),
    }


def _stage(fitting: Fitting, rank: int) -> dict[str, Any]:
    """One pipeline stage; all its tensor, context and data ranks hold the same."""
    ranks = fitting.ranks
    total = float(ranks.total_bytes[rank])
    replayed = fitting.replayed[rank] if fitting.replayed else None
    return {
        "stage": rank,
        "moment": MOMENTS[int(ranks.moment[rank])],
        "memory_bytes": {kind: float(size[rank]) for kind, size in ranks.kinds_bytes.items()},
        "memory_total_bytes": total,
        "memory_p10_bytes": _known(float(ranks.p10_bytes[rank])),
        "memory_p90_bytes": _known(float(ranks.p90_bytes[rank])),
        "margin_bytes": fitting.usable_bytes - total,
        "fits": total <= fitting.usable_bytes,
        "memory_verdict": VERDICTS[int(ranks.verdict(fitting.usable_bytes)[rank])],
        "replayed_allocated_bytes": replayed.allocated_bytes if replayed else None,
        "replayed_reserved_bytes": replayed.reserved_bytes if replayed else None,
        "inputs": ranks.inputs[rank],
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
