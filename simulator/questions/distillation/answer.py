"""A student with its teacher beside it: a step, its memory, and the teacher ahead of time."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from simulator.answers import SCENARIO, Answer
from simulator.cost.estimate import verdict_word
from simulator.cost.step import Estimate, evaluate
from simulator.distillation import (
    Distillation,
    log_probability_bytes,
    loss_bytes,
    stored_bytes,
)
from simulator.errors import InfeasibleError, InputError, problem
from simulator.frames import DataFrame, frame_of_rows
from simulator.planner.changes import LEAST_STEP, SEARCHES, with_less_memory
from simulator.planner.prediction import forward_pass_s, frozen, only_forward, refuse_mixed
from simulator.questions.run_options import unjudged
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.defaults import layout_fields
from simulator.search.fastest import fastest
from simulator.units import DAY_S, HOUR_S, P90, show_seconds
from simulator.workload import presets
from simulator.workload.architecture import Architecture

_REFERENCE = (
    "The teacher is the model before training: under adapters their base, priced without what turns"
    " 4-bit weights into 16 bit; else a copy of its own."
)
_TIGHT = ("Student and teacher may not fit together: their P90 is over the limit.",)
_ROWS = 24
"""Fastest layouts of the student that are tried with the teacher."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """A layout with the teacher in it."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("layout", "step_time_s", "student_s", "teacher_s", "loss_s", "memory_bytes"),
        *("memory_p90_bytes", "verdict", "teacher_bytes"),
    )

    layout: dict[str, Any]
    described: str
    student_s: float
    teacher_s: float
    """Forward pass of the teacher, all micro-batches."""
    loss_s: float
    """What compares the outputs of both: a divergence and its gradient, or log-probabilities."""
    memory_bytes: float
    """On the worst rank."""
    memory_spread: float
    usable_bytes: float
    teacher_bytes: float
    """Its share that the teacher takes: outputs, and weights where it has its own."""

    @property
    def step_time_s(self) -> float:
        """Seconds of a step."""
        return self.student_s + self.teacher_s + self.loss_s

    @property
    def verdict(self) -> str:
        """FITS, TIGHT or OOM."""
        return verdict_word(self.memory_bytes, self.memory_spread, self.usable_bytes)

    @property
    def memory_p90_bytes(self) -> float:
        """The same on the worst rank, P90."""
        return float(self.memory_bytes * np.exp(P90 * self.memory_spread))


@dataclass(frozen=True, kw_only=True, repr=False)
class Distilled(Answer):
    """The answer."""

    COMMAND: ClassVar[str] = "distil"
    KEYS: ClassVar[tuple[str, ...]] = (
        *(*SCENARIO, "teacher=named_teacher", "feasible", "reason?", "beside", "days_ideal"),
        *("ahead", "caveats"),
    )

    scenario: Scenario
    section: Distillation
    teacher: Architecture
    beside: Beside | None
    """The fastest layout that holds both, its P90 too unless none does; None where none fits."""
    reason: str
    """Why none does."""
    alone_s: float
    """The best step of the student, whose teacher ran ahead of time."""
    alone: str
    """Its layout."""
    stored_bytes: float | None
    """What the teacher's outputs would take on storage; None: no tokens given."""

    @property
    def line(self) -> str:
        """All of it in a few words."""
        beside = self.reason if self.beside is None else show_seconds(self.beside.step_time_s)
        names = f"{self.scenario.workload.architecture.name} of {self.teacher.name}"
        return f"{names}, beside: {beside}, ahead of time: {show_seconds(self.alone_s)}"

    def to_frame(self) -> DataFrame:
        """One row per way: seconds of a step by part, bytes of the worst rank."""
        rows: list[dict[str, Any]] = []
        if (one := self.beside) is not None:
            parts = {"student_s": one.student_s, "teacher_s": one.teacher_s, "loss_s": one.loss_s}
            whole = {"step_time_s": one.step_time_s, "memory_bytes": one.memory_bytes}
            rows.append({"way": "beside", "layout": one.described, **parts, **whole})
        alone = {"student_s": self.alone_s, "teacher_s": 0.0, "loss_s": 0.0}
        ahead = {"way": "ahead of time", "layout": self.alone, **alone}
        return frame_of_rows([*rows, {**ahead, "step_time_s": self.alone_s}])

    @property
    def named_teacher(self) -> dict[str, Any]:
        """The teacher as JSON says it."""
        return {"name": self.teacher.name, "parameters": self.teacher.parameters}

    @property
    def feasible(self) -> bool:
        """Whether some layout holds both."""
        return self.beside is not None

    @property
    def ahead(self) -> dict[str, float | None]:
        """The teacher ahead of time, as JSON says it."""
        return {
            "step_time_s": self.alone_s,
            "stored_bytes": self.stored_bytes,
            "teacher_gpu_hours": self.teacher_gpu_hours,
        }

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is taken for granted, and what is not in the numbers."""
        return (
            *(_TIGHT if self.beside is not None and self.beside.verdict == "TIGHT" else ()),
            "The teacher has the student's layout and its weights are kept as the software keeps"
            " frozen ones; nothing of its pass is hidden, so that a step is no longer.",
            *([_REFERENCE] if self.section.teacher is None else []),
            "Days are ideal ones. What the student gains of its teacher is not modelled.",
            *unjudged(self.scenario.goal),
        )

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


def distil(scenario: Scenario, student: Estimate | None = None) -> Distilled:
    """Find the fastest layout that holds a student and its teacher, and what running ahead saves.

    With the estimate of a `student` none but its layouts are tried.

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
    section = scenario.required(Distillation)
    refuse_mixed(scenario)
    teacher = _teacher(scenario, section)
    best = _students(scenario) if student is None else student
    beside, reason = _fastest_beside(
        scenario, teacher, best, searches=SEARCHES if student is None else 1
    )
    recipe = scenario.workload.recipe
    stored = None
    if recipe.tokens is not None and section.compares == "outputs":
        stored = float(stored_bytes(recipe.tokens, section.kept_values))
    elif recipe.tokens is not None:
        stored = 4.0 * recipe.tokens / recipe.mean_length  # a number of 32 bits for each answer
    return Distilled(
        scenario=scenario,
        section=section,
        teacher=teacher,
        beside=beside,
        reason=reason,
        alone_s=float(best.step_time_s[0]),
        alone=best.layouts.describe(0),
        stored_bytes=stored,
    )


