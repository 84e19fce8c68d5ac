"""Bytes of one routed layer of DeepSeek-V3, kernel by kernel, against a count by hand.

The table of docs/experiments.md: 4,096 tokens of a rank of 32, MXFP8, HybridEP, even loads, as
Megatron-Bridge 26.04 runs it (Megatron-Core 0.17, Transformer Engine 2.14).
"""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.routing import reached_places
from simulator.layout.layouts import DISPATCHERS
from simulator.software.kernels import Kernels
from simulator.software.overrides import with_overrides
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe
from tests.cost.test_operators import ranks

MODEL = presets.load("deepseek-v3")
T = 4096  # tokens
TOKENS = T * 7168 * 2  # bytes of all tokens in 16 bit
ROWS = 8 * TOKENS  # eight experts for each, and as many arrive
# Of 256 experts 8 in 8 groups of 4 ranks, the best 4 groups: cost/operators/routing.py, its tests.
UNIQUE = TOKENS * float(reached_places(32, picks=8, experts=256, groups=8, top_groups=4))
INNER = 8 * T * 2048 * 2  # between the two linears of the routed experts
SHARED = T * 2048 * 2
CAST = 2 + 2 * 33 / 32  # read in 16 bit, written along rows and along columns with their scales
HEADS = T * 128 * 2  # one element of each of 128 heads


def cast(size_16_bit: float) -> float:
    return size_16_bit / 2 * CAST


BY_HAND = {
    # norm, forward: read, write; backward: gradient and input read, gradient written
    "norm2": (2 * TOKENS, 3 * TOKENS),
    # what arrives is read once and written for every expert; back: read, added up, written
    "permute": (2 * (UNIQUE + ROWS), 2 * (UNIQUE + ROWS)),
    "expert padding": (0.0, 0.0),  # HybridEP leaves aligned rows
    "cast for expert fc1": (cast(ROWS), cast(2 * INNER)),
    # gate and up read, result written; back: result's gradient, gate and up (5 of inner with the
    # reads of one sweep over both halves), two written, and three read for the routing weights
    "expert fc activation": (3 * INNER, 10 * INNER),
    "cast for expert fc2": (cast(INNER), cast(ROWS)),
    "cast for shared fc1": (cast(TOKENS), cast(2 * SHARED)),
    "shared fc activation": (3 * SHARED, 7 * SHARED),
    "cast for shared fc2": (cast(SHARED), cast(TOKENS)),
    "mlp residual": (3 * TOKENS, 3 * TOKENS),
    # autograd adds up what router, dispatch and shared experts hand back, two sums of two read and
    # one written; what shared experts make is added to what routed ones do
    "sum of gradients for routed input": (0.0, 6 * TOKENS),
    "sum of experts": (3 * TOKENS, 0.0),
    "sum of gradients for down-projections": (0.0, 3 * TOKENS),
    # fp32 beside what a product in 16 bit moves: input cast (2 and 4 bytes an element) and read
    # (2 more), its gradient written (2 more) and cast (4 and 2)
    "router casts": (0.0, 8 * TOKENS),
    # ten passes over 256 scores of 4 bytes, half of them backward
    "routing": (10 * T * 256 * 4, 5 * T * 256 * 4),
    # queries turned where they lie (64 elements); 256 of keys and values read, 192 + 128 written
    "rotary": (HEADS * (2 * 64 + 256 + 320), HEADS * (2 * 64 + 256 + 320)),
    "split and merge": (0.0, 0.0),
}


PRODUCTS_CAST = BY_HAND | {
    # Transformer Engine 2.15: epilogues of the products make the inner activations and their
    # gradient in 8 bit; the input and the outputs' gradient are cast by kernels as before
    "cast for expert fc1": (cast(ROWS), 0.0),
    "expert fc activation": (0.0, 0.0),
    "cast for expert fc2": (0.0, cast(ROWS)),
}


def kernels_of(release: str) -> Kernels:
    """As recipes run it whose graph holds the whole step: 26.06 casts within the products there."""
    stated = {"cuda_graphs": True, "dispatcher": "hybridep"}
    return with_overrides(load_software(f"megatron-bridge-{release}"), stated).kernels


