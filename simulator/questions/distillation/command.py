"""`foreshard distil`: a student with its teacher beside it, or ahead of time.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.options import Json
from simulator.cli.runner import Reply, question
from simulator.cli.screen import heading, notes
from simulator.glossary import CAVEATS
from simulator.questions.predict.from_files import FromFiles, ScenarioFiles, imported, sorted_files
from simulator.units import show_bytes, show_count, show_percent, show_seconds

if TYPE_CHECKING:
    from simulator.questions.distillation.answer import Beside, Distilled


@question(
    "distil", "distil run.toml", "distil --from dpo.yaml --cluster dgx-h100 --gpus 8 --model FOLDER"
)
def ask(
    *,
    scenario: ScenarioFiles = None,
    from_files: FromFiles = None,
    options: ScenarioOptions,
    as_json: Json = False,
) -> Reply:
    """Find what a step takes with the teacher of [distillation] in it, and ahead of time.

    Without a teacher's name it is the model before training, the reference of DPO. Launch files
    that name a teacher or train on pairs are read with --from. Exit 0: done; 1: both do not fit
    together; 2: bad input.
    """
    from simulator.questions.distillation.answer import distil

    file, launch = sorted_files(scenario, from_files)
    if launch:
        read = imported(launch, options, as_json=as_json)
        prediction = read.predicted()
        answer = distil(prediction.scenario, prediction.estimate)
    else:
        read, answer = None, distil(options.scenario(file))

    def document(answer: Distilled) -> dict[str, Any]:
        from simulator.answers import plain

        return answer.document() | ({} if read is None else {"from": plain(read)})

    return Reply(answer, screen, document, feasible=answer.beside is not None)


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
        f"{one.verdict}: {show_bytes(one.memory_bytes)} of {show_bytes(one.usable_bytes)} usable on"
        f" the worst rank, {show_bytes(one.teacher_bytes)} of it the teacher's",
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
