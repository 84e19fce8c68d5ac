"""Configurations of NeMo 1 (YAML over megatron_gpt_config.yaml) in the words of Megatron-Core.

Names as configurations of NVIDIA/NeMo-Framework-Launcher@26e42fa9 have them, with the options of
its ``main.py`` (``training.model.micro_batch_size=2``); gradients are summed in fp32 unless
``grad_sync_dtype`` says otherwise, as in NVIDIA/NeMo's megatron_gpt_model.py,
setup_mcore_distributed_parallel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from simulator.interop.dialects.megatron import read_megatron
from simulator.interop.dialects.settings import (
    Place,
    Reading,
    Setting,
    Settings,
    as_whole,
    with_idle,
)

_MARKS = ("model.megatron_amp_O2", "model.mcore_gpt", "model.apex_transformer_log_level")
_OTHER_MODELS = re.compile(
    r"model\.(?:encoder|decoder|mm_cfg|vision|unet_config|first_stage_config|retro)\."
    r"|model\.(?:bert_binary_head|mcore_bert|mcore_t5|add_binary_head|resolution|patch_dim)$"
)
_ELSEWHERE = re.compile(
    r"(?:run|exp_manager|hydra|cluster|stages|defaults|s3_checkpointing|env_vars|restore_from_path"
    r"|inference|model\.nsys_profile|model\.optim\.sched|model\.megatron_timer_kwargs|model\.data"
    r"|model\.inference|model\.ub_tp_comm_overlap_cfg)(?:\.|$)"
)
"""Sections whose keys bear on neither time nor memory, but for those that are taken out before."""
_NAMES = {
    "model.bias": "add_bias_linear",
    "model.qkv_bias": "add_qkv_bias",
    "model.override_vocab_size": "vocab_size",
    "model.tokenizer.vocab_size": "vocab_size",
    "model.ub_tp_comm_overlap": "tp_comm_overlap",
    "model.optim.overlap_grad_sync": "overlap_grad_reduce",
    "model.optim.overlap_param_sync": "overlap_param_gather",
    "model.fp8_params": "fp8_param_gather",
    "model.data.seq_length": "seq_length",
    "model.data.train_ds.max_seq_length": "seq_length",
    "model.data.train_ds.micro_batch_size": "micro_batch_size",
    "model.data.train_ds.global_batch_size": "global_batch_size",
    "exp_manager.checkpoint_callback_params.every_n_train_steps": "save_interval",
    "model.peft.lora_tuning.target_modules": "target_modules",
}
_GATED = ("swiglu", "geglu", "reglu")
_SHARED_STATES = ("distributed_fused_adam", "mcore_distributed_optim")
_FUSED = re.compile(r"\$\{multiply:(\d{1,3}),\s*\$\{\.(\w+)\}\}")
_SIBLING = re.compile(r"\$\{\.(\w+)\}")


def is_nemo(keys: Iterable[str]) -> bool:
    """Whether a file's keys are those of NeMo 1.

    >>> is_nemo(["model.mcore_gpt"]), is_nemo(["model.num_layers"])
    (True, False)
    """
    return not set(keys).isdisjoint(_MARKS)


def _other_model(settings: Iterable[Setting]) -> Setting | None:
    """A setting that only models have which are no decoders of text."""
    return next((item for item in settings if _OTHER_MODELS.match(item.key)), None)


def is_named_to_launcher(name: str, text: str) -> bool:
    """Whether a command of the launcher names a configuration, which it does without its ending.

    >>> is_named_to_launcher("7b.yaml", "python main.py training=llama/7b stages=[training]")
    True
    """
    stem = name.removesuffix(".yaml")
    return (
        stem != name
        and re.search(rf"\btraining=(?:\S*/)?{re.escape(stem)}(?!\S)", text) is not None
    )


def of_the_launcher(settings: Iterable[Setting]) -> list[Setting] | None:
    """Options of the launcher's ``main.py`` as keys of the configuration; None: of no launcher."""
    options = list(settings)
    keys = {item.key.lstrip("+~") for item in options}
    if "stages" not in keys or not any(key.partition(".")[0] == "training" for key in keys):
        return None
    inner = [item for item in options if item.key.lstrip("+~").startswith("training.")]
    return [replace(x, key=x.key.lstrip("+~").removeprefix("training.")) for x in inner]


def _in_words_of_core(settings: Iterable[Setting]) -> tuple[list[Setting], tuple[Place, ...]]:
    """Settings under Megatron-Core's names, and where those stand that bear on nothing."""
    options = {item.key: item for item in settings}
    options = {
        key: replace(item, value=_worked_out(item, options)) for key, item in options.items()
    }
    said = {name: options.pop(key) for key, name in _NAMES.items() if key in options}
    said = {name: item for name, item in said.items() if not _blank(item.value)}
    for taken in (_activation, _low_precision, _states, _tokenizer, _adapters):
        said |= taken(options)
    idle = [options.pop(key) for key in list(options) if _ELSEWHERE.match(key)]
    tails = {k.rpartition(".")[2]: item for k, item in options.items() if not _blank(item.value)}
    names = {name: replace(item, key=name) for name, item in {**tails, **said}.items()}
    return list(names.values()), tuple(item.place for item in idle)


