"""`foreshard recommender`: screen, frozen keys of its document, exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "examples/dlrm.toml")


def test_keys_of_the_document_are_frozen() -> None:
    done = RUNNER.invoke(app, ["recommender", EXAMPLE, "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found)[-16:] == [
        *("parameters", "step_time_s", "samples_per_s", "terms_s", "hidden_s", "fits"),
        *("verdict", "memory_bytes", "tables_bytes", "host_bytes", "usable_bytes"),
        "distinct_rows",
        *("hit_fraction", "shards_of_ranks", "tables_by_row", "caveats"),
    ]
    assert found["command"] == "recommender"
    assert sum(found["shards_of_ranks"]) >= 26
    assert 20e6 < found["samples_per_s"] < 30e6


def test_the_screen_says_what_takes_the_step() -> None:
    done = RUNNER.invoke(app, ["recommender", EXAMPLE])
    assert done.exit_code == 0
    for words in ("24B parameters", "samples/s", "FITS", "sums to their samples", "26 tables"):
        assert words in done.stdout


def test_exit_codes() -> None:
    small = RUNNER.invoke(app, ["recommender", EXAMPLE, "--set", "cluster.gpus=1"])
    assert (small.exit_code, small.stdout) == (1, "")
    assert "cache_fraction" in small.stderr
    wrong = RUNNER.invoke(app, ["recommender", str(ROOT / "examples/llama-3.1-8b.toml")])
    assert wrong.exit_code == 2
    assert "sparse: required section is missing" in wrong.stderr


@pytest.mark.parametrize("command", ["plan", "predict", "simulate", "compare", "size", "export"])
def test_no_other_command_prices_the_dense_model_alone(command: str) -> None:
    more = {"size": ["--deadline", "90d"], "export": ["--as", "torchtitan"]}.get(command, [])
    done = RUNNER.invoke(app, [command, EXAMPLE, "--set", "training.tokens=1e9", *more])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "sparse: its tables are priced by `foreshard recommender`" in done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("example", "section", "command"),
    [
        ("two-sites", "sites", "sites"),
        ("parameter-server", "parameter_server", "parameter-server"),
        ("distillation", "distillation", "distil"),
    ],
)
def test_a_section_that_another_command_prices_is_named(
    example: str, section: str, command: str
) -> None:
    scenario = str(ROOT / f"examples/{example}.toml")
    words = f"[{section}] is not in these figures: `foreshard {command}` has it"
    one = RUNNER.invoke(app, ["predict", scenario])
    assert one.exit_code == 0 and words in one.stdout
    document = json.loads(RUNNER.invoke(app, ["predict", scenario, "--json"]).stdout)
    assert document["elsewhere"] == {section: f"foreshard {command}"}
    own = RUNNER.invoke(app, [command, scenario])
    assert own.exit_code == 0 and words not in own.stdout
