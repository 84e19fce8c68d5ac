"""Groups written out as GPUs, and calls that share links, by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.events.network.group_calls import DIMENSIONS, group_members
from simulator.events.network.links import Topology
from simulator.events.network.topology import topology
from simulator.events.network.transfer import Call, InCompany, in_company
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import RANK_ORDERS, Layouts
from simulator.layout.placement import place

GB = 1e9


@cache
def machine(name: str, gpus: int) -> tuple[Cluster, Topology]:
    cluster = load_cluster(name, gpus)
    return cluster, topology(cluster)


def slowdown(found: InCompany) -> list[float]:
    """Of the slowest group of each call."""
    return [float(each.max()) for each in found.slowdown]


def test_members_by_hand() -> None:
    """16 ranks, order tp-cp-dp-pp, tp 2, dp 4, pp 2, ep 4: Megatron's numbering."""
    layout = Layouts.of(tp=2, dp=4, pp=2, ep=4, global_batch=8)
    assert group_members(layout, "tp")[:2].tolist() == [[0, 1], [2, 3]]
    assert group_members(layout, "dp")[:2].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert group_members(layout, "pp")[:2].tolist() == [[0, 8], [1, 9]]
    assert group_members(layout, "ep").tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [12, 13, 14, 15],
    ]
    assert group_members(layout, "edp")[:2].tolist() == [[0, 4], [1, 5]]


degree = st.sampled_from([1, 2, 4])


