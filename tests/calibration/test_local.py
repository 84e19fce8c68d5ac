"""Profiles of the machine at hand: fitted on a made-up document whose figures are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.calibration.local_profiles import NAME, LocalProfiles, _limits, local_profiles
from simulator.calibration.measured_steps import CAUSES, local_steps, scenario_of
from simulator.errors import InputError
from simulator.files import read_profile
from simulator.hardware.accelerator import Accelerator
from simulator.measured.measurements import Measurements, read_measurements
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from simulator.software.profile import load_software

FLOP_PER_S, BYTES_PER_S = 1e11, 1e10
STARTS = {"all_reduce": 3e-4, "all_gather": 2e-4, "reduce_scatter": 4e-4, "send_recv": 1e-4}
RATES = {"all_reduce": 1e9, "all_gather": 6e8, "reduce_scatter": 5e8, "send_recv": 2.5e9}
MOVED = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "send_recv": 1.0}
"""Bytes over a link of a ring of two for every byte of the message."""
LAYERS, HIDDEN, TOKENS, BATCH = 8, 256, 256, 4
STEP = {
    "layers": 0, "model_layers": LAYERS, "hidden": HIDDEN, "heads": 4, "ffn": 1024, "tied": False,
    "vocabulary": 2048, "longest": 256, "sequence": TOKENS, "micro_batch": BATCH, "accumulate": 1,
    "dp": 1, "tp": 1, "pp": 1,
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "local": {}, "ddp": {"dp": 2}, "fsdp2": {"dp": 2}, "tp": {"tp": 2},
    "pp": {"pp": 2, "micro_batch": 1, "accumulate": 4},
}  # fmt: skip


def call(kernel: str, seconds: float, direction: str = "forward", **more: Any) -> dict[str, Any]:
    shape = more.pop("shape", {})
    return {
        "kernel": kernel,
        "dtype": "fp32",
        "shape": shape,
        "direction": direction,
        "times_s": [seconds],
        "cold": False,
        "in_step": True,
        **more,
    }


def kernels() -> list[dict[str, Any]]:
    """Products at one rate, streams at another, nothing else."""
    found = []
    for m in (256, 512, 1024):
        for n in (256, 512, 1024, 2048):
            for k in (128, 256, 1024):
                seconds = 2.0 * m * n * k / FLOP_PER_S
                for way in ("forward", "dgrad", "wgrad"):
                    found.append(call("gemm", seconds, way, shape={"m": m, "n": n, "k": k}))
    for heads in (2, 4):
        for batch in (1, 4):
            for length in (128, 256):
                shape = {
                    "batch": batch,
                    "heads_q": heads,
                    "heads_kv": heads,
                    "seq_q": length,
                    "seq_kv": length,
                    "head_dim": 64,
                    "head_dim_v": 64,
                    "causal": True,
                }
                seconds = 4.0 * batch * heads * length**2 * 64 / 2e10
                for way, factor in (("forward", 1.0), ("backward", 2.5)):
                    found.append(
                        call(
                            "attention",
                            factor * seconds,
                            way,
                            shape=shape,
                            library="torch.sdpa-flash",
                        )
                    )
    streams = ("layer_norm", "gelu", "residual_add", "cross_entropy", "copy", "adamw")
    for name in streams:
        for moved in (1e6, 2e6, 4e6, 8e6, 16e6, 32e6):
            shape = {"rows": 1, "columns": int(moved)}
            found.append(call(name, moved / BYTES_PER_S, bytes=moved, shape=shape, library="fused"))
    return found


def communication() -> list[dict[str, Any]]:
    found = []
    for name, start in STARTS.items():
        for size in (2**16, 2**18, 2**20, 2**22, 2**24):
            seconds = start + MOVED[name] * size / RATES[name]
            shape = {"message_bytes": size, "ranks": 2, "nodes": 1}
            found.append(call(name, seconds, shape=shape))
    for way, seconds in (("product", 0.4), ("collective", 0.1), ("both", 0.43)):
        found.append(call("overlap", seconds, way, shape={"ranks": 2}))
    return found


def host() -> list[dict[str, Any]]:
    """One block of four costs 1 ms forward plain, 4 ms cut, 2 ms gathered; backward twice that."""
    found = []
    for wrapping, block, ends in (
        ("plain", 1e-3, 1e-3),
        ("tensor", 4e-3, 7e-3),
        ("sharded", 2e-3, 3e-3),
    ):
        for blocks in (1, 4):
            for way, factor in (("forward", 1.0), ("backward", 2.0), ("step", 0.5)):
                seconds = factor * (ends + blocks * block)
                found.append(
                    call(
                        "host",
                        seconds,
                        way,
                        shape={"blocks": blocks},
                        wrapping=wrapping,
                        operators=40,
                    )
                )
    for wrapping, seconds in (("plain", 1e-4), ("tensor", 5e-4)):
        found.append(
            call("host", seconds, "reduction", shape={"blocks": 0}, wrapping=wrapping, operators=40)
        )
    return found


def steps() -> list[dict[str, Any]]:
    operators = [
        {"name": "aten::mm", "calls": 9, "host_s": 0.3},
        {"name": "aten::gelu", "calls": 9, "host_s": 0.1},
        {"name": "c10d::allreduce_", "calls": 9, "host_s": 0.2},
    ]
    return [
        call(
            "train_step",
            1.0,
            "step",
            shape={**STEP, **changed},
            mode=mode,
            model="gpt-mini",
            sharding="zero3" if mode == "fsdp2" else "ddp",
            operators=operators,
            profiled_s=0.8,
            cpu_times_s=[0.75],
            foreign_cores=[0.02],
        )
        for mode, changed in MODES.items()
    ]


def written(folder: Path, records: list[dict[str, Any]]) -> Measurements:
    device = {"kind": "cpu", "name": "a made-up CPU", "memory_bytes": 16e9}
    document = {
        "schema": 1,
        "started": "2026-11-22T03:00:00+00:00",
        "device": device,
        "software": {"torch": "2.13"},
        "records": records,
    }
    path = folder / "measurements.json"
    path.write_text(json.dumps(document))
    return read_measurements(path)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    records = [*kernels(), *communication(), *host(), *steps()]
    return written(tmp_path_factory.mktemp("document"), records)


@pytest.fixture(scope="module")
def found(document: Measurements) -> LocalProfiles:
    return local_profiles(document)


@pytest.fixture(scope="module")
def folder(found: LocalProfiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profiles, written as a user's own."""
    profiles = tmp_path_factory.mktemp("profiles")
    for name, text in found.texts.items():
        path = profiles / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return profiles


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORESHARD_PROFILES", str(folder))
    return folder


