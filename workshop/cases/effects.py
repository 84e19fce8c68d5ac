"""Published effect sizes: what one change of a run is worth, predicted beside reported.

validation/effects.toml says which runs and which change. Both steps are played on discrete events;
nothing is fitted to what the papers report. An effect is a ratio of two steps of one machine, in
which errors that both have in common cancel: it tests a mechanism, not a level. What the software
was told to do (graphs, overlap of expert traffic, modules that are recomputed) no scenario states:
such runs are rows of the tables of measured runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from simulator import catalogue
from simulator.cost.collectives.calls import all_reduce_s
from simulator.errors import InputError, problem
from simulator.events.played import SimulatedStep
from simulator.events.simulated_step import simulate
from simulator.files import Number, build, read_toml, record
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group
from simulator.layout.rules.divisibility_rules import STAGES
from simulator.layout.rules.feasibility import FEASIBLE, REASONS, code_of, reasons
from simulator.measured.replay import Run, load_tables, replay
from simulator.measured.rows import COLUMNS, read_runs
from simulator.measured.table_kinds import table_kind
from simulator.scenario import Scenario, make_scenario
from simulator.schedules.registry import SCHEDULES, WORDS
from simulator.search.defaults import complete
from workshop.cases.switch_pairs import NOISE, is_near

Measure = Literal["throughput", "layer_time", "step_time", "optimizer_share", "all_reduce_time"]

_OUTSIDE_LAYERS = ("optimizer", "dp")
_MANY_STAGES = code_of(STAGES)
"""Allowed where embedding and head are a chunk each."""


@record
class Effect:
    """One published effect: two runs, and what the change between them was measured to be worth."""

    group: str
    """The technique."""
    what: str
    """What is compared, in words."""
    source: str
    """Authors, year, arXiv number, and the table, figure or section."""
    verified: bool
    """Whether the reported figure was read in the text of the source, not recalled."""
    run: str
    """The run of [runs] that both sides share."""
    measure: Measure
    """What changes. throughput: sequences per second. step_time: seconds per step. layer_time:
    forward and backward pass of one layer. optimizer_share: the optimizer's part of the step of
    `after`, no ratio. all_reduce_time: seconds of one all-reduce."""
    least: Number
    """Smallest effect that the source reports: after / before - 1; of optimizer_share the share."""
    most: Number | None = None
    """Largest one; none given: the source gives one number, `least`."""
    or_more: bool = False
    """The source gives a lower bound."""
    barrier: bool = True
    """Whether ranks end a step together. false: zero-bubble schedules run with post-validation of
    the optimizer step (Qi et al. 2024, section 4; training.optimizer_post_validation)."""
    before: dict[str, Any]
    """What `before` has in place of the run: layout fields, or section.field of a scenario, or
    columns of a measured run; of all_reduce_time its `ranks` and `message_bytes`."""
    after: dict[str, Any]
    """What `after` has."""
    remark: str = ""
    """What is assumed, and why the prediction is off where it is."""


@record
class _Effects:
    """validation/effects.toml."""

    runs: dict[str, dict[str, Any]]
    """By the name of a run: sections of a scenario; or ``measured``, the run_id of a row of
    validation/runs, and what ``columns`` puts in place of its own."""
    effects: tuple[Effect, ...]
    """Every effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedEffect:
    """An effect with its prediction."""

    effect: Effect
    predicted: float

    @property
    def miss(self) -> float:
        """How far the prediction is outside of what is reported; 0 inside."""
        effect = self.effect
        most = math.inf if effect.or_more else effect.least if effect.most is None else effect.most
        return max(self.predicted - most, 0.0) + min(self.predicted - effect.least, 0.0)

    @property
    def right(self) -> bool | None:
        """Whether the prediction has the sign that is reported; None within noise."""
        effect = self.effect
        size = effect.least if effect.most is None else (effect.least + effect.most) / 2.0
        return None if abs(size) < NOISE else self.predicted * size > 0.0

    @property
    def near(self) -> bool:
        """Whether it is within 3 points of what is reported, or within a third of it."""
        return is_near(self.miss, self.effect.least)

    def figures(self) -> dict[str, Any]:
        """Plain numbers and words, as docs/accuracy.json has them."""
        effect = self.effect
        names = (
            "group",
            "what",
            "source",
            "verified",
            "measure",
            "least",
            "most",
            "or_more",
            "remark",
        )
        scored = {"predicted": self.predicted, "right": self.right, "near": self.near}
        return {**{name: getattr(effect, name) for name in names}, **scored, "miss": self.miss}


def load_effects() -> tuple[tuple[Effect, ...], dict[str, dict[str, Any]]]:
    """Read validation/effects.toml: the effects, and the runs that they name.

    Raises
    ------
    InputError
        If a field is wrong, or an effect names a run that is not there.
    """
    path = catalogue.folder("validation") / "effects.toml"
    found = build(_Effects, read_toml(path), where=str(path))
    if wrong := [effect for effect in found.effects if effect.run not in found.runs]:
        rule = "must be a run of [runs]"
        raise InputError(problem(str(path), "run", rule, one.run, found.runs) for one in wrong)
    for name, run in found.runs.items():
        if "measured" in run and run["measured"] not in (known := _measured_rows()):
            rule = "must be the run_id of a row of validation/runs"
            where = f"runs.{name}.measured"
            raise InputError([problem(str(path), where, rule, run["measured"], known)])
    return found.effects, found.runs


