"""Kept events of a torch profiler trace -> the `Trace` that ``scoring/trace.py`` measures.

A run on a GPU is measured by its kernels and copies, one on processors by its operators, each less
what it calls. Collectives are kernels (NCCL) or ranges that the host marks (gloo).
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.files import is_number
from simulator.interop.traces.kineto_events import (
    US,
    Events,
    collective_kind,
    dtype_bytes,
    kernel_class,
    operator_class,
    whole_number,
)
from simulator.records import dataclass
from simulator.scoring.trace import CLASSES, Collective, Spans, Trace

# --- collectives of a torch profiler trace -----------------------------------------------


@dataclass(slots=True)
class Groups:
    """Distinct collectives, and what the trace says of their process groups."""

    configured: Any = None
    """``pg_config`` of ``distributedInfo``."""
    found: list[Collective] = field(default_factory=list)
    """The collectives that the codes stand for."""
    _codes: dict[Collective, int] = field(default_factory=dict)
    _configs: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    def code(self, name: str, arguments: Mapping[str, Any]) -> int:
        """Code of a collective by its name and the arguments of its event."""
        kind = collective_kind(_text(arguments.get("Collective name")) or name)
        group = _text(arguments.get("Process Group Name"))
        config = {} if kind == "host_copy" else self._config(group)
        size = arguments.get("Group size", config.get("pg_size"))
        ranks = _ranks(arguments.get("Process Group Ranks", config.get("ranks")))
        described = arguments.get("Process Group Description", config.get("pg_desc"))
        collective = Collective(
            kind=kind,
            group=group or _text(config.get("pg_name")),
            description=_text(described),
            size=int(size) if isinstance(size, int) and is_number(size) else None,
            ranks=ranks if len(ranks) == size else (),
        )
        code = self._codes.setdefault(collective, len(self.found))
        if code == len(self.found):
            self.found.append(collective)
        return code

    def __post_init__(self) -> None:
        """Sort what is configured by the names of groups; a blank stands for any of them."""
        configs = self.configured if isinstance(self.configured, list) else []
        for config in configs:
            if isinstance(config, dict):
                for name in {_text(config.get("pg_name")), ""}:
                    self._configs.setdefault(name, []).append(config)

    def _config(self, name: str) -> Mapping[str, Any]:
        """What is configured of a group; of the only one there is, if no name is given."""
        configs = self._configs.get(name, [])
        return configs[0] if len(configs) == 1 else {}


def input_bytes(arguments: Mapping[str, Any]) -> float:
    """Bytes that a collective takes in; NaN if its arguments do not say.

    NCCL's are counted (``In msg nelems``, ``dtype``); of gloo's the shape of the tensor is known if
    the trace was made with ``record_shapes``.
    """
    elements, dtype = arguments.get("In msg nelems"), arguments.get("dtype")
    if elements is None:
        dims, types = arguments.get("Input Dims"), arguments.get("Input type")
        if not (isinstance(dims, list) and isinstance(types, list) and dims and types):
            return np.nan
        elements, dtype = _product(dims[0]), types[0]
    size = dtype_bytes(_text(dtype))
    return float(elements) * size if size is not None and is_number(elements) else np.nan


def _text(value: Any) -> str:
    """A word or a number as text; a blank for anything else."""
    return str(value) if isinstance(value, (str, int, float)) else ""


def _product(dims: Any) -> float | None:
    if not isinstance(dims, list) or not all(map(is_number, dims)):
        return None
    with np.errstate(over="ignore"):
        return float(np.prod(dims, dtype=float))


def _ranks(value: Any) -> tuple[int, ...]:
    """Members of a group: a list, or its text; empty where Kineto shortened it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    whole = isinstance(value, list) and all(isinstance(x, int) and is_number(x) for x in value)
    return tuple(value) if whole else ()


_CODES = {word: code for code, word in enumerate((*CLASSES, "collective"))}
_PROCESSOR = 0
"""Device type of memory events: c10::DeviceType::CPU."""


