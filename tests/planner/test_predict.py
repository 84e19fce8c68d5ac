"""One layout: stated defaults, refusals in the words of the wrong field, and the estimate."""

import re
from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.layout.layout_section import LayoutSection
from simulator.layout.layouts import Layouts
from simulator.planner.layout_row import layout_rows
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import Scenario, make_scenario
from simulator.search.defaults import DEFAULTS


def scenario(
    model: str = "llama-3.1-70b",
    gpus: int = 64,
    software: str = "megatron-core",
    batch: int = 1024,
    length: int = 8192,
    **layout: Any,
) -> Scenario:
    document = {
        "model": {"name": model},
        "training": {"sequence_length": length, "global_batch": batch},
        "cluster": {"name": "dgx-h100", "gpus": gpus, "software": software},
        "layout": layout,
    }
    return make_scenario(document, where="run.toml")


def refused(asked: Scenario, **layout: Any) -> str:
    with pytest.raises(InputError) as caught:
        predict(asked, **layout)
    (problem,) = caught.value.problems
    return problem.removeprefix("run.toml: ")


# --- defaults -----------------------------------------------------------------------------------


def test_every_layout_field_has_a_stated_default() -> None:
    assert set(DEFAULTS) == set(LayoutSection.__dataclass_fields__)
    assert set(predict(scenario()).defaults) == set(DEFAULTS)


def test_a_layout_is_the_same_in_python_as_in_json() -> None:
    """Python said that parameters are resharded where nothing is sharded, JSON null."""
    for wanted, said in (({"sharding": "ddp"}, None), ({"sharding": "zero3"}, True)):
        made = predict(scenario(), **wanted)
        assert made.layout["reshard_after_forward"] is said
        assert made.layout == layout_rows(made)[0].layout


def test_defaults_of_nothing_given() -> None:
    assert predict(scenario()).layout == {
        "tp": 1,
        "pp": 1,
        "vpp": 1,
        "cp": 1,
        "cp_kind": "ring",
        "cp_a2a": 1,
        "dp": 64,
        "ep": 1,
        "etp": 1,
        "dispatcher": "alltoall",
        "micro_batch": 1,
        "global_batch": 1024,
        "sharding": "zero1",
        "shard_group": 64,
        "reshard_after_forward": None,
        "sequence_parallel": False,
        "recompute": "none",
        "recompute_layers": 0,
        "recompute_modules": "",
        "offload_layers": 0,
        "optimizer_offload": "none",
        "parameter_offload": "none",
        "schedule": "1f1b",
        "rank_order": "tp-cp-dp-pp",
        "stages": [],
    }


def test_defaults_follow_what_is_given() -> None:
    found = predict(scenario(tp=4, pp=2), cp=2, vpp=2)
    assert found.layout["dp"] == 4 and found.layout["shard_group"] == 8
    assert found.layout["sequence_parallel"] is True
    assert found.layout["schedule"] == "interleaved"
    assert found.scenario.pinned == {"tp": 4, "pp": 2, "cp": 2, "vpp": 2}
    assert not set(found.defaults) & set(found.scenario.pinned)


@pytest.mark.parametrize(
    ("software", "layout", "sharding"),
    [
        ("megatron-core", {}, "zero1"),
        ("megatron-core", {"tp": 8}, "ddp"),
        ("torchtitan", {"tp": 2}, "zero3"),
        ("torchtitan", {"pp": 2}, "zero2"),
        ("torchtitan", {"tp": 8}, "zero3"),
        ("plain-ddp", {}, "ddp"),
        ("megatron-lm-2022", {"tp": 2}, "ddp"),
    ],
)
def test_default_sharding_is_what_the_software_would_do(
    software: str, layout: dict[str, int], sharding: str
) -> None:
    asked = scenario("gpt3-6.7b", 8, software, length=2048, **layout)
    assert predict(asked).layout["sharding"] == sharding


