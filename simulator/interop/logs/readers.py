"""The reader of each kind of training log, and the kind of a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from simulator.errors import InputError
from simulator.interop.logs.histories import is_history, read_history
from simulator.interop.logs.megatron_log import read_megatron_log
from simulator.interop.logs.mlperf_log import read_mlperf_log
from simulator.interop.logs.step_lines import read_step_lines
from simulator.interop.logs.torchtitan_log import read_torchtitan_log
from simulator.measured.log import MeasuredLog
from simulator.measured.log_lines import kind_of, log_kinds

LogReader = Callable[..., MeasuredLog]

_OWN: dict[str, LogReader] = {
    "megatron": read_megatron_log,
    "torchtitan": read_torchtitan_log,
    "mlperf": read_mlperf_log,
    "history": read_history,
}


def reader_of(kind: str) -> LogReader:
    """What reads a kind of log: (path, recipe, gpus, warm_up=..., progress=...)."""
    return _OWN.get(kind) or partial(read_step_lines, kind)


def log_kind(path: Path | str) -> str:
    """The kind of a log or of a history of a run, by what stands in it.

    Raises
    ------
    InputError
        If it is of none, with the kinds that are read.
    """
    kind = "history" if is_history(path) else kind_of(path)
    if not kind:
        known = ", ".join(sorted(x.printed_by for x in log_kinds().values()))
        rule = f"must be a log of {known}, or a history (CSV, JSON lines, TensorBoard, MLflow)"
        raise InputError(f"{path}: log: {rule}; no line of any is in it")
    return kind
