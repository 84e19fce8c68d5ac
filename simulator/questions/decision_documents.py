"""The JSON documents of compare and size: keys as docs/design.md fixes them, null for no value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator._version import __version__
from simulator.questions.compare.offers import Offer, nearest
from simulator.questions.versus.fabrics import FabricChoices, choice_row
from simulator.report.document import SCHEMA, layout_document, layout_fields, plain

if TYPE_CHECKING:
    from simulator.economics.ownership import RentOrBuy
    from simulator.economics.scaling_law import ScalingLaw
    from simulator.economics.unsure_totals import Span
    from simulator.questions.compare.answer import Comparison
    from simulator.questions.size.answer import Sized
    from simulator.questions.versus.answer import Versus
    from simulator.questions.versus.what_if import WhatIf
    from simulator.scenario import Scenario


def decision_head(command: str, scenario: Scenario) -> dict[str, Any]:
    """Begin a document: of which form, version and command it is, and what was asked."""
    architecture = scenario.workload.architecture
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": command,
        "scenario": plain(scenario.document),
        "workload": {
            "name": architecture.name,
            "parameters": architecture.parameters,
            "active_parameters": architecture.active_parameters,
        },
    }


def offer_document(row: Offer) -> dict[str, Any]:
    """One offer; the same keys whether it can run or not."""
    return {
        "cluster": row.cluster,
        "accelerator": row.accelerator,
        "gpus": row.gpus,
        "feasible": row.feasible,
        "reason": row.reason or None,
        "software": row.software or None,
        "global_batch": row.global_batch,
        "layout": row.layout,
        "step_time_s": row.step_time_s,
        "tokens_per_s_per_gpu": row.tokens_per_s_per_gpu,
        "mfu": row.mfu,
        "days": _span(row.days),
        "usd": _span(row.usd),
        "kwh": _span(row.kwh),
        "co2_kg": row.co2_kg,
        "goodput": row.goodput,
        "deadline_chance": row.deadline_chance,
        "budget_chance": row.budget_chance,
        "memory_headroom": row.memory_headroom,
        "memory_verdict": row.memory_verdict,
        "usd_per_gpu_hour": row.usd_per_gpu_hour,
        "price": row.price or None,
        "batch_divides": row.batch_divides,
        "next_good_gpus": row.next_good,
        "evidence": row.evidence.document() if row.evidence else None,
    }


def compare_document(answer: Comparison) -> dict[str, Any]:
    """Write a comparison: every offer, and offers by number where a view picks some."""
    place = {id(row): i for i, row in enumerate(answer.rows)}

    def chosen(rows: Sequence[Offer]) -> list[dict[str, Any]]:
        return [{"row": place[id(row)], **_short(row)} for row in rows]

    asked = answer.asked
    met = any(row.meets(asked) for row in answer.rows)
    near = None if met else nearest(answer.rows, asked)
    return {
        **decision_head("compare", answer.scenario),
        "asked": {
            "deadline_days": asked.deadline_days,
            "budget_usd": asked.budget_usd,
            "confidence": asked.confidence,
            "prices": dict(asked.prices),
        },
        "rows": [offer_document(row) for row in answer.rows],
        "at_equal_gpus": [
            {"gpus": gpus, "rows": chosen(rows)} for gpus, rows in answer.at_equal_gpus().items()
        ],
        "equal_budget_usd": answer.budget_usd,
        "at_equal_budget": chosen(answer.at_equal_budget()),
        "equal_deadline_days": answer.deadline_days,
        "at_deadline": chosen(answer.at_deadline()),
        "pareto": chosen(answer.pareto()),
        "curves": [
            {
                "cluster": curve.cluster,
                "gpus": list(curve.gpus),
                "speedup": list(curve.speedup),
                "mfu": list(curve.mfu),
                "usd": list(curve.usd),
                "marginal": list(curve.marginal),
                "knee_gpus": curve.knee,
            }
            for curve in answer.curves()
        ],
        "nearest": None if near is None else {"row": place[id(near)], **_short(near)},
    }


def size_document(answer: Sized) -> dict[str, Any]:
    """Write an answer to how many: the offer, what was tried, what the limits buy."""
    asked, bought = answer.asked, answer.compute
    found: dict[str, Any] = {
        **decision_head("size", answer.scenario),
        "asked": {
            "question": answer.question,
            "deadline_days": asked.deadline_days,
            "budget_usd": asked.budget_usd,
            "prices": dict(asked.prices),
        },
        "answer": None,
        "nearest": None,
        "tried": [offer_document(row) for row in answer.tried],
        "compute": None,
    }
    if answer.answer is not None:
        found["answer"] = {**offer_document(answer.answer), "confidence": asked.confidence}
    elif answer.nearest is not None:
        found["nearest"] = _short(answer.nearest)
    if bought is not None:
        found["compute"] = {
            "gpus": bought.offer.gpus,
            "days": bought.days,
            "binding": bought.binding,
            "model_flop": bought.flop,
            "most_tokens": bought.tokens,
            "loss": bought.loss,
            "optimal_parameters": bought.optimum.parameters,
            "optimal_tokens": bought.optimum.tokens,
            "optimal_loss": bought.optimum.loss,
            "law": _law(bought.law),
        }
    return found


def _law(law: ScalingLaw) -> dict[str, Any]:
    """A scaling law with its coefficients."""
    names = (
        *("irreducible_loss", "parameter_coefficient", "token_coefficient"),
        *("parameter_exponent", "token_exponent"),
    )
    return {"name": law.name, **{name: float(getattr(law, name)) for name in names}}


def rent_or_buy_document(answer: RentOrBuy) -> dict[str, Any]:
    """Write both ways: what each costs by cause and month, and when buying is ahead."""
    use = answer.use
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": "rent-or-buy",
        "cluster": answer.cluster,
        "gpus": use.gpus,
        "page": answer.page.name,
        "use": {
            "in_use": use.in_use,
            "goodput": use.goodput,
            "months": use.months,
            "cooling": use.cooling,
        },
        "once_usd": answer.buying.once,
        "per_month_usd": answer.buying.per_month,
        "rents_usd_per_month": answer.rents_usd_per_month,
        "break_even_month": answer.break_even_month,
        "usd_per_useful_gpu_hour": answer.usd_per_useful_gpu_hour,
        "owned_usd": answer.owned_usd.tolist(),
        "rented_usd": {tier: usd.tolist() for tier, usd in answer.rented_usd.items()},
    }


def what_if_document(answer: WhatIf) -> dict[str, Any]:
    """Write both answers, and the old layout on the changed machine."""
    return {
        **decision_head("what-if", answer.before.scenario),
        "change": {change.name: change.text for change in answer.changes},
        "before": layout_document(answer.before, 0),
        "after": layout_document(answer.after, 0),
        "same_layout": layout_document(answer.same, 0) if answer.same else None,
        "same_layout_reason": answer.same_reason or None,
        "step_time_ratio": answer.ratio,
    }


def versus_document(answer: Versus) -> dict[str, Any]:
    """Write both sides, term by term."""
    estimate, result, sure = answer.estimate, answer.outcome, answer.certainty

    def side(i: int) -> dict[str, Any]:
        return {
            "asked": plain(answer.sides[i]),
            "layout": layout_fields(answer.scenario, estimate.layouts, i),
            "step_time_s": float(estimate.step_time_s[i]),
            "p10_s": float(sure.p10_s[i]),
            "p90_s": float(sure.p90_s[i]),
            "mfu": float(result.mfu[i]),
            "memory_total_bytes": float(estimate.memory_total_bytes[i]),
            "fits": bool(estimate.fits[i]),
        }

    return {
        **decision_head("versus", answer.scenario),
        "searched": answer.searched,
        "a": side(0),
        "b": side(1),
        "chance_a_faster": answer.chance_a_faster,
        "tie": answer.tie,
        "terms": {name: list(pair) for name, pair in answer.terms.items()},
    }


def _short(row: Offer) -> dict[str, Any]:
    """What a view says of an offer."""
    return {
        "cluster": row.cluster,
        "gpus": row.gpus,
        "step_time_s": row.step_time_s,
        "days_p50": row.days.p50 if row.days else None,
        "usd_p50": row.usd.p50 if row.usd else None,
    }


def _span(span: Span | None) -> dict[str, float | None]:
    return span.document() if span is not None else dict.fromkeys(("p10", "p50", "p90"))


def fabrics_document(answer: FabricChoices) -> dict[str, Any]:
    """Write every fabric, the fastest first, and which none beats in time and price."""
    front = {id(row) for row in answer.front()}
    scenario = answer.scenario
    return {
        "schema": 1,
        "version": __version__,
        "command": "what-if --fabrics",
        "model": scenario.workload.architecture.name,
        "cluster": {"name": scenario.cluster.name, "gpus": scenario.cluster.gpus},
        "rows": [{**choice_row(row), "front": id(row) in front} for row in answer.rows],
    }
