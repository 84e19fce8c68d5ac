"""Predict one layout: fill what is not given, refuse what cannot run, estimate the rest.

A layout that does not fit in memory is an answer; one that cannot run at all is an error of the
input, worded by the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.step import Estimate, evaluate
from simulator.cost.terms import HIDDEN, TERMS
from simulator.errors import InputError, problem
from simulator.evidence.card import Card
from simulator.files import build
from simulator.hardware.cluster import NO_CLOSED_FORM, Cluster
from simulator.layout.layout_section import LayoutSection, wrong_reshard
from simulator.layout.layouts import RANK_ORDERS, Layouts
from simulator.layout.rules.divisibility_rules import WORLD
from simulator.layout.rules.feasibility import DEPEND_ON_DP, FEASIBLE, RULES, code_of, reasons
from simulator.planner.answer_evidence import scenario_evidence
from simulator.planner.layout_row import layout_rows
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.schedules.registry import SCHEDULES, usual
from simulator.search.best_layout import BestLayout
from simulator.search.certainty import Certainty, certainty
from simulator.search.defaults import complete
from simulator.search.outcome import Outcome
from simulator.search.refusal import contradictions, limits, refusal
from simulator.search.with_failures import check_finishes, priced
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload

if TYPE_CHECKING:
    from simulator.events.played import SimulatedStep


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction(BestLayout):
    """What one layout costs."""

    COMMAND: ClassVar[str] = "predict"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("*asked", "layouts=rows", "tight_alternative"),
        *("assumptions", "bearing_defaults", "caveats"),
    )

    scenario: Scenario
    estimate: Estimate
    """One row."""
    outcome: Outcome
    """One row."""
    certainty: Certainty
    """One row."""
    defaults: dict[str, Any]
    """Layout fields that nobody gave, and the value they took (``search/defaults.py``)."""
    searched: int | None = None
    """Layouts of which this is the best; None where fields that nobody gave took defaults."""

    @property
    def tight_alternative(self) -> None:
        """A TIGHT layout that is faster: there is none beside the one that was asked about."""
        return

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its one layout, as JSON says it."""
        return [layout_rows(self)[0].document() | {"evidence": self.evidence}]

    @property
    def assumptions(self) -> Any:
        """What it takes for granted and bears on it most, as ``planner/assumptions.py`` says it."""
        return import_module("simulator.planner.assumptions").assumptions(self)

    @property
    def bearing_defaults(self) -> Any:
        """What nobody chose and bears on the layout; each of them is priced again, further up."""
        tried = import_module("simulator.planner.assumptions").bearing_defaults
        layouts, filled = self.estimate.layouts, self.defaults
        return tried(self.scenario, layouts, software=False, filled=filled)

    @property
    def evidence(self) -> Card:
        """What measured runs and figures stand behind it."""
        return scenario_evidence(self.scenario, self.estimate, self.outcome)


def predict(scenario: Scenario, **layout: Any) -> Prediction:
    """Estimate time, memory and cost of a scenario's layout.

    Parameters
    ----------
    scenario : Scenario
        Its pinned layout fields are what is known.
    **layout
        Layout fields that are added to the pinned ones or replace them.

    Raises
    ------
    InputError
        If the layout cannot run at all, with the nearest value that can; if servers are of several
        kinds (``planner/mixed_prediction.py`` is for those).

    Examples
    --------
    >>> from simulator.scenario import make_scenario
    >>> scenario = make_scenario({
    ...     "model": {"name": "llama-3.1-8b"},
    ...     "training": {"sequence_length": 8192, "global_batch": 64},
    ...     "cluster": {"name": "dgx-h100", "gpus": 8},
    ... })
    >>> predict(scenario, tp=2).estimate.layouts.describe()
    'tp2 dp4 mb1 sp zero1'
    >>> predict(scenario, tp=3)
    Traceback (most recent call last):
    simulator.errors.InputError: scenario: layout.tp: must divide 32 attention heads, ...
    """
    refuse_mixed(scenario)
    pinned = _pinned(scenario, layout)
    if problems := limits(scenario, pinned) or contradictions(scenario, pinned):
        raise InputError(problems)
    row, defaults = complete(scenario, pinned)
    layouts = Layouts.of(**row)
    code = _reason(scenario, layouts)
    if code != FEASIBLE:
        raise InputError(refusal(scenario, pinned, row, code))
    estimate = evaluate(layouts, scenario.workload, scenario.cluster, scenario.software)
    document = {**scenario.document, "layout": dict(pinned)} if layout else scenario.document
    result = priced(estimate, scenario)
    check_finishes(result, scenario)
    return Prediction(
        scenario=replace(scenario, pinned=pinned, document=document),
        estimate=estimate,
        outcome=result,
        certainty=certainty(estimate, scenario.workload, scenario.cluster, scenario.software),
        defaults=defaults,
    )


