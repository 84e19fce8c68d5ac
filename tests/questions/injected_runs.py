"""Runs with one cause put into them, played by the discrete-event simulator and blurred.

The truth of a run is not the closed form that a diagnosis inverts: its step is played event by
event (a slow server as a deviation of one replica), every part of it is off by a log-normal factor,
as predictions are, and its step times vary as such causes make them vary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from simulator.events.deviations.deviations import Deviation
from simulator.events.simulated_step import simulate
from simulator.planner.prediction import Prediction, predict, with_times
from simulator.questions.diagnose.answer import Seen, course_of, spoken
from simulator.questions.diagnose.causes import added_s, can_have, causes, with_cause
from simulator.scenario import make_scenario
from simulator.scoring.memory_reading import memory_of_kind_gib
from simulator.scoring.trace_gap import predicted_parts
from simulator.units import GIB

RUNS = {
    "one sequence a GPU": {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 2048, "global_batch": 64},
        "cluster": {"name": "dgx-a100", "gpus": 64},
        "layout": {"tp": 2, "sharding": "zero1"},
    },
    "small model": {
        "model": {"name": "llama-3.2-1b"},
        "training": {"sequence_length": 1024, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 16},
        "layout": {"tp": 2},
    },
    "dense, two servers": {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 8192, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 16},
        "layout": {"tp": 2, "pp": 1},
    },
    "dense, pipeline": {
        "model": {"name": "llama-3.1-70b"},
        "training": {"sequence_length": 8192, "global_batch": 128},
        "cluster": {"name": "dgx-h100", "gpus": 64},
        "layout": {"tp": 8, "pp": 4},
    },
    "experts": {
        "model": {"name": "mixtral-8x7b"},
        "training": {"sequence_length": 4096, "global_batch": 256},
        "cluster": {"name": "dgx-a100", "gpus": 64},
        "layout": {"tp": 2, "pp": 2, "ep": 4},
    },
}

_SEEN_IN_TRACE = ("gemm", "attention", "memory_bound", "tp", "cp", "ep", "data", "pipeline")


@dataclass(frozen=True)
class Injected:
    """A run with a cause of some size in it."""

    run: str
    cause: str
    amount: float | None
    prediction: Prediction
    seen: Seen


@cache
def predictions() -> dict[str, Prediction]:
    """Of the runs as they should be."""
    return {name: predict(make_scenario(document)) for name, document in RUNS.items()}


def injected(
    run: str, prediction: Prediction, name: str, rng: np.random.Generator, *, traced: bool
) -> Injected | None:
    """Put a cause into a run; None where the run cannot have it, or hardly takes longer with it."""
    cause = causes()[name]
    if not can_have(cause, prediction):
        return None
    amount, changed, added = None, prediction, 0.0
    deviations: tuple[Deviation, ...] = ()
    plain_s = base_s(run)
    if not cause.is_switch:
        amount = cause.typical * math.exp(cause.spread * float(rng.standard_normal()))
        amount = float(np.clip(amount, cause.least or None, cause.most or None))
    if cause.adds_seconds:
        amount = (amount or 0.0) * plain_s
        added = added_s(prediction, cause, amount)
    elif cause.slows_a_server:
        deviations = (Deviation(replica=0, stage=0, compute=amount or 1.0),)
    else:
        priced = with_cause(prediction, cause, amount or 1.0)
        if priced is None:
            return None
        changed = priced
    step_s, parts = _played(changed, deviations)
    if deviations:
        parts = predicted_parts(prediction) | {}
        parts["data"] = parts.get("data", 0.0) + step_s - plain_s
    if cause.adds_seconds:
        parts[cause.shows] = parts.get(cause.shows, 0.0) + added
    if abs((step_s + added) / plain_s - 1.0) < 0.1:
        return None
    blurred = {part: s * math.exp(0.05 * rng.standard_normal()) for part, s in parts.items()}
    measured_s = sum(blurred.values())
    steps = measured_s * _course(cause.series, rng)
    peak = GIB * memory_of_kind_gib(changed.estimate, 0, "allocated")
    seen = Seen(
        measured_s=float(np.median(steps)),
        memory_bytes={"allocated": peak * math.exp(0.03 * rng.standard_normal())},
        lines=_lines(name, rng),
        parts_s=blurred if traced else None,
        course=course_of(steps),
    )
    return Injected(run=run, cause=name, amount=amount, prediction=prediction, seen=seen)


@cache
def base_s(run: str) -> float:
    """Step of a run as it should be, played."""
    return _played(predictions()[run])[0]


def _played(
    prediction: Prediction, deviations: tuple[Deviation, ...] = ()
) -> tuple[float, dict[str, float]]:
    scenario = prediction.scenario
    setting: Any = scenario.workload, scenario.cluster, scenario.software
    step = simulate(prediction.estimate.layouts, *setting, deviations=deviations)
    whole = replace(prediction, estimate=with_times(prediction.estimate, [step]))
    return step.step_time_s, predicted_parts(whole)


def _lines(cause: str, rng: np.random.Generator) -> tuple[str, ...]:
    """What half of the logs say: NCCL of its channels, the trainer of allocator retries."""
    staged, sockets = "NET/IB/3", "NET/Socket/0"
    way = {"no_gpudirect": staged, "socket_transport": sockets}.get(cause, f"{staged}/GDRDMA")
    lines = [f"NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via {way}"]
    if cause == "allocator_retries":
        lines.append("14 CUDA memory allocation retries.")
    return spoken(lines) if rng.random() < 0.5 else ()


def _course(series: str, rng: np.random.Generator) -> np.ndarray:
    """Step times over their median, of 200 steps."""
    steps = np.exp(0.008 * rng.standard_normal(200))
    if series == "tails":
        slow = rng.random(200) < 0.08
        steps = steps * np.where(slow, 1.0 + rng.exponential(0.8, 200) + 0.25, 1.0)
    elif series == "drift":
        steps = steps * np.linspace(0.94, 1.06, 200)
    elif series == "periodic":
        steps = steps * np.where(np.arange(200) % 40 < 15, 1.12, 1.0)
    return steps / np.median(steps)
