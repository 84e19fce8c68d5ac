"""The screen of `foreshard distil`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType

from simulator.cli.screen import heading, notes
from simulator.glossary import CAVEATS
from simulator.units import show_bytes, show_count, show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.questions.distillation.answer import Beside, Distilled


def screen(answer: Distilled) -> Iterator[RenderableType]:
    """Give a step with the teacher beside it, and what running it ahead takes and saves."""
    teacher = answer.teacher
    yield heading(answer.scenario, priced="distillation")
    yield f"teacher: {teacher.name}, {show_count(teacher.parameters)} parameters"
    yield ""
    if answer.beside is None:
        yield notes("The teacher beside", [answer.reason])
    else:
        yield notes("The teacher beside", _beside(answer, answer.beside))
    yield notes("The teacher ahead of time", _ahead(answer))
    yield notes(CAVEATS, answer.caveats)


def _beside(answer: Distilled, one: Beside) -> list[str]:
    lines = [
        f"{one.described}: {show_seconds(one.step_time_s)} a step: student"
        f" {show_seconds(one.student_s)}, teacher's forward pass {show_seconds(one.teacher_s)},"
        f" comparing the outputs {show_seconds(one.loss_s)}",
        f"{show_bytes(one.memory_bytes)} on the worst rank, {show_bytes(one.teacher_bytes)} of it"
        " the teacher's",
    ]
    if answer.days_ideal is not None:
        lines.append(f"{answer.days_ideal:,.1f} days")
    return lines


def _ahead(answer: Distilled) -> list[str]:
    lines = [f"{answer.alone}: {show_seconds(answer.alone_s)} a step of the student alone"]
    if answer.beside is not None:
        saved = 1.0 - answer.alone_s / answer.beside.step_time_s
        lines[0] += f", {show_percent(saved)} less"
    if answer.stored_bytes is not None:
        kept = f"{answer.section.kept_values} values a token"
        kept = kept if answer.section.compares == "outputs" else "a number an answer"
        lines.append(f"{show_bytes(answer.stored_bytes)} on storage with {kept}")
    if answer.teacher_gpu_hours is not None:
        lines.append(
            f"{answer.teacher_gpu_hours:,.0f} accelerator-hours of the teacher, once: worth it"
            " where its outputs are read more than once"
        )
    return lines
