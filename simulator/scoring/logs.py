"""A training log beside the prediction of its scenario: step time, throughput, memory, terms."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import field, fields, replace
from typing import Any, ClassVar

from simulator.answers import plain
from simulator.errors import InputError
from simulator.layout.layout_section import LayoutSection
from simulator.measured.checks import Readings, implausible, utilisation
from simulator.measured.log import MeasuredLog
from simulator.measured.replay import Run
from simulator.measured.rows import LAYOUT_COLUMNS
from simulator.planner.prediction import Prediction, predict
from simulator.quoting import option_word
from simulator.records import dataclass
from simulator.scenario import Scenario, make_scenario
from simulator.scoring.memory_reading import first_step_gib, memory_of_kind_gib
from simulator.scoring.scores import SCORED_MEMORY
from simulator.software.software_section import first_running
from simulator.units import GIB
from simulator.workload.recipe import Recipe

SHORTEST_STEP_S = 1e-4
"""No training step takes less: a host alone needs longer to launch its kernels. What a log gives as
less is in another unit."""

_LAYOUT = frozenset(one.name for one in fields(LayoutSection))
_TRAINING = frozenset(one.name for one in fields(Recipe))
_FIELDS = {
    "gpus": "cluster.gpus",
    "layers": "the layers of the model",
    "hidden": "the width of the model",
    "heads": "the attention heads of the model",
    **{name: f"training.{name}" for name in _TRAINING},
}
"""What a log states and is no field of the layout -> where a scenario has it."""
_SOFTWARE = "software."
"""What a log states of the section software begins so."""
_MEMORY = (*SCORED_MEMORY, "device", "theoretical")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One number, predicted and measured; the error is None where the two are not of one kind."""

    KEYS: ClassVar[tuple[str, ...]] = ("name", "unit", "predicted", "measured", "error")

    name: str
    unit: str
    predicted: float
    measured: float
    comparable: bool = True

    @property
    def error(self) -> float | None:
        """``predicted / measured - 1``."""
        return self.predicted / self.measured - 1.0 if self.comparable else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogComparison:
    """A log and the prediction of the run that it is of."""

    log: MeasuredLog
    prediction: Prediction
    from_log: Mapping[str, Any]
    """Layout fields that the scenario leaves open and the log states."""
    training_from_log: Mapping[str, Any] = field(default_factory=dict)
    """The same of the training."""
    software_from_log: str | None = None
    """The software profile, where the scenario names none and the log's arguments ask for one."""
    software_fields_from_log: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the section software that the scenario leaves open and the log states."""

    @property
    def step_error(self) -> float:
        """Relative error of the predicted step time: ``predicted / measured - 1``."""
        return self.prediction.step_time_s / self.log.median_step_s - 1.0

    @property
    def measured_mfu(self) -> float:
        """Model FLOPs of the measured step over the dense peak that the prediction's MFU has."""
        return self.prediction.mfu * self.prediction.step_time_s / self.log.median_step_s

    def quantities(self) -> tuple[Quantity, ...]:
        """Everything that was measured, beside its prediction."""
        log, prediction = self.log, self.prediction
        rate = float(prediction.outcome.tokens_per_s_per_gpu[0])
        found = [
            Quantity(
                name="step_time",
                unit="s",
                predicted=prediction.step_time_s,
                measured=log.median_step_s,
            ),
            Quantity(
                name="tokens_per_s_per_gpu",
                unit="tokens/s",
                predicted=rate,
                measured=log.tokens_per_s_per_gpu,
            ),
            Quantity(name="mfu", unit="1", predicted=prediction.mfu, measured=self.measured_mfu),
        ]
        if log.model_tflops_per_gpu is not None:
            flop = float(prediction.estimate.model_flop) / prediction.scenario.cluster.gpus
            found.append(
                Quantity(
                    name="model_flop_per_gpu_and_step",
                    unit="FLOP",
                    predicted=flop,
                    measured=log.model_tflops_per_gpu * 1e12 * log.median_step_s,
                )
            )
        return (*found, *self._memory())

    def _memory(self) -> list[Quantity]:
        """Peaks of the fullest rank, each beside what a reading of its kind would show."""
        memory = []
        for kind in _MEMORY:
            if size := self.log.memory_bytes.get(kind):
                ours = GIB * self._memory_gib(kind)
                memory.append(
                    Quantity(
                        name=f"memory_{kind}",
                        unit="B",
                        predicted=ours,
                        measured=size,
                        comparable=kind in SCORED_MEMORY,
                    )
                )
        return memory

    def memory_of_a_whole_step(self) -> dict[str, float]:
        """Measured peaks, by kind, as they would be once moments and activations are both there."""
        estimate = self.prediction.estimate
        return {
            kind: size * memory_of_kind_gib(estimate, 0, kind) / self._memory_gib(kind)
            for kind in SCORED_MEMORY
            if (size := self.log.memory_bytes.get(kind))
        }

    @property
    def memory_is_of_the_first_step(self) -> bool:
        """Whether its memory was read before any step had activations and moments at once."""
        return self.log.memory_after_step == 1

    def _memory_gib(self, kind: str) -> float:
        """What a reading of this kind shows at the moment at which the log took it."""
        estimate, scenario = self.prediction.estimate, self.prediction.scenario
        if not self.memory_is_of_the_first_step:
            return memory_of_kind_gib(estimate, 0, kind)
        run = Run(
            workload=scenario.workload,
            cluster=scenario.cluster,
            software=scenario.software,
            layout=estimate.layouts,
        )
        return first_step_gib(run, kind)

    def run(self) -> dict[str, Any]:
        """Return the run as columns of a table of measured runs, as far as they are known."""
        scenario, log = self.prediction.scenario, self.log
        recipe, arch = scenario.workload.recipe, scenario.workload.architecture
        kind = next((kind for kind in SCORED_MEMORY if kind in log.memory_bytes), None)
        peak = None if kind is None else log.memory_bytes[kind] / GIB
        given = self.prediction.layout
        layout = {name: given[name] for name in LAYOUT_COLUMNS if name in given}
        return {
            "model": arch.name,
            "layers": arch.layers,
            "hidden": arch.hidden,
            "seq_len": recipe.sequence_length,
            "gpu": scenario.cluster.accelerator.name,
            "num_gpus": scenario.cluster.gpus,
            "precision": recipe.precision,
            "optimizer": recipe.optimizer,
            "global_batch": recipe.global_batch,
            **layout,
            "software": scenario.software.name,
            "step_time_s": log.median_step_s,
            "tokens_per_s_per_gpu": log.tokens_per_s_per_gpu,
            "model_tflops_per_gpu": log.model_tflops_per_gpu,
            "peak_memory_gib": peak,
            "memory_kind": kind,
            "memory_read": "first_step" if kind and self.memory_is_of_the_first_step else None,
        }

    def document(self) -> dict[str, Any]:
        """Return the comparison as plain numbers and words, with the keys that stay."""
        estimate, log = self.prediction.estimate, self.log
        low, high = log.spread_s
        return {
            "log": {
                "framework": log.framework,
                "path": log.path,
                "entries": len(log.steps),
                "first_step": int(log.steps[0]),
                "last_step": int(log.steps[-1]),
                "first_line": int(log.lines.min()),
                "last_line": int(log.lines.max()),
                "warm_up": {"dropped": log.dropped, "rule": log.rule},
                "step_time_s": log.median_step_s,
                "p10_s": low,
                "p90_s": high,
                "ranks": list(log.ranks),
                "stated": {name: found.value for name, found in log.stated.items()},
                "unknown_arguments": list(log.unknown),
                "notes": list(log.notes),
            },
            "run": self.run(),
            "layout_from_log": dict(self.from_log),
            "training_from_log": dict(self.training_from_log),
            "software_from_log": self.software_from_log,
            "software_fields_from_log": dict(self.software_fields_from_log),
            "quantities": plain(self.quantities()),
            **{
                name: {part: float(column[0]) for part, column in getattr(estimate, name).items()}
                for name in ("terms_s", "hidden_s", "memory_bytes")
            },
        }


