"""Full recomputation that ends with the last tensor a block keeps: what is left out, and where."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.pricing import Priced, price
from simulator.hardware.cluster import load_cluster
from simulator.layout.layout import Layouts
from simulator.measured.remarks import kernels
from simulator.software import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

FULL = 2
TITAN = load_software("torchtitan")
WHOLE = replace(TITAN, kernels=replace(TITAN.kernels, recompute_stops_early=False))
H100 = load_cluster("dgx-h100", 8)


def priced(software: Software, model: str = "llama-3.1-8b", tp: int = 1) -> Priced:
    work = Workload(
        architecture=presets.load(model), recipe=Recipe(sequence_length=4096, global_batch=8)
    )
    layouts = Layouts.of(
        global_batch=8, tp=tp, dp=8 // tp, sharding="zero3", recompute="full",
        sequence_parallel=int(tp > 1),
    )  # fmt: skip
    return price(layouts, work, H100, software)


def left_out_s(tp: int = 1, model: str = "llama-3.1-8b") -> float:
    whole, early = (priced(software, model, tp).blocks for software in (WHOLE, TITAN))
    assert np.array_equal(whole.forward_s, early.forward_s)
    assert np.array_equal(whole.backward_s, early.backward_s)
    return float(whole.recompute_s[FULL, 0, 0] - early.recompute_s[FULL, 0, 0])


def test_a_block_leaves_out_its_last_product_and_sum() -> None:
    flop = 2.0 * 4096 * 14336 * 4096
    moved = 3 * 2 * 4096 * 4096  # the sum reads two 16-bit tensors and writes one
    fastest = flop / 989.5e12 + moved / 3.35e12
    assert fastest < left_out_s() < 1.8 * fastest


def test_nor_is_its_output_scattered_again() -> None:
    """tp 8: a scatter of 4,096 x 4,096 16-bit values stays away, 7/8 of them over NVLink."""
    product = left_out_s() / 8
    wire = 7 / 8 * 2 * 4096 * 4096 / 450e9
    assert left_out_s(tp=8) - product > wire


def test_experts_run_to_the_end() -> None:
    assert left_out_s(model="mixtral-8x7b") == 0.0


def test_the_embedding_and_head_are_not_recomputed() -> None:
    assert not priced(TITAN).blocks.recompute_s[FULL, 0, 1:].any()


@pytest.mark.parametrize(
    "name", ["megatron-core", "megatron-lm-2022", "deepspeed", "internevo-2023", "plain-ddp"]
)
def test_checkpoints_with_reentry_run_to_the_end(name: str) -> None:
    assert not load_software(name).kernels.recompute_stops_early


def test_llm_foundry_of_pytorch_1_13_runs_to_the_end() -> None:
    usual = load_software("llm-foundry-2023").kernels
    assert usual.recompute_stops_early
    note = "FSDP mixed precision {} (gradients reduced in bf16); step time derived"
    assert kernels({"notes": note.format("DEFAULT")}, usual).recompute_stops_early
    assert not kernels({"notes": note.format("PURE")}, usual).recompute_stops_early
