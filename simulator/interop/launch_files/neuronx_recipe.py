"""A configuration of NeuronX Distributed Training, or the same as ``section.key=value`` behind it.

Names as in aws-neuron/neuronx-distributed-training@9169aa0, examples/conf.
"""

from __future__ import annotations

import re
from dataclasses import replace

from simulator.interop.launch_files.idle_keys import idle_in
from simulator.interop.launch_files.settings import Reading, Settings

__all__ = ["NEURONX_SECTION", "read_neuronx"]

NEURONX_SECTION = "distributed_strategy"
"""Section by which settings are known as its."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_MODULES = {"CoreAttention": "core_attn", "LlamaMLP": "mlp"}
_TARGETS = {
    "qkv_proj": ("q", "k", "v"), "q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",),
    "o_proj": ("o",), "gate_up_proj": ("gate", "up"), "down_proj": ("down",),
}  # fmt: skip
_TYPES = {
    "mixed_precision": "bf16", "mixed_precisionsr": "bf16", "autocast": "bf16", "bf16sr": "bf16",
    "fp32": "fp32",
}  # fmt: skip
_OPTIMIZERS = {"adamw": "adamw", "adamw_fp32optstate": "adamw"}


def read_neuronx(settings: Settings) -> Reading:
    """State what settings say; keys are dotted."""
    _resolve(settings)
    for name, keys in (
        ("layout.tp", (f"{NEURONX_SECTION}.tensor_model_parallel_size",)),
        ("layout.pp", (f"{NEURONX_SECTION}.pipeline_model_parallel_size",)),
        ("layout.vpp", (f"{NEURONX_SECTION}.virtual_pipeline_model_parallel_size",)),
        ("layout.cp", (f"{NEURONX_SECTION}.context_parallel_size",)),
        ("layout.ep", (f"{NEURONX_SECTION}.expert_model_parallel_size",)),
        ("layout.micro_batch", ("data.micro_batch_size", "model.micro_batch_size")),
        ("training.global_batch", ("data.global_batch_size", "model.global_batch_size")),
        ("training.sequence_length", ("data.seq_length", "model.encoder_seq_length")),
        ("run.per_node", ("trainer.devices",)),
        ("run.nodes", ("trainer.num_nodes",)),
        ("run.steps", ("trainer.max_steps",)),
        ("size.layers", ("model.num_layers",)),
        ("size.hidden", ("model.hidden_size",)),
        ("size.heads", ("model.num_attention_heads",)),
    ):
        settings.whole(name, *keys)
    _states(settings)
    _recompute(settings)
    settings.word("training.precision", _TYPES, "precision.type")
    settings.word("training.optimizer", _OPTIMIZERS, "model.optim.name")
    _adapters(settings)
    config = settings.take("model.model_config")
    if config is not None:
        settings.notes.append(f"{config.place}: the model stands in {config.value}: --from it too")
    return settings.reading(
        "NeuronX Distributed Training", idle_in("neuronx"), software=("neuronx-distributed",)
    )


def _resolve(settings: Settings) -> None:
    """Put values in the place of references to other keys: ``${model.encoder_seq_length}``."""
    for key, setting in settings.found.items():
        named = _REFERENCE.fullmatch(setting.value) if isinstance(setting.value, str) else None
        other = settings.found.get(named[1]) if named else None
        if other is not None:
            settings.found[key] = replace(setting, value=other.value)


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
    for word in _words(modules.value) if modules is not None and modules.value else ():
        if word in _MODULES:
            found.append(_MODULES[word])
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
            names = [name for word in words for name in _TARGETS.get(word, ())]
            if names and targets is not None:
                settings.say("training.lora_targets", names, targets)
