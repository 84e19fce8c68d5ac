"""The command to paste: a layout in the words of the framework that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from simulator.hardware.accelerator import Platform
from simulator.interop.dialects.deepspeed import deepspeed_block, deepspeed_unsaid
from simulator.interop.dialects.gaudi import gaudi_block
from simulator.interop.dialects.maxtext import maxtext_block, maxtext_unsaid
from simulator.interop.dialects.megatron import megatron_block, megatron_unsaid
from simulator.interop.dialects.megatron_bridge import bridge_adapter_block
from simulator.interop.dialects.mindspeed import mindspeed_block
from simulator.interop.dialects.neuronx import neuronx_block, neuronx_unsaid
from simulator.interop.dialects.primus import primus_block, primus_unsaid
from simulator.interop.dialects.torchrun import layout_notes, plain_block, script_block
from simulator.interop.dialects.torchtitan import torchtitan_block, torchtitan_unsaid
from simulator.layout.layouts import Layouts
from simulator.quoting import comment_line
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.units import show_bytes
from simulator.workload.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Dialect:
    """A framework's words, and what it can say with them."""

    write: Callable[[dict[str, Any], Scenario], str]
    unsaid: Callable[[dict[str, Any], Scenario], Mapping[str, str]] = lambda row, scenario: {}
    """Fields of a layout that it has no words for, each with what the command does instead."""
    said: tuple[str, ...] = ()
    """Fields of a recipe that it names, beside those that every command names."""
    optimizers: tuple[str, ...] = ("adamw",)
    """Optimizers that it can ask for."""
    adapters: Callable[[dict[str, Any], Scenario], str] | None = None
    """The command of a fine-tuning with low-rank adapters, where `write` is not that as well."""
    lacks: Callable[[dict[str, Any], Scenario], list[str]] = lambda row, scenario: []
    """What of a layout it cannot say, so that ``export --as`` writes nothing."""
    whole_base: str = ""
    """Who keeps frozen weights in 16 bit: no command of it runs a plan with them in 4 bit."""
    platforms: tuple[Platform, ...] = ("cuda", "rocm")
    """What ``export --as`` writes it for."""


_ALWAYS = ("sequence_length", "global_batch", "tokens", "precision", "lora_rank", "lora_targets")
MEGATRON_SAYS = (
    ("fp8_weights", "moe_capacity_factor", "moe_pads_to_capacity", "optimizer_offload_fraction"),
    ("adamw", "sgd", "muon"),
)
"""Fields of a recipe and optimizers."""
BRIDGE_BASE = "Megatron-Bridge (NVIDIA-NeMo/Megatron-Bridge@067f987d: lora, canonical_lora, dora)"
"""What it has of adapters: none over weights in 4 bit."""
_DEEPSPEED_SAYS = (
    ("optimizer_offload_fraction", "gradient_dtype", "reduce_dtype"),
    ("adamw", "lion", "lamb", "muon"),
)

LAUNCHERS: dict[str, Dialect] = {
    "megatron": Dialect(
        megatron_block,
        megatron_unsaid,
        *MEGATRON_SAYS,
        bridge_adapter_block,
        whole_base=BRIDGE_BASE,
    ),
    "primus": Dialect(primus_block, primus_unsaid, *MEGATRON_SAYS),
    "mindspeed": Dialect(mindspeed_block, megatron_unsaid, *MEGATRON_SAYS),
    "torchtitan": Dialect(torchtitan_block, torchtitan_unsaid, ("fp8_weights",)),
    "torchrun": Dialect(plain_block),
    "script": Dialect(script_block),
    "deepspeed": Dialect(deepspeed_block, deepspeed_unsaid, *_DEEPSPEED_SAYS),
    "gaudi": Dialect(gaudi_block, deepspeed_unsaid, *_DEEPSPEED_SAYS),
    "maxtext": Dialect(maxtext_block, maxtext_unsaid, ("moment_dtype",), ("adamw", "sgd", "muon")),
    "neuronx": Dialect(neuronx_block, neuronx_unsaid),
}


def launch_flags(layouts: Layouts, scenario: Scenario) -> str:
    """Write the launch command of the first layout of a table for the scenario's software.

    The command names everything that the prediction depends on; what the framework has no flag for
    is named in a last line. Data, tokenizer, learning rate and checkpoints are yours; where the
    framework wants them the command has stand-ins.
    """
    arch = scenario.workload.architecture
    if arch.traced is not None:
        return comment_line(
            f"{arch.name} is a traced module: start it with a training script of its own."
        )
    return written(LAUNCHERS[scenario.software.launcher], layouts.row(0), scenario)


def written(dialect: Dialect, row: dict[str, Any], scenario: Scenario) -> str:
    """A layout in a framework's words, and comments that name what it has none for."""
    recipe = scenario.workload.recipe
    if wrong := without_command(scenario, dialect):
        return comment_line(f"No launch command: {wrong}")
    write = dialect.adapters if recipe.lora_rank and dialect.adapters else dialect.write
    lines = [write(row, scenario), *layout_notes(row, dialect.unsaid(row, scenario))]
    if unsaid := _unsaid(recipe, dialect):
        said = f"The prediction also counts on what no flag here says: {', '.join(unsaid)}."
        lines.append(comment_line(said))
    return "\n".join(lines)


def without_command(scenario: Scenario, dialect: Dialect | None = None) -> str:
    """Why the software, or another, cannot run a plan, so that no command is written; or blank."""
    workload = scenario.workload
    dialect = dialect or LAUNCHERS[scenario.software.launcher]
    if not (workload.recipe.quantised_base and dialect.whole_base):
        return ""
    weights = 2.0 * workload.architecture.parameters
    return (
        f"{dialect.whole_base} keeps frozen weights in 16 bit, {show_bytes(weights)} of them over"
        " all GPUs of a replica, and this plan counts on 4 bit (training.quantised_base). A trainer"
        " of yours that has them: cluster.software = torchtune-2024 or deepspeed."
    )


def _unsaid(recipe: Recipe, dialect: Dialect) -> list[str]:
    """Fields that differ from their default and that the launcher's command does not name."""
    said = {*_ALWAYS, *dialect.said}
    if recipe.optimizer in dialect.optimizers:
        said.add("optimizer")
    unsaid = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name not in said and value != field.default:
            shown = repr(value)
            unsaid.append(f"{field.name} = {shown if len(shown) <= 60 else shown[:57] + '...'}")
    return unsaid
