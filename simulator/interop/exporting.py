"""One layout in the words of any framework that can say it: ``foreshard export --as FORM``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.hardware.cluster import Cluster
from simulator.interop.dialects.fsdp2 import fsdp2_block, fsdp2_lacks
from simulator.interop.dialects.megatron import megatron_unsaid
from simulator.interop.dialects.megatron_bridge import bridge_block
from simulator.interop.dialects.torchtitan import torchtitan_unsaid
from simulator.interop.launch import (
    BRIDGE_BASE,
    LAUNCHERS,
    MEGATRON_SAYS,
    Dialect,
    launch_flags,
    without_command,
    written,
)
from simulator.layout.layouts import Layouts
from simulator.quoting import yaml_value
from simulator.scenario import Scenario


def _degrees(row: dict[str, Any], scenario: Scenario, *, said: tuple[str, ...] = ()) -> list[str]:
    """Degrees of a layout above 1 other than those that are said."""
    degrees = ("tp", "pp", "cp", "ep", "etp")
    return [f"{name} = {row[name]}" for name in degrees if name not in said and row[name] > 1]


def _plain_lacks(row: dict[str, Any], scenario: Scenario) -> list[str]:
    shared = [f"sharding = {row['sharding']}"] if row["sharding"] != "ddp" else []
    return _degrees(row, scenario) + shared


def _titan_lacks(row: dict[str, Any], scenario: Scenario) -> list[str]:
    return [f"{name} = {row[name]}" for name in torchtitan_unsaid(row, scenario)]


FORMS: dict[str, Dialect] = {
    "megatron-lm": LAUNCHERS["megatron"],
    "megatron-bridge": Dialect(
        bridge_block, megatron_unsaid, *MEGATRON_SAYS, whole_base=BRIDGE_BASE
    ),
    "torchtitan": replace(LAUNCHERS["torchtitan"], lacks=_titan_lacks),
    "deepspeed": replace(
        LAUNCHERS["deepspeed"],
        lacks=partial(_degrees, said=("cp",)),
        platforms=("cuda", "rocm", "synapseai"),
    ),
    "fsdp2": Dialect(fsdp2_block, said=("reduce_dtype",), lacks=fsdp2_lacks),
    "torchrun": replace(LAUNCHERS["torchrun"], lacks=_plain_lacks),
}
"""By the word that asks for it; a scheduler's job is put around the software's own command."""


def export(layouts: Layouts, scenario: Scenario, form: str) -> str:
    """Write the first layout of a table in a framework's words.

    Raises
    ------
    InputError
        If the word is unknown, the framework does not run on these accelerators, or it cannot say
        the layout.
    """
    platform = scenario.cluster.accelerator.platform
    if form in _SCHEDULERS:
        block = launch_flags(layouts, scenario)
        if not any(line.startswith("torchrun ") for line in block.splitlines()):
            why = f"{scenario.software.name} is not started by torchrun"
            raise InputError(f"--as {form}: {without_command(scenario) or why}")
        return _SCHEDULERS[form](block, scenario.cluster)
    if form not in FORMS:
        raise InputError(f"--as: unknown form {form!r}{did_you_mean(form, WORDS)}")
    if scenario.workload.architecture.traced is not None:
        raise InputError(f"--as {form}: a traced module has a training script of its own")
    chosen, row = FORMS[form], layouts.row(0)
    if platform not in chosen.platforms:
        device = scenario.cluster.accelerator.name
        raise InputError(f"--as {form}: does not run on {device}; --as slurm or plan's own command")
    if wrong := without_command(scenario, chosen):
        raise InputError(f"--as {form}: cannot say training.quantised_base: {wrong}")
    if lacks := chosen.lacks(row, scenario):
        software, layout = scenario.software.name, layouts.describe()
        raise InputError(
            f"--as {form}: cannot say {', '.join(lacks)}; the layout is {layout}, for"
            f" cluster.software = {software}: --set another, or --best with the software of {form}"
        )
    return written(chosen, row, scenario)


def slurm_job(block: str, cluster: Cluster, *, name: str = "foreshard") -> str:
    """Put a job's head above a command that torchrun starts.

    Examples
    --------
    >>> from simulator.hardware.cluster import load_cluster
    >>> print(slurm_job("torchrun train.py", load_cluster("dgx-h100", 8)).splitlines()[-1])
    srun torchrun train.py
    """
    accelerator = min(cluster.node.accelerators, cluster.gpus)
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        f"#SBATCH --nodes={cluster.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={accelerator}",
        "#SBATCH --exclusive",
    ]
    if cluster.nodes > 1:
        head.append('export HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    lines = block.split("\n")
    return "\n".join([*head, *(f"srun {x}" if x.startswith("torchrun ") else x for x in lines)])


def train_job(block: str, cluster: Cluster, *, name: str = "foreshard") -> str:
    """Put Kubeflow's TrainJob around a command that torchrun starts.

    Its runtime for torch tells every node where the first one is (PET_MASTER_ADDR).
    """
    return "\n".join(
        [
            "apiVersion: trainer.kubeflow.org/v1alpha1",
            "kind: TrainJob",
            "metadata:",
            f"  name: {yaml_value(name)}",
            "spec:",
            "  runtimeRef:",
            "    name: torch-distributed",
            "  trainer:",
            f"    numNodes: {cluster.nodes}",
            f"    numProcPerNode: {_per_node(cluster)}",
            "    resourcesPerNode:",
            "      limits:",
            f"        {_DEVICE[cluster.accelerator.platform]}: {_per_node(cluster)}",
            "    command:",
            "    - bash",
            "    - -c",
            "    args:",
            "    - |",
            *_indented(["export HEAD_NODE=$PET_MASTER_ADDR", *block.split("\n")], 6),
        ]
    )


def skypilot_task(block: str, cluster: Cluster, *, name: str = "foreshard") -> str:
    """Put a task of SkyPilot around a command that torchrun starts."""
    kind, size = cluster.accelerator.name, float(cluster.accelerator.memory.capacity_bytes)
    word = kind.partition("-")[0].upper()
    if word == "A100" and size > 60e9:
        word = "A100-80GB"  # as sky show-gpus lists it
    head = 'export HEAD_NODE=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
    return "\n".join(
        [
            f"name: {yaml_value(name)}",
            f"num_nodes: {cluster.nodes}",
            "resources:",
            f"  accelerators: {yaml_value(f'{word}:{_per_node(cluster)}')}",
            "run: |",
            *_indented([head, *block.split("\n")], 2),
        ]
    )


_DEVICE = {
    "cuda": "nvidia.com/gpu",
    "cpu": "cpu",
    "neuron": "aws.amazon.com/neuron",
    "cann": "huawei.com/Ascend910",
    "rocm": "amd.com/gpu",
    "synapseai": "habana.ai/gaudi",
    "xla": "google.com/tpu",
}


def _per_node(cluster: Cluster) -> int:
    return min(cluster.node.accelerators, cluster.gpus)


def _indented(lines: list[str], spaces: int) -> list[str]:
    return [f"{' ' * spaces}{line}".rstrip() for line in lines]


_SCHEDULERS = {"slurm": slurm_job, "trainjob": train_job, "skypilot": skypilot_task}
"""What puts a job around a command that torchrun starts, by the word that asks for it."""

WORDS = (*FORMS, *_SCHEDULERS, "chakra", "csv", "markdown", "parquet")
"""All that ``foreshard export --as`` takes."""
