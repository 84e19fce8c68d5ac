"""Traces that torch.profiler makes here, against what torch and the program itself say of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from simulator.errors import InputError
from simulator.interop.traces.kineto import read_trace
from simulator.scoring.trace import StepTime, measure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import profiled_training

sys.path.remove(str(HERE))

STEPS = profiled_training.STEPS
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One process: its trace and the truth."""
    path = tmp_path_factory.mktemp("alone") / "trace.json"
    return path, profiled_training.train(path)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict[str, Any]]]:
    """Two processes with DistributedDataParallel over gloo: a trace and the truth of each."""
    folder = tmp_path_factory.mktemp("together")
    program = str(HERE / "profiled_training.py")
    done = subprocess.run(
        [sys.executable, program, str(folder), "--ranks", "2"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return [
        (folder / f"rank{rank}.json.gz", json.loads((folder / f"truth{rank}.json").read_text()))
        for rank in range(2)
    ]


def parts(step: StepTime) -> float:
    return sum(step.compute_s.values()) + step.exposed_s + step.launch_s + step.idle_s


def within_its_clock(step: StepTime, truth: dict[str, Any]) -> bool:
    """A step lasts at least as long as the work in it, and they last no longer than the run."""
    return bool(truth["inside_s"] <= STEPS * step.step_s <= truth["outside_s"] + 1e-6)


def test_one_process(alone: tuple[Path, dict[str, Any]]) -> None:
    path, truth = alone
    step = measure(read_trace(path))
    assert (step.steps, step.counted, step.notes) == (STEPS, STEPS, ())
    assert within_its_clock(step, truth)
    assert parts(step) == pytest.approx(step.step_s, rel=1e-9)
    assert step.collectives == () and step.launch_s == 0.0
    # Times of events are written to the nanosecond; a step has hundreds of them.
    said = truth["self_s"]
    products = sum(said.get(name, 0.0) for name in PRODUCTS)
    assert STEPS * step.compute_s["gemm"] == pytest.approx(products, rel=1e-3)
    attention = sum(s for name, s in said.items() if name.startswith("aten::_scaled_dot_product"))
    assert attention > 0.0
    assert STEPS * step.compute_s["attention"] == pytest.approx(attention, rel=1e-3)
    assert STEPS * sum(step.compute_s.values()) == pytest.approx(sum(said.values()), rel=1e-3)
    assert step.compute_s["optimizer"] > 0.0
    assert step.trace.allocated_bytes and step.trace.reserved_bytes is None


def test_two_processes(together: list[tuple[Path, dict[str, Any]]]) -> None:
    for rank, (path, truth) in enumerate(together):
        trace = read_trace(path)
        assert (trace.rank, trace.world, trace.device) == (rank, 2, "")
        step = measure(trace)
        assert step.steps == STEPS
        assert within_its_clock(step, truth)
        assert parts(step) == pytest.approx(step.step_s, rel=1e-9)
        reductions = [one for one in step.collectives if one.collective.kind == "all_reduce"]
        assert {one.collective.size for one in reductions} == {2}
        assert sum(one.calls for one in reductions) >= 2  # more than one bucket
        sent = sum(one.calls * (one.bytes_ or 0.0) for one in reductions)
        assert sent == pytest.approx(4.0 * truth["parameters"])  # fp32 gradients, each once a step
        products = sum(truth["self_s"].get(name, 0.0) for name in PRODUCTS)
        assert STEPS * step.compute_s["gemm"] == pytest.approx(products, rel=1e-3)
        assert step.exposed_s > 0.0


def test_a_trace_that_a_killed_job_left(alone: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = alone
    raw = path.read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(raw[: int(0.7 * len(raw))])
    trace, whole = read_trace(cut), read_trace(path)
    assert 0 < len(trace.compute) < len(whole.compute)
    assert trace.notes == ("the file is cut off: events behind that are missing from every part",)


def test_an_empty_trace(tmp_path: Path) -> None:
    """What is exported after a schedule has begun its next cycle: a trace without events."""
    path = tmp_path / "empty.json"
    plan = schedule(wait=0, warmup=1, active=1)
    with (
        pytest.warns(UserWarning, match="clears events at the end of each cycle"),
        profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler,
    ):
        for _ in range(2):
            torch.ones(8) @ torch.ones(8)
            profiler.step()
    profiler.export_chrome_trace(str(path))
    with pytest.raises(InputError, match="no kernel and no operator in it"):
        read_trace(path)
