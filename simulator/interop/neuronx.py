"""A layout as settings of NeuronX Distributed Training.

Names as in aws-neuron/neuronx-distributed-training@9169aa0: examples/train.sh, train_setup.sh and
examples/conf/hf_llama3_8B_config.yaml (hf_llama3_8B_SFT_lora_config.yaml with adapters), over whose
settings these are put.
"""

from __future__ import annotations

from typing import Any

from simulator.interop.torchrun import steps, torchrun, unsaid_stashes, wrapped
from simulator.scenario import Scenario
from simulator.workload.recipe import Recipe

__all__ = ["neuronx_block", "neuronx_unsaid"]

_MODULES = {"core_attn": "CoreAttention", "mlp": "LlamaMLP"}
_TARGETS = {
    "q": "qkv_proj", "k": "qkv_proj", "v": "qkv_proj", "o": "o_proj",
    "gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj",
}  # fmt: skip


def neuronx_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the two runs of the command: the first compiles the graphs, the second trains."""
    recipe = scenario.workload.recipe
    name = "hf_llama3_8B_SFT_lora_config" if recipe.lora_rank else "hf_llama3_8B_config"
    start = (
        f"$COMPILE {torchrun(scenario.cluster)} training_orchestrator.py"
        f" --config-path=conf --config-name={name}"
    )
    groups = [_trainer(scenario), _layout(row), _model(row, scenario), _types(recipe)]
    notes = [f"# {note}" for note in _notes(row, scenario)]
    return "\n".join(
        [
            "# In examples/ of neuronx-distributed-training. Yours to set: data.train_dir, the"
            " model's config.json, checkpoints, learning rate.",
            "export FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1 FI_EFA_FORK_SAFE=1",
            "for COMPILE in neuron_parallel_compile ''; do",
            wrapped(start, [group for group in groups if group]),
            "done",
            *notes,
        ]
    )


def _trainer(scenario: Scenario) -> list[str]:
    cluster = scenario.cluster
    return [
        f"trainer.devices={min(cluster.node.accelerators, cluster.gpus)}",
        f"trainer.num_nodes={cluster.nodes}",
        f"trainer.max_steps={steps(scenario)}",
    ]


def _layout(row: dict[str, Any]) -> list[str]:
    section = "distributed_strategy"
    found = [
        f"{section}.tensor_model_parallel_size={row['tp']}",
        f"{section}.pipeline_model_parallel_size={row['pp']}",
        f"{section}.virtual_pipeline_model_parallel_size={row['vpp']}",
        f"+{section}.context_parallel_size={row['cp']}",
        f"{section}.zero1={row['sharding'] == 'zero1'}",
        f"{section}.sequence_parallel={bool(row['sequence_parallel'])}",
    ]
    if row["ep"] > 1:
        found.append(f"+{section}.expert_model_parallel_size={row['ep']}")
    return [
        *found,
        f"data.micro_batch_size={row['micro_batch']}",
        f"data.global_batch_size={row['global_batch']}",
    ]


def _model(row: dict[str, Any], scenario: Scenario) -> list[str]:
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    found = [
        'model.model_config="$MODEL_CONFIG"',
        f"model.num_layers={arch.layers}",
        f"model.hidden_size={arch.hidden}",
        f"model.encoder_seq_length={recipe.sequence_length}",
        f"model.max_position_embeddings={max(arch.max_positions, recipe.sequence_length)}",
    ]
    granularity = {"none": "null"}.get(row["recompute"], row["recompute"])
    found.append(f"model.activations_checkpoint_granularity={granularity}")
    if row["recompute"] == "selective":
        usual = scenario.software.kernels.selective_modules
        names = row["recompute_modules"].split("+") if row["recompute_modules"] else usual
        modules = ",".join(_MODULES[name] for name in names if name in _MODULES)
        found.append(f"'model.activations_checkpoint_recompute=[{modules}]'")
    if row["cp"] > 1:
        found.append("+model.fusions.ring_attention=True")
    return found


def _types(recipe: Recipe) -> list[str]:
    if not recipe.lora_rank:
        word = "fp32" if recipe.precision == "fp32" else "mixed_precision"
        return [f"precision.type={word}"]
    targets = dict.fromkeys(_TARGETS[name] for name in recipe.lora_targets if name in _TARGETS)
    return [
        "precision.type=autocast",
        f"model.peft.lora_rank={recipe.lora_rank}",
        f"model.peft.lora_alpha={2 * recipe.lora_rank}",
        f"'model.peft.target_modules=[{','.join(targets)}]'",
    ]


def _notes(row: dict[str, Any], scenario: Scenario) -> list[str]:
    """What no setting says."""
    recipe, notes = scenario.workload.recipe, []
    if recipe.lora_rank and row["sharding"] == "zero1":
        notes.append("The framework's adapters do not go with zero1 yet: the plan counts it.")
    return [*notes, *unsaid_stashes(recipe)]


def neuronx_unsaid(row: dict[str, Any], scenario: Scenario) -> dict[str, str]:
    """Fields of a layout that no setting says."""
    unsaid = {}
    if row["recompute_layers"]:
        unsaid["recompute_layers"] = "this runs all layers of a rank again."
    if row["sharding"] == "zero1" and row["shard_group"] < row["dp"] * row["cp"]:
        ranks = row["dp"] * row["cp"]
        unsaid["shard_group"] = f"this shares optimizer states among all {ranks} ranks."
    return unsaid
