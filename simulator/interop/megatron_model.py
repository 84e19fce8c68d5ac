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
    attention, first = arch.attentions[0], arch.mlps[0]
    dense = next((mlp for mlp in arch.mlps if isinstance(mlp, MLP)), first)
    sizes = [
        f"--num-layers {arch.layers}",
        f"--hidden-size {arch.hidden}",
        f"--ffn-hidden-size {dense.ffn_hidden}",
        f"--num-attention-heads {attention.heads}",
        f"--max-position-embeddings {max(arch.max_positions, recipe.sequence_length)}",
    ]
    vocabulary = [f"--make-vocab-size-divisible-by {software.kernels.pads_vocabulary_to}"]
    if not arch.tied_embeddings:
        vocabulary.append("--untie-embeddings-and-output-weights")
    return [
        sizes,
        _attention(attention, arch),
        _experts(arch, recipe),
        [*_switches(arch.blocks[0], attention, first, arch), *vocabulary],
    ]


def unsaid(arch: Architecture) -> list[str]:
    """Name what the model has and the flags above do not say."""
    blocks, attentions = arch.blocks, arch.attentions
    found = {
        "mixers in place of attention": bool(arch.mixers),
        "layers of one module": any(
            kind.mlp is None or not (kind.attention or kind.mixer) for kind in blocks
        ),
        "an encoder and a decoder": arch.is_encoder_decoder,
        "images for input": arch.patch_values > 0,
        "attention to both sides": not all(att.causal for att in attentions),
        "disentangled attention": any(att.disentangled for att in attentions),
        "localized filtering": any(att.filtered for att in attentions),
        "attention in chunks": any(att.chunked for att in attentions),
        "layers without positions": arch.position == "rope"
        and not all(att.rotary for att in attentions),
        "norms of queries and keys without weights": any(att.plain_qk_norm for att in attentions),
        "a convolution beside attention": any(kind.convolution for kind in blocks),
        "heads of several tasks": arch.tasks is not None,
        "projected embeddings": arch.table_width > 0,
        "attention sinks": any(att.sinks for att in attentions),
        "capped scores": any(att.softcap for att in attentions),
        "norms behind attention and MLP": any(kind.norms > 3 for kind in blocks),
        "biases of experts": any(moe.bias for moe in arch.moes),
        "rectified MLPs": any(mlp.activation == "relu" for mlp in arch.mlps),
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
    layers = [arch.blocks[kind].attention for kind in arch.layer_kinds]
    windows = [0 if att is None or att.chunked else att.window for att in layers]
    if not any(windows):
        return []
    flags = [f"--window-size {max(windows) - 1},0"]
    if not all(windows):
        flags.append(f"--window-attn-skip-freq '{_pattern([int(w > 0) for w in windows])}'")
    return flags


def _experts(arch: Architecture, recipe: Recipe) -> list[str]:
    moe = next(iter(arch.moes), None)
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


def _switches(block: Block, attention: Attention, mlp: MLP | MoE, arch: Architecture) -> list[str]:
    flags = [
        f"--normalization {'RMSNorm' if block.norm == 'rms' else 'LayerNorm'}",
        f"--position-embedding-type {_POSITIONS[arch.position]}",
    ]
    if mlp.gated:
        flags.append("--swiglu")
    elif mlp.activation == "squared_relu":
        flags.append("--squared-relu")
    if not (isinstance(mlp, MLP) and mlp.bias):
        flags.append("--disable-bias-linear")
        if attention.qkv_bias:
            flags.append("--add-qkv-bias")
    if not attention.dropout:
        flags.append("--attention-dropout 0.0")
    if not block.dropout:
        flags.append("--hidden-dropout 0.0")
    return flags
