"""What is kept of the events of a torch profiler trace: a few numbers of each, in flat arrays."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.errors import InputError
from simulator.files import is_number
from simulator.interop.traces.kineto_classes import kernel_class
from simulator.scoring.trace import Spans

US = 1e-6
"""Seconds of a microsecond, the unit of a trace."""

_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_HOST = {"cpu_op", "operator", "user_annotation"}
_LAUNCH = {"cuda_runtime", "cuda_driver", "runtime"}
"""Categories in lower case; ``Operator``, ``Runtime``, ``Memcpy`` were those of torch 1.8."""

_KEPT = _DEVICE | _HOST | _LAUNCH

_STEP = re.compile(r"ProfilerStep#(\d{1,15})$")
_OPTIMIZER_STEP = "Optimizer.step#"
_HOST_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc):|record_param_comms$")
_NO_NUMBER = -1
_EXTERNAL = ("External id", "external id")
_DESCRIBING = (
    *("Collective name", "In msg nelems", "dtype", "Group size", "Input Dims", "Input type"),
    *("Process Group Name", "Process Group Description", "Process Group Ranks", *_EXTERNAL),
)
"""Arguments of a collective that are kept; of gloo's, only the shape of the input is known."""


MOST_EVENTS = 10_000_000
"""Events that are kept; the first beyond is an error. Each takes some hundred bytes."""


