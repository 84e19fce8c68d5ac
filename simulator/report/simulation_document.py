"""The JSON document of a simulated step: seconds and bytes, keys frozen by a test."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.events.played import SimulatedStep
from simulator.events.step.streams import STREAMS
from simulator.events.step.timeline import Mixed, Sharing
from simulator.planner.mixed_prediction import KindUse, kinds_used, usd_per_step, worst_verdict
from simulator.planner.prediction import Prediction
from simulator.report.document import head, layout_fields

if TYPE_CHECKING:
    from simulator.events.sharing.contended import Contended


def simulation_document(
    prediction: Prediction, step: SimulatedStep, *, undisturbed_s: float | None = None
) -> dict[str, Any]:
    """Write a simulated step beside what the closed form says of the same layout.

    On servers of several kinds there is none, and the keys of the closed form are null;
    `undisturbed_s` is of the same step played without what disturbs it, null where nothing does.
    """
    estimate, kinds = prediction.estimate, kinds_used(prediction, step)
    closed = {name: float(x[0]) for name, x in estimate.terms_s.items()}
    return {
        **head("simulate", prediction.scenario, estimate),
        "layout": layout_fields(prediction.scenario, estimate.layouts),
        "searched": prediction.searched,
        "step_time_s": step.step_time_s,
        "undisturbed_s": undisturbed_s,
        "closed_form_s": None if kinds else prediction.step_time_s,
        "terms_s": dict(step.terms_s),
        "closed_form_terms_s": None if kinds else closed,
        "hidden_s": dict(step.hidden_s),
        "critical_share": dict(step.critical_share),
        "pacing_rank": step.pacing_rank,
        "ranks": [_rank(step, rank) for rank in range(len(step.ranks_of))],
        "memory_verdict": worst_verdict(prediction, kinds),
        "links": dict(step.links),
        "network": None if step.network is None else _network(step.network),
        "jitter": None if step.jitter is None else asdict(step.jitter),
        "loading": None if step.loading is None else asdict(step.loading),
        "sharing": None if step.sharing is None else _sharing(step.sharing),
        "groups": None if step.mixed is None else groups_document(step, step.mixed, kinds),
        "tasks": step.tasks,
        "build_seconds": None,
        "run_seconds": None,
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
        "worn": dict(found.given.link_degradation),
        "beside": dict(found.beside),
        "slowdown": dict(found.slowdown),
        "slowdown_inside": dict(found.slowdown_inside),
        "links": {
            kind: {"link": use.link, "group": use.group, "utilisation": use.utilisation}
            for kind, use in found.links.items()
        },
    }


def _sharing(sharing: Sharing) -> dict[str, Any]:
    """What it costs that kinds of traffic meet, and the fullest link of each kind over the step."""
    return {
        "plain_s": sharing.plain_s,
        "alone_s": sharing.alone_s,
        "lost_s": dict(sharing.lost_s),
        "links": {
            kind: {"link": link, "utilisation": share}
            for kind, (link, share) in sharing.links.items()
        },
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def groups_document(step: SimulatedStep, mixed: Mixed, kinds: list[KindUse]) -> dict[str, Any]:
    """Which ranks lie on which servers, and what each kind of servers does."""
    cost_usd = usd_per_step(kinds, step)
    return {
        "steady_s": mixed.steady_s,
        "usd_per_step": _known(cost_usd),
        "kinds": [
            {
                "name": kind.name,
                "gpus": kind.gpus,
                "alone_s": kind.uniform_cluster_step_s,
                "without_others_s": _known(kind.these_servers_only_step_s),
                "busy_s": dict(kind.busy_s),
                "idle_s": dict(kind.idle_s),
                "memory_total_bytes": kind.memory_bytes,
                "usable_bytes": kind.usable_bytes,
                "memory_verdict": kind.verdict,
                "usd_per_hour": _known(kind.usd_per_hour),
            }
            for kind in kinds
        ],
        "ranks": [_place(mixed, rank) for rank in range(len(mixed.gpus))],
    }


def _place(mixed: Mixed, rank: int) -> dict[str, Any]:
    """Where one simulated rank lies: pipeline rank, first and last of each run of replicas."""
    stage, replicas = mixed.place(rank)
    return {
        "rank": rank,
        "stage": stage,
        "replicas": [list(run) for run in replicas],
        "gpus": dict(zip(mixed.kinds, mixed.gpus[rank].tolist(), strict=True)),
    }


def _streams(row: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(STREAMS, row.tolist(), strict=True))
