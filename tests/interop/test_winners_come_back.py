"""Winners of random scenarios, for all software: launched and read again they are what was planned.

The launch command of a plan's best layout is read as a user's own script would be; layout, step and
memory are those of the plan, or a comment of the command names the field that it has no words for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulator.cost.step import evaluate
from simulator.errors import InfeasibleError, InputError
from simulator.interop.exporting import launch_flags
from simulator.interop.launch_files.merging import import_launch
from simulator.layout.layouts import Layouts
from simulator.planner.plan import plan
from simulator.scenario import Scenario
from simulator.search.defaults import complete
from tests.search.test_never_beaten import drawn_scenario

STEP, MEMORY = 1e-3, 5e-3
"""Relative differences that count as the same."""


@dataclass(frozen=True, slots=True)
class Return:
    software: str
    kind: str
    """same, said, refused or silent."""
    words: str


def returned(scenario: Scenario, folder: Path) -> Return | None:
    """What becomes of a plan's best layout on its way to a script and back."""
    try:
        best = plan(scenario, keep=8).estimate.take(slice(0, 1))
    except InfeasibleError:
        return None
    software, recipe = scenario.software.name, scenario.workload.recipe
    text = launch_flags(best.layouts, scenario)
    path = folder / "launch.sh"
    path.write_text(text)
    made = scenario.document["cluster"]
    names = {"model": scenario.document["model"]["name"], "software": software}
    names |= {"cluster": made["name"], "gpus": made["gpus"]}
    training = {k: v for k, v in scenario.document["training"].items() if k != "tokens"}
    overrides = [f"training.{name}={value!r}".replace("'", '"') for name, value in training.items()]
    about = f"{names} {recipe.sequence_length} x {recipe.global_batch} {best.layouts.describe()}"
    try:
        found = import_launch([path], names, overrides)
    except InputError as error:
        return Return(software, "refused", f"{about}: {error.problems[0]}")
    back = Layouts.of(**complete(found.scenario, found.scenario.pinned)[0])
    setting = scenario.workload, scenario.cluster, scenario.software
    again = evaluate(back, *setting)
    step = float(again.step_time_s[0] / best.step_time_s[0])
    memory = float(again.memory_total_bytes[0] / best.memory_total_bytes[0])
    if abs(step - 1.0) <= STEP and abs(memory - 1.0) <= MEMORY:
        return Return(software, "same", about)
    before, after = best.layouts.row(), back.row()
    differs = [name for name in before if before[name] != after[name]]
    notes = [line for line in text.splitlines() if line.startswith("#")]
    said = all(any(f"layout.{name}" in note for note in notes) for name in differs)
    words = f"{about} -> {back.describe()}: step x {step:.4f}, memory x {memory:.4f}"
    return Return(software, "said" if said and differs else "silent", words)


def drawn(numbers: range, folder: Path) -> list[Return]:
    every = []
    for number in numbers:
        chance = random.Random(f"comes back {number}")
        scenario = None
        while scenario is None:
            scenario = drawn_scenario(chance)
        if (answer := returned(scenario, folder)) is not None:
            every.append(answer)
    return every


def test_winners_come_back_as_they_were(tmp_path: Path) -> None:
    every = drawn(range(3), tmp_path)
    assert [x for x in every if x.kind in ("silent", "refused")] == []
    assert len(every) >= 2


@pytest.mark.evidence
def test_95_of_100_come_back_the_same_and_the_rest_is_said(tmp_path: Path) -> None:
    every = drawn(range(200), tmp_path)
    assert [x for x in every if x.kind in ("silent", "refused")] == []
    same = sum(x.kind == "same" for x in every)
    assert same >= 0.95 * len(every)
