"""The shape of a model as Megatron-LM flags (names as in megatron/training/arguments.py)."""

from __future__ import annotations

from itertools import groupby

from simulator.software.profile import Software
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.recipe import Recipe

__all__ = ["model_flags", "unsaid"]

_POSITIONS = {
    "rope": "rope", "learned": "learned_absolute", "none": "none", "alibi": "none",
    "relative": "none",
}  # fmt: skip


def model_flags(arch: Architecture, software: Software, recipe: Recipe) -> list[list[str]]:
    """Flags of the model's shape in groups: sizes, attention, experts, switches."""
    block = arch.blocks[0]
    dense = next((kind.mlp for kind in arch.blocks if isinstance(kind.mlp, MLP)), None)
    width = dense.ffn_hidden if dense is not None else block.mlp.ffn_hidden
    sizes = [
        f"--num-layers {arch.layers}",
        f"--hidden-size {arch.hidden}",
        f"--ffn-hidden-size {width}",
        f"--num-attention-heads {block.attention.heads}",
        f"--max-position-embeddings {max(arch.max_positions, recipe.sequence_length)}",
    ]
    vocabulary = [f"--make-vocab-size-divisible-by {software.kernels.pads_vocabulary_to}"]
    if not arch.tied_embeddings:
        vocabulary.append("--untie-embeddings-and-output-weights")
    return [
        sizes,
        _attention(block.attention, arch),
        _experts(arch, recipe),
        [*_switches(block, arch), *vocabulary],
    ]


def unsaid(arch: Architecture) -> list[str]:
    """Name what the model has and the flags above do not say."""
    blocks = arch.blocks
    found = {
        "an encoder and a decoder": arch.is_encoder_decoder,
        "images for input": arch.patch_values > 0,
        "attention to both sides": not all(kind.attention.causal for kind in blocks),
        "disentangled attention": any(kind.attention.disentangled for kind in blocks),
        "localized filtering": any(kind.attention.filtered for kind in blocks),
        "attention in chunks": any(kind.attention.chunked for kind in blocks),
        "layers without positions": arch.position == "rope"
        and not all(kind.attention.rotary for kind in blocks),
        "norms of queries and keys without weights": any(
            kind.attention.plain_qk_norm for kind in blocks
        ),
        "a convolution beside attention": any(kind.convolution for kind in blocks),
        "heads of several tasks": arch.tasks is not None,
        "projected embeddings": arch.table_width > 0,
        "attention sinks": any(kind.attention.sinks for kind in blocks),
        "capped scores": any(kind.attention.softcap for kind in blocks),
        "norms behind attention and MLP": any(kind.norms > 3 for kind in blocks),
        "biases of experts": any(isinstance(k.mlp, MoE) and k.mlp.bias for k in blocks),
        "rectified MLPs": any(kind.mlp.activation == "relu" for kind in blocks),
    }
    return [name for name, there in found.items() if there]


def _attention(attention: Attention, arch: Architecture) -> list[str]:
    if attention.is_mla:
        nope = attention.head_dim - attention.rope_head_dim
        query = [f"--q-lora-rank {attention.q_lora_rank}"] if attention.q_lora_rank else []
        return [
            "--multi-latent-attention",
            *query,
            f"--kv-lora-rank {attention.kv_lora_rank}",
            f"--qk-head-dim {nope}",
            f"--qk-pos-emb-head-dim {attention.rope_head_dim}",
            f"--v-head-dim {attention.value_dim}",
            "--qk-layernorm",
        ]
    flags = [f"--kv-channels {attention.head_dim}"]
    if attention.kv_heads != attention.heads:
        flags += ["--group-query-attention", f"--num-query-groups {attention.kv_heads}"]
    if attention.qk_norm:
        flags.append("--qk-layernorm")
    return flags + _window(arch)


def _window(arch: Architecture) -> list[str]:
    """Sliding windows: W tokens with the current one are W - 1 to its left."""
    each = [arch.blocks[kind].attention for kind in arch.layer_kinds]
    windows = [0 if attention.chunked else attention.window for attention in each]
    if not any(windows):
        return []
    flags = [f"--window-size {max(windows) - 1},0"]
    if not all(windows):
        flags.append(f"--window-attn-skip-freq '{_pattern([int(w > 0) for w in windows])}'")
    return flags


def _experts(arch: Architecture, recipe: Recipe) -> list[str]:
    moe = next((kind.mlp for kind in arch.blocks if isinstance(kind.mlp, MoE)), None)
    if moe is None:
        return []
    flags = [
        f"--num-experts {moe.experts}",
        f"--moe-router-topk {moe.top_k}",
        f"--moe-ffn-hidden-size {moe.ffn_hidden}",
    ]
    if moe.top_groups < moe.groups:
        flags += [
            f"--moe-router-num-groups {moe.groups}",
            f"--moe-router-group-topk {moe.top_groups}",
        ]
    if recipe.is_quantised or recipe.precision == "bf16":
        flags.append("--moe-grouped-gemm")
    if moe.shared_ffn_hidden:
        flags.append(f"--moe-shared-expert-intermediate-size {moe.shared_ffn_hidden}")
    if recipe.moe_capacity_factor is not None:
        flags.append(f"--moe-expert-capacity-factor {recipe.moe_capacity_factor:g}")
        flags += ["--moe-pad-expert-input-to-capacity"] * recipe.moe_pads_to_capacity
    sparse = [int(arch.blocks[kind].is_moe) for kind in arch.layer_kinds]
    return flags + ([] if all(sparse) else [f"--moe-layer-freq '{_pattern(sparse)}'"])


def _pattern(flags: list[int]) -> str:
    """Write a 0/1 pattern over layers as Megatron reads it: ``([0]*3+[1]*58)``."""
    runs = [f"[{value}]*{len(list(same))}" for value, same in groupby(flags)]
    return f"({'+'.join(runs)})"


def _switches(block: Block, arch: Architecture) -> list[str]:
    attention, gated = block.attention, block.mlp.gated
    flags = [
        f"--normalization {'RMSNorm' if block.norm == 'rms' else 'LayerNorm'}",
        f"--position-embedding-type {_POSITIONS[arch.position]}",
    ]
    if gated:
        flags.append("--swiglu")
    elif block.mlp.activation == "squared_relu":
        flags.append("--squared-relu")
    if not (isinstance(block.mlp, MLP) and block.mlp.bias):
        flags.append("--disable-bias-linear")
        if attention.qkv_bias:
            flags.append("--add-qkv-bias")
    if not attention.dropout:
        flags.append("--attention-dropout 0.0")
    if not block.dropout:
        flags.append("--hidden-dropout 0.0")
    return flags
