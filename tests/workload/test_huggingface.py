"""Hugging Face configs: counts worked by hand and the defaults of every family."""

import dataclasses
import json
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.workload import presets
from simulator.workload.architecture import MLP, MoE
from simulator.workload.huggingface import from_hf

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 10,
}
GPT2 = {"model_type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 2, "vocab_size": 5}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 4,
    "intermediate_size": 6,
    "moe_intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 7,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 3,
    "kv_lora_rank": 2,
    "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 1,
    "v_head_dim": 2,
    "first_k_dense_replace": 1,
}


def read(base, **changes):
    return from_hf({**base, **changes}, name="tiny", where="config.json")


def attention(base, **changes):
    return read(base, **changes).blocks[0].attention


# --- counts worked by hand ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        # block: q 64, k and v 64, o 64, MLP 3 * 8 * 16, norms 16 = 592
        # embedding 80, norm 8, head 80
        ({}, 2 * 592 + 80 + 8 + 80),
        ({"tie_word_embeddings": True}, 2 * 592 + 80 + 8),
        ({"num_key_value_heads": None}, 2 * (592 + 64) + 168),
        ({"attention_bias": True}, 2 * (592 + 16 + 8) + 168),
        ({"mlp_bias": True}, 2 * (592 + 16 + 16 + 8) + 168),
        ({"head_dim": 2}, 2 * (592 - 96) + 168),
        ({"num_hidden_layers": 1}, 592 + 168),
    ],
)
def test_llama(changes, parameters):
    model = read(LLAMA, **changes)
    assert model.parameters == model.active_parameters == parameters
    assert (model.name, model.family, model.position) == ("tiny", "llama", "rope")


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        # block: qkv 48 + 12, o 16 + 4, MLP 64 + 16 + 64 + 4, norms 16 = 244
        # embedding 20, positions 4 each, norm 8, head tied
        ({}, 244 + 8 + 20 + 4 * 1024),
        ({"n_positions": 3}, 244 + 8 + 20 + 12),
        ({"n_positions": 3, "n_inner": None}, 244 + 8 + 20 + 12),
        ({"n_positions": 3, "n_inner": 1}, 244 - 148 + 13 + 8 + 20 + 12),
        ({"n_positions": 3, "tie_word_embeddings": False}, 244 + 8 + 20 + 12 + 20),
    ],
)
def test_gpt2(changes, parameters):
    assert read(GPT2, **changes).parameters == parameters


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        # latent attention: q 12 + 3 + 18, down 12 + 2, up 16, o 16 = 79; norms 8
        # dense 79 + 72 + 8 = 159; experts 79 + 4 * 60 + shared 60 + router 16 + 8 = 403; ends 60
        ({}, 159 + 403 + 60),
        ({"q_lora_rank": None}, 159 + 403 - 2 * (33 - 24) + 60),
        ({"first_k_dense_replace": 0}, 2 * 403 + 60),
        ({"first_k_dense_replace": 9}, 2 * 159 + 60),
        ({"moe_layer_freq": 2}, 2 * 159 + 60),
        ({"n_shared_experts": None}, 159 + 343 + 60),
        ({"n_shared_experts": 2}, 159 + 463 + 60),
        ({"model_type": "deepseek_v2"}, 159 + 403 + 60),
    ],
)
def test_deepseek(changes, parameters):
    assert read(DEEPSEEK, **changes).parameters == parameters