@pytest.mark.parametrize(("release", "by_hand"), [("26.04", BY_HAND), ("26.06", PRODUCTS_CAST)])
def test_routed_layer_moves_what_a_count_by_hand_says(
    release: str, by_hand: dict[str, tuple[float, float]]
) -> None:
    kernels = kernels_of(release)
    way = np.array([DISPATCHERS.index("deepep")])
    row = replace(ranks(dp=64, ep=32), dispatcher=way)
    recipe = Recipe(sequence_length=T, global_batch=64, precision="mxfp8")
    ops = block(MODEL.blocks[-1], MODEL.hidden, row, recipe, kernels)
    for name, (forward, backward) in by_hand.items():
        found = [s for s in ops.streams if s.name == name]
        assert float(sum(np.sum(s.forward_bytes) for s in found)) == pytest.approx(forward), name
        assert float(sum(np.sum(s.backward_bytes) for s in found)) == pytest.approx(backward), name


def test_biases_of_experts_leave_one_kernel_where_products_add_them() -> None:
    """gpt-oss-20b: 4 of 32 experts, outputs of 2,880; one read of their gradient, backward."""
    model = presets.load("gpt-oss-20b")
    kernels = kernels_of("26.06")
    row = replace(ranks(dp=64, ep=32), dispatcher=np.array([DISPATCHERS.index("deepep")]))
    recipe = Recipe(sequence_length=T, global_batch=64, precision="mxfp8")
    ops = block(model.blocks[0], model.hidden, row, recipe, kernels)
    found = {s.name: s for s in ops.streams}
    assert float(np.sum(found["expert bias gradients"].backward_bytes)) == 4 * T * 2880 * 2
    assert not {"expert biases", "clamp", "expert fc activation"} & set(found)
    if __name__ == "__main__":
        print(UNIQUE / TOKENS)


@pytest.mark.parametrize(
    ("release", "stated", "weighing"),
    [("megatron-bridge-26.04", {"unpermute": "scatter_add"}, None), ("plain-ddp", {}, (2, 6))],
)
def test_torch_adds_up_copies_one_by_one(
    release: str, stated: dict[str, str], weighing: tuple[int, int] | None
) -> None:
    """Mixtral on one rank: a gather reads tokens and writes copies, a scatter-add reads them and
    reads and writes what they are added to; each is the gradient of the other.
    """
    model = presets.load("mixtral-8x7b")
    kernels = with_overrides(load_software(release), stated).kernels
    recipe = Recipe(sequence_length=T, global_batch=1, precision="bf16")
    ops = block(model.blocks[0], model.hidden, ranks(), recipe, kernels)
    tokens = T * 4096 * 2
    copies = 2 * tokens
    found = {s.name: s for s in ops.streams}
    for name, ways in {
        "permute": (tokens + copies, tokens + copies),
        "scatter-add": (3 * copies, 3 * copies),
        "routing weights": weighing and tuple(count * copies for count in weighing),
    }.items():
        assert (name in found) == (ways is not None)
        if ways is not None:
            moved = found[name].forward_bytes, found[name].backward_bytes
            assert [float(np.sum(one)) for one in moved] == list(ways), name
    assert found["scatter-add"].kind == "scatter_add"


@pytest.mark.parametrize("release", ["kempnerforge-eager", "kempnerforge"])
def test_equal_rows_are_filled_slice_by_slice_where_nothing_is_compiled(release: str) -> None:
    """Eight experts with as many rows each: two targets zeroed, two copies; backward a copy, zeros
    and a sum of the whole for every slice of either (2 + 1 + 3), eleven passes of the slices.
    """
    model = presets.load("mixtral-8x7b")
    kernels = load_software(release).kernels
    recipe = Recipe(sequence_length=T, global_batch=1, precision="bf16")
    ops = block(model.blocks[0], model.hidden, ranks(), recipe, kernels)
    rows = 2 * T * 4096 * 2
    moved = [(s.forward_bytes, s.backward_bytes) for s in ops.streams if s.name == "rows by expert"]
    by_hand = [(6 * rows, (8 * 6 * 2 + 11) * rows)] if release.endswith("eager") else []
    assert [tuple(float(np.sum(way)) for way in ways) for ways in moved] == by_hand
