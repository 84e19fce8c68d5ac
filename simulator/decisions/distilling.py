"""A student with its teacher beside it: a step, its memory, and the teacher ahead of time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from simulator.cost.step import evaluate
from simulator.decisions.offers import KEEP
from simulator.distillation.teacher_section import Distillation, loss_bytes, stored_bytes
from simulator.errors import InfeasibleError, InputError, problem
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.allowed import with_allowed
from simulator.planner.explore import explore
from simulator.planner.prediction import refuse_mixed
from simulator.planner.scaling import hopeless, why_not
from simulator.scenario import Scenario
from simulator.units import DAY_S, HOUR_S
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload

__all__ = ["Beside", "Distilled", "distil"]

_ROWS = 24
"""Fastest layouts of the student that are tried with the teacher."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """A layout with the teacher in it."""

    layout: dict[str, Any]
    described: str
    student_s: float
    teacher_s: float
    """Forward pass of the teacher, all micro-batches."""
    loss_s: float
    """Divergence of the outputs and its gradient."""
    memory_bytes: float
    """On the fullest GPU."""
    teacher_bytes: float
    """Its share that the teacher takes: weights and outputs."""

    @property
    def step_time_s(self) -> float:
        """Seconds of a step."""
        return self.student_s + self.teacher_s + self.loss_s


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """The answer."""

    scenario: Scenario
    section: Distillation
    teacher: Architecture
    beside: Beside | None
    """The fastest layout that holds both; None where none does."""
    reason: str
    """Why none does."""
    alone_s: float
    """The best step of the student, whose teacher ran ahead of time."""
    alone: str
    """Its layout."""
    stored_bytes: float | None
    """What the teacher's outputs would take on storage; None: no tokens given."""

    @property
    def days_ideal(self) -> float | None:
        """Days of the run with the teacher beside, without failures."""
        steps = self.scenario.workload.recipe.steps
        return (
            None
            if steps is None or self.beside is None
            else (steps * self.beside.step_time_s / DAY_S)
        )

    @property
    def teacher_gpu_hours(self) -> float | None:
        """Accelerator-hours that the teacher's passes take of the run, once."""
        steps = self.scenario.workload.recipe.steps
        if steps is None or self.beside is None:
            return None
        return steps * self.beside.teacher_s * self.scenario.cluster.gpus / HOUR_S


def distil(scenario: Scenario) -> Distilled:
    """Find the fastest layout that holds a student and its teacher, and what running ahead saves.

    The teacher has the student's layout: its forward pass is that of the same model with all of it
    frozen, its weights are kept as the software keeps frozen ones. What its pass could hide is not
    counted, so that a step is no longer than this.

    Raises
    ------
    InputError
        If there is no section [distillation], or the outputs cannot be compared.
    InfeasibleError
        If not even the student fits.
    """
    section = scenario.distillation
    if section is None:
        raise InputError(f"{scenario.where}: distillation: required section is missing")
    refuse_mixed(scenario)
    teacher = _teacher(scenario, section)
    if reason := hopeless(scenario, scenario.cluster):
        raise InfeasibleError(f"{scenario.where}: the student does not fit: {reason}")
    found = explore(
        scenario.workload, scenario.cluster, scenario.software, with_allowed(scenario), keep=KEEP
    )
    if not len(found.best):
        raise InfeasibleError(f"{scenario.where}: the student does not fit: {why_not(found)}")
    best, tried = found.best, []
    reason = "the teacher cannot have a layout that the student can"
    for i in range(min(len(best), _ROWS)):
        one = _beside(scenario, teacher, best.layouts.row(i))
        if one is None:
            continue
        one = replace(
            one,
            described=best.layouts.describe(i),
            student_s=float(best.step_time_s[i]),
            memory_bytes=float(best.memory_total_bytes[i]) + one.teacher_bytes,
        )
        if one.memory_bytes > float(best.usable_bytes):
            reason = "student and teacher together need more memory than usable"
            continue
        tried.append(one)
    recipe = scenario.workload.recipe
    stored = None
    if recipe.tokens is not None:
        stored = float(stored_bytes(recipe.tokens, section.kept_values))
    return Distilled(
        scenario=scenario,
        section=section,
        teacher=teacher,
        beside=min(tried, key=lambda one: one.step_time_s) if tried else None,
        reason="" if tried else reason,
        alone_s=float(best.step_time_s[0]),
        alone=best.layouts.describe(0),
        stored_bytes=stored,
    )


def _teacher(scenario: Scenario, section: Distillation) -> Architecture:
    """Read the teacher; its outputs must be the student's."""
    where, field = scenario.where, "distillation.teacher"
    found = presets.load(section.teacher, where=where, field=field)
    student = scenario.workload.architecture
    if found.vocabulary != student.vocabulary:
        rule = f"must have the {student.vocabulary:,} outputs of {student.name}"
        raise InputError(problem(where, field, rule, found.vocabulary))
    if scenario.workload.recipe.sequence_length > found.max_positions:
        rule = f"has {found.max_positions} positions; training.sequence_length must be at most"
        raise InputError(f"{where}: {field}: {rule} that")
    return found


def _beside(scenario: Scenario, teacher: Architecture, row: dict[str, Any]) -> Beside | None:
    """What the teacher adds to one layout; None where it cannot have it."""
    recipe, cluster, software = scenario.workload.recipe, scenario.cluster, scenario.software
    plain = {
        **row,
        "recompute": "none",
        "recompute_layers": 0,
        "recompute_modules": "",
        "offload_layers": 0,
        "optimizer_offload": "none",
    }
    # Tied to a frozen embedding the head is not trained either: only forward passes are left.
    frozen = replace(
        recipe, lora_rank=0, quantised_base=False, frozen_layers=teacher.layers,
        frozen_embedding=True,
    )  # fmt: skip
    layouts = Layouts.of(**plain)
    workload = Workload(
        architecture=replace(teacher, tied_embeddings=True), recipe=frozen, data=None
    )
    if int(reasons(layouts, workload, cluster, software)[0]) != FEASIBLE:
        return None
    passes = evaluate(layouts, workload, cluster, software)
    untied = replace(workload, architecture=teacher)
    kinds = evaluate(layouts, untied, cluster, software).memory_bytes
    tokens = row["micro_batch"] * recipe.sequence_length / row["cp"]
    outputs = teacher.vocabulary / row["tp"]
    kernel = cluster.accelerator.stream["loss"]
    rate = float(kernel.memory_fraction * cluster.accelerator.memory.bandwidth_bytes_per_s)
    times = recipe.global_batch / (row["micro_batch"] * row["dp"])
    weights = float(kinds["weights"][0] + kinds["gathered"][0])
    done = passes.step_time_s - passes.terms_s["optimizer"] - passes.terms_s["input"]
    return Beside(
        layout=row,
        described="",
        student_s=inf,
        teacher_s=float(done[0]),
        loss_s=float(times * loss_bytes(tokens, outputs) / rate),
        memory_bytes=inf,
        teacher_bytes=weights + float(np.asarray(4.0 * tokens * outputs)),
    )
