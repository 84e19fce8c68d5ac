"""Rows of microbenchmarks: what cannot be right is refused line by line, and the others go on."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.measured.collective_calls import read_collectives
from simulator.measured.kernel_calls import read_kernels
from simulator.measured.microbenchmarks import groups, load_words, read_table
from tests.measured.written_tables import kernels, write
from workshop.fits.gemm.fit import read_gemm

FOLDER = catalogue.folder("validation") / "microbenchmarks"
GEMM = {
    "kernel": "gemm",
    "gpu": "h100_sxm",
    "dtype": "bfloat16",
    "M": "4096",
    "N": "4096",
    "K": "4096",
    "time_us": "200",
}
ADD = {
    "kernel": "membound_add",
    "gpu": "h100_sxm",
    "dtype": "fp16",
    "bytes": "3.35e9",
    "time_us": "1100",
}
REDUCE = {
    "operation": "all_reduce",
    "gpu": "h100_sxm",
    "gpus": "8",
    "message_bytes": "8e9",
    "time_us": "30000",
}

SHIPPABLE = ("aiconfigurator:", "MooreThreads/SimuMax@", "baidu-research/DeepBench",
             "microsoft/vidur@", "microsoft/superbenchmark@", "deepseek-ai/DeepEP@",
             "aws-samples/awsome-distributed-training@",
             "crazyguitar/aws-gpu-communication-benchmark@")  # fmt: skip
"""Sources under Apache-2.0, MIT or MIT-0; the last under CC BY 4.0: the README names its author."""


def only_problem(folder: Path, row: dict[str, str]) -> str:
    """What is wrong with a row between two good ones, which stay."""
    good = {key: value for key, value in row.items() if key in GEMM} | GEMM
    calls = kernels(folder, good, row, good)
    assert calls.sieve.kept.tolist() == [True, False, True]
    (line,) = calls.sieve.problems
    place = f"{folder / 't.csv'}: line 3: "
    assert line.startswith(place)
    return line.removeprefix(place)


# --- one row -----------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["-1", "0", "nan", "-inf", "fast", "1,5"])
def test_a_time_that_is_no_positive_number(tmp_path: Path, word: str) -> None:
    expected = f"time_us: must be a positive number, got {word!r}"
    assert only_problem(tmp_path, GEMM | {"time_us": word}) == expected


@pytest.mark.parametrize("word", ["1e-10", "2e15", "inf"])
def test_a_size_beyond_all_measure(tmp_path: Path, word: str) -> None:
    assert (
        only_problem(tmp_path, GEMM | {"M": word})
        == f"M: must be from 1e-09 to 1e+15, got {word!r}"
    )


@pytest.mark.parametrize("column", ["kernel", "gpu", "dtype", "time_us", "M", "K"])
def test_a_blank_field(tmp_path: Path, column: str) -> None:
    assert only_problem(tmp_path, GEMM | {column: ""}) == f"{column}: required field is blank"


def test_an_unknown_kernel(tmp_path: Path) -> None:
    assert only_problem(tmp_path, GEMM | {"kernel": "gem"}) == (
        "kernel: unknown, got 'gem' (did you mean 'gemm'?)"
    )
    assert only_problem(tmp_path, GEMM | {"kernel": "fft"}) == "kernel: unknown, got 'fft'"


def test_only_the_columns_of_its_own_kernel_matter_to_a_row(tmp_path: Path) -> None:
    calls = kernels(tmp_path, GEMM | {"bytes": "oops"}, ADD | {"N": "oops"})
    assert calls.sieve.kept.all()


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("gemm,h100_sxm,bf16", "must have 4 cells as the header has, got 3"),
        ("stream_triad,h100_sxm,bf16,5,9", "must have 4 cells as the header has, got 5"),
        (f"gemm,{'x' * 501},bf16,5", "must have no cell of more than 500 characters"),
    ],
)
def test_a_row_of_another_shape(tmp_path: Path, line: str, rule: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"kernel,gpu,dtype,time_us\nattention_decode,h100_sxm,bf16,5\n{line}\n")
    calls = read_kernels(read_table(path, "kernels"), load_words())
    assert calls.sieve.problems == [f"{path}: line 3: {rule}"]
    assert calls.sieve.skipped == {"no formula for attention of one token over a cache": 1, rule: 1}


@pytest.mark.parametrize(
    ("tokens", "why"), [("4", None), ("3", "no formula for less than one token to an expert")]
)
def test_an_expert_has_a_token_at_least(tmp_path: Path, tokens: str, why: str | None) -> None:
    """2 of 8 experts take each token: four tokens are one for every expert."""
    row = {
        "kernel": "moe_grouped_ffn", "gpu": "h100_sxm", "dtype": "bfloat16", "time_us": "900",
        "tokens": tokens, "topk": "2", "experts": "8", "hidden": "1024", "inter": "2048",
    }  # fmt: skip
    calls = kernels(tmp_path, row)
    assert calls.sieve.kept.tolist() == [why is None]
    assert calls.sieve.skipped == ({} if why is None else {why: 1})


# --- faster than the hardware ------------------------------------------------------------
# 2 x 4096^3 FLOP at 989.4 TFLOP/s take 138.91 us; 3.35 GB at 3.35 TB/s take 1000 us.


@pytest.mark.parametrize(("row", "slack"), [(GEMM, "132.4"), (ADD, "952.5")])
def test_five_percent_above_the_peak_are_let_pass(
    tmp_path: Path, row: dict[str, str], slack: str
) -> None:
    assert kernels(tmp_path, row | {"time_us": slack}).sieve.kept.all()


@pytest.mark.parametrize(
    ("row", "least"),
    [
        (GEMM | {"time_us": "132.2"}, "138.9"),
        (GEMM | {"time_us": "0.2"}, "138.9"),  # milliseconds
        (ADD | {"time_us": "952.2"}, "1000"),
        (GEMM | {"dtype": "fp8", "time_us": "66"}, "69.45"),  # 1978.9 TFLOP/s
    ],
)
def test_a_time_below_what_the_device_can_do(
    tmp_path: Path, row: dict[str, str], least: str
) -> None:
    assert only_problem(tmp_path, row) == (
        f"time_us: faster than the dense peak or memory rate allows, got {row['time_us']!r}"
        f" (no less than {least} us)"
    )


def test_a_rate_above_the_peak(tmp_path: Path) -> None:
    """TFLOP/s over FLOPs without the mask: twice the peak is what a causal kernel can print."""
    row = {
        "kernel": "simumax_sdp_fwd",
        "gpu": "h100_sxm",
        "dtype": "bf16",
        "batch": "1",
        "seq_q": "4096",
        "heads_q": "32",
        "heads_kv": "8",
        "head_dim": "128",
        "time_us": "",
    }
    calls = kernels(tmp_path, row | {"tflops": "1900"}, row | {"tflops": "2100"})
    assert calls.sieve.kept.tolist() == [True, False]
    (line,) = calls.sieve.problems
    assert "line 3: tflops: faster than the dense peak or memory rate allows, got '2100'" in line


def test_a_collective_beyond_the_links(tmp_path: Path) -> None:
    """8 GB over 450 GB/s take 17.78 ms: each rank sends its buffer once where the switch adds up,
    and the other operations send seven parts in eight of it."""
    gather = REDUCE | {"operation": "all_gather"}
    times = [(REDUCE, "17000"), (REDUCE, "16900"), (gather, "14900"), (gather, "14800")]
    rows = [row | {"time_us": time} for row, time in times]
    path = write(tmp_path / "t.csv", *rows)
    calls = read_collectives(read_table(path, "collectives"), load_words())
    assert calls.sieve.kept.tolist() == [True, False, True, False]
    assert calls.sieve.problems == [
        f"{path}: line 3: time_us: faster than the link rate allows, got '16900'"
        " (no less than 1.778e+04 us)",
        f"{path}: line 5: time_us: faster than the link rate allows, got '14800'"
        " (no less than 1.556e+04 us)",
    ]


def test_a_domain_may_span_servers(tmp_path: Path) -> None:
    """Four GPUs to a tray of an NVL72: 72 share a domain, 128 are two times 64."""
    sizes = [("4", "1"), ("72", "18"), ("128", "32")]
    rows = [REDUCE | {"gpu": "gb200-nvl72", "gpus": gpus, "nodes": nodes} for gpus, nodes in sizes]
    path = write(tmp_path / "t.csv", *rows)
    calls = read_collectives(read_table(path, "collectives"), load_words())
    assert calls.group.size.tolist() == [4, 72, 128]
    assert calls.group.local.tolist() == [4, 72, 64]


# --- tables ------------------------------------------------------------------------------


def test_wrong_columns_are_named_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", GEMM | {"framwork": "x", "mood": "good"})
    with pytest.raises(InputError) as refused:
        read_table(path, "kernels")
    assert list(refused.value.problems) == [
        f"{path}: framwork: unknown column (did you mean 'framework'?)",
        f"{path}: mood: unknown column",
    ]
    with pytest.raises(InputError, match=r"t\.csv: operation: required column is missing"):
        read_table(path, "collectives")


def test_rows_are_grouped_in_the_order_of_the_table() -> None:
    one, two = np.array(["a", "b", "a", "a"]), np.array(["x", "x", "x", "y"])
    where = np.array([True, True, True, False])
    found = [(words, rows.tolist()) for words, rows in groups(where, one, two)]
    assert found == [(("a", "x"), [0, 2]), (("b", "x"), [1])]


def test_fits_leave_excluded_rows_out(tmp_path: Path) -> None:
    row = GEMM | {"framework": "trtllm/1.0", "impl": "torch_flow"}
    path = write(tmp_path / "t.csv", row, row | {"time_us": "1", "excluded": "no time at all"})
    seconds = read_gemm(path, gpu="h100_sxm", dtype="bf16")["seconds"]
    assert seconds.tolist() == pytest.approx([200e-6])


def test_words_lead_to_profiles() -> None:
    words = load_words()
    assert set(words.accelerators.values()) <= set(catalogue.names("accelerators"))
    assert {*words.clusters.values(), *words.systems.values()} <= set(catalogue.names("clusters"))


@pytest.mark.parametrize("name", ["kernels", "collectives", "moe_a2a"])
def test_shipped_rows_come_from_sources_that_may_be_passed_on(name: str) -> None:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8") as file:
        sources = {row["source"] for row in csv.DictReader(file)}
    assert [source for source in sources if not source.startswith(SHIPPABLE)] == []


def test_shipped_rows_that_cannot_be_right_are_excluded() -> None:
    with (FOLDER / "collectives.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    custom = [row for row in rows if row["operation"].endswith("_custom")]
    copies = [row for row in rows if row["note"].startswith("sendrecv rows exceed NVLink4 rate")]
    assert (len(custom), len(copies)) == (2278, 10)
    assert all(row["excluded"] for row in custom + copies)
    slow = Counter(row["excluded"] for row in rows if "vidur" in row["source"])
    assert slow["slow network between the servers (6 to 21 GB/s), not described"] == 295
