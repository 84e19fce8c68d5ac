"""Several jobs over the parts of a cluster: the file, times by the planner, who gets what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from simulator.answers import Answer
from simulator.errors import InfeasibleError, InputError, problem
from simulator.files import Number, Unit, Whole, build, read_document, record
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.questions.compare.many_searches import done_in_order
from simulator.questions.compare.offers import Asked, Offer, offer_of
from simulator.questions.job_schedule.list_scheduling import (
    Option,
    Queued,
    Schedule,
    best_schedule,
    least_makespan,
)
from simulator.records import dataclass
from simulator.scenario import Scenario, make_scenario
from simulator.units import show_percent

_LARGEST = 100_000_000
Positive = Annotated[Whole, Gt(0), Le(_LARGEST)]


@record
class Part:
    """Servers of one kind, [[parts]]."""

    name: str
    """What it is called."""
    cluster: str
    """A cluster profile of hardware_profiles/clusters, or a path to one."""
    gpus: Annotated[Positive, Unit("accelerators")]
    """Accelerators of it."""


@record
class JobSection:
    """A job, [[jobs]]: a scenario without [cluster]."""

    name: str
    """What it is called."""
    model: dict[str, Any]
    """As in a scenario."""
    training: dict[str, Any]
    """As in a scenario; tokens are required."""
    layout: dict[str, Any] | None = None
    """As in a scenario; none given: searched."""
    software: str | None = None
    """Software of it; none given: what usually runs there."""
    gpus: Annotated[tuple[Positive, ...], MinLen(1), MaxLen(16)] | None = None
    """Numbers of accelerators that it may take; none given: a server, doubled up to the part."""
    parts: tuple[str, ...] | None = None
    """Parts on which it may run; none given: all."""
    arrives_days: Annotated[Number, Ge(0)] = 0.0
    """Day from which it can run."""
    weight: Annotated[Number, Gt(0)] = 1.0
    """What a day of it counts in the mean."""
    team: str = ""
    """Whose it is, for fairness among teams."""


@record
class JobList:
    """A file of jobs."""

    parts: Annotated[tuple[Part, ...], MinLen(1), MaxLen(16)]
    """Parts of the cluster."""
    jobs: Annotated[tuple[JobSection, ...], MinLen(1), MaxLen(64)]
    """Jobs that wait."""
    minimize: Literal["makespan", "completion", "slowdown"] = "makespan"
    """makespan: the last end. completion: mean days from arrival to end, by weight. slowdown: of
    the job that waits most, over what it takes alone (finish-time fairness)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """What a team gets."""

    KEYS: ClassVar[tuple[str, ...]] = ("name?", "gpu_days", "slowdown")

    name: str
    gpu_days: float
    slowdown: float
    """Mean of its jobs."""


