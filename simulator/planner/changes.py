"""What can be changed of a run: things of the machine, and the numbers that it trains in.

Each change is a `dataclasses.replace`; what was measured of the rest stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from simulator.files import Figure, with_figure
from simulator.hardware.cluster import Cluster
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.software.profile import Software
from simulator.workload.training_section import wrong_training

Machine = tuple[Cluster, Software]


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineChange:
    """A thing of the machine that can be faster, slower, larger or built otherwise."""

    meaning: str
    figures: tuple[str, ...]
    """Dotted names of what changes, and all figures below them: of the `accelerator` and `node` of
    every group, of the `fabric`, the `library` or the `software`."""
    kind: Literal["factor", "number", "count"] = "factor"
    """A factor on what is there, or the new value itself."""
    least: float = 0.0
    """Values are above 0 and at least as large."""
    most: float = 1e3
    unit: float = 1.0
    """The profile's unit in that of the value."""
    inverse: bool = False
    """The profile says seconds, the factor is one on what is done in a second."""

    def made(self, machine: Machine, value: float) -> Machine:
        """The machine with this change."""
        for name in self.figures:
            part, _, path = name.partition(".")
            machine = _with_part(machine, part, path, self, value)
        return machine

    def of_part(self, part: Any, path: str, value: float) -> Any:
        """A node, an accelerator or another part of a machine with this change."""
        if self.kind == "count":
            return with_figure(part, path, int(value))  # type: ignore[arg-type]
        if self.kind == "number":
            return with_figure(part, path, Figure(value * self.unit, "assumed", "what-if"))
        return _scaled(part, path, 1.0 / value if self.inverse else value)


_DOMAIN_RATES = ("bandwidth", "bus", "all_to_all", "send", "nvls")
_HOPS = ("ring_hop_s", "tree_hop_s", "send_base_s", "all_to_all_peer_s")

MACHINE_CHANGES = {
    "matrix": MachineChange(
        meaning="FLOP/s of every matrix type", figures=("accelerator.matrix_flop_per_s",)
    ),
    "memory": MachineChange(
        meaning="bytes of device memory",
        figures=("accelerator.memory.capacity_bytes", "accelerator.memory.usable_bytes"),
    ),
    "memory.bandwidth": MachineChange(
        meaning="bytes/s of device memory", figures=("accelerator.memory.bandwidth_bytes_per_s",)
    ),
    "scale_up": MachineChange(
        meaning="bytes/s inside the fast domain",
        figures=tuple(f"node.scale_up.{name}_bytes_per_s" for name in _DOMAIN_RATES),
    ),
    "scale_up.domain": MachineChange(  # latencies stay those of the old domain
        meaning="accelerators of the fast domain",
        figures=("node.scale_up.domain",),
        kind="count",
        least=1,
        most=1 << 16,
    ),
    "network.adapter": MachineChange(
        meaning="bytes/s of every adapter", figures=("node.scale_out.adapter_bytes_per_s",)
    ),
    "network.gbps": MachineChange(
        meaning="Gbit/s of every adapter",
        figures=("node.scale_out.adapter_bytes_per_s",),
        kind="number",
        most=1e5,
        unit=1e9 / 8.0,
    ),
    "network.adapters": MachineChange(
        meaning="adapters of a server",
        figures=("node.scale_out.adapters",),
        kind="count",
        least=1,
        most=64,
    ),
    "network.latency": MachineChange(  # what a hop, send or peer takes before its bytes flow
        meaning="seconds of a network hop",
        figures=(
            "fabric.extra_hop_s",
            "fabric.gather_hop_s",
            *(f"library.{name}.network" for name in _HOPS),
        ),
    ),
    "network.oversubscription": MachineChange(
        meaning="downlinks for an uplink above the leaves",
        figures=("fabric.oversubscription",),
        kind="number",
        least=1.0,
    ),
    "host": MachineChange(
        meaning="kernels that a host enqueues per second",
        figures=("software.host.seconds_per_kernel",),
        inverse=True,
    ),
}
"""What ``--change`` takes beside the fields of a scenario, and what upgrades are made of."""


def machine_with(machine: Machine, *changes: tuple[str, float]) -> Machine:
    """Make some of MACHINE_CHANGES, one after the other: names and values."""
    for name, value in changes:
        machine = MACHINE_CHANGES[name].made(machine, value)
    return machine


SEARCHES, LEAST_STEP = 8, 0.05
"""How often layouts are searched in less memory for what stands beside the model, and by what share
of it at least."""


