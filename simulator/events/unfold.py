"""Compiled unfolding of a program: what each action waits for, then tasks and edges in rows."""

from __future__ import annotations

import numpy as np
from numba import njit

from simulator.layout.schedules import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

__all__ = ["UNMATCHED", "follow", "unfold"]

NOTHING, UNMATCHED, TWICE = -1, -2, -3

_SEND, _EXTRA = 4, 5


@njit(cache=True)
def follow(rank, kind, micro_batch, piece, micro_batches, pieces):  # type: ignore[no-untyped-def]
    """Find the action that each one waits for: -1 none, UNMATCHED one that is not there.

    A weight pass waits for its input pass; where that is the action before it, this says so too.
    """
    n = len(kind)
    forward = np.full((micro_batches, pieces), -1, np.int32)
    backward = np.full((micro_batches, pieces), -1, np.int32)
    for a in range(n):
        if kind[a] == FORWARD:
            forward[micro_batch[a], piece[a]] = a
        elif kind[a] == BACKWARD or kind[a] == BACKWARD_INPUT:
            backward[micro_batch[a], piece[a]] = a
    awaited = np.empty(n, np.int64)
    for a in range(n):
        m, s = micro_batch[a], piece[a]
        if kind[a] == FORWARD:
            found = forward[m, s - 1] if s > 0 else -1
            missing = s > 0
        elif kind[a] == BACKWARD_WEIGHT:
            found, missing = backward[m, s], True
        elif s == pieces - 1:
            found, missing = forward[m, s], True
        else:
            found, missing = backward[m, s + 1], True
        awaited[a] = UNMATCHED if missing and found < 0 else found
    return awaited


@njit(cache=True)
def _number(rank, sends, order, extra_rank, after, ranks):  # type: ignore[no-untyped-def]
    """Number the tasks: of each rank its extras, actions and sends in the order of issue."""
    n, extras = len(rank), len(order)
    action_at = np.empty(n, np.int64)
    send_at = np.full(n, -1, np.int64)
    extra_at = np.empty(extras, np.int64)
    at, e, a = 0, 0, 0
    for r in range(ranks):
        while e < extras and extra_rank[order[e]] == r and after[order[e]] < 0:
            extra_at[order[e]] = at
            at += 1
            e += 1
        while a < n and rank[a] == r:
            action_at[a] = at
            at += 1
            if sends[a]:
                send_at[a] = at
                at += 1
            while e < extras and after[order[e]] == a:
                extra_at[order[e]] = at
                at += 1
                e += 1
            a += 1
    return action_at, send_at, extra_at, at


@njit(cache=True)
def _is_send(rank, kind, awaited):  # type: ignore[no-untyped-def]
    """Which actions have a result that another rank waits for."""
    sends = np.zeros(len(rank), np.bool_)
    for a in range(len(rank)):
        b = awaited[a]
        if b >= 0 and rank[b] != rank[a]:
            sends[b] = True
    return sends


@njit(cache=True)
def unfold(  # type: ignore[no-untyped-def]
    rank, kind, micro_batch, piece, with_next, awaited, seconds, hop_s, blocks,
    order, extra_rank, extra_stream, extra_s, after, waits, before, edges,
    streams, compute, pipeline,
):  # fmt: skip
    """Fill the columns and compressed rows of a step's tasks.

    Predecessors of a task stand in this order: its action or awaited task, the extras that it waits
    for by number, further edges.
    """
    n, extras = len(rank), len(order)
    ranks = 0
    for a in range(n):
        ranks = max(ranks, rank[a] + 1)
    for e in range(extras):
        ranks = max(ranks, extra_rank[e] + 1)
    sends = _is_send(rank, kind, awaited)
    action_at, send_at, extra_at, tasks = _number(rank, sends, order, extra_rank, after, ranks)
    duration = np.empty(tasks)
    task_rank = np.empty(tasks, np.int32)
    stream = np.empty(tasks, np.int8)
    task_kind = np.empty(tasks, np.int8)
    row = np.empty(tasks, np.int64)
    count = np.zeros(tasks + 1, np.int64)
    for a in range(n):
        i = action_at[a]
        duration[i], task_rank[i], stream[i] = seconds[a], rank[a], compute
        task_kind[i], row[i] = kind[a], a
        if awaited[a] >= 0:
            count[_starter(a, with_next, action_at) + 1] += 1
        if send_at[a] >= 0:
            j = send_at[a]
            hop = hop_s[0, piece[a]] if kind[a] == FORWARD else hop_s[1, piece[a] - 1]
            duration[j], task_rank[j], task_kind[j], row[j] = hop, rank[a], _SEND, a
            stream[j] = compute if blocks else pipeline
            count[j + 1] += 1
    for e in range(extras):
        i = extra_at[e]
        duration[i], task_rank[i], stream[i] = extra_s[e], extra_rank[e], extra_stream[e]
        task_kind[i], row[i] = _EXTRA, e
        if waits[e] and after[e] >= 0:
            count[i + 1] += 1
        if before[e] >= 0:
            count[_starter(before[e], with_next, action_at) + 1] += 1
    for k in range(len(edges)):
        count[_later(edges[k, 1], n, with_next, action_at, extra_at) + 1] += 1
    first = np.cumsum(count)
    predecessor = np.empty(first[tasks], np.int64)
    free = first[:tasks].copy()
    for a in range(n):
        b = awaited[a]
        if b >= 0:
            i = _starter(a, with_next, action_at)
            predecessor[free[i]] = send_at[b] if rank[b] != rank[a] else action_at[b]
            free[i] += 1
        if send_at[a] >= 0:
            predecessor[free[send_at[a]]] = action_at[a]
            free[send_at[a]] += 1
    for e in range(extras):
        i = extra_at[e]
        if waits[e] and after[e] >= 0:
            predecessor[free[i]] = action_at[after[e]]
            free[i] += 1
        if before[e] >= 0:
            j = _starter(before[e], with_next, action_at)
            predecessor[free[j]] = i
            free[j] += 1
    for k in range(len(edges)):
        earlier, later = edges[k, 0], _later(edges[k, 1], n, with_next, action_at, extra_at)
        predecessor[free[later]] = action_at[earlier] if earlier < n else extra_at[earlier - n]
        free[later] += 1
    return (
        duration, task_rank, stream, task_kind, row, first, predecessor,
        action_at, send_at, extra_at,
    )  # fmt: skip


@njit(cache=True)
def _starter(action, with_next, action_at):  # type: ignore[no-untyped-def]
    """The task that must wait so that an action waits: the first of its pair."""
    if action > 0 and with_next[action - 1]:
        return action_at[action - 1]
    return action_at[action]


@njit(cache=True)
def _later(number, n, with_next, action_at, extra_at):  # type: ignore[no-untyped-def]
    """The task that an edge holds back."""
    if number < n:
        return _starter(number, with_next, action_at)
    return extra_at[number - n]
