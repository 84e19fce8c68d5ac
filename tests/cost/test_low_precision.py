"""Products of 8- and 4-bit numbers: what is cast, what stays 16 bit, and nothing paid twice."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.casts import casts
from simulator.cost.operators.ends import head
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.host_work import Launched, Launches
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import PRECISIONS, Recipe, Workload

LLAMA = presets.load("llama-3.1-8b")  # h 4096, 32 heads and 8 of keys and values, f 14336
MIXTRAL = presets.load("mixtral-8x7b")
CORE = load_software("megatron-core")
APART = replace(
    CORE,
    kernels=replace(
        CORE.kernels, transformer_engine=replace(CORE.kernels.transformer_engine, norm_casts=())
    ),
)  # norms and casts are kernels
B200, H100 = load_cluster("dgx-b200", 8), load_cluster("dgx-h100", 8)
S = 8192
LOW = [name for name in PRECISIONS if name not in ("fp32", "tf32", "fp16", "bf16")]

BY_HAND = {
    # bytes per element on Hopper: 16 bit read, 8 bit written along rows and along columns
    "fp8": 2 + 1 + 1,
    # the present maximum is a second read
    "fp8_current": 2 + 2 + 1 + 1,
    # one fp32 scale for 128 elements, each way (DeepSeek-V3 report, section 3.3.2)
    "fp8_blockwise": 2 + 1 + 1 + 2 * 4 / 128,
    # one e8m0 scale for 32 (OCP microscaling formats 1.0), each way
    "mxfp8": 2 + 1 + 1 + 2 / 32,
    # half a byte and an e4m3 scale for 16, each way; the tensor's maximum is a second read, its
    # columns, after a Hadamard transform, a third one (Transformer Engine 2.8 to 2.13)
    "nvfp4": 2 + 2 + 2 + 2 * (1 / 2 + 1 / 16),
}


def ranks(**degrees: Any) -> Ranks:
    layout = Layouts.of(**degrees)
    return Ranks(
        **{name: getattr(layout, name).astype(float) for name in ("tp", "cp", "ep", "etp")},
        micro_batch=layout.micro_batch.astype(float),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )


def one_block(
    arch: Architecture, precision: Any, software: Software = APART, **degrees: Any
) -> Operators:
    recipe = Recipe(sequence_length=S, global_batch=8, precision=precision)
    return block(arch.blocks[0], arch.hidden, ranks(**degrees), recipe, software.kernels)


def cast_of(ops: Operators) -> dict[str, tuple[float, float]]:
    """Bytes forward and backward of every cast, by the product it is for."""
    return {
        s.name.removeprefix("cast for "): (float(s.forward_bytes[0]), float(s.backward_bytes[0]))
        for s in ops.streams
        if s.name.startswith("cast for ")
    }


@pytest.mark.parametrize("precision", LOW)
def test_inputs_are_cast_forward_and_gradients_backward(precision: str) -> None:
    per_element = BY_HAND[precision]
    found = cast_of(one_block(LLAMA, precision))
    # (input, output) of every linear layer of a token
    sizes = {"qkv": (4096, 6144), "proj": (4096, 4096), "fc1": (4096, 28672), "fc2": (14336, 4096)}
    assert set(found) == set(sizes)
    for name, (width, result) in sizes.items():
        expected = (per_element * S * width, per_element * S * result)
        assert found[name] == pytest.approx(expected, rel=0.011), name


def test_casts_are_cut_with_the_linear_layers() -> None:
    """What sequence parallelism gathers is cast before, along rows alone (3 B instead of 4)."""
    whole, cut = (cast_of(one_block(LLAMA, "fp8", tp=tp)) for tp in (1, 8))
    for name in ("qkv", "fc1"):
        assert cut[name] == pytest.approx((whole[name][0] * 3 / 4 / 8, whole[name][1] / 8))
    for name in ("proj", "fc2"):
        assert cut[name] == pytest.approx((whole[name][0] / 8, whole[name][1] * 3 / 4 / 8))
    # without it all ranks have the same inputs and the same gradients, and cast them in whole
    same = cast_of(one_block(LLAMA, "fp8", tp=8, sequence_parallel=0))
    for name in ("qkv", "fc1"):
        assert same[name] == pytest.approx((whole[name][0], whole[name][1] / 8))
    for name in ("proj", "fc2"):
        assert same[name] == pytest.approx((whole[name][0] / 8, whole[name][1]))


def test_experts_cast_what_arrives_and_the_router_nothing() -> None:
    found = cast_of(one_block(MIXTRAL, "fp8"))
    assert set(found) == {"qkv", "proj", "expert fc1", "expert fc2"}
    arriving = 2 * S  # two experts for each token
    assert found["expert fc1"] == pytest.approx((4 * arriving * 4096, 4 * arriving * 28672))


def test_every_expert_is_cast_on_its_own_and_present_scaling_takes_four_kernels() -> None:
    # a place for the maximum set to zero, the maximum, with one scale for all the scale, the cast
    for precision, kernels in (("fp8", 1), ("fp8_current", 4), ("mxfp8", 1), ("nvfp4", 4)):
        calls = {
            s.name.removeprefix("cast for "): float(np.max(s.calls))
            for s in one_block(MIXTRAL, precision, dp=8, ep=4).streams
            if s.name.startswith("cast for ")
        }
        assert calls["qkv"] == kernels
        assert calls["expert fc1"] == calls["expert fc2"] == 2 * kernels  # two experts on a rank


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_sixteen_bit_and_wider_numbers_are_not_cast(precision: str) -> None:
    assert not cast_of(one_block(LLAMA, precision))


def test_attention_and_head_are_not_cast() -> None:
    unfused = replace(CORE.kernels, attention="unfused")
    recipe = Recipe(sequence_length=S, global_batch=8, precision="fp8")
    ops = block(LLAMA.blocks[0], LLAMA.hidden, ranks(), recipe, unfused)
    assert {g.name for g in ops.gemms} == {"qkv", "scores", "context", "proj", "fc1", "fc2"}
    assert not {"scores", "context"} & set(cast_of(ops))
    last = head(LLAMA, ranks(), recipe, CORE.kernels)
    streams = casts(last, recipe, CORE.kernels, ranks(), {})
    assert not cast_of(replace(last, streams=streams))


@pytest.mark.parametrize("precision", LOW)
def test_a_type_below_16_bit_is_quantised(precision: Any) -> None:
    recipe = Recipe(sequence_length=S, global_batch=8, precision=precision)
    assert recipe.is_quantised
    assert recipe.matrix_type == ("fp8" if precision == "fp8_current" else precision)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_the_other_types_are_their_own(precision: Any) -> None:
    recipe = Recipe(sequence_length=S, global_batch=8, precision=precision)
    assert (recipe.is_quantised, recipe.matrix_type) == (False, precision)


# --- seconds ------------------------------------------------------------------------------------


def run(
    precision: Any,
    cluster: Cluster = B200,
    software: Software = CORE,
    arch: Architecture = LLAMA,
) -> Estimate:
    """Eight ranks of one sequence each, no communication in the terms that are looked at."""
    recipe = Recipe(sequence_length=S, global_batch=8, precision=precision)
    work = Workload(architecture=arch, recipe=recipe)
    return evaluate(Layouts.of(dp=8), work, cluster, software)


def term(found: Estimate, name: str) -> float:
    return float(found.terms_s[name][0])


def with_gemms(cluster: Cluster, changed: dict[str, dict[str, float]]) -> Cluster:
    """The cluster with figures of its cuBLAS kernels changed, by type."""
    group = cluster.groups[0]
    gemm = dict(group.accelerator.gemm["cublas"])
    for dtype, figures in changed.items():
        gemm[dtype] = replace(gemm[dtype], **{name: Figure(x) for name, x in figures.items()})
    device = replace(group.accelerator, gemm={"cublas": gemm})
    return replace(cluster, groups=(replace(group, accelerator=device),))


def with_peak(cluster: Cluster, dtype: str, times: float) -> Cluster:
    group = cluster.groups[0]
    peaks = dict(group.accelerator.matrix_flop_per_s)
    peaks[dtype] = Figure(peaks[dtype] * times)
    device = replace(group.accelerator, matrix_flop_per_s=peaks)
    return replace(cluster, groups=(replace(group, accelerator=device),))


def test_present_scaling_is_the_same_product_one_more_read_and_three_starts() -> None:
    late, now = (run(precision, software=APART) for precision in ("fp8", "fp8_current"))
    for name in ("gemm", "attention", "dp", "optimizer"):
        assert term(now, name) == term(late, name), name
    elements = 32 * S * (4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096)
    kernel = B200.accelerator.stream["cast"]
    rate = float(kernel.memory_fraction) * float(B200.accelerator.memory.bandwidth_bytes_per_s)
    more = term(now, "memory_bound") - term(late, "memory_bound")
    # and of eight casts in each of 32 blocks three more kernels: zero, the maximum, the scale
    starts = 32 * 8 * 3 * float(kernel.launch_s)
    assert more == pytest.approx(2 * elements / rate + starts, rel=1e-9)


def test_bf16_pays_for_no_cast() -> None:
    # with casts that cost nothing the memory-bound term of fp8 would be that of bf16
    plain, low = (run(precision, software=APART) for precision in ("bf16", "fp8"))
    casts_s = term(low, "memory_bound") - term(plain, "memory_bound")
    kernel = B200.accelerator.stream["cast"]
    rate = float(kernel.memory_fraction) * float(B200.accelerator.memory.bandwidth_bytes_per_s)
    elements = 32 * S * (4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096)
    launches = 32 * 4 * 2 * float(kernel.launch_s)  # four linears, both directions
    # 16 bit read, 8 bit written: products of this device take rows for columns
    assert casts_s == pytest.approx(3 * elements / rate + launches, rel=1e-9)


@pytest.mark.parametrize("precision", LOW)
def test_attention_and_head_stay_in_16_bit(precision: str) -> None:
    small = replace(LLAMA, vocabulary=128)
    cluster = H100 if precision == "fp8_blockwise" else B200
    plain = [run("bf16", cluster, arch=arch) for arch in (LLAMA, small)]
    low = [run(precision, cluster, arch=arch) for arch in (LLAMA, small)]
    assert term(low[0], "attention") == term(plain[0], "attention")
    of_head = [term(pair[0], "gemm") - term(pair[1], "gemm") for pair in (plain, low)]
    assert of_head[1] == pytest.approx(of_head[0], rel=1e-9)
    assert term(low[0], "gemm") < term(plain[0], "gemm")


def test_a_head_in_8_bit_is_one_more_linear() -> None:
    """Its input is cast forward, the gradient of its output back, each along rows and columns."""
    engine = replace(CORE.kernels.transformer_engine, quantised_head=("mxfp8",))
    kernels = replace(CORE.kernels, transformer_engine=engine)
    recipe = Recipe(sequence_length=S, global_batch=8, precision="mxfp8")
    usual, low = (head(LLAMA, ranks(), recipe, own) for own in (CORE.kernels, kernels))
    assert [g.kind for g in usual.gemms] == ["head"]
    assert [g.kind for g in low.gemms] == ["linear"]
    each = 2 + 2 * 33 / 32  # 16 bit read; two of 8 bit with a scale for 32 written
    (cast,) = cast_of(low).values()
    assert cast == pytest.approx((each * S * 4096, each * S * 128256))
    assert cast_of(usual) == {}


@pytest.mark.parametrize(
    ("precision", "own"),
    [("fp8", "fp8"), ("fp8_current", "fp8"), ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4")],
)
def test_each_recipe_takes_the_peak_of_its_own_type(precision: str, own: str) -> None:
    before = term(run(precision), "gemm")
    for dtype in ("fp8", "mxfp8", "nvfp4", "fp16", "tf32"):
        now = term(run(precision, with_peak(B200, dtype, 4.0)), "gemm")
        assert (now < 0.8 * before) if dtype == own else (now == before), dtype


def test_fewer_bits_take_less_time_in_the_products() -> None:
    found = [term(run(precision), "gemm") for precision in ("bf16", "mxfp8", "nvfp4")]
    assert found[0] > found[1] > found[2]


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_the_cast_inside_a_timed_call_is_not_paid_again(precision: str) -> None:
    """Kernel timings of low types hold the cast of the operand: its traffic and its launches.

    Here casts are kernels of their own, so neither may count; a product starts as one in bf16.
    """
    before = run(precision)
    more = with_gemms(B200, {precision: {"quantise_bytes_per_element": 1e3, "launch_s": 1.0}})
    assert run(precision, more).step_time_s == before.step_time_s
    later = with_gemms(B200, {"bf16": {"launch_s": 1.0}})
    # one second a call: qkv, proj, fc1 and fc2 of 32 blocks and the head, one forward, two back
    slow = term(run(precision, later), "gemm") - term(before, "gemm")
    assert slow == pytest.approx(3 * (4 * 32 + 1), rel=1e-4)


def test_bf16_products_keep_their_own_launch_and_cast() -> None:
    before = term(run("bf16"), "gemm")
    more = with_gemms(B200, {"bf16": {"quantise_bytes_per_element": 1e3}})
    assert term(run("bf16", more), "gemm") > 2 * before
    other = with_gemms(B200, {"fp8": {"quantise_bytes_per_element": 1e3, "launch_s": 1.0}})
    assert term(run("bf16", other), "gemm") == before


CASTS: tuple[Launched, ...] = ("quantised", "delayed_scaling")
"""What the host launches for casts, whatever the scale's age."""


