"""A row of measured runs becomes a run, or says what is wrong with which field."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import read_csv
from simulator.measured.replay import NotReplayable, Run, load_tables, replay
from simulator.workload.architecture import MLP, MoE

RUNS = catalogue.folder("validation") / "runs"
TABLES = load_tables()
GPT = {row["run_id"]: row for _, row in read_csv(RUNS / "test.csv")}["korthikanti22-t5-003"]
"""GPT-3 175B on 64 A100: tp 8, pp 8, vpp 3, full recomputation."""

MOE = GPT | {
    "family": "qwen3_moe", "kv_heads": "8", "num_experts": "16", "top_k": "2",
    "moe_ffn_hidden": "1024", "shared_expert_ffn": "512", "sequence_parallel": "true",
}  # fmt: skip

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


def test_latent_attention() -> None:
    sizes = {"kv_lora_rank": "512", "q_lora_rank": "1536", "qk_nope_head_dim": "128",
             "qk_rope_head_dim": "64", "v_head_dim": "128"}  # fmt: skip
    attention = made(**sizes).workload.architecture.blocks[0].attention
    assert (attention.is_mla, attention.head_dim, attention.value_dim) == (True, 192, 128)


def test_switches_of_the_row_beat_those_of_the_profile() -> None:
    on = made(overlap_grad_reduce="TRUE", tp_comm_overlap="true", flash_attention="true").software
    off = made(overlap_grad_reduce="false", flash_attention="false").software
    assert (on.overlap.gradient_reduce, off.overlap.gradient_reduce) == (True, False)
    assert on.overlap.tensor == "userbuffers"
    assert (on.kernels.attention, off.kernels.attention) == ("flash", "unfused")
    assert float(made(cuda_graphs="true").software.host.seconds_per_kernel) == 0.0


def test_blank_and_missing_columns_take_the_same_defaults() -> None:
    blank = made(vpp="", cp="", nvlink_domain="", position="", recompute_layers="", shard_group="")
    absent = {k: v for k, v in GPT.items() if k not in ("vpp", "cp", "nvlink_domain", "position")}
    assert blank.layout.row() == made(absent).layout.row()
    assert blank.layout.row()["vpp"] == 1
    assert blank.cluster.domain == made(absent).cluster.domain == 8


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
        ({"precision": "nvfp4"}, "nvfp4 is not modelled yet"),
        ({"mtp_layers": "1"}, "multi-token prediction is not modelled yet"),
        ({"cpu_offload": "true"}, "activation offload is not modelled yet"),
        ({"optimizer": "muon"}, "optimizer muon is not modelled yet"),
        ({"gpu": "H100-SXM5-80G"}, "no hardware profile for H100-SXM5-80G"),
        ({"software": "megatron-lm-2019"}, "no software profile for megatron-lm-2019 yet"),
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


@pytest.mark.parametrize("name", ["calibrate", "test", "vtrain_single", "analytic_memory"])
def test_no_shipped_row_is_malformed(name: str) -> None:
    for line, row in read_csv(RUNS / f"{name}.csv"):
        try:
            replay(row, TABLES, where=f"line {line}")
        except NotReplayable as reason:
            assert str(reason)