def make_trace(
    events: Events, head: Mapping[str, Any], *, where: str, notes: Sequence[str] = ()
) -> Trace:
    """Make the table of one rank.

    Parameters
    ----------
    events : Events
    head : mapping
        Fields of the file beside its events.
    where : str
        The file, for messages.
    notes : sequence of str
        What the reader of the file has to say.

    Raises
    ------
    InputError
        If there is nothing to measure, or more than one rank.
    """
    if wrong := _wrong(events, head):
        raise InputError([f"{where}: {line}" for line in (wrong, *notes)])
    on_device = len(events.device) > 0
    work = events.device.spans(events.first_us) if on_device else _operators(events)
    launched_s = events.launched_s() if on_device else np.zeros(0)
    classes = _classes(events, work, launched_s if on_device else work.start_s, on_device)
    talk = classes == _CODES["collective"]
    info = _mapping(head.get("distributedInfo"))
    groups = Groups(configured=info.get("pg_config"))
    communication, calls, call_bytes = _collectives(events, work, talk, groups, on_device)
    order = np.argsort(work.start_s, kind="stable")[: len(launched_s)]  # none without a device
    steps = events.steps.spans(events.first_us)
    peak = _peak(events, on_device)
    return Trace(
        where=where,
        device=_device_name(head, events) if on_device else "",
        rank=_number(info.get("rank")),
        world=_number(info.get("world_size")),
        compute=Spans(start_s=work.start_s[~talk], end_s=work.end_s[~talk], code=classes[~talk]),
        communication=communication,
        collectives=tuple(groups.found),
        calls=calls,
        call_bytes=call_bytes,
        start_s=work.start_s[order],
        end_s=work.end_s[order],
        launched_s=launched_s[order],
        steps=steps.take(np.argsort(steps.start_s, kind="stable")),
        optimizer_steps=len(events.optimizer),
        span_s=(0.0, (events.last_us - events.first_us) * US),
        allocated_bytes=peak[0],
        reserved_bytes=peak[1],
        notes=tuple(notes),
    )


def _wrong(events: Events, head: Mapping[str, Any]) -> str:
    """Why the trace cannot be measured; empty if it can."""
    devices = sorted(events.devices)
    if len(devices) > 1:
        return f"kernels of {len(devices)} devices ({devices[:8]}): give the trace of one rank"
    if len(events.device):
        return ""
    if head.get("deviceProperties") or len(events.launches):
        return "it names a GPU but holds no kernel: profile with ProfilerActivity.CUDA"
    if not len(events.host) and not len(events.ranges):
        return "no kernel and no operator in it: an empty trace, or not one of torch.profiler"
    return ""


def _classes(events: Events, work: Spans, begun_s: Floats, on_device: bool) -> NDArray[np.int64]:
    """Class of each kernel or operator; what the optimizer step began is the optimizer's."""
    classify = kernel_class if on_device else operator_class
    by_name = np.array([_CODES[classify(name)] for name in events.names], dtype=np.int64)
    found = by_name[work.code]
    mine = _inside(begun_s, events.optimizer.spans(events.first_us))
    return np.where(mine & (found != _CODES["collective"]), _CODES["optimizer"], found)


def _inside(at_s: Floats, spans: Spans) -> NDArray[np.bool_]:
    """Whether each instant lies in one of some spans that do not overlap; False for NaN."""
    if len(spans) == 0:
        return np.zeros(len(at_s), dtype=bool)
    order = np.argsort(spans.start_s)
    which = np.searchsorted(spans.start_s[order], at_s, side="right") - 1
    return (which >= 0) & (at_s < spans.end_s[order][np.maximum(which, 0)])


