"""Laws of memory: what halves, what never grows, what adds up, alone as in a table."""

import random
from typing import Any

import numpy as np
import pytest

from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.step import Estimate, evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

PAIRS = [
    ("llama-3.1-70b", "megatron-core"),
    ("llama-3.1-70b", "torchtitan"),
    ("mixtral-8x7b", "megatron-core"),
]


def evaluated(model: str, software: str, gpus: int = 64, batch: int = 512, **x: Any) -> Estimate:
    work = Workload(
        architecture=presets.load(model), recipe=Recipe(sequence_length=8192, global_batch=batch)
    )
    table = Layouts.of(global_batch=batch, **x)
    return evaluate(table, work, load_cluster("dgx-h100", gpus), load_software(software))


@pytest.mark.parametrize(("model", "software"), PAIRS[:2])
def test_sharded_states_halve_when_the_shard_group_doubles(model: str, software: str) -> None:
    found = evaluated(model, software, dp=64, sharding="zero3", shard_group=[8, 16, 32, 64])
    for kind in ("weights", "gradients", "optimizer"):
        held = found.memory_bytes[kind]
        assert held[:-1] == pytest.approx(2 * held[1:], rel=1e-12)


@pytest.mark.parametrize(("model", "software"), PAIRS)
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("micro_batch", [8, 4, 2, 1]),
        ("recompute_layers", [1, 5, 10, 20]),
        ("sharding", ["zero2", "zero3"]),
    ],
)
def test_what_saves_memory_never_costs_any(
    model: str, software: str, field: str, values: list[Any]
) -> None:
    layout: dict[str, Any] = {"tp": 4, "dp": 16, "sharding": "zero3", "recompute": "full"}
    found = evaluated(model, software, **(layout | {field: values}))
    assert (np.diff(found.memory_total_bytes) <= 0).all()


def drawn(count: int) -> dict[str, list[Any]]:
    """Columns of random layouts of 64 GPUs; not all can run."""
    draw = random.Random(6)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        tp, pp = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 4])
        rows.append(
            {
                "tp": tp,
                "pp": pp,
                "dp": 64 // (tp * pp),
                "micro_batch": draw.choice([1, 2, 4]),
                "sharding": draw.choice(["ddp", "zero1", "zero2", "zero3"]),
                "recompute": draw.choice(["none", "selective", "full"]),
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.mark.parametrize(("model", "software"), PAIRS)
def test_alone_as_in_a_table_and_kinds_add_up(model: str, software: str, extent: str) -> None:
    columns = drawn(120)
    work = Workload(
        architecture=presets.load(model), recipe=Recipe(sequence_length=8192, global_batch=512)
    )
    cluster, kit = load_cluster("dgx-h100", 64), load_software(software)
    table = Layouts.of(global_batch=512, **columns)
    table = table[np.flatnonzero(reasons(table, work, cluster, kit) == FEASIBLE)]
    together = evaluate(table, work, cluster, kit)
    assert len(together) > 20
    kinds = np.stack([together.memory_bytes[kind] for kind in MEMORY_KINDS])
    assert kinds.sum(axis=0) == pytest.approx(together.memory_total_bytes, rel=1e-12)
    assert (kinds >= 0).all()
    for i in range(0, len(table), {"sample": 5, "whole": 1}[extent]):
        alone = evaluate(table[i], work, cluster, kit)
        assert alone.memory_total_bytes[0] == pytest.approx(
            together.memory_total_bytes[i], rel=1e-12
        )
        assert alone.peak_stage[0] == together.peak_stage[i]


@pytest.mark.parametrize("software", ["torchtitan", "torchtitan-2024", "megatron-core"])
@pytest.mark.parametrize(("model", "length"), [("llama-3.1-8b", 4096), ("gpt3-6.7b", 2048)])
def test_twice_the_micro_batch_of_a_pipeline_takes_no_less(
    model: str, length: int, software: str
) -> None:
    """But for two things, both of torch's pipelines alone.

    With a round of micro-batches a chunk has all its gradients, and frees them and its weights,
    before the next one begins; with several, whole weights and gradients of all chunks are there at
    once. And a larger micro-batch has freed more of itself before the last gradients are there.
    """
    work = Workload(
        architecture=presets.load(model), recipe=Recipe(sequence_length=length, global_batch=512)
    )
    setting = work, load_cluster("dgx-h100", 128), load_software(software)
    size = [1, 2, 4, 8, 16, 32]
    rows = [
        {"tp": tp, "pp": pp, "vpp": vpp, "dp": 128 // tp // pp, "sharding": sharding,
         "recompute": recompute, "sequence_parallel": tp > 1}
        for tp in (1, 8) for pp in (2, 4, 8, 16) for vpp in (1, 2, 3, 4)
        for sharding in ("zero1", "zero2") for recompute in ("none", "selective", "full")
    ]  # fmt: skip
    columns = {name: np.repeat([row[name] for row in rows], len(size)) for name in rows[0]}
    table = Layouts.of(global_batch=512, micro_batch=size * len(rows), **columns)
    able = (reasons(table, *setting) == FEASIBLE).reshape(-1, len(size))
    found = evaluate(table[np.flatnonzero(able.ravel())], *setting)
    held = np.full((2, len(table)), np.nan)
    held[:, able.ravel()] = found.memory_total_bytes, found.memory_bytes["gathered"]
    whole, gathered = held.reshape(2, -1, len(size))
    both = able[:, 1:] & able[:, :-1]
    assert both.sum() > 100
    with np.errstate(invalid="ignore"):
        fell = both & (whole[:, 1:] < whole[:, :-1] * (1.0 - 1e-9))
        fewer = gathered[:, 1:] < gathered[:, :-1]
        freed = whole[:, 1:] > 0.97 * whole[:, :-1]
    assert not (fell & ~fewer & ~freed).any()
    assert software != "megatron-core" or not fell.any()
