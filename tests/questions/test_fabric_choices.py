"""Candidate fabrics: laws of their times, prices by hand, the front."""

import json

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.questions.versus.fabrics import FabricChoices, fabric_choices
from simulator.scenario import make_scenario

pytestmark = pytest.mark.evidence


@pytest.fixture(scope="module")
def found() -> FabricChoices:
    """64 H100 with a layout that sends much over the network."""
    layout = {"tp": 8, "pp": 1, "cp": 1, "micro_batch": 1, "sharding": "zero1", "recompute": "none"}
    return fabric_choices(
        make_scenario(
            {
                "model": {"name": "llama-3.1-8b"},
                "cluster": {"name": "dgx-h100", "gpus": 64},
                "training": {"sequence_length": 4096, "global_batch": 64, "tokens": 1e11},
                "layout": layout,
            }
        )
    )


def test_more_bits_and_less_narrow_ones_are_never_slower(found: FabricChoices) -> None:
    steps = {
        (row.adapters, row.gbps, row.oversubscription, row.rails): row.step_time_s
        for row in found.rows
    }
    for (adapters, gbps, narrow, rails), step_s in steps.items():
        for other in (
            (2 * adapters, gbps, narrow, rails),
            (adapters, 2 * gbps, narrow, rails),
            (adapters, gbps, narrow // 2, rails),
        ):
            assert steps.get(other, 0.0) <= step_s * (1.0 + 1e-9)
    assert steps[8, 800, 1, False] < steps[1, 100, 1, False]


def test_a_network_costs_by_its_bits_and_what_lies_above_the_leaves(found: FabricChoices) -> None:
    """8 servers of 310,000 USD, one tier of switches: 4.8 % with 8 x 400 Gbit/s."""
    price = {
        (row.adapters, row.gbps, row.oversubscription): row.network_usd
        for row in found.rows
        if not row.rails
    }
    assert price[8, 400, 1] == pytest.approx(8 * 310_000 * 0.048, rel=1e-12)
    assert price[4, 400, 1] == pytest.approx(8 * 310_000 * 0.048 / 2, rel=1e-12)
    assert price[8, 400, 8] == price[8, 400, 1]  # nothing lies above one tier


def test_a_domain_of_72_costs_what_is_given() -> None:
    """18 servers as above, 5,000 USD more for each of 144 GPUs in racks; without it no price."""
    document = {
        "model": {"name": "llama-3.2-1b"},
        "cluster": {"name": "dgx-h100", "gpus": 144},
        "training": {"sequence_length": 2048, "global_batch": 144, "tokens": 1e10},
        "layout": {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "none"},
    }
    own = {"basis": "own", "own": {"fast_domain_usd_per_gpu": 5000}}
    asked = fabric_choices(make_scenario({**document, "economics": own}))
    silent = fabric_choices(make_scenario({**document, "economics": {"basis": "own"}}))
    price, hours = ({} for _ in range(2))
    for row in asked.rows:
        if (row.adapters, row.gbps, row.oversubscription, row.rails) == (8, 400, 1, False):
            price[row.domain], hours[row.domain] = row.network_usd, row.usd / row.days
    assert price[8] == pytest.approx(18 * 310_000 * 0.048, rel=1e-12)
    assert price[72] == pytest.approx(price[8] + 144 * 5000, rel=1e-12)
    assert hours[72] > hours[8]
    known = {row.domain for row in silent.rows if row.network_usd is not None}
    assert known == {8} and {row.domain for row in silent.rows} == {8, 72}


def test_none_of_the_front_is_beaten(found: FabricChoices) -> None:
    front = found.front()
    assert front[0].step_time_s == min(row.step_time_s for row in found.rows)
    for row in front:
        assert row.network_usd is not None and row.usd is not None
        better = [
            one for one in found.rows
            if one.network_usd is not None and one.step_time_s <= row.step_time_s
            and one.network_usd < row.network_usd
        ]  # fmt: skip
        assert not better


def test_the_command_writes_them() -> None:
    names = ["--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--gpus", "16"]
    pins = ["--set", "layout.tp=1", "--set", "layout.pp=1", "--set", "layout.cp=1"]
    runner = CliRunner()
    done = runner.invoke(app, ["what-if", *names, *pins, "--fabrics", "--json"])
    assert done.exit_code == 0
    rows = json.loads(done.stdout)["rows"]
    assert [row["step_time_s"] for row in rows] == sorted(row["step_time_s"] for row in rows)
    wrong = runner.invoke(app, ["what-if", *names, "--fabrics", "--change", "memory=2"])
    assert wrong.exit_code == 2 and "--change: must be left out with --fabrics" in wrong.stderr
