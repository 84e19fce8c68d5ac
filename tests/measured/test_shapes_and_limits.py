"""What rows of microbenchmarks are, number by number, and both sides of what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import read_csv
from simulator.hardware.cluster import load_cluster
from simulator.measured.checks import Readings, implausible, readings, utilisation
from simulator.measured.collective_calls import CollectiveCalls, read_a2a, read_collectives
from simulator.measured.log import LogReading
from simulator.measured.microbenchmarks import load_words, read_table
from simulator.measured.replay import Run, _far, load_tables, replay
from simulator.measured.rows import MeasuredRun
from simulator.workload import presets
from simulator.workload.recipe import Recipe
from tests.measured.written_tables import kernels, write

ROWS = {
    row["run_id"]: row for _, row in read_csv(catalogue.folder("validation") / "runs" / "test.csv")
}
GPT = ROWS["korthikanti22-t5-003"]


def collectives(folder: Path, *rows: dict[str, str]) -> CollectiveCalls:
    return read_collectives(read_table(write(folder / "t.csv", *rows), "collectives"), load_words())


GEMM = {"kernel": "gemm", "gpu": "h100_sxm", "dtype": "bfloat16", "M": "300", "N": "700",
        "K": "1100", "time_us": "900", "framework": "SimuMax measured"}  # fmt: skip
ATTENTION = {"kernel": "attention_prefill", "gpu": "h100_sxm", "dtype": "bfloat16", "batch": "3",
             "heads_q": "10", "heads_kv": "5", "seq_q": "700", "head_dim": "128", "causal": "1",
             "direction": "fwd", "time_us": "9000"}  # fmt: skip
EXPERTS = {"kernel": "moe_grouped_ffn", "gpu": "h100_sxm", "dtype": "bfloat16", "tokens": "600",
           "topk": "3", "experts": "20", "hidden": "700", "inter": "1100", "time_us": "9000",
           "framework": "trtllm/1.3.0rc20", "impl": "moe_torch_flow_cutlass",
           "note": "tp=2 ep=5 routing=balanced"}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "batch", "result"),
    [
        ({}, 1.0, 2.0), ({"batch": "7"}, 7.0, 2.0),
        ({"impl": "layout=NN acc=False out=fp32"}, 1.0, 4.0),
        ({"impl": "layout=NT acc=True out=bf16"}, 1.0, 4.0),
        ({"impl": "layout=NT acc=True out=fp32"}, 1.0, 8.0),
        ({"dtype": "tf32"}, 1.0, 4.0),
    ],
)  # fmt: skip
def test_a_product(tmp_path: Path, more: dict[str, str], batch: float, result: float) -> None:
    """What adds to its result reads it too; results of 16 bit, or as wide as it is said."""
    calls = kernels(tmp_path, {**GEMM, **more})
    shape = {name: float(x[0]) for name, x in calls.shapes["gemm"].items()}
    assert shape == {"m": 300, "n": 700, "k": 1100, "batch": batch, "result_bytes": result}
    assert float(calls.flop[0]) == 2 * batch * 300 * 700 * 1100
    assert float(calls.measured_s[0]) == pytest.approx(900e-6)


@pytest.mark.parametrize(
    ("more", "seen", "value", "times"),
    [
        ({}, 0.5, 128, 1.0), ({"causal": "0", "impl": "vllm_vit_flash_attn_fa3"}, 1.0, 128, 1.0),
        ({"note": "v_head_dim=64"}, 0.5, 64, 1.0), ({"direction": "bwd"}, 0.5, 128, 2.5),
        ({"direction": "fwd+bwd"}, 0.5, 128, 3.5),
    ],
)  # fmt: skip
def test_attention(
    tmp_path: Path, more: dict[str, str], seen: float, value: int, times: float
) -> None:
    """A mask leaves half of the keys; backward there are five products for two."""
    calls = kernels(tmp_path, {**ATTENTION, **more})
    shape = {name: float(x[0]) for name, x in calls.shapes["attention"].items()}
    width = 2 * 3 * 700 * (128 + value)
    assert shape == {
        "heads": 30, "queries": 700, "keys": 700 * seen, "span": 700, "score_size": 128,
        "value_size": value, "query_bytes": width * 10, "key_bytes": width * 5,
    }  # fmt: skip
    pairs = 30 * 700 * 700 * seen
    assert float(calls.flop[0]) == pytest.approx(2 * times * pairs * (128 + value))


@pytest.mark.parametrize(("width", "read"), [("256", True), ("257", False)])
def test_heads_are_256_wide_at_most(tmp_path: Path, width: str, read: bool) -> None:
    assert kernels(tmp_path, {**ATTENTION, "head_dim": width}).sieve.kept.tolist() == [read]


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({}, True), ({"tokens": "7"}, True), ({"tokens": "6"}, False),
        ({"note": "tp=2 ep=20 routing=balanced"}, True),
        ({"note": "tp=2 ep=21 routing=balanced"}, False),
        ({"note": "tp=2 ep=5 routing=power_law"}, False), ({"note": ""}, True),
    ],
)  # fmt: skip
def test_experts(tmp_path: Path, more: dict[str, str], kept: bool) -> None:
    """600 tokens, 3 of 20 experts each: 90 an expert; a fifth of them, half of their width."""
    calls = kernels(tmp_path, {**EXPERTS, **more})
    assert calls.sieve.kept.tolist() == [kept]
    if more:
        return
    shape = {name: float(x[0]) for name, x in calls.shapes["experts"].items()}
    assert shape == {
        "tokens": 90, "hidden": 700, "ffn": 550, "batch": 4, "gated": 1, "all_tokens": 600,
        "all_experts": 20, "top_k": 3,
    }  # fmt: skip
    assert float(calls.flop[0]) == 2 * 4 * 90 * 700 * 550 * 3
    plain = kernels(tmp_path, {**EXPERTS, "impl": "moe_torch_flow_nongated"})
    assert float(plain.flop[0]) == 2 * 4 * 90 * 700 * 550 * 2


def test_memory_bound_kernels(tmp_path: Path) -> None:
    row = {"kernel": "membound_add", "gpu": "h100_sxm", "dtype": "fp16", "bytes": "6e9",
           "time_us": "9000"}  # fmt: skip
    calls = kernels(tmp_path, {**row, "M": "300"}, {**row, "M": ""})
    shape = calls.shapes["stream"]
    assert shape["moved_bytes"].tolist() == [6e9, 6e9]
    assert shape["row_bytes"].tolist() == [2e7, 0.0]


def test_a_published_rate_counts_pairs_that_the_mask_leaves(tmp_path: Path) -> None:
    rate = {**ATTENTION, "kernel": "attention_training", "time_us": "", "tflops": "200"}
    calls = kernels(tmp_path, rate)
    flop = 2 * 30 * 700 * 350 * 256
    assert float(calls.measured_s[0]) == pytest.approx(flop / 200e12)


CALL = {"operation": "all_gather", "gpu": "h100_sxm", "gpus": "8", "message_bytes": "6e9",
        "time_us": "90000"}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"gpus": "2"}, ""), ({"gpus": "1"}, "gpus"), ({"gpus": "2.5"}, "gpus"),
        ({"gpus": "16", "nodes": "2", "system": "dgx-h100"}, ""),
        ({"gpus": "16", "nodes": "1", "system": "dgx-h100"}, "gpus"),
        ({"gpus": "16", "nodes": "3", "system": "dgx-h100"}, "gpus"),
        ({"gpus": "16", "nodes": "1.5", "system": "dgx-h100"}, "nodes"),
        ({"gpus": "8", "threads": "8"}, ""), ({"gpus": "8", "threads": "9"}, "threads"),
    ],
)  # fmt: skip
def test_ranks_servers_and_threads(tmp_path: Path, more: dict[str, str], refused: str) -> None:
    calls = collectives(tmp_path, {**CALL, **more})
    assert calls.sieve.kept.tolist() == [not refused]
    assert [p.split(": ")[2] for p in calls.sieve.problems] == ([refused] if refused else [])


def test_ranks_of_a_server_and_starts_of_a_thread(tmp_path: Path) -> None:
    rows = [
        {**CALL, "gpus": "16", "nodes": "4", "system": "dgx-h100", "threads": "3"},
        {**CALL, "gpus": "16", "nodes": "", "system": "dgx-h100", "threads": ""},
        {**CALL, "gpus": "6", "nodes": "", "system": "", "threads": "1"},
    ]
    calls = collectives(tmp_path, *rows)
    assert calls.group.size.tolist() == [16, 16, 6]
    assert calls.group.local.tolist() == [4, 8, 6]
    assert calls.starts.tolist() == [6.0, 1.0, 6.0]
    assert calls.measured_s.tolist() == pytest.approx([0.09] * 3)


@pytest.mark.parametrize(
    ("operation", "share"),
    [("all_gather", 5 / 6), ("reduce_scatter", 5 / 6), ("all_reduce", 1.0), ("broadcast", 1.0),
     ("all_to_all", 5 / 6), ("sendrecv", 1.0)],
)  # fmt: skip
def test_what_each_operation_must_move_at_least(
    tmp_path: Path, operation: str, share: float
) -> None:
    """6 GB among six at 450 GB/s: 13.33 ms, five parts in six of it where a part is one's own."""
    least_us = 6e9 / 450e9 * share * 1e6 / 1.05
    row = {**CALL, "operation": operation, "gpus": "6"}
    times = [f"{least_us * factor:.6g}" for factor in (1.001, 0.999)]
    kept = [collectives(tmp_path, {**row, "time_us": t}).sieve.kept.tolist() for t in times]
    assert kept == [[True], [False]]


