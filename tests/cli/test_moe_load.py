"""Loads of experts and ways to reach them, as a user types them."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app

pytestmark = pytest.mark.usefixtures("searched_once")
RUNNER = CliRunner()
MIXTRAL = ["--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--gpus", "64", "--set"]
UNEVEN = "training.moe_load=[0.2,0.1,0.1,0.1,0.1,0.1,0.1,0.2]"


def run(*settings: str, command: str = "predict", base: list[str] = MIXTRAL) -> Any:
    words = [word for setting in settings for word in ("--set", setting)]
    return RUNNER.invoke(app, [command, *base, "layout.ep=8", *words])


def step_s(*settings: str) -> float:
    result = run(*settings, command="predict", base=["--json", *MIXTRAL])
    assert result.exit_code == 0, result.output
    return float(json.loads(result.stdout)["layouts"][0]["step_time_s"])


def test_a_load_vector_is_the_imbalance_of_its_fullest_rank() -> None:
    assert step_s(UNEVEN) == pytest.approx(step_s("training.moe_imbalance=1.6"), rel=1e-12)
    forced = step_s("training.moe_routing=forced")
    assert step_s("training.moe_load=[0.5,0.5]") == pytest.approx(forced, rel=1e-12)
    capped = step_s(UNEVEN, "training.moe_capacity_factor=1.25")
    assert capped == pytest.approx(step_s("training.moe_imbalance=1.25"), rel=1e-12)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("[0.4,0.4]", "training.moe_load: must add up to 1, got 0.8"),
        ("[0.5,0.3,0.2]", "must have one share for each of 8 experts, or for equal runs of them"),
        ("[-0.5,1.5]", "training.moe_load.0: must be greater than or equal to 0, got -0.5"),
        ("[0.6,0.4,0,0,0,0,0,0]", "no share may be above 0.5: a token has 2 different experts"),
        ("[]", "training.moe_load"),
        ("[nan,1]", "training.moe_load.0"),
    ],
)
def test_loads_that_cannot_be(setting: str, message: str) -> None:
    result = run(f"training.moe_load={setting}")
    assert result.exit_code == 2 and message in result.output, result.output


def test_a_load_needs_experts_and_no_second_load() -> None:
    dense = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8", "--set"]
    result = RUNNER.invoke(app, ["predict", *dense, "training.moe_load=[0.5,0.5]"])
    assert result.exit_code == 2 and "llama-3.1-8b has no experts" in result.output
    result = run(UNEVEN, "training.moe_imbalance=2.0")
    assert result.exit_code == 2 and "must be left out where moe_load is given" in result.output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["layout.dispatcher=all-gather"], "layout.dispatcher: must be 'alltoall', 'allgather'"),
        (["layout.dispatcher=any"], "must be one dispatcher; plan tries all of them"),
        (
            ["layout.dispatcher=deepep", "cluster.software=torchtitan-2024", "layout.sharding=ddp"],
            "layout.dispatcher: must be one of alltoall in torchtitan-2024, got 'deepep'",
        ),
        (
            ["layout.dispatcher=allgather", "training.moe_capacity_factor=1.5"],
            "layout.dispatcher: must not be allgather with training.moe_capacity_factor, got"
            " allgather (nearest: alltoall or deepep)",
        ),
    ],
)
def test_dispatchers_that_cannot_be(settings: list[str], message: str) -> None:
    result = run(*settings)
    assert result.exit_code == 2 and message in result.output, result.output


def test_a_plan_tries_every_dispatcher_where_asked() -> None:
    arguments = ["plan", "--json", *MIXTRAL, "layout.dispatcher=any", "--set", "layout.pp=1"]
    arguments += ["--set", "layout.tp=2", "--set", "layout.cp=1"]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = {row["layout"]["dispatcher"] for row in json.loads(result.stdout)["layouts"]}
    assert len(found) > 1


@pytest.mark.parametrize("command", ["predict", "plan"])
def test_no_rank_is_fuller_than_its_group_allows(command: str) -> None:
    """8 experts, 2 for a token: one of 8 ranks has half of all pairs at most, 4 times the mean."""
    for wrong in ("16.0", "1e150"):
        result = run(f"training.moe_imbalance={wrong}", command=command)
        assert result.exit_code == 2, result.output
        assert "training.moe_imbalance: must be at most 4: of ep = 8 ranks" in result.stderr
        assert "(nearest: 4)" in result.stderr
    assert step_s("training.moe_imbalance=4.0") > step_s("training.moe_imbalance=2.0")


def test_one_rank_has_the_mean() -> None:
    """A search compares layouts of any ep; with one expert rank there is nothing to be uneven."""
    alone = [word.replace("layout.ep=8", "layout.ep=1") for word in MIXTRAL]
    even, uneven = (
        run(f"training.moe_imbalance={x}", "layout.ep=1", base=["--json", *alone])
        for x in ("1.0", "2.0")
    )
    times = [json.loads(x.stdout)["layouts"][0]["step_time_s"] for x in (even, uneven)]
    assert times[0] == times[1]
