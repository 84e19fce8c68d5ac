"""PAT by hand: steps of Jeaugey 2025 (arXiv 2506.20252), the choice of NCCL's graph/tuning.cc."""

import numpy as np
import pytest

from simulator.cost.collectives.calls import adapter_bytes, all_gather_s
from simulator.cost.collectives.nccl.algorithms import CHOICES, believed_s, choose
from simulator.cost.collectives.nccl.pat import pat_steps
from simulator.hardware.cluster import Cluster, load_cluster, with_release
from simulator.layout.placement import Group

H100 = load_cluster("dgx-h100", 4096)
US = 1e-6
SIZES = np.geomspace(8.0, 1e11, 100)


def group(size: int, local: int = 1) -> Group:
    return Group(size=np.array([size]), local=np.array([local]))


def believed(cluster: Cluster, operation: str, size: float, members: Group) -> dict[str, float]:
    known = believed_s(cluster, operation, size, members)
    return {choice.name: float(seconds[0]) for choice, seconds in known.items()}


def names(cluster: Cluster, operation: str, members: Group) -> set[str]:
    return {CHOICES[code].name for code in choose(cluster, operation, SIZES, members)}


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, []),
        (2, [(1, 1)]),
        (3, [(2, 1), (1, 1)]),
        (4, [(2, 1), (1, 2)]),
        (5, [(4, 1), (2, 1), (1, 2)]),
        (7, [(4, 1), (2, 2), (1, 3)]),
        (8, [(4, 1), (2, 2), (1, 4)]),
    ],
)
def test_steps_by_hand(n: int, expected: list[tuple[int, int]]) -> None:
    """Bruck's algorithm from the far end: 4 ranks away one share, 2 away two, 1 away four; where
    the tree is cut off, shares of ranks that are not there are left out."""
    assert [(step.distance, step.shares) for step in pat_steps(n)] == expected


@pytest.mark.parametrize("n", [2, 3, 6, 7, 8, 13, 64, 100, 1023])
def test_steps_are_a_logarithm_and_move_what_a_ring_does(n: int) -> None:
    steps = pat_steps(n)
    assert len(steps) == np.ceil(np.log2(n))
    assert sum(step.shares for step in steps) == n - 1


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13])
def test_every_share_reaches_every_member_once(n: int) -> None:
    """Played share by share: what a member sends on it has, what it gets is new."""
    has = [{rank} for rank in range(n)]
    for step in pat_steps(n):
        gets: list[set[int]] = [set() for _ in range(n)]
        for rank in range(n):
            offsets = range(0, n - step.distance, 2 * step.distance)
            sent = {(rank - offset) % n for offset in offsets}
            assert len(sent) == step.shares and sent <= has[rank]
            gets[(rank + step.distance) % n] = sent
        for rank in range(n):
            assert not gets[rank] & has[rank]
            has[rank] |= gets[rank]
    assert all(len(shares) == n for shares in has)


def test_what_nccl_believes_by_hand() -> None:
    """64 servers: 8 + 6 x 14 / 3.5 + 64 x 2.8 = 211.2 us; 100 count as many whole powers of two:
    8 + 24 + 280 = 312. Three quarters of the adapter's 50 GB/s, all bytes counted."""
    size = 1e6
    for n, latency_us in ((64, 211.2), (100, 312.0)):
        for operation in ("all_gather", "reduce_scatter"):
            pat_s = believed(H100, operation, size, group(n))["pat"]
            assert pat_s == pytest.approx(latency_us * US + size / 37.5e9)


def test_where_rings_and_pat_meet_on_64_servers() -> None:
    """LL, a hop of a tree each: 6.6 + 63 x 5 = 321.6 us at 20.4 GB/s x 64/63 against 211.2 us at
    37.5: PAT from the start. LL128: 14 + 63 x 8.5 = 549.5 us at 46 x 64/63. Simple: 8.4 + 63 x 14 =
    890.4 us at 50 x 64/63: 679.2 us = S (1/37.5 - 63/3200) s/GB, so that rings return at 97.3 MB,
    but LL128 before them: 338.3 us = S (1/37.5 - 63/2944), 64.2 MB."""
    for size, expected in ((8.0, "pat"), (64.0e6, "pat"), (64.4e6, "ring ll128")):
        assert CHOICES[choose(H100, "all_gather", size, group(64))[0]].name == expected


def test_pat_needs_a_single_accelerator_to_a_server_and_several_servers() -> None:
    assert "pat" in names(H100, "all_gather", group(64))
    assert "pat" in names(H100, "reduce_scatter", group(64))
    for members in (group(64, 8), group(64, 2), group(8, 8), group(1)):
        assert "pat" not in names(H100, "all_gather", members)
    for operation in ("all_reduce", "broadcast"):
        assert "pat" not in names(H100, operation, group(64))


def test_few_servers_stay_with_rings() -> None:
    """Two servers: 6.6 + 5 us with LL against 8 + 4 + 5.6."""
    assert "pat" not in names(H100, "all_gather", group(2))


def test_pat_came_with_release_2_23_and_was_tuned_with_2_24() -> None:
    for release in ("2.8", "2.21", "2.22"):
        older = with_release(H100, release)
        assert "pat" not in believed(older, "all_gather", 8.0, group(64))
    for release, rate in (("2.23", 42.5e9), ("2.24", 37.5e9), ("2.29", 37.5e9), ("2.30", 37.5e9)):
        cluster = with_release(H100, release)
        pat_s = believed(cluster, "all_gather", 1e9, group(64))["pat"]
        assert pat_s == pytest.approx(211.2 * US + 1e9 / rate)
    assert with_release(with_release(H100, "2.21"), "").library.running_release == ""


@pytest.mark.parametrize(
    ("word", "release", "operation", "members"),
    [
        ("nvls", "2.17", "all_reduce", group(8, 8)),
        ("nvls_tree", "2.18", "all_reduce", group(16, 8)),  # rings on more servers before 2.28
    ],
)
def test_algorithms_came_one_after_the_other(
    word: str, release: str, operation: str, members: Group
) -> None:
    major, minor = release.split(".")
    before = with_release(H100, f"{major}.{int(minor) - 1}")
    assert word not in names(before, operation, members)
    assert word in names(with_release(H100, release), operation, members)


def test_a_small_gather_takes_a_logarithm_of_hops() -> None:
    """From 64 to 4,096 servers twelve hops instead of six, 14 us each (and a ramp for 64 B)."""
    few, many = (float(all_gather_s(H100, 64.0, group(n))[0]) for n in (64, 4096))
    assert many - few == pytest.approx(6 * 14 * US, rel=5e-3)


def test_adapters_carry_what_they_do_in_a_ring() -> None:
    code = np.array([[choice.name for choice in CHOICES].index("pat")])
    for n in (2, 5, 64):
        carried = adapter_bytes(H100, "all_gather", code, 1e6, group(n))
        assert carried == pytest.approx((n - 1) / n * 1e6)
