"""The table of families against facts of transformers' own classes (tests/data/families.json).

``tests/oracles/count_families.py`` counted them, ``tests/oracles/test_transformers.py`` does it
again.
"""

import json
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.workload import presets
from simulator.workload.families import table
from simulator.workload.families.table import Expression
from simulator.workload.huggingface import families, from_hf, read_config
from simulator.workload.training_section import read_training

FACTS = json.loads((Path(__file__).parents[1] / "data" / "families.json").read_text())

UNLIKE = {
    # up-matrices that the class allocates for experts that hand their input on, in no checkpoint
    "longcat_flash": 6 * 256 * 2 * 2048 * 6144,
}
"""Elements that a class has and no model."""


def read(config):
    """Read as a nested config, which leaves out what its class has as default."""
    whole = "parts" in table.row(config["model_type"]).words or "architectures" in config
    outer = config if whole else {"text_config": config}
    return from_hf(outer, name="small", where="config.json")


def family(case):
    return case["config"].get("architectures", [case["config"]["model_type"]])[0]


@pytest.mark.parametrize("case", FACTS["cases"], ids=family)
def test_parameters_are_those_of_the_class(case):
    assert read(case["config"]).parameters + UNLIKE.get(family(case), 0) == case["parameters"]


def test_the_facts_cover_the_causal_types():
    assert len({case["config"]["model_type"] for case in FACTS["cases"]}) >= 200
    assert sum("architectures" in case["config"] for case in FACTS["cases"]) >= 29


def test_every_word_of_every_row_is_an_expression():
    for name in table.names():
        row = table.row(name)
        assert all(row.expression(word).names is not None for word in row.words)
        assert set(row.bases[1:]) <= set(table.names())


@pytest.mark.parametrize(
    "text", ["().__class__", "__import__('os')", "[x for x in y]", "a.b", "f()"]
)
def test_an_expression_computes_and_does_nothing_else(text):
    with pytest.raises(ValueError, match="may not hold"):
        Expression(text, "word")


@pytest.mark.parametrize(
    ("family_name", "base", "changes", "more"),
    [
        # an attention of 8 x 8 with gates by head, worked by hand: 2 x 8 more in each of 2 layers
        ("arcee", "llama", {}, -2 * 8 * 16),  # no gate in the MLP
        ("seed_oss", "llama", {"attention_bias": True, "attention_out_bias": True}, 2 * (16 + 8)),
        ("olmo2", "llama", {}, 2 * (8 + 4)),  # norms over all heads of queries, and of keys
        ("glm4", "llama", {"attention_bias": False}, 2 * 2 * 8),  # four norms instead of two
        ("cohere", "llama", {"use_qk_norm": True}, -2 * 8 + 2 * (8 + 4)),  # one norm, no bias
        ("olmo", "llama", {}, -(2 * 2 + 1) * 8),  # norms without weights
    ],
)
def test_rows_by_what_differs(family_name, base, changes, more):
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "vocab_size": 10,
        "tie_word_embeddings": True,
    }
    with_base = from_hf({"model_type": base, **sizes}, name="x", where="c").parameters
    other = from_hf({"model_type": family_name, **sizes, **changes}, name="x", where="c")
    assert other.parameters == with_base + more


# --- heads that the config names ------------------------------------------------

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 10,
}


@pytest.mark.parametrize(
    ("stored", "in_4_bit"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, True),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, False),
        ({"quant_method": "bitsandbytes", "_load_in_4bit": True}, True),
        ({"quant_method": "gptq", "bits": 4}, True),
        ({"quant_method": "gptq", "bits": 8}, False),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, True),  # AutoAWQ's own words
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}, True),
        ({"quant_method": "quanto", "weights": "int4"}, True),
        ({"quant_method": "mxfp4"}, False),  # trained after transformers has written it out
        ({"quant_method": "fp8"}, False),
    ],
)
def test_adapters_on_a_checkpoint_in_4_bit_leave_it_so(stored, in_4_bit):
    """transformers utils/quantization_config.py: a quantised model is trained by adapters alone."""
    model = from_hf({**LLAMA, "quantization_config": stored}, name="x", where="c")
    sizes = {"sequence_length": 8, "global_batch": 8}
    assert model.stored_in_4_bit == in_4_bit and model.assumed
    adapted = {**sizes, "lora_rank": 4}
    assert read_training(adapted, model, where="c").quantised_base == in_4_bit
    assert not read_training({**adapted, "quantised_base": False}, model, where="c").quantised_base
    assert not read_training(sizes, model, where="c").quantised_base


