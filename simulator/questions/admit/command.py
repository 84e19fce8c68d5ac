"""`foreshard admit`: a job of a scheduler, allowed, warned of or refused.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from simulator.cli.decision_options import Budget, days_of, usd_of
from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.runner import Reply, question
from simulator.cli.screen import heading, notes, waiting
from simulator.glossary import CAVEATS
from simulator.units import DAY_S, show_chance, show_usd

if TYPE_CHECKING:
    from simulator.questions.admit.answer import Admission, Request


JobFile = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="The job: sbatch script, TrainJob, PyTorchJob, Job or TrainingWorkload (YAML), task of"
        " SkyPilot; behind it what its script reads.",
    ),
]
Within = Annotated[
    str | None,
    typer.Option(
        "--within",
        metavar="7d",
        help="Time that the job has: days, or with d, h or w; the job's own limit unless given.",
    ),
]


@question(
    "admit",
    "admit job.sbatch --cluster dgx-h100",
    "admit trainjob.yaml --cluster dgx-h100 --within 7d --budget 50k",
)
def ask(
    *,
    file: JobFile,
    options: ScenarioOptions,
    within: Within = None,
    budget: Budget = None,
) -> Reply:
    """Say whether a job may start as it is asked for: it fits, ends in time, stays under a cap.

    Exit 0: allow; 3: warn; 1: refuse, with the smallest request that does it; 2: bad input.
    """
    from simulator.interop.launch_files.merging import files_without_option
    from simulator.questions.admit.answer import admit

    days = days_of(within, "--within")
    with waiting("reading and predicting"), files_without_option(file[0]):
        answer = admit(
            file[0],
            options.named,
            options.overrides or (),
            beside=file[1:],
            limit_s=None if days is None else days * DAY_S,
            budget_usd=usd_of(budget),
        )
    return Reply(answer, screen, code=answer.code)


_INKS = {"allow": "bold FITS", "warn": "bold TIGHT", "refuse": "bold OOM"}


def _on_top(request: Request) -> list[str]:
    """How likely the request is to do, with what published runs took on top."""
    chances = {"in time": request.deadline_chance, "within the budget": request.budget_chance}
    words = [f"{show_chance(x)} chance {what}" for what, x in chances.items() if x is not None]
    return [f"with what published runs took on top: {', '.join(words)}"] if words else []


def screen(answer: Admission) -> Iterator[RenderableType]:
    """Give the decision first."""
    yield heading(answer.imported.scenario)
    yield Text(f"\n{answer.decision.upper()}", style=_INKS[answer.decision])
    if answer.prediction is not None:
        yield Text(answer.prediction.estimate.layouts.describe())
    yield notes("", [f"{reason.decision}: {reason.text}" for reason in answer.reasons])
    request = answer.smallest_request
    if request is not None:
        hours = "" if request.hours_p90 is None else f", {request.hours_p90:,.1f} hours (P90)"
        mark = answer.imported.scenario.tariff.price.mark
        usd = "" if request.usd_p90 is None else f", {show_usd(request.usd_p90)}{mark} (P90)"
        yield notes(
            "The smallest request that does it",
            [f"{request.gpus:,} accelerators{hours}{usd}: {request.layout}", *_on_top(request)],
        )
    elif answer.decision == "refuse":
        yield notes("", ["No size of this cluster, halved or doubled, does it."])
    yield notes(CAVEATS, answer.caveats)
