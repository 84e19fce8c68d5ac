"""Where the time of a played step went, in the words of the closed form.

The rank with the most work paces the step. Its own passes, reductions and optimizer step are
charged to their terms; while it is idle, what it waits for is: forward passes elsewhere are
fill, backward passes drain, sends, reductions and the optimizer their own terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.terms import HIDDEN, TERMS
from simulator.events.engine.engine import critical_path
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.play import Played, is_extra, on_compute
from simulator.events.step.programs import period_s
from simulator.events.step.streams import CAUSES, COMPUTE, COPY, PIPELINE, SPAN_KINDS, STREAMS
from simulator.events.step.unfold import EXTRA, SEND
from simulator.layout.keys import distinct_codes
from simulator.schedules.schedule import FORWARD

_FILL, _DRAIN, _SENDS, _DP = (CAUSE[x] for x in ("bubble_warmup", "bubble_drain", "pp", "dp"))

_TICK = SPAN_KINDS.index("launch")
"""Kind of extra tasks that only tell a moment inside a pass."""

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
    late = (listed.rank[played.delays[:, 0]], played.delays[:, 1])
    np.add.at(shown, late, played.delays_s)
    shown, hides = shown / played.steps, hides / played.steps
    at = (listed.rank[played.changes[:, 0]], played.changes[:, 1])
    np.add.at(shown, at, played.changes_s)
    return shown, hides


def terms(played: Played, shown: Floats, rank: int) -> Floats:
    """Terms of the step on one rank; they add up to the makespan. Shape (causes,)."""
    if played.steps > 1:
        return _steady_terms(played, shown, rank)
    charged_s, times = shown[rank].copy(), played.times
    compute_tasks = on_compute(played, rank)
    extra = compute_tasks[played.step.kind[compute_tasks] == EXTRA]
    rows = played.step.row[extra]
    np.add.at(charged_s, played.notes[rows, 0], played.extras.duration_s[rows])
    begins = np.concatenate([times.start_s[compute_tasks], [times.makespan_s]])
    ends = np.concatenate([[0.0], times.end_s[compute_tasks]])
    last = int(np.argmax(times.end_s))
    gaps = begins - ends
    for i in np.flatnonzero(gaps > 1e-12 * times.makespan_s):
        before = last if i == len(compute_tasks) else int(times.cause[compute_tasks[i]])
        _charge_idle(played, charged_s, before, float(ends[i]), float(begins[i]))
    return charged_s


def step_time_s(played: Played) -> float:
    """Time of a played step."""
    return float(terms(played, work(played)[0], pacing_rank(played)).sum())


def _steady_terms(played: Played, shown: Floats, rank: int) -> Floats:
    """Terms of one step of a pipeline that never drains, and of the tail that ends it.

    The last rank's backward passes of one step end so much later than those of the step before.
    What precedes the first pass and what follows the last one comes once per step.
    """
    charged_s, times, step = shown[rank].copy(), played.times, played.step
    once = played.program.rank[played.changes[:, 0]] == rank
    found_s = float(charged_s.sum() - played.changes_s[once].sum())
    last = range(played.pp - 1, played.program.ranks, played.pp)
    cycle_s = max(period_s(step, times.end_s, played.steps, rank_at_end) for rank_at_end in last)
    charged_s[_DRAIN] += max(cycle_s - found_s, 0.0)
    first = step.task_of_action[played.ends.first[0].min()]
    charged_s[_DP] += float(times.start_s[first])
    low = float(times.end_s[step.task_of_action[played.ends.final]].max())
    _charge_idle(played, charged_s, int(np.argmax(times.end_s)), low, times.makespan_s)
    return charged_s


def _charge_idle(played: Played, charged_s: Floats, task: int, low: float, high: float) -> None:
    """Charge the time from `low` to `high` to the chain of tasks that ends with `task`."""
    times, cause = played.times, played.times.cause
    while high > low and task >= 0:
        until, before = float(times.start_s[task]), int(cause[task])
        passes = _last_pass(played, task)
        if passes >= 0 and times.end_s[passes] > until:
            until, before = min(float(times.end_s[passes]), high), passes
        until = max(until, low)
        _charge(played, charged_s, task, high - until)
        high, task = until, before
    charged_s[_DRAIN] += max(high - low, 0.0)


def _last_pass(played: Played, task: int) -> int:
    """The last pass of a reduction's rank: while it runs, it decides; -1: the task is none."""
    if not is_extra(played, task) or played.step.stream[task] in (COMPUTE, COPY):
        return -1
    row = int(played.step.row[task])
    if row >= played.step.extras or played.extras.after[row] < 0:
        return -1
    return int(played.step.task_of_action[played.ends.final[played.step.rank[task]]])


def _charge(played: Played, charged_s: Floats, task: int, seconds: float) -> None:
    """Charge the last `seconds` of a task that another rank waits for."""
    kind, row = int(played.step.kind[task]), int(played.step.row[task])
    if is_extra(played, task):
        charged_s[_causes(played, np.array([task]))[0]] += seconds
    elif kind == SEND:
        charged_s[_SENDS] += seconds
    else:
        listed = played.program
        at = (listed.rank[row], listed.chunk[row], listed.kind[row], _SENDS)
        sent = min(seconds, float(played.passes.shown_s[at]))
        charged_s[_SENDS] += sent
        charged_s[_FILL if kind == FORWARD else _DRAIN] += seconds - sent


def _causes(played: Played, extras: NDArray[Any]) -> Ints:
    """Causes of extra tasks; what a user's table lists itself: sends, else sharding."""
    step = played.step
    row, sent = step.row[extras], step.stream[extras] == PIPELINE
    of_caller = row < step.extras
    causes = np.where(sent, _SENDS, _DP)
    causes[of_caller] = played.notes[row[of_caller], 0]
    return np.asarray(causes)


