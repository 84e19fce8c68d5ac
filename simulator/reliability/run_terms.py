"""Rates and seconds of a run, for a table of layouts: what closed form and simulation both read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.records import dataclass
from simulator.reliability.reliability_profile import Cause, Reliability, Storage
from simulator.units import DAY_S

HARDWARE, SOFTWARE, SILENT, PREEMPTION = range(4)
"""Kinds of causes, as `RunTerms.kind` holds them."""

SWITCHES = ("leaf", "spine")

_MOST_MISSING = 1024

_KINDS = ("hardware", "software", "silent", "preemption")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a layout runs on, and what its run is; every field of shape (layouts,) or one number."""

    gpus: Any
    node_gpus: Any
    """Accelerators of a server."""
    node_adapters: Any = 8
    leaf_nodes: Any = 32
    """Servers below one leaf switch."""
    replicas: Any = 1
    """Data-parallel replicas: what can be left out where a run shrinks."""
    micro_batches: Any = np.inf
    """Of a replica and step; a run that shrinks and keeps its batch deals them out again."""
    once_share: Any = 0.0
    """Share of a step that its micro-batches do not repeat: fill, drain, gradients, optimizer."""
    step_s: Any
    work_s: Any
    """Seconds of the ideal run, steps x step time; NaN where nobody gave its tokens."""
    checkpoint_bytes: Any
    writer_nodes: Any
    """Servers that write: all where states are sharded, those of one replica otherwise."""
    writer_gpus: Any


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """Shapes: (layouts, 1) and, with causes, (layouts, causes); seconds, and failures a second."""

    run: Reliability
    causes: tuple[str, ...]
    kind: Any
    """Index of the kind of every cause, (causes,)."""
    single: Any
    """Whether a failure is that of a server, not of all below a switch, (causes,)."""
    rate: Floats
    """(layouts, causes), at the reference age."""
    detection_s: Floats
    """(causes,)"""
    diagnosis_s: Floats
    """(causes,): mean, without people."""
    replaced: Floats
    """(causes,): share of failures after which servers are replaced."""
    repair_s: Floats
    """(causes,)"""
    taken_nodes: Floats
    """(layouts, causes): servers that a failure takes."""
    lossless: Any
    """(layouts, causes): announced long enough before for a checkpoint."""
    from_copies: Any
    """(layouts, causes): a restart finds its copies in the memory of peers."""
    nodes: Floats
    step_s: Floats
    work_s: Floats
    stretch: Floats
    """Seconds of training for a second of ideal training: tail, evaluation, collections, data."""
    extras: dict[str, Floats]
    """What `stretch` is made of: seconds for a second of ideal training."""
    write_s: Floats
    """A whole checkpoint to storage."""
    stall_s: Floats
    """What training waits for at each checkpoint to storage."""
    background_s: Floats
    """From then until it can be restarted from."""
    copy_s: Floats
    """What training waits for at each copy to peers (mode memory)."""
    start_s: Floats
    """Processes and communicators."""
    load_s: Floats
    copy_load_s: Floats
    """Loading from copies of peers."""
    warmup_s: Floats
    hot: Floats
    """Hot spares, and all of the pool."""
    pool: Floats
    speed_lost: Floats
    """Share of the speed, in tokens, that a run which shrinks loses without 0, 1, 2 ... servers;
    (layouts, servers), 1 where no replica is left; the last column holds for more."""
    lemons: Floats
    """Servers that fail far more often."""

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def restart_s(self) -> Floats:
        """From a start of processes to training, loading from storage."""
        return np.asarray(self.start_s + self.load_s + self.warmup_s)

    @property
    def copy_restart_s(self) -> Floats:
        """The same, loading from copies of peers."""
        return np.asarray(self.start_s + self.copy_load_s + self.warmup_s)

    @property
    def in_memory(self) -> bool:
        """Whether copies go to the memory of peers."""
        return self.run.checkpoints.mode == "memory"

    def ages(self, seconds: Any) -> Floats:
        """Multiplier of the rates of hardware, `seconds` after the run began."""
        shape, run = float(self.run.early_shape), self.run
        age = np.maximum(run.age_s + np.asarray(seconds, float), DAY_S)
        return np.asarray((age / run.reference_age_s) ** (shape - 1.0))

    def aged_s(self, seconds: Any) -> Floats:
        """Integral of `ages` over the first `seconds` of the run."""
        shape, reference = float(self.run.early_shape), self.run.reference_age_s
        begun = max(self.run.age_s, DAY_S)
        young = np.minimum(np.asarray(seconds, float), begun - self.run.age_s)
        whole = ((begun + seconds - young) / reference) ** shape - (begun / reference) ** shape
        return np.asarray(young * self.ages(0.0) + whole * reference / shape)

    def take(self, rows: Any) -> RunTerms:
        """Return the terms of some layouts, of one or of an array of rows."""
        rows = np.atleast_1d(rows)
        chosen: dict[str, Any] = {
            name: value[rows]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray) and value.ndim == 2
        }
        extras = {name: value[rows] for name, value in self.extras.items()}
        return replace(self, **chosen, extras=extras)


