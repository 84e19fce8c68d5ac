"""The JSON documents of plans and predictions for servers of several kinds."""

from __future__ import annotations

from typing import Any

from simulator._version import __version__
from simulator.planner.mixed_plan import MixedPlan, option_row
from simulator.planner.mixed_prediction import MixedPrediction
from simulator.report.document import SCHEMA, layout_fields, plain
from simulator.report.simulation_document import groups_document
from simulator.scenario import Scenario


def mixed_document(answer: MixedPlan) -> dict[str, Any]:
    """Write every way to use the servers, best first."""
    return {
        **_head("plan", answer.scenario),
        "verdict": answer.verdict,
        "left_out": list(answer.left_out),
        "options": [plain(option_row(option)) for option in answer.options],
    }


def mixed_prediction_document(answer: MixedPrediction) -> dict[str, Any]:
    """Write one layout: its played step, the whole run, what each kind of servers does."""
    step, mixed = answer.step, answer.step.mixed
    assert mixed is not None
    return {
        **_head("predict", answer.scenario),
        "scenario": plain(answer.scenario.document),
        "layouts": [
            {
                "layout": layout_fields(answer.scenario, answer.estimate.layouts),
                "step_time_s": step.step_time_s,
                "p10_s": answer.interval_s[0],
                "p90_s": answer.interval_s[1],
                "terms_s": dict(step.terms_s),
                "hidden_s": dict(step.hidden_s),
                "fits": answer.fits,
                "memory_verdict": answer.memory_verdict,
                "tokens_per_s_per_gpu": float(answer.outcome.tokens_per_s_per_gpu[0]),
                "mfu": answer.mfu,
                "memory_headroom": answer.run.memory_headroom,
                "goodput": float(answer.outcome.goodput[0]),
                "days": answer.days,
                "usd": answer.usd,
                "kwh": answer.kwh,
                "evidence": answer.evidence.document(),
            }
        ],
        "groups": groups_document(step, mixed, list(answer.kinds)),
    }


def _head(command: str, scenario: Scenario) -> dict[str, Any]:
    cluster = scenario.cluster
    groups = [{"name": cluster.kinds[g.kind].name, "gpus": g.gpus} for g in cluster.groups]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": command,
        "model": scenario.workload.architecture.name,
        "cluster": {"groups": groups, "gpus": cluster.gpus},
        "software": scenario.software.name,
    }
