"""Logs of nccl-tests and rccl-tests in the forms that releases of seven years print.

The lines are those of public reports: H100 PCIe pairs (NVIDIA/nccl issue 1161), RTX 2080 Ti without
columns for operation and root (NVIDIA/nccl-tests issue 44), MI250X under Slurm's labels (ROCm/rccl
issue 1490), GB10 over the network (NVIDIA/dgx-spark-playbooks pull request 103).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.interop.logs.nccl_tests import is_nccl_tests, read_nccl_tests

Write = Callable[..., Path]

HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""  # noqa: E501
DEVICES = """\
# nThread 1 nGpus 2 minBytes 1073741824 maxBytes 8589934592 step: 2(factor) iters: 20
# Using devices
#  Rank  0 Group  0 Pid   4567 on       gpu1 device  0 [0x01] NVIDIA H100 PCIe
#  Rank  1 Group  0 Pid   4567 on       gpu1 device  1 [0x21] NVIDIA H100 PCIe
"""
H100 = (
    "# Collective test starting: all_reduce_perf\n"
    + DEVICES
    + HEADER
    + """\
  1073741824     268435456     float     sum      -1   9306.7  115.37  115.37      0   9291.5  115.56  115.56      0
  2147483648     536870912     float     sum      -1    18535  115.86  115.86      0    18524  115.93  115.93      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 115.68
"""  # noqa: E501
)
TURING = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#   Rank  0 Pid   3902 on  wang-pc device  0 [0x01] GeForce RTX 2080 Ti
#   Rank  1 Pid   3902 on  wang-pc device  1 [0x02] GeForce RTX 2080 Ti
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
       32768          4096   float    13.39    2.45    1.22  0e+00    11.85    2.77    1.38  0e+00
   134217728      16777216   float   3298.6   40.69   20.34  4e-07   3070.3   43.71   21.86  0e+00
"""
SLURM = """\
0: # Using devices
0: #  Rank  0 Group  0 Pid  1 on     g1 device  0 [0000:c1:00] AMD Instinct MI250X
1: #  Rank  1 Group  0 Pid  2 on     g1 device  1 [0000:c6:00] AMD Instinct MI250X
2: #  Rank  2 Group  0 Pid  3 on     g2 device  0 [0000:c1:00] AMD Instinct MI250X
3: #  Rank  3 Group  0 Pid  4 on     g2 device  1 [0000:c6:00] AMD Instinct MI250X
 0:        65536           512     float    none      -1    107.5    0.61    0.59      0    105.6    0.62    0.60      0
 0:      1048576          8192     float    none      -1   1456.6    0.72    0.70    N/A   1304.0    0.80    0.78    N/A
"""  # noqa: E501


B200 = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8388608 maxBytes 17179869184 step: 2(factor)
# Rank  0 Group  0 Pid 221599 device  0 [0000:8f:00] NVIDIA B200
  8388608  2097152  float  sum  -1  81.0  103.56  181.24  0  80.0  104.86  183.50  0
  17179869184  4294967296  float  sum  -1  36120  475.63  832.36  0  36100  475.90  832.82  0
"""
"""As a published one, whose lines of devices name no host."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writes(content: Any, name: str = "log.txt") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return writes


def test_a_log_of_today(write: Write) -> None:
    found = read_nccl_tests(write(H100))
    first, second = found.calls
    assert (first.kernel, first.dtype) == ("all_reduce", "fp32")
    assert first.seconds == pytest.approx(9306.7e-6)
    assert first.shape == {"message_bytes": 1073741824, "ranks": 2, "nodes": 1}
    assert (second.shape["message_bytes"], second.seconds) == (2147483648, 18535e-6)
    assert found.device is not None and found.device.name == "NVIDIA H100 PCIe"
    assert first.place.endswith("log.txt: line 9 (all_reduce)")


def test_a_log_of_2020_without_operation_and_root(write: Write) -> None:
    """The name of the file says which collective it was; ``error`` is a rest, not a count."""
    small, large = read_nccl_tests(write(TURING, "all_gather_perf.out")).calls
    assert (small.kernel, small.seconds) == ("all_gather", 13.39e-6)
    assert (large.shape["message_bytes"], large.seconds) == (134217728, 3298.6e-6)


def test_the_head_says_the_ranks_where_no_line_does(write: Write) -> None:
    """One process of nThread x nGpus ranks; busbw over algbw, 2 x 7 / 8, agrees."""
    for text in (B200, B200.replace("nThread 1 nGpus 8", "nThread 4 nGpus 2")):
        calls = read_nccl_tests(write(text)).calls
        assert [(call.shape["ranks"], call.shape["nodes"]) for call in calls] == [(8, 1), (8, 1)]


def test_a_log_that_was_pasted_without_its_hashes(write: Write) -> None:
    assert read_nccl_tests(write(H100.replace("#", " "), "all_reduce_perf.log")).calls[0].shape == {
        "message_bytes": 1073741824,
        "ranks": 2,
        "nodes": 1,
    }


