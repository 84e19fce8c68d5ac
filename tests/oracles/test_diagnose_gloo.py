"""Runs that train now on two processes, a cause put into them, and what is diagnosed of it.

The run is predicted on two servers. What its real twin with a cause took over the real one without,
part by part, is put on the predicted parts: that keeps the errors of a prediction of this machine
out, and the noise, the tails and the waiting of real processes in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from simulator.api import predict
from simulator.arrays import Floats
from simulator.questions.diagnose.answer import Seen, course_of, diagnose
from simulator.scoring.trace_gap import predicted_parts

pytest.importorskip("torch")

PROGRAM = Path(__file__).resolve().parent / "slow_gloo_runs.py"
RUN = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 16, "sequence_length": 2048,
       "global_batch": 64, "tp": 1, "pp": 1}  # fmt: skip
COMPUTE = ("gemm", "attention", "memory_bound")


@cache
def times(cause: str) -> Floats:
    """Seconds by rank, step and part: loading, compute, reduction."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), cause, "--steps", "105"],
        env=kept | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return np.array(json.loads(done.stdout))


@cache
def seen(cause: str, *, traced: bool) -> Seen:
    prediction = predict(**RUN)  # type: ignore[arg-type]
    plain, real = times("none"), times(cause)
    wire_s = float(np.median(plain[:, :, 2].min(axis=0)))  # the rank that comes last waits for none
    usual_s = float(np.median(plain[:, :, 1].max(axis=0))) + wire_s
    waits_s = np.maximum(real[1, :, 1] - real[0, :, 1], 0.0)
    late_s = real[:, :, 0].max(axis=0)
    unit = prediction.step_time_s / usual_s
    steps = unit * (late_s + real[0, :, 1] + waits_s + wire_s)
    more = unit * np.array(
        [late_s.mean(), real[0, :, 1].mean() - plain[0, :, 1].mean(), waits_s.mean()]
    )
    parts = dict(predicted_parts(prediction))
    computing = sum(parts[name] for name in COMPUTE)
    for name in COMPUTE:
        parts[name] *= max(1.0 + more[1] / computing, 0.5)
    parts["launch"] += max(float(more[0]), 0.0)  # the device waits for its host
    parts["data"] += max(float(more[2]), 0.0)  # and here for the other rank
    mean_s = float(steps.mean())
    return Seen(measured_s=mean_s, course=course_of(steps), parts_s=parts if traced else None)


@pytest.mark.evidence
@pytest.mark.parametrize(
    ("cause", "traced"),
    [("input_pipeline", True), ("input_pipeline", False), ("slow_server", True)],
)
def test_a_cause_put_into_a_real_run_is_among_the_first(cause: str, traced: bool) -> None:
    """A log alone does not tell a slow server from other steady causes: that takes a trace."""
    real = seen(cause, traced=traced)
    prediction = predict(**RUN)  # type: ignore[arg-type]
    assert real.measured_s > 1.15 * prediction.step_time_s, "it costs nothing: another test machine"
    names = [diagnosis.name for diagnosis in diagnose(prediction, real).causes]
    assert cause in names[:3], names
    if cause == "input_pipeline":  # of one rank alone a slow server looks as a slow network does
        assert names[0] == cause, names
