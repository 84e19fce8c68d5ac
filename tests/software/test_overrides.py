"""What a run states of its software: switches and dotted fields, what they change, refusals."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator import catalogue, predict
from simulator.errors import InputError
from simulator.files import Figure
from simulator.measured.rows import read_row
from simulator.scenario import Scenario, make_scenario
from simulator.scoring.validation import validate
from simulator.software.overrides import switches, unknown_field, with_overrides
from simulator.software.profile import Software, load_software

CORE = load_software("megatron-core")
TORCH = load_software("plain-ddp")
BRIDGE = load_software("megatron-bridge-26.06")
SECTIONS: dict[str, Any] = {
    "model": {"name": "llama-3.1-8b"},
    "training": {"sequence_length": 4096, "global_batch": 64},
    "cluster": {"name": "dgx-h100", "gpus": 8, "software": "megatron-core"},
}


def put(usual: Software = CORE, /, **stated: Any) -> Software:
    return with_overrides(usual, stated, where="run")


def wrong(usual: Software = CORE, /, **stated: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        put(usual, **stated)
    return list(caught.value.problems)


# --- one door, four ways in ---------------------------------------------------------------------


def scenario(**software: Any) -> Scenario:
    return make_scenario({**SECTIONS, "software": software})


def test_a_section_a_flag_a_keyword_and_a_column_come_to_the_same(tmp_path: Path) -> None:
    stated = {"overlap": {"expert": True}, "states": {"reduce": 4}}
    section = scenario(**stated).software
    flags = ["software.overlap.expert=true", "software.states.reduce=4"]
    assert make_scenario(SECTIONS, overrides=flags).software == section
    keyword = predict(
        model="llama-3.1-8b",
        cluster="dgx-h100",
        gpus=8,
        software={"name": "megatron-core", "overlap.expert": True, "states.reduce": 4},
    )
    assert keyword.scenario.software == section
    row = read_row({"software.overlap.expert": "true", "software.states.reduce": "4"})
    columns = {name.removeprefix("software."): value for name, value in row.values.items()}
    assert with_overrides(CORE, columns) == section
    assert section.overlap.expert and section.states.reduce == 4.0
    assert section.name == "megatron-core", "the profile's name stays what is asked for"


def test_a_switch_may_be_said_where_a_field_may() -> None:
    assert scenario(expert_overlap=True).software == scenario(overlap={"expert": True}).software
    said = make_scenario(SECTIONS, overrides=["software.dispatcher=hybridep"]).software
    assert said.supports.dispatchers == ("deepep",)
    assert said.kernels.expert_library == "hybridep"


def test_a_table_may_name_columns_by_dotted_fields(tmp_path: Path) -> None:
    source = catalogue.folder("validation") / "runs" / "test.csv"
    with source.open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["ep"] or 1) > 1][:3]
    usual, short, dotted = (tmp_path / f"{name}.csv" for name in ("usual", "short", "dotted"))
    columns = {
        usual: "transformer_impl",
        short: "expert_overlap",
        dotted: "software.overlap.expert",
    }
    for path, column in columns.items():
        with path.open("w", newline="") as file:
            changed = [{k: v for k, v in row.items() if k != "expert_overlap"} for row in rows]
            writer = csv.DictWriter(file, [*changed[0], column])
            writer.writeheader()
            said = "" if path == usual else "true"
            writer.writerows({**row, column: said} for row in changed)
    as_usual, by_short, by_dotted = (
        [row.predicted_step_s for row in validate(path).rows] for path in columns
    )
    assert by_short == by_dotted != as_usual
    text = dotted.read_text().replace("software.overlap.expert", "software.overlap.exprt")
    dotted.write_text(text)
    with pytest.raises(InputError, match=r"overlap\.exprt: unknown column \(did you mean 'expert'"):
        validate(dotted)


def test_names_of_columns_are_switches_fields_or_unknown() -> None:
    assert not any(
        map(unknown_field, ("dispatcher", "overlap.expert", "kernels.dtensor.casts"[:15]))
    )
    assert unknown_field("overlap.exprt") == " (did you mean 'expert'?)"
    assert "did you mean 'dispatcher'" in unknown_field("dispatchr")


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"expert_overlapp": True}, "unknown field (did you mean 'expert_overlap'?)"),
        ({"overlap": {"exprt": True}}, "overlap.exprt: unknown field (did you mean 'expert'?)"),
        ({"expert": True}, "it stands in [software.supports] or [software.overlap]"),
        ({"norm_casts": ["fp8"]}, "it stands in [software.kernels.transformer_engine]"),
        ({"name": "torchtitan"}, "the profile is named by cluster.software"),
        ({"overlap": {"expert": "x"}}, "overlap.expert: must be true or false, got 'x'"),
        ({"overlap": 3}, "overlap: must be a table of fields, got 3"),
        ({"states": {"reduce": -1}}, "states.reduce: must not be negative, got -1"),
        ({"bucket_bytes": 0}, "states.bucket_bytes: must be above 0, got 0"),
        ({"reduce_dtype": "fp8"}, "must be one of bf16, fp16, fp32, got 'fp8'"),
        ({"gradient_dtype": "16"}, "must be one of bf16, fp16, fp32, got '16'"),
        ({"fused_gradient_accumulation": "si"}, "must be true or false, got 'si'"),
        ({"recompute_stops_early": "early"}, "must be one of never, 16bit, always"),
        ({"dispatcher": "deepepp"}, "got 'deepepp' (did you mean 'deepep'?)"),
        ({"expert_overlap": "on"}, "must be true or false, got 'on'"),
        ({"cuda_graph_scope": "attn+rest"}, "joined by +, got 'rest'"),
        ({"cuda_graphs": False, "cuda_graph_scope": "attn"}, "must be left out where cuda_graphs"),
    ],
)
def test_words_that_are_refused(stated: dict[str, Any], said: str) -> None:
    (line,) = wrong(**stated)
    assert line.startswith("run: software.")
    assert said in line


def test_two_words_and_joined_ones_are_listed_whole_and_not_guessed() -> None:
    assert wrong(expert_overlap="ture") == [
        "run: software.expert_overlap: must be true or false, got 'ture'"
    ]
    (line,) = wrong(cuda_graph_scope="attn+mlpp")
    assert line.endswith("joined by +, got 'mlpp'")


def test_what_a_software_has_not_is_refused_with_the_reason() -> None:
    old, nemo = load_software("megatron-lm-2022"), load_software("nemo-25.04")
    assert wrong(old, dispatcher="hybridep") == [
        "run: software.dispatcher: megatron-lm-2022 has no deepep (it has alltoall)"
    ]
    assert wrong(nemo, cuda_graph_scope="moe_router") == [
        "run: software.cuda_graph_scope: nemo-25.04 captures no moe_router in graphs"
        " (it captures full_iteration)"
    ]
    eager = load_software("torchtune-2024")
    assert "captures no full_iteration in graphs" in wrong(eager, cuda_graphs=True)[0]


def test_problems_of_software_stand_beside_those_of_other_sections() -> None:
    sections = {**SECTIONS, "goal": {"minimize": "fun"}, "software": {"dispatchr": "deepep"}}
    with pytest.raises(InputError) as caught:
        make_scenario(sections)
    assert [line.split(": ")[1] for line in caught.value.problems] == [
        "software.dispatchr",
        "goal.minimize",
    ]
    with pytest.raises(InputError, match=r"named by cluster\.software\), got 'torchtitan'"):
        make_scenario({**SECTIONS, "software": "torchtitan"})


# --- what each switch changes -------------------------------------------------------------------


def test_nothing_stated_changes_nothing() -> None:
    assert put() == CORE
    silent = {name: "false" for name, switch in switches().items() if "false" in switch.words}
    quiet = {"fp8_attention", "fp8_head", "deterministic", "split_master_weights"}
    assert put(**{name: silent[name] for name in quiet}) == CORE


def test_every_word_of_every_switch_can_be_put_over_a_profile() -> None:
    for name, switch in switches().items():
        for word in switch.words or {"1e6": {}}:
            value = float(word) if not switch.words else word
            profile = TORCH if word == "linear" else CORE
            assert with_overrides(profile, {name: value}).name == profile.name


@pytest.mark.parametrize(("word", "size"), [("fp16", 2), ("bf16", 2), ("fp32", 4)])
def test_types_of_gradients(word: str, size: int) -> None:
    usual = replace(CORE, states=replace(CORE.states, reduce=Figure(8), gradient=Figure(8)))
    stated = put(usual, reduce_dtype=word, gradient_dtype=word).states
    assert (float(stated.reduce), float(stated.gradient)) == (size, size)
    assert stated.reduce.grade == "datasheet" and stated.reduce.source == "stated for the run"
    assert replace(stated, reduce=Figure(8), gradient=Figure(8)) == usual.states


def test_a_stated_bucket_does_not_grow_with_the_ranks() -> None:
    stated = put(bucket_bytes=1.536e9).states
    assert (float(stated.bucket_bytes), float(stated.bucket_bytes_per_rank)) == (1.536e9, 0.0)


def test_accumulation_is_as_stated() -> None:
    alone = replace(CORE, kernels=replace(CORE.kernels, fused=("norm",)))
    fused = "fused_gradient_accumulation"
    assert put(alone, **{fused: True}).kernels.fused == ("norm", "gradient_accumulation")
    assert put(alone, **{fused: False}).kernels.fused == ("norm",)
    apart = put(**{fused: False})
    assert set(CORE.kernels.fused) - set(apart.kernels.fused) == {"gradient_accumulation"}
    assert float(CORE.states.shared_reduce_copies) == 0.0
    assert float(apart.states.shared_reduce_copies) == 2.0, "where ranks share gradients"
    assert float(apart.states.reduce_copies) == 0.0


def test_words_of_a_list_are_put_in_and_taken_out() -> None:
    table = {"fused": {"loss": False, "adapters": True}}
    assert put(kernels=table).kernels.fused == (
        *(word for word in CORE.kernels.fused if word != "loss"),
        "adapters",
    )
    joined = put(kernels={"selective_modules": "norm+moe"}).kernels
    assert joined.selective_modules == ("norm", "moe")
    casts = put(kernels={"transformer_engine": {"activation_casts": ["mxfp8"]}}).kernels
    assert casts.transformer_engine.activation_casts == ("mxfp8",)


@pytest.mark.parametrize("word", ["alltoall", "allgather", "deepep"])
def test_a_dispatcher_that_is_stated_is_the_only_one(word: str) -> None:
    assert put(dispatcher=word).supports.dispatchers == (word,)


@pytest.mark.parametrize("column", ["fp8_attention", "fp8_head"])
def test_attention_and_head_take_eight_bit_where_that_is_stated(column: str) -> None:
    usual = CORE.kernels.transformer_engine
    engine = put(**{column: "true"}).kernels.transformer_engine
    changed = {"fp8_attention": "quantised_attention", "fp8_head": "quantised_head"}[column]
    assert getattr(engine, changed) == ("mxfp8",)
    none: dict[str, Any] = {changed: ()}
    assert replace(engine, **none) == usual


def test_expert_overlap_both_ways() -> None:
    on = replace(CORE, overlap=replace(CORE.overlap, expert=True))
    assert put(expert_overlap=True) == on
    assert put(on, expert_overlap=False) == CORE


def test_tensor_parallel_traffic_is_pipelined_as_the_software_does_it() -> None:
    assert put(tp_comm_overlap=True).overlap.tensor == "userbuffers"
    titan = load_software("torchtitan")
    assert put(titan, tp_comm_overlap=True).overlap.tensor == "async"


def test_a_mask_of_the_loader() -> None:
    loaded = load_software("megatron-core-defaults")
    assert float(loaded.input.mask_bytes) == 1.0
    assert put(loaded, mask_in_dataloader=True) == loaded
    assert float(put(loaded, mask_in_dataloader=False).input.mask_bytes) == 0.0


@pytest.mark.parametrize(
    ("scope", "dense", "experts"),
    [
        ("full_iteration", 1.0, 1.0),
        ("moe_router+moe_preprocess", 0.0, 0.36),
        ("attn+moe_router", 1.0, 0.36),
        ("attn", 1.0, 0.0),
        (["attn", "moe_router", "moe_preprocess"], 1.0, 0.36),
    ],
)
def test_parts_that_graphs_capture(scope: Any, dense: float, experts: float) -> None:
    host = put(cuda_graph_scope=scope, cuda_graphs=True).host
    assert (float(host.captured_fraction), float(host.captured_moe_fraction)) == (dense, experts)
    same = {
        name: getattr(CORE.host, name) for name in ("captured_fraction", "captured_moe_fraction")
    }
    assert replace(host, **same) == CORE.host


def test_products_of_experts_that_cast_go_with_graphs_of_the_whole_step() -> None:
    """Megatron-Bridge's recipes set cutedsl_fused_grouped_mlp there and nowhere else."""

    def types(**stated: Any) -> tuple[str, ...]:
        return put(BRIDGE, **stated).kernels.transformer_engine.fused_grouped_mlp

    assert types() == types(cuda_graphs=True, cuda_graph_scope="attn+moe_router") == ()
    assert types(cuda_graphs=True) == types(cuda_graph_scope="full_iteration") == ("mxfp8",)
    own = {"kernels": {"transformer_engine": {"fused_grouped_mlp": ["mxfp8"]}}}
    assert types(**own) == ("mxfp8",), "a run may say so itself"


