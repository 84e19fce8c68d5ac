"""What a server holds: accelerators, the links among them, network adapters, a host."""

from __future__ import annotations

from typing import Literal

from simulator.files import Count, Figure, record

ScaleUpKind = Literal[
    "nvlink", "pcie", "xgmi", "roce", "ici", "hccs", "neuronlink", "ualink", "host"
]

_INSIDE_SERVER: tuple[ScaleUpKind, ...] = ("pcie", "xgmi", "host")
"""Links that end at the server's wall: a domain over them is no larger than a server."""


@record
class ScaleUp:
    """The links among accelerators inside one fast domain."""

    kind: ScaleUpKind
    """NVLink, PCIe, xGMI (AMD), RoCE between cards (Gaudi), ICI torus (TPU), HCCS (Ascend), memory
    of the host between processes that are each an accelerator (a CPU)."""
    domain: Count
    """Accelerators that share it: 8 in an HGX board, 72 in an NVL72 rack, a pod of TPUs."""
    bandwidth_bytes_per_s: Figure
    """Datasheet rate of one accelerator, one direction."""
    bus_bytes_per_s: Figure
    """Bus bandwidth of large ring collectives over the whole domain (nccl-tests definition)."""
    pair_fraction: Figure
    """Bus bandwidth of a two-member ring over that of the whole domain."""
    all_to_all_bytes_per_s: Figure
    """Rate of one accelerator in a large all-to-all inside the domain, one direction."""
    send_bytes_per_s: Figure
    """Rate of a large point-to-point send inside the domain."""
    nvls_bytes_per_s: Figure | None = None
    """Bus bandwidth of all-reduce with in-switch reduction, where the switch has it."""
    torus: tuple[Count, ...] = ()
    """Accelerators along each axis of the whole domain where each is joined to its neighbours only
    (TPU); empty: all are joined to one switch, or each to each."""
    torus_wraps_at: Count = 1
    """An axis of a slice is a ring where its length is a multiple of this (4 for TPU v4: optical
    switches join whole cubes), else a line."""
    peer_to_peer: bool = True
    """Whether cards on PCIe copy to each other straight; else all data pass the memory of the host,
    and the link between its sockets."""
    pcie_switch_accelerators: Count | None = None
    """Accelerators under one PCIe switch, which share its link to the host; None: each has lanes of
    its own, or it is not known."""


@record
class ScaleOut:
    """The network adapters of one server."""

    adapters: Count
    adapter_bytes_per_s: Figure
    """Rate of one adapter, one direction."""
    kind: Literal["infiniband", "roce", "efa", "ethernet", "omni-path", "slingshot"]

    @property
    def through_host(self) -> bool:
        """Whether a thread of the host posts what kernels of an accelerator send.

        InfiniBand's and RoCE's adapters are rung by the kernels themselves (IBGDA).
        """
        return self.kind == "efa"


@record
class Drives:
    """Local NVMe drives of one server, all of them together."""

    capacity_bytes: Figure
    read_bytes_per_s: Figure
    """Sequential reads, all accelerators of the server reading at once."""
    write_bytes_per_s: Figure
    """The same of writes."""


@record
class Node:
    """One server, as hardware_profiles/nodes/NAME.toml describes it."""

    name: str
    accelerator: str
    """Name of the accelerator profile."""
    accelerators: Count
    """Accelerators in the server."""
    scale_up: ScaleUp
    scale_out: ScaleOut
    host: Literal["intel", "amd", "grace"] = "intel"
    """Maker of the host processors. NCCL's choice reads it (the time to post a message, rates among
    servers of AMD hosts), and boards with Grace have curves of their own (``Cluster.board``)."""
    host_time: Figure = Figure(1.17, "assumed", "as the hosts with H100", "2026-11-26", 0.18)
    """Time in which its host enqueues the kernels of a block, over that of the faster hosts with
    H100."""
    host_bytes_per_s: Figure | None = None
    """Rate of copies between one accelerator and host memory, one direction, all accelerators of
    the server copying at once."""
    host_adam_parameters_per_s: Figure | None = None
    """Parameters that all host processors of the server update together in one Adam step."""
    host_memory_bytes: Figure | None = None
    """Memory of the host; None: not known, so that no offload is refused for want of it."""
    nvme: Drives | None = None
    """Local NVMe drives; None: none, or none known."""
    host_watt: Figure
    """Draw of everything but the accelerators: processors, memory, adapters, fans, conversion."""


def wrong_domain(node: Node) -> str:
    """Say what is wrong with a domain that reaches beyond the links it is made of; else a blank."""
    links, most = node.scale_up, node.accelerators
    if links.kind not in _INSIDE_SERVER or links.domain <= most:
        return ""
    rule = f"must be at most the {most} accelerators of a server, where {links.kind} ends"
    return f"scale_up.domain: {rule}, got {links.domain} (nearest: {most})"
