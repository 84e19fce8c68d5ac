"""Feasibility: every reason by a minimal example, and published layouts that did run."""

import importlib
import re
from dataclasses import replace
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest

from simulator.api import predict
from simulator.errors import InputError
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, REASONS, RULES, reasons
from simulator.layout.rules.rule import Case, Rule, Setting
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import MLP, Architecture
from simulator.workload.recipe import Recipe, Workload
from simulator.workload.traced import Amount, TracedPart

DENSE = presets.load("llama-3.1-8b")  # 32 heads, 8 key/value heads, 32 layers, width 14336
MOE = presets.load("mixtral-8x7b")  # the same with 8 experts
H100 = load_cluster("dgx-h100", 8)
WITHOUT_HOST_LINK = replace(
    H100, groups=(replace(H100.groups[0], node=replace(H100.node, host_bytes_per_s=None)),)
)
ODD_WIDTH = replace(DENSE, blocks=(replace(DENSE.blocks[0], mlp=MLP(ffn_hidden=14338)),))

CORE = load_software("megatron-core")
CAPTURED = replace(CORE, host=replace(CORE.host, captured_fraction=Figure(0.5)))

POST_VALIDATING = replace(
    CORE, supports=replace(CORE.supports, schedules=("1f1b", "zb_h2"), post_validation=True)
)

LAYER = TracedPart(
    parameters=8,
    gemms=(),
    flash=(),
    streams=(),
    saved_bytes=Amount(),
    input_bytes=Amount(),
    transient_bytes=Amount(),
    element_bytes=2,
)
TRACED = replace(
    DENSE, traced=LAYER, blocks=(replace(DENSE.blocks[0], traced=LAYER),), layer_kinds=(0, 0)
)


def why(layout: dict[str, Any], **setting: Any) -> str:
    """Reason of one layout; the global batch is 48 unless it says otherwise."""
    at = setting_of(layout, **setting)
    table = Layouts.of(**{"global_batch": 48, **layout})
    return REASONS[reasons(table, at.workload, at.cluster, at.software)[0]]


