"""The measurement that narrows an answer most: value of information from the error model.

The logarithm of a step time is off by the sum of errors times the shares that they bear on
(``cost/uncertainty.py``). A program of ``kernels/`` hears one of them, a training step of one rank
most, the job itself all; each with an error of its own. Normal errors that are observed narrow as

    Sigma' = Sigma - Sigma h (h' Sigma h + noise)^-1 h' Sigma

whatever is read, so that what a measurement is worth is known before it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from simulator import catalogue
from simulator.answers import Answer, Encoded
from simulator.arrays import Floats
from simulator.calibration.calibrate_machine import Calibration, ClassFit, calibrate
from simulator.cost.operators.matrices import weight_matrices
from simulator.cost.uncertainty import SHARED, Belief, bearing, belief, evidence_spread
from simulator.errors import InputError, problem
from simulator.files import read_records, record
from simulator.frames import DataFrame, frame_of_rows
from simulator.measured.measurements import Call, Measurements
from simulator.planner.prediction import Prediction
from simulator.records import dataclass
from simulator.scoring.anchor import correct
from simulator.units import P90

_OF_CLASS = {
    "gemm": "compute",
    "attention": "attention",
    "stream": "memory_bound",
    "scale_up": "links",
    "fabric": "links",
}
"""Error that a class of calibrated calls bears on, by the table of the profile."""

_QUARTILE = 0.6745
"""Median of the absolute value of a standard normal."""

_MOST_SHAPES = 6
_WHOLE = ("train_step", "job")


@record
class Program:
    """What a program hears of the errors, as ``measurements.toml`` says it."""

    minutes: float
    options: str
    source: str
    error: str = ""
    left: float = 0.0
    unheard: str = ""
    ranks: bool = False
    models: tuple[str, ...] = ()
    software: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def programs() -> dict[str, Program]:
    """Every program by its name."""
    path = catalogue.folder("hardware_profiles") / "measurements.toml"
    return read_records(Program, path, "programs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurable(Encoded):
    """A measurement that can be made, and what it would be worth."""

    program: str
    command: str
    shapes: tuple[str, ...]
    """Of the run, most work first."""
    minutes: float
    gpus: int
    usd: float | None
    """None where the price is not known."""
    hears: str
    """The error, with the share of the step that it bears on."""
    p10_s: float
    p90_s: float
    """Of the step afterwards, around today's prediction."""
    narrower: float
    """By what share the P10 to P90 of the step (logarithm) gets narrower."""
    source: str


@dataclass(frozen=True, kw_only=True, repr=False)
class MeasurementPlan(Answer):
    """What to measure next for one answer, and the answer with what was measured."""

    COMMAND: ClassVar[str] = "measure --plan"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("step_time_s=prediction.step_time_s", "p10_s=before_s.0", "p90_s=before_s.1"),
        *("measurements", "kernels_together", "then", "measured", "caveats"),
    )

    prediction: Prediction
    before_s: tuple[float, float]
    """P10 and P90 of the step with what is known."""
    measurements: tuple[Measurable, ...]
    """The one that narrows most first."""
    kernels_together: float
    """By what share all programs of kernels but train_step narrow it together."""
    then: tuple[str, ...]
    """Commands that make use of them."""
    measured: dict[str, Any] | None = None
    """Errors as documents at hand say, and the narrowed step; None without any."""

    @property
    def line(self) -> str:
        """The first of them in a few words."""
        first = self.measurements[0]
        return f"{first.program}, {first.minutes:g} min: P10 to P90 {first.narrower:.0%} narrower"

    @property
    def caveats(self) -> tuple[str, ...]:
        """What it leaves out."""
        return (
            "What a program hears is heard on this machine; the errors are those of runs whose"
            " source was left out (hardware_profiles/uncertainty), normal and as large as theirs.",
        )

    def to_frame(self) -> DataFrame:
        """One row per measurement."""
        names = ("program", "minutes", "gpus", "usd", "narrower", "p10_s", "p90_s", "command")
        return frame_of_rows([{n: getattr(m, n) for n in names} for m in self.measurements])


