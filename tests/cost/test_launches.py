"""What the host costs: launches that hide behind kernels, launches that wait for them."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.step import evaluate
from simulator.files import Figure
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.host_work import HostWork
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

CORE = load_software("megatron-core")
H100 = load_cluster("dgx-h100", 8)
M = 4
EACH = 5e-6
ENDS = 2 + 1 + 2 + 1  # look-up (two kernels); norm, loss (two kernels), head


def host(*, expert: bool = False, **changed: Any) -> Software:
    """Megatron-Core with 40 kernels to a block, 5 us each, unless told otherwise."""
    figures = {
        "seconds_per_kernel": EACH,
        "kernels_per_block": 40.0,
        "kernels_per_mlp": 0.0,
        "seconds_per_expert_product": 0.0,
        "time_variation": 0.0,
        **changed,
    }
    work = {
        name: value if isinstance(value, bool) else Figure(value) for name, value in figures.items()
    }
    waits = replace(CORE.overlap, gradient_reduce=False, parameter_gather=False, expert=expert)
    return replace(CORE, host=replace(CORE.host, **work), overlap=waits)


def seconds(
    software: Software,
    model: str | Architecture = "llama-3.1-8b",
    *,
    padded: bool = False,
    recipe: dict[str, Any] | None = None,
    **layout: Any,
) -> float:
    """One step of four micro-batches on each data-parallel rank, 32 layers in both models."""
    batch = M * layout.get("dp", 1)
    how = Recipe(sequence_length=4096, global_batch=batch, **(recipe or {}))
    if padded:
        how = replace(how, moe_capacity_factor=1.0, moe_pads_to_capacity=True)
    arch = presets.load(model) if isinstance(model, str) else model
    work = Workload(architecture=arch, recipe=how)
    found = evaluate(Layouts.of(global_batch=batch, **layout), work, H100, software)
    return float(found.step_time_s[0])


def waiting(
    model: str | Architecture = "llama-3.1-8b",
    *,
    layout: dict[str, Any],
    padded: bool = False,
    recipe: dict[str, Any] | None = None,
    **changed: Any,
) -> float:
    """Seconds that launches add where every one is waited for."""
    given = {"padded": padded, "recipe": recipe, **layout}
    blocking = seconds(host(waits_for_kernels=True, **changed), model, **given)
    free = host(seconds_per_kernel=0.0, **changed)
    return blocking - seconds(free, model, **given)


def test_launches_that_are_waited_for_add_to_the_step() -> None:
    # forward once, backward twice; 32 blocks and the two ends
    expected = M * 3 * (32 * 40 + ENDS) * EACH
    assert waiting(layout={}) == pytest.approx(expected, rel=1e-9)


def test_a_slower_host_launches_as_much_later() -> None:
    """Grace takes 1.42 times as long as the Xeons of DGX H100 (Megatron-LM's tests on both)."""
    (group,) = H100.groups
    node = replace(group.node, host_time=Figure(1.5))
    slower = replace(H100, groups=(replace(group, node=node),))
    arch = presets.load("llama-3.1-8b")
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=128, global_batch=M))
    launch_s = [
        evaluate(Layouts.of(global_batch=M), work, cluster, host(waits_for_kernels=True)).terms_s[
            "launch"
        ][0]
        for cluster in (H100, slower)
    ]
    assert launch_s[1] == pytest.approx(1.5 * launch_s[0], rel=1e-9)
    racks = load_cluster("gb200-nvl72", 72).node
    assert float(racks.host_time) == pytest.approx(1.42, rel=0.05)


def test_frozen_weights_launch_no_gradients_of_theirs() -> None:
    """Blocks and head once each way; two products, scale and sum of an adapter, backward double.

    The embedding, frozen with all in front of it, has no backward pass.
    """
    given = {"lora_rank": 16, "lora_targets": ("o",)}
    expected = M * (32 * (2 * 40 + 3 * 4) + 2 + 2 * (ENDS - 2)) * EACH
    assert waiting(layout={}, recipe=given) == pytest.approx(expected, rel=1e-9)


def test_full_recomputation_launches_the_blocks_once_more() -> None:
    expected = M * (4 * 32 * 40 + 3 * ENDS) * EACH
    assert waiting(layout={"recompute": "full"}) == pytest.approx(expected, rel=1e-9)


def test_experts_launch_more() -> None:
    expected = M * 3 * (32 * (40 + 25) + ENDS) * EACH
    found = waiting("mixtral-8x7b", layout={}, kernels_per_moe_block=25.0)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("padded", "figure", "kernels"), [(True, 20.0, 20), (False, 20.0, 25), (True, 0.0, 25)]
)
def test_padded_experts_launch_a_number_of_their_own(
    padded: bool, figure: float, kernels: int
) -> None:
    expected = M * 3 * (32 * (40 + kernels) + ENDS) * EACH
    counts = {"kernels_per_moe_block": 25.0, "kernels_per_padded_moe_block": figure}
    found = waiting("mixtral-8x7b", layout={}, padded=padded, **counts)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_block_of_routed_experts_has_no_dense_mlp_to_launch() -> None:
    expected = M * 3 * (32 * (40 - 15 + 25) + ENDS) * EACH
    found = waiting("mixtral-8x7b", layout={}, kernels_per_moe_block=25.0, kernels_per_mlp=15.0)
    assert found == pytest.approx(expected, rel=1e-9)
    # a dense block keeps it
    expected = M * 3 * (32 * 40 + ENDS) * EACH
    assert waiting(layout={}, kernels_per_mlp=15.0) == pytest.approx(expected, rel=1e-9)