A2A = {"library": "DeepEP", "mode": "normal", "gpu": "h100_sxm", "gpus": "8", "nodes": "1",
       "tokens_per_rank": "300", "hidden": "7168", "topk": "3", "experts": "20",
       "dispatch_us": "700", "combine_us": "1100", "dispatch_sms": "24",
       "combine_sms": "16"}  # fmt: skip


def test_a_dispatch_and_its_combine(tmp_path: Path) -> None:
    """Tokens go out in fp8 with a scale of four bytes for 128, and come back in 16 bit."""
    calls = read_a2a(read_table(write(tmp_path / "t.csv", A2A), "a2a"), load_words())
    assert calls.label.tolist() == ["dispatch", "combine"]
    assert calls.row_bytes.tolist() == [7168 + 4 * 56, 2 * 7168]
    assert calls.size_bytes.tolist() == [300 * (7168 + 4 * 56), 300 * 2 * 7168]
    assert calls.measured_s.tolist() == pytest.approx([700e-6, 1100e-6])
    assert (calls.copies.tolist(), calls.experts.tolist()) == ([3, 3], [20, 20])
    assert calls.units.tolist() == [24.0, 16.0]
    plain = {**A2A, "library": "NCCL", "dispatch_sms": "", "combine_sms": ""}
    calls = read_a2a(read_table(write(tmp_path / "t.csv", plain), "a2a"), load_words())
    assert calls.size_bytes.tolist() == [300 * 3 * 2 * 7168] * 2  # each copy by itself
    assert calls.units.tolist() == [20.0, 20.0]