def test_reward_and_embedding_models_have_no_output_over_the_vocabulary():
    causal = from_hf(LLAMA, name="x", where="c")
    bare = from_hf({**LLAMA, "architectures": ["LlamaModel"]}, name="x", where="c")
    reward = {**LLAMA, "architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    assert causal.parameters - bare.parameters == 80
    assert from_hf(reward, name="x", where="c").parameters == bare.parameters + 8
    assert bare.output_rows == 0


@pytest.mark.parametrize("name", ["ReformerModelWithLMHead", "XLMWithLMHeadModel"])
def test_older_names_of_heads_over_the_vocabulary(name):
    """transformers: models/reformer, models/xlm."""
    head = from_hf({**LLAMA, "architectures": [name]}, name="x", where="c")
    assert head.output_rows == LLAMA["vocab_size"]


def test_a_head_that_is_not_known_is_refused():
    with pytest.raises(InputError, match="architectures: must end in ForCausalLM or"):
        from_hf({**LLAMA, "architectures": ["LlamaForTokenWhatever"]}, name="x", where="c")


def test_a_refusal_lists_no_name_that_only_looks_alike():
    with pytest.raises(InputError) as error:
        from_hf({**LLAMA, "model_type": "gemma9"}, name="x", where="c")
    assert "did you mean" not in str(error.value)
    assert str(len(families())) in str(error.value)


def test_sizes_that_a_nested_config_leaves_to_its_class_are_told():
    gemma = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    model = from_hf({**gemma, "vision_config": {}}, name="x", where="c")
    assert any("hidden_size 2304" in note for note in model.notes)


# --- diffusion transformers --------------------------------------------------------------------

DIFFUSION = {
    "ChromaTransformer2DModel": 8_899_983_424,
    "CogVideoXTransformer3DModel": 1_693_783_872,
    "DiTTransformer2DModel": 749_808_016,
    "Flux2Transformer2DModel": 32_223_281_152,
    "FluxTransformer2DModel": 11_891_178_560,
    "HunyuanVideoTransformer3DModel": 12_821_012_544,
    "LTXVideoTransformer3DModel": 1_923_385_472,
    "Lumina2Transformer2DModel": 2_606_818_752,
    "PixArtTransformer2DModel": 605_301_152,
    "QwenImageTransformer2DModel": 20_430_401_088,
    "SD3Transformer2DModel": 856_159_552,
    "SanaTransformer2DModel": 1_604_462_752,
    "WanTransformer3DModel": 14_288_491_584,
    "ZImageTransformer2DModel": 6_154_908_736,
}
"""Parameters of the classes of diffusers 0.42.1 with their defaults, built on the meta device."""


@pytest.mark.parametrize(("kind", "parameters"), DIFFUSION.items())
def test_parameters_of_diffusion_transformers(kind, parameters):
    model = from_hf({"text_config": {"model_type": kind}}, name="x", where="config.json")
    assert model.parameters == parameters
    assert model.output_rows == 0 and not any(att.causal for att in model.attentions)


def test_a_pipeline_of_diffusers_is_its_transformer(tmp_path):
    folder = tmp_path / "flux"
    (folder / "transformer").mkdir(parents=True)
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    sizes = {
        "_class_name": "FluxTransformer2DModel",
        "num_attention_heads": 24,
        "num_layers": 19,
        "guidance_embeds": True,
    }
    (folder / "transformer" / "config.json").write_text(json.dumps(sizes))
    for path in (folder, folder / "model_index.json"):
        model = read_config(path)
        # published as 12 billion: the transformer of FLUX.1 [dev]
        assert (model.name, model.parameters) == ("flux", 11_901_408_320)


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        # large-v3 and large-v3-turbo as published: 1,550 M and 809 M (their tables of positions,
        # which are not trained, among them)
        ((1280, 32, 32, 51_866, 128), 1_543_490_560),
        ((1280, 32, 4, 51_866, 128), 808_878_080),
    ],
)
def test_whisper_is_an_encoder_of_sound_and_a_decoder(sizes, parameters):
    width, encoder, decoder, words, mels = sizes
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": width,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "encoder_attention_heads": 20,
        "decoder_attention_heads": 20,
        "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width,
        "vocab_size": words,
        "num_mel_bins": mels,
    }
    model = from_hf(config, name="x", where="config.json")
    assert model.parameters == parameters
    assert model.is_encoder_decoder and model.max_positions == 1500


