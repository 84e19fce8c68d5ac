"""What recomputation of whole blocks leaves out, and what blocks run again in any case."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.blocks.block_costs import PASS_TERMS
from simulator.cost.pricing import Priced, price
from simulator.cost.step import evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.overrides import with_overrides
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

FULL = 2
TITAN = load_software("torchtitan")
WHOLE = replace(TITAN, kernels=replace(TITAN.kernels, recompute_stops_early="never"))
H100 = load_cluster("dgx-h100", 8)


def priced(software: Software, model: str = "llama-3.1-8b", tp: int = 1, **recipe: Any) -> Priced:
    work = Workload(
        architecture=presets.load(model),
        recipe=Recipe(sequence_length=4096, global_batch=8, **recipe),
    )
    layouts = Layouts.of(
        global_batch=8,
        tp=tp,
        dp=8 // tp,
        sharding="zero3",
        recompute="full",
        sequence_parallel=int(tp > 1),
    )
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


def test_reductions_that_do_not_overlap_add_to_the_backward_pass() -> None:
    """MaxText's scan: gathers hide, 4 B a weight of gradients over the torus of 8 chips do not."""
    work = Workload(
        architecture=presets.load("llama-3.1-8b"),
        recipe=Recipe(sequence_length=8192, global_batch=24),
    )
    layouts = Layouts.of(global_batch=24, dp=8, sharding="zero3", micro_batch=3)
    tpu, xla = load_cluster("tpu-v6e", 8), load_software("maxtext")
    hides = replace(xla, overlap=replace(xla.overlap, sharded_reduce=True))
    apart, beside = (
        float(evaluate(layouts, work, tpu, one).terms_s["fsdp"][0]) for one in (xla, hides)
    )
    weights = 8.03e9 - 0.53e9  # without the table of the embedding
    least = 7 / 8 * 4 * weights / 400e9
    assert least < apart - beside < 3 * least


def test_nor_is_its_output_scattered_again() -> None:
    """tp 8: a scatter of 4,096 x 4,096 16-bit values stays away, 7/8 of them over NVLink."""
    product = left_out_s() / 8
    wire = 7 / 8 * 2 * 4096 * 4096 / 450e9
    assert left_out_s(tp=8) - product > wire


def test_a_recomputed_mlp_leaves_its_last_product_out_as_well() -> None:
    mlp = [
        replace(one, kernels=replace(one.kernels, selective_modules=("mlp",)))
        for one in (WHOLE, TITAN)
    ]
    whole, early = (priced(one).blocks.recompute_s[1, 0, 0] for one in mlp)
    product = 2.0 * 4096 * 14336 * 4096 / 989.5e12
    assert product < whole - early <= left_out_s()


def test_experts_run_to_the_end() -> None:
    assert left_out_s(model="mixtral-8x7b") == 0.0


def test_the_embedding_and_head_are_not_recomputed() -> None:
    assert not priced(TITAN).blocks.recompute_s[FULL, 0, 1:].any()


@pytest.mark.parametrize(
    "name", ["megatron-core", "megatron-lm-2022", "deepspeed", "internevo-2023"]
)
def test_checkpoints_with_reentry_run_to_the_end(name: str) -> None:
    assert load_software(name).kernels.recompute_stops_early == "never"


def test_llm_foundry_of_pytorch_1_13_runs_to_the_end() -> None:
    usual = load_software("llm-foundry-2023")
    assert usual.kernels.recompute_stops_early == "16bit"
    for word in ("never", "always"):
        stated = with_overrides(usual, {"recompute_stops_early": word})
        assert stated.kernels.recompute_stops_early == word


def test_a_norm_behind_the_last_linear_reads_its_output() -> None:
    """Gemma 2 has one (tests/oracles/test_early_stop.py: torch runs the product again)."""
    assert left_out_s(model="gemma-2-9b") == 0.0


def test_fp8_linears_of_eager_torch_run_again_and_compiled_ones_do_not() -> None:
    """Only the sum is left out where a linear saves its input after it has run."""
    eager = replace(TITAN, kernels=replace(TITAN.kernels, recompute_stops_early="16bit"))
    whole, some, most = (
        float(priced(one, precision="fp8_current").blocks.recompute_s[FULL, 0, 0])
        for one in (WHOLE, eager, TITAN)
    )
    moved = 3 * 2 * 4096 * 4096
    assert moved / 3.35e12 < whole - some < 2.5 * moved / 3.35e12
    assert some - most > 2.0 * 4096 * 14336 * 4096 / 1979e12


