"""Mixers by hand: parameters by matrices, what they keep and move a token by tensors."""

from dataclasses import fields, replace
from typing import Any

import pytest

from simulator.workload.mixers import (
    CompressedAttention,
    GatedDelta,
    GatedRecurrence,
    KimiDelta,
    LightningAttention,
    Mamba1,
    Mamba2,
    MatrixMemory,
    ShortConvolution,
    TimeMixing,
)

LENGTH = 4096
MIXERS: dict[str, Any] = {
    "mamba": Mamba1(inner=96, state_size=5, step_rank=7),
    "kimi delta": KimiDelta(heads=3, head_dim=32, chunk=16, rank=11),
    "recurrence": GatedRecurrence(inner=96, heads=3),
    "matrix memory": MatrixMemory(heads=3, key_head_dim=20, value_head_dim=28, chunk=16),
    "time mixing": TimeMixing(inner=96),
    "short convolution": ShortConvolution(inner=96),
    "compressed": CompressedAttention(
        heads=3, head_dim=32, q_rank=13, output_groups=3, output_rank=4, rate=4, picked=9,
        index_heads=2, index_dim=6, window=128, compressors=2,
    ),
}  # fmt: skip
CHANNELS = 96

KEPT: dict[str, list[float]] = {
    # the input, its gate, what was convolved and the step of every channel; the step's source; B, C
    "mamba": [*[CHANNELS] * 4, 7, 5, 5],
    # q, k, v before and after their convolution; gate; output; decays in fp32 are two of 16 bit;
    # of every head the rate in fp32 and a row of the chunk's inverse; two small projections
    "kimi delta": [*[CHANNELS] * 6, CHANNELS, CHANNELS, 2 * CHANNELS, 3 * 2, 3 * 16, 11, 11],
    # both inputs, what was convolved, two gates, the state
    "recurrence": [CHANNELS] * 6,
    # q and k of 20 a head; v, output gate, and the result before and after its norm of 28 a head;
    # two gates, normaliser and its maximum in fp32, two of 16 bit each
    "matrix memory": [*[3 * 20] * 2, *[3 * 28] * 4, *[3 * 2] * 4],
    # mixed inputs of receptance, key and value; these three; the result
    "time mixing": [CHANNELS] * 7,
    # gates B and C, the input, what the convolution reads, what it gives
    "short convolution": [CHANNELS] * 5,
    # latent queries before and after their norm, queries before and after rotation, the latent key
    # and its rotated form, two compressed keys every four tokens, the indexer's queries and
    # weights, the blocks it picks and their scores
    "compressed": [13, 13, CHANNELS, CHANNELS, 32, 32, 2 * 32 / 4, 2 * 6, 2, 9, 9],
}
"""Elements a token, tensor by tensor."""

FREE = {"convolution", "chunk", "rate", "mixes", "compressors", "window", "output_groups",
        "output_rank"}  # fmt: skip
"""Sizes that are no width of a tensor that a token has."""


