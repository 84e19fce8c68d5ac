"""Tensor parallelism of HabanaAI/Megatron-DeepSpeed in fp8: what crosses the links of a layer."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from simulator import catalogue
from simulator.cost.step import evaluate
from simulator.measured.replay import load_tables, replay


def test_a_backward_pass_in_fp8_gathers_no_input_again() -> None:
    """Of Megatron's ten collectives of a layer (two gathers and two scatters forward, as many back,
    and the inputs of both column-parallel linears again) Intel's te.Linear needs eight."""
    runs = catalogue.folder("validation") / "runs" / "second_test.csv"
    with runs.open(encoding="utf-8") as lines:
        row = next(row for row in csv.DictReader(lines) if row["run_id"] == "gaudi2-03")
    run = replay(row, load_tables())
    assert run.workload.recipe.precision == "fp8"
    assert row["recompute"] == "none"
    kernels = run.software.kernels
    again = replace(kernels, dtensor=replace(kernels.dtensor, keeps_gathered_inputs=False))
    plain = replace(run.software, kernels=again)
    seconds = [
        float(evaluate(run.layout, run.workload, run.cluster, software).terms_s["tp"][0])
        for software in (run.software, plain)
    ]
    assert seconds[0] / seconds[1] == pytest.approx(8 / 10, rel=0.02)
