"""`foreshard validate --trace`: the screen, a frozen document, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
V100 = Path(__file__).parents[1] / "data" / "kineto_v100_step.json"

SCENARIO = """
[model]
model_type = "llama"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 4
num_attention_heads = 4
vocab_size = 256
max_position_embeddings = 128
[training]
sequence_length = 64
global_batch = 8
[cluster]
name = "dgx-h100"
gpus = 1
"""
TOP = [
    "schema", "version", "command", "trace", "predicted_step_s", "measured_step_s", "gap_s",
    "causes", "memory", "notes",
]  # fmt: skip
TRACE = [
    "device", "rank", "world", "steps", "counted_steps", "step_s", "compute_s", "exposed_s",
    "launch_s", "idle_s", "collectives", "allocated_bytes", "reserved_bytes",
]  # fmt: skip
CAUSE = [
    "name", "terms", "predicted_s", "measured_s", "gap_s", "share_of_gap", "predicted_hidden_s",
    "measured_hidden_s",
]  # fmt: skip
COLLECTIVE = [
    "kind", "group", "description", "size", "ranks", "calls", "bytes", "exposed_s", "hidden_s",
]  # fmt: skip


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(SCENARIO)
    return path


def validate(*arguments: Any) -> Any:
    return RUNNER.invoke(app, ["validate", *map(str, arguments)])


def test_the_document(scenario: Path) -> None:
    result = validate("--trace", V100, "--scenario", scenario, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert list(found) == TOP
    assert list(found["trace"]) == TRACE
    assert {tuple(cause) for cause in found["causes"]} == {tuple(CAUSE)}
    assert {tuple(one) for one in found["trace"]["collectives"]} == {tuple(COLLECTIVE)}
    assert found["command"] == "validate"
    assert found["measured_step_s"] == pytest.approx(13.41e-3)
    assert sum(cause["gap_s"] for cause in found["causes"]) == pytest.approx(found["gap_s"])
    assert found["gap_s"] == pytest.approx(found["predicted_step_s"] - found["measured_step_s"])
    assert found["memory"] == {}
    measured = {cause["name"]: cause["measured_s"] for cause in found["causes"]}
    assert measured["gemm"] == pytest.approx(13e-6)
    assert measured["launch"] == pytest.approx(13094e-6)
    assert found["notes"] == [
        "the trace is of a Tesla V100-DGXS-32GB, the prediction of h100-sxm",
        "a collective lasts until the slowest rank has come: waiting counts with it",
    ]


def test_the_screen(scenario: Path) -> None:
    result = validate("--trace", V100, "--scenario", scenario)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    table = {line.split("  ")[0]: line.split() for line in lines}
    assert table["GEMMs"][2] == "0.013"
    assert table["waiting for the host"][5] == "13.094"
    assert table["sum = step"][4] == "13.410"
    assert "Tesla V100-DGXS-32GB: the mean of 1 of 1 steps" in result.stdout
    assert "not profiled" in result.stdout
    first = [line for line in lines if line.startswith("waiting for the host")]
    assert lines.index(first[0]) == lines.index(next(x for x in lines if "of a step" in x)) + 1


def test_peaks_of_memory_stand_beside_each_other(scenario: Path, tmp_path: Path) -> None:
    document = json.loads(V100.read_text())
    document["traceEvents"].append(
        {
            "ph": "i",
            "name": "[memory]",
            "ts": 1621401187225000,
            "pid": 1,
            "tid": 1,
            "args": {
                "Device Type": 1,
                "Device Id": 0,
                "Total Allocated": 2**30,
                "Total Reserved": 2**31,
            },
        }
    )
    path = tmp_path / "memory.json"
    path.write_text(json.dumps(document))
    found = json.loads(validate("--trace", path, "--scenario", scenario, "--json").stdout)
    assert {k: v["measured_bytes"] for k, v in found["memory"].items()} == {
        "allocated": 2**30,
        "reserved": 2**31,
    }
    predicted = {k: v["predicted_bytes"] for k, v in found["memory"].items()}
    assert 0 < predicted["allocated"] <= predicted["reserved"]
    assert "allocated: predicted" in validate("--trace", path, "--scenario", scenario).stdout


def test_a_scenario_may_be_changed_or_made_of_options(scenario: Path) -> None:
    same = ("--trace", V100, "--scenario", scenario, "--json")
    plain = json.loads(validate(*same).stdout)
    more = json.loads(validate(*same, "--set", "training.global_batch=16").stdout)
    assert more["predicted_step_s"] > plain["predicted_step_s"]
    halved = json.loads(validate(*same, "--trace-steps", 2).stdout)["trace"]
    assert (halved["steps"], halved["counted_steps"]) == (2, 2)
    # 18 us before the step's mark no operator is kept: the trace goes on to the synchronisation
    assert 2 * halved["step_s"] == pytest.approx((236863 - 223358) * 1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "nowhere.json"), "nowhere.json: no such file"),
        (("--trace", V100, "runs.csv"), "RUNS.csv: cannot be given together with --trace"),
        (("--trace", V100, "--html", "x.html"), "--html: cannot be given together with --trace"),
        (("--trace", V100, "--warm-up", "1"), "--warm-up: cannot be given together with --trace"),
        (("--trace", V100, "--set", "cluster.name=dgx-h1000"), "dgx-h1000"),
        (("--trace", __file__), "not JSON: begins with"),
    ],
)
def test_bad_input(scenario: Path, arguments: tuple[Any, ...], message: str) -> None:
    result = validate(*arguments, "--scenario", scenario)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_trace_needs_a_scenario_and_its_steps_a_trace() -> None:
    result = validate("--trace", V100)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a scenario file, or model, cluster and gpus, must be given" in result.stderr
    result = validate("--trace-steps", "3")
    assert (result.exit_code, result.stderr) == (2, "--trace-steps: only with --trace TRACE\n")


def test_a_trace_of_a_faster_run_than_any_device_can_do(scenario: Path) -> None:
    result = validate(
        "--trace", V100, "--scenario", scenario, "--set", "training.global_batch=800000"
    )
    assert result.exit_code == 2
    assert "of the peak FLOP rate" in result.stderr
