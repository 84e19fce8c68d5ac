"""Memory of the fullest rank: states per parameter, activations in flight, and laws."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.memory.moments import MOMENTS
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.operators.matrices import expert_parameters, rank_parameters
from simulator.cost.rank_memory import RankMemory, rank_memory
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

STATES = ("weights", "gradients", "optimizer")
CORE = load_software("megatron-core")
FP32_GRADIENTS = replace(CORE, states=replace(CORE.states, gradient=Figure(4), reduce=Figure(4)))
OLD = load_software("megatron-lm-2022")
TITAN = load_software("torchtitan")


def workload(model: str, length: int, batch: int, **recipe: Any) -> Workload:
    arch = presets.load(model)
    return Workload(
        architecture=arch, recipe=Recipe(sequence_length=length, global_batch=batch, **recipe)
    )


def run(
    layout: dict[str, Any], software: Software, work: Workload, cluster: str = "dgx-h100"
) -> Estimate:
    table = Layouts.of(global_batch=work.recipe.global_batch, **layout)
    return evaluate(table, work, load_cluster(cluster, int(table.world[0])), software)


def by_rank(
    layout: dict[str, Any], software: Software, work: Workload, cluster: str = "dgx-a100"
) -> RankMemory:
    table = Layouts.of(global_batch=work.recipe.global_batch, **layout)
    return rank_memory(table, work, load_cluster(cluster, int(table.world[0])), software)


def states(found: Estimate) -> float:
    return float(sum(found.memory_bytes[kind][0] for kind in STATES))


# its 128256 rows need no padding at tp 1; the gradients are there from the first micro-batch on
LLAMA_8B = workload("llama-3.1-8b", 8192, 128)
PARAMETERS = 8_030_261_248


@pytest.mark.parametrize(
    ("software", "sharding", "per_parameter"),
    [
        # Korthikanti 2022, figure 1: 2 weight + 4 gradient + 4 master + 8 moments
        (OLD, "ddp", 18),
        (FP32_GRADIENTS, "ddp", 18),
        # Megatron-Core README of the distributed optimizer: 4 + 2 + 12 / d
        (FP32_GRADIENTS, "zero1", 2 + 4 + 12 / 64),
        # the same with gradients in bf16 (--grad-reduce-in-bf16): 4 + 12 / d
        (CORE, "zero1", 2 + 2 + 12 / 64),
        # Rajbhandari et al. 2020, figure 1: 2 + (2 + 12) / d and 16 / d
        (CORE, "zero2", 2 + (2 + 12) / 64),
        (CORE, "zero3", 16 / 64),
        # FSDP2: fp32 shard, gradient and two moments
        (TITAN, "zero3", 16 / 64),
    ],
)
def test_states_per_parameter(software: Software, sharding: str, per_parameter: float) -> None:
    found = run({"dp": 64, "sharding": sharding}, software, LLAMA_8B)
    assert states(found) == pytest.approx(per_parameter * PARAMETERS, rel=1e-12)


@pytest.mark.parametrize(
    ("precision", "optimizer", "per_parameter"),
    [("bf16", "adamw", 16), ("bf16", "sgd", 12), ("fp32", "adamw", 16), ("fp32", "sgd", 12)],
)
def test_precision_and_optimizer_by_hand(
    precision: str, optimizer: str, per_parameter: int
) -> None:
    # bf16: 2 + 2 + 4 + moments; fp32: 4 + 4 + moments; two fp32 moments, or one with momentum
    work = workload("llama-3.1-8b", 8192, 8, precision=precision, optimizer=optimizer)
    found = run({"dp": 8}, CORE, work)
    assert states(found) == pytest.approx(per_parameter * PARAMETERS, rel=1e-12)


def test_context_parallel_ranks_share_the_optimizer_too() -> None:
    plain = run({"dp": 16, "sharding": "zero1"}, CORE, LLAMA_8B)
    ring = run({"dp": 4, "cp": 4, "sharding": "zero1"}, CORE, LLAMA_8B)
    assert states(ring) == pytest.approx(states(plain), rel=1e-12)


def test_hybrid_sharding_divides_by_the_shard_group_only() -> None:
    found = run({"dp": 64, "sharding": "zero3", "shard_group": 8}, TITAN, LLAMA_8B)
    assert states(found) == pytest.approx(16 / 8 * PARAMETERS, rel=1e-12)


def test_experts_shard_over_the_ranks_that_hold_the_same_experts() -> None:
    # 64 ranks, experts over 8: dense states over 64 ranks, each expert's over 8
    work = workload("mixtral-8x7b", 4096, 64)
    arch = work.architecture
    found = run({"dp": 64, "ep": 8, "sharding": "zero1"}, FP32_GRADIENTS, work)
    experts = 32 * 8 * 3 * 4096 * 14336 / 8
    dense = arch.parameters - 8 * experts
    expected = dense * (6 + 12 / 64) + experts * (6 + 12 / 8)
    assert states(found) == pytest.approx(expected, rel=1e-12)


def korthikanti(t: int, sharded: bool) -> float:
    """Bytes that one layer of the 175B model keeps, and its norm statistics."""
    s, h, a = 2048, 12288, 96
    share = t if sharded else 1
    per_layer = (
        s * h / t * (34 + 5 * a * s / h) if sharded else s * h * (10 + 24 / t + 5 * a * s / (h * t))
    )
    return per_layer + 16 * s / share


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize(("p", "v"), [(1, 1), (8, 1), (8, 3), (16, 6), (4, 2)])
def test_activations_of_the_first_stage_are_korthikantis(p: int, v: int, sharded: bool) -> None:
    """Section 4.2.3: L (1 + (p - 1) / (p v)) layers; masks of the embedding's dropout on top."""
    work = workload("megatron-175b", 2048, 64)
    layout = {"tp": 8, "pp": p, "vpp": v, "sequence_parallel": int(sharded)}
    found = by_rank(layout, OLD, work)
    layers = 96 * (1 + (p - 1) / (p * v) if v > 1 else 1)
    mask = 2048 * 12288 / (8 if sharded else 1)
    masks = p if v == 1 else 2 * p - 1
    expected = layers * korthikanti(8, sharded) + masks * mask
    assert found.kinds_bytes["activations"][0] == pytest.approx(expected, rel=1e-9)


