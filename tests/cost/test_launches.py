"""What the host costs: launches that hide behind kernels, launches that wait for them."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.step import evaluate
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.host_work import HostWork, Launches
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

CORE = load_software("megatron-core")
DGX = load_cluster("dgx-h100", 8)


def with_host(host_time: float) -> Cluster:
    """Eight H100 whose host takes so much longer than the reference."""
    (group,) = DGX.groups
    node = replace(group.node, host_time=Figure(host_time))
    return replace(DGX, groups=(replace(group, node=node),))


H100 = with_host(1.0)
M = 4
EACH = 5e-6
ENDS = 2 + 1 + 2 + 1  # look-up (two kernels); norm, loss (two kernels), head


def host(
    *, expert: bool = False, launches: dict[str, float | Launches] | None = None, **changed: Any
) -> Software:
    """Megatron-Core with 40 kernels to a block, 5 us each, unless told otherwise."""
    figures = {
        "seconds_per_kernel": EACH,
        "seconds_per_module": 0.0,
        "seconds_per_collective": 0.0,
        "seconds_per_expert_product": 0.0,
        "time_variation": 0.0,
        **changed,
    }
    work: dict[str, Any] = {
        name: Figure(value) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    work.setdefault("seconds_per_exchange", {})
    work["launches"] = {
        name: count if isinstance(count, Launches) else Launches(forward=Figure(count))
        for name, count in {"attention": 40.0, **(launches or {})}.items()
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
    """Grace takes 1.37 to 1.55 times as long as the faster H100 hosts (Megatron-LM's tests)."""
    slower = with_host(1.5)
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
    assert 1.37 < float(racks.host_time) < 1.55


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
    found = waiting("mixtral-8x7b", layout={}, launches={"routed": 25.0})
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_block_of_routed_experts_has_no_dense_mlp_to_launch() -> None:
    expected = M * 3 * (32 * (40 - 15 + 25) + ENDS) * EACH
    counts = {"attention": 25.0, "mlp": 15.0, "routed": 25.0}
    found = waiting("mixtral-8x7b", layout={}, launches=counts)
    assert found == pytest.approx(expected, rel=1e-9)
    # a dense block keeps it
    expected = M * 3 * (32 * 40 + ENDS) * EACH
    assert waiting(layout={}, launches=counts) == pytest.approx(expected, rel=1e-9)


def test_biases_of_experts_are_launched_expert_by_expert() -> None:
    mixtral = presets.load("mixtral-8x7b")
    block = replace(mixtral.blocks[0], mlp=replace(mixtral.blocks[0].mlp, bias=True))
    biased = replace(mixtral, blocks=(block,))
    for experts, layout in ((8, {}), (2, {"dp": 4, "ep": 4})):
        expected = M * 3 * 32 * 3 * experts * EACH
        assert added(biased, layout, biased_expert=3.0) == pytest.approx(expected, rel=1e-9)
    assert added(mixtral, {}, biased_expert=3.0) == pytest.approx(0.0, abs=1e-9)


def added(model: str | Architecture, layout: dict[str, Any], **count: float) -> float:
    """Seconds that a count of the host's work adds where every launch is waited for."""
    with_it, without = (
        waiting(model, layout=layout, launches=one) for one in (count, dict.fromkeys(count, 0.0))
    )
    return with_it - without


def test_a_backward_pass_may_have_a_count_of_its_own_and_modules_are_called_forward() -> None:
    counted = Launches(forward=Figure(8.0), backward=Figure(21.0), modules=Figure(9.0))
    expected = M * (32 * ((8 + 21) * EACH + 9 * 2 * EACH) + 3 * ENDS * EACH)
    found = waiting(layout={}, launches={"attention": counted}, seconds_per_module=2 * EACH)
    assert found == pytest.approx(expected, rel=1e-9)


def test_collectives_of_a_block_are_enqueued() -> None:
    """Sequence parallelism: four forward, six backward; without it two and two (Megatron-LM)."""
    per_call = 10 * EACH
    for sequence_parallel, calls in ((1, 10), (0, 4)):
        layout = {"tp": 4, "sequence_parallel": sequence_parallel}
        slow, fast = (
            seconds(host(waits_for_kernels=True, seconds_per_collective=each), **layout)
            for each in (per_call, 0.0)
        )
        assert slow - fast == pytest.approx(M * 32 * calls * per_call, rel=1e-9)


def test_a_host_waits_for_the_sizes_of_what_goes_to_experts() -> None:
    """Once a block and micro-batch, by how they get there; none on one rank."""
    each = {"alltoall": Figure(2e-3), "allgather": Figure(0.0)}
    for dispatcher, ep, wait_s in (
        ("alltoall", 4, 2e-3),
        ("allgather", 4, 0.0),
        ("alltoall", 1, 0),
    ):
        layout = {"dp": 4, "ep": ep, "dispatcher": dispatcher}
        slow, fast = (
            seconds(
                host(waits_for_kernels=True, seconds_per_exchange=waits), "mixtral-8x7b", **layout
            )
            for waits in (each, {})
        )
        assert slow - fast == pytest.approx(M * 32 * wait_s, rel=1e-9, abs=1e-9)


def test_passes_that_overlap_are_enqueued_as_one_piece_of_work() -> None:
    """max(0, host of both - device of both), not one maximum for each pass."""
    each = Launches(forward=Figure(4000.0), backward=Figure(0.0))
    layout = {"dp": 8, "ep": 8}
    counts = {"attention": each}
    apart, paired = (
        seconds(host(expert=expert, launches=counts), "mixtral-8x7b", **layout)
        - seconds(host(expert=expert, launches={"attention": 0.0}), "mixtral-8x7b", **layout)
        for expert in (False, True)
    )
    assert 0.0 < paired < 0.9 * apart  # the backward pass hides some of the forward pass's host


def test_the_host_enqueues_a_product_for_every_expert() -> None:
    none: dict[str, Any] = {"launches": {"attention": 0.0}, "seconds_per_kernel": 0.0}
    slow = seconds(host(**none, seconds_per_expert_product=1.0), "mixtral-8x7b")
    # 8 experts of two products, forward once and backward twice, a second each
    assert slow == pytest.approx(M * 3 * 32 * 8 * 2, rel=1e-2)
    partly = host(**none, seconds_per_expert_product=1.0, captured_moe_fraction=0.9)
    assert seconds(partly, "mixtral-8x7b") == slow  # graphs of the router leave experts out
    whole = host(**none, seconds_per_expert_product=1.0, captured_moe_fraction=1.0)
    assert seconds(whole, "mixtral-8x7b") < 0.1 * slow


def test_latent_attention_launches_more() -> None:
    assert added("deepseek-v2", {}, latent=12.0) == pytest.approx(M * 3 * 60 * 12 * EACH, rel=1e-9)


def test_every_further_step_of_the_context_ring_launches_more() -> None:
    expected = M * 3 * (32 * (40 + 3 * 6) + ENDS) * EACH
    found = waiting(layout={"cp": 4}, launches={"context_step": 6.0})
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
    expected = M * 3 * (32 * (40 + 25 * 0.4) + ENDS) * EACH
    counts = {"routed": 25.0}
    found = waiting("mixtral-8x7b", layout={}, launches=counts, captured_moe_fraction=0.6)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_graph_of_the_whole_iteration_launches_nothing() -> None:
    whole = {"captured_fraction": 1.0, "captured_moe_fraction": 1.0}
    for model in ("llama-3.1-8b", "mixtral-8x7b"):
        assert waiting(model, layout={}, **whole) == pytest.approx(0.0, abs=1e-9)


def test_nothing_is_captured_unless_said() -> None:
    fields = HostWork(seconds_per_kernel=Figure(0.0))
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
    partial = {"captured_fraction": 1.0, "captured_moe_fraction": 0.5, "launches": {"routed": 25.0}}
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
