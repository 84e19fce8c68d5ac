"""What a search leaves out is what a command would have to leave unsaid, for every software."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import catalogue
from simulator.errors import InfeasibleError, InputError
from simulator.interop.exporting import LAUNCHERS
from simulator.layout.rules.rule import Setting
from simulator.layout.rules.software_rules import sayable, unsaid
from simulator.planner.plan import plan
from simulator.scenario import Scenario, make_scenario
from simulator.search.explore import explore
from simulator.software.profile import launchers, load_software
from tests.search.test_never_beaten import drawn_layout, runnable

WITH_A_CALL = {"reshard_after_forward"}
"""Fields that a comment of the command tells how to pass, for want of a setting."""


FIRST = ("dgx-h100", "mi300x-8", "tpu-v5p", "trn1-32xlarge", "hls-gaudi2", "atlas-800t-a2")
"""Clusters of several platforms, which are asked before all others."""


def scenario_of(software: str, model: str = "llama-3.1-8b", **more: Any) -> Scenario | None:
    for cluster in (*FIRST, *catalogue.names("clusters")):
        try:
            return make_scenario(
                {
                    "model": {"name": model},
                    "cluster": {"name": cluster, "gpus": 16, "software": software},
                    "training": {"sequence_length": 4096, "global_batch": 64, "tokens": 1e10},
                    **more,
                }
            )
        except InputError:
            continue
    return None


@pytest.mark.sampled(9)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("software", catalogue.names("software"))
def test_rules_of_a_launcher_are_what_its_command_leaves_unsaid(software: str, model: str) -> None:
    scenario = scenario_of(software, model)
    if scenario is None:
        pytest.skip("no machine of its platform, or no such model, in this size")
    chance = random.Random(f"{software} {model}")
    table = runnable([drawn_layout(scenario, chance) for _ in range(100)], scenario, capped=False)
    if table is None:
        return
    at = Setting(workload=scenario.workload, cluster=scenario.cluster, software=scenario.software)
    lost, of_command = unsaid(table, at), LAUNCHERS[scenario.software.launcher].unsaid
    for i in range(len(table)):
        named = set(of_command(table.row(i), scenario)) - WITH_A_CALL
        assert {name for name, mask in lost.items() if mask[i]} == named, table.describe(i)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("software", catalogue.names("software"))
def test_a_winner_is_said_whole_by_its_command(software: str) -> None:
    scenario = scenario_of(software)
    if scenario is None:
        pytest.skip("no machine of its platform in this size")
    try:
        best = plan(scenario).estimate.layouts
    except InfeasibleError:
        return
    named = LAUNCHERS[scenario.software.launcher].unsaid(best.row(0), scenario)
    assert not set(named) - WITH_A_CALL, best.describe(0)


def test_what_is_pinned_is_searched_whatever_the_command_says() -> None:
    scenario = scenario_of("torchtitan", layout={"recompute": "full", "recompute_layers": 3})
    assert scenario is not None
    setting = scenario.workload, scenario.cluster, scenario.software
    found = explore(*setting, scenario.pinned, keep=8)
    assert len(found.best) and np.all(found.best.layouts.recompute_layers == 3)
    at = Setting(workload=setting[0], cluster=setting[1], software=setting[2])
    assert not sayable(found.best.layouts, at, {}).any()


def test_every_launcher_has_a_writer_of_commands() -> None:
    assert set(launchers()) == set(LAUNCHERS)


def test_a_profile_of_an_unknown_launcher_is_refused(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text('base = "torchtitan"\nlauncher = "torchtitn"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"launcher: must be one of .*, got 'torchtitn'"):
        load_software(str(profile))