def compare(log: MeasuredLog, scenario: Scenario) -> LogComparison:
    """Predict the run that a log is of.

    What the scenario leaves open of layout, training and software is taken from the log where it
    states it; so are fields of its training that nobody gave.

    Raises
    ------
    InputError
        If the log contradicts the scenario, both values named; if its step time cannot be that of
        the scenario; or if the layout cannot run, with the place in the log of what it states.
    """
    if log.median_step_s < SHORTEST_STEP_S:
        raise InputError(
            f"{log.path}: step time: must be at least {SHORTEST_STEP_S:g} s (is it in another"
            f" unit?), got {log.median_step_s:.3g} s"
        )
    said = set(scenario.document.get("training", {})) - scenario.assumed.keys()
    if problems := _contradictions(log, scenario, said):
        raise InputError(problems)
    layout = _open(log, _LAYOUT - scenario.pinned.keys())
    training = _open(log, _TRAINING - said)
    software, fields_said = _software(log, scenario), _software_fields(log, scenario)
    try:
        prediction = predict(_followed(scenario, training, software, fields_said), **layout)
    except InputError as error:
        raise InputError(_placed(text, log) for text in error.problems) from None
    if problems := _impossible(log, prediction):
        raise InputError(problems)
    recipe, gpus = prediction.scenario.workload.recipe, scenario.cluster.gpus
    log = replace(log, tokens_per_gpu=recipe.tokens_per_step / gpus)
    return LogComparison(
        log=log,
        prediction=prediction,
        from_log=layout,
        training_from_log=training,
        software_from_log=software,
        software_fields_from_log=fields_said,
    )


