"""NCCL's choice, worked by hand from the tables of its src/graph/tuning.cc."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.collectives.nccl.algorithms import ALGORITHMS, CHOICES, believed_s, choose
from simulator.hardware.cluster import Cluster, load_cluster, with_release
from simulator.layout.placement import Group
from simulator.software.profile import load_software

H100 = load_cluster("dgx-h100", 1024)
A100 = load_cluster("dgx-a100", 1024)
B200 = load_cluster("dgx-b200", 1024)
RACKS = load_cluster("gb200-nvl72", 1440)
NAMES = ("2.23", "2.28")
PCIE = load_cluster("l40s-pcie", 8)


def group(size: int, local: int) -> Group:
    return Group(size=np.array([size]), local=np.array([local]))


def chosen(cluster: Cluster, operation: str, size: float, members: Group, **more: Any) -> str:
    return CHOICES[int(choose(cluster, operation, size, members, **more)[0])].name


def believed(cluster: Cluster, operation: str, size: float, members: Group) -> dict[str, float]:
    found = believed_s(cluster, operation, size, members)
    return {choice.name: float(seconds[0]) for choice, seconds in found.items()}


def test_a_gather_of_eight_h100_by_hand() -> None:
    # 16 channels of 20 GB/s. LL: 6.6 + 7 x 0.6 us, the ceiling of 141 GB/s (half is 160), times
    # 8/7. LL128: 14 + 7 x 1.9, 0.92 x 320 = 294.4. Simple: 8.4 + 7 x 3.4, 320.
    size = 1e6
    found = believed(H100, "all_gather", size, group(8, 8))
    assert found["ring ll"] == pytest.approx(10.8e-6 + size / (141e9 * 8 / 7))
    assert found["ring ll128"] == pytest.approx(27.3e-6 + size / (294.4e9 * 8 / 7))
    assert found["ring simple"] == pytest.approx(32.2e-6 + size / (320e9 * 8 / 7))


def test_where_a_gather_of_eight_h100_switches() -> None:
    # 16.5 us = S (1/161.1 - 1/336.5) s/GB: 5.1 MB; 4.9 us = S (1/336.5 - 1/365.7): 20.6 MB
    for size, expected in (
        (5.0e6, "ring ll"),
        (5.2e6, "ring ll128"),
        (20.5e6, "ring ll128"),
        (20.8e6, "ring simple"),
    ):
        assert chosen(H100, "all_gather", size, group(8, 8)) == expected


def test_an_all_reduce_of_two_a100_leaves_ll_at_one_megabyte() -> None:
    # 12 channels of 20 GB/s; LL 6.6 + 2 x 0.6 us at 87.7 GB/s, simple 8.4 + 2 x 3.4 at 240:
    # 7.4 us = S (1/87.7 - 1/240): 1.023 MB, where measurements jump as well
    assert chosen(A100, "all_reduce", 1.02e6, group(2, 2)) == "ring ll"
    assert chosen(A100, "all_reduce", 1.03e6, group(2, 2)) == "ring simple"


def test_four_a100_have_a_window_of_ll128() -> None:
    # LL 10.2 us at 87.7 x 4/6; LL128 25.4 us at 220.8 x 4/6; simple 28.8 us at 160:
    # 15.2 us / (1/58.5 - 1/147.2) = 1.475 MB and 3.4 us / (1/147.2 - 1/160) = 6.256 MB
    for size, expected in (
        (1.46e6, "ring ll"),
        (1.49e6, "ring ll128"),
        (6.2e6, "ring ll128"),
        (6.3e6, "ring simple"),
    ):
        assert chosen(A100, "all_reduce", size, group(4, 4)) == expected


def test_the_switch_reduces_from_one_megabyte_on_eight_h100() -> None:
    # NVLS: 25 us, 320 x 0.85 x 15/16 x 2 = 510 GB/s, times 8/14 = 291.4; LL: 6.6 + 14 x 0.6 us at
    # 141 x 8/14 = 80.6: they meet at 1.114 MB
    assert chosen(H100, "all_reduce", 1.11e6, group(8, 8)) == "ring ll"
    assert chosen(H100, "all_reduce", 1.12e6, group(8, 8)) == "nvls"
    # not for four, not for integers, not before Hopper
    for cluster, members, more in (
        (H100, group(4, 4), {}),
        (H100, group(8, 8), {"integer": True}),
        (A100, group(8, 8), {}),
    ):
        assert chosen(cluster, "all_reduce", 1e9, members, **more) == "ring simple"


def test_the_tree_is_corrected_by_size_and_skips_the_last_entry() -> None:
    # one node of eight A100, simple: 8.4 + 2 x 7 x 4 us; min(0.92 x 240, 12 x 24) / 2 = 110.4 GB/s;
    # 64 B x 2^11: the table says 0.5; 64 B x 2^23 is its last entry, 0.9, which is not used
    for power, factor in ((11, 0.5), (22, 0.9), (23, 1.0)):
        size = 64.0 * 2**power
        found = believed(A100, "all_reduce", size, group(8, 8))["tree simple"]
        assert found == pytest.approx(64.4e-6 + size / (110.4e9 * factor))


def test_over_many_servers_trees_hop_as_the_logarithm() -> None:
    # 128 servers of eight, LL: 6.8 + 2 (7 x 0.6 + 7 x 5) us against a ring of 2046 hops
    found = believed(A100, "all_reduce", 8.0, group(1024, 8))
    assert found["tree ll"] == pytest.approx(85.2e-6, rel=1e-3)
    # between servers a hop inside takes no less than an AMD host's post of a message, 2 us
    assert found["ring ll"] == pytest.approx((6.6 + 1792 * 2.0 + 254 * 2.7) * 1e-6, rel=1e-3)
    assert chosen(A100, "all_reduce", 8.0, group(1024, 8)) == "tree ll"


def test_rings_over_servers_reach_a_plateau() -> None:
    # two servers, simple: 8.4 + 28 x 3.4 + 2 x 14 us, times 1.4 from 64 B for channel and rank on
    small, large = 64.0 * 16 * 16 - 1.0, 64.0 * 16 * 16
    rate = 320e9 * 16 / 30
    for size, factor in ((small, 1.0), (large, 1.4)):
        found = believed(H100, "all_reduce", size, group(16, 8))["ring simple"]
        assert found == pytest.approx(factor * 131.6e-6 + size / rate)


def test_one_gpu_for_each_server_hops_as_a_tree_and_may_take_pat() -> None:
    # ring LL with 5 us a hop, not 2.7
    found = believed(H100, "all_gather", 64.0, group(4, 1))
    assert found["ring ll"] == pytest.approx(21.6e-6, rel=1e-3)
    # 64 servers: PAT 8 + 6 x 14 / 3.5 + 64 x 2.8 = 211.2 us, the ring 6.6 + 63 x 5 = 321.6
    assert chosen(H100, "all_gather", 64.0, group(64, 1)) == "pat"
    assert believed(H100, "all_gather", 64.0, group(64, 1))["pat"] == pytest.approx(
        211.2e-6, rel=1e-3
    )
    codes = choose(H100, "all_gather", np.geomspace(8, 1e10, 50), group(64, 8))
    assert "pat" not in {CHOICES[code].name for code in codes}


def test_switches_joined_by_a_tree_take_over_large_reductions_of_many_servers() -> None:
    assert chosen(H100, "all_reduce", 1e9, group(128, 8)) == "nvls_tree"
    assert chosen(H100, "all_reduce", 1e9, group(32, 4)) not in ("nvls", "nvls_tree")


def test_older_releases_run_rings_over_racks() -> None:
    """v2.27.7-1 and v2.28.9-1 of src/graph/tuning.cc; 20 racks of 72 measured with 2.26."""
    older, newer = (with_release(RACKS, name) for name in ("2.26", "2.28"))
    size, members = 16.0 * 2**30, group(1440, 72)
    # 14 heads, links of 50 GB/s each, adapters of 50 of which half counts: 14 x 25 x 5/6 x 1/2 =
    # 145.8 GB/s, 25 us and 2 log2(20) x 14 us before them
    found = believed(older, "all_reduce", size, members)
    assert found["nvls_tree"] == pytest.approx(size / 145.83e9 + 146.0e-6, rel=1e-4)
    assert chosen(older, "all_reduce", size, members).startswith("ring")
    assert chosen(newer, "all_reduce", size, members) == "nvls_tree"
    # eight servers of eight H100: 8 heads of 20 GB/s, links that are slower than half an adapter
    found = believed(with_release(H100, "2.23"), "all_reduce", size, group(64, 8))
    assert found["nvls_tree"] == pytest.approx(size / (8 * 20e9 * 5 / 12) + 109e-6, rel=1e-4)
    # two domains: as newer ones
    both = [believed(with_release(H100, name), "all_reduce", size, group(16, 8)) for name in NAMES]
    assert both[0]["nvls_tree"] == both[1]["nvls_tree"]


@pytest.mark.parametrize("software", ["nemo-24.07", "nemo-25.04", "megatron-bridge-26.06"])
def test_recipes_that_turn_switches_off_reduce_in_rings_and_trees(software: str) -> None:
    """NCCL_NVLS_ENABLE=0."""
    kernels = load_software(software).kernels
    for members in (group(8, 8), group(128, 8)):
        assert chosen(H100, "all_reduce", 1e9, members).startswith("nvls")
        without = with_release(H100, kernels.nccl, kernels.nccl_turned_off)
        assert chosen(without, "all_reduce", 1e9, members).startswith(("ring", "tree"))


def test_a_network_that_reduces_is_used_only_where_the_cluster_says_so() -> None:
    sharp = replace(H100, fabric=replace(H100.fabric, reduces_in_network=True))
    assert chosen(sharp, "all_reduce", 1e9, group(128, 8)) == "collnet"
    assert chosen(H100, "all_reduce", 1e9, group(128, 8)) != "collnet"
    assert chosen(sharp, "all_reduce", 1e9, group(8, 8)) == "nvls"


def test_boards_without_fast_links_know_no_ll128() -> None:
    sizes = np.geomspace(8, 1e10, 200)
    names = {CHOICES[code].name for code in choose(PCIE, "all_reduce", sizes, group(8, 8))}
    assert names <= {"ring ll", "ring simple", "tree ll", "tree simple"}


def test_the_ceiling_of_ll_among_servers_is_of_the_host() -> None:
    # two servers: 39 GB/s with Intel (the row of volta), 22.5 with AMD (that of ampere)
    node = replace(H100.node, host="amd")
    amd = replace(H100, groups=(replace(H100.groups[0], node=node),))
    for cluster, ceiling in ((H100, 39e9), (amd, 22.5e9)):
        near, far = believed(cluster, "all_gather", 1e6, group(16, 8)), 1e6 / (ceiling * 16 / 15)
        post = 2e-6 if cluster is amd else 1e-6
        assert near["ring ll"] == pytest.approx(6.6e-6 + 14 * post + 2.7e-6 + far)


@given(
    size=st.floats(1.0, 1e11),
    shape=st.sampled_from([(2, 2), (8, 8), (16, 8), (64, 8), (16, 1), (1024, 8)]),
    cluster=st.sampled_from([A100, H100, B200]),
)
def test_the_choice_is_what_it_believes_to_be_fastest(
    size: float, shape: tuple[int, int], cluster: Cluster
) -> None:
    found = believed_s(cluster, "all_reduce", size, group(*shape))
    choice = CHOICES[int(choose(cluster, "all_reduce", size, group(*shape))[0])]
    times = {known: float(seconds[0]) for known, seconds in found.items()}
    assert times[choice] == min(times.values()) < np.inf


def test_every_choice_is_a_protocol_of_an_algorithm_with_a_word_of_its_own() -> None:
    words = [algorithm.word for algorithm in ALGORITHMS]
    assert sorted(set(words)) == sorted(words)
    assert len(CHOICES) == sum(len(algorithm.protocols) for algorithm in ALGORITHMS)
    for choice in CHOICES:
        assert choice.protocol in choice.algorithm.protocols
