"""A run with a parameter server: in step, nearly in step or not at all, against all-reduce."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import ceil, inf
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from simulator.answers import SCENARIO, Answer, encoded
from simulator.errors import InputError, problem
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import Cluster
from simulator.parameter_servers.rounds import (
    SyncRound,
    WorkerGroup,
    asynchronous_rounds,
    broadcast_s,
    ring_s,
    stale_synchronous_s,
    synchronous_s,
)
from simulator.parameter_servers.server_section import (
    Consistency,
    ParameterServer,
    ServerWork,
    load_server_work,
)
from simulator.planner.prediction import refuse_mixed
from simulator.questions.parameter_server.worker import Worker, fastest_worker, per_worker
from simulator.questions.run_options import Way, ideal_days, unjudged
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.fastest import fastest
from simulator.units import show_seconds

if TYPE_CHECKING:  # brings the events along
    from simulator.events.ps_simulation import PlayedServers

NETWORKS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Rates of the adapters, over those of the cluster, at which ways are compared; half of the rate is
what messages of twice the size take."""

SPREADS = (0.0, 0.1, 0.3)
"""Standard deviations of the logarithm of a worker's step at which they are."""

MOST_WORKERS = 100_000
"""More than this are a mistake: the order of all of them is looked at."""

_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedWay(Way):
    """One way of keeping together."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name", "reason?", "round_s", "tokens_per_s", "stale_updates"),
        *("more_updates_fraction=more_updates", "days_ideal"),
    )

    round_s: float = inf
    """Between two steps of the mean worker."""
    stale_updates: float = 0.0
    """Updates that others have made, on average, between a pull and the push that follows."""
    more_updates: float = 0.0
    """Updates beyond those of workers in step, as a share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backups:
    """Steps that go on without the last workers."""

    workers: int
    """That a step does not wait for."""
    round_s: float
    tokens_per_s: float
    """Of those that count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """What a round takes of each way at another rate of the adapters, or of other workers."""

    KEYS: ClassVar[tuple[str, ...]] = ("factor", "time_variation=spread", "round_s", "fastest")

    factor: float
    """Of the adapters' rate."""
    spread: float
    """Of the workers' steps."""
    round_s: dict[str, float]

    @property
    def fastest(self) -> str:
        """The way whose round is shortest."""
        return min(self.round_s, key=lambda name: self.round_s[name])


