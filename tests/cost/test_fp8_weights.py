"""Weights in 8 bit alone: bytes in memory and on the wire, by hand for Llama-3.1-8B.

Its blocks' linears have 2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336 parameters in each of 32
layers; embedding, head and norms stay in 16 bit.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.collectives.calls import all_gather_s
from simulator.cost.pricing import price
from simulator.cost.states.state_bytes import part_states
from simulator.cost.step import Priced, evaluate
from simulator.hardware.cluster import Cluster, load_cluster, with_release
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

PARAMETERS = 8_030_261_248
BLOCK_LINEARS = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
LINEARS = 32 * BLOCK_LINEARS
CLUSTER, EIGHT = load_cluster("dgx-h100", 8), Group(size=np.array([8]), local=np.array([8]))
BLACKWELL = load_cluster("dgx-b200", 8)


def workload(precision: str, alone: bool) -> Workload:
    recipe = Recipe(sequence_length=4096, global_batch=8, precision=precision, fp8_weights=alone)  # type: ignore[arg-type]
    return Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)


def table(**lay: Any) -> Layouts:
    return Layouts.of(**{"dp": 8, "sharding": "zero1", "global_batch": 8, **lay})


def weights(precision: str, alone: bool, software: str = "megatron-core", **lay: Any) -> float:
    cluster = BLACKWELL if precision == "mxfp8" else CLUSTER
    found = evaluate(table(**lay), workload(precision, alone), cluster, load_software(software))
    return float(found.memory_bytes["weights"][0])


def priced(precision: str, alone: bool, software: str = "megatron-core", **lay: Any) -> Priced:
    cluster = BLACKWELL if precision == "mxfp8" else CLUSTER
    return price(table(**lay), workload(precision, alone), cluster, load_software(software))


@pytest.mark.parametrize(
    ("precision", "copies"), [("fp8", 2.0), ("fp8_current", 2.0), ("fp8_blockwise", 2.0625)]
)
def test_the_16_bit_copy_goes(precision: str, copies: float) -> None:
    """Rows and columns of the linears stay in 8 bit; the others in 16."""
    both, alone = weights(precision, False), weights(precision, True)
    assert both == pytest.approx(2 * PARAMETERS + copies * LINEARS, rel=1e-12)
    assert alone == pytest.approx(2 * (PARAMETERS - LINEARS) + copies * LINEARS, rel=1e-12)


def test_adapters_beside_weights_in_8_bit() -> None:
    """Rank 16 beside each of four linears, in 16 bit beside the model."""
    adapters = 32 * 16 * ((4096 + 6144) + 2 * 4096 + (4096 + 28672) + (14336 + 4096))
    work = workload("fp8", True)
    work = replace(work, recipe=replace(work.recipe, lora_rank=16))
    found = evaluate(table(), work, CLUSTER, load_software("megatron-core"))
    held = float(found.memory_bytes["weights"][0])
    assert held == pytest.approx(2 * (PARAMETERS - LINEARS) + 2 * LINEARS + 2 * adapters, rel=1e-12)


@pytest.mark.parametrize(("precision", "copies"), [("fp8", 1.0), ("fp8_current", 1.0)])
def test_blackwell_needs_no_transposed_copy(precision: str, copies: float) -> None:
    """Its products take operands along rows or columns: Transformer Engine keeps one copy."""
    for alone, wide in ((False, 2 * PARAMETERS), (True, 2 * (PARAMETERS - LINEARS))):
        found = evaluate(
            table(), workload(precision, alone), BLACKWELL, load_software("megatron-core")
        )
        held = float(found.memory_bytes["weights"][0])
        assert held == pytest.approx(wide + copies * LINEARS, rel=1e-12)


def theirs(software: str) -> Cluster:
    """The cluster with the release of NCCL that a software brings along."""
    return with_release(CLUSTER, load_software(software).kernels.nccl)


def test_ranks_gather_8_bit() -> None:
    """The distributed optimizer's gather after the step, in buckets of 80 MB of gradients."""
    pieces = -(-2 * PARAMETERS // int(80e6))
    for alone, size in ((False, 2 * PARAMETERS), (True, 2 * PARAMETERS - LINEARS)):
        each = float(all_gather_s(theirs("megatron-core"), size / pieces, EIGHT)[0])
        found = priced("fp8", alone).states.gather_s[0, 0]
        assert found == pytest.approx(pieces * each, rel=1e-12)


def test_mxfp8_has_two_types_and_gathers_16_bit() -> None:
    usual, alone = priced("mxfp8", False).states, priced("mxfp8", True).states
    assert alone.gather_s == pytest.approx(usual.gather_s, rel=1e-12)
    assert weights("mxfp8", False) - weights("mxfp8", True) == pytest.approx(2 * LINEARS)


def test_fsdp_gathers_8_bit_block_by_block() -> None:
    """torchtitan's enable_fsdp_float8_all_gather: fp32 shards stay, norms travel in 16 bit."""
    lay = {"sharding": "zero3"}
    found = priced("fp8_current", True, "torchtitan", **lay).states.part_gather_s[0, 0]
    moved = BLOCK_LINEARS + 2.0 * 2 * 4096
    each = float(all_gather_s(theirs("torchtitan"), moved, EIGHT)[0])
    assert found == pytest.approx(each, rel=1e-12)
    same = [weights("fp8_current", alone, "torchtitan", **lay) for alone in (False, True)]
    assert same == [0.0, 0.0]


def test_optimizer_states_and_gradients_stay_what_they_are() -> None:
    software = load_software("megatron-core")
    both, alone = (
        evaluate(table(), workload("fp8", x), CLUSTER, software).memory_bytes for x in (False, True)
    )
    for kind in ("gradients", "optimizer", "activations"):
        assert alone[kind][0] == both[kind][0]


def test_adapters_over_8_bit_weights_are_gathered_in_16_bit() -> None:
    """Only adapters are updated, and they stay in 16 bit; 16 rows and columns of two linears."""
    trained = 32 * 16 * ((4096 + 4096 + 2 * 1024) + (4096 + 4096))
    recipe = Recipe(
        sequence_length=4096,
        global_batch=8,
        precision="fp8",
        fp8_weights=True,
        lora_rank=16,
        lora_targets=("q", "k", "v", "o"),
    )
    adapted = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    states = part_states(adapted, load_software("megatron-core"), Layouts.of())
    layers = states.update[:, :, :-2].sum()
    assert float(layers) == pytest.approx(2.0 * trained / 32, rel=1e-9)
