"""A row of measured runs becomes a run, or says what is wrong with which field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import read_csv
from simulator.measured.replay import NotReplayable, Run, load_tables, replay
from simulator.measured.rows import read_runs
from simulator.software.profile import load_software
from simulator.workload.architecture import MLP, MoE

RUNS = catalogue.folder("validation") / "runs"
TABLES = load_tables()
GPT = {row["run_id"]: row for _, row in read_csv(RUNS / "test.csv")}["korthikanti22-t5-003"]
"""GPT-3 175B on 64 A100: tp 8, pp 8, vpp 3, full recomputation."""

MOE = GPT | {
    "family": "qwen3_moe",
    "kv_heads": "8",
    "num_experts": "16",
    "top_k": "2",
    "moe_ffn_hidden": "1024",
    "shared_expert_ffn": "512",
    "sequence_parallel": "true",
}

HALF_GROUP = {
    "software": "megatron-core", "sharding": "zero1", "shard_group": "3", "dp": "4", "tp": "2",
}  # fmt: skip


def made(row: dict[str, str] = GPT, /, **changed: str) -> Run:
    return replay({**row, **changed}, TABLES, where="runs.csv: line 4")


def problems(row: dict[str, str] = GPT, /, **changed: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        made(row, **changed)
    return list(caught.value.problems)


def test_a_row_becomes_the_run_it_describes() -> None:
    run = made()
    arch, layout = run.workload.architecture, run.layout.row()
    assert (arch.name, arch.layers, arch.hidden, arch.vocabulary) == ("gpt-175b", 96, 12288, 51200)
    assert arch.blocks[0].attention.heads == 96
    assert arch.blocks[0].norm == "layer"
    assert arch.parameters == pytest.approx(175e9, rel=0.01)
    assert (layout["tp"], layout["pp"], layout["vpp"], layout["recompute"]) == (8, 8, 3, "full")
    assert not layout["sequence_parallel"]
    assert (run.cluster.gpus, run.cluster.accelerator.name) == (64, "a100-sxm-80")
    assert run.workload.recipe.global_batch == 64
    assert run.software.name == "megatron-lm-2022"


@pytest.mark.parametrize(
    ("software", "precision", "sharding", "alone"),
    [
        ("megatron-bridge-26.02", "mxfp8", "zero1", True),
        ("megatron-bridge-25.09", "fp8_current", "zero3", True),
        ("megatron-bridge-26.02", "nvfp4", "zero1", False),  # fp8_param_gather is false there
        ("megatron-bridge-26.02", "bf16", "zero1", False),
        ("megatron-bridge-26.04", "mxfp8", "zero1", True),  # a profile's name: no line for it
        ("megatron-bridge-26.04", "nvfp4", "zero1", False),
        ("nemo-24.11", "fp8_delayed", "zero1", True),
        ("nemo-24.11", "fp8_delayed", "ddp", False),  # needs the distributed optimizer
        ("megatron-core", "fp8_delayed", "zero1", False),  # Megatron-LM's own default
    ],
)
def test_weights_in_8_bit_alone(software: str, precision: str, sharding: str, alone: bool) -> None:
    whole = {"tp": "1", "pp": "1", "vpp": "1", "dp": "64"}
    gpu = {"gpu": "GB200-NVL72", "gpus_per_node": "4", "nvlink_domain": "72"}
    run = made(**gpu, **whole, software=software, precision=precision, sharding=sharding)
    assert run.workload.recipe.fp8_weights is alone


def test_types_of_weights_are_what_the_software_can_keep() -> None:
    for word, types in TABLES.fp8_weights.items():
        assert set(types) <= set(load_software(TABLES.releases.words[word]).supports.fp8_weights)
    for word in catalogue.names("software"):
        can = load_software(word).supports
        assert set(can.fp8_weights_usual) <= set(can.fp8_weights)


def test_the_network_is_the_rows() -> None:
    run = made(nic_gbit_per_gpu="400", fabric="roce")
    usable = float(TABLES.fabric["roce"])
    assert run.cluster.network_bytes_per_s_per_gpu == pytest.approx(50e9 * usable)


def test_experts_follow_the_dense_layers() -> None:
    run = made(MOE, first_dense_layers="3")
    arch = run.workload.architecture
    assert arch.layer_kinds == (0,) * 3 + (1,) * 93
    dense, sparse = arch.blocks[0].mlp, arch.blocks[1].mlp
    assert isinstance(dense, MLP) and isinstance(sparse, MoE)
    assert (sparse.experts, sparse.top_k, sparse.shared_ffn_hidden) == (16, 2, 512)


def test_a_capacity_pads_and_drops() -> None:
    recipe = made(MOE, capacity_factor="1.25").workload.recipe
    assert (recipe.moe_capacity_factor, recipe.moe_pads_to_capacity) == (1.25, True)
    for blank in (made(MOE), made(MOE, capacity_factor="")):
        assert (blank.workload.recipe.moe_pads_to_capacity) is False
    assert problems(MOE, capacity_factor="all") == [
        "runs.csv: line 4: capacity_factor: must be a positive number, got 'all'"
    ]


def test_families_have_what_their_published_configurations_have() -> None:
    def first(family: str) -> Any:
        return made(MOE, family=family).workload.architecture.blocks[0]

    qwen, oss, deepseek = (first(name) for name in ("qwen3_moe", "gpt_oss", "deepseek_v3"))
    assert (qwen.attention.qk_norm, qwen.attention.sinks, qwen.mlp.bias) == (True, False, False)
    assert (oss.attention.qk_norm, oss.attention.sinks) == (False, True)
    assert (oss.attention.qkv_bias, oss.attention.output_bias) == (True, True)
    assert (oss.mlp.bias, oss.mlp.clamped, oss.attention.scaled_rotary) == (True, True, True)
    assert (deepseek.mlp.groups, deepseek.mlp.top_groups) == (8, 4)
    assert first("grok1").mlp.groups == 1


def test_latent_attention() -> None:
    sizes = {
        "kv_lora_rank": "512",
        "q_lora_rank": "1536",
        "qk_nope_head_dim": "128",
        "qk_rope_head_dim": "64",
        "v_head_dim": "128",
    }
    attention = made(**sizes).workload.architecture.blocks[0].attention
    assert (attention.is_mla, attention.head_dim, attention.value_dim) == (True, 192, 128)


def test_switches_of_the_row_beat_those_of_the_profile() -> None:
    on = made(overlap_grad_reduce="TRUE", tp_comm_overlap="true", flash_attention="true").software
    off = made(overlap_grad_reduce="false", flash_attention="false").software
    assert (on.overlap.gradient_reduce, off.overlap.gradient_reduce) == (True, False)
    assert on.overlap.tensor == "userbuffers"
    fsdp = made(overlap_param_gather="true", software="megatron-lm-main-2025.10").software
    assert fsdp.overlap.parameter_gather and fsdp.overlap.sharded_prefetch
    assert (on.kernels.attention, off.kernels.attention) == ("flash", "unfused")
    graphs = made(cuda_graphs="true").software.host
    assert (float(graphs.captured_fraction), float(graphs.captured_moe_fraction)) == (1.0, 1.0)
    assert float(made().software.host.captured_fraction) == 0.0


def test_frameworks_have_their_own_overlap_of_tensor_parallelism() -> None:
    rows = [row for _, row in read_csv(RUNS / "test.csv") if row["tp_comm_overlap"] == "true"]
    found = {
        (run.software.launcher, run.software.overlap.tensor)
        for run in (made(row) for row in rows if row["source"].startswith(("torchtitan", "dgxc")))
    }
    assert found == {("megatron", "userbuffers"), ("torchtitan", "async")}


def test_blank_and_missing_columns_take_the_same_defaults() -> None:
    blank = made(vpp="", cp="", nvlink_domain="", position="", recompute_layers="", shard_group="")
    absent = {k: v for k, v in GPT.items() if k not in ("vpp", "cp", "nvlink_domain", "position")}
    assert blank.layout.row() == made(absent).layout.row()
    assert blank.layout.row()["vpp"] == 1
    assert blank.cluster.domain == made(absent).cluster.domain == 8


def test_a_fabric_may_say_whose_server_it_is() -> None:
    """EFA is EC2's: its hops and hosts; other fabrics leave the usual server of the GPU."""
    for gpu, home, there in (
        ("H100-SXM5-80GB", "dgx-h100", "aws-p5"),
        ("B300", "dgx-b300", "aws-p6-b300"),
    ):
        found = {kind: made(gpu=gpu, fabric=kind).cluster for kind in ("infiniband", "efa")}
        assert found["infiniband"].node.name == home
        assert found["efa"].node.name == there and found["efa"].fabric.extra_hop_s > 0.0
        assert [c.node.scale_out.through_host for c in found.values()] == [False, True]


