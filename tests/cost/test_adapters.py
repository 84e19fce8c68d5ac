"""Parts of a model that are not trained: LoRA, QLoRA, frozen layers, a frozen embedding.

Adapter counts are those of peft 0.21 on the meta device (``get_nb_trainable_parameters`` of
Llama-3.1-8B); everything else is worked by hand.
"""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.states.state_bytes import PartStates, least_state_bytes, part_states
from simulator.cost.step import Estimate, evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload
from simulator.workload.tasks import TaskHeads

CORE, TITAN, TUNE = (load_software(x) for x in ("megatron-core", "torchtitan", "torchtune-2024"))
H100 = load_cluster("dgx-h100", 8)
H, F, KV, V, L, S = 4096, 14336, 1024, 128256, 32, 4096
PARAMETERS = 8_030_261_248
LINEARS = 2 * H * H + 2 * H * KV + 3 * H * F
BLOCK = LINEARS + 2 * H
JOINED = L * 16 * ((H + H + 2 * KV) + 2 * H + (H + 2 * F) + (F + H))
"""Megatron's adapters of rank 16: one beside each of a block's four linears."""
NF4 = 0.5 + 0.127 / 8  # Dettmers et al. 2023: double quantisation leaves 0.127 bits a parameter


def workload(model: str = "llama-3.1-8b", **recipe: Any) -> Workload:
    how = Recipe(sequence_length=S, global_batch=8, **recipe)
    return Workload(architecture=presets.load(model), recipe=how)


def run(software: Software, layout: Any = None, model: str = "llama-3.1-8b", **r: Any) -> Estimate:
    table = Layouts.of(**{"dp": 8, "global_batch": 8, **(layout or {})})
    return evaluate(table, workload(model, **r), H100, software)


def whole(states: PartStates, name: str, kinds: tuple[int, ...] = (L,)) -> float:
    """Bytes or parameters of the whole model: every part times how often it is there."""
    column = getattr(states, name).sum(axis=0)[0]
    return float(sum(n * x for n, x in zip((*kinds, 1, 1), column, strict=True)))


# --- adapters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "targets", "trainable"),
    [(16, None, 41_943_040), (8, ("q", "v"), 3_407_872)],
)
def test_adapter_parameters_are_pefts(rank: int, targets: Any, trainable: int) -> None:
    given = {"lora_targets": targets} if targets else {}
    states = part_states(workload(lora_rank=rank, **given), TUNE, Layouts.of())
    assert whole(states, "trained") == trainable
    assert whole(states, "parameters") == PARAMETERS


def test_only_adapters_have_gradients_and_moments() -> None:
    found = run(TUNE, lora_rank=16).memory_bytes
    adapters = 41_943_040  # all in 2 bytes, two moments
    assert found["weights"][0] == 2 * (PARAMETERS + adapters)
    assert found["optimizer"][0] == 4 * adapters
    assert found["gradients"][0] <= 2 * adapters


def test_frozen_weights_need_no_fp32_copy() -> None:
    found = run(CORE, lora_rank=16).memory_bytes
    assert found["weights"][0] == 2 * (PARAMETERS + JOINED)
    assert found["optimizer"][0] == 12 * JOINED


def test_shards_of_frozen_weights_stay_fp32_in_fsdp2() -> None:
    found = run(TITAN, {"sharding": "zero3"}, lora_rank=16).memory_bytes
    assert found["weights"][0] == 4 * PARAMETERS / 8
    assert found["optimizer"][0] == 12 * 41_943_040 / 8


def test_tensor_parallel_ranks_hold_the_shared_side_of_an_adapter_whole() -> None:
    # column-parallel: A (16, in) whole, B (out, 16) split; row-parallel: A split, B whole
    whole_side = 16 * (H + H + H + H)
    split_side = 16 * (H + 2 * KV + 2 * F + H + F)
    states = part_states(workload(lora_rank=16), CORE, Layouts.of(tp=4))
    assert whole(states, "trained") == pytest.approx(L * (whole_side + split_side / 4), rel=1e-12)