def setting_of(
    layout: dict[str, Any],
    *,
    model: Architecture = DENSE,
    gpus: int = 8,
    length: int = 4096,
    software: str = "megatron-core",
    cluster: Cluster | None = None,
    training: dict[str, Any] | None = None,
) -> Setting:
    """What a layout is judged for."""
    layout = {"global_batch": 48, **layout}
    recipe = Recipe(sequence_length=length, global_batch=layout["global_batch"], **(training or {}))
    workload = Workload(architecture=model, recipe=recipe)
    cluster = cluster or load_cluster("dgx-h100", gpus)
    own = {"CAPTURED": CAPTURED, "POST_VALIDATING": POST_VALIDATING}
    runs = own.get(software) or load_software(software)
    return Setting(workload=workload, cluster=cluster, software=runs)


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("dp x tp x pp x cp is not the number of GPUs", {"dp": 4}, {}),
    ("dp x tp x pp x cp is not the number of GPUs", {"dp": 16}, {}),
    *(
        (
            "a traced module runs in data parallelism, with recomputation of all layers or none",
            layout,
            {"model": TRACED},
        )
        for layout in ({"tp": 2, "dp": 4}, {"pp": 2, "dp": 4}, {"dp": 8, "recompute": "selective"})
    ),
    ("tp does not divide the attention heads", {"tp": 3, "dp": 8}, {"gpus": 24}),
    (
        "tp and the key/value heads do not divide one another",
        {"tp": 3, "dp": 8},
        {"gpus": 24, "model": presets.load("llama-3.2-3b")},  # 24 heads, 8 key/value heads
    ),
    ("tp does not divide the MLP width", {"tp": 4, "dp": 2}, {"model": ODD_WIDTH}),
    (
        "tp does not divide the heads and groups of a mixer in place of attention",
        {"tp": 16, "dp": 1},  # 32 attention heads, 128 heads of Mamba-2 in 8 groups
        {"gpus": 16, "model": presets.load("nemotron-h-8b")},
    ),
    (
        "context parallelism of mixers in place of attention is not modelled",
        {"cp": 2, "dp": 4},
        {"model": presets.load("nemotron-h-8b")},
    ),
    ("tp, cp do not divide the sequence length", {"cp": 8}, {"length": 4104}),  # 4104 = 8 x 513
    ("fewer layers than pipeline stages", {"pp": 8, "vpp": 8}, {}),
    (
        "layers do not divide evenly over pp x vpp",
        {"pp": 3, "dp": 8},
        {"gpus": 24, "software": "megatron-lm-2022"},
    ),
    ("global batch does not divide by dp x micro-batch", {"dp": 8, "micro_batch": 4}, {}),
    ("global batch does not divide by dp x micro-batch", {"dp": 8, "global_batch": 4}, {}),
    *(
        (
            "interleaving needs pp > 1 and micro-batches in rounds that the software has",
            {"pp": 4, "vpp": 2, "dp": 2, "sharding": "zero2", "schedule": "interleaved", **layout},
            {"software": software},
        )
        for software, layout in (
            ("megatron-core", {"pp": 1, "dp": 8}),
            # Megatron-LM of 2022: micro-batches % pp; later one round of 6 runs, but none of 3
            ("megatron-lm-2022", {"global_batch": 12, "sharding": "ddp"}),
            ("megatron-core", {"global_batch": 6, "sharding": "zero1"}),
            # torch: 9 micro-batches are two rounds, which are not alike
            ("torchtitan", {"global_batch": 18}),
        )
    ),
    ("ep does not divide the experts", {"dp": 16, "ep": 16}, {"gpus": 16, "model": MOE}),
    ("ep x etp does not divide dp x cp x tp", {"pp": 2, "dp": 4, "ep": 8}, {"model": MOE}),
    ("etp does not divide the expert width", {"dp": 24, "etp": 3}, {"gpus": 24, "model": MOE}),
    ("experts need ep, etp = 1 on a dense model", {"dp": 8, "ep": 2}, {}),
    ("experts need ep, etp = 1 on a dense model", {"dp": 8, "etp": 2}, {}),
    ("sequence parallelism needs tp > 1", {"dp": 8, "sequence_parallel": 1}, {}),
    (
        "experts with tp > 1 need sequence parallelism",
        {"tp": 2, "dp": 4, "sequence_parallel": 0},
        {"model": MOE},
    ),
    (
        "the software has no such tensor or sequence parallelism",
        {"tp": 2, "dp": 4, "sequence_parallel": 0, "sharding": "zero3"},
        {"software": "torchtitan"},
    ),
    (
        "the software has no such tensor or sequence parallelism",
        {"tp": 2, "dp": 4},
        {"software": "plain-ddp"},
    ),
    (
        "the software has no such pipeline schedule",
        {"pp": 2, "dp": 4},
        {"software": "plain-ddp"},
    ),
    (
        "the software has no such pipeline schedule",
        {"pp": 2, "vpp": 2, "dp": 4, "schedule": "zb_v"},
        {},
    ),
    (
        "the software has no such context parallelism",
        {"cp": 2, "dp": 4},
        {"software": "megatron-lm-2022"},
    ),
    (
        "the software has no such context parallelism",
        {"cp": 2, "dp": 4, "cp_kind": "all_to_all"},
        {"software": "torchtitan"},
    ),
    (
        "all_to_all needs key/value heads that cp divides on every tensor-parallel rank",
        {"cp": 4, "tp": 4, "cp_kind": "all_to_all"},
        {"gpus": 16},
    ),
    (
        "the software has no such dispatch of tokens to experts",
        {"dp": 8, "ep": 8, "dispatcher": "allgather", "sharding": "zero3"},
        {"software": "torchtitan", "model": MOE},
    ),
    (
        "an all-gather of tokens takes neither a capacity factor nor overlapped expert traffic",
        {"dp": 8, "ep": 8, "dispatcher": "allgather"},
        {"model": MOE, "training": {"moe_capacity_factor": 1.5}},
    ),
    (
        "cp_a2a goes with hierarchical context parallelism, where it divides cp and leaves a ring",
        {"cp": 8, "dp": 2, "cp_kind": "hierarchical", "cp_a2a": 8},
        {"gpus": 16},
    ),
    (
        "cp_a2a goes with hierarchical context parallelism, where it divides cp and leaves a ring",
        {"cp": 8, "cp_a2a": 2},
        {},
    ),
    (
        "hierarchical context parallelism needs key/value heads that cp_a2a divides on every rank",
        {"cp": 8, "tp": 4, "cp_kind": "hierarchical", "cp_a2a": 4},
        {"gpus": 32},
    ),
    (
        "the software has no expert parallelism",
        {"dp": 8, "ep": 2},
        {"software": "megatron-lm-2022", "model": MOE},
    ),
    (
        "the software has no such sharding of states",
        {"dp": 8, "sharding": "zero1"},
        {"software": "megatron-lm-2022"},
    ),
    (
        "the software cannot combine this sharding with pp > 1",
        {"pp": 2, "dp": 4, "sharding": "zero3"},
        {},
    ),
    (
        "the software cannot combine this sharding with tp > 1",
        {"tp": 2, "dp": 4, "sharding": "ddp"},
        {"software": "torchtitan"},
    ),
    (
        "the software has no such recomputation",
        {"dp": 8, "recompute": "selective"},
        {"software": "plain-ddp"},
    ),
    (
        "the software has no such rank order",
        {"pp": 2, "dp": 4, "rank_order": "tp-cp-pp-dp"},
        {"software": "megatron-lm-2022"},
    ),
    (
        "recompute_layers needs full recomputation and at most the layers of a rank",
        {"dp": 8, "recompute_layers": 2},
        {},
    ),
    (
        "recompute_layers needs full recomputation and at most the layers of a rank",
        {"pp": 2, "dp": 4, "recompute": "full", "recompute_layers": 17},
        {},
    ),
    (
        "recompute_modules needs selective recomputation and modules that the software has",
        {"dp": 8, "recompute": "full", "recompute_modules": "norm"},
        {},
    ),
    (
        "recompute_modules needs selective recomputation and modules that the software has",
        {"dp": 8, "recompute": "selective", "recompute_modules": "norm+half_matmul"},
        {},
    ),
    ("shard_group does not divide dp x cp", {"dp": 8, "shard_group": 3}, {}),
    ("activations of more layers offloaded than a rank has", {"dp": 8, "offload_layers": 33}, {}),
    (
        "the software cannot keep activations in host memory",
        {"pp": 2, "dp": 4, "offload_layers": 3},
        {},
    ),
    (
        "the software cannot keep activations in host memory",
        {"dp": 8, "offload_layers": 3},
        {"software": "torchtitan"},
    ),
    (
        "the software cannot offload the optimizer",
        {"dp": 8, "optimizer_offload": "cpu"},
        {"software": "torchtitan"},
    ),
    (
        "the optimizer has no step on the host",
        {"dp": 8, "sharding": "zero1", "optimizer_offload": "cpu"},
        {"training": {"optimizer": "muon"}},
    ),
    (
        "parameters can be offloaded with zero3 only, by software that can",
        {"dp": 8, "sharding": "zero3", "parameter_offload": "cpu"},
        {},
    ),
    (
        "an optimizer step inside the backward pass needs a single micro-batch",
        {"dp": 8, "global_batch": 16},
        {"training": {"optimizer_in_backward": True}},
    ),
    (
        "no figure for copies between accelerator and host",
        {"dp": 8, "sharding": "zero1", "optimizer_offload": "cpu"},
        {"cluster": WITHOUT_HOST_LINK},
    ),
    (
        "no figure for copies between accelerator and host",
        {"dp": 8, "offload_layers": 3},
        {"cluster": WITHOUT_HOST_LINK},
    ),
    *(
        (
            f"the software cannot {what}",
            {"dp": 8, "offload_layers": 3, **layout},
            {"software": software},
        )
        for what, layout, software in (
            (
                "combine offloaded activations with recomputation",
                {"recompute": "selective"},
                "megatron-core",
            ),
            (
                "combine offloaded activations with recomputation",
                {"recompute": "full"},
                "megatron-core",
            ),
            ("combine offloaded activations with captured graphs", {}, "CAPTURED"),
            ("offload the activations of all layers", {"offload_layers": 32}, "megatron-core"),
        )
    ),
    (
        "the software cannot offload the optimizer",
        {"dp": 8, "sharding": "ddp", "optimizer_offload": "cpu"},
        {},
    ),
    (
        "weights in 8 bit alone need optimizer states that ranks share",
        {"dp": 8, "sharding": "ddp"},
        {"training": {"precision": "fp8", "fp8_weights": True}},
    ),
    (
        "the software cannot offload the optimizer with these weights in 8 bit alone",
        {"dp": 8, "sharding": "zero1", "optimizer_offload": "cpu"},
        {"training": {"precision": "fp8_current", "fp8_weights": True}},
    ),
    (
        "the software cannot keep states on NVMe",
        {"dp": 8, "sharding": "zero1", "optimizer_offload": "nvme"},
        {},
    ),
    (
        "the server has no NVMe, or none known",
        {"dp": 8, "sharding": "zero3", "parameter_offload": "nvme"},
        {"software": "deepspeed", "cluster": load_cluster("aws-p5", 8)},
    ),
    (
        "the software cannot share this sharding among fewer ranks than all replicas",
        {"dp": 8, "sharding": "zero1", "shard_group": 4},
        {"software": "megatron-deepspeed-2023"},
    ),
    (  # the experts' 4 ranks cannot be 8 replicas
        "the software cannot share this sharding among fewer ranks than all replicas",
        {"dp": 16, "ep": 4, "sharding": "zero1", "shard_group": 2},
        {"gpus": 16, "model": MOE},
    ),
    *(
        (
            "reshard_after_forward needs zero3, a divisor of the ranks that share, and software"
            " that can",
            {"dp": 8, "sharding": "zero3", "reshard_after_forward": 4, **layout},
            {"software": "torchtitan", **setting},
        )
        for layout, setting in (
            ({"reshard_after_forward": 3}, {}),
            ({"sharding": "zero2"}, {}),
            ({}, {"software": "megatron-core"}),
            ({"shard_group": 2}, {}),
            ({"dp": 4, "pp": 2, "reshard_after_forward": 2}, {}),
            ({"ep": 4}, {"model": MOE}),
        )
    ),
    *(
        (
            "post-validation of the optimizer needs a zero-bubble schedule, and software that can",
            {"pp": 2, "dp": 4, **layout},
            {"software": software, "training": {"optimizer_post_validation": True}},
        )
        for layout, software in (
            ({"schedule": "interleaved_zb", "vpp": 2, "sharding": "zero2"}, "torchtitan"),
            ({"schedule": "1f1b"}, "POST_VALIDATING"),
            ({"pp": 1, "dp": 8}, "POST_VALIDATING"),
        )
    ),
    *(
        (
            "the schedule does not go with this pp, vpp or number of micro-batches",
            {"pp": 2, "dp": 4, "sharding": "zero2", **layout},
            {"software": "torchtitan"},
        )
        for layout in (
            {"schedule": "1f1b", "vpp": 2, "global_batch": 32},
            {"schedule": "interleaved"},
            {"schedule": "gpipe", "vpp": 2},
            {"schedule": "looped_bfs"},
            {"schedule": "zb_v", "vpp": 4},
            {"schedule": "zb_v", "pp": 1, "dp": 8},
            # 2 x pp micro-batches at least: torch's own check
            {"schedule": "dualpipe_v", "vpp": 2, "global_batch": 12},
        )
    ),
    *(
        (
            "layers given for stages do not sum to those of the model, or are not as many",
            {"pp": 2, "dp": 4, "stages": stages},
            {},
        )
        for stages in ([16, 15], [16, 8, 8], [32])
    ),
]


