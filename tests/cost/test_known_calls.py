"""Calls of one machine stay known: what was asked before changes no answer."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.collectives.calls import all_gather_s, all_reduce_s, reduce_scatter_s
from simulator.hardware.cluster import load_cluster, weakened
from simulator.layout.placement import Group
from simulator.record_cache import for_same_records

MEMBERS = np.array([2, 4, 8, 16, 64, 8, 2])
CALLS = Group(size=MEMBERS, local=np.minimum(MEMBERS, 8))
SIZES = np.array([3e3, 7e5, 1e6, 2.5e8, 4e9, 1e6, 0.0])


@pytest.mark.parametrize("call", [all_gather_s, all_reduce_s, reduce_scatter_s])
@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "gb200-nvl72", "mi300x-8"])
def test_alone_as_together_and_again(name: str, call) -> None:  # type: ignore[no-untyped-def]
    fresh = load_cluster(name, 144)
    fresh = replace(fresh, library=replace(fresh.library))  # of which nothing is known
    together = call(fresh, SIZES, CALLS)
    other = replace(fresh, library=replace(fresh.library))
    rows = [CALLS.take(np.array([i])) for i in range(len(SIZES))]
    alone = [float(call(other, SIZES[i], rows[i])[0]) for i in range(len(SIZES))]
    assert together.tolist() == pytest.approx(alone, rel=1e-12)
    assert call(fresh, SIZES[::-1], CALLS.take(np.arange(len(SIZES))[::-1])).tolist() == (
        together[::-1].tolist()
    )


def test_other_links_are_another_machine() -> None:
    cluster = load_cluster("dgx-h100", 64)
    before = all_gather_s(cluster, 1e9, Group(size=np.array([64]), local=np.array([8])))
    half = weakened(cluster, 0.5, 0.5)
    after = all_gather_s(half, 1e9, Group(size=np.array([64]), local=np.array([8])))
    assert after[0] > 1.5 * before[0]


def test_what_is_asked_for_longest_ago_is_left_out() -> None:
    asked: list[dict[str, int]] = []
    kept = for_same_records(2)(lambda record, word: asked.append(record))
    one, two, three = {"n": 1}, {"n": 2}, {"n": 3}
    for record in (one, two, one, three, one, two):
        kept(record, "a")
    assert asked == [one, two, three, two]
    kept(one, "b")
    assert asked[-1] is one
