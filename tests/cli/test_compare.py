"""`foreshard compare`: screen, frozen keys of its document, files, exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
PINS = (
    "layout.tp=1",
    "layout.pp=1",
    "layout.cp=1",
    "layout.micro_batch=1",
    "layout.sharding=zero1",
)
SETS = [word for pin in PINS for word in ("--set", pin)]
NAMES = ["--model", "llama-3.2-1b", "--set", "training.tokens=1e11", *SETS, "--jobs", "1"]
RUN = ["compare", *NAMES, "--clusters", "dgx-h100,mi325x-8", "--gpus", "8..16"]

TOP = [
    *("schema", "version", "command", "scenario", "workload", "asked", "rows", "at_equal_gpus"),
    *("equal_budget_usd", "at_equal_budget", "equal_deadline_days", "at_deadline", "pareto"),
    *("curves", "nearest"),
]
ROW = [
    *("cluster", "accelerator", "gpus", "feasible", "reason", "software", "global_batch"),
    *("layout", "step_time_s"),
    *("tokens_per_s_per_gpu", "mfu", "days", "usd", "kwh", "co2_kg", "goodput"),
    *("planning_factor", "planned_days", "planned_usd", "deadline_chance", "budget_chance"),
    *("deadline_chance_without_factor", "budget_chance_without_factor"),
    *("memory_headroom", "verdict", "memory_total_bytes", "memory_p90_bytes", "usable_bytes"),
    *("tight_alternative", "usd_per_gpu_hour", "price"),
    *("batch_divides", "next_good_gpus", "evidence", "offer", "beside_usd"),
]


def test_document_and_files(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, [*RUN, "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document) == TOP
    assert [list(row) for row in document["rows"]] == [ROW] * 4
    assert [(row["cluster"], row["gpus"]) for row in document["rows"]] == [
        ("dgx-h100", 8),
        ("dgx-h100", 16),
        ("mi325x-8", 8),
        ("mi325x-8", 16),
    ]
    for row in document["rows"]:
        assert row["days"]["p10"] < row["days"]["p50"] < row["days"]["p90"]
    assert document["rows"][2]["usd"] == {"p10": None, "p50": None, "p90": None}
    assert json.loads((tmp_path / "compare.json").read_text()) == document
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "compare.svg").read_text()
    assert any(f">{unit}</text>" in drawn for unit in ("thousand USD", "million USD", "USD"))
    assert "mathdefault" not in drawn  # plain numbers on the axes, no powers
    assert (tmp_path / "compare.html").read_text().startswith("<!doctype html>")
    assert len((tmp_path / "compare.csv").read_text().splitlines()) == 5


def test_screen() -> None:
    done = RUNNER.invoke(app, [*RUN, "--deadline", "400d", "--price", "mi325x-8=1.5"])
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for words in (
        "cluster GPUs days P10 to P90 in time USD",
        "At equal GPUs, the fastest",
        "(planned money of dgx-h100 x 8, to plan for)",
        "Within 400.0 days (deadline), the cheapest",
        "Pareto-optimal in time",
        "knee",
        "Useful time and carbon",
        "of CO2",
        "mi325x-8 1.50 (yours)",
        "measured like it",
    ):
        assert words in text, words


def test_an_impossible_deadline_names_the_nearest() -> None:
    done = RUNNER.invoke(app, [*RUN, "--deadline", "1h"])
    assert done.exit_code == 1
    assert "MISSED: no offer meets what is asked; the soonest" in done.stdout
    document = json.loads(RUNNER.invoke(app, [*RUN, "--deadline", "1h", "--json"]).stdout)
    near = document["nearest"]
    days = [row["planned_days"]["p50"] for row in document["rows"]]
    assert near["row"] == days.index(min(days)) and document["at_deadline"] == []
    # one hour is a 24th of a day: what the soonest takes over it
    text = " ".join(done.stdout.split())
    assert f"it would take {24.0 * min(days):,.3g} times the speed, or" in text


def test_an_impossible_budget_says_what_it_would_take() -> None:
    done = RUNNER.invoke(app, [*RUN, "--budget", "100"])
    document = json.loads(RUNNER.invoke(app, [*RUN, "--budget", "100", "--json"]).stdout)
    usd = min(row["planned_usd"]["p50"] for row in document["rows"] if row["planned_usd"])
    near = document["rows"][document["nearest"]["row"]]
    assert done.exit_code == 1 and near["planned_usd"]["p50"] == usd
    text = " ".join(done.stdout.split())
    assert f"prices {100.0 * (1.0 - 100.0 / usd):.3g} % lower" in text
    within = ["--budget", str(2.0 * usd), "--json"]
    assert json.loads(RUNNER.invoke(app, [*RUN, *within]).stdout)["nearest"] is None


def test_both_missed_a_faster_run_is_cheaper_too() -> None:
    """A run of half the days costs half: only what is left is asked of prices."""
    options = ["--deadline", "1h", "--budget", "1"]
    document = json.loads(RUNNER.invoke(app, [*RUN, *options, "--json"]).stdout)
    near = document["rows"][document["nearest"]["row"]]
    faster = 24.0 * near["planned_days"]["p50"]
    text = " ".join(RUNNER.invoke(app, [*RUN, *options]).stdout.split())
    lower = 100.0 * (1.0 - faster / near["planned_usd"]["p50"])
    assert 0.0 < lower < 100.0
    words = f"it would take {faster:,.3g} times the speed and prices {lower:.3g} % lower"
    assert words in text


def test_both_limits_met_name_the_cheapest() -> None:
    document = json.loads(RUNNER.invoke(app, [*RUN, "--json"]).stdout)
    rows = [row for row in document["rows"] if row["usd"] and row["usd"]["p50"]]
    limits = {"days": 1.01 * max(row["planned_days"]["p50"] for row in rows),
              "usd": 1.01 * max(row["planned_usd"]["p50"] for row in rows)}  # fmt: skip
    options = ["--deadline", f"{limits['days']}d", "--budget", str(limits["usd"])]
    done = RUNNER.invoke(app, [*RUN, *options])
    cheapest = min(rows, key=lambda row: row["usd"]["p50"])
    said = done.stdout.split("USD, the cheapest\n", 1)[1]
    assert done.exit_code == 0
    assert said.startswith(f"  {cheapest['cluster']} x {cheapest['gpus']:,}:")


def test_pins_that_contradict_each_other_are_named() -> None:
    pins = ["--set", "layout.tp=4", "--set", "layout.pp=8"]
    done = RUNNER.invoke(app, [*RUN, *pins])
    assert done.exit_code == 1
    assert "layout.tp = 4, layout.pp = 8" in " ".join(done.stdout.split())


def test_no_line_is_wider_than_the_table_and_one_size_has_no_curve() -> None:
    many = "dgx-h100,dgx-a100,hgx-h200,dgx-b200,mi300x-8,mi325x-8,l40s-pcie"
    done = RUNNER.invoke(app, ["compare", *NAMES, "--clusters", many, "--gpus", "8"])
    assert done.exit_code == 0 and "At equal GPUs" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 101  # the names of the columns
    assert "Speed-up" not in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--clusters", "dgx-h101"], "did you mean 'dgx-h100'"),
        (["--gpus", "64..8"], "--gpus: a range goes from the smaller to the larger"),
        (["--deadline", "soon"], "--deadline: must be days"),
        (["--budget", "0"], "--budget: must be USD"),
        (["--price", "dgx-b200=2"], "price: must name a cluster"),
        (["--confidence", "1.5"], "confidence: must be between 0 and 1"),
    ],
)
def test_bad_input(options: list[str], words: str) -> None:
    done = RUNNER.invoke(app, [*RUN, *options])
    assert done.exit_code == 2
    assert words in done.stderr and "Traceback" not in done.stderr
