"""Collective tables: NCCL's model by hand for every operation, what is skipped, pooled errors."""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from simulator import catalogue
from simulator.cost.collectives.calls import one_way_send_s, send_s
from simulator.hardware.cluster import load_cluster, load_library
from simulator.scoring.score_tables import BenchmarkScore, score_microbenchmarks, summaries

US = 1e-6
SHIPPED = catalogue.folder("validation") / "microbenchmarks"
GATHER = {
    "operation": "all_gather",
    "gpu": "plain",
    "gpus": "8",
    "message_bytes": "8e9",
    "time_us": "70000",
}
ROUTED = {"gpu": "plain", "library": "NCCL 2.29.2", "gpus": "8", "tokens_per_rank": "1024",
          "hidden": "1280", "topk": "8", "dispatch_us": "1000", "combine_us": "1000",
          "mode": "normal"}  # fmt: skip

RING_S = (8.4 + 7 * 3.4) * US
"""Start and seven hops of NCCL's simple ring over NVLink (tuning.cc)."""


def score(folder: Path, *rows: dict[str, str]) -> BenchmarkScore:
    path = folder / "table.csv"
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    (found,) = score_microbenchmarks([path])
    return found


def predicted(folder: Path, *rows: dict[str, str]) -> list[float]:
    found = score(folder, *rows)
    assert found.skipped == {}
    return [float(seconds) for seconds in found.predicted_s]


# --- what a call costs -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        ({"operation": "all_gather"}, RING_S + 8e9 * 7 / 8 / 100e9),
        ({"operation": "reduce_scatter"}, RING_S + 8e9 * 7 / 8 / 100e9),
        ({"operation": "all_reduce", "time_us": "140000"},
         (8.4 + 14 * 3.4) * US + 2 * 8e9 * 7 / 8 / 100e9),
        ({"operation": "alltoall"}, (8.4 + 7 * 0.6) * US + 8e9 * 7 / 8 / 100e9),
        ({"operation": "sendrecv", "gpus": "2"}, 10 * US + 8e9 / 100e9),
        # down a ring of seven hops, all of it over every link; a sum to one rank goes up
        ({"operation": "broadcast", "time_us": "80000"}, RING_S + 8e9 / 100e9),
        ({"operation": "reduce", "time_us": "80000"}, RING_S + 8e9 / 100e9),
        # 8 KiB: the LL ring starts in 6.6 us, hops in 0.6 us, moves half of 100 GB/s
        ({"message_bytes": "8192", "time_us": "10"}, (6.6 + 7 * 0.6) * US + 8192 * 7 / 8 / 50e9),
    ],
)  # fmt: skip
def test_every_operation_by_hand(round_profiles: Path, row: dict[str, str], seconds: float) -> None:
    assert predicted(round_profiles, GATHER | row) == pytest.approx([seconds], rel=1e-9)


def test_two_full_servers_cross_the_network_once(round_profiles: Path) -> None:
    """Eight adapters of 50 GB/s outrun the ring of 100 GB/s; one hop of fifteen takes 14 us.

    Every member sends from the start: fifteen steps of a sixteenth of the bytes and a hop each.
    """
    row = GATHER | {"gpus": "16"}
    expected = (8.4 + 14 * 3.4 + 14) * US + 8e9 * 15 / 16 / 100e9
    assert predicted(round_profiles, row, row | {"nodes": "2"}) == pytest.approx([expected] * 2)


def test_one_rank_to_a_server_has_its_own_adapter(round_profiles: Path) -> None:
    gather = GATHER | {"gpus": "2", "nodes": "2"}
    send = gather | {"operation": "sendrecv"}
    gathered = (8.4 + 14) * US + 8e9 / 2 / 50e9
    expected = [gathered, 17 * US + 8e9 / 50e9]
    slow = {"time_us": "170000"}
    assert predicted(round_profiles, gather | slow, send | slow) == pytest.approx(expected)


def test_a_send_of_one_way_has_its_own_start_and_share_of_the_links() -> None:
    """H100 by hand: 450 GB/s of links, what `curves.hopper.one_way` states; as both ways beyond."""
    cluster = load_cluster("dgx-h100", 16)
    way = cluster.library.curves["hopper"].one_way
    assert way is not None
    small, large = one_way_send_s(cluster, np.array([1e4, 1e8]), False)
    assert small == pytest.approx(way.small_s + 1e4 / (450e9 * way.link_fraction))
    assert large == pytest.approx(way.large_s + 1e8 / (450e9 * way.link_fraction))
    assert large < send_s(cluster, 1e8, False)
    assert one_way_send_s(cluster, 1e8, True) == send_s(cluster, 1e8, True)
    other = load_cluster("dgx-b200", 8)  # nobody timed it
    assert one_way_send_s(other, 1e8, False) == send_s(other, 1e8, False)


