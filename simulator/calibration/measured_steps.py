"""Measured training steps of the machine at hand beside their predictions, cause by cause.

A prediction is that of the planner, from the profiles alone. What a step spent on what is read off
one more step under torch's profiler, scaled to the time of the others: the profiler slows a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from simulator.calibration.local_profiles import NAME
from simulator.errors import InputError
from simulator.layout.layouts import accelerators
from simulator.measured.measurements import Call, Measurements
from simulator.planner.prediction import Prediction, predict
from simulator.records import dataclass
from simulator.scenario import make_scenario

CAUSES = {
    "products": ("gemm",),
    "attention": ("attention",),
    "memory-bound, copies": ("memory_bound",),
    "optimizer": ("optimizer",),
    "communication, waiting": ("tp", "dp", "fsdp", "pp", "bubble_warmup", "bubble_drain"),
    "host": ("launch",),
    "core sharing": ("slowdown",),
}
"""Cause -> terms of a prediction; whatever else there is belongs to the host."""

_WAITING = "communication, waiting"

_OPERATORS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("aten::_scaled_dot_product", "aten::_flash_attention"),
    "memory-bound, copies": (
        *("aten::gelu", "aten::native_layer_norm", "aten::_log_softmax", "aten::nll_loss"),
        *("aten::add", "aten::sum", "aten::mul", "aten::div", "aten::exp", "aten::sub"),
        *("aten::copy_", "aten::cat", "aten::fill_", "aten::zero_", "aten::embedding"),
        *("aten::split_with_sizes_copy", "aten::_foreach", "aten::index", "aten::scatter"),
        *("aten::log", "aten::amax", "aten::max", "aten::neg", "aten::clone", "fsdp::"),
    ),
    "optimizer": ("aten::_fused_adam", "Optimizer."),
    "communication, waiting": ("c10d::", "_c10d_functional::", "FSDP::", "gloo:"),
}
"""Cause -> how the names of torch's operators begin, own time only."""

TARGETS = {"local": 0.10, "ddp": 0.10, "fsdp2": 0.20, "tp": 0.20, "pp": 0.20}
"""Error that each kind of step should stay below on a machine that does nothing else."""


@dataclass(frozen=True, kw_only=True)
class LocalStep:
    """One kind of step."""

    mode: str
    layout: str
    """As the planner describes it."""
    measured_s: float
    spread: float
    """Of the readings: distance of the 10th to the 90th percentile over the median."""
    steps: int
    foreign_cores: float
    """What other processes took meanwhile, mean over the steps."""
    predicted_s: float
    predicted: Mapping[str, float]
    """Cause -> seconds; they add up to `predicted_s`."""
    measured: Mapping[str, float]
    """The same of the measured step."""
    hidden_s: float
    """Communication that the prediction hides behind compute."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1.0

    @property
    def target(self) -> float:
        """What the error should stay below."""
        return TARGETS.get(self.mode, 0.2)

    @property
    def within(self) -> bool:
        """Whether it does."""
        return abs(self.error) <= self.target

    @property
    def gap(self) -> dict[str, float]:
        """Cause -> seconds that the prediction is longer."""
        return {cause: self.predicted[cause] - self.measured[cause] for cause in CAUSES}


def local_steps(document: Measurements) -> list[LocalStep]:
    """Predict every measured step with the profiles called `NAME` that the catalogue has."""
    calls = [call for call in document.calls if call.kernel == "train_step"]
    if not calls:
        raise InputError(f"{document.path}: records: no training steps")
    return [_step(call) for call in calls]


def scenario_of(call: Call) -> dict[str, Any]:
    """Return the scenario of a measured step, as a file would say it."""
    shape = {name: int(size) for name, size in call.shape.items()}
    ranks = accelerators(shape["tp"], shape["pp"], 1, shape["dp"])
    return {
        "model": {
            "model_type": "gpt2",
            "name": str(call.note.get("model", "gpt")),
            "n_embd": shape["hidden"],
            "n_layer": shape["layers"] or shape["model_layers"],
            "n_head": shape["heads"],
            "n_inner": shape["ffn"],
            "vocab_size": shape["vocabulary"],
            "n_positions": shape["longest"],
            "tie_word_embeddings": bool(shape["tied"]),
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
        },
        "training": {
            "sequence_length": shape["sequence"],
            "precision": "fp32",
            "global_batch": shape["dp"] * shape["micro_batch"] * shape["accumulate"],
        },
        "cluster": {"name": NAME, "gpus": ranks, "software": NAME},
        "layout": {
            "dp": shape["dp"],
            "tp": shape["tp"],
            "pp": shape["pp"],
            "micro_batch": shape["micro_batch"],
            "sharding": str(call.note.get("sharding", "ddp")),
            "sequence_parallel": False,
            "recompute": "none",
        },
    }


def _step(call: Call) -> LocalStep:
    found = predict(make_scenario(scenario_of(call), where=call.place))
    readings = np.asarray(call.readings_s)
    low, high = np.percentile(readings, [10, 90])
    return LocalStep(
        mode=str(call.note.get("mode", "step")),
        layout=found.estimate.layouts.describe(),
        measured_s=call.seconds,
        spread=float((high - low) / call.seconds),
        steps=len(readings),
        foreign_cores=float(np.mean(call.note.get("foreign_cores") or [0.0])),
        predicted_s=found.step_time_s,
        predicted=_predicted(found),
        measured=_measured(call),
        hidden_s=float(sum(seconds[0] for seconds in found.estimate.hidden_s.values())),
    )


def _predicted(prediction: Prediction) -> dict[str, float]:
    terms = {name: float(seconds[0]) for name, seconds in prediction.estimate.terms_s.items()}
    causes = {cause: sum(terms.pop(name, 0.0) for name in names) for cause, names in CAUSES.items()}
    causes["host"] += sum(terms.values())
    return causes


def _measured(call: Call) -> dict[str, float]:
    """Own times of operators by cause, scaled to what the thread worked; it waited for the rest.

    What is not the own time of any operator is the host's.
    """
    operators: Iterable[Mapping[str, Any]] = call.note.get("operators") or ()
    causes = dict.fromkeys(CAUSES, 0.0)
    for operator in operators:
        name = str(operator["name"])
        for cause, beginnings in _OPERATORS.items():
            if name.startswith(beginnings):
                causes[cause] += float(operator["host_s"])
                break
    waiting_s = causes.pop(_WAITING)
    profiled_s = float(call.note.get("profiled_s") or 0.0) - waiting_s
    causes["host"] = max(profiled_s - sum(causes.values()), 0.0)
    work_s = min(float(np.median(call.note.get("cpu_times_s") or call.seconds)), call.seconds)
    scale = work_s / max(sum(causes.values()), 1e-9)
    found = {cause: seconds * scale for cause, seconds in causes.items()}
    return found | {_WAITING: call.seconds - sum(found.values())}