def run_terms(run: Reliability, machine: Machine) -> RunTerms:
    """Turn a set of rates and a machine into terms.

    Checkpoints take ``bytes / min(nodes x node rate, total rate)``; above `queue_nodes` servers a
    share of the total is left, but no less than what so many servers reach together.
    """
    columns = _columns(machine)
    nodes = np.ceil(columns["gpus"] / columns["node_gpus"])
    causes = tuple(run.causes.values())
    write_s, load_s = _storage_seconds(run, columns, nodes)
    copy_s = columns["checkpoint_bytes"] / columns["writer_gpus"]
    copy_s = copy_s / float(run.checkpoints.copy_bytes_per_s)
    mode = run.checkpoints.mode
    slowed = float(run.checkpoints.background_fraction)
    stall_s = {"sync": write_s, "async": copy_s + slowed * write_s, "memory": slowed * write_s}[
        mode
    ]
    counts = _counts(columns, nodes)
    per_second = np.array(list(run.rates.values())) / DAY_S
    taken = np.hstack([_taken(cause, columns, nodes) for cause in causes])
    notice = np.array([float(cause.notice_s) for cause in causes])
    announced = np.array([cause.kind == "preemption" for cause in causes])
    extras = _extras(run, len(nodes))
    hot, pool = _spares(run, nodes)
    lemons = np.maximum(np.round(float(run.lemon_fraction) * nodes), 1.0)
    return RunTerms(
        run=run,
        causes=tuple(run.causes),
        rate=np.hstack([counts[cause.device] for cause in causes]) * per_second,
        **_of_causes(causes),
        taken_nodes=taken,
        lossless=announced & (notice >= write_s),
        from_copies=(taken <= 1.0) & ~np.array([c.kind == "silent" for c in causes]),
        nodes=nodes,
        step_s=columns["step_s"],
        work_s=columns["work_s"],
        stretch=1.0 + np.sum(list(extras.values()), axis=0),
        extras=extras,
        write_s=write_s,
        stall_s=stall_s,
        background_s=np.zeros_like(write_s) if mode == "sync" else write_s,
        copy_s=copy_s,
        start_s=_start(run, columns["gpus"]),
        load_s=load_s,
        copy_load_s=copy_s,
        warmup_s=np.full_like(nodes, float(run.restart.warmup_s)),
        hot=hot,
        pool=pool,
        speed_lost=_speed_lost(run, columns, nodes),
        lemons=lemons * (run.lemon_fraction > 0.0),
    )


def _of_causes(causes: tuple[Cause, ...]) -> dict[str, Any]:
    """Terms with an entry for each cause."""
    return {
        "kind": np.array([_KINDS.index(cause.kind) for cause in causes]),
        "single": np.array([cause.device not in SWITCHES for cause in causes]),
        "detection_s": np.array([float(cause.detection_s) for cause in causes]),
        "diagnosis_s": np.array([float(cause.diagnosis_s) for cause in causes]),
        "replaced": np.array([float(cause.replaced_fraction) for cause in causes]),
        "repair_s": np.array([float(cause.repair_s) for cause in causes]),
    }


def device_counts(machine: Machine) -> dict[str, float]:
    """Devices of each kind that the first layout uses."""
    columns = _columns(machine)
    counts = _counts(columns, np.ceil(columns["gpus"] / columns["node_gpus"]))
    return {name: float(count[0, 0]) for name, count in counts.items()}


def _columns(machine: Machine) -> dict[str, Floats]:
    """Every field of a machine as a column, (layouts, 1)."""
    values = {
        name: np.atleast_1d(np.asarray(value, float)) for name, value in vars(machine).items()
    }
    table = np.broadcast_arrays(*values.values())
    return {name: column[:, None] for name, column in zip(values, table, strict=True)}


def _counts(columns: dict[str, Floats], nodes: Floats) -> dict[str, Floats]:
    """Devices of every kind that a run uses, (layouts, 1).

    Switches as in a two-level network without blocking: as many spines as half of the leaves.
    """
    leaves = np.where(nodes > 1.0, np.ceil(nodes / columns["leaf_nodes"]), 0.0)
    return {
        "gpu": columns["gpus"],
        "node": nodes,
        "adapter": np.where(nodes > 1.0, nodes * columns["node_adapters"], 0.0),
        "leaf": leaves,
        "spine": np.where(leaves > 1.0, np.ceil(leaves / 2.0), 0.0),
    }