def _students(scenario: Scenario) -> Estimate:
    """Layouts that hold the student, fastest first."""
    searched = fastest(scenario)
    if searched.reason:
        raise InfeasibleError(f"{scenario.where}: the student does not fit: {searched.reason}")
    return searched.best


def _teacher(scenario: Scenario, section: Distillation) -> Architecture:
    """Read the teacher; its outputs must be the student's."""
    where, field = scenario.where, "distillation.teacher"
    student = scenario.workload.architecture
    if section.teacher is None:
        return student
    teacher = presets.load(section.teacher, where=where, field=field)
    if teacher.vocabulary != student.vocabulary:
        rule = f"must have the {student.vocabulary:,} outputs of {student.name}"
        raise InputError(problem(where, field, rule, teacher.vocabulary))
    if scenario.workload.recipe.sequence_length > teacher.max_positions:
        rule = f"has {teacher.max_positions} positions; training.sequence_length must be at most"
        raise InputError(f"{where}: {field}: {rule} that")
    return teacher


def _fastest_beside(
    scenario: Scenario, teacher: Architecture, student: Estimate, *, searches: int
) -> tuple[Beside | None, str]:
    """The fastest layout that holds both, or why none does.

    One whose P90 fits goes before all others. Where none fits of the student's layouts, others are
    searched in less memory by what those lack.
    """
    tight: list[Beside] = []
    usable, less, some = float(student.usable_bytes), 0.0, []
    for _ in range(searches):
        some = _beside(scenario, teacher, student.take(np.arange(min(len(student), _ROWS))), usable)
        tight += [beside for beside in some if beside.verdict == "TIGHT"]
        fitting = [beside for beside in some if beside.verdict == "FITS"]
        fitting = fitting or (tight if scenario.allow_tight else [])
        if fitting:
            return min(fitting, key=_step_time_s), ""
        lack = min((beside.memory_p90_bytes for beside in some), default=usable) - usable
        less += max(lack, LEAST_STEP * usable)
        searched = fastest(with_less_memory(scenario, less)) if some and less < usable else None
        if searched is None or searched.reason:
            break
        student = searched.best
    if tight:
        return min(tight, key=_step_time_s), ""
    if some:
        return None, "student and teacher together need more memory than usable"
    return None, "the teacher cannot have a layout that the student can"


def _step_time_s(beside: Beside) -> float:
    return beside.step_time_s


def _beside(
    scenario: Scenario, teacher: Architecture, student: Estimate, usable_bytes: float
) -> list[Beside]:
    """Put the teacher into those of the student's layouts that it can have."""
    recipe, cluster, software = scenario.workload.recipe, scenario.cluster, scenario.software
    can, teacher_s = forward_pass_s(teacher, student.layouts, scenario.workload, cluster, software)
    if not len(can):
        return []
    student = student.take(can)
    plain, whole = only_forward(student.layouts), frozen(teacher, scenario.workload, head=True)
    kinds = evaluate(plain, whole, cluster, software).memory_bytes
    tokens = plain.micro_batch * recipe.sequence_length / plain.cp
    outputs = teacher.vocabulary / plain.tp
    kernel = cluster.accelerator.stream["loss"]
    rate = float(kernel.memory_fraction * cluster.accelerator.memory.bandwidth_bytes_per_s)
    times = recipe.global_batch / (plain.micro_batch * plain.dp)
    section = scenario.required(Distillation)
    compared = loss_bytes if section.compares == "outputs" else log_probability_bytes
    loss_s = times * compared(tokens, outputs) / rate
    weights = 0.0 if section.teacher is None and recipe.lora_rank else 1.0
    bytes_ = weights * (kinds["weights"] + kinds["gathered"]) + 4.0 * tokens * outputs
    memory = student.memory_total_bytes + bytes_
    spread = np.nan_to_num(student.memory_spread)
    return [
        Beside(
            layout=layout_fields(scenario, student.layouts, i),
            described=student.layouts.describe(i),
            student_s=float(student.step_time_s[i]),
            teacher_s=float(teacher_s[i]),
            loss_s=float(loss_s[i]),
            memory_bytes=float(memory[i]),
            memory_spread=float(spread[i]),
            usable_bytes=usable_bytes,
            teacher_bytes=float(bytes_[i]),
        )
        for i in range(len(student))
    ]
