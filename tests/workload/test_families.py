"""Families beyond plain decoders: what their configs turn into, and what they refuse."""

import dataclasses

import pytest

from simulator.errors import InputError
from simulator.files import build
from simulator.workload import presets
from simulator.workload.architecture import MLP, Architecture, MoE
from simulator.workload.huggingface import from_hf
from simulator.workload.recipe import Recipe

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "vocab_size": 100,
}  # fmt: skip
T5 = {"d_model": 32, "d_ff": 48, "num_layers": 4, "num_heads": 4, "vocab_size": 100}
VIT = {key: value for key, value in SIZES.items() if key != "vocab_size"}


def read(family, sizes=SIZES, **changes):
    return from_hf({"model_type": family, **sizes, **changes}, name="tiny", where="config.json")


def windows(model):
    return [model.blocks[kind].attention.window for kind in model.layer_kinds]


@pytest.mark.parametrize(("family", "window"), [("gemma2", 4096), ("gpt_oss", 128)])
def test_every_second_layer_has_a_window(family, window):
    sizes = {**SIZES, "num_key_value_heads": 2}
    assert windows(read(family, sizes)) == [window, 0] * 2
    assert windows(read(family, sizes, sliding_window=7)) == [7, 0] * 2
    assert windows(read(family, sizes, sliding_window=None)) == [0] * 4
    types = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    assert windows(read(family, sizes, layer_types=types)) == [0, window, 0, 0]
    with pytest.raises(InputError, match=r"layer_types: must name the type of each of .*\(4\)"):
        read(family, sizes, layer_types=types[:3])


def test_gemma2_caps_unless_told_otherwise():
    model = read("gemma2", num_key_value_heads=2)
    assert model.logit_softcap and model.blocks[0].attention.softcap
    off = read("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert not off.logit_softcap and not off.blocks[0].attention.softcap
    assert (model.blocks[0].norms, model.tied_embeddings) == (4, True)
    with pytest.raises(InputError, match="attn_logit_softcapping: must be a number above 0, got"):
        read("gemma2", attn_logit_softcapping="soft")


def test_gpt_oss_has_sinks_and_experts_with_biases():
    model = read("gpt_oss", num_key_value_heads=2)
    assert model.blocks[0].attention.sinks and model.blocks[0].mlp.bias
    assert (model.blocks[0].mlp.experts, model.blocks[0].mlp.top_k) == (128, 4)


@pytest.mark.parametrize(
    ("changes", "norms", "parallel", "kv_heads", "position"),
    [
        ({}, 1, True, 1, "rope"),
        ({"alibi": True}, 1, True, 1, "alibi"),
        ({"multi_query": False}, 1, True, 4, "rope"),
        ({"parallel_attn": False}, 2, False, 1, "rope"),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2, True, 2, "rope"),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 1, True, 4, "rope"),
    ],
)
def test_falcon(changes, norms, parallel, kv_heads, position):
    model = read("falcon", **changes)
    block = model.blocks[0]
    assert (block.norms, block.parallel_residual) == (norms, parallel)
    assert (block.attention.kv_heads, model.position) == (kv_heads, position)
    assert block.mlp.ffn_hidden == 256


def test_mpt_reads_its_attention_from_a_table_of_its_own():
    sizes = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100}
    assert read("mpt", sizes, attn_config={"attn_pdrop": 0.1}).blocks[0].attention.dropout
    assert not read("mpt", sizes, attn_config=None).blocks[0].attention.dropout
    with pytest.raises(InputError, match=r"attn_config\.qk_ln: must be false"):
        read("mpt", sizes, attn_config={"qk_ln": True})
    with pytest.raises(InputError, match="attn_config: must be a table of fields, got 3"):
        read("mpt", sizes, attn_config=3)


def test_encoders_see_both_ways():
    for model in (read("bert"), read("deberta-v2"), read("vit", VIT)):
        assert not any(kind.attention.causal for kind in model.blocks)


def test_an_image_is_patches_and_a_class_token():
    model = read("vit", VIT, image_size=32, patch_size=8, num_labels=5)
    assert (model.max_positions, model.patch_values) == (17, 8 * 8 * 3)
    assert (model.vocabulary, model.classes) == (0, 5)
    assert read("vit", VIT, id2label={"0": "cat", "1": "dog", "2": "cow"}).classes == 3
    assert read("vit", VIT, architectures=["ViTModel"]).classes == 0
    with pytest.raises(InputError, match=r"image_size: must be a multiple of patch_size \(16\)"):
        read("vit", VIT, image_size=33)


