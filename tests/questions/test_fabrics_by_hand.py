"""Candidate fabrics by hand: bits above the leaves, the front, prices of networks and racks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulator.economics.ownership import Use, load_page
from simulator.files import Figure
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.questions.versus import fabrics
from simulator.questions.versus.fabrics import (
    FabricChoice,
    FabricChoices,
    _changed,
    _dear,
    _on_each,
    _owned,
    _rack_usd,
)
from simulator.scenario import Scenario, make_scenario


@pytest.fixture(scope="module")
def made() -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "cluster": {"name": "dgx-h100", "gpus": 16},
            "training": {"sequence_length": 2048, "global_batch": 16, "tokens": 1e10},
        }
    )


def a_fabric(step_s: float, usd: float | None = None, **more: Any) -> FabricChoice:
    given: dict[str, Any] = {
        "change": "", "scenario": None, "layout": "dp", "memory_total_bytes": 1.0,
        "memory_verdict": "FITS", "adapters": 4, "gbps": 200, "rails": False, "oversubscription": 1,
        "domain": 8, "days": None, "usd": None,
    }  # fmt: skip
    return FabricChoice(step_time_s=step_s, network_usd=usd, **{**given, **more})


def test_bits_of_a_network_are_those_of_adapters_and_above_the_leaves() -> None:
    """Four times 200 Gbit/s, and a half or a fifth of it above; a price counts in their place."""
    assert _dear(a_fabric(1.0)) == 4 * 200 * 2.0
    assert _dear(a_fabric(1.0, oversubscription=2)) == 4 * 200 * 1.5
    assert _dear(a_fabric(1.0, adapters=3, gbps=400, oversubscription=5)) == 3 * 400 * 1.2
    assert _dear(a_fabric(1.0, 700.0, oversubscription=5)) == 700.0


def front(made: Scenario, *rows: FabricChoice) -> list[int]:
    answer = FabricChoices(scenario=made, rows=rows)
    return [next(i for i, row in enumerate(rows) if row is one) for one in answer.front()]


def test_every_fabric_is_tried(made: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 to 8 adapters of 100 to 800 Gbit/s, doubled, as narrow as 1 to 8; rails where they can
    matter: not above one adapter, and not where nothing is narrow."""
    tried = []

    def nothing_fits(layouts: Any, workload: Any, cluster: Cluster, software: Any) -> Any:
        network, rails = cluster.node.scale_out, cluster.fabric.topology == "rail-optimised"
        gbps = round(float(network.adapter_bytes_per_s) * 8.0 / 1e9)
        narrow = round(float(cluster.fabric.oversubscription))
        tried.append((narrow, network.adapters, gbps, rails))
        return SimpleNamespace(able=lambda allow_tight: np.zeros(1, dtype=bool))

    monkeypatch.setattr(fabrics, "evaluate", nothing_fits)
    assert not [*_on_each(made, 8, Layouts.of(dp=16), None, Use(gpus=16))]
    doubled = (1, 2, 4, 8)
    expected = {(narrow, count, 100 * times, rails) for narrow in doubled for count in doubled
                for times in doubled for rails in (False, True)
                if not rails or (narrow > 1 and count > 1)}  # fmt: skip
    assert set(tried) == expected and len(tried) == len(expected) == 64 + 36


def test_the_front_gets_cheaper_as_it_gets_slower(made: Scenario) -> None:
    priced = [a_fabric(1.0, 900.0), a_fabric(1.1, 900.0), a_fabric(1.2, 400.0), a_fabric(0.9),
              a_fabric(1.2, 300.0), a_fabric(1.0, 800.0)]  # fmt: skip
    assert front(made, *priced) == [5, 4]
    plain = [a_fabric(1.0), a_fabric(1.1, oversubscription=2), a_fabric(1.2, oversubscription=2)]
    assert front(made, *plain) == [0, 1]


@pytest.mark.parametrize(
    ("per_gpu", "quoted", "domain", "racks"),
    [
        (None, 8, 8, (0.0, 0.0)), (None, 8, 72, None), (5e3, 8, 8, (0.0, 0.0)),
        (5e3, 8, 72, (5e3, 5e3)), (5e3, 72, 72, (5e3, 0.0)), (5e3, 72, 8, (0.0, -5e3)),
        (5e3, 8, 16, None), (5e3, 16, 8, None), (5e3, 16, 16, (0.0, 0.0)),
    ],
)  # fmt: skip
def test_what_a_domain_costs(per_gpu: float | None, quoted: int, domain: int, racks: Any) -> None:
    own = load_page("h100").own
    figure = None if per_gpu is None else Figure(per_gpu)
    assert _rack_usd(replace(own, fast_domain_usd_per_gpu=figure), quoted, domain) == racks


@pytest.mark.parametrize("tiers", [1, 2])
def test_a_network_by_its_bits_and_what_lies_above(made: Scenario, tiers: int) -> None:
    """Half of the bits, of what lies above one tier a third: shares of 10 and 16 % of servers."""
    page = load_page("h100")
    own = replace(
        page.own, network_one_tier_fraction=Figure(0.10), network_two_tiers_fraction=Figure(0.16),
        server_usd=Figure(2e5), one_tier_servers=3 - tiers, two_tiers_servers=99,
    )  # fmt: skip
    bits = 0.5 * float(own.network_quoted_bits_per_s)
    use = Use(gpus=16, months=36)
    usd, hour = _owned(made, replace(page, own=own), use, (bits, 3), (0.0, 0.0))
    share = 0.10 if tiers == 1 else 0.10 + 0.06 / 3
    assert usd == pytest.approx(2 * 2e5 * 0.5 * share)
    # racks that cost 700 USD an accelerator more: 5,600 USD a server, of which 700 in the network
    racks, dearer = _owned(made, replace(page, own=own), use, (bits, 3), (300.0, 700.0))
    assert racks == pytest.approx(2 * 2e5 * 0.5 * share + 300.0 * 16)
    assert dearer > hour


@pytest.mark.parametrize(
    ("rails", "adapters", "below"), [(True, 8, 32), (False, 8, 4), (False, 1, 32), (True, 1, 32)]
)
def test_servers_below_a_leaf(made: Scenario, *, rails: bool, adapters: int, below: int) -> None:
    """A leaf of rails has an adapter of each of 32 servers, any other all of those of a few."""
    cluster = _changed(made, (adapters, 100, rails, 3, 8)).cluster
    assert cluster.fabric.leaf_servers == below
    assert float(cluster.fabric.oversubscription) == 3.0
    assert cluster.node.scale_out.adapters == adapters
    assert float(cluster.node.scale_out.adapter_bytes_per_s) == 100e9 / 8
