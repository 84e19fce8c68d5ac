"""What passes, sends, reductions and copies take of the links while they run.

A pass has phases (``events/step/streams.py``). While it waits for a kind of calls, it takes of
a link what those take (``events/network/link_loads.py``) times the part of their time that moves
bytes (``events/sharing/byte_time.py``); while it computes, what hides spreads evenly over the
phase. A send takes links of both its ranks, a copy those to host memory. What else a pass waits for
takes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.terms import HIDDEN
from simulator.events.network.link_loads import Loads, Users
from simulator.events.sharing.byte_time import COMMUNICATION, ByteTime
from simulator.events.step.pass_costs import CAUSE, Passes
from simulator.events.step.streams import BESIDE, COMPUTING, PHASE_TERMS
from simulator.records import dataclass
from simulator.schedules.schedule import FORWARD

HIDING = (*COMMUNICATION, "offload", "input")
"""What takes links: calls, and copies to host memory and from it."""

_PP = COMMUNICATION.index("pp")

_OUT, _BACK = 0, 1
"""Ways of a copy between device and host."""


@dataclass(frozen=True, kw_only=True)
class Profiles:
    """Shares of links, of those that a rank touches: the last axis everywhere."""

    link: Ints
    """Their numbers, (ranks, width); every replica has links of its own."""
    passes: Floats
    """(ranks, chunks, kinds, phases, width)."""
    hiding: Floats
    """How much of what the computing phase takes is of each of HIDING, (ranks, chunks, kinds,
    terms); they add up to 1 where it takes anything."""
    sends: Floats
    """(ranks, chunks, kinds, width)."""
    step_end: Floats
    """Reductions and gathers, (ranks, 2, width)."""
    copies: Floats
    """To the host and back, (ranks, 2, width)."""
    names: tuple[str, ...]
    """Of all links of all replicas."""


def profiles(
    loads: Loads,
    calls: Sequence[ByteTime],
    whole: ByteTime,
    passes: Passes,
    target: Ints,
    replicas: int,
) -> Profiles:
    """Join what calls take while their bytes move with how long these move.

    Parameters
    ----------
    loads : Loads
    calls : sequence of ByteTime
        Of every kind of groups.
    whole : ByteTime
        Whole seconds in the same places.
    passes : Passes
        Of all replicas.
    target : ndarray
        Rank to which the result of a pass is sent, (ranks, chunks, kinds); -1 none.
    replicas : int
        Replicas that are simulated.
    """
    users = _Users(loads, target, replicas)
    ranks, chunks, kinds = target.shape
    width = users.link.shape[1]
    demand = np.zeros((ranks, chunks, kinds, len(COMMUNICATION), width))
    sends, step_end = np.zeros((*target.shape, width)), np.zeros((ranks, 2, width))
    for call in calls:
        part = _part(call.passes_s, whole.passes_s)
        if call.group == "pp":
            hop = users.sends()
            demand[..., _PP, :] += part[..., _PP, None] * hop
            sends += _part(call.sends_s, whole.sends_s)[:, None, None, None] * hop
            continue
        load = users.calls(call.group, call.far)
        demand += part[..., None] * load[:, None, None, None, :]
        for i, name in enumerate(("reduce_s", "gather_s")):
            call_s, all_s = getattr(call, name).sum(axis=1), getattr(whole, name).sum(axis=1)
            step_end[:, i] += _part(call_s, all_s)[:, None] * load
    demand = np.minimum(demand, 1.0)
    copies = np.stack([users.copies(up) for up in (True, False)], axis=1)
    amounts, hiding = _of_passes(passes, demand, copies)
    return Profiles(
        link=users.link,
        passes=amounts,
        hiding=hiding,
        sends=np.minimum(sends, 1.0),
        step_end=np.minimum(step_end, 1.0),
        copies=copies,
        names=loads.names * replicas,
    )


def _part(some: Floats, whole: Floats) -> Floats:
    """Some seconds over all of them; 0 of none."""
    return np.divide(some, whole, out=np.zeros_like(whole), where=whole > 0.0)


def _of_passes(passes: Passes, demand: Floats, copies: Floats) -> tuple[Floats, Floats]:
    """What each phase takes, and what of the computing one belongs to whom."""
    asked = np.concatenate([demand, _copied(copies, demand.shape)], axis=3)
    ranks, chunks, kinds, terms, width = asked.shape
    amounts = np.zeros((ranks, chunks, kinds, len(PHASE_TERMS), width))
    for phase, names in enumerate(PHASE_TERMS):
        if names[0] in HIDING:
            amounts[..., phase, :] = asked[..., HIDING.index(names[0]), :]
    computing = [CAUSE[name] for name in PHASE_TERMS[COMPUTING]]
    window_s = passes.shown_s[..., computing].sum(axis=3)
    hiding = np.zeros((ranks, chunks, kinds, terms))
    for i, name in enumerate(HIDING):
        if name in BESIDE:
            share = _part(passes.hidden_s[..., HIDDEN.index(name)], window_s)[..., None]
            load = share * asked[..., i, :]
            amounts[..., COMPUTING, :] += load
            hiding[..., i] = load.sum(axis=3)
    hiding = _part(hiding, np.broadcast_to(hiding.sum(axis=3, keepdims=True), hiding.shape))
    return np.minimum(amounts, 1.0), hiding


def _copied(copies: Floats, shape: tuple[int, ...]) -> Floats:
    """What activations on their way out and back take, and what input does, by kind of pass."""
    ranks, chunks, kinds, _, width = shape
    activations = copies[:, np.where(np.arange(kinds) == FORWARD, _OUT, _BACK)]
    fetched = np.broadcast_to(copies[:, _BACK, None], activations.shape)
    both = np.stack([activations, fetched], axis=2)[:, None]
    return np.broadcast_to(both, (ranks, chunks, kinds, 2, width))


class _Users:
    """Loads of users on the links that each rank touches."""

    def __init__(self, loads: Loads, target: Ints, replicas: int) -> None:
        self.loads, self.target = loads, target
        self.ranks, self.stages = len(target), len(target) // replicas
        touched = [self._touched(rank) for rank in range(self.ranks)]
        self.width = max(1, *(len(links) for links in touched))
        self.link = np.zeros((self.ranks, self.width), np.int64)
        self.place: list[dict[int, int]] = []
        for rank, links in enumerate(touched):
            shift = rank // self.stages * len(loads.names)
            self.link[rank, : len(links)] = np.array(links, np.int64) + shift
            self.place.append({link: i for i, link in enumerate(links)})

    def _sent(self, rank: int, to: int) -> Users:
        return ("send", rank % self.stages, to % self.stages)

    def _touched(self, rank: int) -> list[int]:
        stage, found = rank % self.stages, set()
        sent = {self._sent(rank, int(to)) for to in self.target[rank].flat if to >= 0}
        for user, (links, _) in self.loads.of.items():
            if user in sent or (user[0] != "send" and user[2] == stage):
                found.update(links.tolist())
        return sorted(found)

    def _vector(self, rank: int, user: Users) -> Floats:
        vector = np.zeros(self.width)
        if user in self.loads.of:
            for link, share in zip(*self.loads.of[user], strict=True):
                vector[self.place[rank][int(link)]] = share
        return vector

    def calls(self, group: str, far: bool) -> Floats:
        """Loads of one kind of groups, (ranks, width)."""
        vectors = [self._vector(r, (group, far, r % self.stages)) for r in range(self.ranks)]
        return np.array(vectors)

    def copies(self, up: bool) -> Floats:
        """Loads of copies to the host, or back, (ranks, width)."""
        return self.calls("copy", up)

    def sends(self) -> Floats:
        """Loads of what each pass sends, (ranks, chunks, kinds, width)."""
        loads = np.zeros((*self.target.shape, self.width))
        for place in np.argwhere(self.target >= 0).tolist():
            rank, at = place[0], tuple(place)
            loads[at] = self._vector(rank, self._sent(rank, int(self.target[at])))
        return loads
