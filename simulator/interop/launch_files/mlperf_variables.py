"""The configuration of an MLPerf training submission: a shell file of exported variables.

Names as NVIDIA's submissions to rounds 3.1 to 5.1 have them (mlcommons/training_results_v5.0,
NVIDIA/benchmarks/*/implementations/nemo/config_*.sh and conf/*.yaml).
"""

from __future__ import annotations

import re

from simulator.interop.launch_files.idle_keys import idle_in
from simulator.interop.launch_files.settings import Reading, Settings

__all__ = ["VARIABLES", "read_mlperf_config"]

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
    if (on := settings.flag("SEQ_PARALLEL", "SEQUENCE_PARALLEL")) is not None:
        at = settings.found.get("SEQ_PARALLEL") or settings.found["SEQUENCE_PARALLEL"]
        settings.say("layout.sequence_parallel", on, at)
    if settings.flag("FP8", "FP8_ENABLED"):
        at = settings.found.get("FP8") or settings.found["FP8_ENABLED"]
        settings.say("training.precision", "fp8", at)
    fully = settings.flag("FSDP", "USE_FSDP")
    if fully:
        settings.say(
            "layout.sharding", "zero3", settings.found.get("FSDP") or settings.found["USE_FSDP"]
        )
    settings.problems.clear()  # variables of other rounds mean other things: listed, not refused
    return settings.reading("MLPerf configuration", idle_in("mlperf"),
                            software=("megatron-bridge",))  # fmt: skip
