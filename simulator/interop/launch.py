"""The command to paste: a layout in the words of the framework that runs it."""

from __future__ import annotations

from simulator.interop.megatron import megatron_block
from simulator.interop.torchrun import plain_block
from simulator.interop.torchtitan import torchtitan_block
from simulator.layout.layout import Layouts
from simulator.scenario import Scenario

__all__ = ["launch_flags"]

_BLOCKS = {
    "megatron": megatron_block,
    "torchtitan": torchtitan_block,
    "torchrun": plain_block,
}


def launch_flags(layouts: Layouts, scenario: Scenario) -> str:
    """Write the launch command of the first layout of a table for the scenario's software.

    The command names everything that the prediction depends on. Data, tokenizer, learning rate and
    checkpoints are yours; where the framework wants them the command has stand-ins.
    """
    return _BLOCKS[scenario.software.launcher](layouts.row(0), scenario)
