"""`foreshard parameter-server`: screen, frozen keys of its document, bad input."""

import json
from pathlib import Path

from typer.testing import CliRunner

from simulator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "160"})
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ["parameter-server", str(ROOT / "examples/parameter-server.toml")]
FAST = ["--set", "layout.micro_batch=16", "--set", "layout.tp=1", "--set", "layout.pp=1",
        "--set", "layout.cp=1"]  # fmt: skip


def test_document() -> None:
    done = RUNNER.invoke(app, [*EXAMPLE, *FAST, "--play", "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == [
        *("schema", "version", "command", "scenario"),
        *("assumed_training", "idle_fields", "workload", "consistency", "staleness"),
        *("backup_workers", "servers", "shard_bytes", "workers", "worker", "round", "ways"),
        *("backups", "networks", "more_updates_given", "played", "caveats"),
    ]
    assert [way["name"] for way in found["ways"]] == [
        *("stale-synchronous", "synchronous", "asynchronous", "all-reduce", "broadcast to all")
    ]
    assert list(found["ways"][0]) == [
        *("name", "reason", "round_s", "tokens_per_s", "stale_updates", "more_updates_fraction"),
        "days_ideal",
    ]
    played = found["played"]
    assert abs(played["closed_form_s"] / played["round_s"] - 1.0) < 0.1


def test_screen_says_what_a_round_does_not() -> None:
    done = RUNNER.invoke(app, [*EXAMPLE, *FAST])
    assert (done.exit_code, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    for words in ("A shorter round is not a shorter run", "parameter_server.more_updates_fraction",
                  "shortest round", "all-reduce", "16 servers (own)"):  # fmt: skip
        assert words in text, words


def test_bad_input() -> None:
    done = RUNNER.invoke(app, [*EXAMPLE, "--set", "parameter_server.staleness=-1"])
    assert done.exit_code == 2
    assert "parameter_server.staleness: must be greater than or equal to 0, got -1" in done.stderr
