"""The configuration of an MLPerf training submission: a shell file of exported variables.

Names as NVIDIA's submissions to rounds 3.1 to 5.1 have them (mlcommons/training_results_v5.0,
NVIDIA/benchmarks/*/implementations/nemo/config_*.sh and conf/*.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulator.interop.dialects.megatron import adapted_matrices, say_recomputation
from simulator.interop.dialects.settings import Reading, Setting, Settings, idle_in

_DEGREES = {
    "layout.tp": ("TENSOR_MODEL_PARALLEL", "TP"),
    "layout.pp": ("PIPELINE_MODEL_PARALLEL", "PP"),
    "layout.vpp": ("INTERLEAVED_PIPELINE", "VIRTUAL_PIPELINE", "VP"),
    "layout.cp": ("CONTEXT_PARALLEL", "CP"),
    "layout.ep": ("EXPERT_PARALLEL", "EP", "EXPERT_MODEL_PARALLEL"),
    "layout.etp": ("EXPERT_TENSOR_PARALLEL", "ETP"),
    "layout.micro_batch": ("MICRO_BATCH_SIZE", "MBS"),
    "training.sequence_length": ("SEQ_LENGTH", "MAX_SEQ_LEN", "ENCODER_SEQ_LENGTH"),
    "run.nodes": ("DGXNNODES", "NNODES"),
    "run.per_node": ("DGXNGPU", "GPUS_PER_NODE"),
    "run.steps": ("MAX_STEPS",),
}
VARIABLES = {
    "DGXNNODES",
    "DGXNGPU",
    "MINIBS",
    "TENSOR_MODEL_PARALLEL",
    "PIPELINE_MODEL_PARALLEL",
    "DGXSYSTEM",
}
"""Variables by which such a file is known."""


def mlperf_variables(row: Mapping[str, Any]) -> dict[str, Any]:
    """A layout in all the names that rounds have for its fields."""
    on = bool(row["sequence_parallel"])
    return {
        **{
            key: row[name.removeprefix("layout.")]
            for name, keys in _DEGREES.items()
            if name.startswith("layout.")
            for key in keys
        },
        "MINIBS": row["global_batch"] // row["dp"],
        "SEQ_PARALLEL": str(on),
        "SEQUENCE_PARALLEL": str(on),
        "SP": int(on),
    }


_SEQUENCE = ("SEQ_PARALLEL", "SEQUENCE_PARALLEL", "SP")
_SIZES = ("8b", "70b", "405b")
"""Llama 3.1's, which rounds 5.0 and 5.1 pre-train."""

_LORA = ("LORA_", "NEMO_LORA_")
"""Variables of the fine-tuning benchmark, llama2_70b_lora, begin so."""
_LORA_RANK, _LORA_MODULES, _LORA_LENGTH = 16, ("linear_qkv", "linear_proj"), 8192
"""Fixed by its rules: what every submission's train.py and configuration say, whose variables
name neither (mlcommons/training_results_v5.0, NVIDIA's and AMD's, lines 198 to 208)."""

_MEGATRONS = {
    "ACG": "activations_checkpoint_granularity",
    "ACM": "activations_checkpoint_method",
    "ACL": "activations_checkpoint_num_layers",
}
"""Variables of AMD's submissions -> the keys of Megatron that they set."""

_RECIPES = {
    "delayed": "fp8", "tensorwise": "fp8_current", "current": "fp8_current", "mxfp8": "mxfp8",
    "blockwise": "fp8_blockwise", "nvfp4": "nvfp4",
}  # fmt: skip
_USUAL = {"FP8": "fp8", "FP4": "nvfp4"}