def test_a_software_profile_may_be_named() -> None:
    assert made(software="megatron-core").software.name == "megatron-core"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("micro_batch", "3", "global_batch: must divide by dp x micro_batch = 3, got 64"),
        ("micro_batch", "1.5", "micro_batch: must be a whole number, got '1.5'"),
        ("layers", "nan", "layers: must be a whole number, got 'nan'"),
        ("layers", "1e9", "layers: must be at most 10000, got '1e9'"),
        ("hidden", "-12288", "hidden: must be at least 1, got '-12288'"),
        ("global_batch", "1e300", "global_batch: must be at most 2147483647, got '1e300'"),
        ("dp", "0", "dp: must be at least 1, got '0'"),
        ("seq_len", "", "seq_len: required field is blank"),
        ("family", " ", "family: required field is blank"),
        ("gated_mlp", "yes", "gated_mlp: must be true or false, got 'yes'"),
        ("nic_gbit_per_gpu", "inf", "nic_gbit_per_gpu: must be a positive number, got 'inf'"),
        ("nic_gbit_per_gpu", "-200", "nic_gbit_per_gpu: must be a positive number, got '-200'"),
        ("fabric", "infinband", "(did you mean 'infiniband'?)"),
        ("position", "ropes", "(did you mean 'rope'?)"),
        ("precision", "bf61", "(did you mean 'bf16'?)"),
        ("sharding", "zero4", "sharding: must be one of ddp, zero1, zero2, zero3, got 'zero4'"),
        ("recompute", "all", "recompute: must be one of none, selective, full, got 'all'"),
        ("num_gpus", "128", "num_gpus: must be dp x tp x pp x cp = 64, got 128"),
        ("gpus_per_node", "7", "num_gpus: must fill nodes of 7 GPUs, got 64"),
        ("kv_heads", "7", "kv_heads: must divide the 96 heads, got 7"),
    ],
)
def test_what_is_wrong_names_place_field_and_value(field: str, value: str, said: str) -> None:
    found = problems(**{field: value})
    assert all(line.startswith("runs.csv: line 4: ") for line in found)
    assert any(said in line for line in found)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("top_k", "17", "top_k: must be at most the 16 experts, got 17"),
        ("top_k", "", "top_k: required field is blank"),
        ("ep", "1e9", "ep: ep x etp must be at most dp x tp x cp = 8, got 1000000000"),
        ("first_dense_layers", "97", "first_dense_layers: must be at most the 96 layers, got 97"),
    ],
)
def test_experts_that_contradict_themselves(field: str, value: str, said: str) -> None:
    assert problems(MOE, **{field: value}) == [f"runs.csv: line 4: {said}"]


