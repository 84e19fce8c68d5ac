"""``megatron sft`` and ``megatron pt`` of ms-swift: Megatron-Core's options, with other defaults.

Names and defaults as in modelscope/ms-swift@3602360a (2026-08-22), swift/megatron/arguments
(megatron_args.py, megatron_base_args.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.interop.dialects.megatron import read_megatron
from simulator.interop.dialects.settings import Reading, Setting, Settings, with_idle
from simulator.interop.dialects.training_ways import say_program

_NAMES = {
    "max_length": "seq_length",
    "packing_length": "seq_length",
    "save_steps": "save_interval",
    "train_type": "tuner_type",
    "lora_rank": "lora_r",
    "max_epochs": "num_train_epochs",
}
_PATHS = ("model", "mcore_model", "load", "model_type")
_USUAL: dict[str, Any] = {
    "layout.micro_batch": 1,
    "training.global_batch": 16,
    "layout.sharding": "zero1",
    "layout.recompute": "selective",
    "training.precision": "bf16",
}
_WHY = "ms-swift's default (swift/megatron/arguments/megatron_args.py)"


def read_megatron_swift(settings: Settings, program: str) -> Reading:
    """State what the options say, and what ms-swift does where they say nothing."""
    way = settings.take("rlhf_type")
    say_program(settings, program if way is None else f"megatron {way.value}")
    for theirs, ours in _NAMES.items():
        if (setting := settings.found.pop(theirs, None)) is not None:
            settings.found.setdefault(ours, replace(setting, key=ours))
    _model(settings)
    _adapters(settings)
    dtype = settings.take("torch_dtype")
    if dtype is not None and str(dtype.value) in ("float16", "bfloat16"):
        half = "bf16" if str(dtype.value) == "bfloat16" else "fp16"
        settings.found[half] = Setting(half, True, dtype.place)
    if settings.flag("packing"):
        settings.say("training.batching", "packed", settings.found["packing"])
    overlapped = settings.found.get("overlap_grad_reduce")
    is_overlapped = overlapped is not None and str(overlapped.value).lower() == "true"
    reading = read_megatron(settings, flags=False, kind="ms-swift command", program="")
    said = {item.field for item in reading.stated}
    for field, value in _USUAL.items():
        if field not in said:
            settings.usually(field, value, _WHY)
    software = ("megatron-core",) if is_overlapped else ("megatron-core-defaults",)
    reading = replace(reading, software=software, usual=tuple(settings.usual))
    return with_idle(reading, settings.found.values(), "ms_swift")


def _model(settings: Settings) -> None:
    """The model by its repository, or by the folder of its converted weights."""
    given = [settings.found.pop(key) for key in _PATHS if key in settings.found]
    named = [item for item in given if "$" not in str(item.value)]
    if named:
        name = str(named[0].value).strip("'\"").rstrip("/").rpartition("/")[2]
        name = name.removesuffix("-mcore")
        settings.found["model"] = Setting("model", name, named[0].place)


def _adapters(settings: Settings) -> None:
    kind = settings.take("tuner_type")
    rank = settings.found.get("lora_r")
    if kind is None or str(kind.value) == "full":
        settings.found.pop("lora_r", None)
        settings.take("target_modules")
        return
    settings.found["peft"] = Setting("peft", str(kind.value).removesuffix("_llm"), kind.place)
    if rank is None:
        settings.found["lora_r"] = Setting("lora_r", 8, kind.place)
    modules = settings.found.get("target_modules")
    if modules is not None and "all-linear" in str(modules.value):
        settings.take("target_modules")