def effects() -> list[PredictedEffect]:
    """Predict every effect of validation/effects.toml."""
    listed, runs = load_effects()
    return [predict_effect(one, runs[one.run]) for one in listed]


def predict_effect(effect: Effect, run: Mapping[str, Any]) -> PredictedEffect:
    """Predict one effect of a run."""
    if effect.measure == "optimizer_share":
        step = _simulated(run, effect.after)[0]
        return PredictedEffect(
            effect=effect, predicted=step.terms_s["optimizer"] / step.step_time_s
        )
    before, after = (_measured(effect, run, side) for side in (effect.before, effect.after))
    return PredictedEffect(effect=effect, predicted=after / before - 1.0)


def _measured(effect: Effect, run: Mapping[str, Any], side: Mapping[str, Any]) -> float:
    """What is measured, of one side."""
    if effect.measure == "all_reduce_time":
        return _all_reduce_s(run, side)
    if "measured" in run:
        return _of_row(effect, run, side)
    step, scenario = _simulated(run, side, barrier=effect.barrier)
    seconds = step.step_time_s
    if effect.measure == "throughput":
        return scenario.workload.recipe.global_batch / seconds
    if effect.measure == "step_time":
        return seconds
    half, _ = _simulated(run, side, halved=True)
    return _in_layers_s(step) - _in_layers_s(half)


@lru_cache(maxsize=1)
def _measured_rows() -> dict[str, Mapping[str, str]]:
    """The rows of validation/runs by run_id."""
    folder = catalogue.folder("validation") / "runs"
    tables = [path for path in sorted(folder.glob("*.csv")) if table_kind(path) == "runs"]
    return {run.get("run_id"): run.fields for run in read_runs(tables)}


def _of_row(effect: Effect, run: Mapping[str, Any], side: Mapping[str, Any]) -> float:
    """What is measured, of a row of the tables of measured runs with columns changed."""
    where = f"validation/effects.toml: {effect.what}"
    columns = {**run.get("columns", {}), **side}
    if unknown := sorted(set(columns) - set(COLUMNS)):
        rule = "must be a column of validation/runs"
        raise InputError([problem(where, "before, after", rule, unknown[0], COLUMNS)])
    row = {**_measured_rows()[run["measured"]], **{name: str(x) for name, x in columns.items()}}
    one: Run = replay(row, load_tables(), where=where)
    seconds = simulate(one.layout, one.workload, one.cluster, one.software).step_time_s
    batch = one.workload.recipe.global_batch
    return batch / seconds if effect.measure == "throughput" else seconds


def _in_layers_s(step: SimulatedStep) -> float:
    """Time without what comes after the passes."""
    return step.step_time_s - sum(step.terms_s[name] for name in _OUTSIDE_LAYERS)


def _simulated(
    run: Mapping[str, Any], side: Mapping[str, Any], *, halved: bool = False, barrier: bool = True
) -> tuple[SimulatedStep, Scenario]:
    """Play the step of one side; `halved`: with half of the layers, to set layers apart."""
    scenario = _scenario(run, side, barrier=barrier)
    workload = scenario.workload
    if halved:
        arch = workload.architecture
        kinds = arch.layer_kinds[: len(arch.layer_kinds) // 2]
        workload = replace(workload, architecture=replace(arch, layer_kinds=kinds))
    row, _ = complete(scenario, scenario.pinned)
    layouts = Layouts.of(**row)
    code = int(reasons(layouts, workload, scenario.cluster, scenario.software)[0])
    chunks, layers = int(layouts.pp[0] * layouts.vpp[0]), workload.architecture.layers
    if code != FEASIBLE and not (code == _MANY_STAGES and chunks <= layers + 2):
        raise InputError(f"{scenario.where}: the layout cannot run: {REASONS[code]}")
    return simulate(layouts, workload, scenario.cluster, scenario.software), scenario


def _scenario(run: Mapping[str, Any], side: Mapping[str, Any], *, barrier: bool = True) -> Scenario:
    """The scenario of one side, by software that runs whatever the paper's own code ran."""
    document = {name: dict(section) for name, section in run.items()}
    for name, value in side.items():
        section, _, field = name.rpartition(".")
        document.setdefault(section or "layout", {})[field] = value
    named = SCHEDULES.get(document.get("layout", {}).get("schedule", ""))
    if named is not None and named.post_validated:
        document["training"]["optimizer_post_validation"] = not barrier
    scenario = make_scenario(document, where="validation/effects.toml")
    supports = replace(
        scenario.software.supports,
        schedules=WORDS,
        uneven_stages=True,
        post_validation=True,
    )
    return replace(scenario, software=replace(scenario.software, supports=supports))


def _all_reduce_s(run: Mapping[str, Any], side: Mapping[str, Any]) -> float:
    """Time of one all-reduce inside a server, by the formula that prices training steps."""
    if missing := {"ranks", "message_bytes"} ^ set(side):
        rule = "all_reduce_time takes ranks and message_bytes"
        raise InputError(problem("validation/effects.toml", "before, after", rule, sorted(missing)))
    ranks = np.array([int(side["ranks"])])
    cluster = load_cluster(run["cluster"]["name"], int(run["cluster"]["gpus"]))
    group = Group(size=ranks, local=ranks)
    return float(all_reduce_s(cluster, np.array([float(side["message_bytes"])]), group)[0])
