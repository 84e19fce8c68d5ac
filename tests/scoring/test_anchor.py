"""`predict --anchored-by`: a measured run corrects the prediction of a larger one."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator import catalogue
from simulator.cli.main import app
from simulator.cost.step import evaluate
from simulator.measured.replay import Run, load_tables, replay
from simulator.scoring.anchor import Anchor, Correction, correction
from simulator.scoring.series import series
from simulator.scoring.validation import validate
from simulator.search.certainty import certainty
from workshop.cases.extrapolation import hidden_end, hidden_runs

RUNS = catalogue.folder("validation") / "runs"
LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
TARGET = [
    "--model",
    "llama-3.1-70b",
    "--cluster",
    "dgx-h100",
    "--gpus",
    "512",
    "--set",
    "layout.tp=4",
    "--set",
    "layout.pp=4",
]


def table(path: Path, **change: str) -> Path:
    """A table of one run: Nemotron-4 15B on 16 H100, with some columns changed."""
    with (RUNS / "calibrate.csv").open(newline="", encoding="utf-8") as file:
        row = next(r for r in csv.DictReader(file) if r["run_id"] == "dgxc-v25.02.02-093")
    row |= {"tokens_per_s_per_gpu": "", "model_tflops_per_gpu": ""} | change
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow(row)
    return path


def answer(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["predict", *TARGET, *arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_slow_run_makes_the_next_one_slower_and_surer(tmp_path: Path) -> None:
    plain = answer()["layouts"][0]
    measured_s = 1.1 * 2.84  # a tenth slower than predicted
    found = answer("--anchored-by", str(table(tmp_path / "a.csv", step_time_s=f"{measured_s}")))
    layout, told = found["layouts"][0], found["anchored_by"]
    assert told["uncorrected_s"] == pytest.approx(plain["step_time_s"])
    assert sum(layout["terms_s"].values()) == pytest.approx(layout["step_time_s"])
    assert layout["p90_s"] / layout["p10_s"] < plain["p90_s"] / plain["p10_s"]
    (run,) = told["runs"]
    assert run["measured_s"] == pytest.approx(measured_s)
    slower = measured_s / run["predicted_s"]  # what other runs may differ in is not corrected
    assert 1.0 < layout["step_time_s"] / plain["step_time_s"] < slower
    assert all(e["spread_after"] <= e["spread_before"] for e in told["errors"].values())
    assert set(told["errors"]["compute"]) == {"factor", "spread_before", "spread_after"}


def test_a_run_of_another_device_is_refused(tmp_path: Path) -> None:
    other = table(tmp_path / "a.csv", gpu="A100-SXM4-80GB", software="simumax-megatron-2026")
    result = CliRunner().invoke(app, ["predict", *TARGET, "--anchored-by", str(other)])
    assert result.exit_code == 2
    assert "accelerator: must be h100-sxm as in the scenario, got a100-sxm-80" in result.stderr
    assert "software: must be megatron-core as in the scenario, got megatron-core-" in result.stderr


def test_a_run_that_cannot_be_predicted_is_refused(tmp_path: Path) -> None:
    other = table(tmp_path / "a.csv", software="megatron-lm-2022")
    result = CliRunner().invoke(app, ["predict", *TARGET, "--anchored-by", str(other)])
    assert result.exit_code == 2 and "a.csv: line 2: the layout cannot run" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--anchored-by", str(LOGS / "megatron_2025.log")], "--anchor-scenario: must be given"),
        (["--anchored-by", "nowhere.csv"], "no such file"),
    ],
)
def test_bad_input_is_named(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["predict", *TARGET, *arguments])
    assert result.exit_code == 2 and words in result.stderr


def run_of(gpus: int, **change: str) -> Run:
    """Nemotron-4 15B on H100, tensor-parallel over four, four sequences a GPU."""
    with (RUNS / "calibrate.csv").open(newline="", encoding="utf-8") as file:
        row = next(r for r in csv.DictReader(file) if r["run_id"] == "dgxc-v25.02.02-093")
    sizes = {"num_gpus": f"{gpus}", "dp": f"{gpus // 4}", "global_batch": f"{4 * gpus}"}
    return replay(row | sizes | change, load_tables(), where="a.csv: line 2")


def corrected(known: Run, wanted: Run, ratio: float = 1.05) -> tuple[float, float, Correction]:
    """What a run that took `ratio` times as long as predicted makes of another one.

    Returns the factor on its step time, its P90 over its P10, and the correction.
    """
    measured = evaluate(known.layout, known.workload, known.cluster, known.software)
    heard = Anchor(
        where="a.csv",
        run=known,
        estimate=measured,
        measured_s=ratio * float(measured.step_time_s[0]),
    )
    estimate = evaluate(wanted.layout, wanted.workload, wanted.cluster, wanted.software)
    found = correction(estimate, wanted, [heard])
    sure = found.certainty
    factor = float(found.estimate.step_time_s[0] / estimate.step_time_s[0])
    return factor, float(sure.p90_s[0] / sure.p10_s[0]), found


def test_intervals_grow_with_the_distance_from_what_was_measured() -> None:
    known = run_of(16)
    spans = [corrected(known, run_of(gpus))[1] for gpus in (32, 128, 1024, 16384)]
    assert spans == sorted(spans)
    alone = correction_span(run_of(16384))
    assert 1.1 * (spans[0] - 1.0) < spans[-1] - 1.0 < alone - 1.0


def correction_span(wanted: Run) -> float:
    """P90 over P10 with nothing measured."""
    estimate = evaluate(wanted.layout, wanted.workload, wanted.cluster, wanted.software)
    sure = certainty(estimate, wanted.workload, wanted.cluster, wanted.software)
    return float(sure.p90_s[0] / sure.p10_s[0])


def test_what_has_more_in_common_with_a_run_is_surer() -> None:
    """The same layout, the same shapes in another layout, other shapes.

    How far a step moves follows its own parts too: with more of its time on the links, other shapes
    are moved by the links' correction as far as the first two are by all of theirs.
    """
    known = run_of(64)
    layout, shapes, others = (
        corrected(known, run_of(256, **change))
        for change in ({}, {"pp": "2", "dp": "32"}, {"tp": "8", "dp": "32"})
    )
    assert 1.06 > layout[0] > shapes[0] > 1.0
    assert 1.06 > others[0] > 1.0
    assert layout[1] < shapes[1] < others[1]
    told = [set(one[2].factors) & {"kernels", "layout"} for one in (layout, shapes, others)]
    assert told == [{"kernels", "layout"}, {"kernels"}, set()]


def test_links_of_one_server_say_nothing_of_those_between_servers() -> None:
    inside, outside = (corrected(run_of(gpus), run_of(256))[2] for gpus in (8, 64))
    factor, before, after = inside.factors["links"]
    assert (factor, after) == (1.0, before)
    factor, before, after = outside.factors["links"]
    assert factor > 1.0 and after < before


def test_a_training_log_corrects_as_a_table_does(tmp_path: Path) -> None:
    log, scenario = tmp_path / "train.log", tmp_path / "small.toml"
    model = "[model]\nname = 'llama-3.1-70b'\n[training]\nsequence_length = 8192\n"
    scenario.write_text(
        f"{model}global_batch = 128\n[cluster]\nname = 'dgx-h100'\ngpus = 64\n[layout]\ntp = 4\n"
        "pp = 4\n",
        encoding="utf-8",
    )
    result = CliRunner().invoke(app, ["predict", str(scenario), "--json"])
    slow_ms = 1.1e3 * json.loads(result.stdout)["layouts"][0]["step_time_s"]
    lines = [
        f" iteration {i:>8}/      24 | consumed samples: {128 * i} | elapsed time per iteration"
        f" (ms): {slow_ms:.1f} | global batch size: 128 | lm loss: 5.0E+00 |\n"
        for i in range(1, 25)
    ]
    log.write_text("".join(lines), encoding="utf-8")
    plain = answer()["layouts"][0]
    found = answer("--anchored-by", str(log), "--anchor-scenario", str(scenario))
    (run,) = found["anchored_by"]["runs"]
    assert run["measured_s"] == pytest.approx(slow_ms / 1e3, rel=1e-3)
    assert (
        1.03 < found["layouts"][0]["step_time_s"] / plain["step_time_s"] < 1.12
    )  # more of it is on links
    told = found["anchored_by"]
    assert told["uncorrected_p10_s"] == pytest.approx(plain["p10_s"])
    assert told["uncorrected_p90_s"] == pytest.approx(plain["p90_s"])


def test_the_screen_says_what_was_corrected_by_how_much(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", step_time_s="3.2")
    runner = CliRunner(env={"COLUMNS": "160"})
    result = runner.invoke(app, ["predict", *TARGET, "--anchored-by", str(path)])
    text = " ".join(result.stdout.split())
    assert "a.csv: line 2: measured 3.20 s, predicted " in text
    assert re.search(r"step: [\d.]+ s \([\d.]+ to [\d.]+ s\) before, [\d.]+ s \(", text)
    assert re.search(r"[a-z]+ \([a-z_, ]+\): x 1\.\d+, standard deviation", text)
    assert "no measured run computed with these shapes" in text  # of another model


@pytest.mark.evidence
def test_a_known_small_run_brings_larger_ones_nearer() -> None:
    """On the calibration series, their large ends hidden: nearer, and with narrower intervals."""
    rows = validate(RUNS / "calibrate.csv").rows
    found = hidden_end(hidden_runs(series(rows)), "calibrate")
    assert found is not None and found.runs > 40
    assert found.mape[1] < found.mape[0]
    assert found.width[1] < 0.7 * found.width[0]
    assert found.coverage[1] >= 0.75