def _operators(events: Events) -> Spans:
    """Operators of a run on processors, each without the operators that it calls.

    All threads in one pass over events sorted by thread and time: a trace may have a thread for
    every event. The stretches of a thread are those of the operator that was called last.
    """
    spans, threads = events.host.spans(events.first_us), events.host.numbers
    order = np.lexsort((-spans.end_s, spans.start_s, threads))
    columns: tuple[NDArray[Any], ...] = (spans.start_s, spans.end_s, spans.code, threads)
    pieces = _Pieces()
    open_: list[tuple[float, int]] = []
    now, before = 0.0, -1
    for begin, end, code, thread in zip(*(c[order].data for c in columns), strict=True):
        if thread != before:
            _close(open_, pieces, now, math.inf)
            now, before = 0.0, thread
        now = _close(open_, pieces, now, begin)
        open_.append((min(end, open_[-1][0]) if open_ else end, code))
    _close(open_, pieces, now, math.inf)
    return pieces.spans()


class _Pieces:
    """Stretches of time as they are found."""

    def __init__(self) -> None:
        self._start, self._end, self._code = array("d"), array("d"), array("q")

    def add(self, start_s: float, end_s: float, code: int) -> None:
        self._start.append(start_s)
        self._end.append(end_s)
        self._code.append(code)

    def spans(self) -> Spans:
        return Spans(
            start_s=np.array(self._start),
            end_s=np.array(self._end),
            code=np.array(self._code, dtype=np.int64),
        )


def _close(open_: list[tuple[float, int]], pieces: _Pieces, now: float, time: float) -> float:
    """Go on to `time`: end the operators that end before, and count what the last one did."""
    while open_ and open_[-1][0] <= time:
        end, code = open_.pop()
        if end > now:
            pieces.add(now, end, code)
            now = end
    if open_ and time > now:
        pieces.add(now, time, open_[-1][1])
    return max(now, time)


def _collectives(
    events: Events, work: Spans, talk: NDArray[np.bool_], groups: Groups, on_device: bool
) -> tuple[Spans, Spans, Floats]:
    """Communication, the calls in it, and their input bytes.

    On processors, time inside an operator of c10d is communication but no call of its own: gloo
    does the call on another thread and marks it there.
    """
    at = np.flatnonzero(talk)
    arguments = [events.collective(int(i)) if on_device else {} for i in at]
    own = _coded(events, work.take(at), arguments, groups)
    marked = events.ranges.spans(events.first_us)
    ranges = _coded(events, marked, events.range_arguments, groups)
    sizes = [input_bytes(range_argument) for range_argument in events.range_arguments]
    if not on_device:
        return Spans.join(own, ranges), ranges, np.array(sizes, dtype=float)
    both = Spans.join(own, ranges)
    return both, both, np.array([*map(input_bytes, arguments), *sizes], dtype=float)


def _coded(
    events: Events, spans: Spans, arguments: Sequence[Mapping[str, Any]], groups: Groups
) -> Spans:
    """Spans with codes of names -> the same with codes of collectives."""
    names = (events.names[code] for code in spans.code)
    codes = [groups.code(name, argument) for name, argument in zip(names, arguments, strict=True)]
    code = np.array(codes, dtype=np.int64)
    return Spans(start_s=spans.start_s, end_s=spans.end_s, code=code)


def _peak(events: Events, on_device: bool) -> tuple[float | None, float | None]:
    """Peak bytes allocated and reserved on the device, or on the processors of a run on those."""
    peaks = [peak for (kind, _), peak in events.memory.items() if (kind != _PROCESSOR) == on_device]
    allocated = max((peak[0] for peak in peaks), default=None)
    reserved = max((peak[1] for peak in peaks), default=None)
    return allocated, reserved or None


def _device_name(head: Mapping[str, Any], events: Events) -> str:
    listed = head.get("deviceProperties", head.get("computeProperties"))
    for properties in listed if isinstance(listed, list) else []:
        known = _mapping(properties)
        if whole_number(known.get("id")) in events.devices and isinstance(known.get("name"), str):
            return str(known["name"])
    return "GPU"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and is_number(value) else None