def _taken(cause: Cause, columns: dict[str, Floats], nodes: Floats) -> Floats:
    """Servers that a failure takes: those below a leaf switch, one otherwise."""
    below = np.minimum(columns["leaf_nodes"], nodes)
    return np.asarray(below if cause.device == "leaf" else np.ones_like(nodes))


def _storage_seconds(
    run: Reliability, columns: dict[str, Floats], nodes: Floats
) -> tuple[Floats, Floats]:
    """Writing and reading one checkpoint: those that write, and all servers that read."""
    size, writers = columns["checkpoint_bytes"], columns["writer_nodes"]
    return write_seconds(run.storage, size, writers), read_seconds(run.storage, size, nodes)


def write_seconds(store: Storage, size_bytes: Any, servers: Any) -> Floats:
    """Seconds in which so many servers write so many bytes to the storage, together."""
    return _through(size_bytes, servers, store.queue_nodes, store.node_write_bytes_per_s,
                    store.write_bytes_per_s, store.queued_write_fraction)  # fmt: skip


def read_seconds(store: Storage, size_bytes: Any, servers: Any) -> Floats:
    """Seconds in which they read them."""
    return _through(size_bytes, servers, store.queue_nodes, store.node_read_bytes_per_s,
                    store.read_bytes_per_s, store.queued_read_fraction)  # fmt: skip


def _through(
    size_bytes: Any, servers: Any, queue_nodes: int, node_rate: float, total: float, left: float
) -> Floats:
    servers = np.asarray(servers, float)
    rate = np.minimum(servers * float(node_rate), float(total))
    if queue_nodes:
        few = np.minimum(queue_nodes * float(node_rate), float(total))
        queued = np.maximum(np.minimum(rate, float(total) * float(left)), few)
        rate = np.where(servers > queue_nodes, queued, rate)
    return np.asarray(size_bytes / rate)


def _extras(run: Reliability, rows: int) -> dict[str, Floats]:
    """What makes training longer than ideal, whatever happens."""
    slow = run.slow
    extras = {
        "slow steps": float(slow.tail_fraction),
        "data stalls": float(slow.data_fraction),
        "garbage collection": _every(slow.collect_steps, slow.collect_every),
        "evaluation": _every(slow.evaluate_steps, slow.evaluate_every),
    }
    return {name: np.full((rows, 1), value) for name, value in extras.items()}


def _speed_lost(run: Reliability, columns: dict[str, Floats], nodes: Floats) -> Floats:
    """What missing servers take, (layouts, servers); nothing where a run waits for them.

    A server takes the replicas with it that it holds a part of. A batch that is kept is dealt to
    those that are left, in whole micro-batches: of d replicas with m each, d' have
    ``ceil(m d / d')``. Otherwise a step takes as long as before and has fewer tokens.
    """
    spares = run.spares
    most = int(min(nodes.max(), _MOST_MISSING)) if spares.when_none == "shrink" else 0
    replicas = np.maximum(columns["replicas"], 1.0)
    per_server = np.ceil(np.minimum(columns["node_gpus"] * replicas / columns["gpus"], replicas))
    left = np.maximum(replicas - np.arange(most + 1) * per_server, 0.0)
    if not spares.keep_batch:
        return np.asarray(1.0 - left / replicas)
    micro, once = columns["micro_batches"], columns["once_share"]
    with np.errstate(divide="ignore", invalid="ignore"):
        more = np.where(np.isinf(micro), replicas / left, np.ceil(micro * replicas / left) / micro)
        speed = np.where(left > 0.0, 1.0 / (once + (1.0 - once) * more), 0.0)
    return np.asarray(1.0 - speed)


def _every(steps: float, every: int) -> float:
    return float(steps) / every if every else 0.0


def _start(run: Reliability, gpus: Floats) -> Floats:
    restart = run.restart
    fixed = float(restart.schedule_s) + float(restart.communicators_s)
    return np.asarray(fixed + float(restart.communicators_per_rank_s) * gpus)


def _spares(run: Reliability, nodes: Floats) -> tuple[Floats, Floats]:
    """Hot spares and the whole pool, (layouts, 1)."""
    spares = run.spares
    pool = np.ceil(float(spares.pool_fraction) * nodes)
    hot = np.round(float(spares.hot_fraction) * nodes)  # a small run pays for none
    if spares.pool is not None:
        pool = np.full_like(nodes, float(spares.pool))
    if spares.hot is not None:
        hot = np.full_like(nodes, float(spares.hot))
        pool = np.maximum(pool, hot) if spares.pool is None else pool
    return np.minimum(hot, pool), pool