def test_all_problems_of_a_row_are_reported_at_once_and_once() -> None:
    found = problems(hidden="x", seq_len="?", fabric="tin cans", num_gpus="128")
    fields = [line.split(": ")[2] for line in found]
    assert fields == ["hidden", "seq_len", "fabric", "num_gpus"]
    assert len(problems(global_batch="?")) == 1  # recipe and layout both read it


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"optimizer": "shampoo"}, "optimizer shampoo is not modelled yet"),
        ({"precision": "nvfp4"}, "a100-sxm-80 has no nvfp4"),
        ({"precision": "fp8_current"}, "a100-sxm-80 has no fp8_current"),
        ({"precision": "mxfp8", "gpu": "H100-SXM5-80GB"}, "h100-sxm has no mxfp8"),
        (
            {"precision": "fp8_delayed", "gpu": "H100-SXM5-80GB"},
            "megatron-lm-2022 does not train in fp8",
        ),
        ({"cpu_offload": "true"}, "the software cannot keep activations in host memory"),
        ({"gpu": "H900-SXM5-80G"}, "no hardware profile for H900-SXM5-80G"),
        ({"software": "colossal-0.4.1"}, "software: unknown software 'colossal-0.4.1'"),
        ({"precision": "fp8_delayed"}, "a100-sxm-80 has no fp8"),
        ({"heads": "100", "kv_heads": "100"}, "tp does not divide the attention heads"),
        ({"layers": "4"}, "fewer layers than pipeline stages"),
        (HALF_GROUP, "shard_group does not divide"),
    ],
)
def test_what_cannot_be_predicted_says_why(changed: dict[str, str], said: str) -> None:
    with pytest.raises(NotReplayable, match=said):
        made(**changed)


