"""The screen of `foreshard schedule`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from simulator.answers import CAVEATS
from simulator.cli.screen import console, notes, plain_table
from simulator.units import show_percent

if TYPE_CHECKING:
    from simulator.questions.job_schedule.answer import JobSchedule

_STRIP = 40
"""Columns of the strip of a job."""


def show(answer: JobSchedule) -> None:
    """Print who runs where and when, what each team gets, and how good it can be at best."""
    screen, schedule = console(), answer.schedule
    parts = " + ".join(f"{p.gpus:,} {p.name} ({p.cluster})" for p in answer.list.parts)
    title = f"{len(schedule.jobs)} jobs on {parts}, least {answer.list.minimize}"
    screen.print(Text(title, style="bold"))
    screen.print()
    screen.print(_jobs(answer))
    screen.print()
    screen.print(notes("In all", _totals(answer)))
    screen.print(notes(CAVEATS, answer.caveats))


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
            f"{row.start:,.2f}",
            f"{row.option.days:,.2f}",
            f"{row.end:,.2f}",
            f"{schedule.slowdowns[i]:.2f}",
            f"{'.' * first}{'=' * length}"[:_STRIP].ljust(_STRIP, "."),
            offer.described,
        )
    return table


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
