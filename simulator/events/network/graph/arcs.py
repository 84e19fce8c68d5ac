"""A network as a directed graph: nodes, and arcs that are links, joints or cables between them."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from simulator.arrays import Bools, Floats, Ints
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Nodes of a network that calls begin, end or change over at."""

    gpu: Ints
    """Node of each GPU."""
    adapters: Ints
    """Node of the adapters of each rail, (servers, rails); empty where there is one server."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """Nodes by name and what leads from one to another."""

    nodes: tuple[str, ...]
    passes: Bools
    """By node, whether it passes on what is not for it, as switches do."""
    tail: Ints
    """By arc, the node that it leaves."""
    head: Ints
    """By arc, the node that it leads to."""
    link: Ints
    """By arc, the number of its link; -1: a joint, which limits nothing."""
    cables: Ints
    """By arc, cables side by side: bytes at a node spread over its equal ways by them."""
    parts: Parts

    def capacity(self, of_link: Floats) -> Floats:
        """Capacity by arc where links have these; joints have no limit."""
        return np.asarray(np.where(self.link < 0, np.inf, of_link[self.link]), dtype=np.float64)


@dataclass
class GraphBuilder:
    """Nodes and arcs as they are laid; one use per graph."""

    nodes: dict[str, int] = field(default_factory=dict)
    passing: list[bool] = field(default_factory=list)
    arcs: list[tuple[int, int, int, int]] = field(default_factory=list)

    def node(self, name: str, *, passes: bool = True) -> int:
        """Number of a node; a new one if there is none of this name."""
        if name not in self.nodes:
            self.nodes[name] = len(self.nodes)
            self.passing.append(passes)
        return self.nodes[name]

    def arc(self, tail: int, head: int, link: int = -1, cables: int = 1) -> None:
        """Add an arc."""
        self.arcs.append((tail, head, link, cables))

    def both(self, a: int, b: int, out: int = -1, back: int = -1) -> None:
        """Add an arc each way."""
        self.arc(a, b, out)
        self.arc(b, a, back)

    def graph(self, parts: Parts) -> Graph:
        """The graph of all that was added."""
        table = np.array(self.arcs, dtype=np.int64).reshape(-1, 4)
        tail, head, link, cables = table.T.copy()
        return Graph(
            nodes=tuple(self.nodes),
            passes=np.array(self.passing, dtype=np.bool_),
            tail=tail,
            head=head,
            link=link,
            cables=cables,
            parts=parts,
        )
