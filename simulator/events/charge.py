"""Where the time of a played step went, in the words of the closed form.

The rank with the most work paces the step. Its own passes, reductions and optimizer step are
charged to their terms; while it is idle, what it waits for is: forward passes elsewhere are
fill, backward passes drain, sends, reductions and the optimizer their own terms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.cost.terms import HIDDEN, TERMS
from simulator.events.engine import critical_path
from simulator.events.passes import CAUSE
from simulator.events.play import Played, is_extra, on_compute
from simulator.events.programs import EXTRA, SEND
from simulator.events.timeline import CAUSES, STREAMS
from simulator.layout.schedules import FORWARD

__all__ = ["critical_shares", "hidden", "stream_seconds", "terms", "work"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FILL, _DRAIN, _SENDS, _DP = (CAUSE[x] for x in ("bubble_warmup", "bubble_drain", "pp", "dp"))

_STREAM_OF = np.array(
    [STREAMS.index(term.stream) if term.stream in STREAMS else -1 for term in TERMS]
)
"""Stream to which a term belongs; -1: idle."""


def work(played: Played) -> tuple[Floats, Floats]:
    """Seconds that every rank's passes show by cause and hide; (ranks, causes), (ranks, HIDDEN).

    Of an asynchronous schedule: of one step.
    """
    p, listed = played.passes, played.program
    shape = p.shown_s.shape[:3]
    flat = np.ravel_multi_index((listed.rank, listed.chunk, listed.kind), shape)
    count = np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)
    lone = np.bincount(flat[played.alone], minlength=int(np.prod(shape))).reshape(shape)
    shown = np.einsum("rck,rckt->rt", count.astype(float), p.shown_s, optimize=False)
    beside = count[..., None] * np.ones(len(HIDDEN))
    beside[..., HIDDEN.index("ep")] -= lone
    hides = (beside * p.hidden_s).sum(axis=(1, 2))
    shown += np.einsum("rck,rckt->rt", lone.astype(float), p.alone_s, optimize=False)
    shown, hides = shown / played.steps, hides / played.steps
    at = (listed.rank[played.changes[:, 0]], played.changes[:, 1])
    np.add.at(shown, at, played.changes_s)
    return shown, hides


def terms(played: Played, shown: Floats, rank: int) -> Floats:
    """Terms of the step on one rank; they add up to the makespan. Shape (causes,)."""
    found, times = shown[rank].copy(), played.times
    own = on_compute(played, rank)
    extra = own[played.step.kind[own] == EXTRA]
    rows = played.step.row[extra]
    np.add.at(found, played.notes[rows, 0], played.extras.duration_s[rows])
    begins = np.concatenate([times.start_s[own], [times.makespan_s]])
    ends = np.concatenate([[0.0], times.end_s[own]])
    last = int(np.argmax(times.end_s))
    gaps = begins - ends
    for i in np.flatnonzero(gaps > 1e-12 * times.makespan_s):
        before = last if i == len(own) else int(times.cause[own[i]])
        _charge_idle(played, found, before, float(ends[i]), float(begins[i]))
    return found


def _charge_idle(played: Played, found: Floats, task: int, low: float, high: float) -> None:
    """Charge the time from `low` to `high` to the chain of tasks that ends with `task`."""
    start, cause = played.times.start_s, played.times.cause
    while high > low and task >= 0:
        until = max(float(start[task]), low)
        _charge(played, found, task, high - until)
        high, task = until, int(cause[task])
    found[_DRAIN] += max(high - low, 0.0)


def _charge(played: Played, found: Floats, task: int, seconds: float) -> None:
    """Charge the last `seconds` of a task that another rank waits for."""
    kind, row = int(played.step.kind[task]), int(played.step.row[task])
    if is_extra(played, task):
        found[played.notes[row, 0]] += seconds
    elif kind == SEND:
        found[_SENDS] += seconds
    else:
        listed = played.program
        at = (listed.rank[row], listed.chunk[row], listed.kind[row], _SENDS)
        sent = min(seconds, float(played.passes.shown_s[at]))
        found[_SENDS] += sent
        found[_FILL if kind == FORWARD else _DRAIN] += seconds - sent


def critical_shares(played: Played) -> tuple[Ints, dict[str, float]]:
    """Tasks of the critical path, and the share of it that each cause takes."""
    path = critical_path(played.times)
    found = np.zeros(len(CAUSES))
    step, listed = played.step, played.program
    kinds, rows = step.kind[path], step.row[path]
    seconds = step.graph.duration_s[path]
    extra, sent = kinds == EXTRA, kinds == SEND
    np.add.at(found, played.notes[rows[extra], 0], seconds[extra])
    found[_SENDS] += seconds[sent].sum()
    passes = np.flatnonzero(~extra & ~sent)
    at = rows[passes]
    shown = played.passes.shown_s[listed.rank[at], listed.chunk[at], listed.kind[at]]
    first = listed.with_next[at]
    if first.any():
        nxt = np.minimum(at + 1, len(listed) - 1)
        pair = played.passes.shown_s[listed.rank[nxt], listed.chunk[nxt], listed.kind[nxt]]
        shown = shown + np.where(first[:, None], pair, 0.0)
    whole = np.maximum(shown.sum(axis=1), 1e-300)
    found += (shown * (seconds[passes] / whole)[:, None]).sum(axis=0)
    total = max(float(found.sum()), 1e-300)
    return path.astype(np.int64), {
        name: float(x) / total for name, x in zip(CAUSES, found, strict=True)
    }


def stream_seconds(
    played: Played, shown: Floats, hides: Floats, step_time_s: float
) -> tuple[Floats, Floats, Floats]:
    """Busy, exposed and idle seconds of every rank and stream, shape (ranks, streams)."""
    ranks = len(shown)
    exposed = np.zeros((ranks, len(STREAMS)))
    for cause, stream in enumerate(_STREAM_OF):
        if stream >= 0:
            exposed[:, stream] += shown[:, cause]
    busy = exposed.copy()
    for i, name in enumerate(HIDDEN):
        busy[:, _STREAM_OF[CAUSE[name]]] += hides[:, i]
    rows, extras, times = np.arange(len(played.extras)), played.extras, played.times
    host = STREAMS.index("host")
    for row in rows[extras.stream != host]:
        rank, stream = int(extras.rank[row]), int(extras.stream[row])
        task = int(played.step.task_of_extra[row])
        seconds = float(times.end_s[task] - times.start_s[task])
        busy[rank, stream] += seconds
        if stream == 0:
            exposed[rank, stream] += seconds
            continue
        first = float(times.start_s[played.step.task_of_action[_first(played, rank)]])
        last = float(times.end_s[played.step.task_of_action[played.ends.final[rank]]])
        start, end = float(times.start_s[task]), float(times.end_s[task])
        waits = max(min(end, first) - start, 0.0) + max(end - max(start, last), 0.0)
        exposed[rank, stream] += waits
    return busy, exposed, np.maximum(step_time_s - busy, 0.0)


def _first(played: Played, rank: int) -> int:
    """The first action of a rank."""
    return int(played.ends.first[rank].min())


def hidden(played: Played, hides: Floats, shown_dp_s: float, rank: int) -> dict[str, float]:
    """Communication beside compute of one rank, by name."""
    found = {name: float(x) for name, x in zip(HIDDEN, hides[rank], strict=True)}
    replica, stage = divmod(rank, played.pp)
    tails = played.replicas[replica].tails
    whole = float(tails.reduce_s[stage].sum() + tails.gather_s[stage].sum())
    found["dp"] += max(whole - shown_dp_s, 0.0)
    found["offload"] += tails.hidden_gradients_s
    return found
