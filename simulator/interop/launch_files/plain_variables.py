"""Variables that tell a script of one's own its layout, as ``interop/torchrun.py`` writes them."""

from __future__ import annotations

from simulator.interop.launch_files.settings import Reading, Settings

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
    shardings = {word: word for word in ("ddp", "zero1", "zero2", "zero3")}
    settings.word("layout.sharding", shardings, "SHARDING")
    targets = settings.take("LORA_TARGETS")
    if targets is not None:
        settings.say("training.lora_targets", str(targets.value).split(","), targets)
    return settings.reading("variables of a training script", str.isupper, software=("plain-ddp",))
