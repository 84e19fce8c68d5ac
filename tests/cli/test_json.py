"""The JSON documents: keys frozen, strictly valid, terms that add up."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator._version import __version__
from simulator.api import plan, predict
from simulator.cli.main import app
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.terms import HIDDEN, TERMS
from simulator.errors import InfeasibleError

RUNNER = CliRunner()
MOE = ["--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--gpus", "16"]
DENSE = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]

HEAD = [
    *(
        "schema",
        "version",
        "command",
        "scenario",
        "assumed_software",
        "assumed_training",
        "idle_fields",
    ),
    *("elsewhere", "workload"),
]
LAYOUT = [
    "layout", "step_time_s", "p10_s", "p90_s", "probability_fastest", "probability_beats_best",
    "tokens_per_s_per_gpu", "mfu", "hfu", "terms_s", "hidden_s", "input", "memory_bytes",
    "peak_stage", "memory_total_bytes", "usable_bytes", "host_memory_bytes", "nvme_bytes",
    "memory_p10_bytes", "memory_p90_bytes", "fits", "verdict", "goodput", "lost",
    "interruption_every_s", "checkpoint", "days_ideal", "days", "days_p10", "days_p90", "gpu_hours",
    "usd_per_gpu_hour", "usd", "usd_p10", "usd_p90", "kwh", "kwh_p10",
    "kwh_p90", "co2_kg", "price", "planning_factor", "planned_days", "planned_usd", "planned_kwh",
    "deadline_chance", "budget_chance", "deadline_chance_without_factor",
    "budget_chance_without_factor", "evidence",
]  # fmt: skip
FIELDS = [
    "tp", "pp", "vpp", "cp", "cp_kind", "cp_a2a", "dp", "ep", "etp", "dispatcher", "micro_batch",
    "global_batch", "sharding", "shard_group", "reshard_after_forward", "sequence_parallel",
    "recompute", "recompute_layers", "recompute_modules", "offload_layers",
    "optimizer_offload", "parameter_offload", "schedule", "rank_order",
    "stages",
]  # fmt: skip


@cache
def printed(*arguments: str) -> str:
    """What a command prints with --json; each is run once."""
    result = RUNNER.invoke(app, [*arguments, "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def document(*arguments: str) -> dict[str, Any]:
    """Parse the output of a command as strictly as JSON is."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    found: dict[str, Any] = json.loads(printed(*arguments), parse_constant=refuse)
    return found


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_keys_are_frozen(command: str) -> None:
    found = document(command, *DENSE)
    search = ["search"] if command == "plan" else []
    front = ["even_stages", "tried", "alternatives", "pareto"] if command == "plan" else []
    others = ["other_trainings"] if command == "plan" else []
    around = ["launch", "binds", "would_help", "limits"] if command == "plan" else []
    said = ["tight_alternative", *["tie"] * (command == "plan"), "assumptions"]
    rest, summary = ["bearing_defaults", *others, *around], ["summary"] * (command == "plan")
    assert list(found) == [*HEAD, *search, *summary, "layouts", *said, *front, *rest, "caveats"]
    if around:
        assert found["launch"].splitlines()[1:]
        assert list(found["would_help"][0])[:3] == ["name", "change", "gain"]
        assert list(found["limits"]) == ["evidence", "untimed", "not_modelled"]
    assert (found["schema"], found["version"], found["command"]) == (1, __version__, command)
    assert list(found["workload"]) == [
        "name",
        "parameters",
        "active_parameters",
        "assumed",
        "model_flop_per_step",
    ]
    if search:
        assert list(found["search"]) == ["layouts", "feasible", "dropped", "caps", "seconds"]
    for layout in found["layouts"]:
        assert list(layout) == LAYOUT
        assert list(layout["layout"]) == FIELDS
        assert list(layout["terms_s"]) == [term.name for term in TERMS]
        assert list(layout["hidden_s"]) == list(HIDDEN)
        assert list(layout["memory_bytes"]) == list(MEMORY_KINDS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("names", [DENSE, MOE])
@pytest.mark.parametrize("command", ["plan", "predict"])
def test_terms_add_up(command: str, names: list[str]) -> None:
    for layout in document(command, *names)["layouts"]:
        step = layout["step_time_s"]
        assert sum(layout["terms_s"].values()) == pytest.approx(step, rel=1e-9)
        total = layout["memory_total_bytes"]
        assert sum(layout["memory_bytes"].values()) == pytest.approx(total, rel=1e-9)
        assert layout["fits"] == (total <= layout["usable_bytes"])
        assert layout["memory_p10_bytes"] < total < layout["memory_p90_bytes"]
        surely = layout["memory_p90_bytes"] <= layout["usable_bytes"]
        expected = "FITS" if surely else "TIGHT" if layout["fits"] else "OOM"
        assert layout["verdict"] == expected


def test_search_accounts_for_every_layout() -> None:
    search = document("plan", *DENSE)["search"]
    assert search["feasible"] + sum(search["dropped"].values()) == search["layouts"]


def test_without_tokens_or_other_layouts_there_is_null() -> None:
    (layout,) = document("predict", *DENSE)["layouts"]
    unknown = {
        *("probability_fastest", "probability_beats_best"),
        *("days_ideal", "days", "days_p10", "days_p90", "gpu_hours"),
        *("usd", "usd_p10", "usd_p90", "kwh", "kwh_p10", "kwh_p90", "co2_kg"),
        *("planning_factor", "planned_days", "planned_usd", "planned_kwh", "input"),
        *("deadline_chance", "budget_chance"),
        *("deadline_chance_without_factor", "budget_chance_without_factor"),
    }
    assert {name for name, value in layout.items() if value is None} == unknown


def test_with_tokens_the_whole_run_is_priced() -> None:
    (layout,) = document("predict", *DENSE, "--set", "training.tokens=1e12")["layouts"]
    run_s = layout["step_time_s"] * 1e12 / (1024 * 8192)
    assert layout["days_ideal"] == pytest.approx(run_s / 86_400)
    assert layout["days"] == pytest.approx(run_s / 86_400 / layout["goodput"])
    assert 0.95 < layout["goodput"] < 1.0
    assert sum(layout["lost"].values()) == pytest.approx(1.0 - layout["goodput"], rel=1e-6)
    assert layout["interruption_every_s"] > 86_400.0
    assert layout["usd"] == pytest.approx(layout["gpu_hours"] * layout["usd_per_gpu_hour"])
    assert layout["gpu_hours"] == pytest.approx(8 * 24 * layout["days"])  # no spare beside one
    assert layout["usd"] > 0 and layout["kwh"] > 0
    ratio = layout["step_time_s"] / layout["p10_s"]
    assert ratio < layout["days"] / layout["days_p10"] < 1.02 * ratio  # what fails is chance, too
    assert ratio < layout["days_p90"] / layout["days"] < 1.02 * ratio
    for name in ("usd", "kwh"):  # prices and draws are not known exactly either
        assert layout[name] / layout[f"{name}_p10"] > ratio
        assert layout[f"{name}_p90"] / layout[name] > ratio


def test_a_plan_says_how_sure_its_ranking_is() -> None:
    layouts = document("plan", *DENSE)["layouts"]
    assert layouts[0]["probability_beats_best"] == 0.5
    chances = [layout["probability_fastest"] for layout in layouts]
    assert chances[0] > 0.0 and sum(chances) <= 1.0
    for layout in layouts:
        assert 0.0 < layout["p10_s"] < layout["step_time_s"] < layout["p90_s"]
        assert 0.0 <= layout["probability_beats_best"] <= 0.5


def test_best_first_and_as_many_as_asked() -> None:
    steps = [layout["step_time_s"] for layout in document("plan", *DENSE)["layouts"]]
    assert steps == sorted(steps) and len(steps) == 20
    assert len(document("plan", *DENSE, "--set", "layout.tp=2", "--top", "3")["layouts"]) == 3


def test_the_scenario_is_the_one_that_was_answered() -> None:
    found = document("predict", *DENSE, "--set", "layout.tp=2")
    assert found["scenario"] == {
        "model": {"name": "llama-3.1-8b"},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "training": {"sequence_length": 8192, "global_batch": 1024},
        "layout": {"tp": 2},
    }


def test_a_layout_that_does_not_fit_says_so() -> None:
    names = ["--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "8"]
    (layout,) = document("predict", *names)["layouts"]
    assert (layout["fits"], layout["verdict"]) == (False, "OOM")


def test_a_report_is_written_only_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed.__wrapped__("plan", *DENSE, "--set", "layout.tp=2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sampled(9)
@pytest.mark.parametrize("software", ["torchtitan", "megatron-core", "deepspeed"])
@pytest.mark.parametrize("pinned", [{}, {"sharding": "zero3"}, {"pp": 2}])
def test_predict_takes_the_layouts_of_a_plan_back(software: str, pinned: dict[str, Any]) -> None:
    """Every field as the document has it, and the same step time."""
    names = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 16, "software": software}
    try:
        found = plan(**names, **pinned).document(top=6)
    except InfeasibleError:
        assert software == "deepspeed" and "pp" in pinned
        return
    for given in json.loads(json.dumps(found["layouts"])):
        again = predict(**names, **given["layout"]).document()["layouts"][0]
        assert again["layout"] == given["layout"]
        assert again["step_time_s"] == pytest.approx(given["step_time_s"], rel=1e-9)