def test_1f1b_holds_one_micro_batch_less_with_every_stage() -> None:
    found = by_rank({"tp": 8, "pp": 8}, OLD, workload("megatron-175b", 2048, 64))
    middle = found.kinds_bytes["activations"][1:]
    assert middle == pytest.approx(12 * korthikanti(8, True) * np.arange(7, 0, -1), rel=1e-9)


def test_full_recomputation_holds_the_inputs_of_the_blocks() -> None:
    work = workload("megatron-175b", 2048, 64)
    found = by_rank({"tp": 8, "pp": 8, "recompute": "full"}, OLD, work)
    inputs = 12 * 7 * 2 * 2048 * 12288 / 8  # twelve layers, seven in flight on the second stage
    assert found.kinds_bytes["activations"][1] == pytest.approx(inputs, rel=1e-12)


@pytest.mark.parametrize("layers", [1, 5, 12])
def test_recomputing_n_layers_swaps_n_sets_of_tensors_for_n_inputs(layers: int) -> None:
    work = workload("megatron-175b", 2048, 64)
    layout = {"tp": 8, "pp": 8, "recompute": "full", "recompute_layers": layers}
    found = by_rank(layout, OLD, work).kinds_bytes["activations"][1]
    per_rank = (12 - layers) * korthikanti(8, True) + layers * 2 * 2048 * 12288 / 8
    assert found == pytest.approx(7 * per_rank, rel=1e-9)


def test_more_recomputation_never_needs_more_memory() -> None:
    modes = ["none", "selective", "full"]
    for software, model in (
        (OLD, "megatron-175b"),
        (TITAN, "llama-3.1-70b"),
        (CORE, "deepseek-v3"),
    ):
        work = workload(model, 2048, 256)
        layout = {"tp": 8, "pp": 4, "dp": 8, "recompute": modes, "sharding": "ddp"}
        total = run(layout, software, work).memory_total_bytes
        assert (np.diff(total) <= 0).all(), model


@pytest.mark.parametrize("degree", ["tp", "cp"])
def test_activations_halve_when_the_degree_doubles(degree: str) -> None:
    work = workload("llama-3.1-70b", 16384, 64)
    held = [
        float(
            run({degree: n, "pp": 4, "recompute": "none"}, CORE, work).memory_bytes["activations"][
                0
            ]
        )
        for n in (2, 4, 8)
    ]
    assert held[0] == pytest.approx(2 * held[1], rel=1e-9)
    assert held[1] == pytest.approx(2 * held[2], rel=1e-9)


def test_activations_grow_with_the_micro_batch_and_states_do_not() -> None:
    work = workload("llama-3.1-70b", 8192, 256)
    found = run({"tp": 8, "pp": 4, "micro_batch": [1, 2, 4]}, CORE, work)
    held = found.memory_bytes["activations"]
    assert held[1:] == pytest.approx(2 * held[:-1])
    assert len(set(found.memory_bytes["weights"])) == 1


def test_logits_stand_on_the_last_stage_only() -> None:
    # bf16 logits of 8192 tokens over a quarter of Llama's vocabulary, and the head's gradients
    found = by_rank(
        {"tp": 4, "pp": 4, "dp": 4}, CORE, workload("llama-3.1-8b", 8192, 64), "dgx-h100"
    )
    loss = found.kinds_bytes["loss"]
    assert (loss[:-1] == 0).all()
    assert loss[-1] > 2 * 8192 * 128512 / 4
    assert MOMENTS[found.moment[-1]] == "loss and head"


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
@pytest.mark.parametrize("pp", [1, 5])
def test_kinds_add_up_and_the_fullest_rank_is_the_estimate(sharding: str, pp: int) -> None:
    work = workload("llama-3.1-70b", 8192, 64)
    layout = {"tp": 4, "pp": pp, "dp": 4, "sharding": sharding, "recompute": "selective"}
    ranks, found = by_rank(layout, CORE, work, "dgx-h100"), run(layout, CORE, work)
    assert tuple(ranks.kinds_bytes) == MEMORY_KINDS
    assert sum(ranks.kinds_bytes.values()) == pytest.approx(ranks.total_bytes, rel=1e-14)
    assert len(ranks.total_bytes) == pp
    assert ranks.total_bytes.max() == found.memory_total_bytes[0]
    assert ranks.total_bytes.argmax() == found.peak_stage[0]
    for kind, column in ranks.kinds_bytes.items():
        assert found.memory_bytes[kind][0] == column[found.peak_stage[0]], kind


def test_an_odd_model_is_held_once_by_its_ranks() -> None:
    # 61 layers over 4 stages of 15, 15, 16, 15; states of all ranks together are those of the model
    work = workload("deepseek-v3", 4096, 64)
    arch = work.architecture
    found = by_rank({"pp": 4, "dp": 8, "ep": 8}, CORE, work, "dgx-h100")
    dense = rank_parameters(arch, tp=1, pp=4, kernels=CORE.kernels)
    dense = dense + expert_parameters(arch, ep=8, etp=1)
    whole = 3 * dense[0] + 58 * dense[1] + dense[2] + dense[3]
    assert found.kinds_bytes["weights"].sum() == pytest.approx(2 * whole, rel=1e-12)
