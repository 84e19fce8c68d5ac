"""A machine with one thing faster, slower, larger or built otherwise.

Each change is a `dataclasses.replace` on cluster or software; what was measured of the rest stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulator.files import Figure
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import HopLatency
from simulator.software.profile import Software

Machine = tuple[Cluster, Software]


def faster_matrices(machine: Machine, factor: float) -> Machine:
    """Multiply the FLOP/s of every type of matrix product."""

    def change(device: Any) -> Any:
        rates = {k: _times(v, factor) for k, v in device.matrix_flop_per_s.items()}
        return replace(device, matrix_flop_per_s=rates)

    return _on_groups(machine[0], "accelerator", change), machine[1]


def faster_memory(machine: Machine, factor: float) -> Machine:
    """Multiply the bytes/s of device memory."""

    def change(device: Any) -> Any:
        rate = _times(device.memory.bandwidth_bytes_per_s, factor)
        return replace(device, memory=replace(device.memory, bandwidth_bytes_per_s=rate))

    return _on_groups(machine[0], "accelerator", change), machine[1]


def larger_memory(machine: Machine, factor: float) -> Machine:
    """Multiply the bytes of device memory, those that an allocator can use and all of them."""
    names = ("capacity_bytes", "usable_bytes")

    def change(device: Any) -> Any:
        memory = device.memory
        sizes = {name: _times(getattr(memory, name), factor) for name in names}
        return replace(device, memory=replace(memory, **sizes))

    return _on_groups(machine[0], "accelerator", change), machine[1]


def faster_links(machine: Machine, factor: float) -> Machine:
    """Multiply the bytes/s inside the fast domain."""
    names = ("bandwidth", "bus", "all_to_all", "send", "nvls")

    def change(node: Any) -> Any:
        rates = {
            f"{name}_bytes_per_s": getattr(node.scale_up, f"{name}_bytes_per_s") for name in names
        }
        other = {name: _times(rate, factor) for name, rate in rates.items() if rate is not None}
        return replace(node, scale_up=replace(node.scale_up, **other))

    return _on_groups(machine[0], "node", change), machine[1]


def faster_network(machine: Machine, factor: float) -> Machine:
    """Multiply the bytes/s of every adapter."""

    def change(node: Any) -> Any:
        rate = _times(node.scale_out.adapter_bytes_per_s, factor)
        return replace(node, scale_out=replace(node.scale_out, adapter_bytes_per_s=rate))

    return _on_groups(machine[0], "node", change), machine[1]


def later_network(machine: Machine, factor: float) -> Machine:
    """Multiply what one hop, send or peer over the network takes before its bytes flow."""
    cluster, library = machine[0], machine[0].library

    def hops(table: dict[str, HopLatency]) -> dict[str, HopLatency]:
        far = table["network"]
        other = HopLatency(
            ll=_times(far.ll, factor),
            ll128=_times(far.ll128, factor),
            simple=_times(far.simple, factor),
        )
        return {**table, "network": other}

    def starts(table: dict[str, Figure]) -> dict[str, Figure]:
        return {**table, "network": _times(table["network"], factor)}

    changed = replace(
        library,
        ring_hop_s=hops(library.ring_hop_s),
        tree_hop_s=hops(library.tree_hop_s),
        send_base_s=starts(library.send_base_s),
        all_to_all_peer_s=starts(library.all_to_all_peer_s),
    )
    fabric = replace(cluster.fabric, extra_hop_s=_times(cluster.fabric.extra_hop_s, factor))
    return replace(cluster, library=changed, fabric=fabric), machine[1]


def faster_host(machine: Machine, factor: float) -> Machine:
    """Multiply the kernels that a host enqueues per second."""
    host = machine[1].host
    quicker = replace(host, seconds_per_kernel=_times(host.seconds_per_kernel, 1.0 / factor))
    return machine[0], replace(machine[1], host=quicker)


def with_adapters(machine: Machine, count: float) -> Machine:
    """Put so many adapters into every server."""

    def change(node: Any) -> Any:
        return replace(node, scale_out=replace(node.scale_out, adapters=int(count)))

    return _on_groups(machine[0], "node", change), machine[1]


def with_adapter_rate(machine: Machine, gbit_per_s: float) -> Machine:
    """Give every adapter a rate in Gbit/s, one direction."""
    rate = Figure(gbit_per_s * 1e9 / 8.0, "assumed", "what-if")

    def change(node: Any) -> Any:
        return replace(node, scale_out=replace(node.scale_out, adapter_bytes_per_s=rate))

    return _on_groups(machine[0], "node", change), machine[1]


def with_oversubscription(machine: Machine, ratio: float) -> Machine:
    """Give the switches above the leaves this many downlinks for an uplink."""
    fabric = replace(machine[0].fabric, oversubscription=Figure(ratio, "assumed", "what-if"))
    return replace(machine[0], fabric=fabric), machine[1]


def with_domain(machine: Machine, size: float) -> Machine:
    """Join so many accelerators by the fast links; latencies stay those of the old domain."""

    def change(node: Any) -> Any:
        return replace(node, scale_up=replace(node.scale_up, domain=int(size)))

    return _on_groups(machine[0], "node", change), machine[1]


def _times(figure: Figure, factor: float) -> Figure:
    """Scale a figure and keep where it comes from."""
    return Figure(figure * factor, figure.grade, figure.source, figure.date, figure.spread)


def _on_groups(cluster: Cluster, part: str, change: Callable[[Any], Any]) -> Cluster:
    """Change the `node` or the `accelerator` of every group."""
    groups = [replace(g, **{part: change(getattr(g, part))}) for g in cluster.groups]
    return replace(cluster, groups=tuple(groups))
