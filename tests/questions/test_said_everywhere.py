"""What the screen says of an answer stands in its JSON, on its page and in Python, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.assembly import assemble
from simulator.cli.screen import heading, print_screen
from simulator.goal import Goal
from simulator.planner.prediction import Prediction
from simulator.questions.power.answer import power_choices
from simulator.questions.power.command import screen as power_screen
from simulator.questions.predict.screen import screen as predict_screen
from simulator.questions.run_options import unjudged
from simulator.questions.sites.answer import several_sites
from simulator.questions.versus.answer import versus
from simulator.questions.versus.command import whole_runs
from simulator.reinforcement.rl_step import rl_step
from simulator.report.evidence import FLOP_CONVENTION
from simulator.report.numbers import job_line
from simulator.scenario import load_scenario, make_scenario

RUN = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 8, "tokens": 1e10}
ASSUMED = {"sequence_length": 8192, "global_batch": 1024}
"""README: what is taken where nobody says, 1,024 sequences on 8 GPUs."""
WORDS = "ssumed, because not given: training.sequence_length = 8192, training.global_batch = 1024"
PLAIN = {
    "model": {"name": "llama-3.2-1b"},
    "training": {"sequence_length": 8192, "global_batch": 64, "tokens": 1e10},
    "cluster": {"name": "dgx-h100", "gpus": 8},
}
LAYOUT = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "sharding": "zero1", "recompute": "none"}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return simulator.predict(**RUN)


def printed(blocks: Iterator[Any], capsys: pytest.CaptureFixture[str]) -> str:
    print_screen(blocks)
    return " ".join(capsys.readouterr().out.split())


def test_a_batch_that_nobody_gave_is_all_answers_of_a_step_of_reinforcement_learning() -> None:
    """128 prompts with 16 answers each and one update a step: 2,048; without [rl] 1,024."""
    names = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 8}
    answers = ["rl.prompts=128", "rl.samples=16", "rl.answer_tokens=1k"]
    assert assemble(None, names, overrides=answers).assumed["global_batch"] == 128 * 16
    assert assemble(None, names, overrides=answers[::2]).assumed["global_batch"] == 128
    assert assemble(None, names).assumed["global_batch"] == 1024
    given = assemble(None, names, overrides=[*answers, "training.global_batch=512"])
    assert "global_batch" not in given.assumed and given.workload.recipe.global_batch == 512


def test_what_nobody_gave_is_said_wherever_the_answer_goes(prediction: Prediction) -> None:
    scenario = prediction.scenario
    assert prediction.document()["assumed_training"] == ASSUMED
    assert WORDS in prediction.caveats[0]
    assert WORDS in heading(scenario).plain
    assert WORDS in job_line(scenario, prediction.outcome.price), "the head of the page"
    given = simulator.predict(**RUN, sequence_length=8192, global_batch=1024)
    assert given.document()["assumed_training"] == {}
    assert "because not given" not in " ".join([heading(given.scenario).plain, *given.caveats])


def test_caveats_of_the_screen_are_those_of_python_and_json(
    prediction: Prediction, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FLOP_CONVENTION in prediction.caveats
    assert any(line.startswith("Not modelled: ") for line in prediction.caveats)
    assert prediction.document()["caveats"] == list(prediction.caveats)
    on_screen = printed(predict_screen(prediction), capsys)
    for line in prediction.caveats:
        assert line.rstrip(".").split(": ", 1)[-1] in on_screen


IDLE = {
    "economics.rent.on_demand_usd_per_gpu_hour=1.8": "economics.basis is profile",
    "economics.in_use=0.5": "economics.basis is profile",
    "economics.own.server_usd=250e3": "economics.basis is profile",
    "economics.site.electricity_usd_per_kwh=0.3": "includes power",
    "training.moe_routing=random": "llama-3.2-1b has no experts",
    "training.batching=padded": "training.lengths are not given",
    "training.optimizer_offload_fraction=0.5": "layout.optimizer_offload is none",
    "run.checkpoints.memory_interval_s=60": "run.checkpoints.mode is async",
    "run.spares.keep_batch=false": "run.spares.when_none is wait",
    "layout.dispatcher=deepep": "llama-3.2-1b has no experts",
    "data.decoder=gpu": "data.kind is tokens, not images",
    "data.samples=1e6": "data.local_copy is false",
    "data.workers=8": "nothing is read or prepared that takes time",
}
"""A field that is given alone, and why nothing hangs on it: the sentences of `foreshard fields`."""


@pytest.mark.parametrize("given", IDLE)
def test_a_field_on_which_nothing_hangs_is_said_to_be_idle(given: str) -> None:
    """Every figure stays as it is, so that whoever typed it would believe that it was counted."""
    scenario = make_scenario(PLAIN, overrides=[given])
    name = given.partition("=")[0]
    said = next(field for field in scenario.idle if name.startswith(field))
    assert IDLE[given] in scenario.idle[said]
    for words in (heading(scenario).plain, job_line(scenario, scenario.tariff.price)):
        assert "given, but nothing here hangs on it" in words and said in words
    spoken = simulator.predict(scenario, **LAYOUT)
    assert any(said in line for line in spoken.caveats)
    assert spoken.document()["idle_fields"] == scenario.idle
    silent = simulator.predict(make_scenario(PLAIN), **LAYOUT)
    assert spoken.outcome.usd[0] == silent.outcome.usd[0]
    assert spoken.step_time_s == silent.step_time_s


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["layout.cp=1", "layout.cp_kind=all_to_all"], {"layout.cp_kind": "layout.cp is 1"}),
        (
            ["layout.sharding=ddp", "layout.shard_group=4"],
            {"layout.shard_group": "layout.sharding is ddp"},
        ),
    ],
)
def test_a_field_of_a_layout_that_another_one_makes_idle(
    given: list[str], why: dict[str, str]
) -> None:
    scenario = make_scenario(PLAIN, overrides=given)
    assert scenario.idle == why
    silent = make_scenario(PLAIN, overrides=given[:1])
    spoken, plain = (simulator.predict(x) for x in (scenario, silent))
    assert spoken.step_time_s == plain.step_time_s
    assert spoken.memory_bytes == plain.memory_bytes


ROLLOUTS = {
    "rl.tool_s=30": "rl.turns is 1",
    "rl.reward_workers=2": "rl.reward_s is 0",
    "rl.in_flight_updates=false": "rl.staleness is 0",
    "rl.generation.acceptance=0.1": "rl.generation.speculative_tokens is 0",
}
"""The same of what `foreshard rl` alone prices."""


@pytest.mark.parametrize("given", ROLLOUTS)
def test_a_field_of_rollouts_on_which_nothing_hangs_is_said_to_be_idle(given: str) -> None:
    plain = load_scenario(EXAMPLES / "rl-on-policy.toml")
    named = {"overrides": [given], "where": plain.where}
    scenario = make_scenario(plain.document, **named)
    assert scenario.idle == {given.partition("=")[0]: ROLLOUTS[given]}
    silent, spoken = (rl_step(one) for one in (plain, scenario))
    assert spoken.step_time_s == silent.step_time_s


@pytest.mark.parametrize(
    "given",
    [
        ["data.kind=text", "data.tokenizer=slow", "data.workers=8"],
        ["economics.basis=on demand", "economics.rent.on_demand_usd_per_gpu_hour=1.8"],
        ["economics.basis=own", "economics.own.server_usd=250e3", "economics.in_use=0.5"],
        ["training.lengths=[4096]", "training.batching=padded"],
        ["run.checkpoints.mode=memory", "run.checkpoints.memory_interval_s=60"],
        ["training.batching=packed", "training.moe_imbalance=1", "economics.in_use=1.0"],
        ["layout.cp=2", "layout.cp_kind=all_to_all", "layout.sharding=zero3"],
        ["model.name=mixtral-8x7b", "layout.dispatcher=allgather"],
    ],
)
def test_a_field_that_bears_on_the_answer_is_not_called_idle(given: list[str]) -> None:
    assert make_scenario(PLAIN, overrides=given).idle == {}


def test_less_than_a_step_is_said_to_be_so() -> None:
    """1,024 sequences of 8,192 tokens are 8,388,608: --tokens 15 for 15T is a part of a step."""
    short = simulator.predict(**{**RUN, "tokens": 15})
    assert "15 tokens (less than the 8.39M of one step)" in heading(short.scenario).plain
    assert any("less than one step, which has 8,388,608" in line for line in short.caveats)


def test_a_deadline_is_not_passed_over(prediction: Prediction) -> None:
    """10B tokens at some 40 % of 8 x 989 TFLOP/s take 7 hours: an hour is too little, 9 USD, too.

    6 x 1.24e9 x 1e10 FLOP over 3.2e15 a second.
    """
    goal = replace(prediction.scenario.goal, deadline_days=1 / 24, budget_usd=9.0)
    scenario = replace(prediction.scenario, goal=goal, pinned=LAYOUT)
    sides = versus(scenario, {"tp": 1}, {"tp": 2}, search=False)
    text = " ".join(whole_runs(dict(zip("ab", sides.predictions, strict=True)), sides))
    assert text.count("chance, missed") == 4, "deadline and budget of both sides"


@pytest.mark.evidence
def test_a_cap_of_power_does_not_pass_over_a_deadline(
    prediction: Prediction, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # a heading of two words on a line
    goal = replace(prediction.scenario.goal, deadline_days=1 / 24, budget_usd=9.0)
    scenario = replace(prediction.scenario, goal=goal, pinned=LAYOUT)
    power = power_choices(scenario, 20.0, shares=(1.0,))
    assert power.best.deadline_chance is not None and power.best.deadline_chance < 0.01
    assert power.best.budget_chance is not None and power.best.budget_chance < 0.01
    shown = printed(power_screen(power), capsys)
    assert "in time" in shown and "in budget" in shown
    assert power.document()["choices"][0]["deadline_chance"] == power.best.deadline_chance


def test_a_limit_that_ideal_days_are_not_held_to_is_named() -> None:
    assert unjudged(Goal()) == []
    assert unjudged(Goal(deadline_days=1.0, budget_usd=2.0)) == [
        "goal.deadline_days and goal.budget_usd: not judged here; `foreshard plan` does, for one"
        " place."
    ]


@pytest.mark.evidence
def test_ideal_days_are_not_held_against_a_deadline_and_say_so() -> None:
    path = EXAMPLES / "two-sites.toml"
    late = several_sites(load_scenario(path, ["goal.deadline_days=1"]))
    assert any(line.startswith("goal.deadline_days: not judged here") for line in late.caveats)