@given(
    tp=degree, cp=degree, dp=st.sampled_from([1, 2, 4, 8]), pp=degree, ep=degree,
    etp=st.sampled_from([1, 2]), order=st.sampled_from(RANK_ORDERS),
)  # fmt: skip
def test_groups_have_the_shapes_that_the_closed_forms_price(
    tp: int, cp: int, dp: int, pp: int, ep: int, etp: int, order: str
) -> None:
    """Every GPU is in one group of each kind; members in a domain of 8 are those of placement."""
    if (tp * cp * dp) % (ep * etp):
        return
    layout = Layouts.of(
        tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, rank_order=order, global_batch=dp
    )
    world = tp * cp * dp * pp
    placed = place(layout, 8)
    for name in DIMENSIONS:
        members = group_members(layout, name)
        assert np.array_equal(np.sort(members.ravel()), np.arange(world))
        if name == "pp":
            continue
        group = getattr(placed, name)
        assert members.shape[1] == group.size[0]
        local = int(group.local[0])
        if world % 8 == 0 and group.size[0] % local == 0:
            blocks = (members // 8).reshape(len(members), -1, local)
            assert (blocks == blocks[:, :, :1]).all()


def test_calls_on_links_of_their_own_take_their_time() -> None:
    """Tensor-parallel groups inside servers, data-parallel ones between: nothing is shared."""
    cluster, network = machine("dgx-h100", 64)
    layout = Layouts.of(tp=8, dp=8, global_batch=8)
    calls = [
        Call(
            operation="all_reduce",
            members=group_members(layout, "tp"),
            size_bytes=GB,
            seconds=0.005,
        ),
        Call(
            operation="all_reduce", members=group_members(layout, "dp"), size_bytes=GB, seconds=0.04
        ),
    ]
    found = in_company(cluster, network, calls)
    assert slowdown(found) == pytest.approx([1.0, 1.0])


def test_two_reductions_over_the_same_adapters_halve_each_other() -> None:
    """Each alone fills its adapter: 1.75 GB at 47 GB/s. Both at once take twice as long; where the
    second starts when the first is half through, the first has half left, at half the rate."""
    cluster, network = machine("dgx-h100", 64)
    rings = group_members(Layouts.of(tp=8, dp=8, global_batch=8), "dp")
    alone = 1.75 / 47
    one = Call(operation="all_reduce", members=rings, size_bytes=GB, seconds=alone)
    assert slowdown(in_company(cluster, network, [one, one])) == pytest.approx([2, 2])
    late = Call(
        operation="all_reduce", members=rings, size_bytes=GB, seconds=alone, start_s=alone / 2
    )
    found = in_company(cluster, network, [one, late])
    assert slowdown(found) == pytest.approx([1.5, 1.5])


def test_in_switch_reduction_keeps_its_time_though_a_ring_would_be_slower() -> None:
    """1 GB of 8 GPUs in 3 ms: 583 GB/s of ring traffic, more than a port carries. Two at once share
    the ports that one fills."""
    cluster, network = machine("dgx-h100", 8)
    call = Call(operation="all_reduce", members=[range(8)], size_bytes=GB, seconds=0.003)
    assert slowdown(in_company(cluster, network, [call])) == pytest.approx([1.0])
    both = in_company(cluster, network, [call, call])
    assert slowdown(both) == pytest.approx([2.0, 2.0])


def test_a_worn_adapter_slows_the_call_by_its_slowest_group() -> None:
    cluster, network = machine("dgx-h100", 64)
    rings = group_members(Layouts.of(tp=8, dp=8, global_batch=8), "dp")
    call = Call(operation="all_reduce", members=rings, size_bytes=GB, seconds=1.75 / 47)
    worn = in_company(cluster, network, [call], link_degradation={"adapter-up 3.2": 0.25})
    assert slowdown(worn) == pytest.approx([4.0])
    assert np.sort(worn.seconds[0]) == pytest.approx([1.75 / 47] * 7 + [7.0 / 47])
    lost = in_company(cluster, network, [call], link_degradation={"adapter-up 3.2": 0.0})
    assert slowdown(lost) == pytest.approx([2.0])


def test_a_call_that_leaves_links_idle_hardly_feels_a_worn_one() -> None:
    """It needs a quarter of the adapter's rate; half of the rate is still enough."""
    cluster, network = machine("dgx-h100", 64)
    rings = group_members(Layouts.of(tp=8, dp=8, global_batch=8), "dp")
    call = Call(operation="all_reduce", members=rings, size_bytes=GB, seconds=7.0 / 47)
    found = in_company(cluster, network, [call], link_degradation={"adapter-up 3.2": 0.5})
    assert slowdown(found) == pytest.approx([1.0])


def test_two_jobs_interleaved_on_over_subscribed_leaves() -> None:
    """L40S servers of 2 adapters of 25 GB/s, 0.68 usable, 2:1 above: 17 GB/s leave a server. Each
    job has 4 GPUs in each of 4 servers, which exchange 1 GB each, 12/16 of it between servers: 3 GB
    a server and job, 3/17 s alone, twice that together."""
    cluster, network = machine("l40s-pcie", 32)
    halves = (slice(0, 4), slice(4, 8))
    jobs = [np.arange(32).reshape(4, 8)[:, half].reshape(1, 16) for half in halves]
    calls = [
        Call(operation="all_to_all", members=job, size_bytes=GB, seconds=3 / 17) for job in jobs
    ]
    assert slowdown(in_company(cluster, network, calls[:1])) == pytest.approx([1.0])
    assert slowdown(in_company(cluster, network, calls)) == pytest.approx([2.0, 2.0])


def test_groups_of_one_share_nothing() -> None:
    cluster, network = machine("dgx-h100", 8)
    call = Call(operation="all_gather", members=[[0], [1]], size_bytes=GB, seconds=0.0)
    found = in_company(cluster, network, [call])
    assert (found.transfer.makespan_s, slowdown(found)) == (0.0, [1.0])


def test_bad_calls_are_refused() -> None:
    cluster, network = machine("dgx-h100", 8)
    with pytest.raises(InputError, match="calls: must name at least one collective"):
        in_company(cluster, network, [])
    with pytest.raises(InputError, match=r"unknown kind of group.*did you mean 'dp'"):
        group_members(Layouts.of(tp=1), "ddp")
    call = Call(operation="all_reduce", members=[[0, 1]], size_bytes=GB, seconds=-1.0)
    with pytest.raises(InputError, match=r"seconds\[0\]: must be positive"):
        in_company(cluster, network, [call])
