"""How fast the search, one prediction and a whole plan are. Counts are asserted, times only shown.

``make bench`` times them; without ``--benchmark-enable`` each runs once.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.layout.keys import unique_rows
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.candidates import candidates
from simulator.planner.explore import Found, explore
from simulator.planner.search import plan
from simulator.scenario import Scenario, load_scenario, make_scenario

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "llama-3.1-70b.toml"

DEEPSEEK = {
    "model": {"name": "deepseek-v3"},
    "training": {"tokens": 14.8e12, "sequence_length": 4096, "global_batch": 15360},
    "cluster": {"name": "dgx-h100", "gpus": 2048},
}


def search(scenario: Scenario) -> Found:
    """Enumerate, judge, evaluate, keep the best: what the rate counts."""
    return explore(scenario.workload, scenario.cluster, scenario.software, scenario.pinned)


def distinct_feasible(scenario: Scenario) -> int:
    """Different rows among those that can run."""
    table = candidates(scenario.workload, scenario.cluster, scenario.software, scenario.pinned)
    code = reasons(table, scenario.workload, scenario.cluster, scenario.software)
    return len(unique_rows(*table[code == FEASIBLE].columns().values()).first)


def show(benchmark: Any, found: Found) -> None:
    benchmark.extra_info["layouts"] = found.layouts
    benchmark.extra_info["evaluated"] = found.evaluated
    benchmark.extra_info["evaluated_per_s"] = round(found.evaluated / found.seconds)


@pytest.mark.benchmark(group="search")
def test_search_of_llama_70b_on_1024_gpus(benchmark: Any) -> None:
    scenario = load_scenario(EXAMPLE)
    found = benchmark.pedantic(search, args=(scenario,), rounds=5, warmup_rounds=1)
    assert found.evaluated == distinct_feasible(scenario)
    assert found.evaluated > 60_000
    show(benchmark, found)


@pytest.mark.benchmark(group="search")
def test_search_of_deepseek_v3_on_2048_gpus_evaluates_a_million_layouts(benchmark: Any) -> None:
    scenario = make_scenario(DEEPSEEK)
    found = benchmark.pedantic(search, args=(scenario,), rounds=1)
    assert found.evaluated == distinct_feasible(scenario)
    assert found.evaluated >= 1_000_000
    show(benchmark, found)


def predict_cold() -> dict[str, Any]:
    """One prediction in a new interpreter, as the command line makes it."""
    words = ["predict", str(EXAMPLE), "--set", "layout.tp=8", "--set", "layout.pp=4", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "simulator.cli.main", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


@pytest.mark.benchmark(group="command")
def test_predict_from_a_cold_start(benchmark: Any) -> None:
    document = benchmark.pedantic(predict_cold, rounds=5)
    (layout,) = document["layouts"]
    assert layout["step_time_s"] > 0
    assert layout["layout"]["tp"] == 8


@pytest.mark.benchmark(group="command")
def test_import_alone_from_a_cold_start(benchmark: Any) -> None:
    words = [sys.executable, "-c", "import simulator"]
    benchmark.pedantic(subprocess.run, args=(words,), kwargs={"cwd": ROOT, "check": True}, rounds=5)


@pytest.mark.benchmark(group="command")
def test_plan_end_to_end(benchmark: Any) -> None:
    def whole() -> Any:
        return plan(load_scenario(EXAMPLE))

    answer = benchmark.pedantic(whole, rounds=3)
    assert answer.estimate.fits.all()
    show(benchmark, answer.found)