def plan_measurements(
    prediction: Prediction, documents: Sequence[Measurements] = ()
) -> MeasurementPlan:
    """Rank what can be measured by how much it narrows a prediction.

    Parameters
    ----------
    prediction : Prediction
        Of the run whose step time is in question.
    documents : sequence of Measurements
        What was measured already, on this machine: it narrows and moves the prediction first.

    Raises
    ------
    InputError
        As :func:`simulator.calibration.calibrate_machine.calibrate`.
    """
    known, shares = _prior(prediction)
    measured, step_s = None, prediction.step_time_s
    if documents:
        known, heard = _heard(prediction, known, shares, documents)
        estimate = correct(prediction.estimate, known, shares)
        step_s = float(estimate.step_time_s[0])
        low, high = _span(known, shares, step_s)
        measured = {"step_time_s": step_s, "p10_s": low, "p90_s": high, "errors": heard}
    rows = {name: _row(name, prediction, known, shares) for name in programs()}
    listed = [
        _measurable(name, prediction, (known, shares), rows[name], step_s)
        for name in programs()
        if _can_run(name, prediction)
        and rows[name][0] @ known.covariance @ rows[name][0] > 0.0
        and np.abs(rows[name][0] * shares[0]).sum() > 0.0
    ]
    alone = [rows[name] for name in programs() if name not in _WHOLE]
    together = _observed(known, np.stack([h for h, _ in alone]), np.array([n for _, n in alone]))
    spread = float(known.log_spread(shares)[0])
    return MeasurementPlan(
        prediction=prediction,
        before_s=_span(known, shares, step_s),
        measurements=tuple(sorted(listed, key=lambda m: -m.narrower)),
        kernels_together=1.0 - float(together.log_spread(shares)[0]) / spread,
        then=_then(prediction),
        measured=measured,
    )


def _prior(prediction: Prediction) -> tuple[Belief, Floats]:
    """Errors before anything is measured here, and what they bear on in this run.

    As wide as runs near it were off, what the terms do not explain being the software's.
    """
    scenario, estimate = prediction.scenario, prediction.estimate
    machine = scenario.cluster, scenario.software, scenario.workload
    shares = bearing(estimate, experts=scenario.workload.architecture.is_moe)
    shares[:, [SHARED.index("kernels"), SHARED.index("layout")]] = 1.0
    terms = float(belief(*machine).log_spread(shares)[0])
    wide = float(evidence_spread(estimate, machine[2], machine[0], machine[1])[0])
    return belief(*machine, spread=float(np.sqrt(max(wide**2 - terms**2, 0.0)))), shares


def _row(name: str, prediction: Prediction, known: Belief, shares: Floats) -> tuple[Floats, float]:
    """What a program hears of each error, and the variance of what it does not."""
    program = programs()[name]
    if name not in _WHOLE:
        heard = np.zeros(len(SHARED))
        heard[SHARED.index(program.error)] = 1.0
        return heard, program.left**2 + _unheard(program, prediction) ** 2
    heard = shares[0].copy()
    if name == "job":
        return heard, known.run**2
    rank = 1.0 - heard[SHARED.index("links")]
    heard[: len(SHARED)] = np.where(np.isin(SHARED, _OF_TERMS), heard / max(rank, 1e-9), heard)
    for alone in ("links", "scale", "layout"):
        heard[SHARED.index(alone)] = 0.0
    return heard, known.run**2 + known.layout**2


_OF_TERMS = ("compute", "attention", "memory_bound", "launch")


def _can_run(name: str, prediction: Prediction) -> bool:
    """Whether the program can do what a rank of the run does; train_step knows few layouts."""
    if name != "train_step":
        return True
    scenario, row = prediction.scenario, prediction.layout
    model, recipe, known = (
        scenario.workload.architecture,
        scenario.workload.recipe,
        programs()[name],
    )
    whole = {"pp": 1, "cp": 1, "ep": 1, "recompute_layers": 0, "offload_layers": 0} | dict.fromkeys(
        ("optimizer_offload", "parameter_offload"), "none"
    )
    return (
        model.name in known.models
        and scenario.software.name in known.software
        and all(row[field] == value for field, value in whole.items())
        and not (int(row["tp"]) > 1 and (model.is_moe or int(row["dp"]) == 1))
        and recipe.matrix_type == "bf16"
        and not recipe.lora_rank
    )


def _unheard(program: Program, prediction: Prediction) -> float:
    """Spread of a figure of the products that the program does not see."""
    if not program.unheard:
        return 0.0
    scenario = prediction.scenario
    device, kernels = scenario.cluster.accelerator, scenario.software.kernels
    table = device.gemm.get(kernels.gemm_library, {})
    product = table.get(scenario.workload.recipe.matrix_type)
    return float(getattr(getattr(product, program.unheard, None), "spread", None) or 0.0)


