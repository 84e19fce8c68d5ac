"""One step in which every pass, send and collective takes a time of its own.

A pass is as long as on the slowest of the GPUs that keep step in it: those of a stage, and of all
replicas that wait for one another in every layer; these are drawn at once
(``events/engine/jitter.py``). Replicas that meet only where gradients are reduced go their own ways
until then. So each of them is drawn and run through the pipeline alone, the slowest is played, and
its reductions begin when those of all the others could. A reduction or a gather is as long as that
of the slowest of its stage's groups, an optimizer step as on the slowest GPU of the rank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.errors import InputError, problem
from simulator.events.deviations.deviations import in_step
from simulator.events.engine.engine import longest_path
from simulator.events.engine.jitter import slowest_factor
from simulator.events.step.play import DurationFactors, Played, play_step, shown_s
from simulator.events.step.programs import Program
from simulator.events.step.streams import COMPUTE, COPY, HOST
from simulator.events.step.unfold import EXTRA
from simulator.records import dataclass

MOST_SPREAD = 2.0
"""Largest spread that is played: a pass one standard deviation late takes 7 times as long."""

_PASSES, _TAILS = 0, 1
"""Streams of random numbers: of passes and sends, replica by replica; of what follows them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Jitter:
    """How unevenly GPUs and links work from one pass or call to the next."""

    spread: float
    """Standard deviation of the logarithm of the time of a pass on one GPU, or of a send or
    collective of one group; drawn anew each time, the mean kept. 0.02 is 2 %."""
    seed: int = 0
    """The same seed draws the same step."""

    def __post_init__(self) -> None:
        """Refuse what is no spread and no seed, at once."""
        wrong = []
        if not 0.0 <= self.spread < np.inf:
            near = " (nearest: 0)" if self.spread < 0.0 else ""
            rule = "must be finite and not negative (0.02: passes vary by 2 %)"
            wrong.append(problem("simulate", "jitter", rule, self.spread) + near)
        elif self.spread > MOST_SPREAD:
            rule, near = f"must be at most {MOST_SPREAD:g}", f" (nearest: {MOST_SPREAD:g})"
            wrong.append(problem("simulate", "jitter", rule, self.spread) + near)
        if self.seed < 0:
            rule = "must not be negative"
            wrong.append(problem("simulate", "seed", rule, self.seed) + " (nearest: 0)")
        if wrong:
            raise InputError(wrong)


def jittered_step(steady: Played, jitter: Jitter, table: Program | None = None) -> Played:
    """Play a step once more with durations that vary.

    Parameters
    ----------
    steady : Played
        The same step where every duration is its mean.
    jitter : Jitter
    table : Program, optional
        The user's table that it was played from.
    """
    if jitter.spread == 0.0:
        return steady
    factor, late_s = _slowest_replicas(steady, jitter)
    step, listed = steady.step, steady.program
    actions = factor[step.task_of_action]
    second = np.flatnonzero(listed.with_next) + 1
    actions[second] = actions[second - 1]  # a pair is one task
    sends = np.where(step.task_of_send >= 0, factor[step.task_of_send], 1.0)
    stretch = DurationFactors(
        actions=actions, sends=sends, extras=_tails(steady, jitter), late_s=late_s
    )
    played = play_step(steady.replicas, table=table, stretch=stretch)
    grown = shown_s(steady) * (actions - 1.0)[:, None]
    action, cause = np.nonzero(grown)
    return replace(
        played,
        delays=np.column_stack([action, cause]),
        delays_s=grown[action, cause],
        build_seconds=played.build_seconds + steady.build_seconds,
    )


def _slowest_replicas(steady: Played, jitter: Jitter) -> tuple[Floats, Floats]:
    """Factors of all tasks where equal replicas are slowest; how much later others end, by rank."""
    graph, pp = steady.step.graph, steady.pp
    of_task = steady.step.rank // pp
    spread = np.where(steady.step.kind == EXTRA, 0.0, jitter.spread)
    together, blocks = _together(steady)
    final = steady.step.task_of_action[steady.ends.final]
    slowest = np.ones(len(graph))
    own, last = np.zeros((2, len(final)))
    for block in range(int(blocks.max())):
        seed = (jitter.seed, _PASSES, block)
        factor = slowest_factor(spread, seed, together[of_task], len(graph))
        drawn = replace(graph, duration_s=graph.duration_s * factor)
        ends = longest_path(drawn, steady.step.name).end_s[final]
        for replica in np.flatnonzero(blocks > block):
            ranks = slice(replica * pp, (replica + 1) * pp)
            if ends[ranks].max() > own[ranks].max():
                own[ranks] = ends[ranks]
                slowest[of_task == replica] = factor[of_task == replica]
            last[ranks] = np.maximum(last[ranks], ends[ranks])
    return slowest, last - own


def _together(steady: Played) -> tuple[Ints, Ints]:
    """Of each simulated replica: GPUs that keep step in a pass; how many such draws it stands for.

    Replicas that wait for one another in every layer are one draw.
    """
    one = steady.replicas[0]
    layouts = one.rows.layouts
    span = min(in_step(layouts, one.priced, one.rows), int(layouts.dp[0]))
    counts = np.array([replica.count for replica in steady.replicas])
    inside = int(layouts.tp[0] * layouts.cp[0])
    return np.minimum(counts, span) * inside, -(-counts // span)


def _tails(steady: Played, jitter: Jitter) -> Floats:
    """Factors of what follows and precedes the passes."""
    extras, layouts = steady.extras, steady.replicas[0].rows.layouts
    counts = np.array([replica.count for replica in steady.replicas])[extras.rank // steady.pp]
    inside = int(layouts.tp[0] * layouts.cp[0])
    groups = np.full(len(extras), int(layouts.tp[0]))
    every = (extras.stream == COMPUTE) | (extras.stream == COPY)
    spread = np.where(extras.stream == HOST, 0.0, jitter.spread)
    slowest_of = np.where(every, inside * counts, groups)
    return slowest_factor(spread, (jitter.seed, _TAILS), slowest_of, len(extras))
