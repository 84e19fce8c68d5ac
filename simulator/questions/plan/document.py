"""The JSON document of a plan: the search, its best layouts, what the screen says around them."""

from __future__ import annotations

from typing import Any

from simulator.answers import encoded, head, plain
from simulator.interop.exporting import launch_flags
from simulator.planner.assumptions import bearing_defaults
from simulator.planner.layout_row import LayoutRow, layout_rows
from simulator.planner.plan import Plan, alternatives
from simulator.planner.sensitivity import binding, memory_margin, sensitivity, surer_words
from simulator.planner.variants import other_trainings
from simulator.report.evidence import NOT_MODELLED, ties, untimed
from simulator.report.wording import verdict_sentences
from simulator.search.certainty import TIE
from simulator.search.search_caps import search_caps

TOP = 20
"""Layouts in the document, unless asked for more."""

_PLACE = ("place=rank", "layout", "step_time_s", "days", "usd", "memory_headroom", "kwh")
_EVENLY = ("step_time_s=step_time_s.0", "memory_total_bytes=memory_total_bytes.0", "fits=fits.0")


def plan_document(plan: Plan, *, top: int | None = None) -> dict[str, Any]:
    """Write a plan as a document with its `top` best layouts, best first."""
    found, even = plan.found, plan.evenly
    best = layout_rows(plan, range(min(top or TOP, len(plan.estimate))))
    search = {
        "layouts": found.layouts,
        "feasible": found.feasible,
        "dropped": found.dropped,
        "caps": [*search_caps(plan.scenario), *filter(None, [plan.sizes_left_out])],
        "seconds": None,
    }
    document = {
        **plan.asked,
        "search": search,
        "summary": verdict_sentences(plan),
        "layouts": [_layout(plan, row) for row in best],
        "tight_alternative": _tight(plan),
        "tie": {
            "layouts": plan.certainty.tied,
            "chance": TIE,
            "sentences": [*filter(None, (ties(plan.certainty.tied, len(best)), surer_words(plan)))],
        },
        "assumptions": plan.assumptions,
        "even_stages": None if even is None else encoded(even, _EVENLY),
        "tried": plan.tried,
        "alternatives": [{"rank": place + 1, "why": why} for place, why in alternatives(plan)],
        "pareto": [encoded(row, _PLACE) for row in layout_rows(plan, map(int, plan.pareto))],
        "bearing_defaults": bearing_defaults(plan.scenario, plan.estimate.layouts),
        "other_trainings": other_trainings(plan.scenario),
        "launch": launch_flags(plan.estimate.layouts, plan.scenario),
        "binds": binding(plan),
        "would_help": sensitivity(plan),
        "limits": {
            "evidence": plan.evidence.sentences(),
            "untimed": untimed(plan.scenario.workload),
            "not_modelled": [{"name": name, "meaning": why} for name, why in NOT_MODELLED],
        },
        "caveats": plan.caveats,
    }
    return {**head("plan"), **plain(document)}


def _tight(plan: Plan) -> dict[str, Any] | None:
    """The layout that is faster, if a trial run shows that it fits."""
    place = plan.tight_alternative
    if place is None:
        return None
    step_s, (row,) = plan.estimate.step_time_s, layout_rows(plan, [place])
    return {
        "rank": row.rank,
        **row.document(),
        "faster": 1.0 - float(step_s[place] / step_s[0]),
        "fit_chance": float(plan.estimate.fit_chance[place]),
        "sentence": memory_margin(plan),
    }


def _layout(plan: Plan, row: LayoutRow) -> dict[str, Any]:
    """One layout, what playing it found where it was played, and its evidence."""
    found, i = plan.refined, row.rank - 1
    played = {}
    if found is not None and i < len(found.steps):
        before = {"closed_form_s": found.closed_form_s[i], "place": int(found.places[i]) + 1}
        played = {"simulation": found.steps[i].as_numbers() | before}
    return {**row.document(), **played, "evidence": plan.evidence}
