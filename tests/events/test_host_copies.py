"""Activations in host memory, in a pipeline: copies beside other passes, link by link.

No software here offloads activations with a pipeline yet; the layouts are played past its checks.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simulator.cost.step import evaluate
from simulator.events.simulated_step import simulate, summarise
from simulator.events.step.play import Played
from simulator.events.step.streams import SPAN_KINDS, STREAMS
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

COPY = STREAMS.index("copy")
Worked = Callable[..., Played]


def copies(step: Any, rank: int) -> list[tuple[str, float, float]]:
    line = step.timeline
    rows = np.flatnonzero((line.stream == COPY) & (line.rank == rank))
    return [
        (SPAN_KINDS[line.kind[i]], float(line.start_s[i]), float(line.end_s[i]))
        for i in rows
        if line.kind[i] != SPAN_KINDS.index("input")
    ]


def test_copies_run_while_the_rank_computes_and_while_it_waits(worked: Worked) -> None:
    """Rank 0: F0 0-1, F1 1-2, waits, B0 4-6, B1 7-9. Out with each F, back after the last one."""
    step = summarise(worked([1.0, 1.0], [2.0, 2.0], 2, copy=(0.5, 0.0)))
    assert step.step_time_s == 9.0
    assert copies(step, 0) == [
        ("offload", 0.0, 0.5),
        ("offload", 1.0, 1.5),
        ("fetch", 2.0, 2.5),
        ("fetch", 2.5, 3.0),
    ]
    assert copies(step, 1) == []
    assert step.busy_s[:, COPY].tolist() == [2.0, 0.0]
    assert step.exposed_s[:, COPY].tolist() == [0.0, 0.0]
    assert step.terms_s["offload"] == 0.0


def test_a_slow_link_holds_up_what_follows(worked: Worked) -> None:
    """Copies of 3 s take the link from 0 to 12 s: B1, which follows B0, waits for its copy at 9."""
    step = summarise(worked([1.0, 1.0], [2.0, 2.0], 2, copy=(3.0, 0.0)))
    assert copies(step, 0) == [
        ("offload", 0.0, 3.0),
        ("offload", 3.0, 6.0),
        ("fetch", 6.0, 9.0),
        ("fetch", 9.0, 12.0),
    ]
    line = step.timeline
    back = (line.rank == 0) & (line.kind == SPAN_KINDS.index("backward"))
    assert line.start_s[back].tolist() == [4.0, 9.0]
    assert step.step_time_s == 12.0
    assert sum(step.terms_s.values()) == 12.0
    assert step.terms_s["offload"] == pytest.approx(5.0)  # rank 1 paces: done at 7


def test_the_next_rank_waits_for_what_comes_back(worked: Worked) -> None:
    """Rank 1 copies 2 s: F0 1-2, out 1-3, back 3-5 behind B0 2-4; rank 0 takes B0's result at 5."""
    step = summarise(worked([1.0, 1.0], [2.0, 2.0], 1, copy=(0.0, 2.0)))
    assert copies(step, 1) == [("offload", 1.0, 3.0), ("fetch", 3.0, 5.0)]
    assert step.step_time_s == 7.0


def given(rate: float, **layout: Any) -> tuple[Any, ...]:
    """Sixteen equal blocks on each of four ranks, as many micro-batches."""
    table = Layouts.of(pp=4, **layout, global_batch=16)
    arch = presets.load("llama-3.1-8b")
    arch = replace(arch, vocabulary=128, layer_kinds=(0,) * 64)
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=4096, global_batch=16))
    cluster = load_cluster("dgx-h100", 4)
    node = replace(cluster.groups[0].node, host_bytes_per_s=Figure(rate))
    cluster = replace(cluster, groups=(replace(cluster.groups[0], node=node),))
    return table, work, cluster, load_software("megatron-core")


LOOPED = {"vpp": 2, "schedule": "interleaved"}


@pytest.mark.parametrize(
    ("rate", "layout", "within"),
    [
        (1e12, {"offload_layers": 16}, 0.002),
        (1e12, {"offload_layers": 16, **LOOPED}, 0.002),
        (50e9, {"offload_layers": 4, **LOOPED}, 0.002),  # behind both chunks, not their own alone
        (5e9, {"offload_layers": 8}, 0.002),  # the link is busy all the time
        (5e9, {"offload_layers": 16, **LOOPED}, 0.002),
        (2e9, {"offload_layers": 8, "vpp": 2, "schedule": "zb_v"}, 0.003),
        # rounds of four micro-batches leave the link idle where only the first chunk is copied
        (2e9, {"offload_layers": 8, **LOOPED}, 0.01),
    ],
)
def test_what_fits_hides_and_a_full_link_paces(
    rate: float, layout: dict[str, Any], within: float
) -> None:
    setting = given(rate, **layout)
    closed, step = evaluate(*setting), simulate(*setting)
    assert step.step_time_s == pytest.approx(float(closed.step_time_s[0]), rel=within)
    whole = float(closed.terms_s["offload"][0] + closed.hidden_s["offload"][0])
    fetched = step.terms_s["input"]
    assert step.busy_s[step.pacing_rank, COPY] == pytest.approx(whole + fetched)
    both = step.terms_s["offload"] + step.hidden_s["offload"]
    assert both == pytest.approx(whole, rel=0.02)
    assert sum(step.terms_s.values()) == pytest.approx(step.step_time_s)


def test_in_between_the_link_works_on_beside_the_other_way() -> None:
    """Copies longer than a forward and shorter than a backward pass: the closed form lets neither
    way use what the other leaves, so that it is above; never below what the link alone takes."""
    setting = given(50e9, offload_layers=8)
    closed, step = evaluate(*setting), simulate(*setting)
    assert step.busy_s[0, COPY] < step.step_time_s
    assert 0.88 < step.step_time_s / float(closed.step_time_s[0]) < 0.95


def test_spans_of_the_link_do_not_overlap() -> None:
    step = simulate(*given(20e9, offload_layers=8, **LOOPED))
    for rank in range(4):
        spans = copies(step, rank)
        assert len(spans) == 2 * 16
        assert all(a[2] <= b[1] + 1e-12 for a, b in pairwise(spans))
