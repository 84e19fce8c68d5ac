"""Energy: hand-worked servers, measured ranges, and laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.economics.energy import (
    cluster_energy_joule,
    draw_watt,
    energy_joule,
    mean_activity,
)
from simulator.economics.price import load_site
from simulator.hardware.cluster import load_cluster


def server(name: str, activity: float, gpus: int = 8) -> float:
    """Draw of the servers of a shipped cluster, in watts."""
    cluster = load_cluster(name, gpus)
    power = cluster.accelerator.power
    return float(
        draw_watt(
            gpus=gpus,
            gpus_per_server=cluster.node.accelerators,
            host_watt=float(cluster.node.host_watt),
            idle_watt=float(power.idle_watt),
            busy_watt=float(power.busy_watt),
            activity=activity,
        )
    )


def round_server(gpus: int, activity: float) -> float:
    """Draw with a host of 2 kW and eight devices of 90 to 690 W, in watts."""
    return float(
        draw_watt(
            gpus=gpus,
            gpus_per_server=8,
            host_watt=2000.0,
            idle_watt=90.0,
            busy_watt=690.0,
            activity=activity,
        )
    )


def test_an_h100_server_worked_by_hand() -> None:
    assert round_server(8, 1.0) == pytest.approx(2000 + 8 * 690)  # 7.52 kW
    assert round_server(8, 0.0) == pytest.approx(2000 + 8 * 90)
    assert round_server(8, 0.5) == pytest.approx(2000 + 8 * 390)
    assert round_server(16, 0.5) == pytest.approx(2 * (2000 + 8 * 390))


def test_devices_left_over_in_a_server_idle() -> None:
    assert round_server(2, 1.0) == pytest.approx(2000 + 6 * 90 + 2 * 690)


def test_shipped_h100_server_is_in_the_measured_range() -> None:
    # Mean 7.75 kW (arXiv 2506.14551), highest 8.4 kW (arXiv 2412.08602), 6.5-8.5 kW typical.
    assert 7.1e3 < server("dgx-h100", 1.0) < 8.4e3
    assert server("dgx-h100", 1.0) < 10.2e3  # the rating


def test_shipped_a100_server_is_in_the_measured_range() -> None:
    # AcmeTrace, 8 x A100 servers: 5th percentile 1.5 kW, 75th 4.28 kW, highest 6.55 kW.
    assert 1.2e3 < server("dgx-a100", 0.0) < 1.9e3
    assert 3.6e3 < server("dgx-a100", 1.0) < 5.1e3


def test_a_gb200_rack_stays_below_its_rating() -> None:
    assert 70e3 < server("gb200-nvl72", 1.0, 72) < 120e3


def test_energy_of_an_hour_worked_by_hand() -> None:
    # 7.2 kW, a tenth of all power in the network: 8 kW; PUE 1.25: 10 kW; an hour: 36 MJ.
    joule = energy_joule(
        seconds=3600.0,
        servers_watt=7200.0,
        network_watt_fraction=0.1,
        power_usage_effectiveness=1.25,
    )
    assert joule == pytest.approx(36e6)


def test_activity_is_the_busy_share_and_a_part_of_the_rest() -> None:
    busy = np.array([0.0, 1.0, 3.0, 4.0, 9.0])
    found = mean_activity(step_time_s=4.0, busy_s=busy, waiting_activity=0.5)
    assert found.tolist() == [0.5, 0.625, 0.875, 1.0, 1.0]


def test_a_step_on_a_shipped_cluster() -> None:
    cluster, site = load_cluster("dgx-h100", 16), load_site("default")
    busy = cluster_energy_joule(cluster, site, step_time_s=10.0, busy_s=10.0)
    assert busy == pytest.approx(2 * server("dgx-h100", 1.0) / 0.9 * 1.25 * 10.0)
    waiting = cluster_energy_joule(cluster, site, step_time_s=10.0, busy_s=np.array([0.0, 5.0]))
    assert waiting.shape == (2,)
    assert waiting[0] < waiting[1] < busy


@settings(max_examples=settings.default.max_examples // 5)
@given(
    step=st.floats(0.1, 100),
    busy=st.floats(0, 1),
    more=st.floats(0, 1),
    servers=st.integers(1, 64),
)
def test_more_work_and_more_servers_draw_more(
    step: float, busy: float, more: float, servers: int
) -> None:
    site = load_site("default")
    one = load_cluster("dgx-h100", 8 * servers)
    two = load_cluster("dgx-h100", 16 * servers)
    low = cluster_energy_joule(one, site, step_time_s=step, busy_s=step * busy * more)
    high = cluster_energy_joule(one, site, step_time_s=step, busy_s=step * busy)
    assert low <= high * (1 + 1e-12)
    double = cluster_energy_joule(two, site, step_time_s=step, busy_s=step * busy)
    assert double == pytest.approx(2 * high, rel=1e-9)
