"""`foreshard admit`: a job of a scheduler, allowed, warned of or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.decision_options import Budget, days_of, usd_of
from simulator.cli.option_groups import ScenarioOptions
from simulator.cli.runner import Reply, question

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
    from simulator.cli.screen import waiting
    from simulator.interop.launch_files.merging import files_without_option
    from simulator.questions.admit.answer import admit
    from simulator.questions.admit.screen import screen
    from simulator.units import DAY_S

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