def _observed(known: Belief, heard: Floats, noise: Floats, read: Floats | None = None) -> Belief:
    """The belief after some linear observations; `read` are their logarithms, else what is meant.

    >>> from simulator.cost.uncertainty import Belief
    >>> import numpy as np
    >>> one = Belief(mean=np.zeros(1), covariance=np.eye(1), kernels=0.0, layout=0.0, run=0.0)
    >>> float(_observed(one, np.ones((1, 1)), np.ones(1), np.ones(1)).mean[0])
    0.5
    """
    spread = heard @ known.covariance @ heard.T + np.diag(noise)
    gain = np.linalg.solve(spread, heard @ known.covariance).T
    off = np.zeros(len(noise)) if read is None else read - heard @ known.mean
    return replace(
        known,
        mean=known.mean + gain @ off,
        covariance=known.covariance - gain @ heard @ known.covariance,
    )


def _span(known: Belief, shares: Floats, step_s: float) -> tuple[float, float]:
    reach = float(np.exp(P90 * known.log_spread(shares)[0]))
    return step_s / reach, step_s * reach


def _measurable(
    name: str,
    prediction: Prediction,
    now: tuple[Belief, Floats],
    row: tuple[Floats, float],
    step_s: float,
) -> Measurable:
    """One program with what it would be worth alone."""
    (known, shares), (heard, noise), program = now, row, programs()[name]
    after = _observed(known, heard[None, :], np.array([noise]))
    low, high = _span(after, shares, step_s)
    cluster, price = prediction.scenario.cluster, prediction.outcome.price.usd_per_gpu_hour
    server = min(cluster.node.accelerators, cluster.gpus)
    gpus = cluster.gpus if name == "job" else server if program.ranks else 1
    minutes = max(program.minutes, 20.0 * step_s / 60.0) if name == "job" else program.minutes
    usd = None if price is None else float(price) * gpus * minutes / 60.0
    return Measurable(
        program=name,
        command=_command(name, program, prediction),
        shapes=_shapes(name, prediction),
        minutes=minutes,
        gpus=gpus,
        usd=usd,
        hears=_hears(name, program, shares),
        p10_s=low,
        p90_s=high,
        narrower=1.0 - float(after.log_spread(shares)[0] / known.log_spread(shares)[0]),
        source=program.source,
    )


def _hears(name: str, program: Program, shares: Floats) -> str:
    if name == "job":
        return "every error of this run"
    if name == "train_step":
        return "every error of one rank's compute and of the software on it"
    share = float(shares[0, SHARED.index(program.error)])
    return f"{program.error.replace('_', ' ')}, {share:.0%} of the step"


def _command(name: str, program: Program, prediction: Prediction) -> str:
    """What is typed on the machine."""
    scenario, row = prediction.scenario, prediction.layout
    if name == "job":
        return "the job itself for 20 steps, its log kept (train.log)"
    groups = sorted({int(row[d]) for d in ("tp", "cp", "ep", "dp") if int(row[d]) > 1})
    server = min(scenario.cluster.node.accelerators, scenario.cluster.gpus)
    inside = ",".join(str(n) for n in groups if n <= server) or str(server)
    said = program.options.format(
        dtype=_dtype(scenario.workload.recipe.matrix_type),
        groups=inside,
        model=scenario.workload.architecture.name,
    )
    if name == "train_step":
        recipe = scenario.workload.recipe
        said += f" --sequence {recipe.sequence_length} --micro-batch {int(row['micro_batch'])}"
        said += f" --tp {int(row['tp'])}"
        said += " --sequence-parallel" * bool(row["sequence_parallel"] and int(row["tp"]) > 1)
        said += f" --recompute {row['recompute']}"
        sharding = "zero3" if row["sharding"] == "zero3" else "zero2"  # DDP runs in no fake group
        said += f" --sharding {sharding if int(row['dp']) > 1 else 'ddp'}"
        said += " --compile" * ("norm" in scenario.software.kernels.fused)
        said += f" --fake-world {scenario.cluster.gpus}"
    return f"python kernels/{name}.py {said} --minutes {program.minutes:g} --out {name}.json"


def _dtype(kind: str) -> str:
    return "fp8" if kind.startswith(("fp8", "mxfp8")) else kind


def _shapes(name: str, prediction: Prediction) -> tuple[str, ...]:
    """Shapes of the run that the program stands for."""
    scenario, row = prediction.scenario, prediction.layout
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    tokens = recipe.sequence_length * int(row["micro_batch"]) // int(row["cp"])
    if name == "gemm" and arch.traced is None:
        degrees = {d: np.array([int(row[d])]) for d in ("tp", "pp", "ep", "etp")}
        work = {
            f"{tokens} x {int(np.ravel(m.rows)[0])} x {int(np.ravel(m.columns)[0])}": float(
                np.ravel(m.parameters)[0]
            )
            for m in weight_matrices(arch, kernels=scenario.software.kernels, **degrees)
            if m.name not in ("table", "positions") and not m.routed
        }
        return tuple(sorted(work, key=lambda shape: -work[shape])[:_MOST_SHAPES])
    if name == "collectives":
        degrees_used = [d for d in ("tp", "cp", "ep", "dp") if int(row[d]) > 1]
        return tuple(f"{d} {int(row[d])}" for d in degrees_used)
    if name in ("attention", "memory_bound", "train_step"):
        return (f"{tokens} tokens a rank, sequences of {recipe.sequence_length}",)
    return ()


