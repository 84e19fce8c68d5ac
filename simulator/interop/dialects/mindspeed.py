"""A layout as MindSpeed-LLM flags on Ascend: Megatron-LM's, where MindSpeed has none of its own.

Names as in Ascend/MindSpeed-LLM@c77308a1: examples/mcore, tests/st/shell_scripts (pretraining) and
examples/mcore/qwen3/tune_qwen3_14b_4K_lora_ptd.sh (adapters).
"""

from __future__ import annotations

from typing import Any

from simulator.interop.dialects.megatron import (
    TARGETS,
    Arguments,
    megatron_arguments,
    megatron_notes,
    recomputed,
)
from simulator.interop.dialects.table import as_flags
from simulator.interop.dialects.torchrun import torchrun, wrapped
from simulator.quoting import Variable, comment_line
from simulator.scenario import Scenario
from simulator.workload.recipe import Recipe

_OWN = {
    "cp_comm_type": "context_parallel_algo",
    "hierarchical_context_parallel_sizes": "ulysses_degree_in_cp",
}
_ALGORITHMS = {"p2p": "megatron_cp_algo", "a2a": "ulysses_cp_algo", "a2a+p2p": "hybrid_cp_algo"}
_MODULES: dict[str, Arguments] = {
    "core_attn": {"recompute_granularity": "selective"},
    "norm": {"recompute_norm": True},
    "mlp_act": {"recompute_activation_function": True},
}
"""Modules that selective recomputation names have switches of their own."""


def mindspeed_block(row: dict[str, Any], scenario: Scenario) -> str:
    """Write the command for pretrain_gpt.py, or for posttrain_gpt.py with adapters."""
    recipe = scenario.workload.recipe
    groups = [_translated(group) for group in megatron_arguments(row, scenario)]
    groups += [_recomputed(row, scenario), _kernels(row, scenario), _adapters(recipe)]
    script = "posttrain_gpt.py" if recipe.lora_rank else "pretrain_gpt.py"
    checkpoint = ", checkpoint ($CKPT)" if recipe.lora_rank else ""
    return "\n".join(
        [
            f"# In a checkout of MindSpeed-LLM, with torch_npu. Yours to set: data{checkpoint},"
            " tokenizer, learning rate; --spec where the model needs one.",
            "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True HCCL_CONNECT_TIMEOUT=3600"
            " CUDA_DEVICE_MAX_CONNECTIONS=1",
            wrapped(f"{torchrun(scenario.cluster)} {script}", as_flags(groups)),
            *(comment_line(note) for note in megatron_notes(row, scenario)),
        ]
    )


def _translated(group: Arguments) -> Arguments:
    """Megatron-LM's arguments as MindSpeed has them."""
    arguments: Arguments = {}
    for key, value in group.items():
        if key == "vocab_size":
            arguments["padded_vocab_size"] = value + 1
        elif key == "mock_data":
            arguments |= {"data_path": Variable("DATA_PATH"), "split": "100,0,0"}
        elif key == "tokenizer_type":
            arguments |= {
                key: "PretrainedFromHF",
                "tokenizer_name_or_path": Variable("TOKENIZER_PATH"),
            }
        elif key == "attention_backend":
            arguments |= {"use_flash_attn": True} if value == "flash" else {}
        elif key in _OWN:
            own = _ALGORITHMS[value] if key == "cp_comm_type" else value[0]
            arguments[_OWN[key]] = own
        elif key not in ("recompute_modules", "no_create_attention_mask_in_dataloader"):
            arguments |= {} if value == "selective" else {key: value}
    return arguments


def _recomputed(row: dict[str, Any], scenario: Scenario) -> Arguments:
    arguments: Arguments = {}
    for name in recomputed(row, scenario.software) if row["recompute"] == "selective" else ():
        arguments |= _MODULES.get(name, {})
    return arguments


def _kernels(row: dict[str, Any], scenario: Scenario) -> Arguments:
    arch = scenario.workload.architecture
    rotary = arch.position == "rope"
    on = {
        "use_mcore_models": True,
        "no_gradient_accumulation_fusion": True,
        "no_masked_softmax_fusion": True,
        "use_fused_rmsnorm": arch.blocks[0].norm == "rms",
        "use_rotary_position_embeddings": rotary,
        "use_fused_rotary_pos_emb": rotary,
        "use_fused_swiglu": all(mlp.gated for mlp in arch.mlps),
    }
    arguments: Arguments = {"transformer_impl": "local", "distributed_backend": "nccl"}
    arguments |= {key: True for key, wanted in on.items() if wanted}
    return arguments | (
        {"schedules_method": "dualpipev"} if row["schedule"] == "dualpipe_v" else {}
    )


def _adapters(recipe: Recipe) -> Arguments:
    if not recipe.lora_rank:
        return {}
    return {
        "finetune": True,
        "stage": "sft",
        "is_instruction_dataset": True,
        "load": Variable("CKPT"),
        "lora_r": recipe.lora_rank,
        "lora_alpha": 2 * recipe.lora_rank,
        "lora_fusion": True,
        "lora_target_modules": list(
            dict.fromkeys(TARGETS[name] for name in recipe.lora_targets if name in TARGETS)
        ),
    }
