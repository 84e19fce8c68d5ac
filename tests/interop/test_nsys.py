"""Exports of Nsight Systems: the same events as a torch profiler's trace give the same numbers."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.interop.traces.kineto import read_trace
from simulator.interop.traces.nsys import is_nsys, read_nsys
from simulator.scoring.trace import measure

# start and end in microseconds, name, device; two steps of 100 us
KERNELS = [
    (10, 40, "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", 0),
    (40, 60, "void at::native::vectorized_elementwise_kernel<4>", 0),
    (50, 80, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0),
    (110, 150, "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", 0),
    (150, 190, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0),
]
STEPS = [(0, 100, "step 7"), (100, 200, "step 8")]


def export(path: Path, kernels: list[tuple[int, int, str, int]]) -> Path:
    base = sqlite3.connect(path)
    base.executescript(
        "CREATE TABLE StringIds (id INTEGER, value TEXT);"
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);"
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100-SXM4-80GB');"
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME"
        " (start INTEGER, end INTEGER, correlationId INTEGER);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
        " correlationId INTEGER, demangledName INTEGER);"
    )
    for i, (start, end, name, device) in enumerate(kernels):
        base.execute("INSERT INTO StringIds VALUES (?, ?)", (i, name))
        row = (1000 * start, 1000 * end, device, i, i)
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?)", row)
        launch = (1000 * start - 5000, 1000 * start - 4000, i)
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?)", launch)
    for start, end, name in STEPS:
        row_ = (1000 * start, 1000 * end, name, None)
        base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)", row_)
    base.commit()
    base.close()
    return path


def kineto(path: Path) -> Path:
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "pid": 0,
         "tid": 7, "args": {"device": device, "correlation": i}}
        for i, (start, end, name, device) in enumerate(KERNELS)
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": start - 5, "dur": 1, "pid": 1,
         "tid": 1, "args": {"correlation": i}}
        for i, (start, _, _, _) in enumerate(KERNELS)
    ]  # fmt: skip
    events += [
        {"ph": "X", "cat": "user_annotation", "name": name.replace("step ", "ProfilerStep#"),
         "ts": start, "dur": end - start, "pid": 1, "tid": 1}
        for start, end, name in STEPS
    ]  # fmt: skip
    head = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    path.write_text(json.dumps({"deviceProperties": head, "traceEvents": events}))
    return path


def vars_of(found: object) -> dict[str, object]:
    """Plain numbers of a measured step."""
    names = getattr(found, "__dataclass_fields__", {})
    values = {name: getattr(found, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


def test_the_same_events_give_the_same_numbers(tmp_path: Path) -> None:
    database = export(tmp_path / "run.sqlite", KERNELS)
    assert is_nsys(database)
    ours, theirs = read_nsys(database), read_trace(kineto(tmp_path / "run.json"))
    assert ours.device == theirs.device == "NVIDIA A100-SXM4-80GB"
    one, two = vars_of(measure(ours)), vars_of(measure(theirs))
    assert one == two
    assert one["step_s"] == pytest.approx(100e-6)
    assert (len(ours.compute), len(ours.communication)) == (3, 2)


def test_of_several_devices_the_first_is_measured(tmp_path: Path) -> None:
    more = [*KERNELS, (10, 90, "other", 1)]
    found = read_nsys(export(tmp_path / "run.sqlite", more))
    assert len(found.compute) == 3
    assert any("device 0 of 2" in note for note in found.notes)


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
    with pytest.raises(InputError, match="no export of Nsight Systems"):
        read_nsys(path)
    base = sqlite3.connect(tmp_path / "y.sqlite")
    base.executescript("CREATE TABLE a (b); CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1;")
    base.close()
    with pytest.raises(InputError, match="no table CUPTI_ACTIVITY_KIND_KERNEL"):
        read_nsys(tmp_path / "y.sqlite")
    raw = export(tmp_path / "z.sqlite", KERNELS).read_bytes()
    for cut in range(100, len(raw), len(raw) // 40):
        damaged = tmp_path / f"cut{cut}.sqlite"
        damaged.write_bytes(raw[:cut] + bytes(200) + raw[cut + 200 :])
        try:
            measure(read_nsys(damaged))
        except InputError as error:
            assert str(damaged) in str(error)


REAL = Path(__file__).resolve().parents[1] / "data" / "nsys_h100_window.sql"


def test_a_real_export_agrees_with_sums_over_its_tables(tmp_path: Path) -> None:
    """Its statements hold the words "virtual" and "generated" in comments; nothing is computed."""
    path = tmp_path / "real.sqlite"
    base = sqlite3.connect(path)
    base.executescript(REAL.read_text(encoding="utf-8"))
    base.commit()

    def milliseconds(query: str) -> float:
        (total,) = base.execute(f"SELECT SUM(end - start) / 1e6 FROM {query}").fetchone()
        return float(total)

    kernels = (
        "CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
        " WHERE deviceId = 0 AND value "
    )
    found = measure(read_nsys(path))
    classes = {name: 1e3 * seconds for name, seconds in found.compute_s.items()}
    assert classes["gemm"] == pytest.approx(milliseconds(f"{kernels} LIKE 'nvjet%'"), rel=1e-9)
    assert classes["attention"] == pytest.approx(milliseconds(f"{kernels} LIKE '%flash%'"))
    copies = "CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 8"
    sets = "CUPTI_ACTIVITY_KIND_MEMSET"
    others = f"{kernels} NOT LIKE 'nvjet%' AND value NOT LIKE '%flash%' AND value NOT LIKE 'nccl%'"
    moved = milliseconds(copies) + milliseconds(sets) + milliseconds(others)
    assert classes["memory_bound"] == pytest.approx(moved, rel=1e-2)  # some run side by side
    called = {
        one.collective.kind: 1e3 * (one.exposed_s + one.hidden_s) for one in found.collectives
    }
    assert called == pytest.approx(
        {
            "send_recv": milliseconds(f"{kernels} LIKE 'ncclDevKernel_SendRecv%'"),
            "host_copy": milliseconds("CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = 1"),
        }
    )
    base.close()


def test_computed_columns_and_virtual_tables_are_refused(tmp_path: Path) -> None:
    needed = "start INTEGER, end INTEGER, correlationId INTEGER, demangledName INTEGER"
    computed = f"({needed}, deviceId INTEGER GENERATED ALWAYS AS (start + end))"
    for name, statement in (
        ("a", computed),
        ("b", f"({needed}, deviceId INTEGER AS (end) STORED)"),
    ):
        path = tmp_path / f"{name}.sqlite"
        base = sqlite3.connect(path)
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL {statement}")
        base.close()
        with pytest.raises(InputError, match="computed columns are not read"):
            read_nsys(path)
