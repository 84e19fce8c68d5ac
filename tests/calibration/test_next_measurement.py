"""The next measurement worth making: normal errors by hand, a device that is slower."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from simulator.api import predict
from simulator.cli.main import app
from simulator.cost.uncertainty import SHARED, Belief, load_step_errors
from simulator.errors import InputError
from simulator.hardware.cluster import load_accelerator
from simulator.measured.measurements import read_measurements
from simulator.measured.replay import Run
from simulator.questions.calibrate.next_measurement import (
    Measurable,
    MeasurementPlan,
    _observed,
    plan_measurements,
    programs,
)
from simulator.scoring.anchor import Anchor, anchored
from simulator.units import P90
from tests.calibration.conftest import head, record
from tests.flat_kernels import gemm_rates, gemm_s

RUNNER = CliRunner()
RUN: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 64, "tp": 2}


def planned(*documents: Any, **more: Any) -> MeasurementPlan:
    return plan_measurements(predict(**{**RUN, **more}), documents)


def of(plan: MeasurementPlan, program: str) -> Measurable:
    (measurable,) = [m for m in plan.measurements if m.program == program]
    return measurable


def test_two_errors_by_hand() -> None:
    """Errors of 0.1 and 0.2 with shares 1 and 0.5; the second is read with an error of 0.2.

    Its variance halves: 0.01 + 0.25 x 0.04 = 0.02 becomes 0.01 + 0.25 x 0.02 = 0.015; the
    reading 0.3 moves it by half.
    """
    known = Belief(
        mean=np.zeros(2), covariance=np.diag([0.01, 0.04]), kernels=0.0, layout=0.0, run=0.0
    )
    heard = np.array([[0.0, 1.0]])
    after = _observed(known, heard, np.array([0.04]), np.array([0.3]))
    assert np.diag(after.covariance) == pytest.approx([0.01, 0.02])
    assert after.mean == pytest.approx([0.0, 0.15])
    share = np.array([1.0, 0.5])
    assert share @ after.covariance @ share == pytest.approx(0.015)


def test_the_job_itself_narrows_as_a_run_that_anchors() -> None:
    """`predict --anchored-by` of the same run that takes just as predicted leaves as much."""
    prediction = predict(**RUN)
    scenario = prediction.scenario
    run = Run(
        workload=scenario.workload,
        cluster=scenario.cluster,
        software=scenario.software,
        layout=prediction.estimate.layouts,
    )
    step_s = prediction.step_time_s
    same = Anchor(where="x", run=run, estimate=prediction.estimate, measured_s=step_s)
    narrowed, _ = anchored(prediction, [same])
    job = of(plan_measurements(prediction), "job")
    low, high = narrowed.interval_s
    assert math.log(job.p90_s / job.p10_s) == pytest.approx(math.log(high / low), rel=0.03)


def test_what_is_worth_most_is_first_and_nothing_widens() -> None:
    plan = planned()
    gains = [m.narrower for m in plan.measurements]
    assert gains == sorted(gains, reverse=True) and min(gains) >= 0.0
    assert plan.measurements[0].program == "job"
    alone = [m.narrower for m in plan.measurements if m.program not in ("job", "train_step")]
    assert (
        max(alone) <= plan.kernels_together <= 1.02 * sum(alone)
    )  # variances add up, their roots nearly


def test_a_program_takes_away_what_it_hears_of_its_share() -> None:
    """Of a variance v read with noise n stays v n / (v + n), times the square of its share."""
    before = planned()
    program = programs()["gemm"]
    plan = planned()
    spread = math.log(before.before_s[1] / before.before_s[0]) / 2.0 / P90
    after = math.log(of(plan, "gemm").p90_s / of(plan, "gemm").p10_s) / 2.0 / P90
    estimate = before.prediction.estimate
    idle_s = sum(float(estimate.terms_s[n][0]) for n in ("bubble_warmup", "bubble_drain"))
    bears_s = sum(float(estimate.terms_s[n][0]) for n in ("gemm", "recompute", "stragglers"))
    share = bears_s / (before.prediction.step_time_s - idle_s)
    errors = load_step_errors()
    deviation = float(errors.tail) * float(errors.compute)
    left = program.left**2
    training = before.prediction.scenario.cluster.accelerator.gemm["cublas"]["bf16"]
    left += (training.training_fraction.spread or 0.0) ** 2
    heard = deviation**4 / (deviation**2 + left)  # what of the variance is heard
    assert after**2 == pytest.approx(spread**2 - share**2 * heard, rel=1e-6)


def slower(factor: float, tmp_path: Path) -> Any:
    """Products of the H100 as the profile has them, times a factor."""
    part = load_accelerator("h100-sxm")
    table = part.gemm["cublas"]["bf16"]
    figures = {f.name: float(getattr(table, f.name) or 0.0) for f in dataclasses.fields(table)}
    draw = np.random.default_rng(3)
    records = []
    for at in range(120):
        m, n, k = np.round(2.0 ** draw.uniform(10, 14, 3))
        seconds = float(
            gemm_s(m=m, n=n, k=k, result_bytes=2.0, sustained=False,
                   **gemm_rates(part, "bf16"), **figures)
        )  # fmt: skip
        direction = ("forward", "dgrad", "wgrad")[at % 3]
        shape = {"m": m, "n": n, "k": k}
        records.append(
            record("gemm", shape, factor * seconds, direction=direction, library="torch.mm")
        )
    path = tmp_path / "gemm.json"
    path.write_text(json.dumps({**head(part), "records": records}))
    return read_measurements(path)


def test_measured_products_move_and_narrow_the_answer(tmp_path: Path) -> None:
    document = slower(1.1, tmp_path)
    plan, before = planned(document), planned()
    assert plan.measured is not None
    (said,) = plan.measured["errors"].values()
    assert said["factor"] == pytest.approx(1.1, rel=0.02)
    assert plan.measured["step_time_s"] > before.prediction.step_time_s
    width = math.log(plan.before_s[1] / plan.before_s[0])
    assert width < math.log(before.before_s[1] / before.before_s[0])
    assert of(plan, "gemm").narrower < of(before, "gemm").narrower


def test_a_measured_step_of_a_rank_narrows_as_it_was_said_to(tmp_path: Path) -> None:
    """8B on 16 ranks in zero3: 6 x 8.03e9 x 8,192 at 400 TFLOP/s are 0.99 s, and an update."""
    run = {"gpus": 16, "tp": 1, "software": "torchtitan-eager", "sharding": "zero3"}
    before = planned(**run)
    shape = {"sequence": 8192, "micro_batch": 1, "tp": 1, "accumulate": 1, "recompute": "none"}
    path = tmp_path / "train_step.json"
    for model, seconds in (("llama-3.1-8b", 1.1), ("llama-3.2-1b", 1.1)):
        step = record("train_step", {**shape, "model": model}, seconds)
        path.write_text(json.dumps({**head(load_accelerator("h100-sxm")), "records": [step]}))
        if model == "llama-3.2-1b":
            with pytest.raises(InputError, match=r"model llama-3\.1-8b.*got 'llama-3\.2-1b'"):
                planned(read_measurements(path), **run)
            continue
        after = planned(read_measurements(path), **run)
        said = of(before, "train_step")
        width, promised = after.before_s[1] / after.before_s[0], said.p90_s / said.p10_s
        assert math.log(width) == pytest.approx(math.log(promised))
        assert after.measured is not None
        (heard,) = after.measured["errors"].values()
        assert 0.7 < heard["factor"] < 1.4


def test_experts_and_cpus_have_a_plan_too() -> None:
    plan = planned(model="mixtral-8x7b", tp=1, ep=8)
    assert plan.measurements and {m.program for m in plan.measurements} <= set(programs())
    assert len(SHARED) == 10


def test_screen_document_and_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nname = "llama-3.1-8b"\n[training]\nglobal_batch = 64\nsequence_length = 8192\n'
        '[cluster]\nname = "dgx-h100"\ngpus = 8\n[layout]\ntp = 2\n'
    )
    result = RUNNER.invoke(app, ["measure", "--plan", str(path)])
    assert result.exit_code == 0 and "P10 to P90 then" in result.stdout, result.output
    result = RUNNER.invoke(app, ["measure", "--plan", str(path), "--json"])
    document = json.loads(result.stdout)
    assert document["measurements"][0]["program"] == "job" and document["then"]
    result = RUNNER.invoke(app, ["measure", "--have", str(path)])
    assert result.exit_code == 2 and "--plan" in result.stderr
    result = RUNNER.invoke(app, ["measure", "--plan", str(path), "--have", str(path)])
    assert result.exit_code == 2 and "run.toml" in result.stderr
    result = RUNNER.invoke(app, ["measure", "--plan", str(tmp_path / "none.toml")])
    assert result.exit_code == 2 and "no such file" in result.stderr