def test_two_stages_may_hold_the_embedding_and_the_head_alone() -> None:
    cut: dict[str, Any] = {"pp": "8", "vpp": "1", "layers": "6"}
    assert made(**cut).workload.architecture.layers == 6
    with pytest.raises(NotReplayable, match="fewer layers"):
        made(**{**cut, "layers": "5"})


@pytest.mark.parametrize("name", ["vtrain_single", "analytic_memory"])
def test_no_shipped_row_is_malformed(name: str) -> None:
    for line, row in read_csv(RUNS / f"{name}.csv"):
        try:
            replay(row, TABLES, where=f"line {line}")
        except NotReplayable as reason:
            assert str(reason)


@pytest.mark.parametrize(("name", "rows"), [("calibrate", 450), ("test", 270)])
def test_every_measured_run_that_is_shipped_can_be_predicted(name: str, rows: int) -> None:
    """An error without the hard rows does not count: none of the 720 may be refused."""
    refused, count = [], 0
    for line, row in read_csv(RUNS / f"{name}.csv"):
        count += 1
        try:
            replay(row, TABLES, where=f"line {line}")
        except NotReplayable as reason:
            refused.append(f"{row['run_id']}: {reason}")
    assert (refused, count) == ([], rows)


# --- what newer rows say ------------------------------------------------------------------------

NEWER = MOE | {
    "software": "megatron-core",
    "gpu": "B200-180GB",
    "pp": "1",
    "vpp": "1",
    "dp": "8",
    "tp": "8",
    "recompute": "none",
}


@pytest.mark.parametrize(
    ("written", "ours"),
    [("fp8", "fp8"), ("fp8_delayed", "fp8"), ("fp8_current", "fp8_current"), ("mxfp8", "mxfp8"),
     ("nvfp4", "nvfp4"), ("bf16", "bf16")],
)  # fmt: skip
def test_types_keep_their_recipe(written: str, ours: str) -> None:
    assert made(NEWER, precision=written).workload.recipe.precision == ours


def test_blockwise_fp8_is_hoppers() -> None:
    found = made(NEWER, precision="fp8_blockwise", gpu="H100-SXM5-80GB")
    assert found.workload.recipe.precision == "fp8_blockwise"
    with pytest.raises(NotReplayable, match="b200-sxm has no fp8_blockwise"):
        made(NEWER, precision="fp8_blockwise")


@pytest.mark.parametrize("word", ["fp8-delay", "fp8_curent", "float8", "nvfp8", "fp8fp8"])
def test_a_type_that_only_looks_like_one_is_an_error(word: str) -> None:
    """A word with fp8 somewhere in it was once taken for fp8."""
    (line,) = problems(NEWER, precision=word)
    assert line.startswith("runs.csv: line 4: precision: must be one of fp32, tf32, fp16, bf16, ")
    assert f"got {word!r}" in line


@pytest.mark.parametrize(
    ("written", "ours"),
    [("adam", "adamw"), ("adamw", "adamw"), ("adamw_8bit", "adamw_8bit"), ("sgd", "sgd")],
)
def test_optimizers(written: str, ours: str) -> None:
    assert made(NEWER, optimizer=written).workload.recipe.optimizer == ours


def test_layers_that_predict_ahead_come_behind_the_others() -> None:
    arch = made(NEWER, mtp_layers="2", first_dense_layers="1").workload.architecture
    assert (arch.layers, arch.mtp_layers) == (96, 2)
    assert [arch.blocks[kind].predicts_ahead for kind in arch.layer_kinds] == [False] * 96 + [
        True
    ] * 2
    assert arch.blocks[arch.layer_kinds[-1]].is_moe
    none = made(NEWER, mtp_layers="0").workload.architecture
    assert none == made(NEWER, mtp_layers="").workload.architecture
    assert problems(NEWER, mtp_layers="1e9") == [
        "runs.csv: line 4: mtp_layers: must be at most 10000, got '1e9'"
    ]


