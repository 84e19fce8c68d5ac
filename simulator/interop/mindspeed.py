"""A layout as MindSpeed-LLM flags on Ascend: Megatron-LM's, where MindSpeed has none of its own.

Names as in Ascend/MindSpeed-LLM@c77308a1: examples/mcore, tests/st/shell_scripts (pretraining) and
examples/mcore/qwen3/tune_qwen3_14b_4K_lora_ptd.sh (adapters).
"""

from __future__ import annotations

from typing import Any

from simulator.interop.megatron import megatron_flags, megatron_notes
from simulator.interop.torchrun import torchrun, wrapped
from simulator.scenario import Scenario
from simulator.workload.recipe import Recipe

__all__ = ["mindspeed_block"]

_OTHERS = {
    "--cp-comm-type p2p": ["--context-parallel-algo megatron_cp_algo"],
    "--cp-comm-type a2a": ["--context-parallel-algo ulysses_cp_algo"],
    "--cp-comm-type a2a+p2p": ["--context-parallel-algo hybrid_cp_algo"],
    "--attention-backend flash": ["--use-flash-attn"],
    "--attention-backend unfused": [],
    "--mock-data": ['--data-path "$DATA_PATH"', "--split 100,0,0"],
    "--tokenizer-type NullTokenizer": [
        "--tokenizer-type PretrainedFromHF",
        '--tokenizer-name-or-path "$TOKENIZER_PATH"',
    ],
    "--no-create-attention-mask-in-dataloader": [],
}
"""Megatron-LM's flags -> MindSpeed's."""

_MODULES = {
    "core_attn": "--recompute-granularity selective",
    "norm": "--recompute-norm",
    "mlp_act": "--recompute-activation-function",
}
_TARGETS = {
    "q": "linear_qkv", "k": "linear_qkv", "v": "linear_qkv", "o": "linear_proj",
    "gate": "linear_fc1", "up": "linear_fc1", "down": "linear_fc2",
}  # fmt: skip


def mindspeed_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the command for pretrain_gpt.py, or for posttrain_gpt.py with adapters."""
    recipe = scenario.workload.recipe
    groups = [_translated(group) for group in megatron_flags(row, scenario)]
    groups += [_recomputed(row, scenario), _kernels(scenario), _schedule(row), _adapters(recipe)]
    script = "posttrain_gpt.py" if recipe.lora_rank else "pretrain_gpt.py"
    checkpoint = ", checkpoint ($CKPT)" if recipe.lora_rank else ""
    return "\n".join(
        [
            f"# In a checkout of MindSpeed-LLM, with torch_npu. Yours to set: data{checkpoint},"
            " tokenizer, learning rate; --spec where the model needs one.",
            "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True HCCL_CONNECT_TIMEOUT=3600"
            " CUDA_DEVICE_MAX_CONNECTIONS=1",
            wrapped(f"{torchrun(scenario.cluster)} {script}", [group for group in groups if group]),
            *(f"# {note}" for note in megatron_notes(row, scenario)),
        ]
    )


def _translated(group: list[str]) -> list[str]:
    found: list[str] = []
    for flag in group:
        name, _, value = flag.partition(" ")
        if name == "--recompute-modules" or flag == "--recompute-granularity selective":
            continue
        if name == "--vocab-size":
            found.append(f"--padded-vocab-size {int(value) + 1}")
        elif name == "--hierarchical-context-parallel-sizes":
            found.append(f"--ulysses-degree-in-cp {value.split()[0]}")
        else:
            found += _OTHERS.get(flag, [flag])
    return found


def _recomputed(row: dict[str, Any], scenario: Scenario) -> list[str]:
    """Modules that selective recomputation names have flags of their own."""
    if row["recompute"] != "selective":
        return []
    named: str = row["recompute_modules"]
    modules = named.split("+") if named else scenario.software.kernels.selective_modules
    return [_MODULES[name] for name in modules if name in _MODULES]


def _kernels(scenario: Scenario) -> list[str]:
    arch = scenario.workload.architecture
    flags = ["--use-mcore-models", "--transformer-impl local", "--distributed-backend nccl"]
    flags += ["--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion"]
    if arch.blocks[0].norm == "rms":
        flags.append("--use-fused-rmsnorm")
    if arch.position == "rope":
        flags += ["--use-rotary-position-embeddings", "--use-fused-rotary-pos-emb"]
    return flags + ["--use-fused-swiglu"] * all(mlp.gated for mlp in arch.mlps)


def _schedule(row: dict[str, Any]) -> list[str]:
    return ["--schedules-method dualpipev"] * (row["schedule"] == "dualpipe_v")


def _adapters(recipe: Recipe) -> list[str]:
    if not recipe.lora_rank:
        return []
    targets = dict.fromkeys(_TARGETS[name] for name in recipe.lora_targets if name in _TARGETS)
    return [
        "--finetune",
        "--stage sft",
        "--is-instruction-dataset",
        '--load "$CKPT"',
        f"--lora-r {recipe.lora_rank}",
        f"--lora-alpha {2 * recipe.lora_rank}",
        "--lora-fusion",
        f"--lora-target-modules {' '.join(targets)}",
    ]
