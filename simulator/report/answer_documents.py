"""The JSON document of every answer, as ``--json`` prints it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.decisions.changed_machine import WhatIf
from simulator.decisions.cluster_comparison import Comparison
from simulator.decisions.distilling import Distilled
from simulator.decisions.fabric_choices import FabricChoices
from simulator.decisions.head_to_head import Versus
from simulator.decisions.job_schedule import JobSchedule
from simulator.decisions.parameter_servers import Served
from simulator.decisions.several_sites import SeveralSites
from simulator.decisions.sizing import Sized
from simulator.economics.ownership import RentOrBuy
from simulator.errors import InputError
from simulator.planner.mixed_answer import MixedPlan
from simulator.planner.mixed_prediction import MixedPrediction
from simulator.planner.prediction import Prediction
from simulator.planner.search import Plan
from simulator.planner.sparse_step import Recommended
from simulator.report import decision_documents, technique_documents
from simulator.report.document import plan_document, predict_document
from simulator.report.mixed_document import mixed_document, mixed_prediction_document

__all__ = ["answer_document"]


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
