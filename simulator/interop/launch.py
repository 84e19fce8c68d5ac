"""The command to paste: a layout in the words of the framework that runs it."""

from __future__ import annotations

from dataclasses import fields

from simulator.interop.deepspeed import deepspeed_block
from simulator.interop.megatron import megatron_block
from simulator.interop.torchrun import plain_block, script_block
from simulator.interop.torchtitan import torchtitan_block
from simulator.layout.layouts import Layouts
from simulator.scenario import Scenario
from simulator.workload.recipe import Recipe

__all__ = ["launch_flags"]

_BLOCKS = {
    "megatron": megatron_block,
    "torchtitan": torchtitan_block,
    "torchrun": plain_block,
    "deepspeed": deepspeed_block,
    "script": script_block,
}

_ALWAYS = ("sequence_length", "global_batch", "tokens", "precision")
_SAID = {
    "megatron": (
        "fp8_weights",
        "moe_capacity_factor",
        "moe_pads_to_capacity",
        "optimizer_offload_fraction",
    ),
    "torchtitan": ("fp8_weights",),
    "torchrun": (),
    "script": (),
    "deepspeed": ("optimizer_offload_fraction", "gradient_dtype", "reduce_dtype"),
}
"""Fields of a recipe that a launcher's command names, beside those that every command names."""

_OPTIMIZERS = {
    "megatron": ("adamw", "sgd", "muon"),
    "torchtitan": ("adamw",),
    "torchrun": ("adamw",),
    "script": ("adamw",),
    "deepspeed": ("adamw", "lion", "lamb", "muon"),
}
"""Optimizers that a launcher's command can ask for."""


def launch_flags(layouts: Layouts, scenario: Scenario) -> str:
    """Write the launch command of the first layout of a table for the scenario's software.

    The command names everything that the prediction depends on; what the framework has no flag for
    is named in a last line. Data, tokenizer, learning rate and checkpoints are yours; where the
    framework wants them the command has stand-ins.
    """
    arch, launcher = scenario.workload.architecture, scenario.software.launcher
    if arch.traced is not None:
        return f"# {arch.name} is a traced module: start it with a training script of its own."
    block = _BLOCKS[launcher](layouts.row(0), scenario)
    unsaid = _unsaid(scenario.workload.recipe, launcher)
    if not unsaid:
        return block
    return f"{block}\n# The prediction also counts on what no flag here says: {', '.join(unsaid)}."


def _unsaid(recipe: Recipe, launcher: str) -> list[str]:
    """Fields that differ from their default and that the launcher's command does not name."""
    said = {*_ALWAYS, *_SAID[launcher]}
    if recipe.optimizer in _OPTIMIZERS[launcher]:
        said.add("optimizer")
    found = []
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name not in said and value != field.default:
            shown = repr(value)
            found.append(f"{field.name} = {shown if len(shown) <= 60 else shown[:57] + '...'}")
    return found
