"""A step of a recommender: the dense model by data parallelism, its tables split over the ranks.

Forward: rows are read and summed where they lie, the sums go to the ranks of their samples beside
the bottom layers. Backward: gradients of the sums go back beside the bottom layers' backward pass,
rows are updated where they lie (Naumov et al. 2019, arXiv 1906.00091, section 4; Mudigere et al.
2021, arXiv 2104.05158, section 4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from simulator.answers import SCENARIO, Answer
from simulator.cost.collectives.calls import all_to_all_s, reduce_scatter_s
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.errors import InfeasibleError
from simulator.frames import DataFrame, frame_of_rows
from simulator.hardware.cluster import Cluster
from simulator.layout.placement import Group
from simulator.planner.prediction import Prediction, predict
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.sparse_tables.dense_model import bottom_flop_fraction, table_parameters
from simulator.sparse_tables.sharding import (
    Deal,
    Shard,
    deal,
    distinct_rows_read,
    hit_fraction,
    table_bytes,
)
from simulator.sparse_tables.sparse_section import Sparse
from simulator.units import show_bytes, show_count, show_seconds

_COMPUTE = ("gemm", "attention", "memory_bound", "launch")

_INDEX_BYTES = 8.0
"""Of the number of a row, as torch and HugeCTR keep it."""

_ADAM_BYTES = 28.0
"""Of host memory traffic for every parameter of the host's Adam step, whose rate is known."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Recommended(Answer):
    """A step, term by term."""

    COMMAND: ClassVar[str] = "recommender"
    KEYS: ClassVar[tuple[str, ...]] = (
        *(*SCENARIO, "parameters", "step_time_s", "samples_per_s", "terms_s", "hidden_s", "fits"),
        *("verdict", "memory_bytes", "tables_bytes=kept_bytes", "host_bytes"),
        *("usable_bytes=dense.estimate.usable_bytes", "distinct_rows", "hit_fraction"),
        *("shards_of_ranks", "tables_by_row", "caveats"),
    )

    scenario: Scenario
    sparse: Sparse
    dense: Prediction
    """The dense model alone."""
    deal: Deal
    terms_s: dict[str, float]
    """What the step shows, by name; they add up to `step_time_s`."""
    hidden_s: dict[str, float]
    """What runs beside the dense model."""
    kept_bytes: float
    """Of tables on the worst rank."""
    host_bytes: float
    """Of tables in the memory of a host."""
    distinct_rows: float
    """Rows of all tables that a step reads and updates, each once."""
    hit_fraction: float
    """Share of the reads that find their row on an accelerator."""

    @property
    def line(self) -> str:
        """All of it in a few words."""
        size = f"{show_count(self.parameters)} parameters on {self.scenario.cluster.gpus:,} GPUs"
        rate = f"{show_count(self.samples_per_s)} samples/s"
        risk = "" if self.verdict == "FITS" else f", {self.verdict}"
        return f"{size}, {show_seconds(self.step_time_s)}, {rate}{risk}"

    def to_frame(self) -> DataFrame:
        """One row per term of the step, shown and hidden."""
        hidden = self.hidden_s
        return frame_of_rows(
            {"term": name, "shown_s": seconds, "hidden_s": hidden.get(name, 0.0)}
            for name, seconds in self.terms_s.items()
        )

    @property
    def shards_of_ranks(self) -> list[int]:
        """How many tables, or columns of them, each rank has."""
        return [len(shards) for shards in self.deal.shards]

    @property
    def tables_by_row(self) -> int:
        """How many are split by rows over all ranks."""
        return len(self.deal.by_row)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What nobody measured, and what is not modelled."""
        lines = (
            "Rows are read as any memory-bound kernel moves bytes, and popularity is Zipf's law"
            " with sparse.tables.skew, which nobody measured here.",
            "Not modelled: reading samples, indices on their way (sent with the samples),"
            " evaluation, kernels of many small tables beyond their bytes.",
        )
        if self.sparse.updates != "asynchronous":
            return lines
        return (
            *lines,
            "Asynchronous updates: rows are one step old; what that costs in accuracy is not"
            " modelled, so that time per step alone misleads.",
        )

    @property
    def step_time_s(self) -> float:
        """Time of one step."""
        return sum(self.terms_s.values())

    @property
    def samples_per_s(self) -> float:
        """Samples of all accelerators a second."""
        return self.scenario.workload.recipe.global_batch / self.step_time_s

    @property
    def memory_bytes(self) -> float:
        """Of the worst rank: the dense model and its tables."""
        return self.dense.memory_bytes + self.kept_bytes

    @property
    def parameters(self) -> int:
        """Of the dense model and all tables."""
        return self.scenario.workload.architecture.parameters + table_parameters(self.sparse)

    @property
    def fits(self) -> bool:
        """Whether accelerators and hosts hold them."""
        return self.memory_bytes <= self.dense.estimate.usable_bytes

    @property
    def verdict(self) -> str:
        """FITS, TIGHT where the P90 of the dense model leaves the tables no room, or OOM."""
        if not self.fits:
            return "OOM"
        p90_bytes = float(self.dense.estimate.memory_p90_bytes[0]) + self.kept_bytes
        return "TIGHT" if p90_bytes > self.dense.estimate.usable_bytes else "FITS"


def recommender(scenario: Scenario) -> Recommended:
    """Price a step of a scenario with [sparse].

    Raises
    ------
    InputError
        If there is no [sparse], or a field of it does not go with the cluster.
    InfeasibleError
        If a table, or all of them, is larger than all memory.
    """
    sparse = scenario.required(Sparse)
    cluster = scenario.cluster
    dense = predict(scenario.without(Sparse))
    ranks = cluster.gpus
    room = float(dense.estimate.usable_bytes) - dense.memory_bytes
    _check_memory(sparse, scenario, max(room, 0.0))
    on_device = replace(sparse, row_state_bytes=sparse.row_state_bytes * sparse.cache_fraction,
                        element_bytes=sparse.element_bytes * sparse.cache_fraction)  # fmt: skip
    dealt = deal(on_device, ranks, max(room, 0.0))
    kept = float(dealt.kept_bytes.max())
    whole = sum(table.count * table_bytes(table, sparse) for table in sparse.tables)
    servers = max(ranks / cluster.node.accelerators, 1.0)
    hosted = whole / servers if sparse.exchange == "rpc" or sparse.cache_fraction < 1.0 else 0.0
    work = _Work(scenario=scenario, sparse=sparse, dense=dense, deal=dealt)
    shown, hidden = work.rpc() if sparse.exchange == "rpc" else work.on_ranks()
    return Recommended(
        scenario=scenario,
        sparse=sparse,
        dense=dense,
        deal=dealt,
        terms_s=shown,
        hidden_s=hidden,
        kept_bytes=0.0 if sparse.exchange == "rpc" else kept,
        host_bytes=hosted,
        distinct_rows=work.distinct_rows,
        hit_fraction=work.hits,
    )


def _check_memory(sparse: Sparse, scenario: Scenario, room_bytes: float) -> None:
    """Refuse tables that accelerators, or hosts, cannot hold."""
    cluster, where = scenario.cluster, scenario.where
    servers = max(cluster.gpus / cluster.node.accelerators, 1.0)
    host = servers * float(cluster.node.host_memory_bytes or np.inf)
    devices = room_bytes * cluster.gpus
    away = sparse.exchange == "rpc" or sparse.cache_fraction < 1.0
    place = "the hosts' memory" if away else "the accelerators' memory beside the dense model"
    room = host if away else devices
    for i, table in enumerate(sparse.tables):
        if (size := table_bytes(table, sparse)) > room:
            raise InfeasibleError(
                f"{where}: sparse.tables.{i}.rows: a table of {show_bytes(size)} is larger than all"
                f" of {place}, {show_bytes(room)}"
            )
    whole = sum(table.count * table_bytes(table, sparse) for table in sparse.tables)
    if whole > room:
        hint = "" if away else "; sparse.cache_fraction or exchange = 'rpc' keep them on the hosts"
        raise InfeasibleError(
            f"{where}: sparse.tables: {show_bytes(whole)} are more than {place} holds,"
            f" {show_bytes(room)}{hint}"
        )
    if away and sparse.exchange != "rpc" and whole * sparse.cache_fraction > devices:
        raise InfeasibleError(
            f"{where}: sparse.cache_fraction: {show_bytes(whole * sparse.cache_fraction)} are more"
            f" than the accelerators hold, {show_bytes(devices)}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """What rows cost; bytes are those of the busiest rank."""

    scenario: Scenario
    sparse: Sparse
    dense: Prediction
    deal: Deal

    @property
    def cluster(self) -> Cluster:
        return self.scenario.cluster

    @property
    def batch(self) -> float:
        return float(self.scenario.workload.recipe.global_batch)

    @property
    def ranks(self) -> int:
        return self.cluster.gpus

    @property
    def distinct_rows(self) -> float:
        """Rows that a step reads, each once, over all tables."""
        return sum(
            table.count * distinct_rows_read(table.rows, self.batch * table.pooling, table.skew)
            for table in self.sparse.tables
        )

    @property
    def hits(self) -> float:
        """Share of the reads that find their row on an accelerator."""
        tables = self.sparse.tables
        reads = sum(t.count * t.pooling for t in tables)
        found = (t.count * t.pooling * hit_fraction(t.rows, self.sparse.cache_fraction, t.skew)
                 for t in tables)  # fmt: skip
        return sum(found) / reads

    def busiest(self) -> tuple[float, float, float]:
        """Most bytes of one rank: rows read and sums written; updates; copies from the host."""
        own = [[self._bytes(shard) for shard in shards] for shards in self.deal.shards]
        shared = np.array([self._bytes(shard) for shard in self.deal.by_row]).reshape(-1, 3)
        array = np.array([np.array(one).reshape(-1, 3).sum(axis=0) for one in own])
        worst = (array + shared.sum(axis=0)).max(axis=0)
        return float(worst[0]), float(worst[1]), float(worst[2])

    def _bytes(self, shard: Shard) -> tuple[float, float, float]:
        """The same of one shard."""
        sparse, table = self.sparse, shard.table
        part = 1.0 / self.ranks if shard.by_row else 1.0
        reads = self.batch * table.pooling * part
        row = shard.width * sparse.element_bytes
        sums = self.batch * shard.width * sparse.exchange_element_bytes
        distinct = distinct_rows_read(table.rows, self.batch * table.pooling, table.skew) * part
        forward = reads * row + sums + reads * _INDEX_BYTES
        # each read adds its sum's gradient to its row's; rows and their states are read and written
        gradients = reads * shard.width * sparse.exchange_element_bytes
        updates = gradients + 2.0 * distinct * (row + sparse.row_state_bytes)
        missed = 1.0 - hit_fraction(table.rows, sparse.cache_fraction, table.skew)
        copied = 2.0 * min(missed * reads, distinct) * (row + sparse.row_state_bytes)
        return forward, updates, copied if sparse.cache_fraction < 1.0 else 0.0

    def on_ranks(self) -> tuple[dict[str, float], dict[str, float]]:
        """Tables on the accelerators, sums by all-to-all; shown and hidden seconds."""
        forward, updates, copied = self.busiest()
        figures = stream_figures(self.cluster.accelerator, "elementwise")
        lookup_s = float(stream_s(moved_bytes=forward, **figures))
        update_s = float(stream_s(moved_bytes=updates, **figures))
        link = float(self.cluster.node.host_bytes_per_s or np.inf)
        away_s = self._exchange_s()
        bottom_s = self._bottom_s()
        parts = {
            "lookups": (lookup_s, 0.0),
            "sums to their samples": (away_s, bottom_s),
            "gradients of sums back": (away_s, 2.0 * bottom_s),
            "updates of rows": (update_s, 0.0),
            "rows from and to the host": (copied / link, 0.0),
        }
        return self._joined(parts)

    def _exchange_s(self) -> float:
        """Seconds in which the sums of all rows reach their samples, one way."""
        ranks, each = self.ranks, self.sparse.exchange_element_bytes
        local = min(self.cluster.node.scale_up.domain, ranks)
        group = Group(size=np.array([ranks]), local=np.array([local]))
        sent = self.batch * float(self.deal.widths.max()) * each
        summed = self.batch * self.deal.row_width * each
        seconds = all_to_all_s(self.cluster, np.array([sent]), group)
        if summed:
            seconds = seconds + reduce_scatter_s(self.cluster, np.array([summed]), group)
        return float(np.asarray(seconds).ravel()[0])

    def _bottom_s(self) -> float:
        """Forward pass of the layers that need no row."""
        terms = self.dense.estimate.terms_s
        compute = sum(float(terms[name][0]) for name in _COMPUTE)
        return compute / 3.0 * bottom_flop_fraction(self.scenario.workload.architecture)

    def rpc(self) -> tuple[dict[str, float], dict[str, float]]:
        """Tables in the hosts' memory: rows are summed there and updated there."""
        sparse, node = self.sparse, self.cluster.node
        servers = max(self.ranks / node.accelerators, 1.0)
        width = sum(t.count * (t.width or sparse.width) for t in sparse.tables)
        sums = self.batch * width * sparse.exchange_element_bytes / servers
        network = float(self.cluster.network_bytes_per_s_per_gpu) * min(
            node.accelerators, self.ranks
        )
        rate = min(network, float(node.host_bytes_per_s or np.inf)) if servers > 1 else np.inf
        latency = float(self.cluster.library.all_to_all_peer_s["network"])
        one_way_s = sums / rate + latency
        adam = node.host_adam_parameters_per_s
        memory = np.inf if adam is None else _ADAM_BYTES * float(adam)
        whole = Deal(shards=(), by_row=(), kept_bytes=np.zeros(1))
        shards = [Shard(table=t, width=t.width or sparse.width)
                  for t in sparse.tables for _ in range(t.count)]  # fmt: skip
        work = replace(self, deal=replace(whole, shards=(tuple(shards),)))
        forward, updates, _ = work.busiest()
        parts = {
            "lookups": (forward / servers / memory, 0.0),
            "sums to their samples": (one_way_s, self._bottom_s()),
            "gradients of sums back": (one_way_s, 2.0 * self._bottom_s()),
            "updates of rows": (updates / servers / memory, 0.0),
            "rows from and to the host": (0.0, 0.0),
        }
        return self._joined(parts)

    def _joined(
        self, parts: dict[str, tuple[float, float]]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Shown and hidden seconds: each part with the compute that it may hide behind.

        Asynchronously all of it runs beside the dense model's step, and what is longer shows.
        """
        dense_s = self.dense.step_time_s
        shown = {name: max(s - behind, 0.0) for name, (s, behind) in parts.items()}
        if self.sparse.updates == "asynchronous":
            whole = sum(s for s, _ in parts.values())
            left = max(whole - dense_s, 0.0) / max(whole, 1e-300)
            shown = {name: s * left for name, (s, _) in parts.items()}
        hidden = {name: s - shown[name] for name, (s, _) in parts.items()}
        return {"dense model": dense_s, **shown}, hidden
