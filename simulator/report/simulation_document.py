"""The JSON document of a simulated step: seconds and bytes, keys frozen by a test."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.events.timeline import STREAMS, Sharing, SimulatedStep
from simulator.planner.predict import Prediction
from simulator.report.document import head

if TYPE_CHECKING:
    from simulator.events.contended import Contended

__all__ = ["simulation_document"]


def simulation_document(prediction: Prediction, step: SimulatedStep) -> dict[str, Any]:
    """Write a simulated step beside what the closed form says of the same layout."""
    estimate = prediction.estimate
    return {
        **head("simulate", prediction.scenario, estimate),
        "layout": estimate.layouts.row(),
        "step_time_s": step.step_time_s,
        "closed_form_s": prediction.step_time_s,
        "terms_s": dict(step.terms_s),
        "closed_form_terms_s": {name: float(x[0]) for name, x in estimate.terms_s.items()},
        "hidden_s": dict(step.hidden_s),
        "critical_share": dict(step.critical_share),
        "pacing_rank": step.pacing_rank,
        "ranks": [_rank(step, rank) for rank in range(len(step.ranks_of))],
        "memory_verdict": prediction.memory_verdict,
        "links": dict(step.links),
        "network": None if step.network is None else _network(step.network),
        "jitter": None if step.jitter is None else asdict(step.jitter),
        "sharing": None if step.sharing is None else _sharing(step.sharing),
        "tasks": step.tasks,
        "build_seconds": step.build_seconds,
        "run_seconds": step.run_seconds,
    }


def _rank(step: SimulatedStep, rank: int) -> dict[str, Any]:
    """One simulated rank: what its streams do, and its fullest moment."""
    when, total, held = step.memory.peak(rank)
    return {
        "rank": rank,
        "gpus": int(step.ranks_of[rank]),
        "busy_s": _streams(step.busy_s[rank]),
        "exposed_s": _streams(step.exposed_s[rank]),
        "idle_s": _streams(step.idle_s[rank]),
        "memory_peak": {"time_s": when, "total_bytes": total, "memory_bytes": held},
    }


def _network(found: Contended) -> dict[str, Any]:
    """What was asked of the links, and what they leave to each kind of groups."""
    return {
        "contention": found.given.contention,
        "worn": dict(found.given.worn),
        "beside": dict(found.beside),
        "slowdown": dict(found.slowdown),
        "slowdown_inside": dict(found.slowdown_inside),
        "links": {
            kind: {"link": use.link, "group": use.group, "utilisation": use.utilisation}
            for kind, use in found.links.items()
        },
    }


def _sharing(found: Sharing) -> dict[str, Any]:
    """What it costs that kinds of traffic meet, and the fullest link of each kind over the step."""
    return {
        "plain_s": found.plain_s,
        "alone_s": found.alone_s,
        "lost_s": dict(found.lost_s),
        "links": {
            kind: {"link": link, "utilisation": share}
            for kind, (link, share) in found.links.items()
        },
    }


def _streams(row: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(STREAMS, row.tolist(), strict=True))
