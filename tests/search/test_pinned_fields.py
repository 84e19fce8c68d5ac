"""Pins: contradictions are named, by plan as by predict, and what agrees is priced as it is."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.step import evaluate
from simulator.errors import InputError
from simulator.planner.plan import plan
from simulator.planner.prediction import predict
from simulator.scenario import Scenario, make_scenario


def scenario(**layout: Any) -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "training": {"sequence_length": 2048, "global_batch": 32},
            "cluster": {"name": "dgx-h100", "gpus": 4},
            "layout": {"tp": 1, "cp": 1, "micro_batch": 1, **layout},
        }
    )


@pytest.mark.parametrize(
    ("pins", "both"),
    [
        ({"recompute": "none", "recompute_modules": "norm"}, ("recompute_modules", "recompute =")),
        ({"schedule": "1f1b", "vpp": 4, "pp": 2}, ("schedule", "vpp =")),
    ],
)
def test_both_are_named(pins: dict[str, Any], both: tuple[str, str]) -> None:
    for found in (plan, predict):
        with pytest.raises(InputError) as error:
            found(scenario(**pins))
        assert all(word in str(error.value) for word in both)


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (
            {"schedule": "dualpipe"},
            "layout.schedule: must be one of 1f1b, interleaved in megatron-core, got 'dualpipe'",
        ),
        (
            {"schedule": "1f1b", "vpp": 4},
            "layout.schedule: must be interleaved with vpp = 4, got '1f1b'",
        ),
        (
            {"stages": [8, 8], "vpp": 4},
            "layout.vpp: must divide the 2 numbers of layout.stages, got 4 (nearest: 2)",
        ),
    ],
)
def test_what_no_layout_can_have_is_refused_before_the_search(
    pins: dict[str, Any], said: str
) -> None:
    for found in (plan, predict):
        with pytest.raises(InputError) as error:
            found(scenario(**pins))
        assert error.value.problems == (f"scenario: {said}",)


@pytest.mark.parametrize(
    "pins",
    [
        {"schedule": "1f1b", "vpp": 1, "pp": 1},
        {"recompute": "selective", "recompute_modules": "mlp+norm", "pp": 1},
        {"schedule": "any", "vpp": 1, "pp": 2},
    ],
)
def test_pins_that_agree_are_kept(pins: dict[str, Any]) -> None:
    row = plan(scenario(**pins)).estimate.layouts.row(0)
    assert row["pp"] == pins["pp"]
    if "recompute_modules" in pins:
        assert set(row["recompute_modules"].split("+")) == {"mlp", "norm"}


@pytest.mark.parametrize("words", ["norm", "mlp", "norm+mlp", "core_attn+norm"])
def test_pinned_modules_cost_in_a_search_what_they_cost_alone(words: str) -> None:
    asked = scenario(recompute="selective", recompute_modules=words, pp=1)
    searched = plan(asked).estimate
    layouts = searched.layouts[np.arange(1)]
    alone = evaluate(layouts, asked.workload, asked.cluster, asked.software)
    assert searched.step_time_s[0] == pytest.approx(float(alone.step_time_s[0]), rel=1e-12)
    assert searched.memory_total_bytes[0] == alone.memory_total_bytes[0]
