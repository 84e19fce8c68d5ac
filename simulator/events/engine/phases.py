"""Tasks cut into phases that run one after the other, and back.

A pass that computes, then waits for a collective, then sends, takes other things in each phase. Cut
up, it can be played where these are shared; put together again, it is the task that it was.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.events.engine.engine import Times
from simulator.events.engine.graph import TaskGraph
from simulator.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Phases:
    """A graph of phases."""

    graph: TaskGraph
    first: Ints
    """Phases of task i of the whole graph are ``first[i]`` to ``first[i + 1]``."""
    task: Ints
    """The task of each phase."""


def cut(graph: TaskGraph, task: Ints, seconds: Floats) -> Phases:
    """Cut tasks into phases.

    Parameters
    ----------
    graph : TaskGraph
    task : ndarray
        The task of each phase, in order; every task has one at least.
    seconds : ndarray
        Of each phase.

    Examples
    --------
    >>> from simulator.events.engine.graph import task_graph
    >>> whole = task_graph([3.0, 1.0], [0, 1], [(0, 1)])
    >>> parts = cut(whole, np.array([0, 0, 1]), np.array([1.0, 2.0, 1.0]))
    >>> parts.graph.predecessor.tolist(), parts.graph.first.tolist()
    ([1], [0, 0, 0, 1])
    """
    first = np.searchsorted(task, np.arange(len(graph) + 1))
    edges = np.zeros(len(task), np.int64)
    edges[first[:-1]] = np.diff(graph.first)
    whole = TaskGraph(
        duration_s=seconds,
        stream=graph.stream[task],
        first=np.concatenate([[0], np.cumsum(edges)]).astype(np.int32),
        predecessor=(first[1:][graph.predecessor] - 1).astype(np.int32),
        lag_s=graph.lag_s,
    )
    return Phases(graph=whole, first=first, task=task)


def together(phases: Phases, times: Times) -> Times:
    """When the tasks ran whose phases ran so."""
    starts, ends = phases.first[:-1], phases.first[1:] - 1
    cause = times.cause[starts]
    return Times(
        start_s=times.start_s[starts],
        end_s=times.end_s[ends],
        cause=np.where(cause >= 0, phases.task[cause], -1).astype(np.int32),
    )