def test_biases_of_experts_are_launched_expert_by_expert() -> None:
    mixtral = presets.load("mixtral-8x7b")
    block = replace(mixtral.blocks[0], mlp=replace(mixtral.blocks[0].mlp, bias=True))
    biased = replace(mixtral, blocks=(block,))
    each = {"kernels_per_biased_expert": 3.0}
    for experts, layout in ((8, {}), (2, {"dp": 4, "ep": 4})):
        expected = M * 3 * 32 * 3 * experts * EACH
        assert added(biased, layout, **each) == pytest.approx(expected, rel=1e-9)
    assert added(mixtral, {}, **each) == pytest.approx(0.0, abs=1e-9)


def added(
    model: str | Architecture, layout: dict[str, Any], *, expert: bool = False, **figure: float
) -> float:
    """Seconds that a figure of the host's work adds where every launch is waited for."""
    name, value = next(iter(figure.items()))
    with_it, without = (
        waiting(model, layout=layout, expert=expert, **{name: n}) for n in (value, 0.0)
    )
    return with_it - without


def test_blocks_in_pieces_launch_more_where_expert_traffic_hides() -> None:
    expected = M * 3 * 32 * 12 * EACH
    for expert in (False, True):
        found = added("mixtral-8x7b", {}, expert=expert, kernels_per_overlapped_block=12.0)
        assert found == pytest.approx(expected * expert, rel=1e-9, abs=1e-9)


def test_the_host_enqueues_a_product_for_every_expert() -> None:
    none = {"kernels_per_moe_block": 0.0, "kernels_per_block": 0.0, "seconds_per_kernel": 0.0}
    slow = seconds(host(**none, seconds_per_expert_product=1.0), "mixtral-8x7b")
    # 8 experts of two products, forward once and backward twice, a second each
    assert slow == pytest.approx(M * 3 * 32 * 8 * 2, rel=1e-2)
    partly = host(**none, seconds_per_expert_product=1.0, captured_moe_fraction=0.9)
    assert seconds(partly, "mixtral-8x7b") == slow  # graphs of the router leave experts out
    whole = host(**none, seconds_per_expert_product=1.0, captured_moe_fraction=1.0)
    assert seconds(whole, "mixtral-8x7b") < 0.1 * slow


def test_latent_attention_launches_more() -> None:
    changed = {"kernels_per_moe_block": 0.0, "kernels_per_latent_block": 12.0}
    before, after = (
        waiting("deepseek-v2", layout={}, **(changed | {"kernels_per_latent_block": n}))
        for n in (0.0, 12.0)
    )
    assert after - before == pytest.approx(M * 3 * 60 * 12 * EACH, rel=1e-9)


def test_every_further_step_of_the_context_ring_launches_more() -> None:
    expected = M * 3 * (32 * (40 + 3 * 6) + ENDS) * EACH
    found = waiting(layout={"cp": 4}, kernels_per_context_step=6.0)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_slow_host_that_does_not_wait_sets_the_pace_alone() -> None:
    # ten milliseconds for each launch: kernels run in its shadow, but for input and optimizer
    slow = host(seconds_per_kernel=1e-2)
    optimizer = seconds(host(seconds_per_kernel=0.0)) - seconds_without_optimizer()
    fetched = M * 4096 * (16 + 12) / 50e9  # tokens and positions, labels and loss weights
    expected = M * 3 * (32 * 40 + ENDS) * 1e-2 + fetched + optimizer
    assert seconds(slow) == pytest.approx(expected, rel=1e-9)


def seconds_without_optimizer() -> float:
    recipe = Recipe(sequence_length=4096, global_batch=M)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    found = evaluate(Layouts.of(global_batch=M), work, H100, host(seconds_per_kernel=0.0))
    return float(found.step_time_s[0] - found.terms_s["optimizer"][0])


def test_a_fast_host_that_does_not_wait_costs_nothing() -> None:
    assert seconds(host(seconds_per_kernel=1e-9)) == seconds(host(seconds_per_kernel=0.0))
    blocking = host(seconds_per_kernel=0.0, waits_for_kernels=True)
    assert seconds(blocking) == seconds(host(seconds_per_kernel=0.0))


