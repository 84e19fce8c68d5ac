"""The `memory` key of `foreshard predict --memory --json`: every rank, formulas, what would fit."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from simulator.cost.estimate import VERDICTS
from simulator.cost.memory.moments import MOMENTS
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.planner.fitting import Change, Fitting
from simulator.report.evidence import memory_meaning

__all__ = ["memory_document"]


def memory_document(found: Fitting) -> dict[str, Any]:
    """Write the memory of every pipeline rank as plain numbers and words, sizes in bytes."""
    return {
        "verdict": found.verdict,
        "p10_bytes": _known(found.p10_bytes),
        "p90_bytes": _known(found.p90_bytes),
        "usable_bytes": found.usable_bytes,
        "capacity_bytes": found.capacity_bytes,
        "margin_bytes": found.margin_bytes,
        "stages": [_stage(found, rank) for rank in range(len(found.ranks.total_bytes))],
        "formulas": {kind: memory_meaning(kind) for kind in MEMORY_KINDS},
        "changes": [_change(change) for change in found.changes],
        "nearest": None if found.nearest is None else _change(found.nearest),
    }


def _stage(found: Fitting, rank: int) -> dict[str, Any]:
    """One pipeline stage; all its tensor, context and data ranks hold the same."""
    ranks = found.ranks
    total = float(ranks.total_bytes[rank])
    replayed = found.replayed[rank] if found.replayed else None
    return {
        "stage": rank,
        "moment": MOMENTS[int(ranks.moment[rank])],
        "memory_bytes": {kind: float(size[rank]) for kind, size in ranks.kinds_bytes.items()},
        "memory_total_bytes": total,
        "memory_p10_bytes": _known(float(ranks.p10_bytes[rank])),
        "memory_p90_bytes": _known(float(ranks.p90_bytes[rank])),
        "margin_bytes": found.usable_bytes - total,
        "fits": total <= found.usable_bytes,
        "memory_verdict": VERDICTS[int(ranks.verdict(found.usable_bytes)[rank])],
        "replayed_allocated_bytes": replayed.allocated_bytes if replayed else None,
        "replayed_reserved_bytes": replayed.reserved_bytes if replayed else None,
        "inputs": ranks.inputs[rank],
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _change(change: Change) -> dict[str, Any]:
    return asdict(change)