def test_sends_of_torch_are_one_way_and_those_of_nccl_tests_both_ways(tmp_path: Path) -> None:
    row = {"operation": "sendrecv", "gpu": "h100_sxm", "gpus": "2", "message_bytes": "100000000"}
    row |= {"time_us": "300", "nodes": "1", "dtype": "half", "lib_version": "NCCL 2.29.2"}
    rows = [row | {"placement": name} for name in ("torch.distributed", "out-of-place")]
    cluster = load_cluster("dgx-h100", 1)
    both = [one_way_send_s(cluster, 1e8, False), send_s(cluster, 1e8, False)]
    assert predicted(tmp_path, *rows) == pytest.approx([float(seconds) for seconds in both])


def test_one_host_thread_starts_a_call_on_all_of_its_accelerators_in_turn(tmp_path: Path) -> None:
    library = load_cluster("dgx-h100", 1).library
    start_s, message_s = float(library.enqueue_s), float(library.enqueue_peer_s)
    row = {"gpu": "h100_sxm", "gpus": "8", "message_bytes": "1024", "time_us": "40"}
    gather = row | {"operation": "all_gather", "placement": "in-place"}
    exchange = row | {"operation": "alltoall", "placement": "in-place"}
    apart = predicted(tmp_path, gather, gather | {"threads": "8"})
    assert apart[0] == apart[1] < 8 * start_s
    assert predicted(tmp_path, gather | {"threads": "1"}) == pytest.approx([8 * start_s])
    assert predicted(tmp_path, gather | {"threads": "2"}) == pytest.approx([4 * start_s])
    each_s = start_s + 16 * message_s  # one to and one from each of eight
    assert predicted(tmp_path, exchange | {"threads": "1"}) == pytest.approx([8 * each_s])
    large = gather | {"message_bytes": "8589934592", "time_us": "21000"}
    assert predicted(tmp_path, large) == predicted(tmp_path, large | {"threads": "1"})
    found = score(tmp_path, gather | {"threads": "9"})
    assert "threads: must be no more than gpus, got '9'" in found.problems[0]


def test_a_call_slower_than_a_larger_one_is_skipped(tmp_path: Path) -> None:
    row = {"operation": "all_reduce", "gpu": "h100_sxm", "gpus": "8", "dtype": "half"}
    rows = [
        row | {"message_bytes": size, "time_us": took, "lib_version": release}
        for size, took, release in (
            ("1024", "40", "NCCL 2.29.2"),  # a quarter longer than 31 us is 38.75
            ("2048", "38", "NCCL 2.29.2"),
            ("2048", "39", "NCCL 2.29.2"),
            ("4096", "31", "NCCL 2.29.2"),
            ("1024", "90", "NCCL 2.27.3"),  # a series of its own
        )
    ]
    found = score(tmp_path, *rows)
    reason = "contradicted: a quarter longer than a call at least as large"
    assert found.skipped == {reason: 2}
    assert found.line.tolist() == [3, 5, 6]


def test_expert_all_to_all_of_nccl_sends_every_copy(round_profiles: Path) -> None:
    """1024 tokens of 1280 elements in 16 bit, eight times each, seven in eight of them away."""
    found = score(round_profiles, ROUTED)
    expected = (8.4 + 7 * 0.6) * US + 1024 * 8 * 1280 * 2 * 7 / 8 / 100e9
    assert found.predicted_s.tolist() == pytest.approx([expected] * 2, rel=1e-9)
    assert (found.kernel.tolist(), found.dtype.tolist()) == (["dispatch", "combine"], ["bf16"] * 2)
    assert (found.rows, found.line.tolist()) == (2, [2, 2])


