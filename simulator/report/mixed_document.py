"""The JSON document of a plan for servers of several kinds."""

from __future__ import annotations

from typing import Any

from simulator._version import __version__
from simulator.planner.mixed_plan import MixedPlan, option_row

__all__ = ["mixed_document"]


def mixed_document(answer: MixedPlan) -> dict[str, Any]:
    """Write every way to use the servers, the fastest first."""
    scenario = answer.scenario
    cluster = scenario.cluster
    groups = [{"name": cluster.kinds[g.kind].name, "gpus": g.gpus} for g in cluster.groups]
    return {
        "schema": 1,
        "version": __version__,
        "command": "plan",
        "model": scenario.workload.architecture.name,
        "cluster": {"groups": groups, "gpus": cluster.gpus},
        "software": scenario.software.name,
        "verdict": answer.verdict,
        "left_out": list(answer.left_out),
        "options": [option_row(one) for one in answer.options],
    }
