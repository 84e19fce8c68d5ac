"""The first screen of `foreshard plan`: all that one decides by, in 100 columns and 40 lines."""

from __future__ import annotations

import datetime
import math
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator import plan
from simulator.cli.main import app
from simulator.economics.planning_factor import planning_factor
from simulator.planner.plan import alternatives
from simulator.scenario import load_scenario
from simulator.units import show_chance

pytestmark = pytest.mark.usefixtures("searched_once")
ROOT = Path(__file__).resolve().parents[2]
WHOLE = str(ROOT / "examples" / "llama-3.1-70b.toml")
FEW = ("--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8")
PINS = ("--set", "layout.tp=2", "--set", "layout.recompute=none")


@cache
def shown(*words: str) -> str:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["plan", *words, "--no-report"])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize(
    "words",
    [
        (WHOLE, "--set", "run.start=2027-01-01", "--set", "goal.budget_usd=2e7"),
        (*FEW, *PINS),
        (*FEW, "--set", "layout.tp=8", "--set", "layout.pp=1", "--set", "layout.cp=1"),
    ],
    ids=["whole run", "one step", "few layouts"],
)
def test_it_fits_a_terminal(words: tuple[str, ...]) -> None:
    lines = shown(*words).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 40, "and the line of the report"


FACTOR = planning_factor().value


def test_it_says_what_one_decides_by() -> None:
    text = shown(WHOLE, "--set", "run.start=2027-01-01", "--set", "goal.budget_usd=2e7")
    flat = " ".join(text.split())
    best = plan(load_scenario(WHOLE))
    days = float(best.outcome.days[0])
    ends = datetime.date(2027, 1, 1) + datetime.timedelta(days=math.ceil(days))
    for words in (
        f"FITS {best.estimate.layouts.describe(0)} time {days:,.1f} days (",
        f"begun on 2027-01-01 it ends on {ends.isoformat()} (",
        " M USD* (",
        " USD per GPU-hour (on demand, specialised clouds, 2026-05-01, assumed); ",
        f"planned plan for {days * FACTOR:,.1f} days (",
        " published runs took on top: restarts, ",
        f"goals within 240 days: {show_chance(best.deadline_chance or 0.0)} chance (",
        " without the planning factor), ",
        "at most 20.0 M USD: ",
        "evidence measured here; ",
        "better, if it fits",
        "most memory free",
        "faster, if a trial run shows that it fits",
        "Assumed, and what the other choice would change software megatron-core, or ",
        "Bottlenecks",
        "Most sensitive to",
        "--more: ",
    ):
        assert words in flat, words


@pytest.mark.evidence
def test_three_alternatives_say_what_speaks_for_them() -> None:
    best = plan(load_scenario(WHOLE))
    estimate = best.estimate
    found = {why: i for i, why in alternatives(best)}
    assert found["next best"] == 1
    tight = found["better, if it fits"]
    assert tight == best.tight_alternative and estimate.verdict_word(tight) == "TIGHT"
    assert all(estimate.verdict_word(i) == "FITS" for i in range(tight))
    free = found["most memory free"]
    assert estimate.memory_total_bytes[free] == estimate.memory_total_bytes[best.pareto].min()
    assert len(found) == 3


@pytest.mark.evidence
def test_played_layouts_stand_beside_the_closed_form() -> None:
    flat = " ".join(shown(*FEW, *PINS, "--refine", "1").split())
    assert " on discrete events, " in flat and " by the analytical model (" in flat