@pytest.mark.parametrize(
    ("name", "window", "slid", "full"),
    [
        # layers with a window and without, as the model cards and reports say
        ("gemma-3-4b", 1024, 29, 5),  # five to one (Gemma 3 report, section 2)
        ("olmo-3-7b", 4096, 24, 8),  # three to one
        ("gpt-oss-120b", 128, 18, 18),  # every second
        ("qwen2.5-7b", 0, 0, 28),
    ],
)
def test_windows_of_published_models(name, window, slid, full):
    model = presets.load(name)
    blocks = [model.blocks[kind] for kind in model.layer_kinds]
    windows = [block.attention.window for block in blocks if not block.width]
    assert windows.count(window) == slid or not window
    assert windows.count(0) == full


def test_how_a_part_is_stored_is_said_and_what_cannot_be_is_refused():
    stored = {"quantization_config": {"quant_method": "compressed-tensors"}}
    model = from_hf(
        {"model_type": "a_whole", "text_config": {**LLAMA, **stored}}, name="x", where="c"
    )
    assert any("(compressed-tensors) says how" in note for note in model.notes)
    with pytest.raises(InputError, match="c: quantization_config: must be a table of fields"):
        from_hf({**LLAMA, "quantization_config": 4}, name="x", where="c")


@pytest.mark.parametrize(
    ("named", "more"),
    [
        # one score by a vector of the width 4; two classes unless labels are given
        ("LlamaForSequenceClassification", {"id2label": {"0": "LABEL_0"}}),
        ("LlamaForSequenceClassification", {"num_labels": 1}),
    ],
)
def test_a_reward_head_is_a_vector(named, more):
    body = from_hf({**LLAMA, "architectures": ["LlamaModel"]}, name="x", where="c")
    scored = from_hf({**LLAMA, "architectures": [named], **more}, name="x", where="c")
    assert scored.parameters - body.parameters == body.hidden


@pytest.mark.parametrize("named", ["Qwen2ForRewardModel", "LlamaForTokenClassification"])
def test_a_head_of_its_own_is_no_model_without(named):
    with pytest.raises(InputError, match=f"architectures: must end in .* got '{named}'"):
        from_hf({**LLAMA, "architectures": [named]}, name="x", where="c")


def test_a_size_that_no_row_knows_is_named():
    more = {"expert_lora_rank": 16, "use_latent_router": True, "mtp_num_hidden_layers": 1}
    quiet = {"bos_token_id": 1, "num_beams": 4, "ep_size": 1, "pretraining_tp": 1, "foo_rank": 0}
    model = from_hf({**LLAMA, **more, **quiet}, name="x", where="c")
    (note,) = [note for note in model.notes if "no row of any type reads them" in note]
    assert note.startswith("expert_lora_rank 16, use_latent_router true, mtp_num_hidden_layers 1:")
    assert not from_hf({**LLAMA, **quiet}, name="x", where="c").notes


# --- published configs, with keys missing and old spellings -----------------------

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "data" / "published_configs.json").read_text(encoding="utf-8")
)["cases"]


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case["model"])
def test_a_published_config_is_read_as_its_class_reads_it(case):
    model = from_hf(case["config"], name="published", where="config.json")
    assert model.parameters == case["parameters"]


def test_the_published_configs_are_many():
    families = {case["config"]["model_type"] for case in PUBLISHED}
    assert (len(PUBLISHED), len(families)) >= (52, 24)


KIMI_K3 = {
    "model_type": "kimi_linear",
    "hidden_size": 7168,
    "intermediate_size": 33792,
    "num_hidden_layers": 93,
    "num_attention_heads": 96,
    "num_key_value_heads": 96,
    "vocab_size": 163840,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_output_gate": True,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "num_shared_experts": 2,
    "moe_intermediate_size": 3072,
    "routed_expert_hidden_size": 3584,
    "latent_moe_use_norm": True,
    "attn_res_block_size": 12,
    "linear_attn_config": {
        "full_attn_layers": [*range(4, 93, 4), 93],
        "kda_layers": [i for i in range(1, 93) if i % 4],
        "head_dim": 128,
        "num_heads": 96,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
    },
}


def test_latent_experts_and_gates_of_a_published_hybrid():
    # published: 2.8 T parameters; each of 92 layers 896 experts of 3 x 3,584 x 3,072
    model = from_hf(KIMI_K3, name="k3", where="config.json")
    experts = 92 * 896 * 3 * 3584 * 3072
    assert round(model.parameters / 1e12, 1) == 2.8
    assert experts < model.parameters < 1.03 * experts
    without_gate = from_hf({**KIMI_K3, "mla_use_output_gate": False}, name="k3", where="x")
    assert model.parameters - without_gate.parameters == 24 * 7168 * 96 * 128
    assert any("attention residuals" in note for note in model.notes)


def test_no_row_reads_what_bears_on_no_size():
    idle = {name for name, kind in table.kinds().items() if kind == "idle"}
    assert idle and not idle & table.every_name()
