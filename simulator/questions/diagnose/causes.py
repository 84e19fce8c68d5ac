"""Causes that make a run slower than predicted: what each changes of a scenario, and by how much.

The causes stand in ``hardware_profiles/causes.toml``. Each is priced by the same model as the run
itself, with the amount that is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, Literal

from simulator import catalogue
from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.files import read_records, record
from simulator.planner.changes import machine_with, with_recipe
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import Scenario, make_scenario

_NEARLY_FULL = 0.85
"""Of usable memory: prediction and fragmentation may be off by the rest."""

_COMPUTE = ("gemm", "attention", "memory_bound", "recompute", "slowdown")
"""Terms that a slow server stretches."""


@record
class Cause:
    """One cause, as ``causes.toml`` describes it."""

    says: str
    unit: str
    prior: float
    series: Literal["steady", "tails", "drift", "periodic"]
    elsewhere: str
    test: str
    typical: float = 1.0
    spread: float = 0.0
    """0: it is there or not."""
    least: float = 0.0
    most: float = 0.0
    """Of seconds: as a share of the predicted step."""
    machine: tuple[str, ...] = ()
    inverse: bool = False
    """The change of the machine is one over the amount."""
    switches: dict[str, str] = field(default_factory=dict)
    imbalance: bool = False
    training: dict[str, str] = field(default_factory=dict)
    recompute: bool = False
    nearly_full: bool = False
    """Only of runs whose memory is nearly full."""
    shows: str = ""
    words: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    @property
    def is_switch(self) -> bool:
        """Whether it has no amount."""
        return self.spread == 0.0

    @property
    def fields(self) -> set[str]:
        """Fields of layout and training that it has otherwise than the scenario."""
        return {*self.training, *({"recompute"} if self.recompute else ())}

    @property
    def crosses_servers(self) -> bool:
        """Whether it is of the network, or of one server that the others wait for."""
        return self.slows_a_server or any(name.startswith("network") for name in self.machine)

    @property
    def slows_a_server(self) -> bool:
        """Whether its amount stretches the compute of one server, for which all wait."""
        return self.shows == "data"

    @property
    def loads(self) -> bool:
        """Whether its seconds are those of loading."""
        return self.adds_seconds and not self.nearly_full

    @property
    def adds_seconds(self) -> bool:
        """Whether its amount is seconds of the step."""
        return self.unit == "s per step"


@lru_cache(maxsize=1)
def causes() -> dict[str, Cause]:
    """Every cause by its name."""
    path = catalogue.folder("hardware_profiles") / "causes.toml"
    return read_records(Cause, path, "causes")


def can_have(
    cause: Cause,
    prediction: Prediction,
    memory_bytes: Mapping[str, float] | None = None,
    settled: Collection[str] = (),
) -> bool:
    """Whether a run has what the cause changes.

    Parameters
    ----------
    cause : Cause
    prediction : Prediction
        Of the run as it should be.
    memory_bytes : mapping, optional
        Measured peaks by kind; what the allocator reserved says how full memory is.
    settled : collection of str, optional
        Fields of layout and training that the log states, as the prediction has them.
    """
    scenario, estimate = prediction.scenario, prediction.estimate
    if settled and cause.fields and cause.fields <= set(settled):
        return False
    if cause.nearly_full:
        total = float(estimate.memory_total_bytes[0])
        held = (memory_bytes or {}).get("reserved", total)
        return held > _NEARLY_FULL * estimate.usable_bytes
    if cause.imbalance:
        return scenario.workload.architecture.is_moe and int(estimate.layouts.ep[0]) > 1
    if cause.crosses_servers:
        return scenario.cluster.gpus > scenario.cluster.node.accelerators
    return True


def with_cause(prediction: Prediction, cause: Cause, amount: float) -> Prediction | None:
    """Price the run with so much of a cause; None where it changes nothing or cannot run.

    Causes that add seconds, and a slow server, change no scenario: `added_s` has theirs.
    """
    scenario = prediction.scenario
    if cause.machine:
        factor = 1.0 / amount if cause.inverse else amount
        machine = scenario.cluster, scenario.software
        cluster, software = machine_with(machine, *((name, factor) for name in cause.machine))
        return _again(prediction, replace(scenario, cluster=cluster, software=software))
    if cause.imbalance:
        return _again(prediction, with_recipe(scenario, moe_imbalance=amount))
    document = _document(prediction)
    before = _document(prediction)
    for name, word in cause.switches.items():
        document.setdefault("software", {})[name] = word == "true"
    for name, word in cause.training.items():
        document["training"][name] = word
    if cause.recompute:
        full = prediction.layout.get("recompute") == "full"
        document["layout"]["recompute"] = "none" if full else "full"
        for name in ("recompute_layers", "recompute_modules"):
            document["layout"].pop(name, None)
    if document == before:
        return None
    architecture = scenario.workload.architecture
    try:
        return predict(make_scenario(document, where=scenario.where, architecture=architecture))
    except InputError:  # the software, the device or the layout knows no such thing
        return None


def _again(prediction: Prediction, scenario: Scenario) -> Prediction:
    """The same layout in a changed scenario; money and evidence stay those of the run as it was."""
    layouts = prediction.estimate.layouts
    estimate = evaluate(layouts, scenario.workload, scenario.cluster, scenario.software)
    return replace(prediction, scenario=scenario, estimate=estimate)


def _document(prediction: Prediction) -> dict[str, Any]:
    document = {
        name: dict(section) if isinstance(section, Mapping) else section
        for name, section in prediction.scenario.document.items()
    }
    document["layout"] = dict(prediction.scenario.pinned)
    document.setdefault("training", {})
    return document


def added_s(prediction: Prediction, cause: Cause, amount: float) -> float:
    """Seconds that a step takes more.

    One server whose compute takes `amount` times as long stretches the compute of the slowest
    stage, and all wait for it: ``(amount - 1) x`` the seconds of compute on the critical path.
    """
    if cause.adds_seconds:
        return amount
    if cause.slows_a_server:
        terms = prediction.estimate.terms_s
        return (amount - 1.0) * sum(float(terms[name][0]) for name in _COMPUTE)
    return 0.0