def test_deepep_sends_a_token_once_to_each_rank(round_profiles: Path) -> None:
    """Eight of 64 experts on eight ranks reach 5.45; fp8 with its scales out, 16 bit back."""
    own = {"experts": "64", "library": "DeepEP", "dispatch_sms": "24.0", "combine_sms": "20"}
    found = score(round_profiles, ROUTED | own)
    reached = 8 * (1 - math.comb(56, 8) / math.comb(64, 8))
    away = 1024 * 1280 * reached * 7 / 8 / 100e9
    figures = load_library("nccl").dispatch["deepep"]["hopper"]  # of a board of no known kind
    expected = []
    for way, sent_s, units in (("dispatch", (1 + 4 / 128) * away, 24), ("combine", 2 * away, 20)):
        own = figures[way]
        row_bytes = 1280 * (1 + 4 / 128 if way == "dispatch" else 2)
        copies = 1024 * reached * 7 / 8
        links_s = sent_s / own.link_fraction
        units_s = copies * (row_bytes / own.unit_bytes_per_s + own.unit_copy_s) / units
        moved_s = (links_s**3 + units_s**3) ** (1 / 3)
        start_s, power = own.start_s + row_bytes / own.token_bytes_per_s, own.sharpness
        expected.append((start_s**power + moved_s**power) ** (1 / power))
    assert found.predicted_s.tolist() == pytest.approx(expected, rel=1e-9)
    assert found.library.tolist() == ["DeepEP, 24 SMs", "DeepEP, 20 SMs"]
    assert found.dtype.tolist() == ["fp8", "bf16"]


def test_a_row_may_hold_one_of_both_times(round_profiles: Path) -> None:
    found = score(round_profiles, ROUTED | {"combine_us": ""}, ROUTED | {"dispatch_us": ""})
    assert (found.rows, found.kernel.tolist()) == (2, ["dispatch", "combine"])
    assert found.line.tolist() == [2, 3]


# --- what is skipped ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"operation": "all_reduce_custom"}, "no formula for the all-reduce of another library"),
        ({"gpu": "gb10"}, "no cluster profile for gb10"),
        ({"gpu": "h100_sxm", "gpus": "16", "system": "our cellar"},
         "no cluster profile for our cellar"),
        ({"gpu": "h100_sxm", "gpus": "16"},
         "no system stated, so that the network is unknown"),
        ({"excluded": "a copy within the GPU"}, "excluded: a copy within the GPU"),
    ],
)  # fmt: skip
def test_what_cannot_be_priced_is_counted_with_the_reason(
    round_profiles: Path, row: dict[str, str], reason: str
) -> None:
    found = score(round_profiles, GATHER, GATHER | row)
    assert found.skipped == {reason: 1}
    assert (found.problems, found.line.tolist()) == ((), [2])


def test_a_known_system_tells_the_network(round_profiles: Path) -> None:
    """A p5 server has 32 adapters of 12.5 GB/s; the GPU alone would not say so."""
    row = GATHER | {
        "gpu": "h100_sxm",
        "gpus": "16",
        "system": "AWS p5.48xlarge (H100, 32x100G EFA)",
    }
    found = score(round_profiles, row, row | {"system": "plain", "gpu": "anything"})
    assert found.device.tolist() == ["aws-p5", "plain"]