def reading_of(settings: list[Setting], path: str) -> Reading:
    """What a configuration says; one of another model than a decoder of text is refused."""
    kind = "NeMo 1 configuration"
    if (other := _other_model(settings)) is not None:
        rule = "a model that is no decoder of text is not read: nothing is answered"
        return Reading(path=path, kind=kind, problems=(f"{other.place}: {rule}",))
    kept, elsewhere = _in_words_of_core(settings)
    reading = read_megatron(Settings.of(path, kept), flags=False, kind=kind)
    software, idle = ("nemo-24.07", *reading.software), (*reading.idle, *elsewhere)
    return with_idle(replace(reading, software=software, idle=idle), kept, "nemo")


def _blank(value: Any) -> bool:
    return value is None or str(value).strip().lower() in ("", "null", "none")


def _off(value: Any) -> bool:
    return _blank(value) or str(value).lower() in ("false", "0")


def _worked_out(item: Setting, options: dict[str, Setting]) -> Any:
    """A value that names another of its section, or a multiple of one."""
    section = item.key.rpartition(".")[0]
    text = item.value if isinstance(item.value, str) else ""
    if sibling := _SIBLING.fullmatch(text):
        other = options.get(f"{section}.{sibling[1]}")
        return item.value if other is None else other.value
    if fused := _FUSED.fullmatch(text):
        other = options.get(f"{section}.{fused[2]}")
        number = None if other is None else as_whole(other.value)
        return item.value if number is None else int(fused[1]) * number
    return item.value


def _activation(options: dict[str, Setting]) -> dict[str, Setting]:
    setting = options.pop("model.activation", None)
    if setting is None:
        return {}
    word = str(setting.value).strip("'\"").lower().removeprefix("fast-").replace("_", "-")
    if word in _GATED:
        name = "swiglu" if word == "swiglu" else "gated_linear_unit"
        return {name: replace(setting, value=True)}
    return {"squared_relu": replace(setting, value=True)} if word == "squared-relu" else {}


def _low_precision(options: dict[str, Setting]) -> dict[str, Setting]:
    on, low, mixed = (options.pop(f"model.fp8{end}", None) for end in ("", "_e4m3", "_hybrid"))
    if on is None or _off(on.value):
        return {}
    narrow = low is not None and not _off(low.value) and (mixed is None or _off(mixed.value))
    return {"fp8_format": replace(on, value="e4m3" if narrow else "hybrid")}


def _states(options: dict[str, Setting]) -> dict[str, Setting]:
    """Who holds moments, and the type of gradients on their way."""
    name = options.pop("model.optim.name", None)
    said = {}
    fully, how = options.get("model.fsdp"), options.get("model.fsdp_sharding_strategy")
    if fully is not None and not _off(fully.value) and how and str(how.value).lower() == "full":
        said["use_torch_fsdp2"] = replace(fully, value=True)
    elif name is not None:
        shared = str(name.value).strip("'\"") in _SHARED_STATES
        said["use_distributed_optimizer"] = replace(name, value=shared)
    if fully is not None and (_off(fully.value) or said.keys() == {"use_torch_fsdp2"}):
        for key in [key for key in options if key.startswith("model.fsdp")]:
            del options[key]
    synced = options.pop("model.optim.grad_sync_dtype", None)
    if synced is not None and str(synced.value).lower() in ("bf16", "bfloat16"):
        said["grad_reduce_in_bf16"] = replace(synced, value=True)
    elif name is not None:
        said["grad_reduce_in_fp32"] = replace(name, value=True)
    return said


def _tokenizer(options: dict[str, Setting]) -> dict[str, Setting]:
    library, kind, model = (
        options.pop(f"model.tokenizer.{key}", None) for key in ("library", "type", "model")
    )
    where = "" if library is None else str(library.value).strip("'\"")
    if kind is not None and not _blank(kind.value):
        name = "tokenizer_type" if where == "megatron" else "tokenizer_name_or_path"
        return {name: replace(kind, value=str(kind.value).strip("'\""))}
    return {} if model is None or _blank(model.value) else {"tokenizer_model": model}


def _adapters(options: dict[str, Setting]) -> dict[str, Setting]:
    kind = options.pop("model.peft.peft_scheme", None)
    rank = options.pop("model.peft.lora_tuning.adapter_dim", None)
    for key in [key for key in options if key.startswith("model.peft.")]:
        del options[key]
    if kind is None or _blank(kind.value):
        return {}
    return {"peft": kind} | ({} if rank is None else {"adapter_dim": rank})
