"""Variables that tell a script of one's own its layout, as ``interop/torchrun.py`` writes them."""

from __future__ import annotations

from typing import Any

from simulator.interop.launch_files.settings import Reading, Settings, as_whole
from simulator.interop.torchrun import PLAIN

__all__ = ["PLAIN_VARIABLES", "read_variables"]

PLAIN_VARIABLES = {"MICRO_BATCH", "GRADIENT_ACCUMULATION", "SEQUENCE_LENGTH"}
_PRECISIONS = {name: name for name in ("fp32", "tf32", "fp16", "bf16", "fp8")}


def read_variables(settings: Settings) -> Reading:
    """State what the variables say."""
    settings.whole("layout.micro_batch", "MICRO_BATCH")
    settings.whole("run.accumulation", "GRADIENT_ACCUMULATION")
    settings.whole("training.sequence_length", "SEQUENCE_LENGTH")
    settings.whole("run.steps", "STEPS")
    settings.whole("training.lora_rank", "LORA_RANK")
    settings.word("training.precision", _PRECISIONS, "PRECISION")
    modes = {word: word for word in ("none", "selective", "full")}
    settings.word("layout.recompute", modes, "RECOMPUTE")
    for name, usual in {**PLAIN, "shard_group": 0}.items():
        setting = settings.take(name.upper())
        if setting is not None:
            settings.say(f"layout.{name}", _value(str(setting.value), usual), setting)
    targets = settings.take("LORA_TARGETS")
    if targets is not None:
        settings.say("training.lora_targets", str(targets.value).split(","), targets)
    return settings.reading("variables of a training script", str.isupper, software=("plain-ddp",))


def _value(text: str, usual: Any) -> Any:
    """A field's value of its text; what is none is left to the scenario's own check."""
    if isinstance(usual, list):
        return [as_whole(count) for count in text.split(",")]
    words = {"true": True, "false": False} if isinstance(usual, bool) else {}
    number = None if isinstance(usual, str) else as_whole(text)
    return words.get(text.lower(), text if number is None else number)