def test_linears_of_some_matrices_have_adapters_apart() -> None:
    """Queries and values alone are no whole linear: an adapter each, as peft puts them."""
    states = part_states(workload(lora_rank=8, lora_targets=("q", "v")), CORE, Layouts.of())
    assert whole(states, "trained") == 3_407_872


def test_adapters_scale_and_add_what_they_compute() -> None:
    """Seven passes over the result in 16 bit, three over the input, four kernels; TE's alone."""
    few, more = (
        float(run(CORE, lora_rank=16, lora_targets=t).terms_s["memory_bound"][0])
        for t in (("o",), ("o", "down"))
    )
    device = H100.accelerator.stream["elementwise"]
    rate = float(device.memory_fraction) * 3.35e12
    moved = S * 2 * (7 * H + 3 * F)
    assert more - few == pytest.approx(L * (moved / rate + 4 * float(device.launch_s)), rel=0.05)


def test_fused_adapters_read_what_they_add_to() -> None:
    """Transformer Engine's products take a scale and a sum: two of ten passes are left.

    Forward they add to the result, backward to the gradient of the input.
    """
    apart, fused = (
        float(run(load_software(name), lora_rank=16, lora_targets=["o"]).terms_s["memory_bound"][0])
        for name in ("megatron-bridge", "mlperf-nemo-v5.1")
    )
    plain = [
        float(run(load_software(name)).terms_s["memory_bound"][0])
        for name in ("megatron-bridge", "mlperf-nemo-v5.1")
    ]
    device = H100.accelerator.stream["elementwise"]
    rate = float(device.memory_fraction) * 3.35e12
    less = L * (S * 2 * (10 - 2) * H / rate + 4 * float(device.launch_s))
    other = plain[0] - plain[1]  # gate and up
    assert apart - fused - other == pytest.approx(less, rel=0.05)


def test_a_norm_leaves_its_cast_where_an_adapter_reads_it() -> None:
    """Transformer Engine casts apart then: 16 bit written and read beside the 8-bit rows."""
    given = {"lora_rank": 16, "precision": "fp8"}
    few, more = (
        float(run(CORE, lora_targets=t, **given).terms_s["memory_bound"][0])
        for t in (("o",), ("o", "q"))
    )
    device = H100.accelerator.stream["elementwise"]
    rate = float(device.memory_fraction) * 3.35e12
    beside = S * 2 * (7 * H + 3 * H)  # of the adapter itself
    moved = S * H * ((2 - 1) + (2 + 1))
    assert more - few == pytest.approx(
        L * ((beside + moved) / rate + 5 * float(device.launch_s)), rel=0.05
    )


def test_quantised_weights() -> None:
    usual, small = (
        run(TUNE, lora_rank=16, quantised_base=x).memory_bytes["weights"][0] for x in (False, True)
    )
    assert usual - small == pytest.approx(L * LINEARS * (2 - NF4), rel=1e-4)


def test_quantised_weights_are_made_16_bit_for_every_product() -> None:
    usual, small = (
        run(TUNE, lora_rank=16, quantised_base=x).terms_s["memory_bound"][0] for x in (False, True)
    )
    rate = float(H100.accelerator.stream["elementwise"].memory_fraction) * 3.35e12
    launches = 2 * 4 * L * float(H100.accelerator.stream["elementwise"].launch_s)
    expected = 2 * L * LINEARS * (NF4 + 2) / rate + launches
    assert small - usual == pytest.approx(expected, rel=1e-4)


def test_frozen_products_have_no_weight_gradient() -> None:
    """Two of three products of every linear layer are left, and those of the adapters."""
    usual, small = (float(run(TUNE, lora_rank=r).terms_s["gemm"][0]) for r in (0, 1))
    assert 0.62 * usual < small < 0.80 * usual  # rank 1 costs launches and operand traffic