def test_some_layers_to_recompute_mean_full_recomputation() -> None:
    assert predict(scenario(), recompute_layers=3).layout["recompute"] == "full"


# --- the answer ---------------------------------------------------------------------------------


def test_the_estimate_is_that_of_the_layout() -> None:
    asked = scenario(tp=4, pp=4)
    table = Layouts.of(tp=4, pp=4, dp=4, global_batch=1024, sharding="zero1")
    alone = evaluate(table, asked.workload, asked.cluster, asked.software)
    found = predict(asked)
    assert found.step_time_s == float(alone.step_time_s[0])
    assert found.memory_bytes == float(alone.memory_total_bytes[0])


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"pp": 5, "tp": 1}, r"layout.pp: must be even with dualpipe, got 5 \(nearest: 4 or 6\)"),
        (
            {"pp": 8, "micro_batch": 16},
            "needs at least 16 micro-batches and an even number of them",
        ),
        ({"pp": 8, "vpp": 2}, r"layout.vpp: must be 1 with dualpipe, got 2 \(nearest: 1\)"),
    ],
)
def test_what_dualpipe_needs(layout: dict[str, Any], said: str) -> None:
    asked = scenario(gpus=40 if layout["pp"] == 5 else 64, batch=1280)
    supports = replace(asked.software.supports, schedules=("1f1b", "dualpipe"))
    asked = replace(asked, software=replace(asked.software, supports=supports))
    with pytest.raises(InputError, match=said):
        predict(asked, schedule="dualpipe", **layout)


def test_what_does_not_fit_is_an_answer() -> None:
    assert predict(scenario("llama-3.1-405b")).fits is False


# --- refusals -----------------------------------------------------------------------------------

DEEPSEEK = {"model": "deepseek-v3", "gpus": 1024}

REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"tp": 7}, "layout.tp: must divide 64 attention heads, got 7 (nearest: 8)"),
    ({}, {"tp": 6}, "layout.tp: must divide 64 attention heads, got 6 (nearest: 4 or 8)"),
    ({"model": "gpt2-xl", "length": 1024}, {"tp": 2},
     "layout.tp: must divide 25 attention heads, got 2 (nearest: 1)"),
    ({"gpus": 96}, {},
     "training.global_batch: must divide by dp x micro_batch = 96, got 1024 "
     "(nearest: 960 or 1056)"),
    ({}, {"micro_batch": 24},
     "training.global_batch: must divide by dp x micro_batch = 1536, got 1024 (nearest: 1536)"),
    ({}, {"dp": 2, "tp": 4, "pp": 4},
     "layout.dp: dp x tp x pp x cp must be cluster.gpus = 64, got 2 x 4 x 4 x 1 = 32 "
     "(nearest: dp 4)"),
    ({}, {"pp": 3},
     "layout.pp: tp x pp x cp must divide cluster.gpus = 64, got 1 x 3 x 1 = 3 "
     "(nearest: pp 2 or pp 4)"),
    ({"gpus": 24}, {"tp": 4, "pp": 48},
     "layout.pp: must be at most the 24 GPUs, got 48 (nearest: 24)"),
    ({}, {"pp": 4, "vpp": 30},
     "layout.vpp: pp x vpp must be at most the 80 layers (or 82: embedding and head), got 30"
     " (nearest: 20)"),
    ({}, {"vpp": 2}, "layout.vpp: must be 1 where pp is 1, got 2 (nearest: 1)"),
    ({"batch": 72}, {"tp": 2, "pp": 4, "vpp": 2},
     "layout.vpp: needs micro-batches in equal rounds of 4 to 7 in megatron-core, "
     "got 9 micro-batches (nearest: vpp 1 or global_batch 64)"),
    ({"length": 8190}, {"cp": 4},
     "training.sequence_length: must divide by 2 x cp x tp = 8, got 8190 "
     "(nearest: 8184 or 8192)"),
    ({"length": 8190}, {"tp": 4},
     "training.sequence_length: must divide by tp = 4, got 8190 (nearest: 8188 or 8192)"),
    ({}, {"ep": 8}, "layout.ep: must be 1: llama-3.1-70b has no experts, got 8 (nearest: 1)"),
    ({}, {"etp": 2}, "layout.etp: must be 1: llama-3.1-70b has no experts, got 2 (nearest: 1)"),
    (DEEPSEEK, {"ep": 7}, "layout.ep: must divide 256 experts, got 7 (nearest: 8)"),
    (DEEPSEEK, {"ep": 64, "pp": 32},
     "layout.ep: ep x etp must divide dp x cp x tp = 32, got 64 x 1 (nearest: ep 32)"),
    (DEEPSEEK, {"tp": 2, "ep": 8, "sequence_parallel": False},
     "layout.sequence_parallel: must be true: experts with tp > 1 need it, got false"),
    ({}, {"sequence_parallel": True},
     "layout.sequence_parallel: must be false where tp is 1, got true"),
    ({}, {"sharding": "zero3", "pp": 2},
     "layout.sharding: must be one of ddp, zero1 with pp > 1 in megatron-core, got 'zero3'"),
    ({}, {"rank_order": "tp-dp-cp-pp"},
     "layout.rank_order: must be one of tp-cp-dp-pp, tp-cp-pp-dp in megatron-core, "
     "got 'tp-dp-cp-pp'"),
    ({}, {"recompute": "none", "recompute_layers": 3},
     "layout.recompute_layers: needs recompute = 'full' (it is 'none'), got 3 (nearest: 0)"),
    ({}, {"recompute_layers": 30, "pp": 4},
     "layout.recompute_layers: must be at most the 20 layers of a pipeline rank, got 30 "
     "(nearest: 20)"),
    ({}, {"offload_layers": 81},
     "layout.offload_layers: must be at most the 80 layers, got 81 (nearest: 80)"),
    ({}, {"offload_layers": 21, "pp": 4},
     "layout.offload_layers: must be at most the 20 layers of a pipeline rank, got 21 "
     "(nearest: 20)"),
    ({}, {"offload_layers": 3, "pp": 2},
     "layout.offload_layers: must be 0 with pp > 1: megatron-core offloads without pipeline "
     "stages only, got 3 (nearest: 0)"),
    ({"software": "torchtitan"}, {"offload_layers": 3},
     "layout.offload_layers: must be 0: torchtitan keeps no activations in host memory, got 3 "
     "(nearest: 0)"),
    ({}, {"offload_layers": -1},
     "layout.offload_layers: must be greater than or equal to 0, got -1"),
    ({"software": "torchtitan"}, {"optimizer_offload": "cpu"},
     "layout.optimizer_offload: must be 'none': torchtitan does not offload it, got 'cpu'"),
    ({}, {"optimizer_offload": "disk"},
     "layout.optimizer_offload: must be 'none', 'cpu' or 'nvme', got 'disk'"),
    ({}, {"parameter_offload": "cpu"},
     "layout.parameter_offload: must be 'none': megatron-core keeps no parameters in host memory, "
     "got 'cpu'"),
    ({}, {"shard_group": 7}, "layout.shard_group: must divide dp x cp = 64, got 7 (nearest: 8)"),
    ({}, {"schedule": "1f1b", "pp": 2, "vpp": 2},
     "layout.schedule: must be interleaved with vpp = 2, got '1f1b'"),
    ({}, {"schedule": "interleaved", "pp": 2},
     "layout.schedule: must be 1f1b with vpp = 1, got 'interleaved'"),
    ({}, {"schedule": "zb_v", "pp": 2},
     "layout.schedule: must be one of 1f1b, interleaved in megatron-core, got 'zb_v'"),
    ({}, {"schedule": "any", "pp": 2},
     "layout.schedule: must be one schedule; plan tries all of them, got 'any'"),
    ({"software": "torchtitan"}, {"schedule": "zb_v"},
     "layout.schedule: needs pp > 1, got 'zb_v'"),
    ({"software": "torchtitan"}, {"schedule": "zb_v", "pp": 2, "vpp": 5},
     "layout.vpp: must be 2 with zb_v, got 5 (nearest: 2)"),
    ({"software": "torchtitan"}, {"schedule": "looped_bfs", "pp": 2},
     "layout.vpp: must be at least 2 with looped_bfs, got 1 (nearest: 2)"),
    ({"software": "torchtitan"}, {"schedule": "dualpipe_v", "pp": 8, "micro_batch": 16},
     "layout.schedule: dualpipe_v needs at least 16 micro-batches, got 8 "
     "(nearest: global_batch 2048)"),
    ({}, {"tp": 10**12},
     "layout.tp: must be less than or equal to 100000000, got 1000000000000"),
    ({}, {"tpp": 2}, "layout.tpp: unknown field (did you mean 'tp'?)"),
    ({"software": "plain-ddp"}, {"tp": 2},
     "layout.tp: must be 1: plain-ddp has no tensor parallelism, got 2 (nearest: 1)"),
    ({"software": "plain-ddp"}, {"pp": 2},
     "layout.pp: must be 1: plain-ddp has no pipeline parallelism, got 2 (nearest: 1)"),
    ({}, {"cp": 2, "cp_kind": "gather"},
     "layout.cp_kind: must be 'ring', 'all_gather', 'all_to_all', 'hierarchical' or 'any', "
     "got 'gather'"),
    ({}, {"cp": 2, "cp_kind": "any"},
     "layout.cp_kind: must be one kind; plan tries all of them, got 'any'"),
    ({}, {"cp": 8, "cp_kind": "hierarchical", "cp_a2a": 3},
     "layout.cp_a2a: must divide cp = 8 and leave a ring of two ranks or more, got 3 "
     "(nearest: 4)"),
    ({}, {"cp": 8, "cp_kind": "hierarchical", "cp_a2a": 8},
     "layout.cp_a2a: must divide cp = 8 and leave a ring of two ranks or more, got 8 "
     "(nearest: 4)"),
    ({}, {"cp": 2, "cp_kind": "hierarchical"},
     "layout.cp: must be a product of two numbers above 1 with hierarchical context parallelism, "
     "got 2 (nearest: 4)"),
    ({}, {"cp": 8, "cp_kind": "ring", "cp_a2a": 2},
     "layout.cp_a2a: must be 1 without hierarchical context parallelism, got 2 (nearest: 1)"),
    ({}, {"cp": 8, "tp": 4, "cp_kind": "hierarchical", "cp_a2a": 4},
     "layout.cp_a2a: must divide the 2 key/value heads of a tensor-parallel rank, got 4 "
     "(nearest: 2)"),
    ({"software": "torchtitan"}, {"cp": 4, "cp_a2a": 2},
     "layout.cp_kind: must be one of all_gather, ring in torchtitan, got 'hierarchical'"),
    ({"software": "torchtitan"}, {"cp": 2, "cp_kind": "all_to_all"},
     "layout.cp_kind: must be one of all_gather, ring in torchtitan, got 'all_to_all'"),
    ({}, {"cp": 4, "tp": 4, "cp_kind": "all_to_all"},
     "layout.cp: must divide the 2 key/value heads of a tensor-parallel rank with all_to_all, "
     "got 4 (nearest: 2)"),
    ({"software": "deepspeed", "model": "llama-3.1-8b"}, {"cp": 64, "sharding": "zero3"},
     "layout.cp: must divide the 32 heads of a tensor-parallel rank, and divide or be a multiple "
     "of its 8 key/value heads, with all_to_all, got 64 (nearest: 32)"),
    ({"software": "plain-ddp"}, {"cp": 2},
     "layout.cp: must be 1: plain-ddp has no context parallelism, got 2 (nearest: 1)"),
    ({"software": "plain-ddp"}, {"sharding": "zero1"},
     "layout.sharding: must be one of ddp in plain-ddp, got 'zero1'"),
    ({"software": "plain-ddp"}, {"recompute": "selective"},
     "layout.recompute: must be one of none, full in plain-ddp, got 'selective'"),
    ({"software": "plain-ddp", **DEEPSEEK}, {"ep": 8},
     "layout.ep: must be 1: plain-ddp has no expert parallelism, got 8 (nearest: 1)"),
    ({"software": "torchtitan"}, {"tp": 2, "sequence_parallel": False},
     "layout.sequence_parallel: must be true with tp > 1 in torchtitan, got false"),
    ({"software": "torchtitan"}, {"tp": 2, "sharding": "ddp"},
     "layout.sharding: must be one of zero2, zero3 with tp > 1 in torchtitan, got 'ddp'"),
    ({"software": "megatron-lm-2022"}, {"pp": 32},
     "layout.pp: pp x vpp must divide 80 layers (megatron-lm-2022 has no uneven stages), got 32 "
     "(nearest: 16)"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "layout", "message"), REFUSALS)
