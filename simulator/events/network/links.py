"""Links of a network by name, with capacity and latency; how some of them are made worse or lost.

A link is named by its kind and its place: ``adapter-up 3.1`` is what adapter 1 of server 3 sends.
Links of one kind lie side by side in the arrays: the link of any GPU is found by arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.errors import InputError, did_you_mean, problem
from simulator.events.network.graph.arcs import Graph
from simulator.records import dataclass

KINDS = {
    "gpu-up": "what a GPU sends over its scale-up port (NVLink, xGMI, PCIe), by GPU",
    "gpu-down": "what it receives",
    "pair": "the wires between two GPUs of a domain without a switch, by domain, sender, receiver",
    "pcie-up": "from a PCIe switch to the host bridge, by switch",
    "pcie-down": "from the host bridge to a PCIe switch",
    "torus": "from a chip to its neighbour, by chip and direction (0 +x, 1 -x, 2 +y, ...)",
    "host-up": "copies from a GPU to host memory, by GPU",
    "host-down": "copies from host memory to a GPU",
    "adapter-up": "what the network adapters of a rail send, by server and rail",
    "adapter-down": "what they receive",
    "leaf-up": "all links of a leaf switch to the spine, by leaf",
    "leaf-down": "from the spine to a leaf switch",
    "pod-up": "all links of a pod to the core, by pod",
    "pod-down": "from the core to a pod",
    "global": "links between two groups of a dragonfly, by sending and receiving group",
    "wire": "cables of a listed topology inside a server, by both ends, sender first",
    "trunk": "those between two of its switches, likewise",
}
"""Kinds of links and what their places are."""

BETWEEN_SWITCHES = ("leaf-up", "leaf-down", "pod-up", "pod-down", "global", "trunk")
"""Of these, links that no GPU or server has for itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Links of one kind: `shape` of them from number `first` on, the last place running fastest."""

    kind: str
    first: int
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    """Places of links that are found by name, not by arithmetic; these are not alike."""

    @property
    def size(self) -> int:
        """How many."""
        return math.prod(self.shape)


class Blocks:
    """Links as they are laid side by side, block after block; one use per topology."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.capacity: list[Floats] = []
        self.latency: list[Floats] = []
        self.number = 0

    def add(self, kind: str, shape: tuple[int, ...], rate: Any, latency_s: float = 0.0) -> None:
        """Links of one kind; `rate` is one for all, one by the first place, or one for each."""
        size = math.prod(shape)
        if size:
            self.blocks[kind] = Block(kind=kind, first=self.number, shape=shape)
            if np.shape(rate) == shape:
                self.capacity.append(np.asarray(rate, dtype=np.float64).ravel())
            else:
                rates = np.broadcast_to(rate, shape[:1])
                self.capacity.append(np.repeat(rates, size // shape[0]))
            self.latency.append(np.full(size, latency_s))
            self.number += size

    def add_named(self, kind: str, rates: Mapping[str, float], latency_s: float = 0.0) -> None:
        """Links of one kind that have names, with their rates."""
        if rates:
            self.add(kind, (len(rates),), np.array(list(rates.values())), latency_s)
            self.blocks[kind] = replace(self.blocks[kind], names=tuple(rates))


@dataclass(frozen=True, kw_only=True, slots=True)
class Seats:
    """Where each GPU sits, one entry per GPU."""

    server: Ints
    domain: Ints
    """Scale-up domain."""
    local: Ints
    """Place in the domain."""
    rail: Ints
    """Adapter of its server that it uses."""
    switch: Ints
    """PCIe switch, counted over the whole cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """The links of a cluster and where its GPUs sit among them."""

    capacity_bytes_per_s: Floats
    """By link, one direction; 0 where the link is lost."""
    rated_bytes_per_s: Floats
    """The same of sound links."""
    latency_s: Floats
    """What a hop takes beyond its bytes, charged to its first link."""
    blocks: dict[str, Block]
    seats: Seats
    gpus_of_server: Ints
    """First GPU of each server, and at the end the number of GPUs."""
    rails: int
    """Adapters of a server that can be told apart; several per GPU count as one."""
    leaf_servers: int
    aligned: bool
    """Adapter i of every server of a unit is on leaf i."""
    proxies: bool
    """A GPU sends over the adapter of the rail where the receiver is (PXN)."""
    pcie: bool
    """The way to an adapter leads over the port of the GPU."""
    pod_servers: int
    torus: tuple[int, ...] = ()
    torus_wraps_at: int = 1
    graph: Graph | None = None
    """The network as it is cabled: ways are those through this graph, not found by arithmetic."""

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return len(self.seats.server)

    @property
    def links(self) -> int:
        """Links of the cluster."""
        return len(self.capacity_bytes_per_s)

    def has(self, kind: str) -> bool:
        """Whether there are links of this kind."""
        return kind in self.blocks

    def at(self, kind: str, *place: NDArray[np.int64] | np.int64 | int) -> Ints:
        """Numbers of the links of a kind at these places."""
        block = self.blocks[kind]
        number = np.zeros(np.broadcast_shapes(*(np.shape(x) for x in place)), dtype=np.int64)
        for index, length in zip(place, block.shape, strict=True):
            number = number * length + index
        return np.asarray(number + block.first)


def link_name(topology: Topology, number: int) -> str:
    """Name a link the way :func:`link_number` understands."""
    for block in topology.blocks.values():
        if block.first <= number < block.first + block.size:
            if block.names:
                return f"{block.kind} {block.names[number - block.first]}"
            place = np.unravel_index(number - block.first, block.shape)
            return f"{block.kind} {'.'.join(str(int(index)) for index in place)}"
    raise InputError(problem("network", "link", f"must be below {topology.links}", number))


def link_number(topology: Topology, name: str) -> int:
    """Find a link by name.

    Raises
    ------
    InputError
        If there is no such kind of link here, or none at this place; the nearest one is named.
    """
    kind, _, place = name.partition(" ")
    block = topology.blocks.get(kind)
    if block is None:
        hint = did_you_mean(kind, topology.blocks)
        raise InputError(f"network: links: unknown kind of link {kind!r}{hint}")
    if block.names:
        if place not in block.names:
            rule = "must be a cable's ends as 'A>B'"
            raise InputError(problem("network", "links", rule, name, [*block.names[:200]]))
        return block.first + block.names.index(place)
    words = place.split(".")
    if len(words) != len(block.shape) or not all(word.isdecimal() for word in words):
        form = ".".join("0" * len(block.shape))
        rule = f"must be named like '{kind} {form}' ({KINDS[kind]})"
        raise InputError(problem("network", "links", rule, name))
    index = [int(word) for word in words]
    near = [min(i, length - 1) for i, length in zip(index, block.shape, strict=True)]
    if near != index:
        nearest = f"{kind} {'.'.join(str(i) for i in near)}"
        raise InputError(
            f"network: links: there is no {kind} {place}, this cluster has {block.size} of them"
            f" (nearest: {nearest!r})"
        )
    return int(topology.at(kind, *index))


def degraded(topology: Topology, shares: Mapping[str, float]) -> Topology:
    """Leave each named link this share of its capacity; 0 is a lost link.

    Examples
    --------
    ``degraded(topology, {"adapter-up 3.1": 0.5, "leaf-up 0": 0.0})``
    """
    capacity = topology.capacity_bytes_per_s.copy()
    problems: list[str] = []
    for name, share in shares.items():
        try:
            number = link_number(topology, name)
        except InputError as error:
            problems += error.problems
            continue
        if not 0.0 <= share <= 1.0:
            near = "0 (lost)" if share < 0.0 else "1 (sound)"
            rule = "must be the share of its capacity that is left, 0 to 1"
            problems.append(problem("network", name, rule, share) + f" (nearest: {near})")
        else:
            capacity[number] *= share
    if problems:
        raise InputError(problems)
    return replace(topology, capacity_bytes_per_s=capacity)


def rail_choices(topology: Topology, own_rail: Ints, wanted: Ints) -> list[tuple[Ints, Ints]]:
    """Rails by which flows leave and arrive, in the order in which they are tried.

    Parameters
    ----------
    topology : Topology
    own, wanted : ndarray of int
        Rail of the sender, and of the receiver.
    """
    rails = topology.rails
    choices = [(wanted if topology.proxies else own_rail, wanted), (own_rail, wanted)]
    choices += [((wanted + k) % rails,) * 2 for k in range(rails)]
    choices += [
        ((own_rail + i) % rails, (wanted + j) % rails)
        for i in range(rails)
        for j in range(rails)
        if i != j
    ]
    return choices
