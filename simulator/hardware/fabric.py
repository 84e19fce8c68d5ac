"""The network that joins servers, and the collective library that runs over it."""

from __future__ import annotations

from functools import cache
from typing import Literal

from simulator.files import Count, Figure, record
from simulator.hardware.tuning import Curve, Dispatch, Release, Tuning


@record
class Fabric:
    """The scale-out network of a cluster."""

    topology: Literal["rail-optimised", "fat-tree", "leaf-spine", "dragonfly"]
    """Shape of the network. The closed forms read `narrow` only; flows go by it: adapter i of each
    server to leaf i of its unit where rail-optimised, all of them to one leaf in a fat tree or
    leaf-spine, leaves in fully joined groups in a dragonfly (+)."""
    usable_fraction: Figure
    """Share of the adapter rate that large collectives reach on this kind of fabric."""
    oversubscription: Figure = Figure(1.0, "assumed", "non-blocking")
    """Downlink over uplink capacity above the first switch layer; 1 is non-blocking."""
    leaf_servers: Count = 1
    """Servers that reach each other below the over-subscribed layer: those of one leaf switch, or
    of one set of rail switches (32 in a scalable unit). 1: all traffic of a server passes it."""
    pod_servers: Count | None = None
    """Servers that meet below the core: of a pod of a fat tree, or of a group of a dragonfly, which
    must have it. None: the whole cluster is one pod."""
    pod_oversubscription: Figure = Figure(1.0, "assumed", "non-blocking")
    """Downlink over uplink capacity between the pods and the core; 1 is non-blocking. Of a
    dragonfly `oversubscription` says it: what its groups inject over their links to others."""
    reduces_in_network: bool = False
    """The switches add up all-reduces (SHARP) and the job may use it."""
    extra_hop_s: Figure = Figure(0.0, "assumed", "none")
    """What a hop over this network takes beyond the table of the collective library, which was
    made for InfiniBand."""
    gather_hop_s: Figure = Figure(0.0, "assumed", "none")
    """What a hop of a gather or scatter takes on top, which waits in each for whole pieces."""

    @property
    def narrow(self) -> tuple[float, int]:
        """Over-subscription of the layer that the closed forms see, and servers that meet below it.

        The leaves' own uplinks; where these do not block, those of the pods.
        """
        if self.oversubscription > 1.0 or self.pod_servers is None:
            return float(self.oversubscription), self.leaf_servers
        return float(self.pod_oversubscription), self.pod_servers


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
    tuning: Tuning
    """How it chooses between algorithms and protocols."""
    ring_base_s: HopLatency
    """Start-up of a ring collective by protocol, as the choice counts it."""
    tree_base_s: HopLatency
    ring_hop_s: dict[str, HopLatency]
    """By link: nvlink, pcie, network. Hops over the network are what a call takes, too."""
    tree_hop_s: dict[str, HopLatency]
    curves: dict[str, Curve]
    """What calls take inside a domain, by generation of the accelerator, ``pcie`` for boards
    without fast links. A board of no known kind takes what the tables above say."""
    releases: dict[str, Release]
    """Releases that were measured, two numbers each."""
    release: str
    """The one that the curves are for; a software may bring another along."""
    running_release: str = ""
    """What the software brings along where it was not measured, and `release` stands in for it."""
    dispatch: dict[str, dict[str, dict[str, Dispatch]]]
    """Expert traffic by library (deepep, hybridep, deepep_low_latency), by kind of board as
    `curves` has them, by way (dispatch, combine)."""
    fence_hops: Figure = Figure(0.0, "assumed", "none")
    """What a message of a dispatch waits for the last one's end where a thread of the host sends
    them (`ScaleOut.through_host`), in hops of the network beyond InfiniBand's."""
    dispatch_fallback: str
    """Kind of board whose expert traffic stands for boards that were not timed."""
    nvls_smallest_group: Figure
    """Fewest ranks for which the library chooses in-switch reduction."""
    nvls_base_s: Figure
    """Start-up of an all-reduce in the switch of a board of no known kind."""
    network_ramp: Figure
    """Share of the geometric mean of start and transfer that a tree over the network, or a
    broadcast, pays beyond the two: its pieces fill a pipeline (2 at the best number of pieces of
    equal stages). Gathers, scatters and all-reduces in rings have none to fill."""
    exchange_ramp: Figure
    """The same of an all-to-all over the network, whose start is that of all its peers."""
    nvls_tree_fraction: Figure
    """Share of its rate that the domain's switch keeps where a tree over the network joins in."""
    tree_network_fraction: Figure
    """Share of the adapters' rate that trees reach over three nodes and more, where a node has two
    others below it; rings, and trees of two nodes, reach all of it."""
    collnet_fraction: Figure
    """Share of the adapters' rate that reduction in the network's switches reaches."""
    send_base_s: dict[str, Figure]
    """Start-up of a point-to-point send by link."""
    all_to_all_peer_s: dict[str, Figure]
    """Extra time per peer of an all-to-all by link."""
    compute_units: Figure
    """Compute units that a running collective takes from the kernels beside it."""
    network_send_units: Figure
    """The same of sends over adapters, one out and one in."""
    communicator_bytes: Figure
    """Device memory that one communicator keeps for its buffers."""
    enqueue_s: Figure = Figure(0.0, "assumed", "none")
    """What a host thread takes to start a call on one accelerator. Training has a thread for each;
    where one thread starts it on all of a server (nccl-tests with ``-g 8``) calls take no less
    than all starts."""
    enqueue_peer_s: Figure = Figure(0.0, "assumed", "none")
    """More of it for every message that is sent or received, of which an all-to-all has two for
    each member."""

    turned_off: tuple[str, ...] = ()
    """Algorithms that a software turns off, by their words."""

    def has(self, algorithm: str) -> bool:
        """Whether the release that runs knows an algorithm, by its word, and may choose it."""
        runs = release_numbers(self.running_release or self.release)
        known = runs >= release_numbers(self.tuning.since.get(algorithm, "0"))
        return known and algorithm not in self.turned_off


@cache
def release_numbers(release: str) -> tuple[int, ...]:
    """Numbers of a release, which compare as releases do."""
    return tuple(map(int, release.split(".")))
