"""One layout in the words of any framework that can say it: ``foreshard export --as FORM``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.hardware.accelerator import Platform
from simulator.interop.deepspeed import deepspeed_block
from simulator.interop.fully_shard import fsdp2_block, fsdp2_lacks
from simulator.interop.launch import launch_flags
from simulator.interop.megatron import megatron_block
from simulator.interop.megatron_bridge import bridge_adapter_block, bridge_block
from simulator.interop.slurm import slurm_job
from simulator.interop.torchrun import plain_block
from simulator.interop.torchtitan import torchtitan_block
from simulator.layout.layouts import Layouts
from simulator.scenario import Scenario

__all__ = ["FORMS", "WORDS", "export"]

_GPUS: tuple[Platform, ...] = ("cuda", "rocm")


@dataclass(frozen=True, slots=True)
class _Form:
    """A framework's words."""

    write: Callable[[dict[str, Any], Scenario], str]
    lacks: Callable[[dict[str, Any]], list[str]] = lambda row: []
    """What of a layout it cannot say."""
    platforms: tuple[Platform, ...] = _GPUS


def _only(*names: str, sharding: tuple[str, ...] = ()) -> Callable[[dict[str, Any]], list[str]]:
    """What is wrong with a layout whose degrees other than these are above 1."""

    def lacks(row: dict[str, Any]) -> list[str]:
        degrees = ("tp", "pp", "cp", "ep", "etp")
        wrong = [f"{n} = {row[n]}" for n in degrees if n not in names and row[n] > 1]
        if sharding and row["sharding"] not in sharding:
            wrong.append(f"sharding = {row['sharding']}")
        return wrong

    return lacks


def _megatron(row: dict[str, Any], scenario: Scenario) -> str:
    if scenario.workload.recipe.lora_rank:
        return bridge_adapter_block(row, scenario)  # Megatron-LM itself has no adapters
    return megatron_block(row, scenario)


def _plain_lacks(row: dict[str, Any]) -> list[str]:
    wrong = _only(sharding=("ddp",))(row)
    return wrong + [f"recompute_layers = {row['recompute_layers']}"] * bool(row["recompute_layers"])


def _titan_lacks(row: dict[str, Any]) -> list[str]:
    wrong = [f"recompute_layers = {row['recompute_layers']}"] if row["recompute_layers"] else []
    if row["sharding"] == "zero1":
        wrong.append("sharding = zero1")
    if row["sharding"] == "ddp" and row["cp"] > 1:
        wrong.append("sharding = ddp with cp > 1, whose ranks share states")
    if row["shard_group"] % row["cp"]:
        wrong.append(
            f"shard_group = {row['shard_group']} with cp = {row['cp']}: all cp ranks share"
        )
    if row["reshard_after_forward"] is not True:
        wrong.append(f"reshard_after_forward = {row['reshard_after_forward']}")
    offload = ("optimizer_offload", "parameter_offload")
    return wrong + [f"{name} = {row[name]}" for name in offload if row[name] != "none"]


FORMS: dict[str, _Form] = {
    "megatron-lm": _Form(_megatron),
    "megatron-bridge": _Form(bridge_block),
    "torchtitan": _Form(torchtitan_block, _titan_lacks),
    "deepspeed": _Form(deepspeed_block, _only("cp"), (*_GPUS, "synapseai")),
    "fsdp2": _Form(fsdp2_block, fsdp2_lacks),
    "torchrun": _Form(plain_block, _plain_lacks),
}
"""By the word that asks for it; ``slurm`` puts a job's head above the software's own command."""

WORDS = (*FORMS, "slurm", "chakra", "csv", "markdown", "parquet")
"""All that ``foreshard export --as`` takes."""


def export(layouts: Layouts, scenario: Scenario, form: str) -> str:
    """Write the first layout of a table in a framework's words.

    Raises
    ------
    InputError
        If the word is unknown, the framework does not run on these accelerators, or it cannot say
        the layout.
    """
    platform = scenario.cluster.accelerator.platform
    if form == "slurm":
        block = launch_flags(layouts, scenario)
        if not any(line.startswith("torchrun ") for line in block.splitlines()):
            name = scenario.software.name
            raise InputError(f"--as slurm: {name} is not started by torchrun")
        return slurm_job(block, scenario.cluster)
    if form not in FORMS:
        raise InputError(f"--as: unknown form {form!r}{did_you_mean(form, WORDS)}")
    if scenario.workload.architecture.traced is not None:
        raise InputError(f"--as {form}: a traced module has a training script of its own")
    chosen, row = FORMS[form], layouts.row(0)
    if platform not in chosen.platforms:
        device = scenario.cluster.accelerator.name
        raise InputError(f"--as {form}: does not run on {device}; --as slurm or plan's own command")
    if lacks := chosen.lacks(row):
        software, layout = scenario.software.name, layouts.describe()
        raise InputError(
            f"--as {form}: cannot say {', '.join(lacks)}; the layout is {layout}, for"
            f" cluster.software = {software}: --set another, or --best with the software of {form}"
        )
    return chosen.write(row, scenario)