@dataclass(frozen=True, kw_only=True, repr=False)
class Served(Answer):
    """The answer."""

    COMMAND: ClassVar[str] = "parameter-server"
    KEYS: ClassVar[tuple[str, ...]] = (
        *(*SCENARIO, "consistency=section.consistency", "staleness=section.staleness"),
        *("backup_workers=section.backup_workers", "servers=section.servers", "shard_bytes"),
        *("workers", "worker", "round=messages", "ways", "backups", "networks"),
        *("more_updates_given", "played", "caveats"),
    )

    scenario: Scenario
    section: ParameterServer
    work: ServerWork
    worker: Worker
    workers: int
    crew: WorkerGroup | None
    """None where no layout fits a worker."""
    round: SyncRound | None
    shard_bytes: float
    """What every server keeps."""
    ways: tuple[ServedWay, ...]
    """What was asked first; the other two kinds, all-reduce, and everyone to everyone."""
    networks: tuple[Network, ...]
    backups: tuple[Backups, ...]
    """Synchronous steps that wait for all, and for all but some."""
    played: PlayedServers | None = None
    """Rounds on discrete events, where they were played (:func:`with_play`)."""

    @property
    def line(self) -> str:
        """All of it in a few words."""
        workers = f"{self.workers:,} workers, {self.section.servers:,} servers"
        rounds = self.worker.reason or f"{show_seconds(self.ways[0].round_s)} a round"
        return f"{workers}, {self.section.consistency}, {rounds}"

    @property
    def messages(self) -> dict[str, Any] | None:
        """The round as JSON says it."""
        return None if self.round is None else encoded(self.round, _ROUND)

    @property
    def more_updates_given(self) -> bool:
        """Whether the scenario says how many more updates it takes."""
        return self.section.more_updates_fraction is not None

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is assumed, and what is not in the numbers."""
        section, work = self.section, self.work
        lines = []
        if section.consistency != "synchronous" and section.more_updates_fraction is None:
            lines.append(
                "A shorter round is not a shorter run: stale updates are taken for worth as much as"
                f" fresh ones (grade {work.asynchronous_more_updates.grade}); say what yours cost:"
                " parameter_server.more_updates_fraction"
            )
        if section.time_variation is None:
            lines.append(
                f"Steps of a worker are assumed to vary by {float(work.time_variation):.0%}"
                " (parameter_server.time_variation)."
            )
        return (
            *lines,
            "Pushes begin after the backward pass; all-reduce is hidden where the software hides"
            " it. The table by adapters has rings after the backward pass, too.",
            "Days are ideal ones. Servers on hosts of their own are not in the price.",
            *unjudged(self.scenario.goal),
        )

    def to_frame(self) -> DataFrame:
        """One row per way of keeping together."""
        return frame_of_rows(asdict(way) for way in self.ways)


_ROUND = (
    *("push_bytes", "pull_bytes", "pieces", "worker_bytes_per_s", "servers_bytes_per_s"),
    *("sum_s", "update_s", "latency_s"),
)


def with_play(answer: Served, seed: int = 0) -> Served:
    """Play rounds on discrete events beside the closed form, where some layout fits a worker.

    Raises
    ------
    InputError
        If there were too many messages to play, or a step does not wait for all workers.
    """
    if answer.crew is None or answer.round is None:
        return answer
    from simulator.events.ps_simulation import play_servers  # brings the events along

    section = answer.section
    if section.backup_workers:
        rule = "rounds that go on without some workers are not played; must be 0 with --play"
        field = "parameter_server.backup_workers"
        raise InputError(problem(answer.scenario.where, field, rule, section.backup_workers))
    kind, bound = section.consistency, section.staleness
    played = play_servers(answer.crew, answer.round, kind, staleness=bound, seed=seed)
    return replace(answer, played=played)


def parameter_server(scenario: Scenario) -> Served:
    """Find what a run takes with the servers of a scenario, and with all-reduce.

    Raises
    ------
    InputError
        If there is no section [parameter_server], or the run cannot be cut so.
    """
    section = scenario.required(ParameterServer)
    refuse_mixed(scenario)
    if scenario.workload.recipe.freezes:
        raise InputError(f"{scenario.where}: parameter_server: not yet with frozen parts")
    work = load_server_work()
    workers = _checked(scenario, section)
    shard = float(work.state_bytes) * scenario.workload.architecture.parameters / section.servers
    _check_shard(scenario, section, shard)
    worker = fastest_worker(scenario, section, workers)
    crew = one = None
    if not worker.reason:
        crew = _crew(section, work, worker, workers)
        one = _round(scenario, section, work, workers)
    return Served(
        scenario=scenario,
        section=section,
        work=work,
        worker=worker,
        workers=workers,
        crew=crew,
        round=one,
        shard_bytes=shard,
        ways=_ways(scenario, section, work, worker, crew, one),
        networks=() if crew is None or one is None else _networks(section, crew, one),
        backups=() if crew is None or one is None else _backups(scenario, worker, crew, one),
    )


def _hosts(cluster: Cluster) -> int:
    return -(-cluster.gpus // cluster.node.accelerators)


def _checked(scenario: Scenario, section: ParameterServer) -> int:
    """How many workers there are, where the section can be."""
    cluster, where, name = scenario.cluster, scenario.where, "parameter_server"
    each, hosts, found = per_worker(cluster, section), _hosts(cluster), []
    if cluster.gpus % each:
        rule = f"must divide the {cluster.gpus} accelerators of the run"
        raise InputError(problem(where, f"{name}.worker_gpus", rule, each))
    workers = cluster.gpus // each
    if workers > MOST_WORKERS:
        rule = f"must leave at most {MOST_WORKERS:,} workers"
        raise InputError(problem(where, f"{name}.worker_gpus", rule, each))
    if section.placement == "workers" and section.servers > hosts:
        rule = f"must be at most the {hosts} hosts of the workers"
        text = problem(where, f"{name}.servers", rule, section.servers)
        found.append(f"{text} (nearest: {hosts})")
    slow = sum(straggler.workers for straggler in section.stragglers)
    if slow > workers:
        rule = f"must be at most the {workers} workers in all"
        found.append(problem(where, f"{name}.stragglers", rule, slow))
    if section.backup_workers >= workers:
        rule = f"must be fewer than the {workers} workers"
        raise InputError(problem(where, f"{name}.backup_workers", rule, section.backup_workers))
    waited = workers - section.backup_workers
    if (batch := scenario.workload.recipe.global_batch) % waited:
        rule = f"must divide over the {waited} workers{' waited for' * (waited < workers)}"
        near = max(round(batch / waited), 1) * waited
        text = problem(where, "training.global_batch", rule, batch)
        found.append(f"{text} (nearest: {near})")
    if found:
        raise InputError(found)
    return workers


def _check_shard(scenario: Scenario, section: ParameterServer, shard: float) -> None:
    """Refuse shards that no host holds."""
    room = scenario.cluster.node.host_memory_bytes
    if room is not None and shard > float(room):
        need = ceil(shard * section.servers / float(room))
        rule = f"a shard takes {shard:.3g} bytes of a host that has {float(room):.3g}; must be"
        rule = f"{rule} at least {need}"
        text = problem(scenario.where, "parameter_server.servers", rule, section.servers)
        raise InputError(f"{text} (nearest: {need})")


def _crew(section: ParameterServer, work: ServerWork, worker: Worker, workers: int) -> WorkerGroup:
    """Workers by speed."""
    time_variation = section.time_variation
    slow = [(straggler.factor, straggler.workers) for straggler in section.stragglers]
    rest = workers - sum(number for _, number in slow)
    classes = [*([(1.0, rest)] if rest else []), *slow]
    return WorkerGroup(
        step_s=np.array([worker.step_s * factor for factor, _ in classes]),
        workers=np.array([number for _, number in classes]),
        spread=float(work.time_variation if time_variation is None else time_variation),
    )


def _round(
    scenario: Scenario, section: ParameterServer, work: ServerWork, workers: int
) -> SyncRound:
    """Messages, rates and what servers do with them."""
    cluster, node = scenario.cluster, scenario.cluster.node
    parameters, servers = float(scenario.workload.architecture.parameters), section.servers
    out = node.scale_out
    host = float(out.adapters * out.adapter_bytes_per_s * cluster.fabric.usable_fraction)
    own = host * per_worker(cluster, section) / node.accelerators
    push, pull = (parameters * _BYTES[x] for x in (section.push_dtype, section.pull_dtype))
    pieces = max(1.0, round(push / (servers * float(work.piece_bytes))))
    if section.placement == "workers":
        away = 1.0 - 1.0 / _hosts(cluster)
        push, pull = push * away, pull * away
        shared = _shared_ports(push, pull, workers / servers)
        own, host = own / shared, host / shared
    memory = section.server_memory_bytes_per_s or _memory_rate(scenario, work)
    return SyncRound(
        push_bytes=push,
        pull_bytes=pull,
        worker_bytes_per_s=own,
        servers_bytes_per_s=servers * host,
        sum_s=float(work.sum_bytes) * parameters / (servers * memory),
        update_s=float(work.update_bytes) * parameters / (servers * memory),
        latency_s=float(work.latency_s),
        pieces=pieces,
    )


def _shared_ports(push: float, pull: float, each: float) -> float:
    """How much longer a port takes for what its worker and its server send (or take in) together.

    A server answers `each` workers. With as many servers as workers and messages of one size a
    port carries both ways twice: what a ring takes as well (Jiang et al. 2020, section 3).
    """
    sent, taken = (push, each * pull), (pull, each * push)
    longest = max(max(sent), max(taken))
    return max(sum(sent), sum(taken)) / longest if longest else 1.0


def _memory_rate(scenario: Scenario, work: ServerWork) -> float:
    """Bytes per second of a host's processors, by its Adam step."""
    adam = scenario.cluster.node.host_adam_parameters_per_s
    if adam is None:
        name = scenario.cluster.node.name
        rule = f"required: not known how fast the host of {name} is"
        raise InputError(f"{scenario.where}: parameter_server.server_memory_bytes_per_s: {rule}")
    return float(adam) * float(work.update_bytes)


