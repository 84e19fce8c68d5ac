"""What a run goes through, as hardware_profiles/reliability/NAME.toml and [run] describe it."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from simulator import catalogue
from simulator.errors import InputError, did_you_mean, problem
from simulator.files import Figure, Number, Unit, Whole, build, read_profile, record
from simulator.inheritance import merged
from simulator.section import Rule, Section

DEFAULT_SET = "new"
"""Who plans a run plans it on a new fleet; its rates are those best measured (Llama 3)."""

Device = Literal["gpu", "node", "adapter", "leaf", "spine"]


@record
class Cause:
    """One cause of interruptions, and what it takes until its damage is known and replaced."""

    device: Device
    """What fails: the rate is per such device and day. `adapter` is a network adapter with its
    link, `leaf` and `spine` are switches."""
    per_device_day: Annotated[Figure, Unit("per device and day")]
    """Failures of one device per day that end a run which uses it."""
    kind: Literal["hardware", "software", "silent", "preemption"] = "hardware"
    """hardware: has early life and lemon nodes. silent: corruption that is found `detection_s`
    later, and back to the checkpoint before it. preemption: announced `notice_s` before."""
    detection_s: Figure
    """From the failure until the run has noticed: heartbeat, or a collective's time-out."""
    diagnosis_s: Figure
    """Mean time to find what to replace, exponentially distributed."""
    replaced_fraction: Figure
    """Share of failures after which a server is replaced."""
    repair_s: Figure
    """Mean time until the replaced server, or the switch, is back, exponentially distributed."""
    notice_s: Figure = Figure(0.0, "assumed", "none")
    """Announced so long before; where a checkpoint fits in, no work is lost."""


@record
class Restart:
    """From replaced servers to training again."""

    schedule_s: Figure
    """Allocation and start of containers and processes."""
    communicators_s: Figure
    """Communicators of the whole job, whatever its size."""
    communicators_per_rank_s: Figure
    """And for every rank."""
    warmup_s: Figure
    """What the first steps take longer: compilation, allocator, data pipelines."""
    failing_fraction: Figure
    """Share of restarts that fail again."""
    retry_s: Figure
    """From a failed restart to the next try."""
    manual_fraction: Figure
    """Share of failures that people must look at."""
    manual_s: Figure
    """How long they take, on top of `diagnosis_s`: mean, exponentially distributed."""


@record
class Storage:
    """Where checkpoints lie."""

    write_bytes_per_s: Figure
    """What all servers together can write."""
    read_bytes_per_s: Figure
    """What all servers together can read."""
    node_write_bytes_per_s: Figure
    """What one server can write."""
    node_read_bytes_per_s: Figure
    """What one server can read."""
    queue_nodes: Annotated[Whole, Ge(0)] = 0
    """Servers above which requests queue; 0: never."""
    queued_write_fraction: Figure = Figure(1.0, "assumed", "none")
    """Share of `write_bytes_per_s` that is left to more servers than `queue_nodes`."""
    queued_read_fraction: Figure = Figure(1.0, "assumed", "none")
    """Share of `read_bytes_per_s` that is left to them."""


@record
class Checkpoints:
    """How checkpoints are taken."""

    mode: Literal["sync", "async", "memory"] = "async"
    """sync: training waits for the storage. async: it waits for the copy to host memory, which is
    written in the background. memory: copies go to host memory of peers every
    `memory_interval_s`, and to storage in the background every `interval_s`; failures of single
    servers restart from the copies."""
    interval_s: Annotated[Number, Gt(0)] | None = None
    """Training time between checkpoints on storage; none given: the best."""
    every_steps: Annotated[Whole, Ge(1)] | None = None
    """Steps between checkpoints on storage, in place of `interval_s`: so many of the layout's own
    predicted step times."""
    keep: Annotated[Whole, Ge(1)] | None = None
    """The newest checkpoints that stay on the storage; none given: all of the run."""
    memory_interval_s: Annotated[Number, Gt(0)] | None = None
    """Between copies to peers; none given: the best, no less than a step."""
    size_bytes: Annotated[Number, Gt(0)] | None = None
    """Of one checkpoint; none given: weights, masters and moments as the software keeps them."""
    copy_bytes_per_s: Figure
    """Rate at which one GPU's share reaches host memory, or a peer's."""
    background_fraction: Figure
    """Share of its speed that training loses while a checkpoint is written in the background."""


@record
class Spares:
    """Servers that take the place of failed ones."""

    hot: Annotated[Whole, Ge(0)] | None = None
    """Servers that wait, paid, on top of the run; none given: `hot_fraction` of its servers."""
    pool: Annotated[Whole, Ge(0)] | None = None
    """All servers that can be had, the hot ones included; none given: `pool_fraction`."""
    hot_fraction: Figure
    """Hot spares over servers of the run, where `hot` is not given."""
    pool_fraction: Figure
    """Servers of the pool over servers of the run, where `pool` is not given."""
    hot_s: Figure
    """Until a hot spare has taken the place."""
    cold_s: Figure
    """Until another server of the pool has."""
    when_none: Literal["wait", "shrink"] = "wait"
    """No spare is left: wait for the first repair, or train with fewer replicas until then."""
    keep_batch: bool = True
    """Replicas that are left of a run that shrinks take over the micro-batches of those that are
    missing, and steps last longer; false: steps last as long and have fewer tokens."""


