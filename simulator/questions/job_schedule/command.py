"""`foreshard schedule`: several jobs over the parts of a cluster.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.cli.decision_options import Jobs
from simulator.cli.runner import Reply, question
from simulator.cli.screen import notes, plain_table
from simulator.errors import InputError, problem
from simulator.glossary import CAVEATS
from simulator.units import show_percent

if TYPE_CHECKING:
    from simulator.questions.job_schedule.answer import JobSchedule


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

    from simulator.questions.job_schedule.answer import grown, read_jobs, schedule_jobs
    from simulator.questions.job_schedule.list_scheduling import GOALS

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


_MOST_IDLE = 6
_STRIP = 40
"""Columns of the strip of a job."""


def screen(answer: JobSchedule) -> Iterator[RenderableType]:
    """Give who runs where and when, what each team gets, and how good it can be at best."""
    schedule = answer.schedule
    parts = " + ".join(f"{p.gpus:,} {p.name} ({p.cluster})" for p in answer.list.parts)
    title = f"{len(schedule.jobs)} jobs on {parts}, least {answer.list.minimize}"
    yield Text(title, style="bold")
    yield ""
    yield _jobs(answer)
    yield ""
    yield notes("In all", _totals(answer))
    yield notes("Late", answer.late)
    yield notes("Left idle, the largest stretches first", _idle(answer))
    if answer.growth:
        yield notes("What more would bring", _growth(answer))
    yield notes(CAVEATS, answer.caveats)


def _jobs(answer: JobSchedule) -> Table:
    columns = ("job", "part", "GPUs", "starts", "runs", "ends", "slowdown", "days", "layout")
    table = plain_table(*columns, left=("job", "part", "days", "layout"))
    schedule = answer.schedule
    for i in sorted(range(len(schedule.rows)), key=lambda i: (schedule.rows[i].start, i)):
        row, job = schedule.rows[i], schedule.jobs[i]
        part = answer.list.parts[row.option.part].name
        offer = answer.offers[job.name, part, row.option.gpus]
        first = int(_STRIP * row.start / schedule.makespan)
        length = max(1, round(_STRIP * row.option.days / schedule.makespan))
        table.add_row(
            job.name,
            part,
            f"{row.option.gpus:,}",
            _day(answer, row.start),
            f"{row.option.days:,.2f}",
            _day(answer, row.end),
            f"{schedule.slowdowns[i]:.2f}",
            f"{'.' * first}{'=' * length}"[:_STRIP].ljust(_STRIP, "."),
            offer.described,
        )
    return table


def _day(answer: JobSchedule, day: float) -> str:
    return f"{day:,.2f}" if (date := answer.date_of(day)) is None else f"{date} ({day:,.1f})"


def _idle(answer: JobSchedule) -> list[str]:
    """Stretches in which accelerators wait for nobody."""
    lines = [
        f"{stretch.gpus:,} of {stretch.part} from day {stretch.start_days:,.1f} to"
        f" {stretch.end_days:,.1f}:"
        f" {stretch.gpus * (stretch.end_days - stretch.start_days):,.0f} accelerator-days"
        for stretch in answer.idle
    ]
    more = len(lines) - _MOST_IDLE
    return [*lines[:_MOST_IDLE], *([f"and {more} more, in --json"] if more > 0 else [])]


def _growth(answer: JobSchedule) -> list[str]:
    return [
        f"{growth.gpus:,} more of {growth.part}: all done after {growth.makespan_days:,.2f} days,"
        f" {growth.saved_days:,.2f} sooner; {show_percent(growth.utilisation)} in use"
        + (f"; still late: {', '.join(growth.late)}" if growth.late else "")
        for growth in answer.growth
    ]


def _totals(answer: JobSchedule) -> list[str]:
    schedule = answer.schedule
    lines = [
        f"all done after {schedule.makespan:,.2f} days; no schedule is done before"
        f" {answer.least_days:,.2f}",
        f"a job is done {schedule.completion:,.2f} days after it arrives (mean by weight); the one"
        f" that waits most takes {schedule.slowdown:.2f} times what it takes alone",
        f"{show_percent(answer.utilisation)} of the accelerators' time is used; fairness among"
        f" jobs {answer.fairness:.2f} (Jain, 1: all slowed alike)",
    ]
    if any(team.name for team in answer.teams):
        lines += [
            f"{team.name or 'no team'}: {team.gpu_days:,.1f} accelerator-days, slowed"
            f" {team.slowdown:.2f} times"
            for team in answer.teams
        ]
    return lines