def _rounds_of(
    kind: str, section: ParameterServer, crew: WorkerGroup, sync_round: SyncRound
) -> Any:
    """Rounds per second of every class of workers."""
    if kind == "asynchronous":
        return asynchronous_rounds(crew, sync_round)
    if kind == "synchronous":
        period = synchronous_s(crew.ready_s, sync_round, backups=section.backup_workers)
    elif kind == "stale-synchronous":
        period = stale_synchronous_s(crew, section.staleness, sync_round)
    else:
        pull = sync_round.push_bytes
        total = float(crew.workers.sum())
        call = ring_s if kind == "all-reduce" else broadcast_s
        period = crew.ready_s[-1] + call(pull, total, sync_round.worker_bytes_per_s)
    return np.full(len(crew.workers), 1.0 / float(period))


_KINDS: tuple[Consistency, ...] = ("synchronous", "stale-synchronous", "asynchronous")


def _ways(
    scenario: Scenario,
    section: ParameterServer,
    work: ServerWork,
    worker: Worker,
    crew: WorkerGroup | None,
    sync_round: SyncRound | None,
) -> tuple[ServedWay, ...]:
    """What was asked, the other kinds, all-reduce as planned, everyone to everyone."""
    first = section.consistency
    kinds = (first, *(kind for kind in _KINDS if kind != first))
    rows = []
    for kind in (*kinds, "broadcast to all"):
        more = 0.0
        if kind in ("stale-synchronous", "asynchronous"):
            given = section.more_updates_fraction if kind == first else None
            more = float(work.asynchronous_more_updates if given is None else given)
        if crew is None or sync_round is None:
            rows.append(ServedWay(name=kind, more_updates=more, reason=worker.reason))
            continue
        rounds = _rounds_of(kind, section, crew, sync_round)
        total = float((rounds * crew.workers).sum())
        every = float(crew.workers.sum())
        count = every - section.backup_workers if kind == "synchronous" else every
        pace = ServedWay(
            name=kind,
            round_s=every / total,
            tokens_per_s=total * count / every * worker.batch * _tokens(scenario),
            stale_updates=_stale(kind, section, crew, total, rounds),
            more_updates=more,
        )
        rows.append(_with_days(pace, scenario))
    rows.insert(len(kinds), _all_reduce(scenario, crew))
    return tuple(rows)


