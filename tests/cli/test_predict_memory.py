"""`foreshard predict --memory`: the screen, and the frozen keys of its document."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.cost.memory.moments import MOMENTS
from simulator.cost.memory.peak import MEMORY_KINDS

pytestmark = pytest.mark.usefixtures("searched_once")
RUNNER = CliRunner(env={"COLUMNS": "170"})
FITS = [
    "--model", "llama-3.1-70b", "--cluster", "dgx-h100", "--gpus", "64", "--set", "layout.tp=8",
    "--set", "layout.pp=4",
]  # fmt: skip
OOM = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]
NEVER = ["--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "8"]


def document(*arguments: str) -> dict[str, Any]:
    result = RUNNER.invoke(app, ["predict", *arguments, "--memory", "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def screen(*arguments: str, columns: int = 170) -> str:
    there = {"COLUMNS": str(columns)}
    result = RUNNER.invoke(app, ["predict", *arguments, "--memory"], env=there)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("arguments", [FITS, OOM, NEVER])
def test_keys_are_frozen(arguments: list[str]) -> None:
    found = document(*arguments)
    assert list(found)[-5:] == [
        *("tight_alternative", "assumptions", "bearing_defaults", "caveats", "memory")
    ]
    memory = found["memory"]
    assert list(memory) == [
        "verdict",
        "p10_bytes",
        "p90_bytes",
        "usable_bytes",
        "capacity_bytes",
        "margin_bytes",
        "stages",
        "formulas",
        "changes",
        "nearest",
    ]
    assert list(memory["formulas"]) == list(MEMORY_KINDS)
    assert all(memory["formulas"].values())
    for stage in memory["stages"]:
        assert list(stage) == [
            "stage",
            "moment",
            "memory_bytes",
            "memory_total_bytes",
            "memory_p10_bytes",
            "memory_p90_bytes",
            "margin_bytes",
            "fits",
            "verdict",
            "replayed_allocated_bytes",
            "replayed_reserved_bytes",
            "inputs",
        ]
        assert list(stage["memory_bytes"]) == list(MEMORY_KINDS)
        assert stage["moment"] in MOMENTS
    changes = [*memory["changes"], *([memory["nearest"]] if memory["nearest"] else [])]
    for change in changes:
        assert list(change) == [
            "set",
            "layout",
            "step_time_s",
            "added_s",
            "memory_total_bytes",
            "verdict",
        ]


@pytest.mark.parametrize(
    ("arguments", "verdict", "stages"), [(FITS, "FITS", 4), (OOM, "OOM", 1), (NEVER, "OOM", 1)]
)
def test_every_stage_adds_up_and_the_fullest_is_the_layouts(
    arguments: list[str], verdict: str, stages: int
) -> None:
    found = document(*arguments)
    memory, (layout,) = found["memory"], found["layouts"]
    assert memory["verdict"] == verdict and len(memory["stages"]) == stages
    for stage in memory["stages"]:
        total = stage["memory_total_bytes"]
        assert sum(stage["memory_bytes"].values()) == pytest.approx(total, rel=1e-9)
        assert stage["margin_bytes"] == memory["usable_bytes"] - total
    assert max(s["memory_total_bytes"] for s in memory["stages"]) == layout["memory_total_bytes"]
    assert layout["fits"] == (verdict == "FITS")


def test_the_screen_shows_stages_formulas_and_changes() -> None:
    text = " ".join(screen(*OOM).split())
    for words in (
        "OOM: ",
        "HBM line at",
        "P90",
        "above the line",
        "bytes that every block keeps",
        "blocks 32;",
        "cheapest changes that make it fit",
        " to ",
        "+",
    ):
        assert words in text, words
    assert ["stage", "0", "1", "2", "3"] in [line.split() for line in screen(*FITS).splitlines()]
    assert "cheapest changes" not in screen(*FITS)


@pytest.mark.parametrize("columns", [80, 100])
def test_numbers_of_stages_are_whole_on_a_narrow_screen(columns: int) -> None:
    pp = 16
    text = screen(*FITS[:-1], f"layout.pp={pp}", "--set", "cluster.gpus=128", columns=columns)
    lines = [line.split() for line in text.splitlines()]
    for name in ("stage", "weights", "sum", "P90", "free"):
        values = [value for line in lines if line[:1] == [name] for value in line[1:]]
        assert len(values) >= pp
        assert all(re.fullmatch(r"-?[\d,]+(\.\d\d)?", value) for value in values[:pp]), values


def test_where_nothing_near_fits_the_screen_says_so() -> None:
    text = " ".join(screen(*NEVER).split())
    assert "No change of up to three fields of this layout fits" in text
    assert "Nearest: tp 1 to 8" in text