@pytest.mark.parametrize(("reason", "layout", "setting"), CASES)
def test_reason(reason: str, layout: dict[str, Any], setting: dict[str, Any]) -> None:
    assert why(layout, **setting) == reason


def test_every_reason_has_an_example() -> None:
    assert {reason for reason, _, _ in CASES} == set(REASONS) - {"feasible"}


def test_every_rule_is_asked_once() -> None:
    folder = importlib.import_module("simulator.layout.rules").__path__
    names = [f"simulator.layout.rules.{module.name}" for module in iter_modules(folder)]
    modules = [importlib.import_module(name) for name in names]
    written = [x for m in modules for x in vars(m).values() if isinstance(x, Rule)]
    assert len(written) == len(RULES) == len(set(REASONS) - {"feasible"})
    assert all(rule in RULES for rule in written)


def case_of(layout: dict[str, Any], setting: dict[str, Any]) -> Case:
    """A layout to be worded, with which no value of any field runs."""
    at = setting_of(layout, **setting)
    return Case(
        workload=at.workload,
        cluster=at.cluster,
        software=at.software,
        where="here",
        given=layout,
        row=Layouts.of(**{"global_batch": 48, **layout}).row(),
        can_run=lambda name, values: [False for _ in values],
    )


@pytest.mark.parametrize(("reason", "layout", "setting"), CASES)
def test_every_reason_has_its_sentence(
    reason: str, layout: dict[str, Any], setting: dict[str, Any]
) -> None:
    """It names a field of the scenario, what that must be, and what it is."""
    case = case_of(layout, setting)
    sentence = RULES[REASONS.index(reason) - 1].sentence(case)
    assert re.fullmatch(
        r"here: (layout|training|cluster)\.\w+: .*(must|needs) .*, got .+", sentence
    )


