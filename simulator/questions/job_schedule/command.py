"""`foreshard schedule`: several jobs over the parts of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.decision_options import Jobs
from simulator.cli.runner import Reply, question

JobsFile = Annotated[
    Path, typer.Argument(metavar="JOBS", help="File of \\[\\[parts]] and \\[\\[jobs]] (TOML).")
]
Minimize = Annotated[
    str | None,
    typer.Option(
        "--minimize", metavar="GOAL", help="makespan, completion or slowdown; the file's otherwise."
    ),
]


More = Annotated[
    int | None,
    typer.Option(
        "--more", metavar="N", min=1, help="Also say what N more accelerators of each part bring."
    ),
]


@question(
    "schedule",
    "schedule jobs.toml --minimize slowdown",
    "schedule campaign.toml --more 256",
)
def ask(
    *, jobs_file: JobsFile, minimize: Minimize = None, more: More = None, jobs: Jobs = None
) -> Reply:
    """Find who gets which part of a cluster, how much of it and when, by planned times.

    Exit 0: done; 1: a job fits nowhere; 2: bad input.
    """
    from dataclasses import replace

    from simulator.errors import InputError, problem
    from simulator.questions.job_schedule.answer import grown, read_jobs, schedule_jobs
    from simulator.questions.job_schedule.list_scheduling import GOALS
    from simulator.questions.job_schedule.screen import screen

    listed = read_jobs(jobs_file)
    if minimize is not None:
        if minimize not in GOALS:
            rule = f"must be {', '.join(GOALS[:-1])} or {GOALS[-1]}"
            raise InputError(problem("command line", "--minimize", rule, minimize))
        listed = replace(listed, minimize=minimize)
    answer = schedule_jobs(listed, where=str(jobs_file), processes=jobs)
    if more is not None:
        answer = grown(answer, more, processes=jobs)
    return Reply(answer, screen)