def _with_days(way: ServedWay, scenario: Scenario) -> ServedWay:
    days = ideal_days(scenario.workload.recipe, way.tokens_per_s, more=way.more_updates)
    return replace(way, days_ideal=days)


def _backups(
    scenario: Scenario, worker: Worker, crew: WorkerGroup, sync_round: SyncRound
) -> tuple[Backups, ...]:
    """Steps of the same workers that wait for all of them, and for all but 1, 2, 4, ..."""
    every, found = int(crew.workers.sum()), []
    some = 0
    while some <= every // 4:
        seconds = float(synchronous_s(crew.ready_s, sync_round, backups=some))
        tokens = (every - some) * worker.batch * _tokens(scenario)
        found.append(Backups(workers=some, round_s=seconds, tokens_per_s=tokens / seconds))
        some = max(2 * some, 1)
    return tuple(found)


def _tokens(scenario: Scenario) -> float:
    """Tokens of a sequence, padding left out."""
    recipe = scenario.workload.recipe
    return recipe.tokens_per_step / recipe.global_batch


def _stale(
    kind: str, section: ParameterServer, crew: WorkerGroup, total: float, rounds: Any
) -> float:
    """Updates of others between a pull and its push: rate of all others by the mean step."""
    if kind in ("synchronous", "broadcast to all"):
        return 0.0
    each = float(np.average(crew.step_s, weights=crew.workers * rounds))
    others = total * (1.0 - 1.0 / float(crew.workers.sum()))
    stale = others * each
    if kind == "stale-synchronous":
        stale = min(stale, section.staleness * (float(crew.workers.sum()) - 1.0))
    return stale


def _all_reduce(scenario: Scenario, crew: WorkerGroup | None) -> ServedWay:
    """The best layout of the whole cluster; who is late beyond the mean is waited for."""
    name, searched = "all-reduce", fastest(scenario)
    if searched.reason:
        return ServedWay(name=name, reason=searched.reason)
    late = 0.0 if crew is None else float(crew.ready_s[-1] - crew.step_s[0])
    step = searched.step_time_s + late
    rate = scenario.workload.recipe.tokens_per_step / step
    return _with_days(ServedWay(name=name, round_s=step, tokens_per_s=rate), scenario)


def _networks(
    section: ParameterServer, crew: WorkerGroup, sync_round: SyncRound
) -> tuple[Network, ...]:
    """Every way at other rates and spreads; all-reduce over rings of the same workers."""
    cases = [
        *((factor, crew.spread) for factor in NETWORKS),
        *((1.0, spread) for spread in SPREADS if spread != crew.spread),
    ]
    found = []
    for factor, spread in cases:
        there = replace(
            sync_round,
            worker_bytes_per_s=factor * sync_round.worker_bytes_per_s,
            servers_bytes_per_s=factor * sync_round.servers_bytes_per_s,
        )
        others = replace(crew, spread=spread)
        rounds = {
            kind: float(crew.workers.sum())
            / float((_rounds_of(kind, section, others, there) * crew.workers).sum())
            for kind in (*_KINDS, "all-reduce")
        }
        found.append(Network(factor=factor, spread=spread, round_s=rounds))
    return tuple(found)