@pytest.mark.parametrize(("reason", "layout", "setting"), CASES)
def test_the_nearest_value_obeys_the_rule(
    reason: str, layout: dict[str, Any], setting: dict[str, Any]
) -> None:
    """It is a value of the field that the sentence names, or of the one beside it: "dp 8"."""
    rule = RULES[REASONS.index(reason) - 1]
    wording = rule.wording(case_of(layout, setting))
    for value in wording.near:
        field = (wording.field or rule.field).partition(".")[2]
        if isinstance(value, str) and " " in value:
            field, value = value.split()[0], int(value.split()[1])
        changed = {"length": value} if field == "sequence_length" else {}
        tried = layout if changed else {"global_batch": 48, **layout, field: value}
        at = setting_of(tried, **{**setting, **changed})
        assert not rule.wrong(Layouts.of(**{"global_batch": 48, **tried}), at)[0], value


@pytest.mark.parametrize(
    ("software", "sharding", "anywhere"),
    [("megatron-core", "zero1", True), ("torchtitan", "zero2", False)],
)
@pytest.mark.parametrize("piece", range(4))
def test_a_piece_without_layers_stands_at_an_end_unless_any_may(
    piece: int, software: str, sharding: str, anywhere: bool
) -> None:
    layers = [11, 11, 10]
    layers.insert(piece, 0)
    layout = {"pp": 4, "dp": 2, "stages": layers, "sharding": sharding}
    runs = why(layout, software=software) == "feasible"
    assert runs == (anywhere or piece in (0, 3))


