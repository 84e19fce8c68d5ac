"""Optimizer states of other sizes, and weights and gradients that move in every micro-batch."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

CORE, TUNE = load_software("megatron-core"), load_software("torchtune-2024")
H100 = load_cluster("dgx-h100", 8)
RATE = float(H100.accelerator.stream["optimizer"].memory_fraction) * 3.35e12
PARAMETERS = 8_030_261_248  # Llama-3.1-8B
M = 4
EIGHT_BIT = 1 + 4 / 256  # Dettmers et al. 2022: 8 bit, an fp32 scale for every 256


def states(software: Software = CORE, **changed: Any) -> Software:
    figures = {k: v if isinstance(v, bool) else Figure(v) for k, v in changed.items()}
    return replace(software, states=replace(software.states, **figures))


def run(
    software: Software, model: str = "llama-3.1-8b", *, recipe: Any = None, **layout: Any
) -> Estimate:
    """Four micro-batches of one sequence on every data-parallel rank."""
    batch = M * layout.get("dp", 1)
    how = Recipe(sequence_length=4096, global_batch=batch, **(recipe or {}))
    work = Workload(architecture=presets.load(model), recipe=how)
    return evaluate(Layouts.of(global_batch=batch, **layout), work, H100, software)


def resident(found: Estimate) -> float:
    kinds = ("weights", "gradients", "optimizer")
    return float(sum(found.memory_bytes[kind][0] for kind in kinds))


# --- every micro-batch --------------------------------------------------------------------------


def more(model: str = "llama-3.1-8b", **layout: Any) -> float:
    """Seconds that 12 bytes of a whole parameter add to the step."""
    before, after = (run(states(micro_batch_traffic=x), model, **layout) for x in (0.0, 12.0))
    for name in after.terms_s:
        if name not in ("memory_bound", "bubble_drain"):
            assert after.terms_s[name][0] == before.terms_s[name][0], name
    return float(after.step_time_s[0] - before.step_time_s[0])


def test_every_micro_batch_moves_every_parameter() -> None:
    assert more() == pytest.approx(M * 12 * PARAMETERS / RATE, rel=1e-9)


def test_a_tensor_parallel_rank_moves_its_own() -> None:
    # norms are on every rank; embedding and head are padded to a multiple of 128 x 8 rows
    padded = PARAMETERS + 2 * (129024 - 128256) * 4096
    own = (padded - 65 * 4096) / 8 + 65 * 4096
    assert more(tp=8) == pytest.approx(M * 12 * own / RATE, rel=1e-9)


def test_a_rank_moves_the_experts_that_it_holds() -> None:
    experts = 32 * 8 * 3 * 4096 * 14336
    own = 46_702_792_704 - experts + experts / 8
    found = [
        run(states(micro_batch_traffic=x), "mixtral-8x7b", dp=8, ep=8).terms_s["memory_bound"][0]
        for x in (0.0, 12.0)
    ]
    assert found[1] - found[0] == pytest.approx(M * 12 * own / RATE, rel=1e-9)


def test_sharded_parameters_are_moved_whole() -> None:
    """zero3 gathers a block's parameters first: every rank casts and copies all of them."""
    found = [
        run(states(load_software("torchtitan"), micro_batch_traffic=x), dp=8, sharding="zero3")
        for x in (0.0, 12.0)
    ]
    moved = found[1].terms_s["memory_bound"][0] - found[0].terms_s["memory_bound"][0]
    assert moved == pytest.approx(M * 12 * PARAMETERS / RATE, rel=1e-9)
    assert found[1].step_time_s[0] > found[0].step_time_s[0]


def test_stages_move_their_own_and_drain_with_it() -> None:
    # four stages of eight layers, the last one with the head: it sets the pace, and the drain is a
    # pass of every other stage
    block = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    table = 128256 * 4096
    last, others = 8 * block + table + 4096, 24 * block + table
    expected = 12 * (M * last + others) / RATE
    assert more(pp=4) == pytest.approx(expected, rel=1e-9)


# --- optimizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("software", "optimizer", "per_parameter"),
    [
        (CORE, "adamw", 2 + 2 + 4 + 8),
        (CORE, "adamw_8bit", 2 + 2 + 4 + 2 * EIGHT_BIT),
        (CORE, "sgd", 2 + 2 + 4 + 4),
        (states(moment=2.0), "adamw", 2 + 2 + 4 + 4),
        (states(moment=2.0), "sgd", 2 + 2 + 4 + 2),
        (states(moment=2.0), "adamw_8bit", 2 + 2 + 4 + 2 * EIGHT_BIT),
        # torchtune's bf16 recipe: weights, gradients and moments of two bytes, no fp32 copy
        (TUNE, "adamw", 2 + 2 + 0 + 4),
        (TUNE, "adamw_8bit", 2 + 2 + 0 + 2 * EIGHT_BIT),
    ],
)
def test_bytes_of_a_parameter(software: Software, optimizer: str, per_parameter: float) -> None:
    found = run(software, recipe={"optimizer": optimizer})
    assert resident(found) == pytest.approx(per_parameter * PARAMETERS, rel=1e-12)


def test_whole_precision_keeps_fp32_moments_whatever_the_software_does() -> None:
    for optimizer, moments in (("adamw", 8.0), ("sgd", 4.0), ("adamw_8bit", 2 * EIGHT_BIT)):
        recipe = {"precision": "fp32", "optimizer": optimizer}
        found = run(states(moment=2.0), recipe=recipe)
        assert resident(found) == pytest.approx((4 + 4 + moments) * PARAMETERS, rel=1e-12)


@pytest.mark.parametrize(
    ("software", "saved"),
    [
        (CORE, 2 * (8 - 2 * EIGHT_BIT)),  # two moments read and written
        (TUNE, 2 * (4 - 2 * EIGHT_BIT)),
    ],
)
def test_small_moments_save_traffic(software: Software, saved: float) -> None:
    usual, small = (
        float(run(software, recipe={"optimizer": name}).terms_s["optimizer"][0])
        for name in ("adamw", "adamw_8bit")
    )
    assert usual - small == pytest.approx(saved * PARAMETERS / RATE, rel=1e-9)


def test_the_optimizer_moves_what_the_profile_says() -> None:
    for software in (CORE, TUNE):
        found = float(run(software).terms_s["optimizer"][0])
        launch = float(H100.accelerator.stream["optimizer"].launch_s)
        traffic = float(software.states.optimizer_traffic)
        assert found == pytest.approx(traffic * PARAMETERS / RATE + launch, rel=1e-9)


def test_sharding_divides_small_moments_too() -> None:
    found = run(CORE, dp=8, sharding="zero1", recipe={"optimizer": "adamw_8bit"})
    assert resident(found) == pytest.approx((4 + (4 + 2 * EIGHT_BIT) / 8) * PARAMETERS, rel=1e-12)
