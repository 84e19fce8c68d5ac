"""Several jobs over the parts of a cluster: the file, times by the planner, who gets what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from simulator.answers import Answer, Encoded
from simulator.economics.planning_factor import Span
from simulator.errors import InfeasibleError, InputError, problem
from simulator.files import Number, Unit, Whole, build, read_document, record
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.questions.compare.many_searches import done_in_order
from simulator.questions.compare.offer import Asked, Offer
from simulator.questions.compare.offers import offer_of, on_cluster
from simulator.questions.job_schedule.list_scheduling import (
    Option,
    Queued,
    Schedule,
    best_schedule,
    least_makespan,
)
from simulator.questions.rl.answer import rl_goodput
from simulator.records import dataclass
from simulator.reinforcement.rl_step import rl_step
from simulator.scenario import Scenario, make_scenario
from simulator.units import DAY_S, show_percent

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
    until_days: Annotated[Number, Gt(0)] | None = None
    """Day on which its reservation ends; none given: never."""


@record
class JobSection:
    """A job, [[jobs]]: a scenario without [cluster], or the days that it `takes`."""

    name: str
    """What it is called."""
    model: dict[str, Any] | None = None
    """As in a scenario."""
    training: dict[str, Any] | None = None
    """As in a scenario; tokens are required, but for `rl`."""
    rl: dict[str, Any] | None = None
    """As in a scenario; `rl_steps` says how many steps."""
    rl_steps: Positive | None = None
    """Steps of reinforcement learning."""
    takes: dict[str, Annotated[Number, Gt(0)]] | None = None
    """Days by number of accelerators, of what is no training here: evaluation, data, others."""
    kind: str = ""
    """What it is for: ablation, pre-training, SFT, RL, evaluation."""
    times: Annotated[Whole, Ge(1), Le(64)] = 1
    """So many alike: ablations."""
    after: tuple[str, ...] = ()
    """Jobs that must have ended before it starts."""
    due_days: Annotated[Number, Gt(0)] | None = None
    """Day by which it is wanted."""
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
    start: date | None = None
    """Day 0 of the calendar."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle(Encoded):
    """Accelerators of a part that nobody has for a while."""

    part: str
    gpus: int
    start_days: float
    end_days: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth(Encoded):
    """What more accelerators of a part bring."""

    part: str
    gpus: int
    makespan_days: float
    saved_days: float
    completion_days: float
    utilisation: float
    late: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class JobSchedule(Answer):
    """The answer."""

    COMMAND: ClassVar[str] = "schedule"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("minimize=list.minimize", "parts=list.parts", "jobs", "makespan_days=schedule.makespan"),
        *("least_days", "completion_days=schedule.completion", "slowdown=schedule.slowdown"),
        *("utilisation", "fairness", "teams", "idle", "late", "growth", "caveats"),
    )

    list: JobList
    where: str
    offers: dict[tuple[str, str, int], Offer]
    """By job, part and accelerators."""
    schedule: Schedule
    least_days: float
    """What no schedule undercuts."""
    growth: tuple[Growth, ...] = ()
    """What more accelerators of a part would bring; empty where nobody asked."""

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
                "kind": section.kind or None,
                "after": list(section.after),
                "start_date": self.date_of(row.start),
                "end_date": self.date_of(row.end),
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

    def date_of(self, day: float) -> str | None:
        """A day of the calendar; None where nobody says when it begins."""
        if self.list.start is None:
            return None
        return (self.list.start + timedelta(days=math.floor(day))).isoformat()

    @property
    def idle(self) -> tuple[Idle, ...]:
        """Accelerators that nobody has, part by part, the largest stretches first."""
        stretches = [
            stretch
            for place, part in enumerate(self.list.parts)
            for stretch in _stretches(part, place, self.schedule)
        ]
        return tuple(sorted(stretches, key=lambda x: -x.gpus * (x.end_days - x.start_days)))

    @property
    def late(self) -> tuple[str, ...]:
        """Jobs that end after they are wanted, or after the reservation of their part."""
        sentences = []
        for job, row in zip(self.list.jobs, self.schedule.rows, strict=True):
            part = self.list.parts[row.option.part]
            for limit, what in ((job.due_days, "due"), (part.until_days, f"end of {part.name}")):
                if limit is not None and row.end > limit + 1e-9:
                    after = row.end - limit
                    sentences.append(
                        f"{job.name} ends {after:.2f} days after day {limit:g} ({what})"
                    )
        return tuple(sentences)

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


def _stretches(part: Part, place: int, schedule: Schedule) -> Iterator[Idle]:
    """Stretches of a part's calendar, cut where a job starts or ends, in which some are free."""
    rows = [row for row in schedule.rows if row.option.part == place]
    last = schedule.makespan if part.until_days is None else part.until_days
    cuts = sorted({0.0, last, *(day for row in rows for day in (row.start, row.end) if day < last)})
    free: list[Idle] = []
    for start, end in pairwise(cuts):
        used = sum(row.option.gpus for row in rows if row.start <= start < row.end)
        if free and free[-1].gpus == part.gpus - used and free[-1].end_days == start:
            free[-1] = replace(free[-1], end_days=end)
        else:
            free.append(Idle(part=part.name, gpus=part.gpus - used, start_days=start, end_days=end))
    yield from (stretch for stretch in free if stretch.gpus > 0)