@pytest.mark.parametrize(
    ("layout", "setting"),
    [
        ({"dp": 8}, {}),
        ({"tp": 8, "sequence_parallel": 0}, {}),
        ({"tp": 16}, {"gpus": 16}),  # key/value heads repeated on pairs of ranks
        ({"cp": 8}, {"length": 4096}),
        ({"pp": 2, "vpp": 2, "dp": 4}, {}),
        ({"pp": 3, "dp": 8}, {"gpus": 24}),  # uneven stages in Megatron-Core
        ({"pp": 2, "dp": 4, "rank_order": "tp-cp-pp-dp"}, {}),
        ({"pp": 2, "dp": 4, "recompute": "full", "recompute_layers": 16}, {}),
        ({"dp": 8, "shard_group": 4, "sharding": "zero1"}, {}),
        ({"dp": 8, "ep": 8}, {"model": MOE}),
        ({"tp": 2, "dp": 4, "ep": 4, "etp": 2}, {"model": MOE}),
        ({"dp": 8}, {"software": "plain-ddp"}),
        ({"dp": 8, "recompute": "full"}, {"model": TRACED}),
        ({"dp": 8, "sharding": "zero3"}, {"software": "torchtitan"}),
        ({"dp": 8, "offload_layers": 31}, {}),
        ({"dp": 8}, {"cluster": WITHOUT_HOST_LINK}),  # nothing is offloaded
        (
            {"pp": 4, "vpp": 2, "dp": 2, "schedule": "interleaved", "global_batch": 12},
            {"software": "megatron-core"},
        ),
        *(
            (
                {
                    "pp": 4,
                    "vpp": 2,
                    "dp": 2,
                    "schedule": word,
                    "global_batch": batch,
                    "sharding": "zero2",
                },
                {"software": "torchtitan"},
            )
            for word in ("interleaved", "interleaved_zb")
            for batch in (6, 12)  # fewer than ranks go in a single round
        ),
        (
            {"pp": 2, "dp": 4, "schedule": "zb_h2"},
            {"software": "POST_VALIDATING", "training": {"optimizer_post_validation": True}},
        ),
        (
            {"dp": 8, "sharding": "ddp"},
            {"training": {"precision": "fp8", "fp8_weights": True, "lora_rank": 16}},
        ),
    ],
)
def test_a_layout_at_the_limit_can_run(layout: dict[str, Any], setting: dict[str, Any]) -> None:
    assert why(layout, **setting) == "feasible"


