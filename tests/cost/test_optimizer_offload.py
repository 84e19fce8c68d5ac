"""Optimizer states and parameters in host memory: bytes, copies, and the step of the host.

Ren et al. 2021 (ZeRO-Offload): 2 bytes a parameter stay on the device, gradients go down, weights
come up. Rates are set by hand so that every time can be worked out.
"""

from dataclasses import replace
from typing import Any

import pytest

from simulator import catalogue
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster, load_node
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

PARAMETERS = 8_030_261_248  # Llama-3.1-8B
M = 4
CORE = load_software("megatron-core")
DEEP = replace(CORE, deepspeed_zero=replace(CORE.deepspeed_zero, offloads_gradients=True))
"""DeepSpeed's way: gradients are added up on the host."""


def machine(link: float, adam: float) -> Cluster:
    base = load_cluster("dgx-h100", 8)
    group = base.groups[0]
    node = replace(
        group.node, host_bytes_per_s=Figure(link), host_adam_parameters_per_s=Figure(adam)
    )
    return replace(base, groups=(replace(group, node=node),))


def run(
    software: Software = CORE,
    link: float = 1e15,
    adam: float = 1e15,
    recipe: Any = None,
    **lay: Any,
) -> Estimate:
    lay = {"dp": 8, "sharding": "zero1", **lay}
    batch = M * lay["dp"]
    how = Recipe(sequence_length=4096, global_batch=batch, **(recipe or {}))
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=how)
    return evaluate(Layouts.of(global_batch=batch, **lay), work, machine(link, adam), software)


def test_the_optimizer_leaves_the_device() -> None:
    found = run(optimizer_offload="cpu").memory_bytes
    assert found["optimizer"][0] == 0.0
    assert found["weights"][0] == 2 * PARAMETERS
    assert found["gradients"][0] == 2 * PARAMETERS


def test_zero_offload_leaves_two_bytes_a_parameter() -> None:
    found = run(DEEP, optimizer_offload="cpu", sharding="zero2").memory_bytes
    states = sum(float(found[kind][0]) for kind in ("weights", "gradients", "optimizer"))
    assert states == 2 * PARAMETERS


def test_a_share_of_it() -> None:
    found = run(optimizer_offload="cpu", recipe={"optimizer_offload_fraction": 0.25}).memory_bytes
    assert found["optimizer"][0] == pytest.approx(0.75 * 12 * PARAMETERS / 8, rel=1e-12)


def test_none_is_what_it_was() -> None:
    usual, none = run(), run(optimizer_offload="none", recipe={"optimizer_offload_fraction": 0.5})
    assert usual.step_time_s == none.step_time_s
    assert usual.memory_total_bytes == none.memory_total_bytes


@pytest.mark.parametrize("dp", [1, 8])
def test_ranks_share_the_processors_of_their_server(dp: int) -> None:
    """One rank of eight updates an eighth, at an eighth of the rate; alone in use it has all."""
    lay = {"dp": dp, "tp": 8 // dp, "optimizer_offload": "cpu"}
    found = run(adam=4e9, **lay).terms_s["optimizer"][0]
    held = PARAMETERS if dp == 8 else None
    if held:
        assert found == pytest.approx(PARAMETERS / 4e9, rel=1e-9)
    else:
        assert found == pytest.approx(PARAMETERS / 4e9, rel=0.01)  # norms on all, padded rows


def test_updating_and_sending_back_overlap() -> None:
    slow = run(link=1e9, adam=4e9, optimizer_offload="cpu").terms_s["optimizer"][0]
    assert slow == pytest.approx(max(PARAMETERS / 4e9, 2 * PARAMETERS / 8 / 1e9), rel=1e-9)
    slower = run(link=0.25e9, adam=4e9, optimizer_offload="cpu").terms_s["optimizer"][0]
    assert slower == pytest.approx(2 * PARAMETERS / 8 / 0.25e9, rel=1e-9)


def test_device_and_host_work_at_the_same_time() -> None:
    usual = float(run().terms_s["optimizer"][0])
    half = run(optimizer_offload="cpu", recipe={"optimizer_offload_fraction": 0.5})
    assert half.terms_s["optimizer"][0] == pytest.approx(usual / 2, rel=1e-9)


@pytest.mark.parametrize(("software", "times"), [(CORE, 1), (DEEP, M)])
def test_gradients_go_down_behind_a_backward_pass(software: Software, times: int) -> None:
    copy = 2 * PARAMETERS / 8 / 50e9  # 40 ms, and a backward pass takes hundreds
    found = run(software, link=50e9, optimizer_offload="cpu")
    assert found.terms_s["offload"][0] == 0.0
    assert found.hidden_s["offload"][0] == pytest.approx(times * copy, rel=1e-9)


@pytest.mark.parametrize(("software", "times"), [(CORE, 1), (DEEP, M)])
def test_a_slow_link_shows(software: Software, times: int) -> None:
    copy = 2 * PARAMETERS / 8 / 0.1e9
    found = run(software, link=0.1e9, optimizer_offload="cpu")
    shown, hidden = (float(x["offload"][0]) for x in (found.terms_s, found.hidden_s))
    assert shown + hidden == pytest.approx(times * copy, rel=1e-9)
    assert shown > 0.9 * times * copy


def test_parameters_leave_the_device_and_come_for_both_passes() -> None:
    """ZeRO-Infinity: the shard of every rank goes up twice a micro-batch."""
    usual = run(sharding="zero3", link=1e9)
    found = run(sharding="zero3", link=1e9, parameter_offload="cpu")
    assert found.memory_bytes["weights"][0] == 0.0
    assert usual.memory_bytes["weights"][0] == 2 * PARAMETERS / 8
    both = [float(x["offload"][0]) for x in (found.terms_s, found.hidden_s)]
    assert sum(both) == pytest.approx(M * 2 * 2 * PARAMETERS / 8 / 1e9, rel=1e-9)


def test_offloaded_parameters_are_updated_where_they_are() -> None:
    lay = {"sharding": "zero3", "optimizer_offload": "cpu", "parameter_offload": "cpu"}
    found = run(link=0.01e9, adam=4e9, **lay).terms_s["optimizer"][0]
    assert found == pytest.approx(PARAMETERS / 4e9, rel=1e-9)


def test_terms_still_add_up() -> None:
    found = run(link=1e9, adam=1e9, optimizer_offload="cpu")
    assert sum(float(x[0]) for x in found.terms_s.values()) == pytest.approx(
        float(found.step_time_s[0]), rel=1e-12
    )


def test_alone_and_beside_others_cost_the_same() -> None:
    words = ["none", "cpu", "none"]
    table = run(link=1e9, adam=4e9, optimizer_offload=words)
    for i, word in enumerate(words):
        alone = run(link=1e9, adam=4e9, optimizer_offload=word)
        assert table.step_time_s[i] == alone.step_time_s[0]
        assert table.memory_total_bytes[i] == alone.memory_total_bytes[0]


def test_every_server_says_how_fast_its_host_updates_and_that_nobody_measured_it() -> None:
    for name in catalogue.names("nodes"):
        rate = load_node(name).host_adam_parameters_per_s
        assert rate is not None and rate.grade == "assumed" and rate.source
        # 28 B of traffic a parameter: between a tenth and all of what two sockets of memory move
        assert 40e9 < 28 * rate < 400e9
