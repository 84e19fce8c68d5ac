"""Clusters of several kinds of servers: how groups are read and joined, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator import catalogue
from simulator.cost.pricing import price
from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster, load_library, weakened
from simulator.hardware.cluster_section import load_groups
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload


def groups(*given: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "gpus": gpus} for name, gpus in given]


def load(*given: tuple[str, int]) -> Any:
    return load_groups(groups(*given), where="run.toml")


def test_one_group_is_a_name_and_a_number() -> None:
    assert load(("dgx-h100", 4)) == load_cluster("dgx-h100", 4)
    assert load(("dgx-h100", 8), ("dgx-h100", 16)) == load_cluster("dgx-h100", 24)


def test_groups_keep_their_order_and_their_own_profiles() -> None:
    mixed = load(("dgx-h100", 8), ("dgx-a100", 24), ("dgx-h100", 16))
    assert (mixed.name, mixed.gpus, mixed.nodes) == ("dgx-h100 + dgx-a100", 48, 6)
    assert [(group.kind, group.gpus) for group in mixed.groups] == [(0, 8), (1, 24), (0, 16)]
    assert [group.node.name for group in mixed.groups] == ["dgx-h100", "dgx-a100", "dgx-h100"]
    assert mixed.kinds == (load_cluster("dgx-h100", 48), load_cluster("dgx-a100", 48))
    assert mixed.each == mixed.kinds
    alone = load_cluster("dgx-h100", 8)
    assert alone.each == (alone,)


def test_worn_links_are_worn_on_every_kind() -> None:
    mixed = weakened(load(("dgx-h100", 8), ("dgx-a100", 8)), 1.0, 0.5)
    for kind, plain in zip(mixed.kinds, ("dgx-h100", "dgx-a100"), strict=True):
        whole = load_cluster(plain, 16).node.scale_out.adapter_bytes_per_s
        assert kind.node.scale_out.adapter_bytes_per_s == 0.5 * whole


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "cluster.groups: must be a list of tables, [[cluster.groups]], each with name and"),
        (3, "cluster.groups: must be a list of tables"),
        ({"name": "dgx-h100", "gpus": 8}, "cluster.groups: must be a list of tables"),
        ([3], "cluster.groups[0]: must be a table of name and gpus, got 3"),
        ([{"name": "dgx-h100"}], "cluster.groups[0].gpus: required field is missing"),
        ([{"name": "dgx-h100", "gpus": 10**18}],
         "cluster.groups[0].gpus: must be less than or equal to 100000000"),
        ([{"name": "dgx-h100", "gpu": 8, "gpus": 8}],
         "cluster.groups[0].gpu: unknown field (did you mean 'gpus'?)"),
        (groups(("dgx-h100", 8), ("dgx-a10", 8)),
         "cluster.groups[1].name: unknown cluster 'dgx-a10' (did you mean 'a10-pcie'?)"),
        (groups(("dgx-h100", 12)),
         "cluster.groups[0].gpus: must be at most 8 or a multiple of 8 (whole servers), got 12"),
        (groups(("dgx-h100", 8), ("dgx-a100", 4)),
         "cluster.groups[1].gpus: must be a multiple of 8 (whole servers) beside other groups,"
         " got 4 (nearest: 8)"),
        (groups(("dgx-h100", 8), ("gb200-nvl72", 64)),
         "cluster.groups[1].gpus: must be a multiple of its scale-up domain, 72"),
        (groups(("dgx-h100", 8), ("dgx-2", 16), ("dgx-h100", 8)),
         "cluster.groups[1]: must begin with a scale-up domain of 16"),
        (groups(("selene", 4480), ("dgx-h100", 8), ("selene", 8)),
         "cluster.groups[0].gpus: must be at most 4480 on selene, got 4488"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be(given: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_groups(given, where="run.toml")
    assert caught.value.problems[0].startswith(f"run.toml: {said}")


def test_all_groups_are_checked_at_once() -> None:
    with pytest.raises(InputError) as caught:
        load(("dgx-h100", 4), ("dgx-h200", 8), ("dgx-a100", 12))
    places = [text.split(": ")[1] for text in caught.value.problems]
    assert places == [
        f"cluster.groups[{i}].{x}" for i, x in ((0, "gpus"), (1, "name"), (2, "gpus"))
    ]


def test_profiles_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    own = tmp_path / "dgx-h100.toml"
    shipped = catalogue.find("clusters", "dgx-a100")
    own.write_text(shipped.read_text())
    with pytest.raises(InputError, match=r"cluster\.groups: must be profiles of different names"):
        load((str(own), 8), ("dgx-h100", 8))


def test_there_is_no_one_price_of_a_layout_on_several_kinds() -> None:
    """Whatever asks for a closed form is refused, not given that of the first group."""
    recipe = Recipe(sequence_length=4096, global_batch=2)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    layout = Layouts.of(tp=8, dp=2, global_batch=2)
    mixed = load(("dgx-h100", 8), ("dgx-a100", 8))
    with pytest.raises(InputError, match="dgx-h100 \\+ dgx-a100: servers of several kinds have no"):
        price(layout, work, mixed, load_software("megatron-core"))


@pytest.mark.parametrize(
    ("cluster", "gpus", "domain"),
    [
        ("dgx-h100", 3, 3), ("dgx-h100", 16, 8), ("gb200-nvl72", 72, 72), ("gb200-nvl72", 76, 38),
        ("gb200-nvl72", 100, 50), ("gb200-nvl72", 128, 64), ("gb200-nvl72", 228, 57),
        ("gb200-nvl72", 292, 4),
    ],
)  # fmt: skip
def test_a_run_takes_equal_parts_of_domains(cluster: str, gpus: int, domain: int) -> None:
    """The largest divisor of its GPUs that a server of 8, or a rack of 72, has room for."""
    assert load_cluster(cluster, gpus).domain == domain


def test_ten_million_gpus_are_the_most() -> None:
    assert load_cluster("dgx-h100", 10_000_000).gpus == 10_000_000
    with pytest.raises(InputError, match="must be at most 10,000,000, got 10,000,008"):
        load_cluster("dgx-h100", 10_000_008)


def test_nccl_knows_an_algorithm_from_the_release_on_that_brought_it() -> None:
    """Trees between servers came with 2.4, NVLS with 2.17, its trees with 2.18 (release notes)."""
    library = load_library("nccl")
    for word, first, before in (
        ("tree", "2.4", "2.3"), ("collnet", "2.6", "2.5"), ("nvls", "2.17", "2.16"),
        ("nvls_tree", "2.18", "2.17"), ("pat", "2.23", "2.22"),
    ):  # fmt: skip
        assert word in library.tuning.since, word
        release = str(library.tuning.since[word])
        assert release == first or release.startswith(f"{first}.")
        assert replace(library, running_release=release).has(word)
        assert not replace(library, running_release=before).has(word)
        assert not replace(library, running_release=release, turned_off=(word,)).has(word)