PUBLISHED: list[tuple[str, int, int, str, dict[str, Any]]] = [
    # Narayanan et al. 2021 (arXiv 2104.04473), table 1
    ("megatron-1t", 3072, 2048, "megatron-lm-2022",
     {"tp": 8, "pp": 64, "dp": 6, "global_batch": 3072}),
    ("megatron-530b", 2520, 2048, "megatron-lm-2022",
     {"tp": 8, "pp": 35, "dp": 9, "global_batch": 2520}),
    # Korthikanti et al. 2022 (arXiv 2205.05198), table 3
    ("megatron-22b", 8, 2048, "megatron-lm-2022",
     {"tp": 8, "micro_batch": 4, "global_batch": 4, "recompute": "selective"}),
    ("megatron-175b", 64, 2048, "megatron-lm-2022",
     {"tp": 8, "pp": 8, "vpp": 3, "global_batch": 64, "recompute": "selective"}),
    # Llama 3 (arXiv 2407.21783), table 4
    ("llama-3.1-405b", 16384, 8192, "torchtitan",
     {"tp": 8, "pp": 16, "dp": 128, "global_batch": 2048, "sharding": "zero2"}),
    ("llama-3.1-405b", 16384, 131072, "torchtitan",
     {"tp": 8, "cp": 16, "pp": 16, "dp": 8, "global_batch": 128, "sharding": "zero2"}),
    # DeepSeek-V3 (arXiv 2412.19437), section 3.2: 16 stages, experts over 64 GPUs, zero1, no tp
    ("deepseek-v3", 2048, 4096, "megatron-core",
     {"pp": 16, "dp": 128, "ep": 64, "global_batch": 15360, "sharding": "zero1"}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpus", "length", "software", "layout"), PUBLISHED)
def test_published_layouts_can_run(
    model: str, gpus: int, length: int, software: str, layout: dict[str, Any]
) -> None:
    arch = presets.load(model)
    assert why(layout, model=arch, gpus=gpus, length=length, software=software) == "feasible"


def test_without_sequence_parallelism_tp_need_not_divide_the_sequence() -> None:
    # 48 heads over 6 ranks; activations between the regions are whole on every rank
    gpt = presets.load("megatron-22b")
    heads = replace(gpt.blocks[0].attention, heads=48, kv_heads=48)
    model = replace(gpt, blocks=(replace(gpt.blocks[0], attention=heads),))
    layout = {"tp": 6, "dp": 4, "sequence_parallel": 0}
    assert why(layout, model=model, gpus=24, length=2048) == "feasible"
    assert why({**layout, "sequence_parallel": 1}, model=model, gpus=24, length=2048) == (
        "tp, cp do not divide the sequence length"
    )


@pytest.mark.parametrize(
    ("model", "layout", "runs"),
    [
        (MOE, {"tp": 2, "dp": 4, "pp": 2, "ep": 2}, True),  # ep x etp = tp x cp
        (MOE, {"tp": 1, "dp": 8, "pp": 2, "ep": 4}, False),  # experts over data-parallel ranks
        (MOE, {"tp": 1, "dp": 16, "pp": 1, "ep": 4}, True),  # no pipeline: the orders are one
        (DENSE, {"tp": 2, "dp": 4, "pp": 2}, True),
        (DENSE, {"tp": 2, "dp": 2, "cp": 2, "pp": 2}, False),  # cp counts as data parallelism there
        (MOE, {"tp": 4, "pp": 2, "dp": 2, "ep": 2, "etp": 2}, True),
        (MOE, {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 2}, False),
    ],
)
def test_megatron_spreads_experts_over_dp_only_where_pipeline_ranks_are_outermost(
    model: Architecture, layout: dict[str, Any], runs: bool
) -> None:
    # megatron/core/parallel_state.py: "When not using pp-last rank ordering, the data parallel size
    # of the attention and moe layers must be the same"; without experts their size is dp x cp
    layout = {**layout, "rank_order": "tp-cp-pp-dp"}
    assert (why(layout, model=model, gpus=16) == "feasible") == runs
    assert why({**layout, "rank_order": "tp-cp-dp-pp"}, model=model, gpus=16) == "feasible"


def test_reasons_of_a_table_are_those_of_its_rows() -> None:
    rng = np.random.default_rng(3)
    draw = {
        name: rng.choice([1, 2, 4], 400) for name in ("tp", "pp", "vpp", "cp", "dp", "ep", "etp")
    }
    table = Layouts.of(**draw, global_batch=48, micro_batch=rng.choice([1, 2, 5], 400))
    workload = Workload(architecture=MOE, recipe=Recipe(sequence_length=4096, global_batch=48))
    cluster, software = load_cluster("dgx-h100", 8), load_software("megatron-core")
    whole = reasons(table, workload, cluster, software)
    alone = [int(reasons(table[i], workload, cluster, software)[0]) for i in range(400)]
    assert whole.tolist() == alone
    assert FEASIBLE in whole


@pytest.mark.parametrize("size", [2**31 - 8, 2**31, 2**62])
def test_a_size_may_be_wider_than_a_layouts_columns(size: int) -> None:
    """The reader takes sizes to 2^31, and the summed width of shared experts is a product."""
    wide = replace(DENSE, blocks=(replace(DENSE.blocks[0], mlp=MLP(ffn_hidden=size)),))
    assert why({"tp": 8}, model=wide) == "feasible"
    odd = replace(DENSE, blocks=(replace(DENSE.blocks[0], mlp=MLP(ffn_hidden=size + 1)),))
    assert why({"tp": 8}, model=odd) == "tp does not divide the MLP width"


def test_weights_in_8_bit_alone_name_the_ways_to_share_states_that_go_with_them() -> None:
    """Megatron-Core: "--fp8-param-gather only supported with distributed optimizer"."""
    words = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 8, "precision": "fp8"}
    rule = "must be one of zero1, zero2, zero3 with training.fp8_weights, got 'ddp'"
    with pytest.raises(InputError, match=rule):
        predict(**words, fp8_weights=True, sharding="ddp")
