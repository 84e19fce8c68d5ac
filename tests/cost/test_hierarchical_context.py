"""Hierarchical context parallelism (a2a+p2p): what it moves, where, and what it is equal to."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Operators
from simulator.cost.step import Estimate, evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import CP_KINDS, Layouts
from simulator.layout.placement import place
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from simulator.search.candidates import candidates
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload
from tests.cost.test_operators import ranks, saved
from tests.cost.test_volumes import CORE, MICRO_BATCHES, PARAMETERS, WAITS, L, S, alike, seconds

LLAMA = presets.load("llama-3.1-8b")  # 32 heads and 8 key/value heads of 128
Q, KV = 4096, 1024
GRADIENTS = PARAMETERS * 2 * 7 / 8


def one_block(kind: str, cp: int = 8, group: int = 1) -> Operators:
    row = replace(
        ranks(cp=cp), cp_kind=np.array([CP_KINDS.index(kind)]), cp_a2a=np.array([float(group)])
    )
    recipe = Recipe(sequence_length=S, global_batch=8)
    return block(LLAMA.blocks[0], LLAMA.hidden, row, recipe, CORE.kernels)


def sent(ops: Operators, operation: str, group: str, *, backward: bool) -> float:
    chosen = [c for c in ops.collectives if (c.operation, c.group) == (operation, group)]
    return float(sum(np.sum(c.size_bytes) for c in chosen if c.backward == backward))


@pytest.mark.parametrize("group", [2, 4])
def test_what_one_block_sends(group: int) -> None:
    """AttnFuncWithCPAndKVP2P: all-to-all of q, k, v and the result, then cp / group - 1 sends.

    4096 / 8 tokens of a rank, 2 bytes. Keys and values of the group's tokens and one group-th of
    the heads are as many bytes as before; backward sends them and their gradients.
    """
    ops, tokens = one_block("hierarchical", 8, group), S / 8
    steps = 8 / group - 1
    for backward, swapped, times in ((False, 2 * Q + 2 * KV, 1), (True, 3 * Q + 2 * KV, 2)):
        assert sent(ops, "all_to_all", "cp_a2a", backward=backward) == tokens * 2 * swapped
        ring = sent(ops, "ring", "cp_ring", backward=backward)
        assert ring == times * steps * tokens * 2 * 2 * KV
    assert not any(c.group == "cp" and np.any(c.size_bytes) for c in ops.collectives)


@pytest.mark.parametrize("group", [2, 4])
def test_on_links_by_hand(group: int) -> None:
    """One kB/s: an all-to-all sends (group - 1) / group of its bytes, a ring what it passes."""
    tokens = S / 8
    swaps = (5 * Q + 4 * KV) * (group - 1) / group
    rings = 3 * (8 / group - 1) * 2 * KV
    exchanged = MICRO_BATCHES * L * tokens * 2 * (swaps + rings)
    found = seconds({"cp": 8, "cp_kind": "hierarchical", "cp_a2a": group}, WAITS)
    assert alike(found, exchanged + 2 * GRADIENTS)


def test_it_lies_between_ring_and_all_to_all() -> None:
    """The bytes of a ring fall with the groups, those of the exchange come in full at once."""
    ring = sent(one_block("ring"), "ring", "cp", backward=False)
    two, four = (
        sent(one_block("hierarchical", 8, g), "ring", "cp_ring", backward=False) for g in (2, 4)
    )
    assert (two / ring, four / ring) == (3 / 7, 1 / 7)
    whole = sent(one_block("all_to_all"), "all_to_all", "cp", backward=False)
    assert sent(one_block("hierarchical", 8, 4), "all_to_all", "cp_a2a", backward=False) == whole


def test_it_computes_and_keeps_what_the_others_do() -> None:
    ring, both = one_block("ring"), one_block("hierarchical", 8, 2)
    assert float(both.flash[0].flop[0]) == float(ring.flash[0].flop[0])
    assert saved(both) == saved(ring)
    # keys come in blocks of the ring: four of S / 4 instead of eight of S / 8
    assert float(both.flash[0].span[0]) == S / 4
    assert float(ring.flash[0].span[0]) == S / 8


@pytest.mark.parametrize(
    ("layout", "inner", "outer"),
    [
        ({"cp": 8, "cp_a2a": 4}, (4, 4), (2, 2)),  # all in one server
        ({"cp": 32, "cp_a2a": 8}, (8, 8), (4, 1)),  # a server each, rings between
        ({"cp": 32, "cp_a2a": 4}, (4, 4), (8, 2)),
        ({"tp": 4, "cp": 8, "cp_a2a": 4}, (4, 2), (2, 1)),  # two context ranks in a server
        ({"tp": 8, "cp": 4, "cp_a2a": 2}, (2, 1), (2, 1)),
    ],
)
def test_groups_are_adjacent_ranks(
    layout: dict[str, int], inner: tuple[int, int], outer: tuple[int, int]
) -> None:
    """Servers of eight; members of a group, and how many of them share a server."""
    table = Layouts.of(**layout, cp_kind="hierarchical")
    groups = place(table, 8).with_groups(table.cp_a2a.astype(np.int64))
    assert (groups.cp_a2a.size[0], groups.cp_a2a.local[0]) == inner
    assert (groups.cp_ring.size[0], groups.cp_ring.local[0]) == outer


def run(length: int, **layout: Any) -> Estimate:
    work = Workload(architecture=LLAMA, recipe=Recipe(sequence_length=length, global_batch=8))
    table = Layouts.of(global_batch=4, **layout)
    return evaluate(table, work, load_cluster("dgx-h100", int(table.world[0])), CORE)


def test_across_servers_it_beats_the_ring_whose_every_step_crosses() -> None:
    """131,072 tokens over 32 GPUs: attention of 4096 tokens is too short to hide a send."""
    found = run(131072, cp=32, cp_kind=["ring", "hierarchical"], cp_a2a=[1, 8])
    ring, both = found.terms_s["cp"] + found.hidden_s["cp"]
    assert both < 0.6 * ring
    assert found.step_time_s[1] < found.step_time_s[0]


def test_memory_is_that_of_the_ring() -> None:
    found = run(32768, cp=8, cp_kind=["ring", "hierarchical", "hierarchical"], cp_a2a=[1, 2, 4])
    assert len(set(found.memory_total_bytes.tolist())) == 1


@settings(max_examples=settings.default.max_examples // 20)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([0, 1, 2, 3])),
        min_size=2,
        max_size=8,
    )
)
def test_a_layout_costs_the_same_alone_and_stacked(rows: list[tuple[int, int]]) -> None:
    cp = [size for size, _ in rows]
    kinds = [0 if kind == 3 and size <= 2 else kind for size, kind in rows]
    groups = [2 if kind == 3 else 1 for kind in kinds]
    stacked = run(16384, cp=cp, dp=[8 // size for size in cp], cp_kind=kinds, cp_a2a=groups)
    for i in range(len(rows)):
        alone = run(
            16384,
            **{
                name: x[i]
                for name, x in stacked.layouts.columns().items()
                if name not in ("global_batch", "stages")  # a number of a table's own, 0 everywhere
            },
        )
        assert alone.step_time_s[0] == pytest.approx(stacked.step_time_s[i], rel=1e-12)
        assert alone.memory_total_bytes[0] == stacked.memory_total_bytes[i]


def scenario(**layout: Any) -> Any:
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 65536, "global_batch": 16},
            "cluster": {"name": "dgx-h100", "gpus": 32},
            "layout": layout,
        }
    )


def test_the_default_group_stays_in_a_server_and_divides_the_heads() -> None:
    assert predict(scenario(cp=32, cp_kind="hierarchical")).layout["cp_a2a"] == 8
    assert predict(scenario(cp=8, tp=2, cp_kind="hierarchical")).layout["cp_a2a"] == 4
    # two key/value heads on a rank
    assert predict(scenario(cp=8, tp=4, cp_kind="hierarchical")).layout["cp_a2a"] == 2
    found = predict(scenario(cp=8, cp_a2a=2)).layout
    assert (found["cp_kind"], found["cp_a2a"]) == ("hierarchical", 2)


def test_a_search_tries_every_group_of_a_pinned_kind_and_every_kind_if_asked() -> None:
    asked = scenario(cp_kind="hierarchical", cp=16, tp=1, pp=1)
    parts = (asked.workload, asked.cluster, asked.software)
    table = candidates(*parts, asked.pinned)
    good = table[reasons(table, *parts) == FEASIBLE]
    assert set(good.cp_a2a.tolist()) == {2, 4, 8}  # of 16, with a ring left and 8 heads
    every = candidates(*parts, {"cp_kind": "any", "cp": 16, "tp": 1, "pp": 1})
    assert set(every.cp_kind.tolist()) == {0, 1, 2, 3}
    # without context parallelism a kind means nothing: such layouts are there once
    usual = candidates(*parts, {"tp": 1, "pp": 1})
    both = candidates(*parts, {"cp_kind": "any", "tp": 1, "pp": 1})
    assert (both.cp == 1).sum() == (usual.cp == 1).sum()
    # and no one is asked unless the scenario says so
    assert set(usual.cp_kind.tolist()) == {0} and set(usual.cp_a2a.tolist()) == {1}
