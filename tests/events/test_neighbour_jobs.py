"""Jobs that alternate under the same switches, worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.events.deviations.deviations import Deviation
from simulator.events.sharing.contended import Network
from simulator.events.sharing.neighbour_jobs import Job, alternating
from simulator.events.simulated_step import simulate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload


def given(cluster: str = "dgx-h100", over: float = 4.0, leaf: int = 4, **layout: Any) -> Any:
    """70B on leaves of so many servers, their links to the spine so many times narrower."""
    table = Layouts.of(**layout, global_batch=4 * layout.get("dp", 1))
    recipe = Recipe(sequence_length=4096, global_batch=int(table.global_batch[0]))
    work = Workload(architecture=presets.load("llama-3.1-70b"), recipe=recipe)
    machine = load_cluster(cluster, int(table.world[0]))
    narrow = Figure(over, "assumed", "of this test")
    fabric = replace(machine.fabric, oversubscription=narrow, leaf_servers=leaf)
    return table, work, replace(machine, fabric=fabric), load_software("megatron-lm-2022")


def job(setting: Any) -> Job:
    layout, work, cluster, software = setting
    return Job(layout=layout, workload=work, cluster=cluster, software=software)


def busy_share(setting: Any) -> float:
    """Share of a step for which gradients and parameters move bytes: with half of the adapters
    these take twice as long, and nothing else does."""
    whole, half = simulate(*setting), simulate(*setting, deviations=[Deviation(scale_out=0.5)])
    assert half.terms_s["tp"] == whole.terms_s["tp"]
    return (half.terms_s["dp"] - whole.terms_s["dp"]) / whole.step_time_s


def test_servers_alternate_evenly() -> None:
    for counts in ([4, 4], [1, 7], [3, 5, 2]):
        places = alternating(counts)
        assert sorted(np.concatenate(places).tolist()) == list(range(sum(counts)))
        for count, own in zip(counts, places, strict=True):
            assert len(own) == count
            even = (np.arange(count) + 0.5) * sum(counts) / count
            assert np.abs(own + 0.5 - even).max() <= len(counts)


def test_a_ring_beside_another_on_a_narrow_spine() -> None:
    """Four servers each, alternating under two leaves with the uplinks of one server. Each job's
    ring leaves a leaf once and fills the uplink while it moves bytes: the other one finds what that
    leaves on average, and its bytes take so much longer."""
    setting = given(tp=8, dp=4)
    share = busy_share(setting)
    assert 0.05 < share < 0.5
    plain, found = simulate(*setting), simulate(*setting, beside=[job(setting)])
    assert found.network is not None
    left = {"leaf-up": 1.0 - share, "leaf-down": 1.0 - share}
    assert found.network.beside == pytest.approx(left, rel=1e-3)
    assert found.network.slowdown == pytest.approx({"dp": 1.0 / (1.0 - share)}, rel=1e-3)
    bytes_s = share * plain.step_time_s
    longer = bytes_s * (1.0 / (1.0 - share) - 1.0)
    assert found.terms_s["dp"] - plain.terms_s["dp"] == pytest.approx(longer, rel=3e-3)
    assert found.step_time_s - plain.step_time_s == pytest.approx(longer, rel=3e-3)


def test_a_spine_that_is_wide_enough_for_both_slows_nobody() -> None:
    """Four uplinks of which each ring takes one; and all servers under one leaf."""
    for over, leaf in ((1.0, 4), (4.0, 8)):
        setting = given(over=over, leaf=leaf, tp=8, dp=4)
        plain, found = simulate(*setting), simulate(*setting, beside=[job(setting)])
        assert found.step_time_s == plain.step_time_s
        assert found.network is not None and found.network.slowdown == {"dp": 1.0}


@pytest.mark.evidence
def test_many_neighbours_leave_an_even_share() -> None:
    """Each of 30 keeps an uplink busy for its part of the time: together for more than all."""
    setting = given(tp=8, dp=4)
    crowd = [job(setting)] * 30
    found = simulate(*setting, beside=crowd)
    assert found.network is not None
    assert min(found.network.beside.values()) == pytest.approx(1 / 31)


def test_wear_and_neighbours_come_together() -> None:
    setting = given(tp=8, dp=4)
    share = busy_share(setting)
    network = Network(link_degradation={"leaf-up 0": 0.5})
    found = simulate(*setting, beside=[job(setting)], network=network)
    assert found.network is not None
    assert found.network.slowdown["dp"] == pytest.approx(2.0 / (1.0 - share), rel=1e-3)
    assert found.network.beside["leaf-up"] == pytest.approx(1.0 - share, rel=1e-3)


def test_a_pipeline_and_experts_beside_one_another() -> None:
    """Whatever a neighbour does, the step only grows, and terms still add up."""
    setting = given(tp=8, dp=4)
    layout = Layouts.of(tp=2, pp=2, dp=8, ep=8, global_batch=64)
    recipe = Recipe(sequence_length=4096, global_batch=64)
    work = Workload(architecture=presets.load("mixtral-8x7b"), recipe=recipe)
    software = load_software("megatron-core")
    other = Job(layout=layout, workload=work, cluster=setting[2], software=software)
    plain, found = simulate(*setting), simulate(*setting, beside=[other])
    assert found.network is not None and found.network.beside["leaf-up"] < 1.0
    assert found.step_time_s > plain.step_time_s
    assert sum(found.terms_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    again = simulate(*setting, beside=[other])
    assert again.terms_s == found.terms_s and again.network == found.network


def test_jobs_that_share_no_fabric() -> None:
    setting = given(tp=8, dp=4)
    elsewhere = job(given(cluster="dgx-a100", tp=8, dp=4))
    with pytest.raises(InputError, match=r"beside\[0\]: must be on the same fabric, dgx-h100, got"):
        simulate(*setting, beside=[elsewhere])
    rack = given(cluster="gb200-nvl72", tp=8, dp=9)
    with pytest.raises(InputError, match="beside: must be left out where domains reach over"):
        simulate(*rack, beside=[job(rack)])
