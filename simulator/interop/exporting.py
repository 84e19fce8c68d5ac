"""One layout in the words of any framework that can say it: ``foreshard export --as FORM``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.hardware.accelerator import Platform
from simulator.hardware.cluster import Cluster
from simulator.interop.dialects.deepspeed import deepspeed_block, deepspeed_unsaid
from simulator.interop.dialects.fsdp2 import fsdp2_block, fsdp2_lacks
from simulator.interop.dialects.megatron import megatron_block, megatron_unsaid
from simulator.interop.dialects.megatron_bridge import bridge_adapter_block, bridge_block
from simulator.interop.dialects.torchrun import layout_notes, plain_block
from simulator.interop.dialects.torchtitan import torchtitan_block, torchtitan_unsaid
from simulator.interop.launch import launch_flags
from simulator.layout.layouts import Layouts
from simulator.scenario import Scenario

__all__ = ["FORMS", "WORDS", "export", "slurm_job"]

_GPUS: tuple[Platform, ...] = ("cuda", "rocm")


@dataclass(frozen=True, slots=True)
class _Form:
    """A framework's words."""

    write: Callable[[dict[str, Any], Scenario], str]
    unsaid: Callable[[dict[str, Any], Scenario], Mapping[str, str]] = lambda row, scenario: {}
    """Fields of a layout that it has no words for; comments name them."""
    lacks: Callable[[dict[str, Any], Scenario], list[str]] = lambda row, scenario: []
    """What of a layout it cannot say, so that nothing is written."""
    platforms: tuple[Platform, ...] = _GPUS


def _degrees(row: dict[str, Any], scenario: Scenario, *, said: tuple[str, ...] = ()) -> list[str]:
    """Degrees of a layout above 1 other than those that are said."""
    degrees = ("tp", "pp", "cp", "ep", "etp")
    return [f"{name} = {row[name]}" for name in degrees if name not in said and row[name] > 1]


def _megatron(row: dict[str, Any], scenario: Scenario) -> str:
    if scenario.workload.recipe.lora_rank:
        return bridge_adapter_block(row, scenario)  # Megatron-LM itself has no adapters
    return megatron_block(row, scenario)


def _plain_lacks(row: dict[str, Any], scenario: Scenario) -> list[str]:
    shared = [f"sharding = {row['sharding']}"] if row["sharding"] != "ddp" else []
    return _degrees(row, scenario) + shared


def _titan_lacks(row: dict[str, Any], scenario: Scenario) -> list[str]:
    return [f"{name} = {row[name]}" for name in torchtitan_unsaid(row, scenario)]


FORMS: dict[str, _Form] = {
    "megatron-lm": _Form(_megatron, megatron_unsaid),
    "megatron-bridge": _Form(bridge_block, megatron_unsaid),
    "torchtitan": _Form(torchtitan_block, lacks=_titan_lacks),
    "deepspeed": _Form(
        deepspeed_block,
        deepspeed_unsaid,
        partial(_degrees, said=("cp",)),
        (*_GPUS, "synapseai"),
    ),
    "fsdp2": _Form(fsdp2_block, lacks=fsdp2_lacks),
    "torchrun": _Form(plain_block, lacks=_plain_lacks),
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
    if lacks := chosen.lacks(row, scenario):
        software, layout = scenario.software.name, layouts.describe()
        raise InputError(
            f"--as {form}: cannot say {', '.join(lacks)}; the layout is {layout}, for"
            f" cluster.software = {software}: --set another, or --best with the software of {form}"
        )
    notes = layout_notes(row, chosen.unsaid(row, scenario))
    return "\n".join([chosen.write(row, scenario), *notes])


def slurm_job(block: str, cluster: Cluster, *, name: str = "foreshard") -> str:
    """Put a job's head above a command that torchrun starts.

    Examples
    --------
    >>> from simulator.hardware.cluster import load_cluster
    >>> print(slurm_job("torchrun train.py", load_cluster("dgx-h100", 8)).splitlines()[-1])
    srun torchrun train.py
    """
    each = min(cluster.node.accelerators, cluster.gpus)
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        f"#SBATCH --nodes={cluster.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={each}",
        "#SBATCH --exclusive",
    ]
    if cluster.nodes > 1:
        head.append('export HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    lines = block.splitlines()
    return "\n".join([*head, *(f"srun {x}" if x.startswith("torchrun ") else x for x in lines)])
