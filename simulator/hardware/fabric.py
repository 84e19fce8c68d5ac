"""The network that joins servers, and the collective library that runs over it."""

from __future__ import annotations

from typing import Literal

from simulator.files import Figure, record

__all__ = ["CollectiveLibrary", "Fabric", "HopLatency"]


@record
class Fabric:
    """The scale-out network of a cluster."""

    topology: Literal["rail-optimised", "fat-tree", "leaf-spine", "dragonfly"]
    """Shape of the network (no formula reads it yet; `oversubscription` says what it costs)."""
    usable_fraction: Figure
    """Share of the adapter rate that large collectives reach on this kind of fabric."""
    oversubscription: Figure = Figure(1.0, "assumed", "non-blocking")
    """Downlink over uplink capacity above the first switch layer; 1 is non-blocking."""


@record
class HopLatency:
    """Latency of one hop, by protocol, in seconds."""

    ll: Figure
    ll128: Figure
    simple: Figure


@record
class CollectiveLibrary:
    """The cost model of a collective library, hardware_profiles/collectives/NAME.toml."""

    name: str
    ring_base_s: HopLatency
    """Start-up of a ring collective by protocol."""
    tree_base_s: HopLatency
    ring_hop_s: dict[str, HopLatency]
    """By link: nvlink, pcie, network."""
    tree_hop_s: dict[str, HopLatency]
    ll_fraction: Figure
    """Share of the bulk bus bandwidth that the LL protocol moves (4 of 8 bytes are data)."""
    ll_cap_bytes_per_s: dict[str, Figure]
    """Ceiling of LL on the whole node's bus bandwidth: inside a domain, and over the network."""
    ll128_fraction: Figure
    """Share that LL128 moves (120 of 128 bytes are data, and a little more)."""
    tree_fraction: Figure
    """Share of the ring's bus bandwidth that a large tree all-reduce reaches."""
    nvls_base_s: Figure
    """Start-up of an in-switch all-reduce."""
    nvls_smallest_group: Figure
    """Fewest ranks for which the library chooses in-switch reduction."""
    send_base_s: dict[str, Figure]
    """Start-up of a point-to-point send by link."""
    all_to_all_peer_s: dict[str, Figure]
    """Extra time per peer of an all-to-all by link."""
    compute_units: Figure
    """Compute units that a running collective takes from the kernels beside it."""
    communicator_bytes: Figure
    """Device memory that one communicator keeps for its buffers."""
