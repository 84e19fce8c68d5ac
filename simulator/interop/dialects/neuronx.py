"""Settings of NeuronX Distributed Training, written and read.

Names as in aws-neuron/neuronx-distributed-training@9169aa0: examples/train.sh, train_setup.sh and
examples/conf, over whose hf_llama3_8B_config.yaml (hf_llama3_8B_SFT_lora_config.yaml with adapters)
settings are put as ``section.key=value``.
"""

from __future__ import annotations

import re
from typing import Any

from simulator.interop.dialects.settings import Reading, Settings, idle_in
from simulator.interop.dialects.table import Word, field_values, read_words, write_words
from simulator.interop.dialects.torchrun import steps, torchrun, unsaid_stashes, wrapped
from simulator.interop.dialects.training_ways import refuse_way, way_of
from simulator.quoting import comment_line
from simulator.scenario import Scenario
from simulator.workload.recipe import Recipe

# --- written -------------------------------------------------------------------------------------

NEURONX_SECTION = "distributed_strategy"
"""Section by which settings are known as its."""

_DEGREES = (
    Word("layout.tp", f"{NEURONX_SECTION}.tensor_model_parallel_size"),
    Word("layout.pp", f"{NEURONX_SECTION}.pipeline_model_parallel_size"),
    Word("layout.vpp", f"{NEURONX_SECTION}.virtual_pipeline_model_parallel_size"),
)
_ADDED = (
    Word("layout.cp", f"{NEURONX_SECTION}.context_parallel_size"),
    Word("layout.ep", f"{NEURONX_SECTION}.expert_model_parallel_size", needs="layout.ep"),
)
"""Degrees that the example configurations do not have."""
_BATCH = (
    Word("layout.micro_batch", "data.micro_batch_size model.micro_batch_size"),
    Word("training.global_batch", "data.global_batch_size model.global_batch_size"),
)
_RUN = (
    Word("training.sequence_length", "data.seq_length model.encoder_seq_length"),
    Word("run.per_node", "trainer.devices"),
    Word("run.nodes", "trainer.num_nodes"),
    Word("run.steps", "trainer.max_steps"),
)
_SIZES = (
    Word("size.layers", "model.num_layers"),
    Word("size.hidden", "model.hidden_size"),
    Word("size.heads", "model.num_attention_heads"),
)
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
    groups = [_trainer(scenario), _layout(row, recipe), _model(row, scenario), _types(recipe)]
    notes = [comment_line(note) for note in _notes(row, scenario)]
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


def _layout(row: dict[str, Any], recipe: Recipe) -> list[str]:
    values = field_values(row, recipe)
    added = write_words(_ADDED, values)
    states = {"zero1": row["sharding"] == "zero1", "sequence_parallel": row["sequence_parallel"]}
    return [
        *(f"{key}={value}" for key, value in write_words((*_DEGREES, *_BATCH), values).items()),
        *(f"+{key}={value}" for key, value in added.items()),
        *(f"{NEURONX_SECTION}.{name}={bool(on)}" for name, on in states.items()),
    ]


def _model(row: dict[str, Any], scenario: Scenario) -> list[str]:
    arch, recipe = scenario.workload.architecture, scenario.workload.recipe
    model = [
        'model.model_config="$MODEL_CONFIG"',
        f"model.num_layers={arch.layers}",
        f"model.hidden_size={arch.hidden}",
        f"model.encoder_seq_length={recipe.sequence_length}",
        f"model.max_position_embeddings={max(arch.max_positions, recipe.sequence_length)}",
    ]
    granularity = {"none": "null"}.get(row["recompute"], row["recompute"])
    model.append(f"model.activations_checkpoint_granularity={granularity}")
    if row["recompute"] == "selective":
        usual = scenario.software.kernels.selective_modules
        names = row["recompute_modules"].split("+") if row["recompute_modules"] else usual
        modules = ",".join(_MODULES[name] for name in names if name in _MODULES)
        model.append(f"'model.activations_checkpoint_recompute=[{modules}]'")
    if row["cp"] > 1:
        model.append("+model.fusions.ring_attention=True")
    return model


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


