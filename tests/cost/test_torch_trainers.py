"""What trainers of plain torch run: attention of ROCm, eager latent attention, padded experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.kernels.flash_attention import attention_s
from simulator.cost.kernels.gemm import device_rates
from simulator.cost.operators.block_operators import block
from simulator.cost.operators.roles import GemmRole
from simulator.cost.step import Estimate, evaluate
from simulator.hardware.cluster import load_accelerator, load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.overrides import with_overrides
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload
from tests.cost.test_operators import one_block, ranks

LLAMA = presets.load("llama-3.1-8b")


def step(cluster: str, gpus: int, software: Software, **layout: int | str) -> Estimate:
    recipe = Recipe(sequence_length=8192, global_batch=gpus)
    work = Workload(architecture=LLAMA, recipe=recipe)
    layouts = Layouts.of(global_batch=gpus, **layout)
    return evaluate(layouts, work, load_cluster(cluster, gpus), software)


@pytest.mark.parametrize(
    ("length", "backward", "published"),
    # HazyResearch/HipKittens@f09e9685 analysis/attn: PyTorch's SDPA, 16 sequences, 16 heads, causal
    [(4096, False, 421.8), (8192, False, 630.4), (16384, False, 761.6), (16384, True, 259.1)],
)
def test_attention_of_torch_on_rocm(length: int, backward: bool, published: float) -> None:
    part, bytes_each = load_accelerator("mi355x"), 2.0 * 16 * 16 * length * 128 * 2
    seconds = attention_s(
        device_rates(part, "bf16"), part.attention["sdpa"], heads=256, queries=length,
        keys=length / 2, span=length, score_size=128, value_size=128, query_bytes=bytes_each,
        key_bytes=bytes_each, backward=backward,
    )  # fmt: skip
    flop = 2.0 * 256 * length**2 * 128 * (2.5 if backward else 1.0)
    assert flop / float(seconds) / 1e12 == pytest.approx(published, rel=0.16)


def test_what_torch_runs_is_as_it_was_timed_whoever_tunes_the_rest() -> None:
    titan = load_software("torchtitan")
    tuned = replace(titan, tuned_by="AMD")
    vendors = replace(titan.kernels, attention_library="flash")

    def attention(software: Software) -> float:
        found = step("mi300x-8", 8, software, dp=8, sharding="zero3")
        return float(found.terms_s["attention"][0])

    assert attention(titan) == pytest.approx(attention(tuned))
    plain, fast = replace(titan, kernels=vendors), replace(tuned, kernels=vendors)
    untuned = float(load_accelerator("mi300x").untuned_fraction)
    assert attention(plain) == pytest.approx(attention(fast) / untuned)


def test_eager_latent_attention_turns_the_rotary_parts_alone() -> None:
    model = presets.load("deepseek-v3")
    ops = one_block(model, load_software("torchtitan-eager").kernels, 4096)
    rotary = next(x for x in ops.streams if x.name == "rotary")
    turned = 4096 * (128 + 1) * 64 * 20  # fp32 complex: 2 to 4 B, two of 4, 4 to 2 B
    joined = 4096 * 2 * 128 * 192 * 2 * 2  # queries and keys read and written
    assert float(np.sum(rotary.forward_bytes)) == pytest.approx(turned + joined)
    assert float(np.sum(rotary.backward_bytes)) == pytest.approx(turned)


def test_experts_padded_to_the_busiest_compute_as_many_rows() -> None:
    """8 experts, 2 for a token, 0.6 of the picks alike: the busiest has 1 + 0.6 x 3 of the mean."""
    model = presets.load("mixtral-8x7b")
    recipe = Recipe(sequence_length=4096, global_batch=8, moe_routing="unbalanced")

    def rows(name: str) -> float:
        kernels = load_software(name).kernels
        ops = block(model.blocks[0], model.hidden, ranks(), recipe, kernels)
        return float(np.sum(next(x.m for x in ops.gemms if x.role == GemmRole.EXPERT_FC1)))

    assert rows("torchtitan") == pytest.approx(4096 * 2 / 8)
    assert rows("kempnerforge") == pytest.approx(4096 * 2 / 8 * 2.8)


def test_torchtitan_of_2026_has_cudnns_attention_on_blackwell_alone() -> None:
    kernels = load_software("torchtitan-2026").kernels
    assert kernels.on("blackwell").attention_library == "cudnn"
    assert kernels.on("hopper").attention_library == "sdpa"
    said = with_overrides(load_software("torch-fsdp"), {"attention_library": "flash_attn"}).kernels
    assert said.on("blackwell").attention_library == "flash2"
    assert said.on("hopper").attention_library == "sdpa"