@pytest.mark.parametrize(
    ("more", "column"),
    [({"experts": "3"}, ""), ({"experts": "2"}, "experts"), ({"topk": "2.5"}, "topk")],
)
def test_a_token_has_its_experts_among_all(
    tmp_path: Path, more: dict[str, str], column: str
) -> None:
    path = write(tmp_path / "t.csv", {**A2A, **more})
    calls = read_a2a(read_table(path, "a2a"), load_words())
    assert {p.split(": ")[2] for p in calls.sieve.problems} == ({column} if column else set())


def run_of(row: dict[str, str]) -> Run:
    return replay(row, load_tables())


@pytest.mark.parametrize(
    ("values", "predicted_s", "columns"),
    [
        # at their peaks 64 A100 would take 10 s
        ({"step_time_s": 10.0}, 0.0, []),
        ({"step_time_s": 9.99}, 0.0, ["step_time_s"]),
        ({"step_time_s": 10_000.0}, 0.0, []),
        ({"step_time_s": 10_001.0}, 0.0, ["step_time_s"]),
        ({"step_time_s": 12_000.0}, 400.0, []),
        ({"step_time_s": 12_001.0}, 400.0, ["step_time_s"]),
        ({"tflops_per_gpu": 624.0}, 0.0, []),
        ({"tflops_per_gpu": 624.1}, 0.0, ["model_tflops_per_gpu"]),
    ],
)
def test_readings_on_both_sides_of_what_can_be(
    values: dict[str, float], predicted_s: float, columns: list[str]
) -> None:
    given: Any = Readings(**values)  # type: ignore[arg-type]
    flop = 64 * 312e12 * 10.0
    said = implausible(run_of(GPT), given, model_flop=flop, predicted_s=predicted_s)
    assert [line.partition(":")[0] for line in said] == columns


@pytest.mark.parametrize(
    ("stated", "fine"), [(110.75, True), (110.71, False), (115.25, True), (115.29, False)]
)
def test_a_stated_rate_may_be_two_percent_off(stated: float, fine: bool) -> None:
    """64 sequences of 2,048 tokens in 18.13 s on 64 GPUs are 112.96 tokens a second each."""
    fields = {**GPT, "tokens_per_s_per_gpu": f"{stated}"}
    run = MeasuredRun(where="runs.csv: line 7", fields=fields)
    if fine:
        assert readings(run).step_time_s == 18.13
    else:
        with pytest.raises(InputError, match="must agree with tokens_per_s_per_gpu"):
            readings(run)


