"""A layout in the words of the framework that runs it: the command to paste, a file, or a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.hardware.accelerator import Platform
from simulator.hardware.cluster import Cluster
from simulator.interop.dialects.deepspeed import deepspeed_block, deepspeed_unsaid
from simulator.interop.dialects.fsdp2 import fsdp2_block, fsdp2_lacks
from simulator.interop.dialects.gaudi import gaudi_block
from simulator.interop.dialects.maxtext import maxtext_block, maxtext_unsaid
from simulator.interop.dialects.megatron import megatron_block, megatron_unsaid
from simulator.interop.dialects.megatron_bridge import bridge_adapter_block, bridge_block
from simulator.interop.dialects.mindspeed import mindspeed_block
from simulator.interop.dialects.neuronx import neuronx_block, neuronx_unsaid
from simulator.interop.dialects.primus import primus_block, primus_unsaid
from simulator.interop.dialects.torchrun import layout_notes, plain_block, script_block
from simulator.interop.dialects.torchtitan import torchtitan_block, torchtitan_unsaid
from simulator.layout.layouts import Layouts
from simulator.quoting import comment_line, yaml_value
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
