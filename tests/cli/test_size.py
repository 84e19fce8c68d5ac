"""`foreshard size`: screen, frozen keys of its document, exit codes."""

import json
import re

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
PINS = ("tp=1", "pp=1", "cp=1", "micro_batch=1", "sharding=zero1", "recompute=none")
SETS = [word for pin in PINS for word in ("--set", f"layout.{pin}")]
RUN = [
    *("size", "--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--set", "training.tokens=1e11"),
    *("--largest", "64", "--jobs", "1", *SETS),
]


def test_document() -> None:
    done = RUNNER.invoke(app, [*RUN, "--deadline", "30d", "--budget", "1M", "--json"])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    keys = [
        *("schema", "version", "command", "scenario", "assumed_training", "idle_fields"),
        *("workload", "asked"),
        *("answer", "nearest", "tried", "compute", "budget_left_usd", "budget_left_share"),
        *("budget_would_buy", "assumptions", "caveats"),
    ]
    assert list(document) == keys
    answer = document["answer"]
    assert answer["confidence"] == 0.9 and answer["planned_days"]["p90"] <= 30.0
    left = 1e6 - answer["planned_usd"]["p90"]
    assert document["budget_left_usd"] == pytest.approx(left)
    assert document["budget_left_share"] == pytest.approx(left / 1e6)
    larger = document["budget_would_buy"]
    assert larger["gpus"] > answer["gpus"] and larger["days_p50"] < answer["days"]["p50"]
    assert document["compute"]["law"]["name"] == "hoffmann-2022"
    assert document["compute"]["law"]["parameter_exponent"] == 0.3392
    assert [row["gpus"] for row in document["tried"]][-1] >= answer["gpus"]


def test_screen() -> None:
    done = RUNNER.invoke(app, [*RUN, "--gpus", "16", "--deadline", "30d"])
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for words in ("With this many GPUs within 30.0 days, with a chance of 90.0 %",
                  "most tokens for llama-3.2-1b",
                  "by hoffmann-2022: loss = 1.6934", "the deadline is used up"):  # fmt: skip
        assert words in text, words


def test_the_sizes_that_were_tried_stand_in_order_below_the_answer() -> None:
    done = RUNNER.invoke(app, [*RUN, "--deadline", "30d", "--budget", "1M"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    above, below = done.stdout.split("cluster          GPUs", 1)
    assert "The fewest GPUs within 30.0 days and 1.00 M USD, with a chance of 90.0 %" in above
    assert "of 1.00 M USD are left" in above and "the soonest end within it" in above
    rows = [line.split() for line in below.splitlines() if line.startswith("dgx-h100 ")]
    sizes = [int(row[1]) for row in rows]
    assert sizes == sorted(sizes) and len(sizes) >= 2


def test_a_budget_that_is_used_up_is_what_the_limits_take() -> None:
    done = RUNNER.invoke(app, [*RUN, "--gpus", "16", "--budget", "2000"])
    text = " ".join(done.stdout.split())
    assert "(2.00 k USD with a chance of 90.0 %); the budget is used up" in text


def test_what_the_limits_buy_is_priced_as_expected_and_with_the_confidence() -> None:
    """16 GPUs for 30 days at a typed price: 16 x 720 h x 2 USD is 23,040 USD."""
    typed = ["--price", "2", "--set", "run.spares.hot=0"]
    done = RUNNER.invoke(app, [*RUN, "--gpus", "16", "--deadline", "30d", *typed])
    text = " ".join(done.stdout.split())
    said = re.search(r"16 GPUs for 30.0 days, (.*?) k USD \((.*?) k USD with a chance", text)
    assert said is not None, text
    assert float(said[1]) == pytest.approx(23.04, rel=0.01)
    assert float(said[2]) >= float(said[1])


def test_what_cannot_be_met_names_the_nearest() -> None:
    done = RUNNER.invoke(app, [*RUN, "--deadline", "1h"])
    assert done.exit_code == 1
    assert "MISSED: no offer meets what is asked; the soonest" in done.stdout
    assert "Nearest to all that is asked" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "a deadline, a budget or a number of GPUs must be given"),
        (["--budget", "1", "--law", "hofmann-2022"], "did you mean 'hoffmann-2022'"),
        (["--deadline", "90x"], "--deadline: must be days"),
    ],
)
def test_bad_input(options: list[str], words: str) -> None:
    done = RUNNER.invoke(app, [*RUN, *options])
    assert done.exit_code == 2 and words in done.stderr