def test_mixtral_counts_all_and_active_experts():
    sizes = {"hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 5}
    layer = {"num_hidden_layers": 1, "intermediate_size": 6, "num_local_experts": 3}
    model = read({"model_type": "mixtral", **sizes, **layer, "num_experts_per_tok": 1})
    # attention 64, three experts of 72, router 12, norms 8; embedding 20, norm 4, head 20
    assert model.parameters == 64 + 3 * 72 + 12 + 8 + 44
    assert model.active_parameters == 64 + 72 + 12 + 8 + 44


def test_qwen3_heads_are_128_wide_and_normed():
    sizes = {"hidden_size": 4, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 3}
    model = read({"model_type": "qwen3", **sizes, "num_hidden_layers": 1, "intermediate_size": 2})
    # q, k, v, o 512 each, two norms of 128, MLP 24, norms 8; embedding 12, norm 4, head 12
    assert model.parameters == 4 * 512 + 256 + 24 + 8 + 28


def test_qwen2_has_biases_on_query_key_and_value_only():
    model = read(LLAMA, model_type="qwen2")
    assert model.parameters == read(LLAMA).parameters + 2 * 16


def test_gpt_neox():
    sizes = {"hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 5}
    config = {"model_type": "gpt_neox", **sizes, "intermediate_size": 8}
    # attention 80, MLP 76, norms 16; embedding 20, norm 8, head 20
    assert read(config).parameters == 80 + 76 + 16 + 48
    assert read(config, attention_bias=False).parameters == 80 - 16 + 76 + 16 + 48
    assert read(config).blocks[0].parallel_residual
    assert not read(config, use_parallel_residual=False).blocks[0].parallel_residual
    dropping = read(config, hidden_dropout=0.1, attention_dropout=0.2).blocks[0]
    assert (dropping.dropout, dropping.attention.dropout) == (True, True)
    assert not read(config).blocks[0].dropout and not attention(config).dropout


# --- defaults and switches -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "kv_heads", "head_dim", "window", "positions"),
    [
        ("llama", 32, 2, 0, 2048),
        ("mistral", 8, 2, 4096, 131_072),
        ("mixtral", 8, 2, 0, 131_072),
        ("qwen2", 32, 2, 0, 32_768),
        ("qwen3", 32, 128, 0, 32_768),
        ("qwen3_moe", 4, 2, 0, 32_768),
    ],
)
def test_missing_keys_mean_the_default_of_the_class(family, kv_heads, head_dim, window, positions):
    sizes = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    sizes |= {"model_type": family, "hidden_size": 64, "num_attention_heads": 32}
    model, one = read(sizes), attention(sizes)
    assert (one.kv_heads, one.head_dim, one.window) == (kv_heads, head_dim, window)
    assert (model.max_positions, model.tied_embeddings) == (positions, False)
    assert not one.dropout and not model.blocks[0].dropout


@pytest.mark.parametrize(
    ("family", "dense_layers", "experts", "shared", "positions"),
    [("deepseek_v2", 0, 64, 2 * 1407, 2048), ("deepseek_v3", 3, 256, 2048, 4096)],
)
def test_missing_keys_of_deepseek(family, dense_layers, experts, shared, positions):
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    sizes = {key: DEEPSEEK[key] for key in kept}
    sizes |= {"model_type": family, "num_hidden_layers": 5, "num_experts_per_tok": 8}
    model = read(sizes)
    moe, one = model.blocks[-1].mlp, model.blocks[-1].attention
    assert [model.blocks[kind].is_moe for kind in model.layer_kinds].count(False) == dense_layers
    assert (moe.experts, moe.shared_ffn_hidden, model.max_positions) == (experts, shared, positions)
    ranks = (one.q_lora_rank, one.kv_lora_rank, one.head_dim, one.rope_head_dim, one.value_dim)
    assert ranks == (1536, 512, 192, 64, 128)
    assert model.mtp_layers == 0


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "num_mtp_layers"])
def test_multi_token_prediction_layers_are_named_but_not_counted(key):
    assert read(DEEPSEEK, **{key: 1}).mtp_layers == 1
    assert read(DEEPSEEK, **{key: 1}).parameters == read(DEEPSEEK).parameters


@pytest.mark.parametrize(
    ("changes", "block", "inside"),
    [
        ({}, True, True),
        ({"resid_pdrop": 0.0}, False, True),
        ({"attn_pdrop": 0}, True, False),
        ({"attn_pdrop": None, "resid_pdrop": None}, False, False),
        ({"embd_pdrop": 0.5, "attn_pdrop": 0, "resid_pdrop": 0}, False, False),
    ],
)
def test_gpt2_trains_with_dropout_unless_told_otherwise(changes, block, inside):
    model = read(GPT2, **changes)
    assert (model.blocks[0].dropout, model.blocks[0].attention.dropout) == (block, inside)


