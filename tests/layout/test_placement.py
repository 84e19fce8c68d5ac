"""Process groups against explicit rank lists, enumerated by brute force."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.layout.layouts import RANK_ORDERS, Layouts
from simulator.layout.placement import Group, place

DIMENSIONS = ("tp", "cp", "dp", "pp")
GROUPS = {"tp": ("tp",), "cp": ("cp",), "dp": ("dp", "cp")}
POWERS = [
    dict(zip(DIMENSIONS, degrees, strict=True))
    for degrees in product((1, 2, 8), (1, 2), (1, 2, 4, 16), (1, 2, 4))
]


def rank_grid(order: str, degrees: dict[str, int]) -> NDArray[Any]:
    """Rank numbers by (tp, cp, dp, pp); the first dimension of the order is adjacent."""
    names = order.split("-")
    ranks = np.arange(np.prod([degrees[name] for name in names]))
    grid = ranks.reshape([degrees[name] for name in reversed(names)])
    return grid.transpose([names[::-1].index(name) for name in DIMENSIONS])


def rank_lists(grid: NDArray[Any], over: tuple[str, ...]) -> NDArray[Any]:
    """Every group over the given dimensions as a row of rank numbers."""
    axes = [DIMENSIONS.index(name) for name in over]
    moved = np.moveaxis(grid, axes, range(-len(axes), 0))
    return moved.reshape(-1, int(np.prod([grid.shape[axis] for axis in axes])))


def members_per_domain(groups: NDArray[Any], domain: int) -> set[int]:
    """How many members the groups have in the domains that they touch."""
    counts: set[int] = set()
    for group in groups // domain:
        counts.update(np.unique(group, return_counts=True)[1].tolist())
    return counts


def expert_lists(grid: NDArray[Any], etp: int, ep: int) -> dict[str, NDArray[Any]]:
    """Expert groups: every stage's ranks in ascending order, dealt over etp, then ep, then edp."""
    pp = grid.shape[-1]
    stages = np.sort(grid.reshape(-1, pp).T, axis=1).reshape(pp, -1, ep, etp)
    return {
        "etp": stages.reshape(-1, etp),
        "ep": stages.swapaxes(2, 3).reshape(-1, ep),
        "edp": stages.transpose(0, 2, 3, 1).reshape(pp * ep * etp, -1),
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("domain", [1, 4, 8, 32])
@pytest.mark.parametrize("order", RANK_ORDERS)
def test_every_group_has_as_many_members_in_a_domain_as_its_rank_list(
    order: str, domain: int
) -> None:
    cases = [x for x in POWERS if np.prod(list(x.values())) >= domain]
    table = Layouts.of(**{name: [case[name] for case in cases] for name in DIMENSIONS})
    placed = place(table.replace(rank_order=order), domain)
    for row, degrees in enumerate(cases):
        grid = rank_grid(order, degrees)
        for name, over in GROUPS.items():
            lists, group = rank_lists(grid, over), getattr(placed, name)
            assert group.size[row] == lists.shape[1], (name, degrees)
            assert members_per_domain(lists, domain) == {group.local[row]}, (name, degrees)
        stages = rank_lists(grid, ("pp",)) // domain
        inside = bool((stages == stages[:, :1]).all())
        assert placed.pp.local[row] == (2 if inside else 1), degrees


@pytest.mark.sampled(5)
@pytest.mark.parametrize("domain", [4, 8])
@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp", "pp-tp-cp-dp", "tp-pp-cp-dp"])
def test_expert_groups_are_dealt_over_the_ranks_of_a_stage(order: str, domain: int) -> None:
    for degrees in POWERS:
        replica = degrees["tp"] * degrees["cp"] * degrees["dp"]
        if replica * degrees["pp"] < domain:
            continue
        grid = rank_grid(order, degrees)
        pairs = [(t, e) for t in (1, 2, 8) for e in (1, 4, 16) if replica % (t * e) == 0]
        table = Layouts.of(**degrees, etp=[t for t, _ in pairs], ep=[e for _, e in pairs])
        placed = place(table.replace(rank_order=order), domain)
        for row, (etp, ep) in enumerate(pairs):
            for name, lists in expert_lists(grid, etp, ep).items():
                group = getattr(placed, name)
                assert group.size[row] == lists.shape[1], (name, degrees, etp, ep)
                found = members_per_domain(lists, domain)
                assert found == {group.local[row]}, (name, degrees, etp, ep)


@pytest.mark.parametrize(
    ("order", "degrees"),
    [
        ("tp-cp-dp-pp", {"tp": 1, "cp": 1, "dp": 6, "pp": 4}),  # ranks 6-11 sit on two servers
        ("tp-cp-dp-pp", {"tp": 2, "cp": 1, "dp": 3, "pp": 4}),
        ("tp-cp-dp-pp", {"tp": 1, "cp": 3, "dp": 2, "pp": 4}),
        ("tp-cp-dp-pp", {"tp": 6, "cp": 1, "dp": 4, "pp": 1}),
        ("tp-cp-pp-dp", {"tp": 1, "cp": 1, "dp": 4, "pp": 6}),
    ],
)
def test_a_group_that_straddles_two_domains_is_not_inside_one(
    order: str, degrees: dict[str, int]
) -> None:
    placed = place(Layouts.of(**degrees, rank_order=order), 8)
    grid = rank_grid(order, degrees)
    for name, over in (*GROUPS.items(), ("pp", ("pp",))):
        lists = rank_lists(grid, over) // 8
        if all(len(set(group)) == 1 for group in lists.tolist()):
            continue
        group: Group = getattr(placed, name)
        assert group.local[0] < group.size[0], f"{name} of {degrees} crosses the network"


def test_the_example_in_megatron_cores_own_documentation() -> None:
    # megatron/core/parallel_state.py: 16 GPUs, tp 2, pp 4
    grid = rank_grid("tp-cp-dp-pp", {"tp": 2, "cp": 1, "dp": 2, "pp": 4})
    assert rank_lists(grid, ("dp",)).tolist() == [
        [0, 2],
        [4, 6],
        [8, 10],
        [12, 14],
        [1, 3],
        [5, 7],
        [9, 11],
        [13, 15],
    ]
    assert sorted(rank_lists(grid, ("pp",)).tolist()) == [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
    ]
    placed = place(Layouts.of(tp=2, dp=2, pp=4), 8)
    assert (placed.tp.local[0], placed.dp.local[0], placed.pp.local[0]) == (2, 2, 1)


def test_shard_groups_fill_domains_first() -> None:
    # 64 data-parallel ranks, tp 2: four of them in a server of eight; shards over 8 or 64 of them
    placed = place(Layouts.of(tp=2, dp=64, shard_group=[2, 8, 64], sharding="zero3"), 8)
    assert placed.shard.size.tolist() == [2, 8, 64]
    assert placed.shard.local.tolist() == [2, 4, 4]


def test_taking_rows_takes_them_of_every_group() -> None:
    placed = place(Layouts.of(tp=[1, 2, 4], dp=[8, 4, 2], ep=[8, 1, 2]), 8)
    some = placed.take(np.array([2, 0]))
    assert some.tp.size.tolist() == [4, 1]
    assert some.ep.size.tolist() == [2, 8]
    assert some.edp.size.tolist() == [4, 1]