def test_losses() -> None:
    none, compiled = put(loss_fusion="none").kernels, put(loss_fusion="compiled").kernels
    assert (none.loss_bytes_per_logit, compiled.loss_bytes_per_logit) == (6.0, 10.0)
    assert "loss" not in none.fused and "loss" not in compiled.fused
    assert put(loss_fusion="transformer_engine").kernels.fused == CORE.kernels.fused


# --- workspaces ---------------------------------------------------------------------------------


def test_workspaces_of_deterministic_runs_and_of_blocks_without_transformer_engine() -> None:
    def of(generation: str, **stated: Any) -> tuple[float, float, float]:
        held = put(**stated).allocator.on(generation)
        return held.workspace_bytes, held.head_workspace_bytes, held.grouped_workspace_bytes

    usual = of("hopper")
    assert usual == (33.6e6, 67108864.0, 134217728.0)
    assert of("hopper", deterministic=True) == (33.6e6, 67108864.0, 134217728.0)
    assert of("blackwell")[1] == 17039360.0
    assert of("blackwell", deterministic=True) == (33.6e6, 67108864.0, 134217728.0)
    assert of("hopper", grouped_experts=False) == (33.6e6, 67108864.0, 0.0)
    assert of("hopper", transformer_impl="local") == (67108864.0, 0.0, 33.6e6)
    assert of("ampere", transformer_impl="local") == (17039360.0, 0.0, 4194304.0)
    local = put(transformer_impl="local").allocator
    assert local.scores_buffer and local.dummy_gradient_copies == 0.0
