"""What NCCL believes of the machine when it chooses an algorithm and a protocol, and what follows.

The choice is NCCL's own arithmetic (src/graph/tuning.cc): it is often wrong about the time, but it
decides which kernel runs. What that kernel then takes is a curve, fitted to measurements.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from annotated_types import Gt

from simulator.files import Count, Figure, Number, record

ByNodes = tuple[Number, Number, Number]
"""One node, two nodes, three and more."""


@record
class Graph:
    """What NCCL's search of the topology finds on a board."""

    channels: Count
    """Most channels (parallel rings or trees) that it makes."""
    channel_bytes_per_s: Annotated[Number, Gt(0)]
    """Rate of one channel, a step of NCCL's speed table."""


@record
class Pat:
    """PAT (parallel aggregated trees): gathers and scatters with one accelerator to a node."""

    base_s: Number
    hop_s: Number
    """One hop over the network."""
    hop_divisor: Number
    """What the choice divides it by: it counts on steps that overlap."""
    rank_s: Number
    """For each rank, whatever the bytes."""
    fraction: Number
    """Share of the bus bandwidth."""


@record
class Tuning:
    """NCCL's tables for the choice, by generation of the accelerator (NCCL's numbers, not ours)."""

    like: dict[str, str]
    """Generations that have no rows of their own, and whose rows they take. Any other unknown
    generation takes those of volta, as NCCL gives the oldest to what it does not know."""
    graph: dict[str, Graph]
    """By generation; ``pcie`` for boards without fast links."""
    link_fraction: Number
    """Share of the datasheet rate of the links that the search counts on."""
    ll_fraction: Number
    """Share of the bus bandwidth that the ring with LL moves: 4 of 8 bytes are data."""
    ll128_fraction: Number
    """Share that LL128 moves, 120 of 128 bytes and a little less."""
    ll128_tree_fraction: tuple[Number, Number]
    """Further share of a tree with LL128: one node, several."""
    tree_fraction: Number
    """Share of the bus bandwidth that a tree moves."""
    tree_ll_divisor: Number
    """What LL divides the bandwidth of a tree by."""
    ll_ceiling_bytes_per_s: dict[str, ByNodes]
    """Most that LL moves on the whole bus; on several nodes the rows are of host processors:
    ampere for AMD, volta for any other."""
    ring_ll128_bytes_per_s: dict[str, ByNodes]
    """Most that LL128 moves on one channel of a ring."""
    tree_ll128_bytes_per_s: dict[str, ByNodes]
    tree_simple_bytes_per_s: dict[str, ByNodes]
    nvls_tree_bytes_per_s: dict[str, ByNodes]
    """Most of one channel where nodes reduce in their switch and a tree joins them; 0: no limit."""
    nvls_efficiency: dict[str, Number]
    """Share of the links that reduction in the switch is believed to reach; none: it has none."""
    nvls_hop_s: dict[str, Number]
    """Latency of a reduction in the switch inside the domain, and of one tree hop beyond it, as
    releases from 2.28 on have it and as older ones."""
    collnet_hop_s: dict[str, Number]
    """Latency of a chain inside the domain and of the network that reduces (SHARP)."""
    since: dict[str, str]
    """Release with which an algorithm came, two numbers; algorithms that are not named have always
    been there."""
    pat: Pat
    post_s: dict[str, Number]
    """What a host takes to post one message to the network, by maker and otherwise."""
    simple_posts: Number
    """Messages to the network that Simple posts for one of LL."""
    ring_plateau: dict[str, Number]
    """Factor on the latency of a large all-reduce over rings of several nodes."""
    ring_plateau_from_bytes: Number
    """Bytes for each channel and rank from which it applies."""
    tree_correction: dict[str, tuple[Number, ...]]
    """Factor on the bandwidth of trees by protocol, for powers of two."""
    tree_correction_from_bytes: Number
    """Bytes at which that table starts."""


@record
class Release:
    """What one release of the library does differently from the newest that was measured."""

    time_fraction: Figure
    """Time of a call with a bulk protocol over that of the newest release."""
    ll_time_fraction: Figure
    """The same with LL."""
    send_ll_bytes: Figure
    """Largest message to one peer that all-to-alls carry with LL."""
    older_exchange: bool = False
    """All-to-alls share channels out among peers as releases before 2.29 did; what measurements
    of them say beyond the formula stands apart."""
    ring_ll128_bytes_per_s: dict[str, ByNodes] = field(default_factory=dict)
    """Its own rows of the table of that name."""
    older_nvls_tree: bool = False
    """Trees of switches over three domains and more are believed to be as fast as releases before
    2.28 did (src/graph/tuning.cc of v2.27.7-1: half of an adapter's rate for each head)."""
    pat_fraction: Number | None = None
    """Its own share of the bus bandwidth for PAT."""


