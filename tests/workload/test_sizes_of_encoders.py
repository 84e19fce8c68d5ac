"""Encoders and images layer by layer: defaults of transformers' config classes, sizes by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simulator.workload.architecture import Architecture
from simulator.workload.huggingface import from_hf
from simulator.workload.mixers import ChunkProduct
from simulator.workload.modules import MoE
from simulator.workload.torch_operators import _convolution, _flash

SIZES = {
    "hidden_size": 60, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
}  # fmt: skip
T5 = {"d_model": 28, "d_ff": 48, "num_layers": 7, "num_heads": 3, "vocab_size": 100}


def read(family: str, sizes: dict[str, Any], **changes: Any) -> Architecture:
    return from_hf({"model_type": family, **sizes, **changes}, name="tiny", where="config.json")


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 2 * 512), ({"max_position_embeddings": 300}, 2 * 300),
        ({"max_relative_positions": 70}, 2 * 70), ({"max_relative_positions": 1}, 2),
        ({"max_relative_positions": 0}, 2 * 512), ({"max_relative_positions": -1}, 2 * 512),
        ({"position_buckets": 33, "max_relative_positions": 70}, 2 * 33),
        ({"position_buckets": 1}, 2), ({"position_buckets": 0}, 2 * 512),
        ({"position_buckets": -1}, 2 * 512),
    ],
)  # fmt: skip
def test_relative_positions_of_deberta(changes: dict[str, Any], rows: int) -> None:
    """DebertaV2Config: buckets where there are any, else as many positions, on either side."""
    terms = {"relative_attention": True, "pos_att_type": "p2c|c2p", "vocab_size": 100}
    found = read("deberta-v2", SIZES, **terms, **changes)
    assert [block.attention and block.attention.disentangled for block in found.blocks] == [rows]
    assert found.extra_embeddings == rows
    plain = read("deberta-v2", SIZES, vocab_size=100, type_vocab_size=3)
    assert plain.blocks[0].attention is not None and not plain.blocks[0].attention.disentangled
    assert (plain.extra_embeddings, plain.embedding_norms, plain.max_positions) == (3, 1, 512)


@pytest.mark.parametrize("kernel", [0, 1, 3])
def test_the_first_layer_of_deberta_may_have_a_convolution(kernel: int) -> None:
    found = read("deberta-v2", SIZES, vocab_size=100, conv_kernel_size=kernel, conv_groups=4)
    seen = [found.blocks[kind].convolution for kind in found.layer_kinds]
    assert seen == [kernel, 0, 0, 0, 0]
    more = found.parameters - read("deberta-v2", SIZES, vocab_size=100).parameters
    # 15 channels of a group, so many tokens, and a layer norm of its own
    assert more == (60 * (15 * kernel + 1) + 2 * 60 if kernel else 0)


def test_an_image_in_patches() -> None:
    """ViTConfig: 224 pixels in patches of 16, three colours; a class token with a position."""
    found = read("vit", SIZES)
    assert (found.max_positions, found.extra_embeddings) == (14 * 14 + 1, 1)
    assert found.patch_values == 16 * 16 * 3
    assert found.embedding_parameters == (14 * 14 + 1 + 1) * 60 + 60 * (768 + 1)
    other = read("vit", SIZES, image_size=90, patch_size=10, num_channels=1, num_labels=7,
                 architectures=["ViTForImageClassification"])  # fmt: skip
    assert (other.max_positions, other.patch_values, other.classes) == (82, 100, 7)


def test_windows_of_swin_stage_by_stage() -> None:
    """SwinConfig: 56 x 56 patches of 4; twice the width and a quarter of the tokens a stage."""
    found = read("swin", {})
    layers = [found.blocks[kind] for kind in found.layer_kinds]
    assert [layer.width for layer in layers] == [96] * 2 + [192] * 2 + [384] * 6 + [768] * 2
    edges = [56] * 2 + [28] * 2 + [14] * 6 + [7] * 2
    assert [layer.tokens for layer in layers] == [edge**2 for edge in edges]
    merges = [at in (2, 4, 10) for at in range(12)]
    assert [layer.merges_patches for layer in layers] == merges
    heads = [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2
    attentions = [layer.attention for layer in layers if layer.attention is not None]
    assert [one.heads for one in attentions] == heads
    assert {(one.head_dim, one.window, one.relative_buckets) for one in attentions} == {
        (32, 49, 169)
    }
    assert {layer.mlp.ffn_hidden // layer.width for layer in layers if layer.mlp} == {4}
    small = read("swin", {"image_size": 20, "embed_dim": 30, "depths": [1, 1], "num_heads": [3, 5],
                          "window_size": 4, "mlp_ratio": 2.5})  # fmt: skip
    layers = [small.blocks[kind] for kind in small.layer_kinds]
    assert [(x.width, x.tokens, x.attention and x.attention.window) for x in layers] == [
        (30, 25, 16), (60, 4, 4),
    ]  # fmt: skip
    assert [x.mlp and x.mlp.ffn_hidden for x in layers] == [75, 150]
    assert small.patch_values == 48 and small.max_positions == 25


def test_both_sides_of_t5() -> None:
    """T5Config: heads of 64, 32 buckets, as many layers for the decoder; a table on either side."""
    found = read("t5", T5)
    layers = [found.blocks[kind] for kind in found.layer_kinds]
    assert [layer.cross_attention is not None for layer in layers] == [False] * 7 + [True] * 7
    assert [layer.norms for layer in layers] == [2] * 7 + [3] * 7
    assert [layer.starts_decoder for layer in layers] == [at == 7 for at in range(14)]
    attentions = [layer.attention for layer in layers if layer.attention is not None]
    assert [one.relative_buckets for one in attentions] == [
        32 if at in (0, 7) else 0 for at in range(14)
    ]
    assert [one.causal for one in attentions] == [False] * 7 + [True] * 7
    assert {one.head_dim for one in attentions} == {64} and found.max_positions == 512
    short = read("t5", T5, num_decoder_layers=2, d_kv=5, relative_attention_num_buckets=9)
    layers = [short.blocks[kind] for kind in short.layer_kinds]
    assert len(layers) == 9
    first = layers[0].attention
    assert first is not None and (first.head_dim, first.relative_buckets) == (5, 9)


@pytest.mark.parametrize(
    ("word", "gated", "activation"),
    [("relu", False, "relu"), ("gelu", False, "gelu"), ("gated-gelu", True, "gelu"),
     ("gated-relu", True, "relu")],
)  # fmt: skip
def test_feed_forward_of_t5(word: str, gated: bool, activation: str) -> None:
    mlp = read("t5", T5, feed_forward_proj=word).blocks[0].mlp
    assert mlp is not None
    assert (mlp.gated, mlp.activation) == (gated, activation)


@pytest.mark.parametrize(
    ("sparse", "layers"),
    [
        # every n-th of seven layers, n = 7 // 3, 7 // 2, 7 // 1, all; none is one, as there
        (3, [1, 3, 5]), (2, [1, 4]), (1, [1]), (7, list(range(7))), (0, [1]), (None, [1, 3, 5]),
    ],
)  # fmt: skip
def test_layers_of_experts_of_switch_transformers(sparse: int | None, layers: list[int]) -> None:
    named = {} if sparse is None else {"num_sparse_encoder_layers": sparse}
    found = read("switch_transformers", T5, **named)
    kinds = [found.blocks[kind].mlp for kind in found.layer_kinds][:7]
    assert [at for at, mlp in enumerate(kinds) if isinstance(mlp, MoE)] == layers
    (moe,) = {mlp for mlp in kinds if isinstance(mlp, MoE)}
    assert (moe.experts, moe.top_k, moe.ffn_hidden) == (8, 1, 48)


def test_a_product_over_a_chunk_counts_half_where_it_is_causal() -> None:
    product = ChunkProduct(name="x", count=5, m=7, n=11, k=13)
    assert product.flop == 2 * 5 * 7 * 11 * 13
    assert ChunkProduct(name="x", count=5, m=7, n=11, k=13, causal=True).flop == 5 * 7 * 11 * 13


def tensor(*shape: int, width: int = 2) -> Any:
    size = 1
    for length in shape:
        size *= length
    return SimpleNamespace(shape=shape, numel=lambda: size, element_size=lambda: width)


def test_sizes_of_what_torch_calls() -> None:
    """Attention of 3 sequences, 5 heads, 70 queries on 90 keys of 16 and values of 8."""
    q, k, v, out = (
        tensor(3, 5, 70, 16),
        tensor(3, 5, 90, 16),
        tensor(3, 5, 90, 8),
        tensor(3, 5, 70, 8),
    )
    flash = "_scaled_dot_product_flash_attention"
    found = _flash(flash, (q, k, v), {}, out)
    assert found == {
        "heads": 15, "queries": 70, "keys": 90, "score_size": 16, "value_size": 8,
        "query_bytes": 2 * 15 * 70 * 24, "key_bytes": 2 * 15 * 90 * 24, "causal": False,
    }  # fmt: skip
    assert _flash(flash, (q, k, v, 0.0, True), {}, out)["causal"] is True
    assert _flash(flash, (q, k, v), {"is_causal": True}, out)["causal"] is True
    efficient = "_scaled_dot_product_efficient_attention"
    assert _flash(efficient, (q, k, v, None, True, 0.0, False), {}, out)["causal"] is False
    assert _flash(efficient, (q, k, v, None, False, 0.0, True), {}, out)["causal"] is True


@pytest.mark.parametrize("groups", [1, 3])
def test_sizes_of_convolutions(groups: int) -> None:
    """Twelve channels to six on 10 x 11 points, windows of 5 x 7; the other way round beside it."""
    x, out = tensor(2, 12, 14, 17), tensor(2, 6, 10, 11)
    weight = tensor(6, 12 // groups, 5, 7)
    args = (x, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), groups)
    assert _convolution(args, out) == {
        "m": 2 * 110, "n": 6 // groups, "k": 12 // groups * 35, "batch": groups,
    }  # fmt: skip
    turned = (x, tensor(12, 6 // groups, 5, 7), None, (1, 1), (0, 0), (1, 1), True, (0, 0), groups)
    assert _convolution(turned, tensor(2, 6, 18, 23)) == {
        "m": 2 * 14 * 17, "n": 6 // groups * 35, "k": 12 // groups, "batch": groups,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "top", "known"),
    [(4, 2, (4, 2)), (4, 4, (4, 4)), (4, 5, (4, 4)), (0, 0, (1, 1)), (5, 2, (1, 1))],
)
def test_groups_of_experts_and_those_that_a_token_goes_to(
    groups: int, top: int, known: tuple[int, int]
) -> None:
    """Sixteen experts of DeepSeek-V3: no more groups than there are, none where they are uneven."""
    sizes = {**SIZES, "vocab_size": 100, "n_routed_experts": 16, "num_experts_per_tok": 3,
             "moe_intermediate_size": 8, "first_k_dense_replace": 0, "n_group": groups,
             "topk_group": top, "num_key_value_heads": 4}  # fmt: skip
    (block,) = read("deepseek_v3", sizes).blocks
    assert isinstance(block.mlp, MoE)
    assert (block.mlp.groups, block.mlp.top_groups) == known