def read_mlperf_config(settings: Settings) -> Reading:
    """State what the variables say."""
    for name, keys in _DEGREES.items():
        setting = settings.take(*keys)
        if setting is not None and re.fullmatch(r"[1-9]\d{0,7}", str(setting.value)):
            settings.say(name, int(setting.value), setting)
    whole = settings.take("MINIBS", "GLOBAL_BATCH_SIZE", "GBS")
    if whole is not None and re.fullmatch(r"[1-9]\d{0,7}", str(whole.value)):
        per_rank = whole.key == "MINIBS"
        settings.say(
            "run.local_batch" if per_rank else "training.global_batch", int(whole.value), whole
        )
    parallel = next((key for key in _SEQUENCE if key in settings.found), "")
    if (on := settings.flag(*_SEQUENCE)) is not None:
        split = (settings.value_of("layout.tp") or 1) > 1
        settings.say("layout.sequence_parallel", on and split, settings.found[parallel])
    _precision(settings)
    _states(settings)
    for variable, key in _MEGATRONS.items():
        if (setting := settings.take(variable)) is not None:
            settings.found[key] = replace(setting, key=key)
    say_recomputation(settings)
    if settings.flag("CPU_OFFLOADING"):
        settings.whole("layout.offload_layers", "CPU_OFFLOADING_NUM_LAYERS", least=0)
    settings.take("CPU_OFFLOADING_NUM_LAYERS")
    _fine_tuning(settings)
    size = settings.take("MODEL_SIZE", "SIZE")
    if size is not None and str(size.value).lower() in _SIZES:
        settings.say("model.name", f"llama-3.1-{str(size.value).lower()}", size)
    fused = settings.flag("USE_TE_OPS")
    settings.problems.clear()  # variables of other rounds mean other things: listed, not refused
    return settings.reading("MLPerf configuration", idle_in("mlperf"),
                            software=(*(("mlperf-nemo-v5.1",) if fused else ()),
                                      "megatron-bridge", "primus"))  # fmt: skip


def _fine_tuning(settings: Settings) -> None:
    """The benchmark that fine-tunes Llama 2 70B, by variables that no other has."""
    known: Setting | None = next(
        (item for key, item in settings.found.items() if key.startswith(_LORA)), None
    )
    if known is None:
        return
    settings.taken.update(key for key in settings.found if key.startswith(_LORA))
    settings.say("model.name", "llama-2-70b", known)
    settings.say("training.lora_rank", _LORA_RANK, known)
    settings.say("training.lora_targets", adapted_matrices(_LORA_MODULES), known)
    eight_bit = str(settings.value_of("training.precision")).startswith("fp8")
    if eight_bit and not {"FP8_PARAM_GATHER", "FP8_PARAMS"} & settings.found.keys():
        settings.say("training.fp8_weights", True, known)  # fp8_params: ${oc.env:FP8}
    length = settings.whole("training.sequence_length", "MAX_SEQLEN")
    if length is None and settings.value_of("training.sequence_length") is None:
        settings.say("training.sequence_length", _LORA_LENGTH, known)


def _precision(settings: Settings) -> None:
    """Four bit stand above eight: files of several precisions set both."""
    found = settings.found
    for key in ("FP4", "FP8", "FP8_ENABLED"):
        if settings.flag(key) and settings.value_of("training.precision") is None:
            recipe = settings.word("", _RECIPES, f"{key[:3]}_RECIPE") or _USUAL[key[:3]]
            settings.say("training.precision", recipe, found[key])
    settings.take("FP8_RECIPE", "FP4_RECIPE")
    if settings.flag("FP8_PARAM_GATHER", "FP8_PARAMS"):
        at = found.get("FP8_PARAM_GATHER") or found["FP8_PARAMS"]
        if str(settings.value_of("training.precision")).startswith("fp8"):
            settings.say("training.fp8_weights", True, at)
    if settings.flag("FP8_ACT", "FP8_ACTIVATION"):  # activation_func_fp8_input_store
        at = found.get("FP8_ACT") or found["FP8_ACTIVATION"]
        settings.say("training.stash_bytes", {"activation_input": 1.0}, at)


def _states(settings: Settings) -> None:
    found = settings.found
    fully = settings.flag("FSDP", "USE_FSDP")
    shared = settings.flag("USE_DIST_OPTIMIZER")
    if fully:
        settings.say("layout.sharding", "zero3", found.get("FSDP") or found["USE_FSDP"])
    elif shared is not None:
        mode = "zero1" if shared else "ddp"
        settings.say("layout.sharding", mode, found["USE_DIST_OPTIMIZER"])
    if settings.flag("TP_PP_DP_MAPPING"):
        settings.say("layout.rank_order", "tp-cp-pp-dp", found["TP_PP_DP_MAPPING"])