@record
class Start:
    """What a call takes before its bytes flow, by protocol: once, and for each hop or peer."""

    ll_base_s: Figure
    """With LL, the protocol of small messages."""
    ll_hop_s: Figure
    bulk_base_s: Figure
    """With Simple, the protocol of large messages."""
    bulk_hop_s: Figure
    bulk_ramp_s: Figure
    """What a bulk call that moves 1 MB takes beyond its rate; grows with the root of the bytes."""


@record
class OneWay:
    """A send inside a domain beside which nothing comes in: a start, then bytes over the links."""

    small_s: Figure
    """Start of a message with LL, `small_bytes` at most."""
    large_s: Figure
    """Start of a larger one."""
    small_bytes: Figure
    link_fraction: Figure
    """Share of the datasheet rate of the links that large messages reach."""


@record
class Curve:
    """What collectives take on one kind of board, fitted to nccl-tests inside one domain.

    ``base + hop x steps + ramp sqrt(moved / 1 MB) + moved / rate``: steps and moved bytes are those
    of a ring, ``n - 1`` and ``(n - 1) / n`` of the buffer, twice that for an all-reduce.
    """

    ring: Start
    """Gathers and reductions."""
    exchange: Start
    """All-to-alls: to a peer each, all at once."""
    ll_ramp_s: Figure
    """What a call with LL that moves 1 MB takes beyond its rate."""
    ll_bytes_per_s: Figure
    """Rate that LL tends to where an operation reaches the whole bus; over fewer members it falls
    as `share` does."""
    ll128_base_s: Figure
    """Start with LL128, between the two."""
    ll128_hop_s: Figure
    ll128_fraction: Figure
    """Share of the rate of large calls that LL128 tends to: 120 of 128 bytes are data."""
    bulk_start: dict[str, Figure]
    """Bulk start and hops of an operation over those of a reduce-scatter."""
    nvls_base_s: Figure
    """Start of an all-reduce in the switch."""
    nvls_ramp_s: Figure
    share: dict[str, dict[str, Figure]]
    """Bus bandwidth of an operation over so many members ("2", "4", "8") as a share of the node's
    ``bus_bytes_per_s``, of ``all_to_all_bytes_per_s`` for an all-to-all."""
    integer_fraction: Figure
    """Rate of reductions of integers over those of floating-point numbers."""
    one_way: OneWay | None = None
    """None: sends of one way were not timed on such boards."""
    residual: dict[str, dict[str, tuple[Number, ...]]] = field(default_factory=dict)
    """What measurements say beyond the formula, the logarithm of a factor: by operation and
    regime (``all_gather_ll``; ll, bulk, nvls, ll128; ``all_to_all_older_ll``), then by members, at
    `RESIDUAL_BYTES`."""


RESIDUAL_BYTES = tuple(2.0**power for power in range(9, 31))
"""Sizes of a buffer at which a curve states what is left: 512 B to 1 GiB."""


@record
class Dispatch:
    """One way of expert traffic on one kind of board: ``(start^x + transfer^x)^(1/x)``."""

    start_s: Figure
    """Of a call with hardly a token."""
    network_start_s: Figure = Figure(0.0, "assumed", "none")
    """More of it where tokens leave the domain."""
    expert_s: Figure = Figure(0.0, "assumed", "no message for each expert")
    """More of it for each expert, where every rank tells every expert how many tokens come."""
    network_expert_s: Figure = Figure(0.0, "assumed", "no message for each expert")
    """More of it for each expert in another domain."""
    token_bytes_per_s: Figure | None = None
    """Rate of a single token, whose bytes a few warps move; None: it takes no time of its own."""
    link_fraction: Figure
    """Share of the node's all-to-all rate that its links reach with all compute units; below 1
    mostly, above where several paths are in use."""
    unit_bytes_per_s: Figure | None = None
    """What one compute unit moves, over links and to the adapters; None: the links alone count."""
    unit_copy_s: Figure = Figure(0.0, "assumed", "bytes alone")
    """What a copy of a token costs one compute unit beyond its bytes."""
    forward_fraction: Figure = Figure(1.0, "assumed", "no forwarding")
    """Share of the units' rate that is left where units also forward from the network."""
    units: Figure = Figure(20.0, "datasheet", "DeepEP's default")
    """Compute units that a call is given if nothing else is said."""
    sharpness: Figure
    """x: how sharply start turns into transfer."""
    message_tokens: tuple[Count, Count] | None = None
    """Tokens of one message to another server, between two servers and among more, each of which
    is followed by a signal in order; None: not known."""