def critical_shares(played: Played) -> tuple[Ints, dict[str, float]]:
    """Tasks of the critical path, and the share of it that each cause takes."""
    path = critical_path(played.times)
    shares = np.zeros(len(CAUSES))
    step, listed = played.step, played.program
    kinds, rows = step.kind[path], step.row[path]
    seconds = step.graph.duration_s[path]
    extra, sent = kinds == EXTRA, kinds == SEND
    np.add.at(shares, _causes(played, path[extra]), seconds[extra])
    shares[_SENDS] += seconds[sent].sum()
    passes = np.flatnonzero(~extra & ~sent)
    at = rows[passes]
    shown, first = _shown(played, at), listed.with_next[at]
    if first.any():
        nxt = np.minimum(at + 1, len(listed) - 1)
        shown = shown + np.where(first[:, None], _shown(played, nxt), 0.0)
    whole = np.maximum(shown.sum(axis=1), 1e-300)
    shares += (shown * (seconds[passes] / whole)[:, None]).sum(axis=0)
    total = max(float(shares.sum()), 1e-300)
    return path.astype(np.int64), {
        name: float(x) / total for name, x in zip(CAUSES, shares, strict=True)
    }


def _shown(played: Played, actions: NDArray[Any]) -> Floats:
    """Seconds of some actions by cause: what those of their kind take, and their own delays."""
    listed = played.program
    shown = played.passes.shown_s[listed.rank[actions], listed.chunk[actions], listed.kind[actions]]
    if len(played.delays):
        row = np.full(len(listed), -1)
        row[actions] = np.arange(len(actions))
        late = np.flatnonzero(row[played.delays[:, 0]] >= 0)
        np.add.at(
            shown, (row[played.delays[late, 0]], played.delays[late, 1]), played.delays_s[late]
        )
    return np.asarray(shown)


def pacing_rank(played: Played) -> int:
    """The rank with the longest passes, those that run alone counted as the others; the last one.

    Of ranks that work equally long the last waits for forward passes first, for backward last.
    """
    listed = played.program
    seconds = played.passes.seconds[listed.rank, listed.chunk, listed.kind]
    most = np.bincount(listed.rank, weights=seconds)
    np.add.at(most, listed.rank[played.delays[:, 0]], played.delays_s)
    return int(np.flatnonzero(most >= most.max() * (1.0 - 1e-9))[-1])


def stream_seconds(
    played: Played, shown: Floats, hides: Floats, step_time_s: float
) -> tuple[Floats, Floats, Floats]:
    """Busy, exposed and idle seconds of every rank and stream, shape (ranks, streams)."""
    exposed = np.zeros((len(shown), len(STREAMS)))
    for cause, stream in enumerate(_STREAM_OF):
        if stream >= 0:
            exposed[:, stream] += shown[:, cause]
    busy = exposed.copy()
    for i, name in enumerate(HIDDEN):
        busy[:, _STREAM_OF[CAUSE[name]]] += hides[:, i] * (name != "pp")
    sends, step = played.step.kind == SEND, played.step
    np.add.at(busy[:, PIPELINE], step.rank[sends], step.graph.duration_s[sends] / played.steps)
    extras = played.extras
    for row in np.flatnonzero(played.notes[:, 1] != _TICK):
        at = int(extras.rank[row]), int(extras.stream[row])
        seconds, waited = _extra_seconds(played, int(row))
        times = played.steps if extras.before[row] >= 0 and at[1] == COPY else 1
        busy[at] += seconds / times
        exposed[at] += waited / times
    return busy, exposed, np.maximum(step_time_s - busy, 0.0)


def _extra_seconds(played: Played, row: int) -> tuple[float, float]:
    """How long an extra task takes, and how much of that lies outside its rank's passes."""
    rank, step, times = int(played.extras.rank[row]), played.step, played.times
    task = int(step.task_of_extra[row])
    start, end = float(times.start_s[task]), float(times.end_s[task])
    if played.extras.stream[row] == COMPUTE:
        return end - start, end - start
    first = float(times.start_s[step.task_of_action[int(played.ends.first[rank].min())]])
    last = float(times.end_s[step.task_of_action[played.ends.final[rank]]])
    return end - start, max(min(end, first) - start, 0.0) + max(end - max(start, last), 0.0)


def hidden(played: Played, hides: Floats, shown_s: Floats, rank: int) -> dict[str, float]:
    """Communication beside compute of one rank, by name, less what its terms show of it."""
    hidden_s = {name: float(x) for name, x in zip(HIDDEN, hides[rank], strict=True)}
    replica, stage = divmod(rank, played.pp)
    step_end = played.replicas[replica].step_end
    whole = step_end.reductions * float(step_end.reduce_s[stage].sum())
    whole += float(step_end.gather_s[stage].sum())
    hidden_s["dp"] += max(whole - float(shown_s[_DP]), 0.0)
    hidden_s["offload"] += step_end.hidden_gradients_s
    copied_s = 2.0 * _passed(played, rank) * float(played.passes.copy_s[rank].sum())
    hidden_s["offload"] += max(copied_s - float(shown_s[CAUSE["offload"]]), 0.0) * (copied_s > 0.0)
    return hidden_s


def _passed(played: Played, rank: int) -> float:
    """Micro-batches that a chunk of a rank passes in a step."""
    listed = played.program
    passes = (listed.rank == rank) & (listed.kind == FORWARD)
    return float(passes.sum()) / len(distinct_codes(listed.chunk[passes])) / played.steps