def _rank_s(call: Call, prediction: Prediction) -> float:
    """Predicted seconds of a micro-batch and an update on one rank, without the others."""
    row, recipe = prediction.layout, prediction.scenario.workload.recipe
    if not _can_run("train_step", prediction):
        raise InputError(f"{call.place}: no step of this run's rank: train_step has no such layout")
    asked = {
        "model": prediction.scenario.workload.architecture.name,
        "sequence": recipe.sequence_length,
        "micro_batch": int(row["micro_batch"]),
        "tp": int(row["tp"]),
        "recompute": row["recompute"],
        "accumulate": 1,
    }
    for name, value in asked.items():
        stated = call.shape.get(name, call.note.get(name, value))
        if stated != value:
            rule = f"must be a step of this run's rank ({name} {value}), as --plan spells it"
            raise InputError(problem(call.place, name, rule, stated))
    seconds = {name: float(s[0]) for name, s in prediction.estimate.terms_s.items()}
    batches = recipe.global_batch / (int(row["micro_batch"]) * int(row["dp"]))
    work_s = sum(seconds[name] for name in (*_OF_PASSES, "launch", "recompute"))
    return work_s / batches + seconds["optimizer"]


_OF_PASSES = ("gemm", "attention", "memory_bound")


def _heard(
    prediction: Prediction, known: Belief, shares: Floats, documents: Sequence[Measurements]
) -> tuple[Belief, dict[str, dict[str, float]]]:
    """The belief after what was measured, and what each class of calls said."""
    rows: list[Floats] = []
    noise: list[float] = []
    read: list[float] = []
    said = {}
    for call in (call for document in documents for call in document.calls):
        if call.kernel == "train_step":
            heard, left = _row("train_step", prediction, known, shares)
            value = math.log(call.seconds / _rank_s(call, prediction))
            rows.append(heard)
            noise.append(left)
            read.append(value)
            said["a training step of one rank"] = {"factor": math.exp(value), "calls": 1}
    cluster = prediction.scenario.cluster
    documents = [d for d in documents if any(call.kernel != "train_step" for call in d.calls)]
    server = cluster.with_gpus(cluster.node.accelerators)
    if documents:
        calibration = calibrate(documents, accelerator=cluster.accelerator, cluster=server)
    fits = list(_fits(calibration)) if documents else []
    if not fits and not rows:
        raise InputError("measure: --have: nothing in these documents bears on this run")
    for error, fit in fits:
        heard = np.zeros(len(SHARED))
        heard[SHARED.index(error)] = 1.0
        rows.append(heard)
        program = next(p for p in programs().values() if p.error == error)
        left = float(fit.left_out.median) / _QUARTILE
        noise.append(left**2 + _unheard(program, prediction) ** 2)
        read.append(float(np.median(np.log(fit.measured_s / fit.before_s))))
        said[fit.name] = {"factor": float(np.exp(read[-1])), "calls": fit.calls}
    after = _observed(known, np.stack(rows), np.array(noise), np.array(read))
    return after, said


def _fits(calibration: Calibration) -> Iterable[tuple[str, ClassFit]]:
    for fit in (*calibration.accelerator, *calibration.node, *calibration.fabric):
        if fit.path[0] in _OF_CLASS:
            yield _OF_CLASS[fit.path[0]], fit


def _then(prediction: Prediction) -> tuple[str, ...]:
    """What makes use of the documents."""
    cluster, where = prediction.scenario.cluster, prediction.scenario.where
    base, name = cluster.accelerator.name, cluster.name
    file = where if where.endswith((".toml", ".yaml")) else "run.toml"
    step = " --have train_step.json" if _can_run("train_step", prediction) else ""
    return (
        f"foreshard measure --plan {file} --have gemm.json --have attention.json{step}",
        f"foreshard calibrate gemm.json attention.json memory_bound.json --base {base}"
        f" --out my-{base}.toml",
        f"foreshard calibrate collectives.json --base-cluster {name} --out-node my-node.toml"
        " --out-cluster my-cluster.toml",
        f"foreshard predict {file} --anchored-by train.log --anchor-scenario {file}",
    )
