"""The JSON documents of plan and predict: plain dicts of Python numbers and words, stable keys.

Times are in seconds, sizes in bytes; null where there is no value, never NaN. The keys are the
contract with whoever reads them and are frozen by a test. How long the program itself took is null:
the same input gives the same bytes (in Python `Plan.found.seconds` has it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simulator._version import __version__
from simulator.cost.step import Estimate
from simulator.layout.layouts import Layouts
from simulator.planner.defaults_that_matter import bearing_defaults, default_document
from simulator.planner.input_verdict import input_verdict
from simulator.planner.plan import alternatives
from simulator.planner.prediction import Prediction
from simulator.planner.variants import OTHER_TRAINING, other_trainings
from simulator.scenario import Scenario
from simulator.search.outcome import Outcome, spans

if TYPE_CHECKING:
    from simulator.planner.fitting import Fitting
    from simulator.planner.plan import Plan, Tried
    from simulator.scoring.anchor import Correction

SCHEMA = 1
"""Number of the form of the documents; a key that changes its meaning raises it."""

_MAYBE = ("step_time_s", "tokens_per_s", "days")

TOP = 20
"""Layouts in the document of a plan, unless asked for more."""


def plan_document(plan: Plan, *, top: int = TOP) -> dict[str, Any]:
    """Write a plan as a document: the search and its `top` best layouts, best first."""
    from simulator.search.search_caps import search_caps  # predict starts without it

    found = plan.found
    search = {
        "layouts": found.layouts,
        "feasible": found.feasible,
        "dropped": {reason: int(count) for reason, count in found.dropped.items()},
        "caps": [*search_caps(plan.scenario), *filter(None, [plan.sizes_left_out])],
        "seconds": None,
    }
    evidence = plan.evidence.document()
    rows = range(min(top, len(plan.estimate)))
    return {
        **head("plan", plan.scenario, plan.estimate),
        "search": search,
        "layouts": [
            {
                **layout_document(plan, i),
                **_refined(plan, i),
                "evidence": evidence,
            }
            for i in rows
        ],
        "even_stages": _even_stages(plan),
        "tried": [_tried(one) for one in plan.tried],
        "alternatives": [{"rank": place + 1, "why": why} for place, why in alternatives(plan)],
        "pareto": [_pareto(plan, int(i)) for i in plan.pareto],
        "bearing_defaults": [
            default_document(variant)
            for variant in bearing_defaults(plan.scenario, plan.estimate.layouts[:1])
        ],
        "other_trainings": [
            variant.values(*OTHER_TRAINING) for variant in other_trainings(plan.scenario)
        ],
        **_around(plan),
    }


def _around(plan: Plan) -> dict[str, Any]:
    """What the screen says around the numbers: the command, what binds, what would help, limits."""
    from simulator.interop.launch import launch_flags  # predict starts without them
    from simulator.planner.sensitivity import UPGRADE, binding, sensitivity
    from simulator.report.evidence import NOT_MODELLED, untimed

    return {
        "launch": launch_flags(plan.estimate.layouts, plan.scenario),
        "binds": binding(plan),
        "would_help": [upgrade.values(*UPGRADE) for upgrade in sensitivity(plan)],
        "limits": {
            "evidence": list(plan.evidence.sentences()),
            "untimed": list(untimed(plan.scenario.workload.architecture)),
            "not_modelled": [{"name": name, "meaning": why} for name, why in NOT_MODELLED],
        },
    }


def _tried(one: Tried) -> dict[str, Any]:
    """A batch and sequence of a plan over several."""
    return {name: _known(x) if name in _MAYBE else x for name, x in asdict(one).items()}


def _even_stages(plan: Plan) -> dict[str, Any] | None:
    """The best layout with its layers dealt evenly; null where they are, or were given."""
    even = plan.evenly
    if even is None:
        return None
    return {
        "step_time_s": float(even.step_time_s[0]),
        "memory_total_bytes": float(even.memory_total_bytes[0]),
        "fits": bool(even.fits[0]),
    }


def _pareto(plan: Plan, i: int) -> dict[str, Any]:
    """A layout of the front: its place in the plan, from 1, and what it is compared by."""
    estimate, result = plan.estimate, plan.outcome
    need = float(estimate.memory_total_bytes[i])
    return {
        "place": i + 1,
        "layout": layout_fields(plan.scenario, estimate.layouts, i),
        "step_time_s": float(estimate.step_time_s[i]),
        "days": _known(result.days[i]),
        "usd": _known(result.usd[i]),
        "memory_headroom": 1.0 - need / float(estimate.usable_bytes),
        "kwh": _known(result.kwh[i]),
    }


def _refined(plan: Plan, i: int) -> dict[str, Any]:
    """What playing a layout found; nothing where it was not played."""
    found = plan.refined
    if found is None or i >= len(found.steps):
        return {}
    before = {"closed_form_s": float(found.closed_form_s[i]), "place": int(found.places[i]) + 1}
    return {"simulation": found.steps[i].as_numbers() | before}


def predict_document(
    prediction: Prediction, memory: Fitting | None = None, correction: Correction | None = None
) -> dict[str, Any]:
    """Write a prediction as a document: one layout, and what else is given.

    Its memory by rank, and what measured runs corrected.
    """
    estimate = prediction.estimate
    layout = layout_document(prediction, 0)
    found = {
        **head("predict", prediction.scenario, estimate),
        "layouts": [{**layout, "evidence": prediction.evidence.document()}],
        "bearing_defaults": [
            default_document(variant)
            for variant in bearing_defaults(
                prediction.scenario,
                estimate.layouts,
                software=False,
                filled=prediction.defaults,
            )
        ],
    }
    if correction is not None:
        found["anchored_by"] = correction.document()
    if memory is not None:
        from simulator.report.memory_document import memory_document  # predict starts without it

        found["memory"] = memory_document(memory)
    return found


def head(command: str, scenario: Scenario, estimate: Estimate) -> dict[str, Any]:
    """Begin a document: of which form, version and command it is, and what was asked."""
    architecture = scenario.workload.architecture
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": command,
        "scenario": plain(scenario.document),
        "assumed_software": scenario.assumed_software,
        "elsewhere": scenario.elsewhere,
        "workload": {
            "name": architecture.name,
            "parameters": architecture.parameters,
            "active_parameters": architecture.active_parameters,
            "model_flop_per_step": float(estimate.model_flop),
        },
    }


def layout_document(answer: Plan | Prediction, i: int) -> dict[str, Any]:
    """One layout with its terms; they add up to `step_time_s` and `memory_total_bytes`."""
    estimate, outcome, certainty = answer.estimate, answer.outcome, answer.certainty
    whole, chances = spans(estimate, outcome, certainty), answer.goal_chances
    supplied = input_verdict(answer.scenario, estimate, i)
    price = outcome.price.usd_per_gpu_hour
    return {
        "layout": layout_fields(answer.scenario, estimate.layouts, i),
        "step_time_s": float(estimate.step_time_s[i]),
        "p10_s": float(certainty.p10_s[i]),
        "p90_s": float(certainty.p90_s[i]),
        "probability_fastest": _known(certainty.fastest[i]),
        "probability_beats_best": _known(certainty.beats_best[i]),
        "tokens_per_s_per_gpu": float(outcome.tokens_per_s_per_gpu[i]),
        "mfu": float(outcome.mfu[i]),
        "hfu": float(outcome.hfu[i]),
        "terms_s": _row(estimate.terms_s, i),
        "hidden_s": _row(estimate.hidden_s, i),
        "input": None if supplied is None else supplied.document(),
        "memory_bytes": _row(estimate.memory_bytes, i),
        "peak_stage": int(estimate.peak_stage[i]),
        "memory_total_bytes": float(estimate.memory_total_bytes[i]),
        "usable_bytes": float(estimate.usable_bytes),
        "host_memory_bytes": float(estimate.offloaded_bytes["host"][i]),
        "nvme_bytes": float(estimate.offloaded_bytes["nvme"][i]),
        "memory_p10_bytes": _known(estimate.memory_p10_bytes[i]),
        "memory_p90_bytes": _known(estimate.memory_p90_bytes[i]),
        "fits": bool(estimate.fits[i]),
        "memory_verdict": estimate.verdict_word(i),
        "goodput": _known(outcome.goodput[i]),
        **_lost(outcome, i),
        "days_ideal": _known(outcome.days_ideal[i]),
        "days": _known(outcome.days[i]),
        "days_p10": _known(whole.days[0][i]),
        "days_p90": _known(whole.days[1][i]),
        "gpu_hours": _known(outcome.gpu_hours[i]),
        "usd_per_gpu_hour": None if price is None else float(price),
        "usd": _known(outcome.usd[i]),
        "usd_p10": _known(whole.usd[0][i]),
        "usd_p90": _known(whole.usd[1][i]),
        "kwh": _known(outcome.kwh[i]),
        "kwh_p10": _known(whole.kwh[0][i]),
        "kwh_p90": _known(whole.kwh[1][i]),
        "deadline_chance": _known(chances.deadline[i]),
        "budget_chance": _known(chances.budget[i]),
    }


def _lost(outcome: Outcome, i: int) -> dict[str, Any]:
    """Shares of wall time that a run loses, by cause, and how often it is interrupted."""
    if outcome.real is None:
        return {"lost": None, "interruption_every_s": None}
    each = float(outcome.real.failures[i].sum())
    return {
        "lost": _row(outcome.real.phases, i),
        "interruption_every_s": 1.0 / each if each > 0.0 else None,
    }


def layout_fields(scenario: Scenario, layouts: Layouts, i: int = 0) -> dict[str, Any]:
    """One layout as `predict` takes it back, field by field.

    ``reshard_after_forward`` is null where it says nothing: no zero3, or a pipeline of software
    that then keeps parameters whole.
    """
    row = layouts.row(i)
    whole = row["pp"] > 1 and scenario.software.fsdp2.keeps_gathered_with_pipeline
    if row["sharding"] != "zero3" or whole:
        row["reshard_after_forward"] = None
    return row


def _row(columns: Mapping[str, Any], i: int) -> dict[str, float]:
    return {name: float(column[i]) for name, column in columns.items()}


def _known(value: Any) -> float | None:
    """A number, or None where the scenario does not say enough for one."""
    return float(value) if math.isfinite(value) else None


def plain(value: Any) -> Any:
    """Tables, lists and scalars as JSON has them; a date (which TOML has) becomes its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, type(None))) else str(value)