class Columns:
    """Events as they come: begin and length in microseconds, what it is, and a number beside it."""

    def __init__(self) -> None:
        self._ts, self._dur = array("d"), array("d")
        self._code, self._number = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._ts)

    def add(self, ts: float, dur: float, code: int, number: int = _NO_NUMBER) -> None:
        """Append one event."""
        self._ts.append(ts)
        self._dur.append(max(dur, 0.0))
        self._code.append(code)
        self._number.append(number)

    def spans(self, zero_us: float) -> Spans:
        """Return all events in seconds after `zero_us`."""
        begin_us = np.array(self._ts) - zero_us
        return Spans(
            start_s=begin_us * US,
            end_s=(begin_us + np.array(self._dur)) * US,
            code=np.array(self._code, dtype=np.int64),
        )

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The number beside each event: correlation of a launch, thread of an operator."""
        return np.array(self._number, dtype=np.int64)


class Events:
    """Everything kept of a trace; `add` takes one event, in any order."""

    def __init__(self, where: str = "trace") -> None:
        self._where = where
        self.names: list[str] = []
        """Names that the codes of `device`, `host` and `ranges` stand for."""
        self.device = Columns()
        """Kernels and copies, with their correlation."""
        self.launches = Columns()
        """Calls of the CUDA runtime and driver, with their correlation."""
        self.host = Columns()
        """Operators, with their thread."""
        self.ranges = Columns()
        """Collectives of gloo, which the host marks on its own threads."""
        self.steps, self.optimizer = Columns(), Columns()
        self.arguments: dict[int, Mapping[str, Any]] = {}
        """Arguments of collective kernels, by their position in `device`."""
        self.range_arguments: list[Mapping[str, Any]] = []
        self.described: dict[int, Mapping[str, Any]] = {}
        """Arguments of collectives as the host issued them, by external id."""
        self.devices: set[int] = set()
        self.memory: dict[tuple[int, int], list[float]] = {}
        """Peak allocated and reserved bytes by device type and index."""
        self.first_us, self.last_us = math.inf, -math.inf
        self.count = 0
        """Events that were kept."""
        self.malformed = 0
        """Events without a time, or on a thread, that can be."""
        self._codes: dict[str, int] = {}
        self._threads: dict[Any, int] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Keep what matters of one event.

        Raises
        ------
        InputError
            If there are more events than `MOST_EVENTS`.
        """
        phase, name, kind = event.get("ph"), event.get("name"), event.get("cat")
        if phase == "X" and isinstance(name, str) and isinstance(kind, str):
            if (kind := kind.lower()) not in _KEPT:
                return
            ts, dur = event.get("ts"), event.get("dur")
            if is_number(ts) and is_number(dur) and _is_place(event):
                self._span(event, name, kind, float(ts), float(dur))
            else:
                self.malformed += 1
        elif phase == "i" and name == "[memory]":
            self._allocation(_arguments(event))

    def _span(self, event: Mapping[str, Any], name: str, kind: str, ts: float, dur: float) -> None:
        if kind in _DEVICE:
            self._of_device(event, name, ts, dur)
        elif kind in _LAUNCH:
            self.launches.add(ts, dur, 0, whole_number(_arguments(event).get("correlation")))
        else:
            self._of_host(event, name, kind, ts, dur)
        self.count += 1
        if self.count > MOST_EVENTS:
            raise InputError(f"{self._where}: more than {MOST_EVENTS} events: profile fewer steps")
        self.first_us, self.last_us = min(self.first_us, ts), max(self.last_us, ts + dur)

    def _of_device(self, event: Mapping[str, Any], name: str, ts: float, dur: float) -> None:
        arguments = _arguments(event)
        if kernel_class(name) == "collective":
            self.arguments[len(self.device)] = _describing(arguments)
        self.device.add(ts, dur, self._code(name), whole_number(arguments.get("correlation")))
        self.devices.add(whole_number(arguments.get("device", event.get("pid"))))

    def _of_host(
        self, event: Mapping[str, Any], name: str, kind: str, ts: float, dur: float
    ) -> None:
        if step := _STEP.match(name):
            self.steps.add(ts, dur, int(step.group(1)))
        elif name.startswith(_OPTIMIZER_STEP):
            self.optimizer.add(ts, dur, 0)
        elif _HOST_COLLECTIVE.match(name):
            arguments = _describing(_arguments(event))
            if (issued := _external(arguments)) != _NO_NUMBER:
                self.described.setdefault(issued, {"Collective name": name, **arguments})
            if name.startswith("gloo:"):
                self.ranges.add(ts, dur, self._code(name))
                self.range_arguments.append(arguments)
        elif kind != "user_annotation":
            thread = self._threads.setdefault(
                (event.get("pid"), event.get("tid")), len(self._threads)
            )
            self.host.add(ts, dur, self._code(name), thread)

    def _code(self, name: str) -> int:
        code = self._codes.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
        return code

    def _allocation(self, arguments: Mapping[str, Any]) -> None:
        place = (
            whole_number(arguments.get("Device Type")),
            whole_number(arguments.get("Device Id")),
        )
        peak = self.memory.setdefault(place, [0.0, 0.0])
        for i, field in enumerate(("Total Allocated", "Total Reserved")):
            size = arguments.get(field)
            if is_number(size):
                peak[i] = max(peak[i], float(size))

    def collective(self, position: int) -> Mapping[str, Any]:
        """Arguments of a collective kernel, its own or those of the call that issued it."""
        argument = self.arguments.get(position, {})
        return (
            argument
            if "Collective name" in argument
            else {**self.described.get(_external(argument), {}), **argument}
        )

    def launched_s(self) -> Floats:
        """When the host began to launch each event of `device`; NaN if unknown."""
        keys = self.launches.numbers
        order = np.argsort(keys, kind="stable")
        wanted = self.device.numbers
        if len(order) == 0:
            return np.full(len(wanted), np.nan)
        at = np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)
        known = (keys[order][at] == wanted) & (wanted != _NO_NUMBER)
        return np.where(known, self.launches.spans(self.first_us).start_s[order][at], np.nan)


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _describing(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: arguments[name] for name in _DESCRIBING if name in arguments}


def _external(arguments: Mapping[str, Any]) -> int:
    return next(
        (whole_number(arguments[name]) for name in _EXTERNAL if name in arguments), _NO_NUMBER
    )


def _is_place(event: Mapping[str, Any]) -> bool:
    """Whether process and thread of an event are numbers or words."""
    return all(isinstance(event.get(name), (int, str, type(None))) for name in ("pid", "tid"))


def whole_number(value: Any) -> int:
    """A number that identifies something; -1 if there is none."""
    good = isinstance(value, int) and abs(value) < 2**63
    return value if good else _NO_NUMBER
