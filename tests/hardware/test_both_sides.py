"""Counts of machines by hand, with numbers that all differ, and both sides of what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.files import Figure
from simulator.hardware.cluster import (
    Cluster,
    LinksLeft,
    clusters_meant,
    load_cluster,
    weakened,
    with_edges,
)
from simulator.hardware.cluster_section import load_groups
from simulator.hardware.edge_list import (
    Edge,
    Servers,
    check_edges,
    check_servers,
    has_gpus,
    is_switch_name,
    of_servers,
)
from simulator.hardware.fabric import Fabric, release_numbers
from simulator.hardware.node import wrong_domain
from simulator.hardware.residuals import SIZES, columns, load_residuals


def edge(end_a: str, end_b: str, **fields: Any) -> Edge:
    return Edge(end_a=end_a, end_b=end_b, **{"bytes_per_s": 1e9, **fields})


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        ("leaf 1", True), ("x", True), ("x" * 100, True), ("x" * 101, False), ("a=b", False),
        ("two  blanks", False), ("", False), ("gpu 3", False), ("NIC7", False),
        ("adapters-2", False), ("gpu rack", True), ("core/7.b", True),
    ],
)  # fmt: skip
def test_what_a_switch_can_be_called(name: str, switch: bool) -> None:
    assert is_switch_name(name) is switch


@pytest.mark.parametrize(
    ("over", "pods", "narrow"),
    [
        (1.0, None, (1.0, 3)), (2.5, None, (2.5, 3)), (2.5, 11, (2.5, 3)), (1.0, 11, (7.0, 11)),
        (1.01, 11, (1.01, 3)),
    ],
)  # fmt: skip
def test_the_layer_that_is_narrow(over: float, pods: int | None, narrow: Any) -> None:
    """The leaves' own uplinks where they block, else the pods' where there are pods."""
    fabric = Fabric(
        topology="fat-tree", usable_fraction=Figure(0.9), oversubscription=Figure(over),
        leaf_servers=3, pod_servers=pods, pod_oversubscription=Figure(7.0),
    )  # fmt: skip
    assert fabric.narrow == narrow


def test_releases_compare_by_number() -> None:
    assert release_numbers("2.9") < release_numbers("2.10") < release_numbers("3.0")
    assert release_numbers("2.10") == (2, 10)


def test_devices_by_kind_of_server() -> None:
    given = (("dgx-h100", 8), ("dgx-a100", 24), ("dgx-h100", 16), ("dgx-a100", 40))
    mixed = load_groups([{"name": name, "gpus": n} for name, n in given], where="run.toml")
    assert isinstance(mixed, Cluster)
    assert (mixed.gpus, mixed.nodes, mixed.gpus_by_kind) == (88, 11, (24, 64))
    assert load_cluster("dgx-h100", 24).gpus_by_kind == (24,)
    assert load_cluster("dgx-h100", 3).nodes == 1
    assert load_cluster("dgx-h100", 24).with_gpus(40).nodes == 5


@pytest.mark.parametrize(
    ("cluster", "needed", "paid"),
    [("dgx-h100", 13, 13), ("gb200-nvl72", 1, 72), ("gb200-nvl72", 72, 72),
     ("gb200-nvl72", 73, 144), ("gb200-nvl72", 145, 216)],
)  # fmt: skip
def test_racks_are_let_whole_and_servers_in_parts(cluster: str, needed: int, paid: int) -> None:
    assert load_cluster(cluster, 4).rented(needed) == paid


def test_the_network_of_a_gpu_is_its_share_of_the_adapters() -> None:
    """Three adapters of 25 GB/s for eight accelerators, of which 0.7 are reached."""
    whole = load_cluster("dgx-h100", 16)
    node = whole.node
    out = replace(node.scale_out, adapters=3, adapter_bytes_per_s=Figure(25e9))
    group = replace(whole.groups[0], node=replace(node, scale_out=out))
    fabric = replace(whole.fabric, usable_fraction=Figure(0.7))
    cluster = replace(whole, groups=(group,), fabric=fabric)
    assert cluster.network_bytes_per_s_per_gpu == pytest.approx(3 * 25e9 / 8 * 0.7)


def test_worn_links_keep_their_share_and_no_other_rate_changes() -> None:
    whole = load_cluster("dgx-h100", 16)
    worn = weakened(whole, 0.6, 0.3)
    fast, before = worn.node.scale_up, whole.node.scale_up
    for name in ("bandwidth", "bus", "all_to_all", "send", "nvls"):
        rate = getattr(before, f"{name}_bytes_per_s")
        assert getattr(fast, f"{name}_bytes_per_s") == pytest.approx(0.6 * rate), name
        assert getattr(fast, f"{name}_bytes_per_s").grade == rate.grade
    assert fast.pair_fraction == before.pair_fraction
    out = whole.node.scale_out.adapter_bytes_per_s
    assert worn.node.scale_out.adapter_bytes_per_s == pytest.approx(0.3 * out)
    left = (LinksLeft(group="dp", scale_up=0.5), LinksLeft(group="tp", scale_out=0.25))
    some = replace(whole, left=left)
    assert some.links_of("dp") == weakened(some, 0.5, 1.0)
    assert some.links_of("tp") == weakened(some, 1.0, 0.25)
    assert some.links_of("pp") is some


SERVERS = Servers(gpus=6, domain=3, accelerators=3, adapters=2)
WIRED = [
    *(edge(f"adapter {server}.{index}", "leaf") for server in (0, 1) for index in (0, 1)),
    *(edge(f"gpu {server}.{index}", f"fast {server}") for server in (0, 1) for index in range(3)),
    *(edge(f"gpu {server}.0", f"adapter {server}.0") for server in (0, 1)),
]


def problems(edges: list[Edge], servers: Servers = SERVERS) -> list[str]:
    try:
        check_servers(edges, servers, "mine")
    except InputError as error:
        return [text.removeprefix("mine: edges: ") for text in error.problems]
    return []


def without(*ends: str) -> list[Edge]:
    return [one for one in WIRED if one.end_a not in ends and one.end_b not in ends]


def test_cables_of_two_servers_one_by_one() -> None:
    """Three GPUs and two adapters each: whatever is left out is named, and nothing else."""
    assert (SERVERS.count, replace(SERVERS, gpus=7).count) == (2, 3)
    assert [SERVERS.gpu(n) for n in (0, 2, 3, 5)] == ["gpu 0.0", "gpu 0.2", "gpu 1.0", "gpu 1.2"]
    check_edges(WIRED, "mine")
    assert problems(WIRED) == []
    assert problems(without("adapter 1.1")) == ["no cable leads to 'adapter 1.1'"]
    assert problems(without("gpu 1.2")) == ["no cable leads to 'gpu 1.2'"]
    assert problems([*WIRED, edge("gpu 1.3", "fast 1")]) == [
        "end: must be one of the 3 that a server has, got 'gpu 1.3' (nearest: 'gpu 1.2')"
    ]
    assert problems([*WIRED, edge("adapter 0.2", "leaf")]) == [
        "end: must be one of the 2 that a server has, got 'adapter 0.2' (nearest: 'adapter 0.1')"
    ]
    apart = [one for one in WIRED if one.end_a != "gpu 1.2"]
    assert problems([*apart, edge("gpu 1.2", "fast 2")]) == [
        "no way leads from 'gpu 1.2' to the first GPU of its domain"
    ]
    assert problems(WIRED, replace(SERVERS, domain=6)) == [
        f"no way leads from 'gpu 1.{i}' to the first GPU of its domain" for i in range(3)
    ]
    alone = [one for one in WIRED if "leaf" not in (one.end_a, one.end_b)]
    alone += [edge(f"adapter {server}.{index}", f"leaf {server}") for server in (0, 1)
              for index in (0, 1)]  # fmt: skip
    assert problems(alone) == ["no way leads from the GPUs of server 0 to those of server 1"]
    assert problems(WIRED, replace(SERVERS, gpus=9)) == [
        "must list the 3 servers of the run, got 2"
    ]


def test_one_server_needs_no_cable_of_an_adapter() -> None:
    one = replace(SERVERS, gpus=3)
    inside = [each for each in WIRED if each.end_b == "fast 0"]
    assert problems(inside, one) == []
    assert problems(inside[:2], one) == ["no cable leads to 'gpu 0.2'"]
    adapters = [each for each in WIRED if each.end_b == "leaf"]
    assert problems(adapters) == [] and problems(adapters[:3]) == [
        "no cable leads to 'adapter 1.1'"
    ]
    assert (has_gpus(inside), has_gpus(adapters)) == (True, False)
    assert has_gpus([edge("fast 0", "gpu 0.0")])
    assert of_servers(WIRED, 1) == [each for each in WIRED if " 1." not in each.end_a]
    flipped = [edge(each.end_b, each.end_a) for each in WIRED]
    assert len(of_servers(flipped, 1)) == len(of_servers(WIRED, 1)) < len(WIRED)


def test_edges_of_a_cluster_of_one_server() -> None:
    """Cables of adapters are nothing to it, cables of its GPUs are."""
    cluster = load_cluster("dgx-h100", 8)
    adapters = tuple(edge(f"adapter 0.{i}", "leaf") for i in range(8))
    gpus = tuple(edge(f"gpu 0.{i}", "switch") for i in range(8))
    assert with_edges(cluster, (), where="mine") is cluster
    assert with_edges(cluster, adapters, where="mine") is cluster
    assert with_edges(cluster, gpus, where="mine").edges == gpus
    with pytest.raises(InputError, match="must list the 2 servers of the run, got 1"):
        with_edges(load_cluster("dgx-h100", 16), adapters, where="mine")


def test_a_name_that_stands_once_is_wrong_where_another_is_near() -> None:
    twice = [edge("adapter 0.0", "leaf 1"), edge("adapter 1.0", "leaf 1")]
    check_edges([*twice, edge("leaf 1", "storage")], "mine")  # unlike any other
    check_edges([*twice, edge("leaf 1", "leaf 2")], "mine")  # of a series
    with pytest.raises(InputError, match="'lef' stands once only"):
        check_edges([*twice, edge("adapter 2.0", "lef")], "mine")
    check_edges([*twice, edge("adapter 2.0", "lef"), edge("adapter 3.0", "lef")], "mine")


@pytest.mark.parametrize("kind", ["pcie", "xgmi", "host", "nvlink"])
@pytest.mark.parametrize("domain", [8, 9])
def test_a_domain_ends_where_its_links_end(kind: Any, domain: int) -> None:
    node = load_cluster("dgx-h100", 8).node
    links = replace(node.scale_up, kind=kind, domain=domain)
    said = wrong_domain(replace(node, scale_up=links))
    assert bool(said) == (kind != "nvlink" and domain == 9)
    assert not said or f"where {kind} ends, got 9 (nearest: 8)" in said


@pytest.mark.parametrize("kernel", sorted(SIZES))
def test_a_timed_shape_counts_something_of_every_size(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is the least of each size; a layer of experts may have no gate."""
    monkeypatch.setenv("FORESHARD_PROFILES", str(tmp_path))
    place = tmp_path / "residuals" / kernel
    place.mkdir(parents=True)
    (tmp_path / "accelerators").mkdir()
    (tmp_path / "accelerators" / "mine.toml").write_text('base = "h100-sxm"\n')
    least = ["0" if name == "gated" else "1" for name in SIZES[kernel]]
    table = place / "mine.csv"

    def write(sizes: list[str], weight: str = "-0.5") -> None:
        rows = [["cublas", "bf16", *sizes, weight], ["*", "*", *["7"] * len(sizes), "0.25"]]
        table.write_text("\n".join(map(",".join, [columns(kernel), *rows])) + "\n")

    write(least)
    timed = load_residuals("mine", kernel)["cublas", "bf16"]
    assert timed.weight.tolist() == [-0.5, 0.25]
    for name, size in zip(SIZES[kernel], least, strict=True):
        assert timed.sizes[name].tolist() == [float(size), 7.0], name
    for place_of, name in enumerate(SIZES[kernel]):
        small = [*least]
        small[place_of] = "-0.01" if name == "gated" else "0.99"
        write(small)
        with pytest.raises(InputError, match=r"line 2: .* must be at least 1, all finite"):
            load_residuals("mine", kernel)
    for weight, said in (("inf", "all finite"), ("much", "must be numbers")):
        write(least, weight)
        with pytest.raises(InputError, match=rf"line 2: .*{said}"):
            load_residuals("mine", kernel)


