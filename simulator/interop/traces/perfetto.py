"""A simulated step as a trace for ui.perfetto.dev and chrome://tracing.

One process per simulated rank with a track per stream, counters of its memory, arrows from sends to
the passes that wait for them; and one process for the links, with the share of the GPUs that use
each kind. The form is the Trace Event Format (Google, "Trace Event Format", 2016), JSON object
form, times in microseconds; Perfetto reads it, gzipped or not.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.terms import LABELS
from simulator.events.played import SimulatedStep
from simulator.events.step.streams import CAUSES, LINKS, SPAN_KINDS, STREAMS
from simulator.events.step.timeline import MemoryCurve, Timeline

_MICROSECOND_S = 1e-6
_GIB = 1024.0**3
_TOGETHER_S = 1e-12
"""A span that begins so soon after another ends, or before by rounding, follows it at once."""


def trace_bytes(step: SimulatedStep, *, gzipped: bool, title: str = "") -> bytes:
    """Return the content of a trace file; the same step, the same bytes.

    Parameters
    ----------
    step : SimulatedStep
    gzipped : bool
        Whether to compress it: a fifteenth of the size.
    title : str
        What was simulated, for the reader.
    """
    head = {"title": title, "step_time_s": step.step_time_s, "tasks": step.tasks}
    if (steps := step.timeline.steps) > 1:
        head["steps"] = steps
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace_events(step))
    text = (
        f'{{"otherData":{json.dumps(head)},"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'
    )
    content = text.encode()
    return gzip.compress(content, mtime=0) if gzipped else content


def trace_events(step: SimulatedStep) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, tracks first."""
    line = step.timeline
    yield from _names(step)
    yield from _spans(line)
    yield from _arrows(line)
    yield from _memory(step.memory)
    yield from _links(line)


def _names(step: SimulatedStep) -> Iterator[dict[str, Any]]:
    """Name processes and tracks, and say in which order to show them."""
    line = step.timeline
    used = np.unique(np.stack([line.rank, line.stream]), axis=1).T.tolist()
    for rank in sorted({rank for rank, _ in used}):
        alike = int(line.ranks_of[rank])
        name = f"rank {rank}" + (f" (of {alike:,} GPUs alike)" if alike > 1 else "")
        name += "" if step.mixed is None else f" on {step.mixed.servers(rank)}"
        yield _about(rank, 0, "process_name", name=name)
        yield _about(rank, 0, "process_sort_index", sort_index=rank)
    for rank, stream in used:
        yield _about(rank, stream, "thread_name", name=STREAMS[stream])
        yield _about(rank, stream, "thread_sort_index", sort_index=stream)
    yield _about(len(line.ranks_of), 0, "process_name", name="links")
    yield _about(len(line.ranks_of), 0, "process_sort_index", sort_index=len(line.ranks_of))


def _about(rank: int, stream: int, what: str, **said: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": stream, "name": what, "args": said}


def _spans(line: Timeline) -> Iterator[dict[str, Any]]:
    columns = (
        line.rank,
        line.stream,
        line.kind,
        line.micro_batch,
        line.chunk,
        line.cause,
        line.critical,
        line.start_s / _MICROSECOND_S,
        (line.end_s - line.start_s) / _MICROSECOND_S,
    )
    for row in zip(*(column.tolist() for column in columns), strict=True):
        rank, stream, kind, batch, chunk, cause, critical, start, duration = row
        said: dict[str, Any] = {"charged to": LABELS[CAUSES[cause]], "critical": critical}
        if batch >= 0:
            said["micro-batch"] = batch % line.micro_batches
            if line.steps > 1:
                said["step"] = batch // line.micro_batches
        if chunk >= 0:
            said["chunk"] = chunk
        word = SPAN_KINDS[kind].replace("_", " ")
        name = f"{word} {said['micro-batch']}" if batch >= 0 else word
        if "step" in said:
            name = f"{name} of step {said['step']}"
        yield {
            "ph": "X",
            "pid": rank,
            "tid": stream,
            "ts": start,
            "dur": duration,
            "name": name,
            "cat": STREAMS[stream],
            "args": said,
        }


def _arrows(line: Timeline) -> Iterator[dict[str, Any]]:
    """From the middle of a send to the start of the pass that waits for it."""
    for number, (sent, waited) in enumerate(line.flows.tolist()):
        middle = (line.start_s[sent] + line.end_s[sent]) / 2.0
        for letter, span, moment in (("s", sent, middle), ("f", waited, line.start_s[waited])):
            yield {
                "ph": letter,
                "id": number,
                "pid": int(line.rank[span]),
                "tid": int(line.stream[span]),
                "ts": float(moment) / _MICROSECOND_S,
                "name": "activations",
                "cat": "pipeline",
                **({"bp": "e"} if letter == "f" else {}),
            }


def _memory(curve: MemoryCurve) -> Iterator[dict[str, Any]]:
    """Memory of every rank by kind, kinds that are never held left out."""
    kinds = np.flatnonzero(curve.kinds_bytes.any(axis=0)).tolist()
    held = (curve.kinds_bytes[:, kinds] / _GIB).tolist()
    names = [MEMORY_KINDS[kind] for kind in kinds]
    times = (curve.time_s / _MICROSECOND_S).tolist()
    for rank, moment, sizes in zip(curve.rank.tolist(), times, held, strict=True):
        sizes_gib = dict(zip(names, sizes, strict=True))
        yield _counter(rank, "memory, GiB", moment, sizes_gib)


def _links(line: Timeline) -> Iterator[dict[str, Any]]:
    """Share of the GPUs that use a kind of link, whenever it changes."""
    weight = line.ranks_of / line.ranks_of.sum()
    for name in LINKS:
        own = line.stream == STREAMS.index(name)
        if not own.any():
            continue
        moments = np.concatenate([line.start_s[own], line.end_s[own]])
        change = weight[line.rank[own]]
        order = np.argsort(moments, kind="stable")
        moments, changes = moments[order], np.concatenate([change, -change])[order]
        new = np.diff(moments, prepend=-np.inf) > _TOGETHER_S
        times, share = moments[new], np.cumsum(np.bincount(np.cumsum(new) - 1, changes))
        for moment, now in zip((times / _MICROSECOND_S).tolist(), share.tolist(), strict=True):
            percent = {"share": round(100.0 * now, 9)}
            yield _counter(len(line.ranks_of), f"{name}, % of GPUs", moment, percent)


def _counter(process: int, name: str, moment: float, values: dict[str, float]) -> dict[str, Any]:
    return {"ph": "C", "pid": process, "name": name, "ts": moment, "args": values}
