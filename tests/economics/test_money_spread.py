"""Spread of money and energy beyond the step time, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.economics.money_spread import energy_spread, usd_spread
from simulator.economics.price import load_price, load_site
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.search.certainty import Certainty

ONE = np.ones(1)


def test_energy_of_exact_figures_is_off_by_its_draw_and_cooling_alone() -> None:
    """A fifth on the power usage effectiveness moves energy by a fifth: ln 1.2."""
    site = replace(
        load_site("default"),
        power_usage_effectiveness=Figure(1.25, spread=0.2),
        waiting_activity=Figure(0.5),
        network_watt_fraction=Figure(0.1),
    )
    found = energy_spread(load_cluster("dgx-h100", gpus=8), site, step_time_s=ONE, busy_s=0.5 * ONE)
    assert found == pytest.approx(np.hypot(0.1, np.log(1.2)))


def test_network_share_bears_by_what_it_adds() -> None:
    """A tenth known to 30 %: energy over 1/(1 - f) moves by ln(0.90 / 0.87)."""
    site = replace(
        load_site("default"),
        power_usage_effectiveness=Figure(1.25),
        waiting_activity=Figure(0.5),
        network_watt_fraction=Figure(0.1, spread=0.3),
    )
    found = energy_spread(load_cluster("dgx-h100", gpus=8), site, step_time_s=ONE, busy_s=ONE)
    assert found == pytest.approx(np.hypot(0.1, np.log(0.9 / 0.87)))


def test_owned_machines_pay_their_power_apart() -> None:
    """Nine tenths for the machine known to 0.2, a tenth for power known to 0.3 and 0.4 (0.5)."""
    price = replace(load_price("owned-h100"), usd_per_gpu_hour=Figure(1.58, spread=0.2))
    site = replace(load_site("default"), electricity_usd_per_kwh=Figure(0.08, spread=0.4))
    found = usd_spread(price, site, power_share=0.1 * ONE, energy=0.3 * ONE)
    assert found == pytest.approx(np.hypot(0.18, 0.05))


def test_spans_and_chances_agree() -> None:
    """A limit at P10 or P90 of a value with both spreads is kept with a chance of 0.1 or 0.9."""
    sure = Certainty(
        p10_s=np.array([0.9]),
        p90_s=np.array([1.3]),
        fastest=np.array([np.nan]),
        beats_best=np.array([np.nan]),
    )
    low, high = sure.span(50.0 * ONE, ONE, 0.2)
    assert low < 45.0 and high > 65.0
    for limit, chance in ((low[0], 0.1), (50.0, 0.5), (high[0], 0.9)):
        found = sure.chance_within(50.0 * ONE, ONE, float(limit), 0.2)
        assert found == pytest.approx(chance, abs=1e-9)
    assert np.isnan(sure.chance_within(50.0 * ONE, ONE, None)).all()