@dataclass(frozen=True, kw_only=True, repr=False)
class JobSchedule(Answer):
    """The answer."""

    COMMAND: ClassVar[str] = "schedule"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("minimize=list.minimize", "parts=list.parts", "jobs", "makespan_days=schedule.makespan"),
        *("least_days", "completion_days=schedule.completion", "slowdown=schedule.slowdown"),
        *("utilisation", "fairness", "teams", "caveats"),
    )

    list: JobList
    where: str
    offers: dict[tuple[str, str, int], Offer]
    """By job, part and accelerators."""
    schedule: Schedule
    least_days: float
    """What no schedule undercuts."""

    @property
    def line(self) -> str:
        """All of it in a few words."""
        days, used = self.schedule.makespan, show_percent(self.utilisation)
        return f"{len(self.list.jobs)} jobs by {self.list.minimize}, {days:.1f} days, {used} in use"

    def to_frame(self) -> DataFrame:
        """One row per job."""
        return frame_of_rows(
            {
                "job": job.name,
                "part": self.list.parts[row.option.part].name,
                "gpus": row.option.gpus,
                "start_days": row.start,
                "end_days": row.end,
                "slowdown": slow,
            }
            for job, row, slow in zip(
                self.schedule.jobs, self.schedule.rows, self.schedule.slowdowns, strict=True
            )
        )

    @property
    def jobs(self) -> tuple[dict[str, Any], ...]:
        """Every job, as JSON says it."""
        schedule, parts = self.schedule, self.list.parts
        return tuple(
            {
                "name": job.name,
                "team": section.team or None,
                "part": parts[row.option.part].name,
                "gpus": row.option.gpus,
                "arrives_days": job.arrives,
                "start_days": row.start,
                "end_days": row.end,
                "slowdown": slow,
                "options": [
                    {"part": parts[option.part].name, "gpus": option.gpus, "days": option.days}
                    for option in job.options
                ],
            }
            for job, section, row, slow in zip(
                schedule.jobs, self.list.jobs, schedule.rows, schedule.slowdowns, strict=True
            )
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is not in the days, and how far the search goes."""
        return (
            "Days are those of each job's real run (failures, checkpoints) with its best layout"
            " there, alone on its servers; what jobs take from one another on shared switches is"
            " not in them.",
            "A job keeps its part and its accelerators until it ends. All orders and choices are"
            " tried where they are few; else the best of list scheduling and of exchanges is"
            " shown.",
        )

    @property
    def utilisation(self) -> float:
        """Accelerator-days of jobs over those of all parts until the last end."""
        used = sum(row.option.gpus * row.option.days for row in self.schedule.rows)
        return used / (sum(p.gpus for p in self.list.parts) * self.schedule.makespan)

    @property
    def teams(self) -> tuple[Team, ...]:
        """By name of the team; jobs without one stand together."""
        found = []
        for name in sorted({job.team for job in self.list.jobs}):
            own = [i for i, job in enumerate(self.list.jobs) if job.team == name]
            rows, slow = self.schedule.rows, self.schedule.slowdowns
            days = sum(rows[i].option.gpus * rows[i].option.days for i in own)
            mean = sum(slow[i] for i in own) / len(own)
            found.append(Team(name=name, gpu_days=days, slowdown=mean))
        return tuple(found)

    @property
    def fairness(self) -> float:
        """Jain's index of the jobs' speeds, 1 where all are slowed alike (Jain et al. 1984)."""
        speeds = [1.0 / x for x in self.schedule.slowdowns]
        return sum(speeds) ** 2 / (len(speeds) * sum(x * x for x in speeds))


def read_jobs(path: Path) -> JobList:
    """Read a file of jobs.

    Raises
    ------
    InputError
        With every problem, each naming its field.
    """
    where = str(path)
    found: JobList = build(JobList, read_document(path), where=where)
    problems: list[str] = []
    for field, names in (("parts", [p.name for p in found.parts]),
                         ("jobs", [j.name for j in found.jobs])):  # fmt: skip
        if twice := sorted({name for name in names if names.count(name) > 1}):
            problems.append(problem(where, field, "names must differ", twice[0]))
    known = tuple(part.name for part in found.parts)
    for i, job in enumerate(found.jobs):
        problems += [
            problem(where, f"jobs.{i}.parts", "must name parts of the file", name, known)
            for name in job.parts or ()
            if name not in known
        ]
        if "tokens" not in job.training:
            problems.append(f"{where}: jobs.{i}.training.tokens: required field is missing")
    for i, part in enumerate(found.parts):
        try:
            load_cluster(part.cluster, part.gpus, where=where, field=f"parts.{i}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return found


def schedule_jobs(
    jobs: JobList, *, where: str = "jobs", processes: int | None = None
) -> JobSchedule:
    """Find how long every job takes where it may run, and who gets which part when.

    Raises
    ------
    InputError
        If a job cannot be read.
    InfeasibleError
        If a job fits nowhere, with why.
    """
    asked = [
        (_scenario(job, part, where), part, gpus, job)
        for job in jobs.jobs
        for part in jobs.parts
        if job.parts is None or part.name in job.parts
        for gpus in _sizes(job, part, where)
    ]
    arguments = [(made, part.cluster, gpus, Asked()) for made, part, gpus, _ in asked]
    in_order = done_in_order(offer_of, arguments, jobs=processes)
    offers = {
        (job.name, part.name, gpus): one
        for (_, part, gpus, job), one in zip(asked, in_order, strict=True)
    }
    queued = [_queued(job, jobs, offers, where) for job in jobs.jobs]
    capacity = [part.gpus for part in jobs.parts]
    return JobSchedule(
        list=jobs,
        where=where,
        offers=offers,
        schedule=best_schedule(queued, capacity, jobs.minimize),
        least_days=least_makespan(queued, capacity),
    )


def _sizes(job: JobSection, part: Part, where: str) -> Iterator[int]:
    """Numbers of accelerators that a job may take of a part."""
    if job.gpus is not None:
        yield from sorted({gpus for gpus in job.gpus if gpus <= part.gpus})
        return
    cluster: Cluster = load_cluster(part.cluster, part.gpus, where=where)
    size = min(cluster.node.accelerators, part.gpus)
    while size < part.gpus:
        yield size
        size *= 2
    yield part.gpus


def _scenario(job: JobSection, part: Part, where: str) -> Scenario:
    """A job on a part, as a scenario."""
    place: dict[str, Any] = {"name": part.cluster, "gpus": part.gpus}
    if job.software:
        place["software"] = job.software
    document: dict[str, Any] = {"model": job.model, "training": job.training, "cluster": place}
    if job.layout:
        document["layout"] = job.layout
    made = make_scenario(document, where=f"{where}: jobs ({job.name})", base=Path(where).parent)
    return replace(made, where=f"{where}: jobs ({job.name})")


def _queued(
    job: JobSection, jobs: JobList, offers: Mapping[tuple[str, str, int], Offer], where: str
) -> Queued:
    """A job with the options that fit."""
    options, reasons = [], []
    for (name, part, gpus), offer in offers.items():
        if name != job.name:
            continue
        if offer.days is None:
            reasons.append(f"{gpus} GPUs of {part}: {offer.reason}")
            continue
        place = next(i for i, each in enumerate(jobs.parts) if each.name == part)
        options.append(Option(part=place, gpus=gpus, days=offer.days.p50))
    if not options:
        told = "; ".join(reasons[:3]) or "no part has as few GPUs as it may take"
        raise InfeasibleError(f"{where}: jobs ({job.name}): fits nowhere: {told}")
    return Queued(
        name=job.name, options=tuple(options), arrives=job.arrives_days, weight=job.weight
    )
