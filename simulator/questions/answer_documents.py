"""The JSON document of every answer, as ``--json`` prints it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.economics.ownership import RentOrBuy
from simulator.errors import InputError
from simulator.planner.mixed_plan import MixedPlan
from simulator.planner.mixed_prediction import MixedPrediction
from simulator.planner.plan import Plan
from simulator.planner.prediction import Prediction
from simulator.questions import decision_documents, technique_documents
from simulator.questions.compare.answer import Comparison
from simulator.questions.distillation.answer import Distilled
from simulator.questions.job_schedule.answer import JobSchedule
from simulator.questions.parameter_server.answer import Served
from simulator.questions.sites.answer import SeveralSites
from simulator.questions.size.answer import Sized
from simulator.questions.sparse.answer import Recommended
from simulator.questions.versus.answer import Versus
from simulator.questions.versus.fabrics import FabricChoices
from simulator.questions.versus.what_if import WhatIf
from simulator.report.document import plan_document, predict_document
from simulator.report.mixed_document import mixed_document, mixed_prediction_document


def answer_document(answer: Any) -> dict[str, Any]:
    """Write an answer as plain values.

    Raises
    ------
    InputError
        If it is of a kind that has no document by itself.
    """
    if type(answer) not in _WRITERS:
        raise InputError(f"document: {type(answer).__name__} has none; to_frame() has its tables")
    return _WRITERS[type(answer)](answer)


_WRITERS: dict[type, Callable[..., dict[str, Any]]] = {
    Plan: plan_document,
    Prediction: predict_document,
    MixedPlan: mixed_document,
    MixedPrediction: mixed_prediction_document,
    Versus: decision_documents.versus_document,
    WhatIf: decision_documents.what_if_document,
    Sized: decision_documents.size_document,
    Comparison: decision_documents.compare_document,
    FabricChoices: decision_documents.fabrics_document,
    RentOrBuy: decision_documents.rent_or_buy_document,
    SeveralSites: technique_documents.sites_document,
    Served: technique_documents.parameter_server_document,
    Recommended: technique_documents.recommender_document,
    Distilled: technique_documents.distillation_document,
    JobSchedule: technique_documents.schedule_document,
}