def grown(answer: JobSchedule, more: int, *, processes: int | None = None) -> JobSchedule:
    """Schedule the same jobs with so many more accelerators in each part, one part at a time."""
    growth = []
    for place, part in enumerate(answer.list.parts):
        larger = replace(part, gpus=part.gpus + more)
        parts = (*answer.list.parts[:place], larger, *answer.list.parts[place + 1 :])
        then = schedule_jobs(
            replace(answer.list, parts=parts), where=answer.where, processes=processes
        )
        growth.append(
            Growth(
                part=part.name,
                gpus=more,
                makespan_days=then.schedule.makespan,
                saved_days=answer.schedule.makespan - then.schedule.makespan,
                completion_days=then.schedule.completion,
                utilisation=then.utilisation,
                late=then.late,
            )
        )
    return replace(answer, growth=tuple(growth))


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
        problems += _wrong_job(job, f"{where}: jobs.{i}")
    problems += _wrong_order(found.jobs, where)
    for i, part in enumerate(found.parts):
        try:
            load_cluster(part.cluster, part.gpus, where=where, field=f"parts.{i}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return replace(found, jobs=tuple(_expanded(found.jobs)))


def _wrong_job(job: JobSection, where: str) -> Iterator[str]:
    """What a job lacks to be priced, or says twice."""
    if job.takes is not None:
        said = [name for name in ("model", "training", "rl", "rl_steps") if getattr(job, name)]
        if said:
            yield f"{where}.takes: must stand without {said[0]}: the days are given"
        for gpus in job.takes:
            if not gpus.isdigit() or not 0 < int(gpus) <= _LARGEST:
                yield problem(where, "takes", "must be days by number of accelerators", gpus)
        return
    for name in ("model", "training"):
        if getattr(job, name) is None:
            yield f"{where}.{name}: required field is missing"
    if (job.rl is None) != (job.rl_steps is None):
        yield f"{where}.rl_steps: must come with rl, and rl with it"
    elif job.rl is None and job.training is not None and "tokens" not in job.training:
        yield f"{where}.training.tokens: required field is missing"


def _wrong_order(jobs: tuple[JobSection, ...], where: str) -> Iterator[str]:
    """Names that no job has, and circles."""
    names = {job.name: job for job in jobs}
    for i, job in enumerate(jobs):
        for name in job.after:
            if name not in names:
                rule = "must name jobs of the file"
                yield problem(where, f"jobs.{i}.after", rule, name, tuple(names))
    reached: dict[str, set[str]] = {
        name: set(job.after) & set(names) for name, job in names.items()
    }
    for _ in names:
        reached = {k: v.union(*(reached[name] for name in v)) for k, v in reached.items()}
    for i, job in enumerate(jobs):
        if job.name in reached[job.name]:
            yield problem(where, f"jobs.{i}.after", "must not wait for itself", job.name)
            return


def _expanded(jobs: tuple[JobSection, ...]) -> Iterator[JobSection]:
    """Jobs that come several times as so many jobs; who waits for them waits for all."""
    alike = {
        job.name: [f"{job.name} {i + 1}" for i in range(job.times)] if job.times > 1 else [job.name]
        for job in jobs
    }
    for job in jobs:
        after = tuple(name for before in job.after for name in alike[before])
        for name in alike[job.name]:
            yield replace(job, name=name, times=1, after=after)


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
    keys, arguments, offers = [], [], {}
    for job in jobs.jobs:
        for part in jobs.parts:
            if job.parts is not None and part.name not in job.parts:
                continue
            for gpus in _sizes(job, part, where):
                key = job.name, part.name, gpus
                if job.takes is not None:
                    offers[key] = _stated(part.cluster, gpus, job.takes[str(gpus)])
                    continue
                keys.append(key)
                made = _scenario(job, part, where)
                arguments.append((made, part.cluster, gpus, job.rl_steps))
    distinct = {repr((a[0].document, *a[1:])): a for a in arguments}
    in_order = done_in_order(_offer, list(distinct.values()), jobs=processes)
    made_of = dict(zip(distinct, in_order, strict=True))
    for key, a in zip(keys, arguments, strict=True):
        offers[key] = made_of[repr((a[0].document, *a[1:]))]
    queued = [_queued(job, jobs, offers, where) for job in jobs.jobs]
    capacity = [part.gpus for part in jobs.parts]
    return JobSchedule(
        list=jobs,
        where=where,
        offers=offers,
        schedule=best_schedule(queued, capacity, jobs.minimize),
        least_days=least_makespan(queued, capacity),
    )


def _offer(scenario: Scenario, name: str, gpus: int, rl_steps: int | None) -> Offer:
    """Days of a job on some accelerators: of its training, or of its steps of [rl]."""
    if rl_steps is None:
        return offer_of(scenario, name, gpus, Asked())
    try:
        placed_there = on_cluster(scenario, name, gpus)
        step = rl_step(placed_there)
    except (InputError, InfeasibleError) as error:
        return Offer(cluster=name, gpus=gpus, feasible=False, reason=str(error).partition("\n")[0])
    days = rl_steps * step.step_time_s / rl_goodput(placed_there, step) / DAY_S
    return replace(_stated(name, gpus, days), described=step.rl.mode)


def _stated(name: str, gpus: int, days: float) -> Offer:
    """An offer whose days are known."""
    return Offer(cluster=name, gpus=gpus, feasible=True, days=Span(p50=days, log_spread=0.0))


def _sizes(job: JobSection, part: Part, where: str) -> Iterator[int]:
    """Numbers of accelerators that a job may take of a part."""
    if job.takes is not None:
        yield from sorted(int(gpus) for gpus in job.takes if int(gpus) <= part.gpus)
        return
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
    document |= {name: table for name, table in (("layout", job.layout), ("rl", job.rl)) if table}
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
    names = [other.name for other in jobs.jobs]
    return Queued(
        name=job.name,
        options=tuple(options),
        arrives=job.arrives_days,
        weight=job.weight,
        after=tuple(names.index(name) for name in job.after),
    )
