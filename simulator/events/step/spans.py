"""Write a played step down as a timeline: what each pass spends its time on, span by span.

Inside a pass the order is one for all (``events/step/streams.py``). Passes that run as a pair
are drawn one after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.terms import HIDDEN
from simulator.events.step.pass_costs import CAUSE
from simulator.events.step.play import Played, shown_s
from simulator.events.step.streams import BESIDE, COMPUTING, PHASES, SPAN_KINDS, STREAMS, Span
from simulator.events.step.timeline import Timeline
from simulator.events.step.unfold import SEND
from simulator.schedules.schedule import FORWARD, KINDS

_WAYS = ("forward", "backward", "backward_input", "backward_weight")
"""Kind of the compute span of each of KINDS."""

_BESIDE = tuple(span for phase in PHASES for span in phase if span.terms[0] in BESIDE)
"""What hides behind the compute of a pass."""


class _Spans:
    """Columns of spans, a batch at a time."""

    def __init__(self) -> None:
        self.batches: list[tuple[NDArray[np.generic], ...]] = []
        self.count = 0

    def add(
        self,
        rank: Ints,
        start: Floats,
        length: Floats,
        words: tuple[str, str | Ints, str | Ints],
        *,
        micro_batch: Ints,
        chunk: Ints,
        critical: NDArray[np.bool_],
    ) -> Ints:
        """Add the spans that have a length; return the number of each, -1 where it has none."""
        stream, kind, cause = words
        rows = np.flatnonzero(length > 0.0)
        number = np.full(len(length), -1, np.int64)
        number[rows] = self.count + np.arange(len(rows))
        self.count += len(rows)
        coded = [
            np.broadcast_to(x, len(length))[rows]
            for x in (
                STREAMS.index(stream),
                SPAN_KINDS.index(kind) if isinstance(kind, str) else kind,
                CAUSE[cause] if isinstance(cause, str) else cause,
            )
        ]
        self.batches.append(
            (
                rank[rows],
                start[rows],
                (start + length)[rows],
                *coded,
                micro_batch[rows],
                chunk[rows],
                critical[rows],
            )
        )
        return number


def timeline(played: Played, path: Ints) -> Timeline:
    """Draw every pass, send and extra task.

    Parameters
    ----------
    played : Played
    path : ndarray
        Tasks of the critical path.
    """
    spans, critical = _Spans(), np.zeros(len(played.step.graph), dtype=np.bool_)
    critical[path] = True
    first, sent = _draw_passes(played, spans, critical)
    sending = np.flatnonzero(played.step.task_of_send >= 0)
    if played.passes.send_s.any():
        sent[sending] = _draw_sends(played, spans, critical, sending)
    _draw_extras(played, spans, critical)
    return _joined(played, spans, _flows(played, first, sent))


def _draw_passes(played: Played, spans: _Spans, critical: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Draw all actions; return the numbers of each one's first span and of its send."""
    listed, shown = played.program, shown_s(played)
    hidden = played.passes.hidden_s[listed.rank, listed.chunk, listed.kind]
    batch = listed.micro_batch % _micro_batches(played)
    on_path = critical[played.step.task_of_action]
    first, clock = np.full(len(listed), -1, np.int64), _starts(played, shown)
    ways = np.array([SPAN_KINDS.index(x) for x in _WAYS])[listed.kind]
    kinds: dict[str, Ints] = {"pass": ways, "send": _send_or_receive(played)}

    def draw(span: Span, start: Floats, seconds: Floats) -> tuple[Ints, Floats]:
        """Draw one span of every pass; its number, and when it ends."""
        words = (span.stream, kinds.get(span.kind, span.kind), span.terms[0])
        number = spans.add(
            listed.rank,
            start,
            span.share * seconds,
            words,
            micro_batch=batch,
            chunk=listed.chunk,
            critical=on_path,
        )
        np.copyto(first, number, where=(first < 0) & (number >= 0))
        return number, start + span.share * seconds

    for phase, parts in enumerate(PHASES):
        clocks = dict.fromkeys(STREAMS, clock)
        for span in _BESIDE if phase == COMPUTING else ():
            beside = hidden[:, HIDDEN.index(span.terms[0])]
            _, clocks[span.stream] = draw(span, clocks[span.stream], beside)
        for span in parts:
            sent, clock = draw(span, clock, shown[:, [CAUSE[x] for x in span.terms]].sum(axis=1))
    return first, sent


