"""Trainers of models with a tower that have arguments of their own beside a Trainer's.

What is trained of the model and with which adapters: LLaVA (haotian-liu/LLaVA, llava/train/
train.py), InternVL (OpenGVLab/InternVL, internvl/train/internvl_chat_finetune.py) and Qwen-VL
(QwenLM/Qwen3-VL, qwenvl/train/argument.py), with their defaults, August 2026.
"""

from __future__ import annotations

from typing import Any

from simulator.interop.dialects.settings import Setting, Settings, as_whole

_LLAVA = {"vision_tower", "mm_projector_type", "mm_vision_select_layer"}
_QWEN = ("tune_mm_llm", "tune_mm_mlp", "tune_mm_vision")
_INTERNVL = {"freeze_mlp", "use_llm_lora", "use_backbone_lora"}


def say_trained_parts(settings: Settings) -> None:
    """State frozen parts; put adapters and checkpointing in the words of a Trainer."""
    keys = set(settings.found)
    if not keys.isdisjoint(_QWEN):
        _adapters(settings)
        names = dict(zip(_QWEN, ("text", "projector", "tower"), strict=True))
        _freeze(settings, [part for key, part in names.items() if not settings.flag(key)])
    elif len(_LLAVA & keys) > 1:
        _adapters(settings)
        text = settings.flag("tune_mm_mlp_adapter"), settings.flag("freeze_backbone")
        tower = not settings.flag("unfreeze_mm_vision_tower")
        projector = settings.flag("freeze_mm_mlp_adapter")
        frozen = {"text": any(text), "projector": projector, "tower": tower}
        _freeze(settings, [part for part, on in frozen.items() if on])
    elif not keys.isdisjoint(_INTERNVL):
        _internvl(settings)


def _internvl(settings: Settings) -> None:
    tower_rank = settings.take("use_backbone_lora")
    if tower_rank is not None and as_whole(tower_rank.value):
        rule = "adapters of the tower are not modelled"
        settings.problems.append(f"{tower_rank.place}: {rule}, got {tower_rank.value!r}")
    rank = settings.take("use_llm_lora")
    if rank is not None and as_whole(rank.value):
        _put(settings, rank, lora_rank=rank.value)
    checkpoints = settings.take("grad_checkpoint")
    if "gradient_checkpointing" not in settings.found:
        at = checkpoints or settings.at(*sorted(_INTERNVL))
        value = True if checkpoints is None else checkpoints.value
        _put(settings, at, gradient_checkpointing=value)
    names = {"freeze_llm": "text", "freeze_mlp": "projector", "freeze_backbone": "tower"}
    _freeze(settings, [part for key, part in names.items() if settings.flag(key)])


def _adapters(settings: Settings) -> None:
    """``--lora_enable True`` with 64 ranks unless said; without it a rank means nothing."""
    on = settings.flag("lora_enable")
    if not on:
        settings.take("lora_r")
        settings.found.pop("lora_r", None)
    elif "lora_r" not in settings.found:
        _put(settings, settings.found["lora_enable"], lora_r=64)
    bits = settings.take("bits")
    if bits is not None and str(bits.value) in ("4", "8"):
        _put(settings, bits, **{f"load_in_{bits.value}bit": True})


def _freeze(settings: Settings, parts: list[str]) -> None:
    """State frozen parts, but for a language model that has adapters: they train it."""
    adapted = not {"lora_r", "lora_rank"}.isdisjoint(settings.found)
    left = [part for part in parts if not (adapted and part == "text")]
    at = settings.at(*_QWEN, *sorted(_INTERNVL), *sorted(_LLAVA))
    settings.say("run.frozen_parts", left, at)


def _put(settings: Settings, place: Setting, **said: Any) -> None:
    settings.found |= {key: Setting(key, value, place.place) for key, value in said.items()}
