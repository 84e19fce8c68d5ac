"""The table of families against transformers' own classes: FLOPs of facts, and counts made anew."""

from __future__ import annotations

import json
import logging
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.ends import embedding, head
from simulator.cost.operators.operations import Ranks
from simulator.errors import InputError
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.profile import load_software
from simulator.workload.architecture import Architecture
from simulator.workload.families import table
from simulator.workload.huggingface import from_hf, read_config
from simulator.workload.recipe import Recipe

FACTS = json.loads((Path(__file__).parents[1] / "data" / "families.json").read_text())
UNFUSED = replace(load_software("megatron-core").kernels, attention="unfused", pads_vocabulary_to=1)

WITHIN = {
    # weights of the indexer's heads by their scores: one kernel with the scores, no product
    **dict.fromkeys(("axk2", "deepseek_v32", "dots3_note_text", "glm_moe_dsa", "hy_v4"), 1e-4),
    # the chunked rule: eager code pads, and solves triangles element by element
    **dict.fromkeys(("bailing_hybrid", "kimi_linear", "lara_mini", "olmo_hybrid"), 0.004),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), 0.005),
    # states by output maps of the scan, an element-wise kernel here
    **dict.fromkeys(("falcon_mamba", "jamba", "mamba"), 0.004),
    # what the row says it leaves out: relative logits, convolutions of few tokens, differences
    **dict.fromkeys(("diffllama", "doge", "deepseek_v4", "gemma3n_text"), 0.003),
    **dict.fromkeys(("lfm2_moe", "lfm3", "recurrent_gemma"), 0.0002),
    **dict.fromkeys(("inkling2_loop_text", "inkling2_text", "inkling_text", "xlstm", "zaya"), 0.01),
    "nemotron_h": 0.02,
}
"""Relative difference of FLOPs that is explained; all others are equal."""

UNLIKE = {
    "a decoder run without its encoder": (
        *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp"),
        *("pegasus", "plbart", "prophetnet", "trocr", "whisper"),
    ),
    "eager Mamba-2 computes chunks as sums over products written out": (
        *("bamba", "falcon_h1", "granitemoehybrid", "mamba2"),
    ),
    "layers or blocks that are used several times": ("dory", "hrm_text", "zamba", "zamba2"),
    "every expert computes every token": ("llama4_text",),
    "segments of the prompt are run too": ("cpmant",),
    "embedding or head of another width": ("rembert", "roc_bert"),
}
"""Why FLOPs of some classes cannot be compared."""


def name(case: dict[str, Any]) -> str:
    return str(case["config"]["model_type"])


def read(config: dict[str, Any]) -> Architecture:
    whole = "parts" in table.row(config["model_type"]).words or "architectures" in config
    return from_hf(config if whole else {"text_config": config}, name="x", where="config.json")


def products(arch: Architecture) -> float:
    layout = Layouts.of(micro_batch=FACTS["batch"])
    ranks = Ranks(
        **{x: getattr(layout, x).astype(float) for x in ("tp", "cp", "ep", "etp")},
        micro_batch=layout.micro_batch.astype(float),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )
    recipe = Recipe(sequence_length=FACTS["length"], global_batch=FACTS["batch"])
    kinds = [block(k, arch.hidden, ranks, recipe, UNFUSED, arch.position) for k in arch.blocks]
    parts = [kinds[kind] for kind in arch.layer_kinds]
    parts += [embedding(arch, ranks, recipe, UNFUSED), head(arch, ranks, recipe, UNFUSED)]
    terms = [2 * g.batch * g.m * g.n * g.k for part in parts for g in part.gemms]
    return float(sum(np.sum(term) for term in terms))


RUN = [
    case
    for case in FACTS["cases"]
    if case["forward_flop"] and not any(name(case) in listed for listed in UNLIKE.values())
]


def test_most_types_run():
    assert len(RUN) >= 130
    assert sum(name(case) not in WITHIN for case in RUN) >= 105


@pytest.mark.parametrize("case", RUN, ids=name)
def test_forward_flop(case: dict[str, Any]) -> None:
    least = WITHIN.get(name(case), 1e-12)
    assert math.isclose(products(read(case["config"])), case["forward_flop"], rel_tol=least)


# --- counted anew ---------------------------------------------------------------


@pytest.fixture(scope="module")
def counting() -> Any:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    logging.disable(logging.CRITICAL)
    from tests.oracles import count_families

    yield count_families
    logging.disable(logging.NOTSET)


@pytest.mark.evidence
@pytest.mark.parametrize("case", FACTS["cases"], ids=name)
def test_facts_are_those_of_the_installed_classes(case: dict[str, Any], counting: Any) -> None:
    family, config = name(case), {**case["config"]}
    config.pop("model_type")
    made = counting.config_of(family, config)
    assert counting.parameters(counting.built(family, made)) == case["parameters"]


