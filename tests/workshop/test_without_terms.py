"""One term taken out at a time: closed forms, what a run does not have, the table of the page."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import catalogue
from simulator.cost.step import evaluate
from simulator.cost.terms import TERMS
from simulator.files import read_csv
from simulator.hardware.cluster import load_cluster
from simulator.measured.replay import load_tables, replay
from simulator.measured.rows import MeasuredRun
from simulator.scoring.scores import ScoredRow
from simulator.software.profile import load_software
from workshop.cases.without_terms import (
    SWITCHES,
    at_burst_rate,
    at_one_clock,
    fused_alike,
    without_terms,
)
from workshop.pages.accuracy.page import _percent, _table
from workshop.pages.accuracy.without_terms import without_section

RUNS = catalogue.folder("validation") / "runs"
ROWS = {row["run_id"]: row for _, row in read_csv(RUNS / "test.csv")}
GPT = ROWS["korthikanti22-t5-003"] | {"vpp": "1"}  # 175B: tp 8, pp 8, 64 GPUs, 64 micro-batches


def scored(**words: str) -> tuple[ScoredRow, float]:
    """A row that was measured as it is predicted, and its step time."""
    run = MeasuredRun(where="runs.csv: line 2", fields={**GPT, **words})
    ready = replay(run.fields, load_tables(), where=run.where)
    step_s = float(
        evaluate(ready.layout, ready.workload, ready.cluster, ready.software).step_time_s[0]
    )
    row = ScoredRow(run=run, status="ok", predicted_step_s=step_s, measured_step_s=step_s)
    return row, step_s


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in without_terms([scored()[0]])}


def test_every_term_can_be_taken_out(found: dict[str, dict[str, Any]]) -> None:
    assert list(found) == list(SWITCHES)
    alone = {"gemm", "bubble_warmup", "bubble_drain"}
    assert {term.name for term in TERMS} - alone <= set(SWITCHES)


def test_the_bubble_is_that_of_1f1b(found: dict[str, dict[str, Any]]) -> None:
    """Narayanan et al. 2021, section 2.2: p - 1 of m + p - 1 passes, here 7 of 71."""
    micro_batches = int(GPT["global_batch"]) // (int(GPT["dp"]) * int(GPT["micro_batch"]))
    assert found["bubble"]["test"]["share"] == pytest.approx(7 / (micro_batches + 7), rel=0.05)


def test_errors_without_a_term_are_what_it_left_open(found: dict[str, dict[str, Any]]) -> None:
    some = found["tp"]["test"]
    assert some["runs"] == 1 and some["mape"] == pytest.approx(0.0)
    assert 0.01 < some["share"] < 0.2  # eight ways over NVLink, of every layer
    assert some["without"] == pytest.approx(some["share"])  # the row was measured as predicted
    assert some["bias_without"] == pytest.approx(-some["share"])


def test_a_term_that_no_run_has_is_not_scored(found: dict[str, dict[str, Any]]) -> None:
    for name in ("ep", "cp", "fsdp", "offload"):
        assert found[name]["test"]["runs"] == 0 and found[name]["test"]["mape"] is None


def test_burst_rates_are_those_of_training_over_its_fraction() -> None:
    real = load_cluster("dgx-a100", 8)
    before, after = (c.accelerator for c in (real, at_burst_rate(real)))
    assert float(before.gemm["cublas"]["bf16"].training_fraction) < 1.0
    assert float(after.gemm["cublas"]["bf16"].training_fraction) == 1.0
    assert after.gemm["cublas"]["bf16"].peak_fraction == before.gemm["cublas"]["bf16"].peak_fraction
    assert float(after.attention["flash"].training_fraction) == 1.0


def test_one_clock_is_that_of_products_that_fill_the_device() -> None:
    real = load_cluster("dgx-a100", 8)
    before, after = (c.accelerator.gemm["cublas"]["bf16"] for c in (real, at_one_clock(real)))
    assert float(before.clock_exponent) > 0.0 == float(after.clock_exponent)
    assert after.training_fraction == before.training_fraction < 1.0


def test_at_one_clock_a_step_is_slower(found: dict[str, dict[str, Any]]) -> None:
    """But by less than all of what the cap takes."""
    gained, capped = -found["idle_units"]["test"]["share"], found["clocks"]["test"]["share"]
    assert 0.0 < gained < capped


def test_fused_alike_changes_nothing_else() -> None:
    old, new = load_software("megatron-lm-2021"), load_software("megatron-core-defaults")
    mixed = fused_alike(old, new)
    assert mixed.kernels.fused == new.kernels.fused != old.kernels.fused
    assert (mixed.kernels.attention, mixed.host) == (old.kernels.attention, old.host)


def test_the_page_has_a_line_for_each(found: dict[str, dict[str, Any]]) -> None:
    text = "\n".join(without_section(list(found.values()), _table, _percent))
    for name, what in SWITCHES.items():
        assert f"- *{name.replace('_', '-')}*: {what}." in text
    assert text.count("| tp | 1 |") == 1 and "**calibrate**" in text
