"""What one algorithm of NCCL is: to its own choice, to the closed forms and to the flows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.nccl.tuner import Tuner
from simulator.hardware.fabric import CollectiveLibrary
from simulator.layout.placement import Group
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CallShape:
    """Who takes part in a call, and how often a ring would move its bytes around."""

    n: Ints
    """Members."""
    local: Ints
    """Members in one scale-up domain."""
    nodes: Ints
    """Domains."""
    passes: int
    """Two for an all-reduce."""

    @classmethod
    def of(cls, operation: str, group: Group) -> CallShape:
        """Shape of calls on groups."""
        passes = 2 if operation == "all_reduce" else 1
        return cls(n=group.size, local=group.local, nodes=group.domains, passes=passes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Belief:
    """What NCCL reckons with: its time of a call is latency and bytes over bandwidth."""

    latency_s: Any
    bytes_per_s: Any
    """Of the gathered or reduced buffer."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Algorithm:
    """One algorithm. Its links are in ``events/network/collective_phases.py``, by `word`."""

    word: str
    operations: tuple[str, ...]
    """Collectives that it runs."""
    protocols: tuple[str, ...]
    """Protocols that it runs them with, those for the smallest messages first."""
    allowed: Callable[[Tuner, str], Any]
    """Whether NCCL would run calls with a protocol."""
    belief: Callable[[Tuner, str], Belief]
    """NCCL's arithmetic for a protocol (src/graph/tuning.cc); read only where it is allowed."""
    near_steps: Callable[[CallShape], Any]
    """Hops inside a domain that the start of a call waits for."""
    far_hops: Callable[[CallShape], Any]
    """Hops over the network that the start of a call waits for."""
    far_hop_s: Callable[[CollectiveLibrary, str], float]
    """Seconds of such a hop with a protocol."""
    adapter_bytes: Callable[[CollectiveLibrary, CallShape, Floats], Any]
    """Bytes for which a call keeps the adapters of a domain busy at their full rate."""
    fills: bool = True
    """Whether bytes pass hop after hop from one end to the other, so that a call over the network
    fills a pipeline with its pieces. Where every member sends its own share at once, all links are
    busy from the start: ``n - 1`` steps of ``bytes / n`` and a hop each, and nothing to fill."""
    in_switch: bool = False
    """Whether the switch of a domain adds up, where it can."""