def test_adapters_that_nothing_has_change_states_only() -> None:
    # a dense model without latent attention has no q_up: nothing is trained, nothing added
    states = part_states(workload(lora_rank=16, lora_targets=("q_up",)), CORE, Layouts.of())
    assert whole(states, "trained") == 0


def test_rank_grows_what_is_kept() -> None:
    small, large = (float(run(CORE, lora_rank=r).memory_bytes["activations"][0]) for r in (8, 24))
    assert large - small == L * 4 * S * 16 * 2  # four linears, 16 more values a token of 2 bytes


def test_frozen_linears_keep_inputs_for_adapters_alone() -> None:
    """Fewer by the inputs of fc1 and fc2; adapters of q and v add 16 values a token each."""
    usual = float(run(CORE).memory_bytes["activations"][0])
    few = run(CORE, lora_rank=16, lora_targets=("q", "v")).memory_bytes["activations"][0]
    assert usual - float(few) == L * S * 2 * (H + F - 2 * 16)


def test_adapters_read_16_bit_beside_products_of_8() -> None:
    """The frozen linears keep nothing in 8 bit: as much is kept as beside products of 16 bit."""
    given = {"lora_rank": 16, "lora_targets": ("q", "k", "v", "o", "down")}
    sixteen, eight = (
        float(run(CORE, precision=x, **given).memory_bytes["activations"][0])
        for x in ("bf16", "fp8")
    )
    assert eight == sixteen


def test_gradients_on_the_wire() -> None:
    states = part_states(workload(lora_rank=16), CORE, Layouts.of())
    assert whole(states, "reduce") == 2 * JOINED
    assert whole(states, "gather") == 2 * (PARAMETERS + JOINED)


def test_a_frozen_head_has_no_gradient_beside_the_loss() -> None:
    usual, small = (float(run(CORE, lora_rank=r).memory_bytes["loss"][0]) for r in (0, 16))
    assert usual - small == 2 * V * H


def test_model_flop_under_adapters() -> None:
    """Four FLOPs instead of six for every weight that multiplies; attention as ever."""
    usual, small = (run(CORE, lora_rank=r).model_flop for r in (0, 16))
    weights = L * LINEARS + V * H
    assert usual - small == pytest.approx(2 * 8 * S * weights, rel=1e-12)


def test_model_flop_of_frozen_layers() -> None:
    """One pass instead of three through half of the blocks, attention included."""
    usual, small = (run(CORE, frozen_layers=n).model_flop for n in (0, 16))
    block = 2 * LINEARS + 2 * 2 * H * S / 2
    assert usual - small == pytest.approx(2 * 8 * S * 16 * block, rel=1e-12)


def test_heads_of_tasks_are_trained_beside_adapters() -> None:
    """As peft trains a score in place of a vocabulary (TaskType.SEQ_CLS)."""
    arch = replace(presets.load("llama-3.1-8b"), tasks=TaskHeads(outputs=(2,)))
    scored = Workload(architecture=arch, recipe=workload(lora_rank=16).recipe)
    states = part_states(scored, TUNE, Layouts.of())
    assert states.trained[0, 0, -1] == 2 * H
    assert whole(states, "parameters") == PARAMETERS - V * H + 2 * H + 2


# --- parts of models with towers -----------------------------------------------------------------

TOWER, PROJECTOR, TEXT = 416_866_032, 2_950_272, 3_880_263_168
"""Gemma 3 4B in transformers 5.24 (Gemma3ForConditionalGeneration on the meta device)."""


@pytest.mark.parametrize(
    ("frozen", "trained"),
    [
        ((), TOWER + PROJECTOR + TEXT),
        (("tower",), PROJECTOR + TEXT),
        (("tower", "projector"), TEXT),
        (("tower", "text"), PROJECTOR),
        (("text",), TOWER + PROJECTOR),
        (("text", "projector"), TOWER),
    ],
)
def test_frozen_parts_have_no_states(frozen: Any, trained: int) -> None:
    split = workload("gemma-3-4b", frozen_parts=frozen).by_training()
    arch = split.architecture
    kinds = tuple(map(arch.layer_kinds.count, range(len(arch.blocks))))
    states = part_states(split, TUNE, Layouts.of())
    assert whole(states, "trained", kinds) == trained
    assert whole(states, "parameters", kinds) == TOWER + PROJECTOR + TEXT