def test_attention_dropout_of_llama():
    assert attention(LLAMA, attention_dropout=0.1).dropout
    assert not attention(LLAMA, attention_dropout=None).dropout


@pytest.mark.parametrize("family", ["mistral", "mixtral"])
def test_sliding_window_null_is_off(family):
    assert (
        attention(LLAMA, model_type=family, sliding_window=None, num_key_value_heads=2).window == 0
    )
    assert attention(LLAMA, model_type=family, sliding_window=7, num_key_value_heads=2).window == 7


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_windows_only_when_switched_on(family):
    base = {**LLAMA, "model_type": family, "num_hidden_layers": 3, "sliding_window": 7}

    def windows(**changes):
        model = read(base, **changes)
        return [model.blocks[kind].attention.window for kind in model.layer_kinds]

    assert windows() == windows(use_sliding_window=False, max_window_layers=1) == [0, 0, 0]
    assert windows(use_sliding_window=True) == [0, 0, 0]
    assert windows(use_sliding_window=True, max_window_layers=1) == [0, 7, 7]
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(use_sliding_window=True, layer_types=types) == [7, 0, 7]
    assert windows(layer_types=types) == [0, 0, 0]


def test_qwen3_moe_mixes_dense_and_sparse_layers():
    config = {**LLAMA, "model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 16}

    def kinds(**changes):
        model = read(config, **changes)
        return [type(model.blocks[kind].mlp) for kind in model.layer_kinds]

    assert kinds() == [MoE] * 4
    assert kinds(decoder_sparse_step=2) == [MLP, MoE, MLP, MoE]
    assert kinds(mlp_only_layers=[0, 3]) == [MLP, MoE, MoE, MLP]
    assert kinds(decoder_sparse_step=9) == [MLP] * 4
    window = read(config, use_sliding_window=True, sliding_window=7).blocks[0].attention.window
    assert window == 7


def test_transformers_5_writes_the_experts_of_qwen3_moe_under_another_key():
    config = {**LLAMA, "model_type": "qwen3_moe", "num_local_experts": 9}
    assert read(config).blocks[0].mlp.experts == 9


def test_dense_width_is_not_needed_where_every_layer_has_experts():
    config = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
    assert read(config, model_type="qwen3_moe").is_moe
    config = {key: value for key, value in DEEPSEEK.items() if key != "intermediate_size"}
    assert read(config, first_k_dense_replace=0).parameters == 2 * 403 + 60


MINIMAX = {
    "model_type": "minimax",
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "vocab_size": 100,
}
TEXT_01 = {
    "model_type": "minimax_text_01",
    "attn_type_list": [*[0] * 7, 1] * 10,
    "head_dim": 128,
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "vocab_size": 200_064,
}


def test_minimax_has_the_parameters_of_transformers_class():
    """MiniMaxForCausalLM of transformers 5.24.0 on the meta device."""
    assert read(MINIMAX).parameters == 227_520
    types = ["linear_attention", "linear_attention", "full_attention"]
    sizes = {"num_hidden_layers": 3, "head_dim": 24, "tie_word_embeddings": True}
    assert read(MINIMAX, **sizes, layer_types=types).parameters == 198_272
    assert read(TEXT_01).parameters == 456_089_655_296


def test_minimax_text_01_passes_the_published_parameters():
    """The report has 45.9 billion for each token, tables apart (arXiv 2501.08313)."""
    model = read(TEXT_01)
    tables = 2 * model.vocabulary * model.hidden
    assert round((model.active_parameters - tables) / 1e9, 1) == 45.9


VIT_300M = {"model_type": "intern_vit_6b", "hidden_size": 1024, "intermediate_size": 4096,
            "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 448,
            "patch_size": 14, "qkv_bias": True, "qk_normalization": False}  # fmt: skip
VIT_6B = {**VIT_300M, "hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 45,
          "num_attention_heads": 25, "qkv_bias": False, "qk_normalization": True}  # fmt: skip
OF_THEIR_OWN_CODE = [
    # inclusionAI/Ling-mini-2.0 and Ling-flash-2.0: weights of 16.26 and 103 billion, 1.4 and 6.1
    # active; Ling-lite: 16.8 and 2.75 (their model cards)
    ("bailing_moe_v2", (2048, 5120, 20, 16, 4, 157184), {}, 16.26, 1.43),
    ("bailing_moe_v2", (4096, 9216, 32, 32, 4, 157184), {"moe_intermediate_size": 1024},
     102.9, 6.15),
    ("bailing_moe", (2048, 5632, 28, 16, 4, 126464),
     {"moe_intermediate_size": 1408, "num_experts": 64, "num_experts_per_tok": 6,
      "num_shared_experts": 2}, 16.8, 2.75),
    # internlm/internlm2_5-7b: 7,737,708,544; XiaomiMiMo/MiMo-7B without its layer that looks ahead
    ("internlm2", (4096, 14336, 32, 32, 8, 92544), {"bias": False}, 7.7377, 7.7377),
    ("mimo", (4096, 11008, 36, 32, 8, 151680), {"num_nextn_predict_layers": 1}, 7.62, 7.62),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "sizes", "more", "billions", "active"), OF_THEIR_OWN_CODE)
