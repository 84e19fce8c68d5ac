"""Bytes that routed experts move beside their products: copies, sorts, biases, clamps, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.blocks.launches import dense_counts
from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Operators
from simulator.layout.layouts import DISPATCHERS
from simulator.software.kernels import Kernels
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe
from tests.cost.test_operators import ranks

CORE = load_software("megatron-core")
MIXTRAL = presets.load("mixtral-8x7b")  # 8 experts, 2 for a token; h 4096, f 14336
S = 4096
OWN = S * 4096 * 2  # bytes of a rank's own tokens in 16 bit


def one_block(
    arch: Any = MIXTRAL,
    way: str = "alltoall",
    told: dict[str, Any] | None = None,
    kernels: Kernels = CORE.kernels,
    **degrees: Any,
) -> Operators:
    """The first block, of a recipe that is `told` more than sequences of 4096."""
    row = replace(ranks(**degrees), dispatcher=np.array([DISPATCHERS.index(way)]))
    recipe = Recipe(sequence_length=S, global_batch=8, **(told or {}))
    return block(arch.blocks[0], arch.hidden, row, recipe, kernels)


def moved(ops: Operators, name: str) -> tuple[float, float]:
    """Bytes forward and backward of the memory-bound kernels of a name."""
    found = [s for s in ops.streams if s.name == name]
    return tuple(
        float(sum(np.sum(getattr(s, f"{way}_bytes")) for s in found))
        for way in ("forward", "backward")
    )  # type: ignore[return-value]


def test_tokens_are_copied_and_added_up_and_sorted_both_ways() -> None:
    """Megatron-Core, MoEAlltoAllTokenDispatcher: permute, sort, sort back, unpermute."""
    copies = 2 * OWN  # two experts for each token, and as many arrive
    ends = 2 * (OWN + copies)  # read a token and write its copies; read copies and write their sum
    sorts = 2 * (copies + copies)
    for ep in (1, 2, 4):
        assert moved(one_block(dp=8, ep=ep), "permute") == (ends + sorts, ends + sorts)
    # one expert on a rank: what arrives needs no sorting
    assert moved(one_block(dp=8, ep=8), "permute") == (ends, ends)


def test_deepep_copies_where_the_tokens_arrive() -> None:
    # with an expert on each rank a token reaches two
    read, written = 2 * OWN, 2 * OWN
    found = moved(one_block(dp=8, ep=8, way="deepep"), "permute")
    assert found == pytest.approx((2 * (read + written),) * 2)
    # of two ranks of four experts it reaches both, unless its second pick is one of three beside
    # the first among the seven left
    reached = 1 + 4 / 7
    found = moved(one_block(dp=8, ep=2, way="deepep"), "permute")
    assert found == pytest.approx((2 * (reached + 2) * OWN,) * 2)
    # one rank has all experts: nothing is sent
    alone = [moved(one_block(dp=8, ep=1, way=way), "permute") for way in ("deepep", "alltoall")]
    assert alone[0] == alone[1]


FP8: dict[str, Any] = {"precision": "fp8_current"}


def test_quantised_experts_take_their_tokens_in_aligned_rows() -> None:
    """Fp8Padding reads and writes what arrives, Fp8Unpadding what the experts return."""
    arriving = 2 * OWN
    each = 2 * (2 * arriving)
    for way in ("alltoall", "allgather", "deepep"):
        assert moved(one_block(way=way, told=FP8, dp=8, ep=8), "expert padding") == (each, each)
    assert moved(one_block(dp=8, ep=8), "expert padding") == (0.0, 0.0)  # bf16 takes any number


def test_nothing_is_padded_where_every_expert_has_as_many_rows() -> None:
    capacity = FP8 | {"moe_capacity_factor": 1.0, "moe_pads_to_capacity": True}
    assert moved(one_block(told=capacity, dp=8, ep=8), "expert padding") == (0.0, 0.0)
    torch = replace(
        CORE.kernels,
        transformer_engine=replace(CORE.kernels.transformer_engine, pads_experts=False),
    )
    assert moved(one_block(told=FP8, kernels=torch, dp=8, ep=8), "expert padding") == (0.0, 0.0)


def test_hybridep_leaves_room_itself() -> None:
    hybrid = replace(CORE.kernels, expert_library="hybridep")
    told = {"told": FP8, "kernels": hybrid, "dp": 8, "ep": 8}
    assert moved(one_block(way="deepep", **told), "expert padding") == (0.0, 0.0)
    assert moved(one_block(**told), "expert padding") == (8 * OWN, 8 * OWN)  # all-to-all beside it


def test_biases_of_experts_are_added_operator_by_operator() -> None:
    """TEGroupedMLP: b p (write), t + b p (two reads, write), concatenation (read, write)."""
    arch = with_experts(bias=True)
    rows = 2 * OWN
    inner = 2 * S * 14336 * 2
    forward, backward = moved(one_block(arch, dp=8, ep=8), "expert biases")
    assert forward == (1 + 3 + 2) * rows
    # split (2), two products with the bias and the weight and their sums (3 each); gradients of
    # biases read the gradients of both linears' outputs, the first of which is twice as wide
    assert backward == (2 + 3 + 3) * rows + rows + 2 * inner
    assert moved(one_block(dp=8, ep=8), "expert biases") == (0.0, 0.0)


def test_weights_in_fp32_make_the_biases_of_experts_fp32() -> None:
    """In 16-bit sizes: b p (2), t + b p (1, 2, 2), concatenation (2, 2), cast (2, 1); back the cast
    (1, 2), the gradient of t in 16 bit (2, 1), split (2), two products (2, 2) and sums (2)."""
    arch = with_experts(bias=True)
    rows, inner = 2 * OWN, 2 * S * 14336 * 2
    found = moved(one_block(arch, way="deepep", dp=8, ep=8), "expert biases")
    assert found == ((2 + 5 + 4 + 3) * rows, (3 + 3 + 2 + 2 * 6) * rows + rows + 2 * inner)


def test_a_clamped_gate_is_cut_and_put_together_first() -> None:
    wide = 2 * 2 * S * 14336 * 2  # gate and linear part
    forward, backward = moved(one_block(with_experts(bias=True, clamped=True), dp=8, ep=8), "clamp")
    assert forward == (2 + 2) * wide  # two clamps, a concatenation
    # back: the halves of the gradient are cut where the input (read too) was, and joined again
    assert backward == (3 + 2) * wide
    assert moved(one_block(with_experts(bias=True), dp=8, ep=8), "clamp") == (0.0, 0.0)


def with_experts(**changed: Any) -> Any:
    first = MIXTRAL.blocks[0]
    return replace(MIXTRAL, blocks=(replace(first, mlp=replace(first.mlp, **changed)),))


def test_published_configurations_say_so() -> None:
    oss = presets.load("gpt-oss-20b").blocks[0]
    assert (oss.mlp.bias, oss.mlp.clamped, oss.attention.scaled_rotary) == (True, True, True)
    assert not MIXTRAL.blocks[0].mlp.clamped


def test_a_factor_on_the_rotation_is_beyond_the_fused_kernel() -> None:
    attention = replace(MIXTRAL.blocks[0].attention, scaled_rotary=True)
    arch = replace(MIXTRAL, blocks=(replace(MIXTRAL.blocks[0], attention=attention),))
    fused, apart = (moved(one_block(a, dp=8), "rotary") for a in (MIXTRAL, arch))
    turned = 2 * S * (4096 + 1024)  # queries and keys in 16 bit
    assert fused == (2 * turned, 2 * turned)  # read and written
    # operator by operator (tests/oracles/test_unfused_attention.py)
    assert apart == (12 * turned, 14 * turned)
    counts = [
        dense_counts(
            CORE, one_block(a, dp=8), ranks(dp=8), Recipe(sequence_length=S, global_batch=8)
        )
        for a in (MIXTRAL, arch)
    ]
    assert [(c["rotary"], c["rotary_apart"]) for c in counts] == [(1.0, 0.0), (0.0, 1.0)]