def test_gradients_pass_through_a_frozen_text() -> None:
    """Four FLOPs for each of its weights where a projector is trained, and two of the tower's."""
    usual, small = (
        run(CORE, model="gemma-3-4b", frozen_parts=parts).model_flop
        for parts in ((), ("tower", "text"))
    )
    text = TEXT - sum(2_560 * norms for norms in (4 * 34, 1)) - 2 * 34 * 256  # norms multiply none
    tower_products = 27 * (4 * 1152 * 1152 + 2 * 1152 * 4304)
    scores = 27 * 2 * 2 * 4096 * 1152  # of 4,096 patches with each other
    tower = 4096 * 2 * (2 * tower_products + scores)
    assert usual - small == pytest.approx(8 * (S * 2 * text + tower), rel=2e-3)


# --- frozen layers ------------------------------------------------------------------------------


def test_frozen_layers_have_no_gradient_and_keep_nothing() -> None:
    usual, half = (run(CORE, frozen_layers=n) for n in (0, 16))
    trained = 16 * BLOCK + V * H + H
    assert half.memory_bytes["gradients"][0] == 2 * trained
    assert half.memory_bytes["optimizer"][0] == 12 * trained
    assert half.memory_bytes["weights"][0] == 2 * PARAMETERS
    kept = [float(x.memory_bytes["activations"][0]) for x in (usual, half)]
    assert kept[1] == pytest.approx(kept[0] / 2)


def test_frozen_layers_have_no_backward_pass() -> None:
    """A third of the products of 16 layers is left: the forward one."""
    times = [float(run(CORE, frozen_layers=n).terms_s["attention"][0]) for n in (0, 16, 32)]
    assert times[0] - times[1] == pytest.approx(times[1] - times[2], rel=1e-9)
    gemm = [float(run(CORE, frozen_layers=n).terms_s["gemm"][0]) for n in (0, 16, 32)]
    assert gemm[0] - gemm[1] == pytest.approx(gemm[1] - gemm[2], rel=1e-9)
    # the head whole, a third of the blocks: 0.525 of 7.504 billion weights that multiply
    assert gemm[2] / gemm[0] == pytest.approx((0.525 + 6.979 / 3) / 7.504, rel=0.02)


def test_frozen_layers_beyond_the_model_are_all() -> None:
    assert run(CORE, frozen_layers=1000).step_time_s == run(CORE, frozen_layers=L).step_time_s


def test_a_frozen_head() -> None:
    whole_model = part_states(workload(frozen_head=True), CORE, Layouts.of())
    assert whole(whole_model, "trained") == PARAMETERS - V * H


def test_a_frozen_embedding() -> None:
    found = part_states(workload(frozen_embedding=True), CORE, Layouts.of())
    assert whole(found, "trained") == PARAMETERS - V * H
    tied = part_states(workload("llama-3.2-3b", frozen_embedding=True), CORE, Layouts.of())
    assert whole(tied, "trained", (28,)) == 3_212_749_824 - V * 3072
    own_copy = part_states(workload("llama-3.2-3b", frozen_embedding=True), CORE, Layouts.of(pp=2))
    assert whole(own_copy, "trained", (28,)) == 3_212_749_824 - V * 3072


# --- the whole model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({}, 16 * PARAMETERS),
        ({"lora_rank": 16}, 2 * PARAMETERS + 16 * JOINED),
        ({"frozen_layers": 32}, 2 * PARAMETERS + 14 * (V * H + H)),
    ],
)
def test_least_bytes_of_all_states(recipe: dict[str, Any], expected: float) -> None:
    assert least_state_bytes(workload(**recipe), CORE) == pytest.approx(expected, rel=1e-12)