def test_published_parameters_of_families_with_code_of_their_own(
    model_type, sizes, more, billions, active
):
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "vocab_size")  # fmt: skip
    config = {"model_type": model_type, **dict(zip(names, sizes, strict=True)), **more}
    model = read({**config, "head_dim": 128, "tie_word_embeddings": False})
    assert model.parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=3e-3)


LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "intermediate_size": 11008}  # fmt: skip
GLM = {"hidden_size": 4096, "num_attention_heads": 32, "multi_query_attention": True,
       "multi_query_group_num": 2, "kv_channels": 128, "ffn_hidden_size": 13696,
       "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True,
       "post_layer_norm": True, "seq_length": 8192}  # fmt: skip
TOKENS = {"baichuan": 64000, "qwen": 151936, "deepseek": 102400, "llada": 126464,
          "internlm": 103168, "orion": 84608, "chatglm": 65024}  # fmt: skip
TO_THE_UNIT = [
    # baichuan-inc/Baichuan-7B and 13B (model cards), the larger one with ALiBi
    (7_000_559_616, {"model_type": "baichuan", **LLAMA_7B, "max_position_embeddings": 4096}),
    (13_264_901_120, {"model_type": "baichuan", "hidden_size": 5120, "num_hidden_layers": 40,
                      "num_attention_heads": 40, "intermediate_size": 13696}),
    (7_721_324_544, {"model_type": "qwen", **LLAMA_7B, "intermediate_size": 22016}),  # Qwen-7B
    (6_243_584_000, {"model_type": "chatglm", **GLM, "num_layers": 28}),  # ChatGLM3-6B
    (9_399_951_360, {"model_type": "chatglm", **GLM, "num_layers": 40,  # GLM-4-9B
                     "padded_vocab_size": 151552}),
    (16_375_728_128, {"model_type": "deepseek", "hidden_size": 2048, "num_hidden_layers": 28,
                      "num_attention_heads": 16, "num_key_value_heads": 16,
                      "intermediate_size": 10944, "moe_intermediate_size": 1408,
                      "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
                      "first_k_dense_replace": 1}),  # deepseek-moe-16b
    (2_724_880_896, {"model_type": "minicpm", "hidden_size": 2304, "num_hidden_layers": 40,
                     "num_attention_heads": 36, "num_key_value_heads": 36,
                     "intermediate_size": 5760, "vocab_size": 122753}),  # MiniCPM-2B
    (7_615_616_512, {"model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28,
                     "num_attention_heads": 28, "num_key_value_heads": 4,
                     "intermediate_size": 18944, "vocab_size": 152064}),  # Dream-v0, a Qwen2.5-7B
    (8_015_581_184, {"model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32,
                     "mlp_hidden_size": 12288, "n_kv_heads": 32}),  # LLaDA
    # by hand: 7B of Llama, biases of four projections, two tables; norms of two vectors
    (6_738_415_616 + 2 * 71_168 * 4096 + 32 * 4 * 4096, {"model_type": "internlm", **LLAMA_7B}),
    (2 * 84_608 * 5120 + 40 * (4 * 5120**2 + 3 * 5120 * 15360 + 4 * 5120) + 2 * 5120,
     {"model_type": "orion", "hidden_size": 5120, "num_hidden_layers": 40,
      "num_attention_heads": 40, "num_key_value_heads": 40, "intermediate_size": 15360}),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "config"), TO_THE_UNIT)