def test_refusal(asked: dict[str, Any], layout: dict[str, Any], message: str) -> None:
    assert refused(scenario(**asked), **layout) == message


@pytest.mark.parametrize(("cp", "length"), [(16, 8192), (32, 36_000)])
def test_ranks_may_be_more_than_keys_in_deepspeed(cp: int, length: int) -> None:
    """ulysses_sp.py: cp divides 32 heads and is a multiple of 8 keys; a piece of length / cp."""
    training = {"sequence_length": length, "global_batch": 64 // cp}
    document = {"model": {"name": "llama-3.1-8b"}, "training": training,
                "cluster": {"name": "dgx-h100", "gpus": 64, "software": "deepspeed"}}  # fmt: skip
    made = predict(make_scenario(document), cp=cp, sharding="zero3")
    assert made.estimate.step_time_s[0] > 0
    document["cluster"] = {"name": "dgx-h100", "gpus": 64, "software": "megatron-core"}
    with pytest.raises(InputError, match=r"2 x cp x tp|8 key/value heads"):
        predict(make_scenario(document), cp=cp, cp_kind="all_to_all")


def test_a_server_without_a_host_link_is_named() -> None:
    asked = scenario()
    group = asked.cluster.groups[0]
    node = replace(group.node, host_bytes_per_s=None)
    cluster = replace(asked.cluster, groups=(replace(group, node=node),))
    assert refused(replace(asked, cluster=cluster), offload_layers=3) == (
        "layout.offload_layers: must be 0: the profile of dgx-h100 has no host_bytes_per_s, got 3 "
        "(nearest: 0)"
    )


def test_gpus_are_named_when_no_degree_can_be_blamed() -> None:
    # 4 x 2 x 2 = 16 ranks cannot be had of 24 GPUs; tp, pp or cp alone could change, pp is named.
    assert refused(scenario(gpus=24, batch=24), tp=4, pp=2, cp=2) == (
        "layout.pp: tp x pp x cp must divide cluster.gpus = 24, got 4 x 2 x 2 = 16 "
        "(nearest: pp 1 or pp 3)"
    )
    # neither pp nor cp alone makes 9 divide 64: whole servers of 8 in nines are 72
    assert refused(scenario(gpus=64, batch=64, length=8190), pp=3, cp=3) == (
        "cluster.gpus: must divide by 1 x 3 x 3 = 9, got 64 (nearest: 72)"
    )


def test_what_is_offered_can_run() -> None:
    asked = scenario()
    predict(asked, tp=8)
    predict(asked, pp=2)
    predict(scenario(batch=960, gpus=96))
    predict(scenario(**DEEPSEEK), ep=8)
    predict(asked, offload_layers=79)


STAGES_405B = [7, *[8] * 14, 7]


def on_405b(**layout: Any) -> Prediction:
    document = {
        "model": {"name": "llama-3.1-405b"},
        "training": {"sequence_length": 8192, "global_batch": 2048},
        "cluster": {"name": "dgx-h100", "gpus": 2048, "software": "meta-llama3-2024"},
    }
    return predict(make_scenario(document), tp=8, **layout)


def test_given_stages_are_those_of_the_rule_where_they_say_the_same() -> None:
    # the rule gives embedding and head a layer each: 126 + 2 = 16 x 8
    even, typed = on_405b(pp=16), on_405b(stages=STAGES_405B)
    worded = on_405b(stages="Et*7|(t*8|)*14t*7L")
    assert typed.layout["pp"] == 16
    for found in (typed, worded):
        assert found.layout == {**even.layout, "stages": STAGES_405B}
        assert found.step_time_s == even.step_time_s
        assert found.memory_bytes == even.memory_bytes


def test_a_longer_stage_paces_the_pipeline() -> None:
    # 128 micro-batches on 16 stages: 128 + 15 passes of the slowest if all are alike. One of 9
    # layers instead of 8 is late by a layer in each pass, but for those that fill and drain.
    even, longer = on_405b(stages=STAGES_405B), on_405b(stages=[7, 7, 9, *[8] * 12, 7])
    layer_s = even.step_time_s / ((128 + 15) * 8)
    more_s = longer.step_time_s - even.step_time_s
    assert (128 - 15) * 0.95 * layer_s < more_s < 128 * 1.05 * layer_s
    assert longer.memory_bytes > even.memory_bytes
    assert int(longer.estimate.slowest_stage[0]) == 2


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([8] * 16, "must sum to the 126 layers, got 128 (nearest: [7, 8,"),
        ([63, 63], "must have one number for each of pp x vpp = 16 pieces, got 2"),
        ("Et*7|x", "must be made of E, t, m, L, |, ( ) and *n, found 'x'"),
        ("t*126L", "must have E once"),
        ("(t|)*9999|(t|)*9999", "must have at most"),
        ([-1, 127], "must be whole numbers of layers, none negative"),
    ],
)
def test_stages_that_cannot_be(stages: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"layout.stages: {message}")) as caught:
        on_405b(pp=16, stages=stages)
    assert len(caught.value.problems) == 1