def with_times(estimate: Estimate, steps: list[SimulatedStep]) -> Estimate:
    """Put step times and terms of simulated steps into the first rows."""
    count = len(steps)
    total = estimate.step_time_s.copy()
    total[:count] = [step.step_time_s for step in steps]
    terms = {term.name: estimate.terms_s[term.name].copy() for term in TERMS}
    hidden = {name: estimate.hidden_s[name].copy() for name in HIDDEN}
    for i, step in enumerate(steps):
        for name in terms:
            terms[name][i] = step.terms_s[name]
        for name in hidden:
            hidden[name][i] = step.hidden_s[name]
    return replace(estimate, step_time_s=total, terms_s=terms, hidden_s=hidden)


def refuse_tables(scenario: Scenario) -> None:
    """Refuse embedding tables: the dense model beside them is no answer to what was asked."""
    if scenario.refused:
        raise InputError(scenario.refused)


def refuse_mixed(scenario: Scenario) -> None:
    """Refuse a scenario whose servers are of several kinds, or one that another command answers."""
    refuse_tables(scenario)
    if scenario.cluster.kinds:
        raise InputError(f"{scenario.where}: cluster.groups: {NO_CLOSED_FORM}")


def _pinned(scenario: Scenario, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Pinned fields and overrides together, checked as the [layout] section is."""
    raw = {**scenario.pinned, **layout}
    section = build(LayoutSection, raw, where=scenario.where, prefix="layout")
    if wrong := wrong_reshard(section, scenario.software, scenario.where):
        raise InputError(wrong)
    pinned = section.pinned()
    order, schedule = pinned.get("rank_order"), pinned.get("schedule")
    if order is not None and order not in RANK_ORDERS:
        rule = "must order tp, cp, dp, pp"
        raise InputError(problem(scenario.where, "layout.rank_order", rule, order, RANK_ORDERS))
    words = {"schedule": "one schedule", "cp_kind": "one kind", "dispatcher": "one dispatcher"}
    for name, what in words.items():
        if pinned.get(name) == "any":
            rule = f"must be {what}; plan tries all of them"
            raise InputError(problem(scenario.where, f"layout.{name}", rule, "any"))
    meant = usual(pinned.get("vpp", 1))
    if schedule is not None and SCHEDULES[schedule].by_default and schedule != meant:
        rule = f"must be {meant} with vpp = {pinned.get('vpp', 1)}"
        raise InputError(problem(scenario.where, "layout.schedule", rule, schedule))
    return pinned


def _reason(scenario: Scenario, layouts: Layouts) -> int:
    """Reason code of one layout.

    A wrong number of GPUs is often the echo of another mistake (tp = 7 on 64 GPUs), so it is
    reported only if nothing else is wrong that does not follow from it.
    """
    cluster, gpus = scenario.cluster, int(layouts.world[0])
    same = cluster.with_gpus(gpus)
    code = int(reasons(layouts, scenario.workload, same, scenario.software)[0])
    if gpus == cluster.gpus or (code != FEASIBLE and RULES[code - 1] not in DEPEND_ON_DP):
        return code
    return code_of(WORLD)


def only_forward(layouts: Layouts) -> Layouts:
    """The same layouts with nothing computed again and nothing moved to hosts."""
    return layouts.replace(
        recompute="none", recompute_layers=0, recompute_modules="", offload_layers=0,
        optimizer_offload="none", parameter_offload="none",
    )  # fmt: skip


def frozen(model: Architecture, workload: Workload, *, head: bool) -> Workload:
    """The workload of a model of which nothing is trained.

    A head that is tied to a frozen embedding is not trained either: only forward passes are left.
    With `head` the model keeps a table of its own, as what is stored does.
    """
    recipe = replace(
        workload.recipe, lora_rank=0, quantised_base=False, frozen_layers=model.layers,
        frozen_embedding=True,
    )  # fmt: skip
    return Workload(
        architecture=model if head else replace(model, tied_embeddings=True), recipe=recipe
    )


def forward_pass_s(
    model: Architecture,
    layouts: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
) -> tuple[Ints, Floats]:
    """Seconds of a forward pass over a batch, for those layouts that the model can have.

    Returns
    -------
    rows, seconds : ndarray
        Indices of those layouts, and what a pass takes in each.
    """
    plain, passing = only_forward(layouts), frozen(model, workload, head=False)
    can = np.flatnonzero(reasons(plain, passing, cluster, software) == FEASIBLE)
    if not len(can):
        return can, np.zeros(0)
    passes = evaluate(plain[can], passing, cluster, software)
    return can, passes.step_time_s - passes.terms_s["optimizer"] - passes.terms_s["input"]