def test_families_with_code_of_their_own_to_the_unit(parameters, config):
    tokens = TOKENS.get(config["model_type"])
    model = read(config if tokens is None else {"vocab_size": tokens, **config})
    assert model.parameters == parameters
    causal = config["model_type"] not in ("Dream", "llada")
    assert all(attention.causal is causal for attention in model.attentions)


def test_minimax_m1_has_the_sizes_of_text_01():
    assert read({**TEXT_01, "model_type": "minimax_m1"}).parameters == read(TEXT_01).parameters


@pytest.mark.parametrize(
    ("text", "tower", "billions"),
    [  # OpenGVLab/InternVL3-8B, InternVL2-8B and InternVL3-78B: model cards
        (("qwen2", 3584, 18944, 28, 28, 4, 151674), VIT_300M, 7.94),
        (("internlm2", 4096, 14336, 32, 32, 8, 92553), VIT_300M, 8.08),
        (("qwen2", 8192, 29568, 80, 64, 8, 151674), VIT_6B, 78.4),
    ],
)
def test_published_parameters_of_internvl_as_its_makers_write_it(text, tower, billions):
    kind, width, inner, layers, heads, groups, tokens = text
    inside = {"model_type": kind, "hidden_size": width, "intermediate_size": inner, "bias": False,
              "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": tokens,
              "num_key_value_heads": groups, "tie_word_embeddings": False}  # fmt: skip
    outer = {"model_type": "internvl_chat", "llm_config": inside, "vision_config": tower}
    assert read(outer).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_layers_of_minimax():
    def linear(config, **changes):
        model = read(config, **changes)
        return [model.blocks[kind].mixer is not None for kind in model.layer_kinds]

    assert linear(MINIMAX) == [False, True, False, True]
    assert linear(MINIMAX, attn_type_list=[0, 0, 0, 1]) == [True, True, True, False]
    types = ["full_attention", *["linear_attention"] * 3]
    assert linear(MINIMAX, layer_types=types) == [False, True, True, True]
    assert sum(linear(TEXT_01)) == 70
    with pytest.raises(InputError, match=r"attn_type_list: must have a number for each of"):
        read(MINIMAX, attn_type_list=[0, 1])


def test_unknown_keys_are_ignored():
    extra = {"rope_scaling": {"type": "yarn"}, "auto_map": [], "torch_dtype": 7, "eos": None}
    assert read(LLAMA, **extra) == read(LLAMA)


def test_multimodal_configs_are_unwrapped():
    vision = {"model_type": "siglip", "hidden_size": 3}
    outer = {"model_type": "aya_vision", "vision_config": vision, "text_config": LLAMA}
    unwrapped = read(outer)
    assert unwrapped.notes == ("vision_config of config.json is left out, with its projector",)
    assert dataclasses.replace(unwrapped, notes=()) == read(LLAMA)
    assert read(outer, tie_word_embeddings=True).tied_embeddings
    inner = {**LLAMA, "tie_word_embeddings": False}
    assert not read(outer, tie_word_embeddings=True, text_config=inner).tied_embeddings


def test_attention_drops_probabilities_as_the_class_does_where_no_key_says_so() -> None:
    """transformers 5.24: BertConfig and DebertaV2Config have 0.1, ViTConfig 0.0."""
    zoo = Path(presets.__file__).parent / "zoo"
    for name, drops in (("bert-large", True), ("deberta-v2-xlarge", True), ("vit-large-16", False)):
        base = json.loads((zoo / f"{name}.json").read_text())
        assert attention(base).dropout is drops
        assert attention(base, attention_probs_dropout_prob=0.0).dropout is False
        assert attention(base, attention_probs_dropout_prob=0.2).dropout is True
