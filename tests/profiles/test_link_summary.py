"""Links of a cluster, counted by hand, and what half of its servers can send to the other."""

from dataclasses import replace

import pytest

from simulator.errors import InputError
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.profiles.link_summary import MOST_GPUS, summary


def cluster(servers: int, over: float) -> Cluster:
    """DGX H100 on leaves of two servers: eight adapters of 400 Gbit/s each."""
    found = load_cluster("dgx-h100", 8 * servers)
    fabric = replace(
        found.fabric, oversubscription=Figure(over), leaf_servers=2, usable_fraction=Figure(0.5)
    )
    return replace(found, fabric=fabric)


@pytest.mark.parametrize(
    ("servers", "over", "sends"),
    [
        (2, 1.0, 1), (2, 4.0, 1),  # both on one leaf
        (3, 1.0, 1), (4, 1.0, 2), (4, 4.0, 2), (5, 1.0, 2),
    ],
)  # fmt: skip
def test_half_of_the_servers_send_over_the_narrowest_cut(
    servers: int, over: float, sends: int
) -> None:
    """The smaller half sends 8 x 25 GB/s a server; the uplinks of a leaf carry a part of it."""
    found = summary(cluster(servers, over))
    narrower = over if servers > 2 else 1.0
    assert found.bisection_bytes_per_s == pytest.approx(sends * 8 * 25e9 / narrower)
    assert found.oversubscription == pytest.approx(narrower)
    assert (found.servers, found.gpus, found.cabled) == (servers, 8 * servers, False)
    counted = {row.kind: row.count for row in found.links}
    assert {counted[name] for name in ("adapter-up", "adapter-down", "gpu-up")} == {8 * servers}
    assert found.most_hops == 4  # first to last rail: leaf, spine, leaf between


def test_one_server_has_halves_of_its_own() -> None:
    found = summary(load_cluster("dgx-h100", 8))
    inside = float(load_cluster("dgx-h100", 8).node.scale_up.bandwidth_bytes_per_s)
    assert found.oversubscription is None and found.servers == 1
    assert 0.5 * 4 * inside < found.bisection_bytes_per_s <= 4 * inside


@pytest.mark.parametrize(("gpus", "said"), [(1, "at least 2"), (MOST_GPUS + 8, "at most")])
def test_neither_one_gpu_nor_too_many(gpus: int, said: str) -> None:
    with pytest.raises(InputError, match=f"gpus: must be {said}"):
        summary(load_cluster("dgx-h100", gpus))
