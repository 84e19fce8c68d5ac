"""What a step waits for its input: who loads under a layout, first epochs, local copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.arrays import Floats
from simulator.data_input.data_section import DataInput
from simulator.data_input.supply import (
    Readers,
    copy_s,
    sample_of,
    stage_times,
    waiting_s,
)
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.software.profile import Software
from simulator.workload.recipe import Workload


@dataclass(frozen=True, kw_only=True)
class Supply:
    """How the input of one step comes; arrays over layouts."""

    data: DataInput
    readers: Readers
    cold_s: dict[str, Floats]
    """Seconds of every stage (STAGES) while samples come from the store."""
    warm_s: dict[str, Floats]
    """The same once they lie on the servers' own drives; `cold_s` where none are kept."""
    copy_s: Floats
    """Copies that the compute waits for."""
    cold_share: float
    """Share of the run's steps that read from the store."""

    def wait_s(self, step_s: Floats) -> Floats:
        """Mean seconds that a step of `step_s` waits, over the run."""
        cold = waiting_s(self.data, self.cold_s, step_s)
        warm = waiting_s(self.data, self.warm_s, step_s)
        return np.asarray(self.copy_s + self.cold_share * cold + (1.0 - self.cold_share) * warm)


def supply_of(
    layouts: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> Supply | None:
    """How the input comes to the ranks of every layout; None without a section [data]."""
    data, recipe = workload.data, workload.recipe
    if data is None:
        return None
    readers = _readers(layouts, cluster, software)
    sample = sample_of(data, recipe.tokens_per_step / recipe.global_batch)
    rate = float(cluster.node.host_bytes_per_s or np.inf)
    cold = stage_times(data, sample, readers, rate)
    warm, share = cold, 1.0
    if data.local_copy and data.samples is not None:
        kept = _kept(data, sample.stored_bytes, cluster)
        drives = _drives_rate(cluster)
        warm = {name: seconds.copy() for name, seconds in cold.items()}
        for name in ("store", "server", "requests", "opens"):
            warm[name] = cold[name] * (1.0 - kept)
        bare = stage_times(replace(data, store=None), sample, readers, rate)["workers"]
        warm["workers"] = kept * bare + (1.0 - kept) * cold["workers"]
        read = readers.samples * readers.server_fetches * sample.stored_bytes * kept
        warm["drives"] = read / drives
        steps = recipe.steps
        share = 0.0 if steps is None else min(1.0, data.samples / recipe.global_batch / steps)
    return Supply(
        data=data,
        readers=readers,
        cold_s=cold,
        warm_s=warm,
        copy_s=copy_s(data, readers, rate),
        cold_share=share,
    )


def _readers(layouts: Layouts, cluster: Cluster, software: Software) -> Readers:
    """Who loads: ranks of the first and the last stage, one of a tensor-parallel group or each.

    Ranks of one replica and stage load the same samples; on one server the first of them to read a
    file leaves it in the page cache to the others. Ranks of a stage lie on neighbouring servers.
    """
    gpus = float(cluster.node.accelerators)
    group = (layouts.tp * layouts.cp).astype(float)
    where = np.where(software.input.broadcast, layouts.cp, group)
    stages = np.minimum(layouts.pp, 2)
    loading = np.minimum(gpus, stages * layouts.dp * group)  # ranks of such stages on a server
    return Readers(
        samples=layouts.global_batch / layouts.dp,
        ranks=layouts.dp * stages * where,
        server_ranks=np.maximum(loading * where / group, 1.0),
        fetches=layouts.dp * stages * np.maximum(group / gpus, 1.0),
        server_fetches=np.maximum(loading / group, 1.0),
    )


def _kept(data: DataInput, stored_bytes: float, cluster: Cluster) -> float:
    """Share of the data set that fits on the drives of all servers."""
    drives, servers = cluster.node.nvme, max(cluster.gpus / cluster.node.accelerators, 1.0)
    if drives is None or data.samples is None:
        return 0.0
    return min(1.0, float(drives.capacity_bytes) * servers / (data.samples * stored_bytes))


def _drives_rate(cluster: Cluster) -> float:
    drives = cluster.node.nvme
    return float(drives.read_bytes_per_s) if drives is not None else np.inf