HIDDEN = 40
WEIGHTS: dict[str, tuple[Any, list[int]]] = {
    # z, x, B, C and a step a head; convolution of x, B and C over 4; decay, step, skip; norm; back
    "mamba-2": (
        Mamba2(heads=6, head_dim=16, state_size=5, groups=2),
        [(2 * 96 + 2 * 2 * 5 + 6) * HIDDEN, (96 + 2 * 2 * 5) * (4 + 1), 3 * 6, 96, 96 * HIDDEN],
    ),
    # q, k, v and gate, rates and steps a value head; convolution of q, k, v over 3; decay, step
    "gated delta rule": (
        GatedDelta(key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=12, convolution=3),
        [(2 * 16 + 2 * 48 + 2 * 4) * HIDDEN, (2 * 16 + 48) * 3, 2 * 4, 12, 48 * HIDDEN],
    ),
    # q, k, v and the output's gate; a norm; back
    "lightning": (LightningAttention(heads=6, head_dim=16), [4 * 96 * HIDDEN, 96, 96 * HIDDEN]),
    # x and z; convolution; step's source, B and C; step; A and D; back
    "mamba": (
        MIXERS["mamba"],
        [2 * 96 * HIDDEN, 96 * 5, 96 * (7 + 2 * 5), (7 + 1) * 96, 96 * 5 + 96, 96 * HIDDEN],
    ),
    # q, k, v, a rate a head; convolutions; decay and gate through 11; decays, norm of a head; back
    "kimi delta": (
        MIXERS["kimi delta"],
        [(3 * 96 + 3) * HIDDEN, 3 * 96 * 4, 2 * 11 * HIDDEN, 2 * 11 * 96, 96 + 3, 32, 96 * HIDDEN],
    ),
    # both inputs; convolution; two gates of a block a head; decay; back; each with its bias
    "recurrence": (
        MIXERS["recurrence"],
        [2 * 96 * (HIDDEN + 1), 96 * 5, 2 * 96 * (96 // 3 + 1), 96, (96 + 1) * HIDDEN],
    ),
    # q and k, v and output gate; two gates a head with biases; norm; back
    "matrix memory": (
        MIXERS["matrix memory"],
        [2 * (60 + 84) * HIDDEN, 2 * 3 * (HIDDEN + 1), 84, 84 * HIDDEN],
    ),
    # receptance, key, value; decay and first; three mixes; back
    "time mixing": (MIXERS["time mixing"], [3 * 96 * HIDDEN, 2 * 96, 3 * HIDDEN, 96 * HIDDEN]),
    "short convolution": (MIXERS["short convolution"], [3 * 96 * HIDDEN, 96 * 3, 96 * HIDDEN]),
}
"""A mixer in a model of width 40, and its parameters, matrix by matrix of its published code."""


@pytest.mark.parametrize("name", WEIGHTS)
def test_parameters_by_matrices(name: str) -> None:
    mixer, matrices = WEIGHTS[name]
    assert sum(weight.parameters for weight in mixer.weights(HIDDEN)) == sum(matrices)


def sizes(mixer: Any) -> dict[str, int]:
    """Widths and counts of a mixer that its tensors are as large as."""
    given = {each.name: getattr(mixer, each.name) for each in fields(mixer)}
    return {
        name: value
        for name, value in given.items()
        if type(value) is int and value and name not in FREE
    }


@pytest.mark.parametrize("name", MIXERS)
def test_kept_elements_by_tensors(name: str) -> None:
    assert MIXERS[name].kept(LENGTH) == pytest.approx(sum(KEPT[name]), rel=1e-12)


@pytest.mark.parametrize("name", MIXERS)
def test_what_is_kept_was_written_and_is_read(name: str) -> None:
    """Every tensor is written once and read once or more: twice to four times what is kept."""
    mixer = MIXERS[name]
    assert 2.0 <= mixer.moved(LENGTH) / mixer.kept(LENGTH) <= 4.0


@pytest.mark.parametrize("quantity", ["kept", "moved"])
@pytest.mark.parametrize("name", MIXERS)
def test_no_wider_tensor_takes_less(name: str, quantity: str) -> None:
    mixer = MIXERS[name]
    before = getattr(mixer, quantity)(LENGTH)
    for size, value in sizes(mixer).items():
        wider = getattr(replace(mixer, **{size: value + 1}), quantity)(LENGTH)
        assert wider >= before, size


def delta(count: int, size: int, key: int, value: int) -> int:
    """Keys by keys, the inverse by values and by keys; queries by keys, those by values.

    Then the state that predicts values, adds to outputs, and is updated (arXiv 2412.06464).
    """
    triangles = size * size * (key + value + key + key + value)
    return count * (triangles + 3 * size * value * key)


MULTIPLIED: dict[str, tuple[Any, int, int]] = {
    # 100 tokens in chunks of 32: four of each head, the last one padded
    "lightning": (
        LightningAttention(heads=6, head_dim=16, chunk=32),
        100,
        6 * 4 * (2 * 32 * 32 * 16 + 2 * 32 * 16 * 16),
    ),
    "lightning of a short sequence": (
        LightningAttention(heads=6, head_dim=16, chunk=32),
        20,
        6 * 1 * (2 * 20 * 20 * 16 + 2 * 20 * 16 * 16),
    ),
    "gated delta rule": (
        GatedDelta(key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=12, chunk=64),
        100,
        delta(4 * 2, 64, 8, 12),
    ),
    "kimi delta": (MIXERS["kimi delta"], 100, delta(3 * 7, 16, 32, 32)),
    "matrix memory": (
        MIXERS["matrix memory"],
        100,
        3 * 7 * (16 * 16 * (20 + 28) + 2 * 16 * 28 * 20),
    ),
    # of 25 blocks of four tokens a query sees nine at most, or half of them; 100 of the window
    "compressed": (MIXERS["compressed"], 100, 2 * 3 * 100 * (100 + 9) * 32 + 2 * 100 * 25 * 6),
    "compressed, few blocks": (
        MIXERS["compressed"],
        40,
        2 * 3 * 40 * (40 + 5) * 32 + 2 * 40 * 10 * 6,
    ),
    "compressed, none picked": (
        replace(MIXERS["compressed"], picked=0, index_heads=0, window=64),
        104,
        2 * 3 * 104 * (64 + 13) * 32,
    ),
    # scores once for a group; what a chunk leaves; scores by inputs; what the state adds
    "mamba-2": (
        Mamba2(heads=6, head_dim=16, state_size=5, groups=2, chunk=32),
        100,
        4 * (2 * 32 * 32 * 5 + 6 * (16 * 5 * 32 + 32 * 16 * 32 + 32 * 16 * 5)),
    ),
    "short convolution": (MIXERS["short convolution"], 100, 0),
    "recurrence": (MIXERS["recurrence"], 100, 0),
}
"""A mixer, tokens of a sequence, and the products between its projections, of padded chunks."""


@pytest.mark.parametrize("name", MULTIPLIED)
def test_products_by_chunks(name: str) -> None:
    mixer, length, multiplied = MULTIPLIED[name]
    products = mixer.products(length)
    assert sum(x.count * x.m * x.n * x.k for x in products) == multiplied