@pytest.mark.parametrize(
    ("row", "reasons"),
    [
        ({"library": "DeepEP", "mode": "elastic", "experts": "64"},
         {"no formula for DeepEP elastic yet": 2}),
        ({"library": "TRT-LLM alltoall"},
         {"no formula for TRT-LLM dispatch yet": 1, "no formula for TRT-LLM combine yet": 1}),
        ({"gpu": "h100_sxm", "gpus": "16", "nodes": "2.0"},
         {"no system stated, so that the network is unknown": 2}),
    ],
)  # fmt: skip
def test_expert_all_to_all_that_cannot_be_priced(
    round_profiles: Path, row: dict[str, str], reasons: dict[str, int]
) -> None:
    found = score(round_profiles, ROUTED | row)
    assert (found.skipped, len(found.line)) == (reasons, 0)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"gpus": "1"}, "gpus: must be a whole number from 2 on, got '1'"),
        ({"gpus": "2.5"}, "gpus: must be a whole number from 2 on, got '2.5'"),
        ({"gpus": "16", "nodes": "1"},
         "gpus: must be equal parts of no more than the servers hold, got '16'"),
        ({"gpus": "9", "nodes": "2"},
         "gpus: must be equal parts of no more than the servers hold, got '9'"),
        ({"nodes": "none"}, "nodes: must be a positive number, got 'none'"),
        ({"nodes": "0.5"}, "nodes: must be a whole number, got '0.5'"),
        ({"operation": "allreduce"},
         "operation: unknown, got 'allreduce' (did you mean 'all_reduce'?)"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_named_with_its_line(
    round_profiles: Path, row: dict[str, str], problem: str
) -> None:
    found = score(round_profiles, GATHER, GATHER | {"nodes": ""} | row)
    assert found.problems == (f"{found.path}: line 3: {problem}",)
    assert found.line.tolist() == [2]


def test_experts_per_token_are_whole(round_profiles: Path) -> None:
    found = score(round_profiles, ROUTED | {"topk": "1.5", "combine_us": ""})
    assert found.problems == (f"{found.path}: line 2: topk: must be a whole number, got '1.5'",)


# --- statistics --------------------------------------------------------------------------


def test_errors_by_operation_and_size(round_profiles: Path) -> None:
    errors = np.array([0.25, -0.10, 0.40])
    seconds = RING_S + 8e9 * 7 / 8 / 100e9
    times = [repr(float(seconds / (1.0 + error) * 1e6)) for error in errors]
    labels = [
        {"lib_version": "NCCL 2.29.2", "dtype": "half"},
        {"lib_version": "NCCL 2.29.2", "dtype": "int8"},
        {"operation": "reduce_scatter"},
    ]
    rows = [GATHER | own | {"time_us": time} for own, time in zip(labels, times, strict=True)]
    summary = score(round_profiles, *rows).summary()
    assert summary["mape"] == pytest.approx(np.abs(errors).mean(), rel=1e-9)
    assert summary["bias"] == pytest.approx(errors.mean(), rel=1e-9)
    assert summary["p90_ape"] == pytest.approx(np.percentile(np.abs(errors), 90), rel=1e-9)
    means = {word: part["bias"] for word, part in summary["by_kernel"].items()}
    assert means == pytest.approx({"all_gather": 0.075, "reduce_scatter": 0.40}, rel=1e-9)
    assert list(summary["by_dtype"]) == ["fp16", "int8", "not stated"]
    assert list(summary["by_library"]) == ["NCCL 2.29.2", "not stated"]
    assert list(summary["by_size"]) == ["1e09 bytes"]
    assert list(summary["by_device"]) == ["plain"]


def test_expert_all_to_all_counts_among_collectives(round_profiles: Path) -> None:
    folder = round_profiles
    pooled = summaries([score(folder, GATHER), score(folder, ROUTED)])
    assert pooled["kernels"] is None
    found = pooled["collectives"]
    assert found is not None
    counts = {word: part["n"] for word, part in found["by_kernel"].items()}
    assert (found["n"], counts) == (3, {"all_gather": 1, "combine": 1, "dispatch": 1})


# --- the shipped tables ------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped() -> dict[str, BenchmarkScore]:
    paths = [SHIPPED / "collectives.csv", SHIPPED / "moe_a2a.csv"]
    return {found.kind: found for found in score_microbenchmarks(paths)}


def rows_of(name: str) -> list[dict[str, str]]:
    with (SHIPPED / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_shipped_row_is_predicted_or_counted(shipped: dict[str, BenchmarkScore]) -> None:
    collectives, experts = shipped["collectives"], shipped["a2a"]
    timed = rows_of("moe_a2a.csv")
    operations = sum(
        bool(row[f"{way}_us"] or row[f"{way}_GBps"])
        for row in timed
        for way in ("dispatch", "combine")
    )
    assert (collectives.rows, experts.rows) == (len(rows_of("collectives.csv")), operations)
    for found in shipped.values():
        assert found.rows == len(found.line) + sum(found.skipped.values())
        assert found.problems == ()
        assert np.isfinite(found.predicted_s).all() and (found.predicted_s > 0).all()


def test_shipped_operations_that_are_predicted(shipped: dict[str, BenchmarkScore]) -> None:
    """All of the main devices: four operations, three types of them, as nccl-tests ran them."""
    devices = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200")
    names = {"alltoall": "all_to_all"}
    wanted = Counter(
        names.get(row["operation"], row["operation"])
        for row in rows_of("collectives.csv")
        if row["source"].startswith("aiconfigurator")
        and row["gpu"] in devices
        and not row["excluded"]
    )
    own = shipped["collectives"].source == "aiconfigurator"
    found = Counter(shipped["collectives"].kernel[own].tolist())
    assert set(wanted) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    assert all(found[name] >= count > 500 for name, count in wanted.items())


def test_large_collectives_inside_a_server_are_predicted_well(
    shipped: dict[str, BenchmarkScore],
) -> None:
    """From 100 MB on the rate decides, and the profiles' rates were fitted there: 4 to 9 %."""
    found = shipped["collectives"]
    large = (found.decade == "1e08 bytes") & (found.source == "aiconfigurator")
    assert large.sum() > 300
    assert np.median(np.abs(found.error[large])) < 0.10
