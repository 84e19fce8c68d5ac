"""The parts that the measuring programs share: timing, data, sensors, the document."""

import math
import os
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
KERNELS = str(Path(__file__).resolve().parents[2] / "kernels")
sys.path.insert(0, KERNELS)
import _device  # noqa: E402
import _document  # noqa: E402
import _timing  # noqa: E402
from _timing import torch  # noqa: E402

sys.path.remove(KERNELS)

CPU = _timing.Device("cpu")
Case = namedtuple("Case", "kernel dtype number")


class Clock:
    """A clock that only moves when it is told to: how long a call takes is then exact."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_ns / 1e9)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_ns / 1e9)

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


# --- timing -----------------------------------------------------------------------------------


def test_median_error_by_hand() -> None:
    # Deviations from 10 are 1 0 1 2 2: median 1, so sigma 1.4826; times 1.2533 / sqrt(5) / 10.
    error = _timing.median_error([9.0, 10.0, 11.0, 12.0, 8.0])
    assert error == pytest.approx(1.2533 * 1.4826 / math.sqrt(5) / 10)


def test_a_call_is_timed(clock: Clock) -> None:
    times = _timing.time_call(lambda: clock.pass_s(2e-3), CPU, budget_s=0.2)
    assert len(times) >= 3
    assert times == pytest.approx([2e-3] * len(times))


def test_a_real_call_takes_its_time() -> None:
    times = _timing.time_call(lambda: time.sleep(2e-3), CPU, budget_s=0.2)
    assert len(times) >= 3
    assert min(times) >= 2e-3


def test_a_call_too_short_for_the_clock_is_divided(clock: Clock) -> None:
    """50 calls of 1 us to a reading of at least 50 us."""
    made = []

    def call() -> None:
        made.append(clock.pass_s(1e-6))

    times = _timing.time_call(call, CPU, budget_s=0.05)
    assert times == pytest.approx([1e-6] * len(times))
    assert len(made) >= 50 * len(times)


def test_the_budget_bounds_the_repeats(clock: Clock) -> None:
    begin_ns = clock.now_ns
    times = _timing.time_call(lambda: clock.pass_s(0.03), CPU, budget_s=0.05)
    assert len(times) <= 3
    assert clock.now_ns - begin_ns < 0.2e9  # first calls among them


def test_a_call_far_over_budget_is_made_once(clock: Clock) -> None:
    calls = []
    times = _timing.time_call(lambda: calls.append(clock.pass_s(0.03)), CPU, budget_s=0.002)
    assert (len(times), len(calls)) == (1, 1)


# --- data -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "fp8"])
def test_values_are_random_and_no_zeros(name: str) -> None:
    found = _timing.values((1200, 1000), _timing.DTYPES[name], CPU).float()
    assert found.shape == (1200, 1000)
    assert (found == 0).float().mean() < 0.02  # fp8 rounds a few to zero
    assert found.std() > 0.9
    assert found.isfinite().all()


def test_fp8_uses_its_range_and_can_be_undone() -> None:
    given = torch.tensor([[1.0, -2.0, 0.5]])
    cast, scale = _timing.to_fp8(given)
    assert cast.float().abs().max() == _timing.FP8_MAX
    assert (cast.float() * scale).tolist() == given.tolist()


def test_buffers_rotate_past_the_cache() -> None:
    device = SimpleNamespace(cache_bytes=1000, free_bytes=lambda: 10**9)
    take = _timing.rotate(iter(range(100)).__next__, 300, device)
    assert take.cold
    assert [take() for _ in range(8)] == [1, 2, 3, 4, 5, 6, 0, 1]


@pytest.mark.parametrize(("each", "free"), [(1, 10**9), (300, 1200)])
def test_too_few_buffers_are_said_not_to_be_cold(each: int, free: int) -> None:
    device = SimpleNamespace(cache_bytes=1000, free_bytes=lambda: free)
    assert not _timing.rotate(lambda: None, each, device).cold


def test_a_cut_run_has_something_of_each_kind() -> None:
    cases = [Case("a", "bf16", at) for at in range(20)] + [Case("b", "bf16", 0)]
    order = _timing.spread(cases, seed=0)
    assert sorted(order) == sorted(cases)
    assert {case.kernel for case in order[:2]} == {"a", "b"}
    assert order == _timing.spread(cases, seed=0)


# --- sensors ----------------------------------------------------------------------------------

SENSORS = {"clocks_mhz": {"sm": 1755, "memory": 2619}, "power_watt": 312.5, "temperature_c": 41}


def test_no_gpu_no_sensors() -> None:
    assert _device.Sensors(None).read() == {}


def test_sensors_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        "*driver_version*GPU-1*) echo 575.57.08 ;;\n"
        "*clocks.sm*GPU-1*) echo '1755, 2619, 312.5, 41, 1980, 700.00' ;;\nesac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sensors = _device.Sensors("GPU-1")
    assert sensors.last == SENSORS
    assert sensors.limits == {"clock_max_sm_mhz": 1980, "power_limit_watt": 700}
    assert sensors.driver == "575.57.08"


def test_sensors_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlSystemGetDriverVersion=lambda: b"575.57.08",
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1755, 2: 2619}[kind],
        nvmlDeviceGetTemperature=lambda handle, kind: 41,
        nvmlDeviceGetPowerUsage=lambda handle: 312_500,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    sensors = _device.Sensors("GPU-1")
    assert sensors.read() == SENSORS
    assert sensors.limits == {"clock_max_sm_mhz": 1980, "power_limit_watt": 700}
    assert sensors.driver == "575.57.08"


def test_sensors_that_answer_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sensors = _device.Sensors("GPU-1")
    assert (sensors.read(), sensors.driver) == ({}, None)


# --- the run ----------------------------------------------------------------------------------


@pytest.fixture
def a_run(tmp_path: Path) -> _timing.Run:
    arguments = _timing.parser("A program.", minutes=1.0).parse_args(
        ["--device", "cpu", "--out", str(tmp_path / "out.json")]
    )
    return _timing.Run(arguments, "program.py")


def test_an_error_is_a_skip_with_its_reason(a_run: _timing.Run) -> None:
    with a_run.guard("gemm", {"m": 1}, "bf16"):
        raise RuntimeError("no such kernel\nand much more")
    with a_run.guard("gemm", {"m": 2}, "bf16"):
        torch.empty(10**15)
    first, second = a_run.document["skipped"]
    assert first["reason"] == "RuntimeError: no such kernel"
    assert second["reason"].startswith("out of memory: ")


def test_a_device_that_answers_no_more_ends_the_run(
    a_run: _timing.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(a_run.device, "answers", lambda: False)
    with a_run:
        for number in a_run.each([1, 2]):
            with a_run.guard("gemm", {"m": number}, "bf16"):
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
    assert a_run.exit_code == 1
    assert a_run.document["complete"] is False
    assert a_run.document["error"].startswith("RuntimeError: CUDA error")
    assert len(a_run.document["skipped"]) == 1


def recorded(run: _timing.Run, number: int) -> None:
    run.record("a", "bf16", {"number": number}, "forward", [1.0])


def test_a_run_ends_when_its_minutes_are_over(a_run: _timing.Run, clock: Clock) -> None:
    """A minute at 25 s for a case: the third one begins before it is over."""
    a_run.budget = _timing.Budget(1.0)
    begun = []
    for number in a_run.each([1, 2, 3, 4, 5]):
        begun.append(number)
        clock.pass_s(25.0)
        recorded(a_run, number)
    assert begun == [1, 2, 3]


def test_a_machine_too_slow_for_its_minutes_records_one_case(a_run: _timing.Run) -> None:
    a_run.budget.end = 0.0
    begun = []
    for number in a_run.each([1, 2, 3]):
        begun.append(number)
        if number == 1:
            a_run.skip("a", {"number": number}, "bf16", "memory: too large")
        else:
            recorded(a_run, number)
    assert begun == [1, 2]
    assert a_run.document["skipped"][-1]["reason"] == "time: 1 min spent before 1 more cases"


def test_what_the_time_did_not_reach_is_said(a_run: _timing.Run) -> None:
    recorded(a_run, 0)
    a_run.budget.end = 0.0
    cases = [Case("a", "bf16", 1), Case("a", "bf16", 2), Case("b", "fp8", 1)]
    assert list(a_run.each(cases)) == []
    assert [(one["kernel"], one["dtype"], one["reason"]) for one in a_run.document["skipped"]] == [
        ("a", "bf16", "time: 1 min spent before 2 more cases"),
        ("b", "fp8", "time: 1 min spent before 1 more cases"),
    ]


def test_what_does_not_fit_is_said(a_run: _timing.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a_run.device, "free_bytes", lambda: 10e9)
    assert a_run.fits("copy", {}, "bf16", 8e9)
    assert not a_run.fits("copy", {}, "bf16", 12e9)
    assert a_run.document["skipped"][0]["reason"] == "memory: needs 12.0 GB, 10.0 GB free"


# --- the document -------------------------------------------------------------------------------


def test_a_document_has_one_record_on_a_line() -> None:
    text = _document.text_of({"schema": 1, "records": [{"a": 1}, {"a": 2}], "skipped": []})
    assert text == (
        '{\n "schema": 1,\n "records": [\n  {"a": 1},\n  {"a": 2}\n ],\n "skipped": []\n}\n'
    )


def test_a_document_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    _document.write_json({"schema": 1}, path)
    before = path.read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        _document.write_json({"schema": math.nan}, path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
