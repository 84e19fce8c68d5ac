"""The Python face: public names frozen, a light import, files and keywords alike."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.errors import InfeasibleError, InputError
from simulator.scenario import load_scenario

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "llama-3.1-70b.toml"
NAMES: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 8}


def test_public_names_are_frozen() -> None:
    assert simulator.__all__ == [
        *("Cluster", "Deviation", "Jitter", "Layouts", "Network", "Workload", "__version__"),
        *(
            "admit",
            "compare",
            "diagnose",
            "distil",
            "fabrics",
            "lint",
            "measurements",
            "parameter_server",
            "plan",
            "power",
            "predict",
            "recommender",
            "releases",
            "rent_or_buy",
            "rl",
        ),
        "schedule",
        *("several_sites", "simulate", "simulate_run", "size", "sweep", "validate", "versus"),
        "what_if",
    ]
    assert set(simulator.__all__) <= set(dir(simulator))
    for name in simulator.__all__:
        assert getattr(simulator, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        _ = simulator.plam


def test_importing_the_package_costs_nothing() -> None:
    code = "import sys, simulator\nprint([x for x in ('numpy', 'pydantic') if x in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_ten_lines_are_enough() -> None:
    found = simulator.predict(**NAMES, tp=2, sequence_length=4096, global_batch=32)
    assert found.layout["tp"] == 2 and found.layout["dp"] == 4
    assert found.step_time_s > 0 and 0 < found.mfu < 1
    best = simulator.plan(**NAMES, sequence_length=4096, global_batch=32)
    assert best.estimate.step_time_s[0] <= found.step_time_s or not found.fits


def test_a_file_and_keywords_that_replace_some_of_it() -> None:
    whole = simulator.predict(EXAMPLE, tp=8)
    assert whole.scenario.cluster.gpus == 1024
    fewer = simulator.predict(EXAMPLE, tp=8, gpus=512, precision="fp8", software="torchtitan")
    assert fewer.scenario.cluster.gpus == 512
    assert fewer.scenario.workload.recipe.precision == "fp8"
    assert fewer.scenario.software.name == "torchtitan"


def test_a_ready_scenario_with_other_layout_fields() -> None:
    scenario = load_scenario(EXAMPLE)
    cluster = dataclasses.replace(scenario.cluster, name="mine")
    found = simulator.predict(dataclasses.replace(scenario, cluster=cluster), tp=4, pp=2)
    assert found.scenario.cluster.name == "mine"
    assert found.scenario.pinned == {"tp": 4, "pp": 2}
    with pytest.raises(InputError, match="gpus: cannot be given beside a ready Scenario"):
        simulator.predict(scenario, gpus=8)


def test_pins_hold_in_a_plan() -> None:
    best = simulator.plan(**NAMES, global_batch=64, tp=4, sharding="zero1")
    assert set(best.estimate.layouts.tp) == {4}


def test_none_means_not_given() -> None:
    assert simulator.predict(**NAMES, tp=None).layout["tp"] == 1


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({}, ["arguments: a scenario file, or model, cluster and gpus, must be given"
              " (missing: model, cluster, gpus)"]),
        ({**NAMES, "tpp": 4}, ["arguments: tpp: unknown argument (did you mean 'tp'?)"]),
        ({**NAMES, "gpu": 4}, ["arguments: gpu: unknown argument (did you mean 'gpus'?)"]),
        ({**NAMES, "gpus": -8}, ["arguments: cluster.gpus: must be greater than 0, got -8"]),
        ({**NAMES, "tp": 7},
         ["arguments: layout.tp: must divide 32 attention heads, got 7 (nearest: 8)"]),
        ({**NAMES, "model": "lama", "cluster": "dgx-h10", "tokens": -1},
         ["arguments: model.name: must be a model of the zoo or the path of a config.json, got "
          "'lama' (did you mean 'llama-3-8b'?)",
          "arguments: training.tokens: must be greater than or equal to 1, got -1",
          "arguments: cluster.name: unknown cluster 'dgx-h10' (did you mean 'dgx-h100'?)"]),
    ],
)  # fmt: skip
def test_problems_are_worded_as_on_the_command_line(
    given: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        simulator.predict(**given)
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert found.startswith(expected)


@pytest.mark.evidence
def test_a_plan_that_finds_nothing_says_what_came_nearest() -> None:
    with pytest.raises(InfeasibleError, match="nearest miss"):
        simulator.plan(**{**NAMES, "model": "llama-3.1-70b"})


def test_default_batch_divides_over_any_number_of_gpus() -> None:
    for gpus in (8, 24, 1536):
        batch = simulator.predict(**{**NAMES, "gpus": gpus}).layout["global_batch"]
        assert batch >= 1024 and batch % gpus == 0


def test_default_length_is_no_longer_than_the_model_allows() -> None:
    found = simulator.predict(**{**NAMES, "model": "gpt2-small"})
    assert found.scenario.workload.recipe.sequence_length == 1024


def test_compare_takes_gpus_as_every_other_face_does() -> None:
    names = {"model": "llama-3.2-1b", "clusters": ["dgx-h100"], "micro_batch": 1, "jobs": 1}
    one, text = (simulator.compare(**names, gpus=gpus) for gpus in (8, "8"))
    assert [row.gpus for row in one.rows] == [row.gpus for row in text.rows] == [8]
    with pytest.raises(InputError, match="arguments: gpus: must be"):
        simulator.compare(**names, gpus="eight")


def test_frames_hold_what_to_plan_for_and_the_price() -> None:
    run = {**NAMES, "tokens": 1e11}
    row = simulator.predict(**run).to_frame().iloc[0]
    (layout,) = simulator.predict(**run).document()["layouts"]
    for name in ("planned_days", "planned_usd"):
        for end in ("p10", "p50", "p90"):
            assert row[f"{name}_{end}"] == layout[name][end]
    # the middle is the factor times the run; money is hours times price
    assert row["planned_days_p50"] == pytest.approx(
        layout["planning_factor"]["value"] * row["days"]
    )
    assert row["usd"] == pytest.approx(row["gpu_hours"] * row["usd_per_gpu_hour"])
    assert row["price_date"] == layout["price"]["date"] and row["usd_p10"] == layout["usd_p10"]
    ideal = simulator.predict(**run, ideal=True).to_frame().iloc[0]
    assert ideal["days"] == ideal["days_ideal"] and ideal[["planned_days_p50"]].isna().all()


def test_software_may_be_a_name_or_what_is_put_over_its_profile() -> None:
    named = simulator.predict(**NAMES, software="megatron-core")
    blank = simulator.predict(**NAMES, software={"name": "megatron-core"})
    assert named.scenario.software == blank.scenario.software
    fp32 = simulator.predict(
        **NAMES, software={"reduce_dtype": "fp32", "kernels.fused.loss": False}
    )
    assert fp32.scenario.software.states.reduce == 4.0
    assert "loss" not in fp32.scenario.software.kernels.fused
    assert fp32.step_time_s > named.step_time_s
    from_file = simulator.predict(EXAMPLE, tp=8, software={"overlap": {"gradient_reduce": False}})
    assert not from_file.scenario.software.overlap.gradient_reduce
    with pytest.raises(InputError, match=r"arguments: software\.dispatchr: unknown field"):
        simulator.predict(**NAMES, software={"dispatchr": "deepep"})