def test_layers_that_predict_ahead_do_not_count_for_the_stages() -> None:
    cut = {
        "pp": "8",
        "vpp": "1",
        "tp": "1",
        "layers": "5",
        "mtp_layers": "3",
        "sequence_parallel": "false",
    }
    with pytest.raises(NotReplayable, match="fewer layers"):
        made(NEWER, **cut)


def test_offloaded_layers_are_those_that_are_stated_or_all() -> None:
    def layers(**changed: str) -> int:
        return int(made(NEWER, **changed).layout.offload_layers[0])

    assert layers() == layers(cpu_offload="false") == 0
    assert layers(cpu_offload="true") == 95, "Megatron-Core keeps one"
    assert layers(cpu_offload="true", offload_layers="40") == 40
    assert layers(cpu_offload="true", offload_layers="400") == 95
    assert layers(offload_layers="40") == 0, "cpu_offload decides"


def test_offloading_with_a_pipeline_is_refused() -> None:
    with pytest.raises(NotReplayable, match="the software cannot keep activations in host memory"):
        made(NEWER, cpu_offload="true", pp="2", dp="4")


@pytest.mark.parametrize(
    ("words", "ours"),
    [("core_attn", ("core_attn",)), ("layernorm+moe_act", ("norm", "mlp_act")),
     ("mla_up_proj+mlp", ("mla_up_proj", "mlp")), ("norm+layernorm", ("norm",))],
)  # fmt: skip
def test_modules_of_the_row_beat_those_of_the_profile(words: str, ours: tuple[str, ...]) -> None:
    found = made(NEWER, recompute_modules=words, recompute="selective")
    assert found.software.kernels.selective_modules == ours
    usual = made(NEWER, recompute="selective").software.kernels.selective_modules
    assert usual == ("core_attn",)


def test_a_word_that_is_no_module_is_an_error_of_the_row() -> None:
    (line,) = problems(NEWER, recompute_modules="core_attn+moe_activation")
    assert line == (
        "runs.csv: line 4: recompute_modules: must be among core_attn, layernorm, norm, mlp, "
        "mlp_act, moe_act, moe, shared_experts, mla_up_proj, half_matmul, joined by +, "
        "got 'moe_activation'"
    )
    assert "got ''" in problems(NEWER, recompute_modules="core_attn+")[0]
    found = problems(NEWER, recompute_modules="mpl", hidden="x")
    assert len(found) == 2, "with the other problems of the row"


def test_runs_that_turn_cudnn_off_call_flash_attn() -> None:
    """Rows with NVTE_FUSED_ATTN=0 say so themselves, whatever their model is called."""

    def library(**changed: str) -> str:
        run = made(GPT | {"gpu": "H100-SXM5-80GB", "model": "gpt3-175b"}, **changed)
        return run.software.on("hopper").kernels.attention_library

    for software in ("nemo-24.11", "nemo-25.02"):
        assert library(software=software) == library(software=software, model="m") == "flash"
        assert library(software=software, attention_library="flash_attn") == "sdpa"
    assert library(software="nemo-24.03") == "sdpa", "the launcher's own setting until August 2024"


MEASURED = [path for path in sorted(RUNS.glob("*.csv")) if "layers" in next(read_csv(path))[1]]
"""Tables of measured runs of one step; others have columns of their own."""


@pytest.mark.parametrize("table", MEASURED, ids=lambda path: path.stem)
def test_the_name_of_a_model_says_nothing(table: Path, extent: str) -> None:
    """With every model of a table renamed, each row comes to the same run but for that name."""
    tables, every = load_tables(), {"sample": 8, "whole": 1}[extent]

    def described(row: dict[str, str], where: str) -> Any:
        try:
            run = replay(row, tables, where=where)
        except (InputError, NotReplayable) as error:
            return str(error).replace(row["model"], "")
        architecture = replace(run.workload.architecture, name="")
        workload = replace(run.workload, architecture=architecture)
        return workload, run.cluster, run.software, run.layout.row()

    for row in read_runs([table])[::every]:
        fields = dict(row.fields)
        renamed = described({**fields, "model": "a model"}, row.where)
        assert renamed == described(fields, row.where), row.where