def test_starts_and_rates_come_back(found: LocalProfiles) -> None:
    for name, (start, rate, error) in found.collectives.items():
        assert start == pytest.approx(STARTS[name], rel=0.02), name
        assert rate == pytest.approx(RATES[name], rel=0.02), name
        assert error < 0.01


def test_peaks_are_those_of_the_fastest_calls(tmp_path: Path) -> None:
    """A product at half the rate and a stream at a third say nothing: 2 % above the fastest."""
    shape = {"m": 256, "n": 256, "k": 256}
    slow = [
        call("gemm", 2.0 * 256**3 / (0.5 * FLOP_PER_S), shape=shape),
        call("copy", 3e6 / BYTES_PER_S, bytes=1e6, shape={"rows": 1, "columns": 10**6}),
    ]
    limits = _limits(written(tmp_path, [*kernels(), *slow, *communication()]))
    assert limits["flop_per_s"] == pytest.approx(1.02 * FLOP_PER_S)
    assert limits["bytes_per_s"] == pytest.approx(1.02 * BYTES_PER_S)
    assert limits["memory_bytes"] == 8e9


def test_the_work_of_the_host_comes_back(found: LocalProfiles) -> None:
    assert found.core_share == pytest.approx(0.3)  # 30 of 100 ms
    assert dict(found.host) == pytest.approx(
        {
            "seconds_per_kernel": 3e-3 / (3 * 40),
            "split_reduction_s": 4e-4,
            "split_block_forward_s": 3e-3,
            "split_block_backward_s": 6e-3,
            "split_ends_forward_s": 6e-3,
            "split_ends_backward_s": 12e-3,
            "gathered_block_forward_s": 1e-3,
            "gathered_block_backward_s": 2e-3,
            "split_block_step_s": 1.5e-3,
            "gathered_block_step_s": 0.5e-3,
        }
    )


