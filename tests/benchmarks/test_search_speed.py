"""How fast the search, one prediction and a whole plan are. Counts are asserted, times only shown.

``make bench`` times them; without ``--benchmark-enable`` each runs once.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.cost.pricing import price_keys
from simulator.cost.step import evaluate
from simulator.planner.plan import plan
from simulator.planner.prediction import predict
from simulator.scenario import Scenario, load_scenario, make_scenario
from simulator.search.candidates import count
from simulator.search.explore import SearchResult, explore
from simulator.search.stage_splits import rebalanced_stages, worth_rebalancing

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "llama-3.1-70b.toml"

DEEPSEEK = {
    "model": {"name": "deepseek-v3"},
    "training": {"tokens": 14.8e12, "sequence_length": 4096, "global_batch": 15360},
    "cluster": {"name": "dgx-h100", "gpus": 2048},
}

LARGE_DENSE = {
    "model": {"name": "llama-3.1-405b"},
    "training": {"sequence_length": 8192, "global_batch": 2048},
    "cluster": {"name": "dgx-h100", "gpus": 16384, "software": "meta-llama3-2024"},
}

LARGE_EXPERTS = {
    "model": {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 163840,
        "max_position_embeddings": 131072,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
    },
    "training": {"sequence_length": 4096, "global_batch": 16384},
    "cluster": {"name": "gb300-nvl72", "gpus": 16384},
}
"""A model of Kimi K2's size: 384 experts, 8 of them a token."""


def search(scenario: Scenario) -> SearchResult:
    """Enumerate, judge, evaluate, keep the best: what the rate counts."""
    return explore(scenario.workload, scenario.cluster, scenario.software, scenario.pinned)


def listed(scenario: Scenario) -> int:
    """Layouts that there are, whatever the search looks at."""
    return count(scenario.workload, scenario.cluster, scenario.software, scenario.pinned)


def show(benchmark: Any, found: SearchResult) -> None:
    benchmark.extra_info["layouts"] = found.layouts
    benchmark.extra_info["evaluated"] = found.evaluated
    benchmark.extra_info["timed"] = found.timed
    benchmark.extra_info["evaluated_per_s"] = round(found.evaluated / found.seconds)


@pytest.mark.benchmark(group="search")
def test_search_of_llama_70b_on_1024_gpus(benchmark: Any) -> None:
    scenario = load_scenario(EXAMPLE)
    found = benchmark.pedantic(search, args=(scenario,), rounds=5, warmup_rounds=1)
    assert found.layouts == listed(scenario)
    assert found.evaluated > 60_000
    assert found.timed < found.evaluated / 10
    show(benchmark, found)


@pytest.mark.benchmark(group="search")
def test_search_of_deepseek_v3_on_2048_gpus_evaluates_a_million_layouts(benchmark: Any) -> None:
    scenario = make_scenario(DEEPSEEK)
    found = benchmark.pedantic(search, args=(scenario,), rounds=1)
    assert found.layouts == listed(scenario)
    assert found.evaluated >= 1_000_000
    assert found.timed < found.evaluated / 100
    show(benchmark, found)


@pytest.mark.benchmark(group="search")
def test_search_of_llama_405b_on_16384_gpus(benchmark: Any) -> None:
    scenario = make_scenario(LARGE_DENSE)
    found = benchmark.pedantic(search, args=(scenario,), rounds=2, warmup_rounds=1)
    assert found.feasible > 10_000
    show(benchmark, found)


@pytest.mark.benchmark(group="search")
def test_search_of_a_trillion_parameters_on_16384_gb300(benchmark: Any) -> None:
    scenario = make_scenario(LARGE_EXPERTS)
    found = benchmark.pedantic(search, args=(scenario,), rounds=1)
    assert found.layouts >= 3_000_000
    assert found.best.fits.all()
    show(benchmark, found)


@pytest.mark.benchmark(group="search")
def test_layers_of_llama_70b_dealt_anew(benchmark: Any) -> None:
    made = load_scenario(EXAMPLE)
    parts = made.workload, made.cluster, made.software
    even = explore(*parts, made.pinned | {"stages": ()}, keep=32)
    table = even.best.layouts
    table = table[np.flatnonzero(worth_rebalancing(table, made.workload, made.software))[:16]]
    priced = price_keys(table, *parts)
    dealt = benchmark.pedantic(rebalanced_stages, args=(table, priced), rounds=5, warmup_rounds=1)
    assert dealt is not None
    assert len(dealt[0]) <= 16


@pytest.mark.benchmark(group="layout")
def test_one_layout_of_deepseek_v3(benchmark: Any) -> None:
    layout = {"tp": 2, "pp": 8, "ep": 8, "sharding": "zero1"}
    made = make_scenario(DEEPSEEK | {"layout": layout})
    alone = predict(made).estimate.layouts
    parts = made.workload, made.cluster, made.software
    found = benchmark.pedantic(evaluate, args=(alone, *parts), rounds=20, warmup_rounds=1)
    assert len(found) == 1


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
def test_plan_with_its_page_from_a_cold_start(benchmark: Any, tmp_path: Path) -> None:
    """Search, verdict, curve over GPU counts, step, page: processor seconds of all processes."""
    words = ["plan", str(EXAMPLE), "--out", str(tmp_path)]
    command = [sys.executable, "-m", "simulator.cli.main", *words]
    before = os.times()
    benchmark.pedantic(
        subprocess.run,
        args=(command,),
        kwargs={"cwd": ROOT, "check": True, "stdout": subprocess.DEVNULL},
        rounds=3,
    )
    after = os.times()
    spent_s = after.children_user - before.children_user
    spent_s += after.children_system - before.children_system
    benchmark.extra_info["processor_s"] = round(spent_s / (3 if benchmark.enabled else 1), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


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
