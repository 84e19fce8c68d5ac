"""How much can pass between two parts of a network: minimum cuts, and the narrowest of halves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb

import networkx as nx
import numpy as np

from simulator.arrays import Floats, Ints
from simulator.errors import ForeshardError
from simulator.events.network.graph.arcs import Graph
from simulator.records import dataclass

MOST_HALVES = 150
"""Pairs of halves that are all tried: those of ten parts are 126."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The narrowest place between some nodes and others."""

    bytes_per_s: float
    """What passes at most from the first nodes to the others (max-flow, min-cut)."""
    arcs: Ints
    """The arcs that limit it, of one such place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisection:
    """The narrowest place between two halves of a network."""

    bytes_per_s: float
    half: tuple[int, ...]
    """Parts on one side, in the order in which they were given."""
    exact: bool
    """All pairs of halves were tried; else halves of neighbours only."""


def min_cut(graph: Graph, source: Ints, target: Ints, capacity_bytes_per_s: Floats) -> Cut:
    """The most that passes from some nodes to others, and where it ends.

    Other GPUs pass nothing on where the network has switches.

    Parameters
    ----------
    graph : Graph
    source, target : ndarray of int
        Nodes on either side.
    capacity_bytes_per_s : ndarray
        By link.

    Raises
    ------
    ForeshardError
        If nothing limits it.
    """
    narrow = nx.DiGraph()
    ends = dict.fromkeys(source.tolist(), "source")
    ends |= dict.fromkeys(target.tolist(), "target")
    narrow.add_nodes_from(("source", "target"))
    passes = np.ones(len(graph.nodes), dtype=np.bool_)
    passes[graph.parts.gpu] = not graph.passes.any()
    passes[list(ends)] = True
    capacity = graph.capacity(capacity_bytes_per_s)
    for arc in np.flatnonzero(passes[graph.tail] & passes[graph.head]).tolist():
        tail, head = (ends.get(n, n) for n in (int(graph.tail[arc]), int(graph.head[arc])))
        before = narrow.get_edge_data(tail, head, {"capacity": 0.0})["capacity"]
        narrow.add_edge(tail, head, capacity=before + float(capacity[arc]))
    try:
        rate, (near, _) = nx.minimum_cut(narrow, "source", "target")
    except nx.NetworkXUnbounded:
        raise ForeshardError("network: nothing limits what passes between these nodes") from None
    side = np.array([ends.get(node, node) in near for node in range(len(graph.nodes))])
    crossing = side[graph.tail] & ~side[graph.head] & passes[graph.tail] & passes[graph.head]
    return Cut(bytes_per_s=float(rate), arcs=np.flatnonzero(crossing & (graph.link >= 0)))


def bisection(graph: Graph, parts: Sequence[Ints], capacity_bytes_per_s: Floats) -> Bisection:
    """The least that passes from one half of the parts to the other.

    Parameters
    ----------
    graph : Graph
    parts : sequence of ndarray
        Nodes of each part, such as the GPUs of a server; an even number of parts, or the last one
        is left out.
    capacity_bytes_per_s : ndarray
        By link.
    """
    number = len(parts) // 2 * 2
    if number == 0:
        raise ForeshardError("network: one part has no halves")
    exact = comb(number, number // 2) // 2 <= MOST_HALVES
    least: float = np.inf
    at: tuple[int, ...] = ()
    for half in _halves(number, exact):
        other = [part for part in range(number) if part not in half]
        sides = [np.concatenate([parts[part] for part in side]) for side in (half, other)]
        rate = min_cut(graph, sides[0], sides[1], capacity_bytes_per_s).bytes_per_s
        if rate < least:
            least, at = rate, half
    return Bisection(bytes_per_s=float(least), half=at, exact=exact)


def _halves(number: int, exact: bool) -> Iterator[tuple[int, ...]]:
    """Halves with the first part; of many parts, a row of neighbours, which switches follow."""
    if exact:
        for others in combinations(range(1, number), number // 2 - 1):
            yield (0, *others)
    else:
        for first in range(0, number // 2, max(number // 16, 1)):
            yield tuple(range(first, first + number // 2))