def _starts(played: Played, shown: Floats) -> Floats:
    """Start of every action; the second of a pair is drawn behind the first."""
    start = played.times.start_s[played.step.task_of_action]
    second = np.flatnonzero(played.program.with_next) + 1
    start[second] = start[second - 1] + shown[second - 1].sum(axis=1)
    return start


def _micro_batches(played: Played) -> int:
    """Micro-batches that one replica's program lists."""
    return (int(played.program.micro_batch.max()) + 1) // len(played.replicas)


def _send_or_receive(played: Played) -> Ints:
    """Kind of the hop that each action is charged: its send, or its receive where it sends none."""
    sends = played.step.task_of_send >= 0
    return np.where(sends, SPAN_KINDS.index("send"), SPAN_KINDS.index("receive"))


def _draw_sends(played: Played, spans: _Spans, critical: NDArray[np.bool_], sending: Ints) -> Ints:
    """Sends on a stream of their own."""
    tasks, listed = played.step.task_of_send[sending], played.program
    assert (played.step.kind[tasks] == SEND).all()
    start, end = played.times.start_s[tasks], played.times.end_s[tasks]
    return spans.add(
        listed.rank[sending],
        start,
        end - start,
        ("pipeline", "send", "pp"),
        micro_batch=listed.micro_batch[sending] % _micro_batches(played),
        chunk=listed.chunk[sending],
        critical=critical[tasks],
    )


def _draw_extras(played: Played, spans: _Spans, critical: NDArray[np.bool_]) -> None:
    """Gathers, reductions, copies and the optimizer."""
    extras, notes = played.extras, played.notes
    drawn = notes[:, 1] != SPAN_KINDS.index("launch")
    for stream in ("compute", "data", "copy", "host"):
        rows = np.flatnonzero(drawn & (extras.stream == STREAMS.index(stream)))
        tasks = played.step.task_of_extra[rows]
        start, end = played.times.start_s[tasks], played.times.end_s[tasks]
        spans.add(
            extras.rank[rows],
            start,
            end - start,
            (stream, notes[rows, 1], notes[rows, 0]),
            micro_batch=np.full(len(rows), -1),
            chunk=notes[rows, 2],
            critical=critical[tasks],
        )


def _flows(played: Played, first: Ints, sent: Ints) -> Ints:
    """Pairs of a send and the first span of the action that waits for it."""
    listed = played.program
    awaited = listed.awaited
    crosses = (awaited >= 0) & (listed.rank[awaited] != listed.rank)
    later = np.flatnonzero(crosses)
    pairs = np.column_stack([sent[awaited[later]], first[later]])
    return np.asarray(pairs[(pairs >= 0).all(axis=1)])


def _joined(played: Played, spans: _Spans, flows: Ints) -> Timeline:
    """All spans by rank, stream and time."""
    rank, start, end, stream, kind, cause, batch, chunk, critical = (
        np.concatenate(column) for column in zip(*spans.batches, strict=True)
    )
    order = np.lexsort((start, stream, rank))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    layouts = played.replicas[0].rows.layouts
    counts = np.repeat([replica.count for replica in played.replicas], played.pp)
    return Timeline(
        rank=rank[order].astype(np.int32),
        stream=stream[order].astype(np.int8),
        start_s=start[order],
        end_s=end[order],
        kind=kind[order].astype(np.int8),
        micro_batch=batch[order].astype(np.int32),
        chunk=chunk[order].astype(np.int32),
        cause=cause[order].astype(np.int8),
        critical=critical[order],
        ranks_of=counts * int(layouts.tp[0] * layouts.cp[0]),
        flows=place[flows],
        micro_batches=_micro_batches(played) // played.steps,
        steps=played.steps,
    )


assert len(_WAYS) == len(KINDS) and FORWARD == 0