def test_software_without_uneven_stages_says_so() -> None:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 2048, "global_batch": 16},
        "cluster": {"name": "dgx-h100", "gpus": 8, "software": "megatron-lm-2022"},
    }
    assert predict(make_scenario(document), stages=[8, 8, 8, 8]).layout["pp"] == 4
    with pytest.raises(InputError, match="no uneven stages"):
        predict(make_scenario(document), stages=[7, 9, 8, 8])


@pytest.mark.parametrize("split", [[0, 11, 11, 10], [11, 11, 10, 0], [16, 0, 16, 0]])
def test_stages_without_a_layer_run_where_the_trainer_has_them(split: list[int]) -> None:
    """Megatron's docs call "E||t|L" legal; torchtitan makes an optimizer for each stage, which
    torch refuses of no parameters: there embedding and head alone may stand without a layer."""
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 2048, "global_batch": 16},
        "cluster": {"name": "dgx-h100", "gpus": 8},
    }
    scenario = make_scenario(document)
    assert predict(scenario, stages=split).layout["pp"] == 4
    document["cluster"]["software"] = "torchtitan"
    if split[1]:
        assert predict(make_scenario(document), stages=split).layout["pp"] == 4
        return
    with pytest.raises(InputError, match="all pieces but the first and the last") as caught:
        predict(make_scenario(document), stages=split)
    assert len(caught.value.problems) == 1
