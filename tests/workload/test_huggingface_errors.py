"""Bad configs: every message, all of a file at once, and never anything but InputError."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.huggingface import families, from_hf

ZOO = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(presets.__file__).parent / "zoo").glob("*.json"))
}
SIZE = "must be a whole number from 1 to 2147483648"
COUNT = "must be a whole number from 0 to 2147483648"
KNOWN = (
    f"must be one of {len(families())} types that have a row; with model.trace_tokens another is "
    "traced by torch and transformers where they are installed"
)
GONE = object()


def problems(config):
    with pytest.raises(InputError) as error:
        from_hf(config, name="bad", where="config.json")
    return list(error.value.problems)


def changed(model, **changes):
    both = {**ZOO[model], **changes}
    return {key: value for key, value in both.items() if value is not GONE}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (-4096, "-4096"),
        (2**31 + 1, "2147483649"),
        (4096.0, "4096.0"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (True, "True"),
        (None, "None"),
        ("4096", "'4096'"),
        ("4" * 100, f"'{'4' * 57}...'"),
        ([4096], "list"),
        ({"a": 1}, "dict"),
    ],
)
@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "intermediate_size"])
def test_a_size_must_be_a_positive_whole_number(field, value, shown):
    found = problems(changed("llama-3.1-8b", **{field: value}))
    assert found == [f"config.json: {field}: {SIZE}, got {shown}"]


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("llama-3.1-8b", {"hidden_size": GONE}, "hidden_size: required field is missing"),
        (
            "llama-3.1-8b",
            {"hidden_size": GONE, "hiden_size": 4096},
            "hidden_size: required field is missing, got 'hiden_size' "
            "(did you mean 'hidden_size'?)",
        ),
        (
            "llama-3.1-8b",
            {"vocab_size": GONE, "vocabsz": 128256},  # 14 of 17 letters, above eight in ten
            "vocab_size: required field is missing, got 'vocabsz' (did you mean 'vocab_size'?)",
        ),
        (
            "gpt2-small",
            {"n_layer": GONE, "num_layer": 12},
            "n_layer: required field is missing, got 'num_layer' (did you mean 'n_layer'?)",
        ),
        (
            "llama-3.1-8b",
            {"num_hidden_layers": 10_001},
            "num_hidden_layers: must be a whole number from 1 to 10000, got 10001",
        ),
        (
            "llama-3.1-8b",
            {"num_attention_heads": 30, "num_key_value_heads": 6},
            "hidden_size: must be a multiple of num_attention_heads (30) unless head_dim is "
            "given, got 4096",
        ),
        (
            "gpt2-small",
            {"n_head": 7},
            "n_embd: must be a multiple of n_head (7), got 768",
        ),
        (
            "pythia-12b",
            {"num_attention_heads": 7},
            "hidden_size: must be a multiple of num_attention_heads (7), got 5120",
        ),
        (
            "llama-3.1-8b",
            {"num_key_value_heads": 5},
            "num_key_value_heads: must divide num_attention_heads (32), got 5",
        ),
        (
            "qwen2-7b",
            {"num_key_value_heads": GONE},
            "num_key_value_heads: must divide num_attention_heads (28) (field missing, default "
            "taken), got 32",
        ),
        ("llama-3.2-1b", {"head_dim": -1}, f"head_dim: {SIZE}, got -1"),
        (
            "llama-3.1-8b",
            {"tie_word_embeddings": "false"},
            "tie_word_embeddings: must be true or false, got 'false'",
        ),
        ("llama-3.1-8b", {"attention_bias": 1}, "attention_bias: must be true or false, got 1"),
        (
            "llama-3.1-8b",
            {"attention_dropout": math.nan},
            "attention_dropout: must be a probability from 0 to 1, got nan",
        ),
        (
            "gpt2-small",
            {"resid_pdrop": -0.1},
            "resid_pdrop: must be a probability from 0 to 1, got -0.1",
        ),
        (
            "gpt2-small",
            {"attn_pdrop": True},
            "attn_pdrop: must be a probability from 0 to 1, got True",
        ),
        ("gpt2-small", {"n_inner": 0}, f"n_inner: {SIZE}, got 0"),
        (
            "gpt2-small",
            {"add_cross_attention": True},
            "add_cross_attention: must be false (only decoders without an encoder are known), "
            "got True",
        ),
        ("mistral-7b", {"sliding_window": -1}, f"sliding_window: {SIZE}, got -1"),
        ("mixtral-8x7b", {"num_local_experts": "8"}, f"num_local_experts: {COUNT}, got '8'"),
        (
            "mixtral-8x7b",
            {"num_experts_per_tok": 9},
            "num_experts_per_tok: must be at most num_local_experts (8), got 9",
        ),
        (
            "qwen3-235b-a22b",
            {"mlp_only_layers": [0, "1"]},
            "mlp_only_layers: must be a list of whole numbers, got list",
        ),
        (
            "qwen3-8b",
            {"use_sliding_window": True, "layer_types": ["full_attention"]},
            "layer_types: must name the type of each of num_hidden_layers (36) layers, got 1",
        ),
        (
            "qwen3-8b",
            {"use_sliding_window": True, "layer_types": "full"},
            "layer_types: must be a list of words, got 'full'",
        ),
        (
            "deepseek-v2",
            {"num_experts_per_tok": GONE},
            "num_experts_per_tok: required field is missing",
        ),
        (
            "deepseek-v3",
            {"first_k_dense_replace": -1},
            "first_k_dense_replace: must be a whole number from 0 to 2147483648, got -1",
        ),
    ],
)
def test_one_problem(model, changes, message):
    assert problems(changed(model, **changes)) == [f"config.json: {message}"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("lama", f"{KNOWN}, got 'lama'"),
        ("Mixtral", f"{KNOWN}, got 'Mixtral'"),
        ("informer", f"{KNOWN}, got 'informer'"),
        (None, f"{KNOWN}, got None"),
        (["llama"], f"{KNOWN}, got ['llama']"),
        (GONE, "required field is missing"),
    ],
)
def test_unknown_model_type(value, message):
    config = changed("llama-3.1-8b", model_type=value)
    assert problems(config) == [f"config.json: model_type: {message}"]


def test_an_integer_too_long_to_print():
    found = problems(changed("llama-3.1-8b", hidden_size=10**5000))
    assert found == [f"config.json: hidden_size: {SIZE}, got an integer of 16610 bits"]


def test_all_problems_are_reported_at_once():
    config = changed(
        "llama-3.1-8b",
        hidden_size=0,
        num_attention_heads=None,
        num_hidden_layers=GONE,
        vocab_size="big",
        tie_word_embeddings=3,
    )
    assert problems(config) == [
        "config.json: num_hidden_layers: required field is missing",
        f"config.json: num_attention_heads: {SIZE}, got None",
        f"config.json: hidden_size: {SIZE}, got 0",
        f"config.json: vocab_size: {SIZE}, got 'big'",
        "config.json: tie_word_embeddings: must be true or false, got 3",
    ]


def test_problems_of_a_nested_config_name_the_nesting():
    config = {"model_type": "llava", "text_config": changed("llama-3.1-8b", hidden_size=0)}
    assert problems(config) == [f"config.json: text_config.hidden_size: {SIZE}, got 0"]
    nothing = {"model_type": "aya_vision", "text_config": {}}
    assert problems(nothing)[0].startswith("config.json: text_config.model_type: required field")
    wrong = {"model_type": "llava", "text_config": 3}
    assert problems(wrong) == ["config.json: text_config: must be a table of fields, got 3"]


@pytest.mark.parametrize("config", [[], None, "llama", 7, [{"model_type": "llama"}]])
def test_a_config_that_is_no_table(config):
    kind = type(config).__name__
    assert problems(config) == [f"config.json: must be a table of fields, got {kind}"]


# --- whatever the config, an architecture or an InputError ---------------------------------------

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2, 7, 64, 10_000, 2**31, 10**4000, -(10**4000)])
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=80)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
OPTIONAL = [
    "head_dim",
    "use_sliding_window",
    "sliding_window",
    "layer_types",
    "max_window_layers",
    "attention_dropout",
    "attn_pdrop",
    "n_inner",
    "mlp_only_layers",
    "decoder_sparse_step",
    "num_local_experts",
    "num_mtp_layers",
    "text_config",
    "model_type",
]


@st.composite
def mutated(draw):
    config = dict(draw(st.sampled_from(list(ZOO.values()))))
    for key in draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        config.pop(key, None)
    keys = st.sampled_from(sorted(config) + OPTIONAL) | st.text(max_size=8)
    config.update(draw(st.dictionaries(keys, VALUES, max_size=4)))
    return {"text_config": config} if draw(st.booleans()) else config


@given(mutated() | VALUES)
def test_from_hf_raises_nothing_but_input_errors(config):
    try:
        model = from_hf(config, name="any", where="config.json")
    except InputError as error:
        assert error.problems
        assert all(line.startswith("config.json: ") for line in error.problems)
        assert len(set(error.problems)) == len(error.problems)
    else:
        assert isinstance(model, Architecture)
        assert 0 < model.active_parameters <= model.parameters
        assert len(model.layer_kinds) == model.layers > 0
        assert set(model.layer_kinds) == set(range(len(model.blocks)))
