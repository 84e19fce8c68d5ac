"""New weights from the trainer to the engine, and devices that change sides."""

from __future__ import annotations

from simulator.cost.estimate import Estimate
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass
from simulator.reliability.reliability_profile import Storage
from simulator.rollouts.profiles import Engine, Framework
from simulator.units import GB
from simulator.workload.architecture import Architecture

_WIDE = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Refit:
    """What handing over one version of the weights takes."""

    tensors: int
    """As they are published, an expert's matrices each."""
    weight_bytes: float
    """All weights as the engine keeps them."""
    host_s: float
    """Gathering, renaming and handing over tensor by tensor."""
    transfer_s: float
    """Bytes by the slowest link on the way."""
    link: str
    """Which that is."""
    same_devices_s: float
    """Handing them to an engine on the trainer's own devices, by memory handles."""
    states_bytes: float
    """What a device moves to its host, and back, when it changes sides."""
    switch_s: float
    """Calls, sleep and wake, and those bytes."""

    @property
    def seconds(self) -> float:
        """Weights alone."""
        return self.host_s + self.transfer_s


def refit(
    architecture: Architecture,
    framework: Framework,
    engine: Engine,
    cluster: Cluster,
    estimate: Estimate,
    *,
    changes_sides: bool,
    offloads: bool = True,
    weight_bytes: float = _WIDE,
    storage: Storage | None = None,
    alone_gpus: int = 0,
    lends: bool = False,
) -> Refit:
    """Price a hand-over.

    Tensors are gathered one by one from the trainer's ranks, each to the layout of the engine: the
    host's work for each, and all bytes once through a rank. On the same devices they pass by
    memory handles; apart, from the first rank to all engines by broadcast, at what its adapters
    carry. Where devices generate and train, optimizer states and gradients leave for the host
    before the engine wakes, and come back, unless nothing `offloads`. Through `storage`, all
    servers of the trainer write the weights once, and each server of the `alone_gpus`, which only
    generate, reads all of them. Mixed on policy, tensors are gathered once for both ways (slime's
    update_weight_from_tensor.py), so that the slower one counts; where devices are lent (`lends`),
    each way gathers them anew (verl's trainer_separate_async.py).
    """
    tensors = published_tensors(architecture)
    size = architecture.parameters * weight_bytes
    host_s = tensors * float(framework.refit_tensor_s)
    rate, link = float(framework.refit_bytes_per_s), "gathers"
    if storage is not None:
        training = int(estimate.layouts.world[0])
        rate, link = size / _stored_s(storage, size, cluster, (training, alone_gpus)), "storage"
    elif alone_gpus and cluster.nodes > 1 and cluster.domain < cluster.gpus:
        wire = cluster.network_bytes_per_s_per_gpu, "network adapters of a rank"
        both = changes_sides and not lends
        rate, link = min((rate, link), wire) if both else wire
    states = 0.0
    switch_s = 0.0
    if changes_sides:
        kinds = estimate.memory_bytes
        if offloads:
            states = float(kinds["optimizer"][0] + kinds["gradients"][0])
        host = float(cluster.node.host_bytes_per_s or 25.0 * GB)
        link_rate = host * float(framework.offload_fraction)
        switch_s = float(framework.colocated_switch_s) + 2.0 * states / link_rate
    return Refit(
        tensors=tensors,
        weight_bytes=size,
        host_s=host_s,
        transfer_s=size / rate,
        link=link,
        same_devices_s=host_s + size / float(framework.refit_bytes_per_s),
        states_bytes=states,
        switch_s=switch_s,
    )


def _stored_s(storage: Storage, size: float, cluster: Cluster, gpus: tuple[int, int]) -> float:
    """Write the weights once with the trainer's servers, read them with each of the engine's."""
    servers = cluster.node.accelerators
    writers, readers = (-(-max(count, 1) // servers) for count in gpus)
    write = min(float(storage.write_bytes_per_s), writers * float(storage.node_write_bytes_per_s))
    read = min(float(storage.read_bytes_per_s) / readers, float(storage.node_read_bytes_per_s))
    return size / write + size / read


def published_tensors(architecture: Architecture) -> int:
    """Tensors of the model as it is published: each expert's matrices on their own.

    Examples
    --------
    Llama 3.1 8B: nine in each of 32 layers, embedding, norm and head.

    >>> from simulator.workload import presets
    >>> published_tensors(presets.load("llama-3.1-8b"))
    291
    """
    total = 1 + (architecture.output_rows > 0 and not architecture.tied_embeddings)
    total += sum(weight.count for weight in architecture.head_weights)
    for index, kind in enumerate(architecture.blocks):
        layers = architecture.layer_kinds.count(index)
        weights = kind.weights(kind.width or architecture.hidden)
        tensors = sum(weight.count * (1 + weight.bias) for weight in weights)
        extra = kind.norm_vectors - 1
        total += layers * (tensors + extra)
    return int(total)