@record
class Slow:
    """What makes steps longer than the typical step."""

    per_node_day: Annotated[Figure, Unit("per server and day")]
    """Servers that turn slow, per server and day; all others wait for them."""
    time_factor: Annotated[Number, Ge(1)] = 1.06
    """Time of a step with a slow server over that of one without."""
    noticed_s: Figure
    """Until it is noticed and replaced."""
    repair_s: Figure
    """Mean time until it is back among the spares, exponentially distributed."""
    tail_fraction: Figure
    """Mean step time over the typical one, less one."""
    data_fraction: Figure
    """Share of a step that ranks wait for data."""
    collect_every: Annotated[Whole, Ge(0), Unit("steps")] = 0
    """Steps between collections of garbage on all ranks at once; 0: none."""
    collect_steps: Figure = Figure(0.0, "assumed", "none")
    """What one takes, in steps."""
    evaluate_every: Annotated[Whole, Ge(0), Unit("steps")] = 0
    """Steps between evaluations; 0: none."""
    evaluate_steps: Figure = Figure(0.0, "assumed", "none")
    """What one takes, in steps: a batch of evaluation is a third of a training step."""


@record
class Maintenance:
    """Planned stops: a checkpoint is taken before, nothing is lost."""

    every_s: Annotated[Number, Ge(0)] = 0.0
    """Time between them; 0: none."""
    stop_s: Figure = Figure(0.0, "assumed", "none")
    """How long each lasts."""


@record
class Reliability:
    """What the run goes through: failures, checkpoints, spares, slow servers, planned stops."""

    name: str
    """The set whose figures stand for what is not given: mature, new, first-weeks, bad, or one of
    your own."""
    start: datetime.date | None = None
    """First day of the run, for the date on which it ends."""
    causes: dict[str, Cause]
    """Causes of interruptions, by name; a new one needs all fields."""
    rate_factor: Figure = Figure(1.0, "assumed", "none")
    """Multiplies the rate of every cause."""
    early_shape: Annotated[Number, Gt(0), Le(1)] = 1.0
    """Weibull shape of hardware failures over the fleet's age: below 1 they fall with it."""
    age_s: Annotated[Number, Ge(0)] = 0.0
    """Age of the fleet when the run begins, for `early_shape`."""
    reference_age_s: Annotated[Number, Gt(0)] = 31_536_000.0
    """Age at which the rates hold."""
    lemon_fraction: Figure = Figure(0.0, "assumed", "none")
    """Share of servers that fail far more often than others."""
    lemon_failure_fraction: Figure = Figure(0.0, "assumed", "none")
    """Share of hardware failures that they cause; the rates count them in."""
    lemon_strikes: Annotated[Whole, Ge(0), Le(100)] = 0
    """Failures after which a server is sorted out for good; 0: never."""
    restart: Restart
    """From replaced servers to training again."""
    storage: Storage
    """Where checkpoints lie."""
    checkpoints: Checkpoints
    """How checkpoints are taken."""
    spares: Spares
    """Servers that take the place of failed ones."""
    slow: Slow
    """What makes steps longer than the typical step."""
    maintenance: Maintenance = Maintenance()
    """Planned stops."""

    @property
    def rates(self) -> dict[str, float]:
        """Failures per device and day, with `rate_factor`, by cause."""
        return {
            name: float(self.rate_factor) * float(cause.per_device_day)
            for name, cause in self.causes.items()
        }


@cache
def load_reliability(
    name: str = DEFAULT_SET, *, where: str = "profiles", field: str = "run.set"
) -> Reliability:
    """Read a set by name or path.

    Raises
    ------
    InputError
        If there is none of the name, or a field of it is wrong.
    """
    place = catalogue.find("reliability", name, where=where, field=field)
    return read_profile(Reliability, place, kind="reliability")


def read_run(raw: Any, *, where: str) -> Reliability:
    """Read the section [run] of a scenario: a `set`, and what the section says in its place.

    Raises
    ------
    InputError
        With every problem, each naming its field.
    """
    if not isinstance(raw, Mapping):
        raise InputError(problem(where, "run", "must be a table", raw))
    fields_given = dict(raw)
    name = fields_given.pop("set", DEFAULT_SET)
    if not isinstance(name, str):
        raise InputError(problem(where, "run.set", "must be the name of a set", name))
    base = load_reliability(name, where=where)
    known = {"set", *(field.name for field in dataclasses.fields(Reliability))} - {"name"}
    if unknown := [word for word in fields_given if word not in known]:
        raise InputError(
            f"{where}: run.{word}: unknown field{did_you_mean(word, known)}" for word in unknown
        )
    causes = fields_given.get("causes", {})
    if isinstance(causes, Mapping):
        for word, fields in causes.items():
            if word not in base.causes and not (isinstance(fields, Mapping) and "device" in fields):
                hint = did_you_mean(word, base.causes)
                raise InputError(
                    f"{where}: run.causes.{word}: unknown cause, and a new one needs all"
                    f" fields, device first{hint}"
                )
    start = fields_given.get("start")
    if start is not None and not isinstance(start, datetime.date):
        try:
            fields_given["start"] = datetime.date.fromisoformat(start)
        except (TypeError, ValueError):
            rule = "must be a date as year-month-day"
            raise InputError(problem(where, "run.start", rule, start)) from None
    run = base
    if fields_given:
        run = build(Reliability, merged(_tables(base), fields_given), where=where, prefix="run")
    if wrong := wrong_run(run, where):
        raise InputError(wrong)
    return run