def test_profiles_state_what_was_measured(installed: Path) -> None:
    software = load_software(NAME)
    assert software.host.distributed.split_block_forward_s.grade == "measured"
    assert software.host.distributed.split_block_forward_s.date == "2026-11-22"
    path = installed / "accelerators" / f"{NAME}.toml"
    core = read_profile(Accelerator, path, kind="accelerators")
    assert core.matrix_flop_per_s["fp32"] == pytest.approx(1.02 * FLOP_PER_S, rel=0.01)
    assert core.memory.capacity_bytes == 8e9  # half of the machine for each of two processes
    assert core.gemm["cublas"]["fp32"].peak_fraction.grade == "fitted"


def test_a_step_of_known_parts(installed: Path, document: Measurements) -> None:
    """Products at 100 GFLOP/s: six FLOPs for every weight of the linears and every token."""
    weights = LAYERS * 12 * HIDDEN**2 + 2048 * HIDDEN
    local = next(step for step in local_steps(document) if step.mode == "local")
    expected = 6.0 * weights * TOKENS * BATCH / FLOP_PER_S
    assert local.predicted["products"] == pytest.approx(expected, rel=0.05)
    parameters = weights + 2048 * HIDDEN + 256 * HIDDEN + LAYERS * 13 * HIDDEN + 2 * HIDDEN
    assert local.predicted["optimizer"] == pytest.approx(28 * parameters / BYTES_PER_S, rel=0.05)


def test_a_collective_of_known_parts(installed: Path, document: Measurements) -> None:
    """Two ranks cut every linear: 2 reductions forward and 4 backward for a block, 1 MiB each."""
    cut = next(step for step in local_steps(document) if step.mode == "tp")
    one = STARTS["all_reduce"] + 2**20 / RATES["all_reduce"]
    assert cut.predicted["communication, waiting"] == pytest.approx(
        (LAYERS * 6 + 2) * one, rel=0.03
    )
    assert cut.predicted["host"] > LAYERS * 9e-3 + 18e-3


def test_causes_add_up(installed: Path, document: Measurements) -> None:
    for step in local_steps(document):
        assert set(step.predicted) == set(step.measured) == set(CAUSES)
        assert sum(step.predicted.values()) == pytest.approx(step.predicted_s, rel=1e-9)
        assert sum(step.measured.values()) == pytest.approx(1.0, rel=1e-9)
        # at work for 0.75 s, of the profiled step 0.3 products, 0.1 gelu, 0.2 others, 0.2 waiting
        assert step.measured["communication, waiting"] == pytest.approx(0.25)
        assert step.measured["products"] == pytest.approx(0.75 * 0.3 / 0.6)
        assert step.measured["host"] == pytest.approx(0.75 * 0.2 / 0.6)


def test_a_prediction_is_the_planners(installed: Path, document: Measurements) -> None:
    calls = [one for one in document.calls if one.kernel == "train_step"]
    for one, step in zip(calls, local_steps(document), strict=True):
        scenario = make_scenario(scenario_of(one))
        assert step.predicted_s == predict(scenario).step_time_s


def test_a_document_without_parts_is_refused(document: Measurements) -> None:
    few = replace(
        document, calls=tuple(c for c in document.calls if c.kernel not in ("host", "gemm"))
    )
    with pytest.raises(InputError, match="records: no gemm, host; is this a document of kernels"):
        local_profiles(few)


def test_steps_enter_no_fit(document: Measurements, found: LocalProfiles) -> None:
    slow = [replace(c, seconds=9.0) if c.kernel == "train_step" else c for c in document.calls]
    assert local_profiles(replace(document, calls=tuple(slow))).texts == found.texts