def test_an_adapter_of_the_last_linear_comes_after_it() -> None:
    tuned = [
        priced(TITAN, lora_rank=8, lora_targets=targets).blocks.full_flop[0, 0]
        for targets in (("q",), ("q", "down"))
    ]
    product, adapter = 2.0 * 4096 * 14336 * 4096, 2.0 * 4096 * 8 * (14336 + 4096)
    assert tuned[1] - tuned[0] == pytest.approx(product + adapter)


def test_the_host_still_enqueues_what_the_device_does_not_wait_for() -> None:
    """A host that is far behind: a pass takes what its launches take, with less work or without."""
    slow = replace(TITAN.host, seconds_per_kernel=Figure(1e-2))
    behind = [replace(one, host=slow) for one in (WHOLE, TITAN)]
    whole, early = (float(priced(one).blocks.recompute_s[FULL, 0, 0]) for one in behind)
    assert early == pytest.approx(whole)


@pytest.mark.parametrize("name", ["torchtitan", "internevo-2023", "llm-foundry-2023"])
def test_no_part_takes_less_than_no_time_to_recompute(name: str) -> None:
    software = load_software(name)
    for model in ("llama-3.1-8b", "gemma-2-9b", "deepseek-v3", "t5-11b", "swin-base", "gpt2-small"):
        blocks = priced(software, model).blocks
        assert (blocks.recompute_s >= 0.0).all(), model
        assert not blocks.recompute_s[FULL, :, -2:].any(), model


# --- norms that run again in any case ---------------------------------------------------------


def norms(**changed: bool) -> Priced:
    software = load_software("internevo-2023")
    kernels = replace(software.kernels, norm_inputs_fp32=False, reruns_norms=False)
    return priced(replace(software, kernels=replace(kernels, **changed)))


def backward_s(found: Priced) -> float:
    return float(found.blocks.backward_s[:, 0, 0].sum())


def recompute_s(found: Priced) -> float:
    return float(found.blocks.recompute_s[FULL, 0, 0])


def test_norms_of_fp32_copies_move_more() -> None:
    """Forward a cast of 2 + 4 B and 4 + 2 for 2 + 2; backward a cast and 2 + 4 + 4 for 3 x 2."""
    values = 2 * 4096 * 4096  # two norms
    plain, wide = norms(), norms(norm_inputs_fp32=True)
    memory = PASS_TERMS.index("memory_bound")
    for way, more in (("forward_s", 8.0), ("backward_s", 10.0)):
        seconds = [float(getattr(p.blocks, way)[memory, 0, 0]) for p in (plain, wide)]
        rate = more * values / (seconds[1] - seconds[0])
        assert 0.4 * 3.35e12 < rate < 0.95 * 3.35e12


def test_norms_run_again_in_the_backward_pass_but_not_twice() -> None:
    plain, again = norms(), norms(reruns_norms=True)
    assert np.array_equal(plain.blocks.forward_s, again.blocks.forward_s)
    more = backward_s(again) - backward_s(plain)
    moved = (2 * 4 + 6) * 4096 * 4096  # two norms of 2 + 2 B, one sum of three 16-bit tensors
    assert 0.4 * 3.35e12 < moved / more < 0.95 * 3.35e12
    whole = [backward_s(p) + recompute_s(p) for p in (plain, again)]
    assert whole[1] == pytest.approx(whole[0], rel=1e-3)


def test_checkpoints_of_plain_pytorch_leave_out_the_last_product() -> None:
    """huggingface/transformers#43203: ``use_reentrant=False`` from transformers 5 on."""
    plain = load_software("plain-ddp")
    entered_again = with_overrides(plain, {"recompute_stops_early": "never"})
    whole, early = (priced(software).blocks for software in (entered_again, plain))
    left = float(whole.recompute_s[FULL, 0, 0] - early.recompute_s[FULL, 0, 0])
    assert left > 2.0 * 4096 * 14336 * 4096 / 989.5e12