def _tables(value: Any) -> Any:
    """Nested tables of a record, its figures as they are."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: _tables(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: _tables(item) for key, item in value.items()}
    return value


_ABOVE_ZERO = (
    "write_bytes_per_s",
    "read_bytes_per_s",
    "node_write_bytes_per_s",
    "node_read_bytes_per_s",
    "queued_write_fraction",
    "queued_read_fraction",
)


def wrong_run(run: Reliability, where: str) -> list[str]:
    """What each field of [run] allows but the whole does not."""
    problems = []
    for name in _ABOVE_ZERO:
        if not (value := float(getattr(run.storage, name))) > 0.0:
            rule = "must be above 0: nothing could be written or read"
            problems.append(problem(where, f"run.storage.{name}", rule, value))
    if not run.checkpoints.copy_bytes_per_s > 0.0:
        rate = float(run.checkpoints.copy_bytes_per_s)
        problems.append(problem(where, "run.checkpoints.copy_bytes_per_s", "must be above 0", rate))
    every_steps, interval_s = run.checkpoints.every_steps, run.checkpoints.interval_s
    if every_steps is not None and interval_s is not None:
        rule = f"cannot stand beside run.checkpoints.interval_s, {interval_s:g} s: give one of both"
        problems.append(problem(where, "run.checkpoints.every_steps", rule, every_steps))
    shares = {
        "restart.failing_fraction": run.restart.failing_fraction,
        "restart.manual_fraction": run.restart.manual_fraction,
        "checkpoints.background_fraction": run.checkpoints.background_fraction,
        "lemon_fraction": run.lemon_fraction,
        "lemon_failure_fraction": run.lemon_failure_fraction,
        "storage.queued_write_fraction": run.storage.queued_write_fraction,
        "storage.queued_read_fraction": run.storage.queued_read_fraction,
        **{f"causes.{name}.replaced_fraction": cause.replaced_fraction
           for name, cause in run.causes.items()},
    }  # fmt: skip
    for name, share in shares.items():
        least_below = name in ("restart.failing_fraction", "checkpoints.background_fraction")
        if share > 1.0 or (least_below and share >= 1.0):
            rule = "must be below 1" if least_below else "must be at most 1"
            problems.append(problem(where, f"run.{name}", rule, float(share)))
    spares = run.spares
    if spares.hot is not None and spares.pool is not None and spares.hot > spares.pool:
        rule = f"must be at most run.spares.pool, {spares.pool}: hot spares are part of the pool"
        nearest = f"{problem(where, 'run.spares.hot', rule, spares.hot)} (nearest: {spares.pool})"
        problems.append(nearest)
    return problems


def _idle(run: Reliability, *, where: str) -> dict[str, str]:
    """Fields on which nothing hangs beside what else is said."""
    saved, spares, slow = run.checkpoints, run.spares, run.slow
    without = {
        "run.early_shape is 1": (run.early_shape == 1.0, ("age_s", "reference_age_s")),
        "run.lemon_strikes is 0": (
            run.lemon_strikes == 0,
            ("lemon_fraction", "lemon_failure_fraction"),
        ),
        f"run.checkpoints.mode is {saved.mode}": (
            saved.mode != "memory",
            ("checkpoints.memory_interval_s",),
        ),
        "run.checkpoints.mode is sync": (
            saved.mode == "sync",
            ("checkpoints.copy_bytes_per_s", "checkpoints.background_fraction"),
        ),
        "run.spares.hot says how many": (spares.hot is not None, ("spares.hot_fraction",)),
        "run.spares.pool says how many": (spares.pool is not None, ("spares.pool_fraction",)),
        "run.spares.when_none is wait": (spares.when_none == "wait", ("spares.keep_batch",)),
        "run.slow.collect_every is 0": (slow.collect_every == 0, ("slow.collect_steps",)),
        "run.slow.evaluate_every is 0": (slow.evaluate_every == 0, ("slow.evaluate_steps",)),
        "run.maintenance.every_s is 0": (run.maintenance.every_s == 0, ("maintenance.stop_s",)),
    }
    return {name: why for why, (idle, names) in without.items() if idle for name in names}


RUN = Section(
    name="run",
    schemas=(Reliability,),
    read=Rule(read_run),
    required=True,
    idle=Rule(_idle, needs=("run",)),
    base=load_reliability,
    renamed=(("name", "set"),),
)