# --- read ----------------------------------------------------------------------------------------

_READ_TARGETS = {
    theirs: tuple(name for name, word in _TARGETS.items() if word == theirs)
    for theirs in _TARGETS.values()
} | {"q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",)}
_TYPES = {
    "mixed_precision": "bf16", "mixed_precisionsr": "bf16", "autocast": "bf16", "bf16sr": "bf16",
    "fp32": "fp32",
}  # fmt: skip
_OPTIMIZERS = {"adamw": "adamw", "adamw_fp32optstate": "adamw"}


def read_neuronx(settings: Settings) -> Reading:
    """State what settings say; keys are dotted."""
    settings.resolve()
    read_words((*_DEGREES, *_ADDED, *_BATCH, *_RUN, *_SIZES), settings)
    _states(settings)
    _recompute(settings)
    settings.word("training.precision", _TYPES, "precision.type")
    settings.word("training.optimizer", _OPTIMIZERS, "model.optim.name")
    _adapters(settings)
    for key, setting in list(settings.found.items()):
        word = key.removeprefix("model_alignment_strategy.").partition(".")[0]
        if key.startswith("model_alignment_strategy.") and (way := way_of(word)):
            refuse_way(settings, way, setting)
            break
    config = settings.take("model.model_config")
    if config is not None:
        settings.notes.append(f"{config.place}: the model stands in {config.value}: --from it too")
    return settings.reading(
        "NeuronX Distributed Training", idle_in("neuronx"), software=("neuronx-distributed",)
    )


def _states(settings: Settings) -> None:
    shared = settings.flag(f"{NEURONX_SECTION}.zero1")
    if shared is not None:
        at = settings.found[f"{NEURONX_SECTION}.zero1"]
        settings.say("layout.sharding", "zero1" if shared else "ddp", at)
    split = settings.flag(f"{NEURONX_SECTION}.sequence_parallel")
    if split is not None:
        at = settings.found[f"{NEURONX_SECTION}.sequence_parallel"]
        alone = settings.value_of("layout.tp") == 1
        settings.say("layout.sequence_parallel", split and not alone, at)
    settings.flag("model.fusions.ring_attention")


def _words(value: object) -> list[str]:
    """Words of a list, as YAML or as text of a command."""
    return re.sub(r"[\[\],'\"]", " ", str(value)).split()


def _recompute(settings: Settings) -> None:
    kinds = {"full": "full", "selective": "selective", "null": "none", "none": "none"}
    key = "model.activations_checkpoint_granularity"
    at = settings.found.get(key)
    if at is not None and at.value is None:
        settings.say("layout.recompute", "none", at)
    kind = settings.word("layout.recompute", kinds, key)
    modules = settings.take("model.activations_checkpoint_recompute")
    gated = settings.flag("model.activations_checkpoint_recompute_mlp")
    if kind != "selective" or at is None:
        return
    found = ["core_attn", "mlp"] if gated else []
    modules_of = {theirs: ours for ours, theirs in _MODULES.items()}
    for word in _words(modules.value) if modules is not None and modules.value else ():
        if word in modules_of:
            found.append(modules_of[word])
        else:
            settings.notes.append(f"{at.place}: recomputation of {word} is not told apart")
    if found:
        named = "+".join(dict.fromkeys(found))
        settings.say("layout.recompute_modules", named, modules or at)


def _adapters(settings: Settings) -> None:
    for section in ("model.peft", "model_alignment_strategy.peft"):
        if settings.whole("training.lora_rank", f"{section}.lora_rank"):
            targets = settings.take(f"{section}.target_modules")
            words = _words(targets.value) if targets is not None else []
            names = [name for word in words for name in _READ_TARGETS.get(word, ())]
            if names and targets is not None:
                settings.say("training.lora_targets", names, targets)