def test_swin_halves_the_edge_and_doubles_the_width():
    model = presets.load("swin-base")
    blocks = [model.blocks[kind] for kind in model.layer_kinds]
    assert [sum(b.width == w for b in blocks) for w in (128, 256, 512, 1024)] == [2, 2, 18, 2]
    assert sorted({(b.width, b.tokens) for b in blocks}) == [
        *((128, 56 * 56), (256, 28 * 28), (512, 14 * 14), (1024, 7 * 7)),
    ]
    assert sum(b.merges_patches for b in blocks) == 3
    assert {b.attention.window for b in blocks} == {49}


def test_decoders_of_t5_attend_to_the_encoder():
    model = read("t5", T5, num_decoder_layers=2)
    blocks = [model.blocks[kind] for kind in model.layer_kinds]
    assert [b.cross_attention is not None for b in blocks] == [False] * 4 + [True] * 2
    assert [b.attention.causal for b in blocks] == [False] * 4 + [True] * 2
    assert [b.starts_decoder for b in blocks] == [False] * 4 + [True, False]
    assert [b.attention.relative_buckets for b in blocks] == [32, 0, 0, 0, 32, 0]
    assert model.is_encoder_decoder and not read("bert").is_encoder_decoder
    assert blocks[0].mlp.activation == "relu" and not blocks[0].mlp.gated
    gated = read("t5", T5, feed_forward_proj="gated-gelu").blocks[0].mlp
    assert gated.gated and gated.activation == "gelu"


def test_switch_routes_every_second_layer():
    model = read(
        "switch_transformers", T5, num_sparse_encoder_layers=2, num_sparse_decoder_layers=2
    )
    kinds = [type(model.blocks[kind].mlp) for kind in model.layer_kinds]
    assert kinds == [MLP, MoE, MLP, MoE] * 2


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("deberta-v2", {"relative_attention": True}, "pos_att_type: must name c2p and p2c"),
        ("deberta-v2", {"conv_kernel_size": 4}, "conv_kernel_size: must be 0 or odd, got 4"),
        (
            "deberta-v2",
            {"conv_kernel_size": 3, "conv_groups": 5},
            "conv_groups: must divide",
        ),
        ("deberta-v2", {"embedding_size": 32}, r"embedding_size: must be hidden_size \(64\)"),
        ("bert", {"is_decoder": True}, "is_decoder: must be false"),
        (
            "bert",
            {"architectures": ["BertForTokenClassification"]},
            "must end in LMHeadModel or ForCausalLM",
        ),
        ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 0}, "word_embed_proj_dim: must be a whole"),
        ("yuan", {"use_moe": True}, "use_moe: must be false"),
        (
            "yuan",
            {"attention_projection_size": 66},
            "attention_projection_size: must",
        ),
        ("llama4_text", {"no_rope_layers": [1]}, "no_rope_layers: must have a number for each"),
        ("llama4_text", {"layer_types": ["full_attention"]}, "layer_types: must name the type"),
        ("llama4_text", {"moe_layers": ["x"]}, "moe_layers: must be a list of whole numbers"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: must be"),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 3}, "num_kv_heads: must div"),
    ],
)
def test_what_is_not_known_is_refused(family, changes, message):
    with pytest.raises(InputError, match=message):
        read(family, **changes)


@pytest.mark.parametrize(
    ("given", "load"),
    [
        ({}, 1.0),
        ({"moe_imbalance": 1.5}, 1.5),
        ({"moe_imbalance": 1.5, "moe_capacity_factor": 1.25}, 1.25),
        ({"moe_imbalance": 1.1, "moe_capacity_factor": 1.25}, 1.1),
        ({"moe_capacity_factor": 2.0, "moe_pads_to_capacity": True}, 2.0),
        ({"moe_capacity_factor": 0.8, "moe_pads_to_capacity": True}, 0.8),
    ],
)
def test_load_of_the_fullest_expert_rank(given, load):
    assert Recipe(sequence_length=1, global_batch=1, **given).expert_load == load


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "gemma2", "gpt_oss", "falcon"])
def test_new_families_satisfy_the_schema(family):
    model = read(family, num_key_value_heads=2)
    assert build(Architecture, dataclasses.asdict(model), where="config.json") == model
