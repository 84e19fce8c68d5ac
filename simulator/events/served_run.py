"""The rounds of a parameter server that a scenario asks for, played."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.events.worker_rounds import play_rounds
from simulator.push_pull.rounds import (
    Crew,
    Round,
    asynchronous_rounds,
    stale_synchronous_s,
    synchronous_s,
)
from simulator.push_pull.server_section import Consistency

__all__ = ["MOST_PIECES", "PlayedServers", "play_servers"]

MOST_PIECES = 8
"""Pieces of a push that are played; more of them change a round by less than an eighth of what its
messages take one after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedServers:
    """A round of the mean worker, played and in closed form with as many pieces."""

    played_s: float
    closed_form_s: float
    pieces: int


def play_servers(
    crew: Crew, one: Round, kind: Consistency, *, staleness: int = 0, seed: int = 0
) -> PlayedServers:
    """Play some rounds of all workers.

    Raises
    ------
    InputError
        If there were too many messages to play.
    """
    few = replace(one, pieces=min(int(one.pieces), MOST_PIECES))
    steps = [float(s) for s, n in zip(crew.step_s, crew.workers, strict=True) for _ in range(n)]
    if kind == "synchronous":
        closed = float(synchronous_s(crew.ready_s, few))
    elif kind == "stale-synchronous":
        closed = float(stale_synchronous_s(crew, staleness, few))
    else:
        rounds = asynchronous_rounds(crew, few)
        closed = float(crew.workers.sum() / (rounds * crew.workers).sum())
    bound = {"synchronous": 0, "stale-synchronous": staleness, "asynchronous": None}[kind]
    found = play_rounds(
        steps,
        few,
        staleness=bound,
        sums_first=kind == "synchronous",
        spread=crew.spread,
        seed=seed,
    )
    return PlayedServers(played_s=found.period_s, closed_form_s=closed, pieces=int(few.pieces))