def test_casts_take_launches_of_the_host() -> None:
    host = replace(CORE.host, seconds_per_kernel=Figure(1.0), time_variation=Figure(0.0))
    slow = replace(CORE, host=host)
    casting, none = (
        replace(slow, host=replace(host, launches={**host.launches, **dict.fromkeys(CASTS, some)}))
        for some in (Launches(forward=Figure(10.0)), Launches(forward=Figure(0.0)))
    )
    for precision in LOW:
        cluster = H100 if precision == "fp8_blockwise" else B200
        more = (
            run(precision, cluster, casting).step_time_s - run(precision, cluster, none).step_time_s
        )
        # ten kernels forward and twenty backward in each of 32 blocks, a second each
        assert more == pytest.approx(30 * 32 * float(cluster.node.host_time), rel=1e-9), precision
    assert run("bf16", B200, casting).step_time_s == run("bf16", B200, none).step_time_s


def test_selective_recomputation_of_a_product_casts_again() -> None:
    kernels = replace(CORE.kernels, selective_modules=("mlp",))
    software = replace(CORE, kernels=kernels)
    recipe = Recipe(sequence_length=S, global_batch=8, precision="fp8")
    work = Workload(architecture=LLAMA, recipe=recipe)

    def recompute(cluster: Cluster) -> float:
        layout = Layouts.of(dp=8, recompute="selective")
        return float(evaluate(layout, work, cluster, software).terms_s["recompute"][0])

    group = H100.groups[0]
    streams = dict(group.accelerator.stream)
    alike = replace(group.accelerator, time_variation=Figure(0.0))
    streams["elementwise"] = replace(streams["elementwise"], launch_s=Figure(1.0))
    device = replace(alike, stream=streams)
    slow, plain = (replace(H100, groups=(replace(group, accelerator=x),)) for x in (device, alike))
    # activation and cast for fc2 in each of 32 blocks; the norm casts for fc1
    assert recompute(slow) - recompute(plain) == pytest.approx(2 * 32, rel=1e-4)


