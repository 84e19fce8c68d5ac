"""`foreshard sites`: screen, frozen keys of its document, bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "examples/two-sites.toml")
FAST = ["--set", "layout.tp=1", "--set", "layout.pp=1", "--set", "layout.cp=1"]


def test_document() -> None:
    done = RUNNER.invoke(app, ["sites", EXAMPLE, *FAST, "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == [
        *("schema", "version", "command", "scenario"),
        *("assumed_training", "idle_fields", "workload", "outer_step", "compression"),
        *("sites", "even_batches", "cycle", "uplink_bytes_per_s_for_utilisation"),
        *("more_steps_fraction", "more_steps_given", "alternatives", "wait_days", "caveats"),
    ]
    assert list(found["cycle"]) == [
        *("inner_step_s", "inner_steps", "fragments", "message_bytes", "sent_bytes"),
        *("exchange_s", "exposed_s", "own_s", "total_s", "utilisation", "mean_bytes_per_s"),
    ]
    assert list(found["sites"][0]) == [
        *("name", "cluster", "accelerator", "gpus", "batch", "feasible", "reason", "layout"),
        *("step_time_s", "own_s", "extra_gpu_bytes", "host_bytes"),
    ]
    assert list(found["alternatives"][0]) == [
        *("name", "gpus", "reason", "step_time_s", "tokens_per_s", "days_ideal"),
    ]


def test_screen_says_what_is_assumed_and_how_long_to_wait() -> None:
    done = RUNNER.invoke(app, ["sites", EXAMPLE, *FAST])
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for words in ("10 Gbit/s", "north", "gradients every step", "sites.more_steps_fraction",
                  "Days are ideal ones", "worth waiting for up to", "Notes"):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "sites.overlap_steps=-1"], "sites.overlap_steps: must be greater than or equal"),
        (["--set", "sites.at=3"], "sites.at: must be a list"),
        (["--set", "sites.outer_states='disk'"], "sites.outer_states: must be 'gpu' or 'host'"),
    ],
)
def test_bad_input(options: list[str], words: str) -> None:
    done = RUNNER.invoke(app, ["sites", EXAMPLE, *options])
    assert done.exit_code == 2 and words in done.stderr, done.stderr


def test_a_scenario_without_sites() -> None:
    done = RUNNER.invoke(app, ["sites", str(ROOT / "examples/llama-3.1-8b.toml")])
    assert done.exit_code == 2 and "sites: required section is missing" in done.stderr
