"""Fill and drain of the pipeline: Narayanan's closed form, and 1F1B played through step by step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.passes import part_passes, stage_passes
from simulator.cost.step import evaluate, price, select
from simulator.hardware.cluster import load_cluster
from simulator.layout.layout import Layouts
from simulator.software import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

PASSES = ("gemm", "attention", "memory_bound", "launch", "slowdown", "recompute", "tp", "cp", "ep")


def equal_stages(p: int, v: int, m: int) -> tuple[Workload, Layouts]:
    """A model of so many layers, and so few words, that embedding and head cost nothing."""
    arch = replace(presets.load("llama-3.1-8b"), layer_kinds=(0,) * (40 * p * v), vocabulary=1)
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=4096, global_batch=m))
    return work, Layouts.of(pp=p, vpp=v, global_batch=m)


@pytest.mark.parametrize("software", ["megatron-core", "megatron-lm-2022"])
@pytest.mark.parametrize(
    ("p", "v", "m"), [(2, 1, 1), (2, 1, 8), (8, 1, 8), (8, 1, 64), (4, 2, 8), (4, 5, 4), (8, 3, 16)]
)
def test_the_bubble_of_equal_stages_is_narayanans(p: int, v: int, m: int, software: str) -> None:
    """Narayanan et al. 2021, section 2.2: (p - 1) / m of the ideal time, and a v-th of it."""
    work, layout = equal_stages(p, v, m)
    kernels = replace(load_software(software).kernels, pads_vocabulary_to=1)
    used = replace(load_software(software), kernels=kernels)
    found = evaluate(layout, work, load_cluster("dgx-h100", p), used)
    ideal = sum(float(found.terms_s[name][0]) for name in PASSES)
    bubble = float(found.terms_s["bubble_warmup"][0] + found.terms_s["bubble_drain"][0])
    assert bubble / ideal == pytest.approx((p - 1) / (v * m), rel=5e-3)


def test_a_third_of_the_bubble_is_fill() -> None:
    # backward takes about twice as long as forward; both are within a band of any kernel set
    work, layout = equal_stages(4, 1, 8)
    found = evaluate(layout, work, load_cluster("dgx-h100", 4), load_software("megatron-core"))
    fill, drain = (float(found.terms_s[f"bubble_{x}"][0]) for x in ("warmup", "drain"))
    assert 0.28 < fill / (fill + drain) < 0.36


def played(forward_s: Any, backward_s: Any, m: int) -> float:
    """Makespan of 1F1B with these stage times: every action after what it needs, in rank order."""
    p = len(forward_s)
    orders = []
    for rank in range(p):
        warm = min(p - 1 - rank, m)
        order = [("F", i) for i in range(warm)]
        for i in range(m - warm):
            order += [("F", warm + i), ("B", i)]
        orders.append(order + [("B", i) for i in range(m - warm, m)])
    done: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * p, [0] * p
    while any(position[r] < 2 * m for r in range(p)):
        for r in range(p):
            while position[r] < 2 * m:
                kind, i = orders[r][position[r]]
                before = (kind, i, r - 1) if kind == "F" else (kind, i, r + 1)
                if (kind, r) == ("B", p - 1):
                    before = ("F", i, r)
                if before not in done and (kind, r) != ("F", 0):
                    break
                seconds = forward_s[r] if kind == "F" else backward_s[r]
                clock[r] = max(clock[r], done.get(before, 0.0)) + seconds
                done[kind, i, r] = clock[r]
                position[r] += 1
    return max(clock)


def test_played_1f1b_has_the_makespan_of_the_textbook() -> None:
    # stages of 1 forward and 2 backward: m passes and p - 1 to fill and drain
    assert played([1.0] * 4, [2.0] * 4, 8) == (8 + 3) * 3


UNEVEN: list[tuple[str, str, int, dict[str, Any], float]] = [
    ("llama-3.1-8b", "megatron-core", 2, {"pp": 8}, 0.01),  # a heavy head on the last stage
    ("llama-3.1-405b", "megatron-core", 4, {"tp": 8, "pp": 16, "dp": 8}, 0.01),  # 7, 8, ..., 8, 7
    ("deepseek-v3", "megatron-core", 2, {"pp": 16, "dp": 128, "ep": 64, "sharding": "zero1"}, 0.01),
    # six stages of 12 layers and a light one of 8: with as few micro-batches as stages the others
    # fill part of its idle time, which the closed form counts in full; events play it exactly
    ("llama-3.1-70b", "torchtitan", 1, {"tp": 4, "pp": 7, "dp": 8, "sharding": "zero2"}, 0.025),
    ("megatron-175b", "megatron-lm-2022", 8, {"tp": 8, "pp": 8, "recompute": "full"}, 0.01),
]


@pytest.mark.parametrize(("model", "software", "rounds", "layout", "above"), UNEVEN)
def test_uneven_stages_take_as_long_as_1f1b_played_through(
    model: str, software: str, rounds: int, layout: dict[str, Any], above: float
) -> None:
    """The closed form never promises less than the schedule takes, nor much more."""
    p, dp = layout["pp"], layout.get("dp", 1)
    gpus, m = p * dp * layout.get("tp", 1), rounds * p
    work = Workload(
        architecture=presets.load(model),
        recipe=Recipe(sequence_length=4096, global_batch=m * dp),
    )
    table = Layouts.of(global_batch=m * dp, **layout)
    setting = (work, load_cluster("dgx-h100", gpus), load_software(software))
    priced = price(table, *setting, every_rank=True)
    rows = select(table, priced, slice(0, 1))
    none = np.zeros_like(rows.parts[:, 0])
    count = np.array([float(m)])
    passes = part_passes(priced, rows.key, rows.grid, count, table.recompute, none)
    forward_s, backward_s = (column[0] for column in stage_passes(rows.parts, rows.covered, passes))
    found = evaluate(table, *setting)
    bubble = float(found.terms_s["bubble_warmup"][0] + found.terms_s["bubble_drain"][0])
    closed = m * float((forward_s + backward_s).max()) + bubble
    real = played(forward_s.tolist(), backward_s.tolist(), m)
    assert real * (1 - 1e-12) <= closed <= (1 + above) * real


@pytest.mark.parametrize("name", ["llama-3.1-405b", "deepseek-v3"])
def test_the_slowest_stage_is_named_and_its_excess_is_the_imbalance(name: str) -> None:
    arch = presets.load(name)
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=4096, global_batch=64))
    layout = Layouts.of(tp=8, pp=8, global_batch=64)
    found = evaluate(layout, work, load_cluster("dgx-h100", 64), load_software("megatron-core"))
    even = sum(float(found.terms_s[x][0]) for x in PASSES)
    assert 0 < found.imbalance_s[0] < even / 2
    assert 0 <= found.slowest_stage[0] < 8
