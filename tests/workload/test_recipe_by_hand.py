"""Recipes, traced parts, tasks and rules of [training] with unlike numbers, both sides each."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.workload import presets
from simulator.workload.architecture import Architecture, Block
from simulator.workload.expert_routing import alike_load
from simulator.workload.modules import MLP, Attention, MoE
from simulator.workload.recipe import Recipe, Workload, beyond_traces
from simulator.workload.tasks import TaskHeads
from simulator.workload.traced import Amount, TracedFlash, TracedGemm, TracedPart
from simulator.workload.training_section import (
    read_training,
    with_tasks,
    wrong_training,
)
from simulator.workload.weights import Weight


def recipe(**fields: Any) -> Recipe:
    return Recipe(**{"sequence_length": 300, "global_batch": 14, **fields})


def model(**fields: Any) -> Architecture:
    """Three layers of experts on a width of 24, behind a table of 50 rows."""
    attention = Attention(heads=6, kv_heads=3, head_dim=4)
    block = Block(attention=attention, mlp=MoE(experts=12, top_k=3, ffn_hidden=10))
    rest: dict[str, Any] = {"name": "made-up", "family": "custom", "hidden": 24, "vocabulary": 50}
    return Architecture.of_layers([block] * 3, **{**rest, **fields})


def test_tokens_and_steps_of_a_run() -> None:
    plain = recipe(tokens=1e6)
    assert (plain.tokens_per_step, plain.mean_length) == (4200, 300.0)
    assert plain.sequences == ((300, 1.0),)
    assert plain.steps == pytest.approx(1e6 / 4200)
    critical = recipe(tokens=1e6, critical_batch=35)
    assert critical.run_tokens == pytest.approx(1.4e6)  # 14 / 35 more
    assert critical.steps == pytest.approx(1.4e6 / 4200)
    assert recipe().run_tokens is recipe().steps is None


@pytest.mark.parametrize(
    ("shares", "mean", "parts"),
    [
        (None, 160.0, (100 / 320, 220 / 320)),
        ((0.75, 0.25), 130.0, (75 / 130, 55 / 130)),
    ],
)
def test_tokens_of_sequences_as_they_come(
    shares: Any, mean: float, parts: tuple[float, float]
) -> None:
    """Lengths of 100 and 220: half and half, or three to one."""
    for batching, pads in (("packed", False), ("padded", True), ("dynamic", True)):
        found = recipe(lengths=(100, 220), length_shares=shares, batching=batching)
        assert found.mean_length == pytest.approx(mean)
        assert [length for length, _ in found.sequences] == [100, 220]
        assert [share for _, share in found.sequences] == pytest.approx(parts)
        assert found.pads is pads
        assert found.tokens_per_step == (round(14 * mean) if pads else 4200)
    assert not recipe(batching="padded").pads


@pytest.mark.parametrize(
    ("fields", "load"),
    [
        ({}, 1.0), ({"moe_imbalance": 1.7}, 1.7),
        ({"moe_imbalance": 1.7, "moe_capacity_factor": 1.3}, 1.3),
        ({"moe_imbalance": 1.1, "moe_capacity_factor": 1.3}, 1.1),
        ({"moe_imbalance": 1.1, "moe_capacity_factor": 1.3, "moe_pads_to_capacity": True}, 1.3),
        ({"moe_imbalance": 1.1, "moe_pads_to_capacity": True}, 1.1),
    ],
)  # fmt: skip
def test_the_fullest_rank(fields: dict[str, Any], load: float) -> None:
    assert recipe(**fields).expert_load == load


TYPES = {
    "fp32": (False, 4, "fp32"), "tf32": (False, 4, "tf32"), "fp16": (False, 2, "fp16"),
    "bf16": (False, 2, "bf16"), "fp8": (True, 2, "fp8"), "fp8_current": (True, 2, "fp8"),
    "fp8_blockwise": (True, 2, "fp8_blockwise"), "mxfp8": (True, 2, "mxfp8"),
    "nvfp4": (True, 2, "nvfp4"),
}  # fmt: skip


@pytest.mark.parametrize("precision", TYPES)
def test_types(precision: str) -> None:
    found = recipe(precision=precision)
    known = (found.is_quantised, found.number_bytes, found.matrix_type)
    assert known == TYPES[precision]


@pytest.mark.parametrize(
    ("fields", "embedding", "head", "tied"),
    [
        ({}, True, True, True), ({"frozen_layers": 1}, False, True, False),
        ({"frozen_embedding": True}, False, True, False),
        ({"frozen_head": True}, True, False, False),
        ({"lora_rank": 1}, False, False, False), ({"frozen_parts": ("text",)}, False, False, False),
        ({"frozen_parts": ("tower",)}, True, True, True),
    ],
)  # fmt: skip
def test_what_is_trained(fields: dict[str, Any], embedding: bool, head: bool, tied: bool) -> None:
    found = recipe(**fields)
    assert found.trains_embedding is embedding
    assert found.trains_head(tied=False) is head
    assert found.trains_head(tied=True) is tied
    assert found.freezes is (bool(fields.get("frozen_parts")) or not embedding or not head)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, []), ({"precision": "fp8"}, ["precision"]), ({"optimizer": "muon"}, ["optimizer"]),
        ({"optimizer": "adafactor"}, ["optimizer"]), ({"optimizer": "lion"}, []),
        ({"lora_rank": 1}, ["lora_rank"]), ({"frozen_layers": 1}, ["frozen_layers"]),
        ({"frozen_embedding": True}, ["frozen_embedding"]),
        ({"frozen_head": True}, ["frozen_head"]),
        ({"frozen_parts": ("tower",)}, ["frozen_parts"]), ({"lengths": (3,)}, ["lengths"]),
        ({"loss_chunks": 2}, ["loss_chunks"]), ({"loss_chunks": 1}, []),
    ],
)  # fmt: skip
def test_what_needs_more_than_a_trace_knows(fields: dict[str, Any], names: list[str]) -> None:
    assert beyond_traces(recipe(**fields)) == names


LOAD = {"moe_load": (0.25, 0.25, 0.25, 0.25)}


@pytest.mark.parametrize(
    ("fine", "wrong", "field"),
    [
        ({"lengths": (300,)}, {"lengths": (301,)}, "lengths"),
        ({"lengths": (3, 4), "length_shares": (0.5, 0.5)}, {"length_shares": (0.5, 0.5)},
         "length_shares"),
        ({"lengths": (3, 4), "length_shares": (0.5, 0.5009)},
         {"lengths": (3, 4), "length_shares": (0.5, 0.5011)}, "length_shares"),
        ({"lengths": (3, 4), "length_shares": (0.5, 0.4991)},
         {"lengths": (3, 4, 5), "length_shares": (0.5, 0.5)}, "length_shares"),
        ({"lora_rank": 1, "quantised_base": True}, {"quantised_base": True}, "quantised_base"),
        (LOAD, {"moe_load": (0.25, 0.25, 0.25, 0.2489)}, "moe_load"),
        ({"moe_load": (1.0,)}, {"moe_load": (0.2,) * 5}, "moe_load"),
        # three of twelve: no four experts can have more than all of a token's picks
        ({"moe_load": (1.0, 0.0, 0.0)}, {**LOAD, "moe_imbalance": 1.1}, "moe_imbalance"),
        ({"moe_routing": "balanced"}, {**LOAD, "moe_routing": "balanced"}, "moe_routing"),
        ({"moe_load": (0.3336, 0.333, 0.3334, *[0.0] * 9)},
         {"moe_load": (0.3338, 0.333, 0.3332, *[0.0] * 9)}, "moe_load"),
        ({"moe_imbalance": 4.0}, {"moe_imbalance": 4.01}, "moe_imbalance"),
        ({"moe_routing": "random"}, {"moe_routing": "random", "moe_imbalance": 1.1},
         "moe_routing"),
        ({"frozen_layers": 3}, {"frozen_layers": 4}, "frozen_layers"),
        ({"fake_quantised_weights": "detached_scales", "fake_quantised_inputs": True},
         {"fake_quantised_inputs": True}, "fake_quantised_inputs"),
    ],
)  # fmt: skip
def test_a_recipe_beside_a_wrong_one_is_fine(
    fine: dict[str, Any], wrong: dict[str, Any], field: str
) -> None:
    """Of a model with twelve experts, three a token, and three layers."""
    arch = model() if "fake_quantised_weights" not in fine else None
    assert wrong_training(recipe(**fine), arch, "run.toml") == []
    said = wrong_training(recipe(**wrong), arch, "run.toml")
    assert [text.split(": ")[1] for text in said] == [f"training.{field}"]


@pytest.mark.parametrize(("ep", "most"), [(2, 2.0), (3, 3.0), (4, 4.0), (6, 4.0), (12, 4.0)])
def test_the_most_that_one_rank_of_experts_can_have(ep: int, most: float) -> None:
    """All tokens, as long as it holds three experts; a picked expert of each token beyond."""
    assert wrong_training(recipe(moe_imbalance=most), model(), "x", ep=ep) == []
    (said,) = wrong_training(recipe(moe_imbalance=most + 0.01), model(), "x", ep=ep)
    assert f"must be at most {most:g}: of ep = {ep} ranks" in said


@pytest.mark.parametrize(
    ("experts", "picks", "ranks"), [(6, 2, 3), (6, 3, 2), (8, 3, 4), (9, 4, 3)]
)
def test_the_same_experts_for_all_tokens(experts: int, picks: int, ranks: int) -> None:
    """Every way to draw them, one after the other."""
    size = experts // ranks
    draws = list(combinations(range(experts), picks))
    fullest = [max(sum(e // size == rank for e in draw) for rank in range(ranks)) for draw in draws]
    expected = sum(fullest) / len(draws) * ranks / picks
    assert alike_load(experts, picks, ranks) == pytest.approx(expected)


def test_routing_is_balanced_where_nothing_else_is_said() -> None:
    given = {"sequence_length": 300, "global_batch": 14}
    arch = model()
    assert read_training(given, arch, where="x").moe_routing == "balanced"
    dense = Architecture.of_layers(
        [Block(attention=Attention(heads=6, kv_heads=3, head_dim=4), mlp=MLP(ffn_hidden=10))],
        name="dense", family="custom", hidden=24, vocabulary=50,
    )  # fmt: skip
    for stated, on in (({"moe_imbalance": 1.5}, arch), (LOAD, arch), ({}, dense), ({}, None)):
        assert read_training({**given, **stated}, on, where="x").moe_routing is None


def test_kinds_of_work() -> None:
    vision = presets.load("vit-large-16")
    assert Workload(architecture=model(), recipe=recipe()).kind == "experts"
    assert Workload(architecture=model(), recipe=recipe(lora_rank=1)).kind == "adapter"
    assert Workload(architecture=vision, recipe=recipe()).kind == "vision"


def test_parameters_of_a_small_model() -> None:
    """Norms of 24, 24 x (24 + 2 x 12) and 24 x 24 of attention, a router, experts of 3 x 240."""
    layer = 2 * 24 + 24 * 48 + 24 * 24 + 12 * 24
    arch = model()
    assert arch.layers == 3 and arch.is_moe and not arch.is_encoder_decoder
    assert arch.parameters == 3 * (layer + 12 * 720) + 2 * 50 * 24 + 24
    assert arch.active_parameters == 3 * (layer + 3 * 720) + 2 * 50 * 24 + 24
    tied = replace(arch, tied_embeddings=True)
    assert arch.parameters - tied.parameters == 50 * 24
    ahead = arch.predicting_ahead(2)
    assert (ahead.layers, ahead.mtp_layers) == (3, 2)
    # each joins two inputs of 24 and has three norms more
    more = layer + 12 * 720 + 2 * 24 * 24 + 3 * 24
    assert ahead.parameters - arch.parameters == 2 * more
    learned = replace(arch, position="learned", max_positions=70, extra_embeddings=5)
    assert learned.parameters - arch.parameters == 75 * 24
    narrow = replace(arch, table_width=7)
    assert narrow.embedding_parameters == 50 * 7 + 24 * 7
    assert narrow.head_parameters == 50 * 7 + 7 * 24 + 24
    biased = replace(arch, head_bias=True, head_transform=True, pooler=True, classes=11)
    assert biased.head_parameters - arch.head_parameters == 50 + 2 * 24 * 25 + 11 * 25
    assert replace(biased, class_bias=False).head_parameters == biased.head_parameters - 11
    assert replace(arch, headless=True).output_rows == 0


def test_a_weight_by_its_elements() -> None:
    weight = Weight(name="w", rows=7, columns=11, bias=True, count=5, active=2, share=0.25)
    assert (weight.parameters, weight.active_parameters) == (5 * 12 * 7, 2 * 12 * 7)
    assert weight.flop == 2 * 0.25 * 2 * 7 * 11
    assert replace(weight, active=0).flop == 2 * 0.25 * 5 * 7 * 11
    assert replace(weight, per="none").flop == 0.0


def test_a_traced_part_by_its_calls() -> None:
    """Amounts that are fixed, and that each sample adds to."""
    rows, ten, four = Amount(fixed=6.0, per_sample=10.0), Amount(fixed=10.0), Amount(fixed=4.0)
    assert (rows.at(3.0), ten.at(3.0)) == (36.0, 10.0)
    gemm = TracedGemm(m=rows, n=ten, k=four, batch=Amount(fixed=1.0), weights=True)
    scores = replace(gemm, batch=Amount(fixed=0.0, per_sample=5.0), weights=False)
    flash = TracedFlash(
        heads=Amount(fixed=0.0, per_sample=7.0), queries=30.0, keys=50.0, score_size=8.0,
        value_size=3.0, query_bytes=ten, key_bytes=ten, causal=False,
    )  # fmt: skip
    assert gemm.flop(3.0) == 2 * 36 * 10 * 4
    assert scores.flop(3.0) == 2 * 15 * 36 * 10 * 4
    assert flash.flop(3.0) == 2 * 21 * 30 * 50 * 11
    assert replace(flash, causal=True).flop(3.0) == 21 * 30 * 50 * 11
    part = TracedPart(
        parameters=40, gemms=(gemm, scores), flash=(flash,), streams=(), saved_bytes=ten,
        input_bytes=ten, transient_bytes=ten, element_bytes=2,
    )  # fmt: skip
    assert [(w.rows, w.columns) for w in part.weights] == [(10, 4)]
    assert part.flop(3.0) == gemm.flop(3.0) + scores.flop(3.0) + flash.flop(3.0)
    assert part.flop_per_sample == part.flop(2.0) - part.flop(1.0)


def test_heads_of_tasks_by_hand() -> None:
    """Three tasks on two experts of 11 inside and 5 out, in a model of 24; two see all samples."""
    tasks = TaskHeads(
        outputs=(1, 1, 9), batch_fractions=(1.0, 1.0, 0.25), tower_hidden=7, experts=2,
        expert_hidden=11, expert_outputs=5,
    )  # fmt: skip
    sizes = {w.name: (w.rows, w.columns, w.count, w.bias, w.share) for w in tasks.weights(24)}
    assert sizes == {
        "task experts in": (11, 24, 2, True, 1.0), "task experts out": (5, 11, 2, True, 1.0),
        "task gates": (6, 24, 1, False, 1.0), "task towers": (7, 5, 2, True, 1.0),
        "task towers for 0.25": (7, 5, 1, True, 0.25), "task outputs of 1": (1, 7, 2, True, 1.0),
        "task outputs of 9 for 0.25": (9, 7, 1, True, 0.25),
    }  # fmt: skip
    assert tasks.mixing_flop(24) == 2 * 2.25 * 2 * 5
    shared = TaskHeads(outputs=(4, 3))
    assert {w.name: (w.rows, w.columns) for w in shared.weights(24)} == {
        "task outputs of 4": (4, 24), "task outputs of 3": (3, 24),
    }  # fmt: skip
    assert shared.parameters(24) == 7 * 25 and shared.mixing_flop(24) == 0.0


@pytest.mark.parametrize(
    ("fine", "wrong", "field"),
    [
        ({"experts": 2, "expert_hidden": 3}, {"experts": 2}, "expert_hidden"),
        ({"experts": 2, "expert_hidden": 3, "expert_outputs": 1}, {"expert_outputs": 1},
         "expert_outputs"),
        ({"batch_fractions": [1.0, 0.5]}, {"batch_fractions": [1.0]}, "batch_fractions"),
    ],
)  # fmt: skip
def test_tasks_beside_wrong_ones(fine: dict[str, Any], wrong: dict[str, Any], field: str) -> None:
    arch = model(classes=9)
    assert with_tasks({"outputs": [4, 3], **fine}, arch, "x").classes == 0
    kept = with_tasks({"outputs": [4, 3], "keeps_output": True, **fine}, arch, "x")
    assert kept.classes == 9 and kept.output_rows == 50
    with pytest.raises(InputError, match=rf"^x: model\.tasks\.{field}: "):
        with_tasks({"outputs": [4, 3], **wrong}, arch, "x")