def _open(log: MeasuredLog, names: Set[str]) -> dict[str, Any]:
    """What the log states of some fields."""
    return {name: found.value for name, found in log.stated.items() if name in names}


def _software(log: MeasuredLog, scenario: Scenario) -> str | None:
    """The profile that does what the log's arguments ask for, where the scenario names none."""
    if scenario.document.get("cluster", {}).get("software") is not None:
        return None
    return first_running(log.software, scenario.cluster.accelerator.platform)


def _software_fields(log: MeasuredLog, scenario: Scenario) -> dict[str, Any]:
    """What the log states of the section software and the scenario does not."""
    given = scenario.document.get("software", {})
    return {
        name.removeprefix(_SOFTWARE): statement.value
        for name, statement in log.stated.items()
        if name.startswith(_SOFTWARE) and name.removeprefix(_SOFTWARE) not in given
    }


def _followed(
    scenario: Scenario,
    training: Mapping[str, Any],
    software: str | None,
    fields_said: Mapping[str, Any],
) -> Scenario:
    """The scenario with what the log adds to it."""
    if not training and not fields_said and software is None:
        return scenario
    document = dict(scenario.document)
    if fields_said:
        document["software"] = {**document.get("software", {}), **fields_said}
    document["training"] = {**document.get("training", {}), **training}
    if software is not None:
        document["cluster"] = {**document.get("cluster", {}), "software": software}
    architecture = scenario.workload.architecture
    made = make_scenario(document, where=scenario.where, architecture=architecture)
    assumed = {name: value for name, value in scenario.assumed.items() if name not in training}
    return replace(made, assumed=assumed)


def _place(name: str) -> str:
    """Where a scenario has what a log states by a name."""
    return _FIELDS.get(name, name if name.startswith(_SOFTWARE) else f"layout.{name}")


def _placed(text: str, log: MeasuredLog) -> str:
    """A problem of a field, with the line of the log that states it."""
    for name, found in log.stated.items():
        if f": {_place(name)}: " in text:
            return f"{text} ({log.path}: line {found.line}: {found.words})"
    return text


def _contradictions(log: MeasuredLog, scenario: Scenario, said: Set[str]) -> list[str]:
    """What the log says of its run and the scenario says otherwise, of its training `said`."""
    recipe, arch = scenario.workload.recipe, scenario.workload.architecture
    ours: dict[str, Any] = {
        **scenario.pinned,
        **{name: getattr(recipe, name) for name in _TRAINING & said},
        "gpus": scenario.cluster.gpus,
        "layers": arch.layers,
        "hidden": arch.hidden,
        **{f"{_SOFTWARE}{key}": x for key, x in scenario.document.get("software", {}).items()},
    }
    if arch.attentions:
        ours["heads"] = arch.attentions[0].heads
    problems = []
    for name, found in log.stated.items():
        if name in ours and not _same(ours[name], found.value):
            place, value = _place(name), option_word(found.value)
            rule = f"must be {option_word(ours[name])} as {place} of {scenario.where}"
            follow = f" (to follow the log: --set {place}={value})" if "." in place else ""
            problems.append(
                f"{log.path}: line {found.line}: {found.words}: {rule}, got {value}{follow}"
            )
    if log.ranks and log.ranks[-1] >= scenario.cluster.gpus:
        rule = f"must be below {scenario.cluster.gpus}, cluster.gpus of {scenario.where}"
        problems.append(f"{log.path}: rank: {rule}, got a line of rank {log.ranks[-1]}")
    return problems


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two values mean the same; modules and adapted matrices have no order."""
    if isinstance(ours, str) and isinstance(theirs, str):
        return set(ours.split("+")) == set(theirs.split("+"))
    if isinstance(ours, tuple) and isinstance(theirs, list):
        return set(ours) == set(theirs)
    return bool(ours == theirs)


def _impossible(log: MeasuredLog, prediction: Prediction) -> list[str]:
    """What no device of the scenario could have done."""
    scenario, estimate = prediction.scenario, prediction.estimate
    run = Run(
        workload=scenario.workload,
        cluster=scenario.cluster,
        software=scenario.software,
        layout=estimate.layouts,
    )
    step_s, flop = log.median_step_s, estimate.model_flop
    too_fast = utilisation(run, model_flop=flop, step_time_s=step_s)[1] > 1.0
    reserved = log.memory_bytes.get("reserved")
    values = Readings(
        step_time_s=step_s if too_fast else None,  # a slow one is possible: small models are
        tflops_per_gpu=log.model_tflops_per_gpu,
        memory_gib=None if reserved is None else reserved / GIB,
        memory_kind="reserved",
    )
    cause = f"is {scenario.where} another model, batch, precision or number of GPUs?"
    found = implausible(run, values, model_flop=flop)
    return [f"{log.path}: {line} ({cause})" for line in found]