def test_a_log_under_the_labels_of_slurm(write: Write) -> None:
    found = read_nccl_tests(write("srun all_gather_perf -b 64K\n" + SLURM))
    assert [call.seconds for call in found.calls] == [107.5e-6, 1456.6e-6]
    assert found.calls[0].shape == {"message_bytes": 65536, "ranks": 4, "nodes": 2}


def test_a_log_under_the_labels_of_mpirun(write: Write) -> None:
    path = write("".join(f"[1,0]<stdout>:{line}\n" for line in H100.splitlines()))
    assert is_nccl_tests(path)
    assert [call.shape["ranks"] for call in read_nccl_tests(path).calls] == [2, 2]


def test_several_tables_in_one_log_keep_their_ranks(write: Write) -> None:
    eight = DEVICES.replace("gpu1", "gpu7") + DEVICES.replace("gpu1", "gpu8").replace(
        "Rank  0", "Rank  2"
    ).replace("Rank  1", "Rank  3")
    second = (
        "# Collective test starting: sendrecv_perf\n"
        + eight
        + HEADER
        + (
            "   536870912     134217728     float     sum      -1   9306.7   57.69   57.69      0"
            "   9291.5   57.78   57.78      0\n"
        )
    )
    calls = read_nccl_tests(write(H100 + second)).calls
    assert [(call.kernel, call.shape["ranks"], call.shape["nodes"]) for call in calls] == [
        ("all_reduce", 2, 1),
        ("all_reduce", 2, 1),
        ("send_recv", 4, 2),
    ]


def test_a_split_run_has_the_ranks_of_a_group(write: Write) -> None:
    split = "\n".join(
        f"#  Rank {i:2d} Group {i % 2:2d} Pid 1 on host{i // 4} device {i % 4} [0x0{i}] NVIDIA H200"
        for i in range(8)
    )
    row = "  1048576  262144  float  sum  -1  100.0  10.49  15.73  0  100.0  10.49  15.73  0\n"
    (call,) = read_nccl_tests(write(f"{split}\n{row}", "all_reduce_perf.log")).calls
    assert (call.shape["ranks"], call.shape["nodes"]) == (4, 2)


def test_columns_of_every_iteration_and_a_timestamp(write: Write) -> None:
    """Releases of 2026 may add i_min i_max i_p99 i_cv% and the time of day."""
    side = "9306.7  115.37  115.37  0  9300.1  9400.2  9399.0  0.5"
    row = f"  1073741824  268435456  float  sum  -1  {side}  {side}  2026-11-21 10:00:00\n"
    (call,) = read_nccl_tests(write(DEVICES + row, "all_reduce_perf.log")).calls
    assert call.seconds == pytest.approx(9306.7e-6)
    plain = "9306.7  115.37  115.37  0"
    row = f"  1073741824  268435456  float  sum  -1  {plain}  {plain}  2026-11-21 10:00:00\n"
    (call,) = read_nccl_tests(write(DEVICES + row, "all_reduce_perf.log")).calls
    assert call.seconds == pytest.approx(9306.7e-6)


def side(time_us: float, rate: float, wrong: float | None = 0.0) -> dict[str, Any]:
    return {"time": time_us, "alg_bw": rate, "bus_bw": rate, "nwrong": wrong}


def nccl_json(**changed: Any) -> dict[str, Any]:
    device = {
        "group": 0,
        "pid": 1,
        "device": 0,
        "device_hex": "0x01",
        "device_info": "NVIDIA H100 80GB HBM3",
    }
    result = {
        "size": 1073741824,
        "count": 268435456,
        "type": "bfloat16",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": side(9306.7, 115.37, None),
        "in_place": side(9291.5, 115.56),
        "actual_iterations": 20,
        "experiment_name": "AllReduce",
    }
    return {
        "version": 2,
        "start_time": "2026-10-02 11:12:13",
        "args": ["./build/all_reduce_perf", "-b", "1G"],
        "env": [],
        "nccl_version": 22803,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "devices": [
                {"rank": 0, "hostname": "a", **device},
                {"rank": 1, "hostname": "b", **device},
            ],
        },
        "results": [result],
        "out_of_bounds": {"count": 0, "okay": "true"},
    } | changed


def test_json_of_nccl_tests(write: Write) -> None:
    found = read_nccl_tests(write(nccl_json(), "out.json"))
    (call,) = found.calls
    assert (call.kernel, call.dtype) == ("all_reduce", "bf16")
    assert call.seconds == pytest.approx(9306.7e-6)
    assert call.shape == {"message_bytes": 1073741824, "ranks": 2, "nodes": 2}
    assert found.date == "2026-10-02"
    only = nccl_json()
    only["results"][0]["out_of_place"] = None  # in-place runs write null
    assert read_nccl_tests(write(only, "out.json")).calls[0].seconds == 9291.5e-6