@pytest.mark.evidence
@pytest.mark.parametrize("case", FACTS["cases"], ids=name)
def test_windows_stand_where_the_class_has_them(case: dict[str, Any], counting: Any) -> None:
    config = {**case["config"]}
    config.pop("model_type")
    made = counting.config_of(name(case), config).get_text_config()
    types = getattr(made, "layer_types", None) or []
    slides = [kind == "sliding_attention" for kind in types]
    if not any(slides) or not getattr(made, "sliding_window", None):
        return
    arch = read(case["config"])
    blocks = [arch.blocks[kind] for kind in arch.layer_kinds]
    there = [b.attention is not None and b.attention.window > 0 for b in blocks if not b.width]
    picked = [b.attention is not None and b.attention.indexer is not None for b in blocks]
    if any(picked) or any(block.mixer is not None for block in blocks):
        assert sum(there) >= sum(slides)
    else:
        assert there == slides


def variants(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    return [2 * value, max(1, value // 2)] if isinstance(value, int) else []


EXCUSED = {
    ("gemma3n_text", "num_kv_shared_layers"): "more layers share than there are",
    ("got_ocr2", "tie_word_embeddings"): "the class of the whole gives its text part sizes",
    ("moss_transcribe_diarize", "*"): "the class of the whole gives its text part sizes",
    ("blt", "*"): "parts are described by the whole's class",
    ("helium", "*"): "the output projection is square whatever heads are: such a model cannot run",
    ("longcat_flash", "*"): "allocates matrices that exist in no model",
    ("inkling2_text", "*"): "a head with more rows than words",
    ("inkling2_loop_text", "*"): "a head with more rows than words",
    ("prophetnet", "tie_word_embeddings"): "unties two tables",
    ("xlstm", "use_bias"): "biases of its gates move",
    ("zamba", "tie_word_embeddings"): "transformers unties the shared layers too",
    ("zamba2", "tie_word_embeddings"): "transformers unties the shared layers too",
}


@pytest.mark.evidence
@pytest.mark.parametrize(
    "case", [case for case in FACTS["cases"] if "architectures" not in case["config"]], ids=name
)
def test_every_field_counts(case: dict[str, Any], counting: Any) -> None:
    """One field changed: doubled, halved, switched. What is read agrees; the rest is refused."""
    family, row = name(case), table.row(name(case))
    if (family, "*") in EXCUSED:
        pytest.skip(EXCUSED[family, "*"])
    base = {**case["config"]}
    base.pop("model_type")
    fields = sorted({field for word in row.words for field in row.fields(word)})
    default = counting.config_of(family, base)
    rng = random.Random(family)
    for field in fields:
        value = row.defaults.get(field)
        for changed in variants(value):
            if (family, field) in EXCUSED or field in base or rng.random() < 0.5:
                continue
            try:
                made = counting.config_of(family, {**base, field: changed})
                count = counting.parameters(counting.built(family, made))
            except Exception:  # a config that transformers itself refuses
                continue
            try:
                got = read({**case["config"], field: changed}).parameters
            except InputError:
                continue
            assert got == count, f"{field} = {changed} for {getattr(default, field, None)}"


PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "published_configs.json").read_text())


@pytest.mark.evidence
@pytest.mark.parametrize("case", PUBLISHED["cases"], ids=lambda case: case["model"])
def test_a_published_config_counted_anew(case: dict[str, Any], counting: Any) -> None:
    """What the config leaves out is filled in by transformers' class itself."""
    changes = {key: value for key, value in case["config"].items() if key != "model_type"}
    made = counting.config_of(name(case), changes)
    assert counting.parameters(counting.built(name(case), made)) == case["parameters"]


# --- types that no row describes ----------------------------------------------------------------

DISTILBERT = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForMaskedLM"],
    "dim": 64,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 96,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}


def written(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_type_without_a_row_is_traced(tmp_path: Path, counting: Any) -> None:
    with pytest.raises(InputError, match=r"with model\.trace_tokens another is traced"):
        read_config(written(tmp_path, DISTILBERT))
    model = read_config(tmp_path, trace_tokens=32)
    made = counting.transformers.DistilBertConfig(**DISTILBERT)
    whole = counting.built("distilbert", made)
    assert model.parameters == counting.parameters(whole)
    assert (model.layers, model.max_positions, model.has_fixed_length) == (3, 32, True)
    assert "traced at 32 tokens" in model.notes[0]


def test_what_transformers_does_not_know_is_refused(tmp_path: Path, counting: Any) -> None:
    with pytest.raises(InputError, match=r"must be a type that transformers [\d.]+ has, got 'no'"):
        read_config(written(tmp_path, {**DISTILBERT, "model_type": "no"}), trace_tokens=32)
    with pytest.raises(InputError, match="transformers cannot build it: "):
        read_config(written(tmp_path, {**DISTILBERT, "dim": "wide"}), trace_tokens=32)


def test_without_transformers_the_refusal_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="needs transformers, which is not installed"):
        read_config(written(tmp_path, DISTILBERT), trace_tokens=32)
