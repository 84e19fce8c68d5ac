"""Casts, copies of columns and swizzled scales of one block, against counts of the source.

Transformer Engine: csrc/quantizer.cpp (which buffers a cast fills), csrc/extensions/
normalization.cpp (what norms do of it), pytorch/module/linear.py and layernorm_linear.py (what is
gathered), csrc/extensions/swizzle.cpp (scales).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Operators, Stream
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.kernels import Kernels
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe
from tests.cost.test_low_precision import ranks

LLAMA = presets.load("llama-3.1-8b")  # h 4096, 32 heads and 8 of keys and values, f 14336
MIXTRAL = presets.load("mixtral-8x7b")
S = 8192
SIZES = {"qkv": (4096, 6144), "proj": (4096, 4096), "fc1": (4096, 28672), "fc2": (14336, 4096)}
CORE = load_software("megatron-core").kernels
BRIDGE = load_software("megatron-bridge").kernels


def engine(**changed: tuple[str, ...]) -> Kernels:
    """Kernels of Megatron-Core with another Transformer Engine."""
    own = replace(CORE.transformer_engine, **changed)  # type: ignore[arg-type]
    return replace(CORE, transformer_engine=own)


APART = engine(norm_casts=())


def listed(
    precision: Any,
    kernels: Kernels = APART,
    *,
    either: bool = False,
    arch: Any = LLAMA,
    **degrees: Any,
) -> Operators:
    recipe = Recipe(sequence_length=S, global_batch=8, precision=precision)
    kind = arch.blocks[0]
    return block(kind, arch.hidden, ranks(**degrees), recipe, kernels, either_layout=either)


def stream(ops: Operators, name: str) -> Stream:
    (found,) = [s for s in ops.streams if s.name == name]
    return found


def moved(ops: Operators, name: str) -> tuple[float, float]:
    """Bytes forward and backward of the stream of that name; 0 where there is none."""
    found = [s for s in ops.streams if s.name == name]
    ways = ([s.forward_bytes for s in found], [s.backward_bytes for s in found])
    forward, backward = (float(np.max(np.sum(way, axis=0))) if found else 0.0 for way in ways)
    return forward, backward


def called(ops: Operators, name: str) -> tuple[float, float]:
    found = stream(ops, name)
    return float(np.max(found.calls)), float(np.max(found.calls_back))


# --- weights of torchao -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "either", "forward", "backward"),
    [
        ("fp8_current", False, 2 + 2 + 1, 1 + 1),  # maximum, cast; a transposed copy
        ("fp8_current", True, 2 + 2 + 1, 0),
        ("mxfp8", True, 2 + 33 / 32, 2 + 33 / 32),  # columns have scales of their own: cast again
    ],
)
def test_weights_are_cast_in_every_pass_unless_they_arrive_in_8_bit(
    precision: Any, either: bool, forward: float, backward: float
) -> None:
    titan = load_software("torchtitan").kernels
    for tp in (1, 8):
        ops = listed(precision, titan, either=either, tp=tp)
        for name, (width, result) in SIZES.items():
            weights = width * result / tp
            expected = (forward * weights, backward * weights)
            assert moved(ops, f"cast of the weight of {name}") == pytest.approx(expected)
    recipe = Recipe(sequence_length=S, global_batch=8, precision=precision, fp8_weights=True)
    kind = LLAMA.blocks[0]
    ops = block(kind, LLAMA.hidden, ranks(), recipe, titan, either_layout=either)
    arrived = moved(ops, "cast of the weight of qkv")
    assert arrived == pytest.approx((0.0, backward * 4096 * 6144))
    assert moved(listed(precision, either=either), "cast of the weight of qkv") == (0.0, 0.0)


# --- layouts of the device ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "hopper", "blackwell"),
    [
        ("fp8", 2 + 1 + 1, 2 + 1),  # no transposed copy
        ("fp8_current", 2 + 2 + 1 + 1, 2 + 2 + 1),
        ("mxfp8", 2 + 33 / 32 + 33 / 32, 2 + 33 / 32 + 33 / 32),  # scales along columns are others
        ("nvfp4", 2 + 2 + 2 + 9 / 16 + 9 / 16, 2 + 2 + 2 + 9 / 16 + 9 / 16),
    ],
)
def test_a_device_that_takes_either_layout_needs_no_transposed_copy(
    precision: str, hopper: float, blackwell: float
) -> None:
    for either, per_element in ((False, hopper), (True, blackwell)):
        ops = listed(precision, either=either)
        for name, (width, result) in SIZES.items():
            expected = (per_element * S * width, per_element * S * result)
            assert moved(ops, f"cast for {name}") == pytest.approx(expected, rel=1e-12)
            assert moved(ops, f"columns for {name}") == (0.0, 0.0)


@pytest.mark.parametrize(
    ("cluster", "takes"),
    [("dgx-h100", False), ("dgx-a100", False), ("l40s-pcie", False),
     ("dgx-b200", True), ("dgx-b300", True), ("gb200-nvl72", True), ("gb300-nvl72", True)],
)  # fmt: skip
def test_devices_of_compute_capability_10_take_either_layout(cluster: str, takes: bool) -> None:
    """nvte_is_non_tn_fp8_gemm_supported: 100 to 119, and from 130 on."""
    assert load_cluster(cluster, 8).accelerator.fp8_either_layout is takes


@pytest.mark.parametrize(("release", "reads", "kernels"), [("26.02", 3, 4), ("26.04", 2, 3)])
def test_rows_and_columns_of_nvfp4_are_cast_by_one_kernel_since_release_2_14(
    release: str, reads: int, kernels: int
) -> None:
    """csrc/quantizer.cpp, NVFP4Quantizer::quantize_impl of v2.12 and v2.14."""
    ops = listed("nvfp4", load_software(f"megatron-bridge-{release}").kernels, either=True)
    bytes_each = 2 * reads + 2 * 9 / 16
    assert moved(ops, "cast for fc1")[0] == pytest.approx(bytes_each * S * 4096)
    assert called(ops, "cast for fc1")[0] == kernels


# --- norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("either", [False, True])
def test_norms_write_fp8_with_delayed_scaling(either: bool) -> None:
    plain, fused = (listed("fp8", kernels, either=either) for kernels in (APART, CORE))
    for norm, name in (("norm1", "qkv"), ("norm2", "fc1")):
        # 1 B instead of 2, and nothing is left to cast
        less = moved(plain, norm)[0] - moved(fused, norm)[0]
        assert less == pytest.approx(1 * S * 4096, rel=1e-12)
        assert moved(fused, f"cast for {name}")[0] == 0.0
        assert called(fused, f"cast for {name}") == (0.0, 1.0)
        # the transposed copy is made of the rows: 1 B read, 1 B written, one kernel
        copied = 0.0 if either else 2 * S * 4096
        assert moved(fused, f"columns for {name}") == pytest.approx((0.0, copied))
        if not either:
            assert called(fused, f"columns for {name}") == (0.0, 1.0)
    for name in ("proj", "fc2"):  # attention and activation write 16 bit
        assert moved(fused, f"cast for {name}") == moved(plain, f"cast for {name}")


def test_cudnn_norms_write_mxfp8_along_rows_and_columns() -> None:
    plain, fused = listed("mxfp8"), listed("mxfp8", engine(norm_casts=("fp8", "mxfp8")))
    more = moved(fused, "norm1")[0] - moved(plain, "norm1")[0]
    assert more == pytest.approx((2 * 33 / 32 - 2) * S * 4096, rel=1e-9)
    assert moved(fused, "cast for qkv")[0] == moved(fused, "columns for qkv")[1] == 0.0


def test_norms_take_the_maximum_for_present_scaling() -> None:
    plain, fused = (listed("fp8_current", kernels) for kernels in (CORE, BRIDGE))
    for name in ("qkv", "fc1"):
        less = moved(plain, f"cast for {name}")[0] - moved(fused, f"cast for {name}")[0]
        assert less == pytest.approx(2 * S * 4096, rel=1e-12)  # one read in 16 bit
        assert called(plain, f"cast for {name}") == (4.0, 4.0)  # zero, maximum, scale, cast
        assert called(fused, f"cast for {name}") == (3.0, 4.0)
    assert moved(plain, "norm1") == moved(fused, "norm1")
    for name in ("proj", "fc2"):
        assert called(fused, f"cast for {name}") == (4.0, 4.0)


@pytest.mark.parametrize(
    ("precision", "each"),
    [("fp8", 1.0), ("mxfp8", 2 * 33 / 32)],  # columns with scales of their own go with the rows
)
def test_activations_write_what_the_linears_beside_them_take(precision: Any, each: float) -> None:
    """fc2's input forward, the gradient of fc1's result backward, without 16 bit in between."""
    plain = listed(precision, either=True)
    fused = listed(precision, engine(norm_casts=(), activation_casts=(precision,)), either=True)
    inner, both = S * 14336, S * 28672
    before, after = moved(plain, "fc activation"), moved(fused, "fc activation")
    assert after[0] - before[0] == pytest.approx(inner * (each - 2))
    assert after[1] - before[1] == pytest.approx(both * (each - 2))
    assert moved(fused, "cast for fc2")[0] == moved(fused, "cast for fc1")[1] == 0.0
    assert moved(fused, "cast for fc1")[0] == moved(plain, "cast for fc1")[0]
    assert moved(fused, "cast for fc2")[1] == moved(plain, "cast for fc2")[1]


def test_activations_take_the_maximum_for_present_scaling() -> None:
    plain = listed("fp8_current", either=True)
    fused = listed(
        "fp8_current", engine(norm_casts=(), activation_maxima=("fp8_current",)), either=True
    )
    assert moved(plain, "cast for fc2")[0] - moved(fused, "cast for fc2")[0] == 2 * S * 14336
    assert moved(plain, "cast for fc1")[1] - moved(fused, "cast for fc1")[1] == 2 * S * 28672
    assert moved(fused, "fc activation") == moved(plain, "fc activation")


def test_norms_before_experts_are_modules_of_their_own() -> None:
    ops = listed("fp8", CORE, arch=MIXTRAL)
    assert moved(ops, "cast for qkv")[0] == 0.0
    assert moved(ops, "cast for expert fc1")[0] == pytest.approx(4 * 2 * S * 4096)
    assert moved(ops, "norm2") == moved(listed("bf16", CORE, arch=MIXTRAL), "norm2")


# --- gathers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "either", "cast", "columns"),
    [
        ("fp8", False, 2 + 1, 1 + 1),  # rows; fp8_transpose of what was gathered
        ("fp8", True, 2 + 1, 0),
        ("fp8_current", False, 2 + 2 + 1, 1 + 1),
        ("mxfp8", True, 2 + 2 * 33 / 32, 0),  # rows and columns, neither of which is transposed
        ("fp8_blockwise", False, 2 + 2 * 33 / 32, 2 * 33 / 32),  # _transpose_columnwise_data
        ("nvfp4", True, 2 + 2 + 2 + 2 * 9 / 16, 2 * 9 / 16),  # _post_process_nvfp4_gather
    ],
)
def test_ranks_cast_their_own_share_and_put_gathered_columns_in_order(
    precision: str, either: bool, cast: float, columns: float
) -> None:
    ops = listed(precision, either=either, tp=4)
    for name in ("qkv", "fc1"):
        assert moved(ops, f"cast for {name}")[0] == pytest.approx(cast * S / 4 * 4096)
    for name in ("proj", "fc2"):
        assert moved(ops, f"cast for {name}")[1] == pytest.approx(cast * S / 4 * 4096)
    for name in SIZES:
        assert moved(ops, f"columns for {name}") == pytest.approx((0.0, columns * S * 4096))
        if columns:
            assert called(ops, f"columns for {name}") == (0.0, 1.0)


@pytest.mark.parametrize(
    ("precision", "planes"),
    [("fp8", 1), ("fp8_current", 1), ("fp8_blockwise", 2), ("mxfp8", 2), ("nvfp4", 2)],
)
def test_gradients_with_block_scales_are_gathered_along_rows_and_columns(
    precision: str, planes: int
) -> None:
    size = {"fp8": 1.0, "fp8_current": 1.0, "nvfp4": 9 / 16}.get(precision, 33 / 32)
    found = [
        (c.window, c.backward, float(np.max(c.size_bytes)))
        for c in listed(precision, tp=4).collectives
        if c.operation == "all_gather" and c.group == "tp"
    ]
    plane = size * S * 4096
    for name in ("qkv", "fc1"):  # an input goes as rows forward and as columns backward
        assert (f"{name}:forward", False, pytest.approx(plane)) in found
        assert (f"{name}:dgrad", True, pytest.approx(plane)) in found
    for name in ("proj", "fc2"):  # of the gradient dgrad takes rows and wgrad columns
        assert (f"{name}:dgrad", True, pytest.approx(planes * plane)) in found
    assert len(found) == 6


# --- scales -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "block_size"), [("mxfp8", 32), ("nvfp4", 16)])
def test_scales_of_both_operands_are_put_into_tiles_before_every_product(
    precision: str, block_size: int
) -> None:
    ops = listed(precision)
    for name, (k, n) in SIZES.items():
        one = 2 / block_size  # a byte of scale for a block, read and written
        weight, inputs, results = one * n * k, one * S * k, one * S * n
        expected = (inputs + weight, (results + weight) + (results + inputs))
        assert moved(ops, f"scales for {name}") == pytest.approx(expected, rel=1e-12)
        assert called(ops, f"scales for {name}") == (2.0, 4.0)


def test_casts_that_write_tiles_leave_the_weights_scales() -> None:
    ops = listed("mxfp8", engine(swizzled_inputs=("nvfp4",)))
    for name, (k, n) in SIZES.items():
        assert moved(ops, f"scales for {name}") == pytest.approx((n * k / 16, n * k / 16))
        assert called(ops, f"scales for {name}") == (1.0, 1.0)


def test_scales_of_a_ranks_experts_go_in_one_kernel() -> None:
    ops = listed("mxfp8", arch=MIXTRAL, dp=8, ep=4)
    assert called(ops, "scales for expert fc1") == (2.0, 4.0)
    assert called(ops, "cast for expert fc1") == (2.0, 2.0)  # two experts on a rank


@pytest.mark.parametrize("precision", ["fp8", "fp8_current", "fp8_blockwise", "bf16"])
def test_other_types_have_no_tiles_of_scales(precision: str) -> None:
    names = {s.name for s in listed(precision).streams}
    assert not any(name.startswith("scales for") for name in names)


def test_software_without_such_kernels_has_none() -> None:
    ops = listed("mxfp8", engine(swizzled_weights=()))
    assert not any(s.name.startswith("scales for") for s in ops.streams)


def test_a_table_of_layouts_has_each_layouts_own_casts() -> None:
    """Sequence parallelism on and off, side by side, as each alone."""
    recipe = Recipe(sequence_length=S, global_batch=8, precision="fp8_current")
    table = Layouts.of(tp=[1, 4, 4], dp=[8, 2, 2], sequence_parallel=[0, 0, 1])
    for name in ("cast for proj", "columns for proj"):
        alone = [
            moved(listed("fp8_current", tp=int(tp), sequence_parallel=int(sp)), name)[1]
            for tp, sp in zip(table.tp, table.sequence_parallel, strict=True)
        ]
        wide = ranks(tp=[1, 4, 4], dp=[8, 2, 2], sequence_parallel=[0, 0, 1])
        ops = block(LLAMA.blocks[0], LLAMA.hidden, wide, recipe, APART)
        assert np.asarray(stream(ops, name).backward_bytes) == pytest.approx(alone)


# --- frozen weights -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "each", "reads"), [("fp8", 1.0, 2.0), ("mxfp8", 33 / 32, 2.0)]
)
def test_frozen_weights_need_no_columns(precision: Any, each: float, reads: float) -> None:
    """Under adapters nothing but the data gradient is left: operands are cast along rows alone."""
    recipe = Recipe(sequence_length=S, global_batch=8, precision=precision, lora_rank=16)
    ops = block(LLAMA.blocks[0], LLAMA.hidden, ranks(), recipe, APART)
    for name, (wide, out) in SIZES.items():
        inputs, gradients = (S * n * (reads + each) for n in (wide, out))
        assert moved(ops, f"cast for {name}") == pytest.approx((inputs, gradients)), name
        assert moved(ops, f"columns for {name}") == (0.0, 0.0)


def test_scales_of_frozen_weights_are_put_into_tiles_for_two_products() -> None:
    """Forward input and weight, backward gradient and weight: 2 B for each of a scale's 32nd."""
    recipe = Recipe(sequence_length=S, global_batch=8, precision="mxfp8", lora_rank=16)
    kernels = engine(swizzled_inputs=("mxfp8",), swizzled_weights=("mxfp8",), norm_casts=())
    ops = block(LLAMA.blocks[0], LLAMA.hidden, ranks(), recipe, kernels)
    weight, inputs, results = 14336 * 4096, S * 14336, S * 4096
    assert moved(ops, "scales for fc2") == pytest.approx(
        ((weight + inputs) / 16, (weight + results) / 16)
    )
    assert called(ops, "scales for fc2") == (2.0, 2.0)