def test_a_device_without_bf16_is_taken_at_its_largest_peak() -> None:
    run = run_of(GPT)
    old = load_cluster("dgx-1v", 8)
    other = replace(run, cluster=old)
    peaks = old.accelerator.matrix_flop_per_s
    assert "bf16" not in peaks
    mixed, own = utilisation(other, model_flop=7e15, step_time_s=3.0)
    rate = 7e15 / 3.0 / 64
    assert mixed == pytest.approx(rate / max(float(peak) for peak in peaks.values()))
    assert own == pytest.approx(rate / float(peaks["fp16"]))


def test_rates_and_ranks_of_a_log() -> None:
    """Three steps of two ranks, the first left out; the slower one's rate of FLOPs counts."""
    found = LogReading("megatron", "a Megatron-LM log", "train.log")
    for line, (step, rank, seconds, tflops) in enumerate(
        [(5, 3, 8.0, 90.0), (6, 3, 2.0, 110.0), (6, 7, 2.5, 100.0), (7, 7, 2.2, 120.0),
         (7, 3, 2.1, 0.0), (8, 3, 2.0, -1.0)],
        11,
    ):  # fmt: skip
        found.add(step, seconds, line=line, rank=rank, tflops=tflops)
    assert len(found) == 6
    log = found.finish(Recipe(sequence_length=300, global_batch=14), 7, 1)
    assert log.steps.tolist() == [5, 6, 7, 8] and log.lines.tolist() == [11, 13, 14, 16]
    assert log.kept_s.tolist() == [2.5, 2.2, 2.0]
    assert (log.median_step_s, log.model_tflops_per_gpu) == (2.2, 110.0)
    assert log.tokens_per_gpu == 600.0 and log.tokens_per_s_per_gpu == pytest.approx(600 / 2.2)
    assert log.spread_s == pytest.approx((2.04, 2.44))


@pytest.mark.parametrize("name", ["step", "rank", "batch"])
def test_whole_numbers_that_do_not_fit_are_no_step(name: str) -> None:
    for value, read in ((2**62 - 1, 1), (2**62, 0)):
        found = LogReading("megatron", "a Megatron-LM log", "train.log")
        given: dict[str, Any] = {"step": 3, "rank": 1, "batch": 0, name: value}
        found.add(given.pop("step"), 1.0, line=1, **given)
        assert len(found) == read


@pytest.mark.parametrize(("late", "blank", "kept"), [("126", "", False), ("124", "", True),
                                                     ("126", "size", False)])  # fmt: skip
def test_a_call_that_takes_a_quarter_longer_than_a_larger_one_is_contradicted(
    tmp_path: Path, late: str, blank: str, kept: bool
) -> None:
    """Of a series that has a row without a time, or without a size, which is refused by itself."""
    rows = [
        {**CALL, "message_bytes": "1e6", "time_us": f"{late}000"},
        {**CALL, "message_bytes": "2e6", "time_us": "100000"},
        {**CALL, "message_bytes": "" if blank else "4e6", "time_us": "900000" if blank else ""},
    ]
    calls = collectives(tmp_path, *rows)
    assert calls.sieve.kept.tolist() == [kept, True, False]


def test_every_sixth_layer_of_gemma_3_sees_all() -> None:
    """The last of each six, whose heads are twice as wide and whose key heads a quarter as many."""
    far = next(x.far for x in load_tables().families.values() if x.far is not None)
    assert (far.every, far.window) == (6, 1024)
    plain = presets.load("llama-3.1-8b")
    made = _far(SimpleNamespace(), plain, far)  # type: ignore[arg-type]
    kinds = [made.blocks[kind].attention for kind in made.layer_kinds]
    assert len(kinds) == plain.layers == 32
    for layer, attention in enumerate(kinds, start=1):
        assert attention is not None
        whole = layer % 6 == 0
        known = (attention.window, attention.head_dim, attention.kv_heads)
        assert known == ((0, 256, 2) if whole else (1024, 128, 8)), layer


@pytest.mark.parametrize(("heads", "whole"), [(16, 4), (8, 2), (4, 1), (2, 1), (1, 1)])
def test_layers_that_see_all_have_a_key_head_at_least(heads: int, whole: int) -> None:
    """A quarter as many as the others; Gemma 3's smallest has one."""
    far = next(x.far for x in load_tables().families.values() if x.far is not None)
    plain = presets.load("llama-3.1-8b")
    (block,) = plain.blocks
    assert block.attention is not None
    block = replace(block, attention=replace(block.attention, kv_heads=heads))
    made = _far(SimpleNamespace(), replace(plain, blocks=(block,)), far)  # type: ignore[arg-type]
    assert [one.attention and one.attention.kv_heads for one in made.blocks] == [heads, whole]