def test_a_layout_of_a_low_type_is_the_same_alone_and_in_a_table() -> None:
    recipe = Recipe(sequence_length=S, global_batch=64, precision="nvfp4")
    work = Workload(architecture=LLAMA, recipe=recipe)
    table = Layouts.of(tp=[1, 2, 4], dp=[8, 4, 2], micro_batch=[1, 2, 4], global_batch=64)
    whole = evaluate(table, work, B200, CORE).step_time_s
    alone = [float(evaluate(table[i], work, B200, CORE).step_time_s[0]) for i in range(3)]
    np.testing.assert_allclose(whole, alone, rtol=1e-12)


# --- scales of whole tensors --------------------------------------------------------------------


def agreed(precision: str, **degrees: Any) -> list[tuple[bool, float]]:
    """Reductions of a few bytes in a block of Llama: whether backward, and the bytes."""
    found = one_block(LLAMA, precision, **degrees).collectives
    found = [c for c in found if c.group == "tp" and c.operation == "all_reduce"]
    sizes = [(c.backward, float(np.max(c.size_bytes))) for c in found]
    return sorted(each for each in sizes if 0.0 < each[1] < 100.0)


@pytest.mark.parametrize("precision", LOW)
def test_ranks_agree_on_scales_of_whole_tensors(precision: str) -> None:
    """Inputs of qkv and fc1 forward, gradients behind proj and fc2 backward: a float each."""
    whole = [(False, 4.0)] * 2 + [(True, 4.0)] * 2
    expected = whole if precision in ("fp8_current", "nvfp4") else []
    assert agreed(precision, tp=8) == expected
    assert agreed(precision, tp=8, sequence_parallel=0) == []  # nothing is gathered