def rccl_record(size: int, time_us: float, in_place: int, **changed: Any) -> dict[str, Any]:
    rate = size / time_us / 1e3
    return {
        "numCycle": 0,
        "name": "AllGather",
        "nodes": 2,
        "ranks": 16,
        "ranksPerNode": 8,
        "gpusPerRank": 1,
        "size": size,
        "type": "half",
        "redop": "none",
        "inPlace": in_place,
        "time": time_us,
        "algBw": rate,
        "busBw": rate * 15 / 16,
        "wrong": "0",
    } | changed


def test_json_of_rccl_tests(write: Write) -> None:
    records = [rccl_record(2**20, 80.0, 0), rccl_record(2**20, 90.0, 1)]
    (call,) = read_nccl_tests(write(records, "rccl.json")).calls
    assert (call.kernel, call.seconds) == ("all_gather", 80e-6)
    assert call.shape == {"message_bytes": 2**20, "ranks": 16, "nodes": 2}
    (call,) = read_nccl_tests(write(records[1:], "rccl.json")).calls
    assert call.seconds == 90e-6  # nothing else was measured


@pytest.mark.parametrize(
    ("content", "is_log"),
    [
        (H100, True),
        (nccl_json(), True),
        ([rccl_record(8, 1.0, 0)], True),
        ({"schema": 1, "records": []}, False),
    ],
)
def test_the_kind_of_a_file_is_told(write: Write, content: Any, is_log: bool) -> None:
    assert is_nccl_tests(write(content)) == is_log


MILLISECONDS = H100.replace("9306.7", "9.3067")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (MILLISECONDS, "line 9: size over time is 1.154e+05 GB/s, but algbw says 115.37: is the"),
        (H100.replace("115.37      0", "115.37      7"), "line 9: #wrong: 7 values came out wrong"),
        (H100.replace("all_reduce_perf", "my_test"), "cannot tell which collective was measured"),
        (
            H100.replace("#  Rank", "#  Nobody").replace("nThread", "threads"),
            "no '# Rank ... on HOST device ...' lines",
        ),
        (
            H100.replace("nGpus 2", "nGpus 8"),
            "line 9: the list of devices above it names 2 ranks, but every process has 8",
        ),
        (  # 8 processes of one GPU: busbw is 1.75 times algbw
            B200.replace("nGpus 8", "nGpus 1"),
            "line 4: no '# Rank ... on HOST device ...' lines say who took part, and its bandwidths"
            " are not those of one process with 1",
        ),
        (B200.replace("all_reduce", "broadcast"), "are not those of one process with 8"),
        (DEVICES + HEADER, "no line of results of nccl-tests or rccl-tests"),
        ("{}", "it has no results"),
        (nccl_json(version=3), "version: must be 1 or 2, got 3"),
        (nccl_json(results=[{"size": 8}]), "results[0]: time: must be a positive number, got None"),
        ([rccl_record(8, -1.0, 0)], "[0]: time: must be a positive number, got -1.0"),
        (
            [rccl_record(8, 1.0, 0) | {"size": 10**400}],
            "[0]: size: must be a positive number, got 1",
        ),
        (H100.replace("1073741824  ", "9" * 400), "line 9: size: must be a positive number, got 9"),
        ([rccl_record(8, 1.0, 0, nodes=0.5)], "nodes: must be a whole number from 1 on, got 0.5"),
        (H100 + "#" * 100_000, "line 13: longer than 100000 characters"),
        ([rccl_record(8, 1.0, 0, name="Guess")], "[0]: name: unknown collective, got 'Guess'"),
    ],
)
def test_what_is_no_evidence_is_refused(write: Write, content: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_nccl_tests(write(content))
    assert message in str(caught.value), str(caught.value)


@pytest.mark.parametrize("log", [H100, TURING, SLURM, json.dumps(nccl_json())])
def test_a_log_cut_anywhere_is_read_or_refused(write: Write, log: str) -> None:
    for end in range(0, len(log), 37):
        try:
            found = read_nccl_tests(write(log[:end], "all_gather_perf.log"))
        except InputError:
            continue
        assert all(call.seconds > 0 for call in found.calls)


@pytest.mark.parametrize("value", [None, True, -1, "x", [], {}, [None], 1e400, [3], 10**400])
def test_json_with_a_damaged_field_is_read_or_refused(write: Write, value: Any) -> None:
    for field in nccl_json():
        try:
            read_nccl_tests(write(nccl_json(**{field: value}), "all_reduce_perf.json"))
        except InputError:
            continue
    for field in nccl_json()["results"][0]:
        damaged = nccl_json()
        damaged["results"][0][field] = value
        try:
            read_nccl_tests(write(damaged, "all_reduce_perf.json"))
        except InputError:
            continue
    for field in rccl_record(8, 1.0, 0):
        try:
            read_nccl_tests(write([rccl_record(8, 1.0, 0) | {field: value}], "x.json"))
        except InputError:
            continue