def with_less_memory(scenario: Scenario, less_bytes: float) -> Scenario:
    """Take so many usable bytes of every device away for what stands beside the model."""
    left = 1.0 - less_bytes / float(scenario.cluster.accelerator.memory.usable_bytes)
    cluster, _ = machine_with((scenario.cluster, scenario.software), ("memory", left))
    return replace(scenario, cluster=cluster)


def _with_part(
    machine: Machine, part: str, path: str, change: MachineChange, value: float
) -> Machine:
    cluster, software = machine
    if part == "software":
        return cluster, change.of_part(software, path, value)
    if part in ("fabric", "library"):
        changed = change.of_part(getattr(cluster, part), path, value)
        return replace(cluster, **{part: changed}), software
    groups = [
        replace(group, **{part: change.of_part(getattr(group, part), path, value)})
        for group in cluster.groups
    ]
    return replace(cluster, groups=tuple(groups)), software


def _scaled(value: Any, path: str, factor: float) -> Any:
    """Scale the figures of a dotted name, or all below it; they keep where they come from."""
    if path:
        first, _, rest = path.partition(".")
        if isinstance(value, Mapping):
            return {**value, first: _scaled(value[first], rest, factor)}
        return replace(value, **{first: _scaled(getattr(value, first), rest, factor)})
    if isinstance(value, Figure):
        return Figure(value * factor, value.grade, value.source, value.date, value.spread)
    if isinstance(value, Mapping):
        return {key: _scaled(item, "", factor) for key, item in value.items()}
    if value is None:
        return None
    names = [field.name for field in fields(value)]
    return replace(value, **{name: _scaled(getattr(value, name), "", factor) for name in names})


SMALLER = ("moment_dtype", "optimizer", "lora_rank")
"""Fields of the training whose other values save memory."""

_WIDE = ("fp32", "tf32", "fp16", "bf16")
"""Precisions that are no step down from another one."""

_LORA_RANK = 16
"""Adapters of a usual size; their memory hardly depends on it."""


def training_changes(scenario: Scenario, words: Iterable[str]) -> dict[str, Scenario]:
    """Other trainings that software and device can run, by how to ask for each.

    Examples
    --------
    >>> from simulator.scenario import make_scenario
    >>> run = {"model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h100", "gpus": 8},
    ...     "training": {"sequence_length": 8192, "global_batch": 64}}
    >>> list(training_changes(make_scenario(run), ["optimizer", "gradient_dtype"]))
    ['training.optimizer = adamw_8bit', 'training.gradient_dtype = fp32']
    """
    recipe, states = scenario.workload.recipe, scenario.software.states
    adapters = {"lora_rank": _LORA_RANK}
    every: dict[str, dict[str, dict[str, Any]]] = {
        "precision": {
            f"training.precision = {word}": {"precision": word}
            for word in scenario.software.supports.precisions
            if word not in _WIDE and word != recipe.precision
        },
        "optimizer": {"training.optimizer = adamw_8bit": {"optimizer": "adamw_8bit"}},
        "moment_dtype": {"training.moment_dtype = bf16": {"moment_dtype": "bf16"}},
        "gradient_dtype": {
            f"training.gradient_dtype = {word}": {"gradient_dtype": word, "reduce_dtype": word}
            for word in ("bf16", "fp32")
            if word != (recipe.gradient_dtype or ("fp32" if float(states.gradient) > 2 else "bf16"))
        },
        "lora_rank": {
            f"LoRA (training.lora_rank = {_LORA_RANK})": adapters,
            "QLoRA (and training.quantised_base)": {**adapters, "quantised_base": True},
        },
    }
    return {
        change: with_recipe(scenario, **values)
        for word in words
        for change, values in every[word].items()
        if _sound(scenario, values)
    }


def with_recipe(scenario: Scenario, **values: Any) -> Scenario:
    """The scenario with other fields of its training."""
    recipe = replace(scenario.workload.recipe, **values)
    return replace(scenario, workload=replace(scenario.workload, recipe=recipe))


def _sound(scenario: Scenario, values: dict[str, Any]) -> bool:
    """Whether it is another training, and one that the device and the model can run."""
    before, arch = scenario.workload.recipe, scenario.workload.architecture
    recipe = replace(before, **values)
    if recipe == before or (before.lora_rank and "lora_rank" in values):
        return False
    if before.optimizer != "adamw" and {"optimizer", "moment_dtype"} & set(values):
        return False
    if before.precision in ("fp16", "fp32", "tf32") and "gradient_dtype" in values:
        return False
    able = all(recipe.matrix_type in x.accelerator.matrix_flop_per_s for x in scenario.cluster.each)
    return able and not wrong_training(recipe, arch, scenario.where)