@pytest.mark.parametrize("software", ["megatron-deepspeed-2022", "megatron-deepspeed-2022-bf16"])
def test_bigscience_waited_for_every_launch(software: str) -> None:
    """CUDA_LAUNCH_BLOCKING=1 in train/tr11-176B-ml/tr11-176B-ml.slurm."""
    assert load_software(software).host.waits_for_kernels
    assert not load_software("megatron-lm-2021").host.waits_for_kernels


# --- captured graphs ----------------------------------------------------------------------------


def test_a_captured_share_of_a_block_is_not_launched() -> None:
    expected = M * 3 * (32 * 40 * 0.25 + ENDS) * EACH
    assert waiting(layout={}, captured_fraction=0.75) == pytest.approx(expected, rel=1e-9)


def test_experts_are_captured_by_themselves() -> None:
    figures = {"kernels_per_moe_block": 25.0, "captured_moe_fraction": 0.6}
    expected = M * 3 * (32 * (40 + 25 * 0.4) + ENDS) * EACH
    found = waiting("mixtral-8x7b", layout={}, **figures)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_graph_of_the_whole_iteration_launches_nothing() -> None:
    whole = {"captured_fraction": 1.0, "captured_moe_fraction": 1.0}
    for model in ("llama-3.1-8b", "mixtral-8x7b"):
        assert waiting(model, layout={}, **whole) == pytest.approx(0.0, abs=1e-9)


def test_nothing_is_captured_unless_said() -> None:
    fields = HostWork(seconds_per_kernel=Figure(0.0), kernels_per_block=Figure(0.0))
    assert float(fields.captured_fraction) == float(fields.captured_moe_fraction) == 0.0


# --- selective recomputation: each module is set aside and enqueued again by itself --------------

ASIDE, AGAIN = 40e-6, 150e-6


def recomputing(modules: tuple[str, ...], **changed: Any) -> Software:
    """The same, recomputing `modules`."""
    software = host(seconds_per_checkpoint=ASIDE, seconds_per_replay=AGAIN, **changed)
    return replace(software, kernels=replace(software.kernels, selective_modules=modules))


def checkpoints(
    modules: tuple[str, ...],
    model: str = "llama-3.1-8b",
    recompute: str = "selective",
    **given: Any,
) -> float:
    """Seconds that twice the host's work for every checkpoint adds to a step."""
    twice = {"seconds_per_checkpoint": 2 * ASIDE, "seconds_per_replay": 2 * AGAIN}
    once, more = (recomputing(modules, **given), recomputing(modules, **given))
    more = replace(more, host=replace(more.host, **{k: Figure(v) for k, v in twice.items()}))
    return seconds(more, model, recompute=recompute) - seconds(once, model, recompute=recompute)


SLOW = {"seconds_per_kernel": 2e-3}
"""A host that the device always waits for."""


def test_a_checkpoint_costs_a_host_that_is_behind_and_none_that_is_ahead() -> None:
    each = M * 32 * (ASIDE + AGAIN)
    assert checkpoints(("core_attn",), **SLOW) == pytest.approx(each, rel=1e-6)
    assert checkpoints(("core_attn", "mlp"), **SLOW) == pytest.approx(2 * each, rel=1e-6)
    assert checkpoints(("core_attn",), seconds_per_kernel=1e-9) == 0.0
    assert checkpoints(("core_attn",), recompute="none", **SLOW) == 0.0


def test_norms_that_their_linear_takes_along_are_not_set_aside() -> None:
    """Megatron-Core: IdentityOp in a dense block; a norm of its own stands before experts."""
    assert checkpoints(("norm",), **SLOW) == 0.0
    each = M * 32 * (ASIDE + AGAIN)
    assert checkpoints(("norm",), "mixtral-8x7b", **SLOW) == pytest.approx(each, rel=1e-6)
    assert checkpoints(("mlp_act",), "mixtral-8x7b", **SLOW) == pytest.approx(each, rel=1e-6)


def test_what_a_graph_holds_is_replayed_by_it() -> None:
    whole = {"captured_fraction": 1.0, "captured_moe_fraction": 1.0}
    assert checkpoints(("norm", "mlp_act"), "mixtral-8x7b", **whole, **SLOW) == 0.0
    partial = {"captured_fraction": 1.0, "captured_moe_fraction": 0.5}
    each = M * 32 * (ASIDE + AGAIN)
    found = checkpoints(("norm", "mlp_act"), "mixtral-8x7b", **partial, **SLOW)
    assert found == pytest.approx(each, rel=1e-6)


def test_where_the_device_waits_it_recomputes_beside_the_host() -> None:
    """The host enqueues again its share of the block's kernels; the device's part hides there."""
    modules = ("core_attn",)
    plain = seconds(recomputing(modules, **SLOW))
    longer = seconds(recomputing(modules, **SLOW), recompute="selective") - plain
    layers, kernels = M * 32, 40 * SLOW["seconds_per_kernel"]
    share = (longer / layers - ASIDE - AGAIN) / kernels
    assert 1 / 40 < share < 1 / 5  # one of some ten operators that a block lists
