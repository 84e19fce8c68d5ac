"""Shortest ways through a network, and how bytes spread over those that are equal.

Shortest is fewest hops, as subnet managers and routers count. At every node the bytes spread over
the arcs that lie on a shortest way, evenly by cable: equal-cost multi-path routing without
collisions, or adaptive routing. Adapters and GPUs pass nothing on; where no switch leads from one
GPU to another, the GPUs in between do, as in a torus.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from simulator.arrays import Bools, Floats, Ints
from simulator.events.network.graph.arcs import Graph
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Ways:
    """Arcs that pairs of nodes use, sorted by pair: pair p uses each with `share` of its bytes."""

    pair: Ints
    arc: Ints
    share: Floats
    found: Bools
    """By pair, whether there is a way."""


def ways(graph: Graph, source: Ints, target: Ints, *, sound: Bools | None = None) -> Ways:
    """Equal-cost shortest ways of pairs of nodes.

    Parameters
    ----------
    graph : Graph
    source, target : ndarray of int
        Nodes, one pair each; no way leads from a node to itself, and none is needed.
    sound : ndarray of bool, optional
        By arc, whether it can be used; all where not given.

    Examples
    --------
    Two ways from a to d: half of the bytes over b, half over c.

    >>> from simulator.events.network.graph.arcs import GraphBuilder, Parts
    >>> made = GraphBuilder()
    >>> a, b, c, d = (made.node(name) for name in "abcd")
    >>> for link, (tail, head) in enumerate([(a, b), (a, c), (b, d), (c, d)]):
    ...     made.arc(tail, head, link)
    >>> none = np.zeros(0, int)
    >>> found = ways(made.graph(Parts(gpu=none, adapters=none)), np.array([a]), np.array([d]))
    >>> found.arc.tolist(), found.share.tolist()
    ([0, 1, 2, 3], [0.5, 0.5, 0.5, 0.5])
    """
    usable = np.ones(len(graph.tail), dtype=np.bool_) if sound is None else sound
    first, last = (
        _only(graph, usable, *ends)[nodes]
        for ends, nodes in (
            ((graph.tail, graph.head), np.asarray(source)),
            ((graph.head, graph.tail), np.asarray(target)),
        )
    )
    apart = np.asarray(source != target)
    begin = np.where(first >= 0, graph.head[first], source)
    end = np.where(last >= 0, graph.tail[last], target)
    pairs, number = np.unique(np.stack([begin, end], axis=1), axis=0, return_inverse=True)
    spread = _between(graph, usable, pairs)
    there = np.array([arcs is not None for arcs in spread], dtype=np.bool_)[number.reshape(-1)]
    reached = ~apart | there
    pair, arc, share = _by_pair(
        number.reshape(-1), [arcs or {} for arcs in spread], apart & reached
    )
    stubs = [(apart & reached & (stub >= 0), stub) for stub in (first, last)]
    pair = np.concatenate([pair, *(np.flatnonzero(used) for used, _ in stubs)])
    arc = np.concatenate([arc, *(stub[used] for used, stub in stubs)])
    share = np.concatenate([share, *(np.ones(int(used.sum())) for used, _ in stubs)])
    order = np.lexsort((arc, pair))
    return Ways(pair=pair[order], arc=arc[order], share=share[order], found=reached)


def _only(graph: Graph, usable: Bools, here: Ints, there: Ints) -> Ints:
    """By node, the only arc that joins one that passes nothing on to one that does; -1 of others.

    Thousands of adapters hang on a few switches, and all ways of an adapter lead over its own.
    """
    only = np.full(len(graph.nodes), -1, dtype=np.int64)
    arcs = np.flatnonzero(usable)
    only[here[arcs]] = arcs
    count = np.bincount(here[arcs], minlength=len(graph.nodes))
    sure = (count == 1) & ~graph.passes & graph.passes[there[only]]
    return np.where(sure, only, -1)


def _between(graph: Graph, usable: Bools, pairs: Ints) -> list[dict[int, float] | None]:
    """Share of the bytes by arc, for each pair of nodes; None where there is no way."""
    spread: list[dict[int, float] | None] = [None] * len(pairs)
    for passes in (graph.passes, _with_gpus(graph)):
        left = np.array([row for row, arcs in enumerate(spread) if arcs is None], dtype=np.int64)
        towards = _Towards(graph, usable, passes)
        for end in np.unique(pairs[left, 1]).tolist():
            far = towards.hops(end)
            for row in left[pairs[left, 1] == end].tolist():
                if int(pairs[row, 0]) in far:
                    spread[row] = towards.spread(int(pairs[row, 0]), end, far)
    return spread


def _with_gpus(graph: Graph) -> Bools:
    """Nodes that pass on where GPUs do, too."""
    passes = graph.passes.copy()
    passes[graph.parts.gpu] = True
    return passes


class _Towards:
    """Ways to one end after the other through nodes that pass on."""

    def __init__(self, graph: Graph, usable: Bools, passes: Bools) -> None:
        self.graph, self.passes = graph, passes
        arcs = np.flatnonzero(usable)
        self.arcs_out: dict[int, list[int]] = {}
        self.tails: dict[int, list[int]] = {}
        for arc, tail, head in zip(
            arcs.tolist(), graph.tail[arcs].tolist(), graph.head[arcs].tolist(), strict=True
        ):
            self.arcs_out.setdefault(tail, []).append(arc)
            self.tails.setdefault(head, []).append(tail)
        self.back = nx.DiGraph()
        for head, tails in self.tails.items():
            if passes[head]:
                self.back.add_edges_from((head, tail) for tail in tails)

    def hops(self, end: int) -> dict[int, int]:
        """Hops to the end from every node that reaches it."""
        self.back.add_node(end)
        if not self.passes[end]:
            self.back.add_edges_from((end, tail) for tail in self.tails.get(end, ()))
        far = dict(nx.single_source_shortest_path_length(self.back, end))
        if not self.passes[end]:
            self.back.remove_edges_from([(end, tail) for tail in self.tails.get(end, ())])
        return far

    def spread(self, start: int, end: int, far: dict[int, int]) -> dict[int, float]:
        """Share of the bytes on every arc from start to end; `far`: what `hops` says."""
        graph, here = self.graph, {start: 1.0}
        arcs: dict[int, float] = {}
        for left in range(far[start] - 1, -1, -1):
            further: dict[int, float] = {}
            for node, share in here.items():
                nearer = [
                    arc
                    for arc in self.arcs_out[node]
                    if self._leads_on(int(graph.head[arc]), end)
                    and far.get(graph.head[arc]) == left
                ]
                cables = graph.cables[nearer]
                for arc, part in zip(nearer, (cables / cables.sum()).tolist(), strict=True):
                    head = int(graph.head[arc])
                    arcs[arc] = share * part
                    further[head] = further.get(head, 0.0) + share * part
            here = further
        return arcs

    def _leads_on(self, node: int, end: int) -> bool:
        return node == end or bool(self.passes[node])


def _by_pair(
    number: Ints, spread: list[dict[int, float]], wanted: Bools
) -> tuple[Ints, Ints, Floats]:
    """What distinct pairs use as rows of (pair, arc, share), for those pairs that are wanted."""
    width = np.array([len(arcs) for arcs in spread], dtype=np.int64)
    arc = np.array([arc for arcs in spread for arc in arcs], dtype=np.int64)
    share = np.array([part for arcs in spread for part in arcs.values()], dtype=np.float64)
    first = np.cumsum(width) - width
    width_of = np.where(wanted, width[number], 0)
    pair = np.repeat(np.arange(len(number)), width_of)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(width_of) - width_of, width_of)
    at = first[number[pair]] + within
    return pair, arc[at], share[at]


def hops(graph: Graph, source: int, target: int) -> int | None:
    """Hops of a shortest way; None where there is none."""
    usable = np.ones(len(graph.tail), dtype=np.bool_)
    for passes in (graph.passes, _with_gpus(graph)):
        far = _Towards(graph, usable, passes).hops(target)
        if source in far:
            return far[source]
    return None
