"""Calls of a machine, blocks of a setting stay known: what was asked before changes no answer."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.collectives.calls import all_gather_s, all_reduce_s, reduce_scatter_s
from simulator.cost.pricing import price_keys
from simulator.cost.step import evaluate
from simulator.hardware.cluster import load_cluster, weakened
from simulator.layout.placement import Group
from simulator.layout.rules.feasibility import reasons
from simulator.record_cache import for_same_records
from simulator.scenario import make_scenario
from simulator.search.candidates import candidates

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


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
def test_blocks_that_stay_known_are_those_of_a_table_of_its_own(model: str) -> None:
    made = make_scenario(
        {
            "model": {"name": model},
            "training": {"sequence_length": 4096, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 16, "software": "megatron-core"},
        }
    )
    table = candidates(made.workload, made.cluster, made.software, {"pp": 2, "vpp": 1})
    table = table[np.flatnonzero(reasons(table, made.workload, made.cluster, made.software) == 0)]
    some = table[np.arange(len(table))[:: -len(table) // 97]]
    fresh = replace(made.cluster)  # of which nothing is known
    alone = evaluate(some, made.workload, fresh, made.software)
    price_keys(table[:50], made.workload, made.cluster, made.software, modules=[0, 1])
    evaluate(table, made.workload, made.cluster, made.software)
    again = evaluate(some, made.workload, made.cluster, made.software)
    assert again.step_time_s.tolist() == pytest.approx(alone.step_time_s.tolist(), rel=1e-12)
    assert again.memory_total_bytes.tolist() == alone.memory_total_bytes.tolist()


def test_what_is_asked_for_longest_ago_is_left_out() -> None:
    asked: list[dict[str, int]] = []
    kept = for_same_records(2)(lambda record, word: asked.append(record))
    one, two, three = {"n": 1}, {"n": 2}, {"n": 3}
    for record in (one, two, one, three, one, two):
        kept(record, "a")
    assert asked == [one, two, three, two]
    kept(one, "b")
    assert asked[-1] is one
