"""The command to paste: a layout in the words of the framework that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

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
from simulator.scenario import Scenario
from simulator.software.profile import Launcher
from simulator.workload.recipe import Recipe

__all__ = ["LAUNCHERS", "launch_flags"]


@dataclass(frozen=True, slots=True)
class _Launch:
    """What a launcher's command can say."""

    block: Callable[[dict[str, Any], Scenario], str]
    unsaid: Callable[[dict[str, Any], Scenario], Mapping[str, str]] = lambda row, scenario: {}
    """Fields of a layout that it has no words for, each with what the command does instead."""
    said: tuple[str, ...] = ()
    """Fields of a recipe that it names, beside those that every command names."""
    optimizers: tuple[str, ...] = ("adamw",)
    """Optimizers that it can ask for."""
    adapters: Callable[[dict[str, Any], Scenario], str] | None = None
    """The command of a fine-tuning with low-rank adapters, where `block` is not that as well."""


_ALWAYS = ("sequence_length", "global_batch", "tokens", "precision", "lora_rank", "lora_targets")
_OF_MEGATRON = (
    *("fp8_weights", "moe_capacity_factor", "moe_pads_to_capacity"),
    "optimizer_offload_fraction",
)
_OF_DEEPSPEED = ("optimizer_offload_fraction", "gradient_dtype", "reduce_dtype")
_MEGATRON = ("adamw", "sgd", "muon")
_DEEPSPEED = ("adamw", "lion", "lamb", "muon")

LAUNCHERS: dict[Launcher, _Launch] = {
    "megatron": _Launch(
        megatron_block, megatron_unsaid, _OF_MEGATRON, _MEGATRON, bridge_adapter_block
    ),
    "primus": _Launch(primus_block, primus_unsaid, _OF_MEGATRON, _MEGATRON),
    "mindspeed": _Launch(mindspeed_block, megatron_unsaid, _OF_MEGATRON, _MEGATRON),
    "torchtitan": _Launch(torchtitan_block, torchtitan_unsaid, ("fp8_weights",)),
    "torchrun": _Launch(plain_block),
    "script": _Launch(script_block),
    "deepspeed": _Launch(deepspeed_block, deepspeed_unsaid, _OF_DEEPSPEED, _DEEPSPEED),
    "gaudi": _Launch(gaudi_block, deepspeed_unsaid, _OF_DEEPSPEED, _DEEPSPEED),
    "maxtext": _Launch(maxtext_block, maxtext_unsaid, ("moment_dtype",), ("adamw", "sgd", "muon")),
    "neuronx": _Launch(neuronx_block, neuronx_unsaid),
}


def launch_flags(layouts: Layouts, scenario: Scenario) -> str:
    """Write the launch command of the first layout of a table for the scenario's software.

    The command names everything that the prediction depends on; what the framework has no flag for
    is named in a last line. Data, tokenizer, learning rate and checkpoints are yours; where the
    framework wants them the command has stand-ins.
    """
    arch = scenario.workload.architecture
    if arch.traced is not None:
        return f"# {arch.name} is a traced module: start it with a training script of its own."
    launch, recipe = LAUNCHERS[scenario.software.launcher], scenario.workload.recipe
    write = launch.adapters if recipe.lora_rank and launch.adapters else launch.block
    row = layouts.row(0)
    block = "\n".join([write(row, scenario), *layout_notes(row, launch.unsaid(row, scenario))])
    unsaid = _unsaid(recipe, launch)
    if not unsaid:
        return block
    return f"{block}\n# The prediction also counts on what no flag here says: {', '.join(unsaid)}."


def _unsaid(recipe: Recipe, launch: _Launch) -> list[str]:
    """Fields that differ from their default and that the launcher's command does not name."""
    said = {*_ALWAYS, *launch.said}
    if recipe.optimizer in launch.optimizers:
        said.add("optimizer")
    found = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name not in said and value != field.default:
            shown = repr(value)
            found.append(f"{field.name} = {shown if len(shown) <= 60 else shown[:57] + '...'}")
    return found