def test_names_that_mean_several_clusters() -> None:
    every = clusters_meant("all")
    assert len(every) > 50 and every == sorted(every)
    assert clusters_meant("h200") == [name for name in every if name in clusters_meant("h200-sxm")]
    assert clusters_meant("h") == ["h"], "a letter is no accelerator"
    assert clusters_meant("own.toml") == ["own.toml"]
    with pytest.raises(InputError, match="is no cluster; those with such accelerators") as caught:
        load_cluster("h100-sxm", 8)
    said = caught.value.problems[0]
    assert "aws-p5 (h100-sxm, domain of 8, 6.88 USD a GPU hour);" in said  # 55.04 USD by eight
    assert "gcp-a3-mega (h100-sxm, domain of 8, price not known);" in said


@pytest.mark.parametrize(
    ("gpus", "nearest"), [(0, "1"), (-3, "1"), (9, "8 or 16"), (31, "24 or 32"), (8, "")]
)
def test_servers_are_whole(gpus: int, nearest: str) -> None:
    if not nearest:
        assert load_cluster("dgx-h100", gpus).gpus == gpus
        return
    with pytest.raises(InputError, match=rf"got {gpus} \(nearest: {nearest}\)"):
        load_cluster("dgx-h100", gpus)


@pytest.mark.parametrize("gpus", [4480, 4488])
def test_no_job_is_larger_than_its_cluster(gpus: int) -> None:
    if gpus == 4480:
        assert load_cluster("selene", gpus).gpus == gpus
    else:
        with pytest.raises(InputError, match="must be at most 4480 on selene, got 4488"):
            load_cluster("selene", gpus)
