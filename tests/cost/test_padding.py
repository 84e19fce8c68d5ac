"""Sequences of unequal length: packed, padded to the maximum, dynamically, and sorted by length."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from simulator.cost.blocks.block_costs import padded_lengths
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InputError
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.scenario import make_scenario
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

LENGTHS = (256, 512, 1024, 4096)
MEAN = 1472
CORE, H100 = load_software("megatron-core"), load_cluster("dgx-h100", 1)


def recipe(**given: Any) -> Recipe:
    return Recipe(**{"sequence_length": 4096, "global_batch": 8, **given})


def run(micro_batch: int = 1, **given: Any) -> Estimate:
    how = recipe(**given)
    table = Layouts.of(micro_batch=micro_batch, global_batch=how.global_batch)
    work = Workload(architecture=presets.load("llama-3.2-1b"), recipe=how)
    return evaluate(table, work, H100, CORE)


# --- how long micro-batches are -----------------------------------------------------------------


@pytest.mark.parametrize("b", [1, 2, 3])
def test_the_longest_of_a_micro_batch(b: int) -> None:
    """Against all draws of b of the four lengths, written out."""
    given = recipe(lengths=(1024, 256, 4096, 512), batching="dynamic")
    lengths, shares = padded_lengths(given, np.array([float(b)]))
    longest = [max(draw) for draw in product(LENGTHS, repeat=b)]
    assert lengths.tolist() == list(LENGTHS)
    assert shares[0] == pytest.approx([longest.count(x) / len(longest) for x in LENGTHS])


@pytest.mark.parametrize("b", [1, 3])
def test_lengths_with_shares_are_those_drawn_so_often(b: int) -> None:
    """Shares of 1/4, 1/4 and 1/2 are four lengths of which two are alike."""
    shared = recipe(lengths=(4096, 256, 512), length_shares=(0.5, 0.25, 0.25), batching="dynamic")
    listed = recipe(lengths=(4096, 4096, 256, 512), batching="dynamic")
    lengths, shares = padded_lengths(shared, np.array([float(b)]))
    _, four = padded_lengths(listed, np.array([float(b)]))
    assert lengths.tolist() == [256, 512, 4096]
    assert shares[0] == pytest.approx([four[0, 0], four[0, 1], four[0, 2] + four[0, 3]])
    assert shared.tokens_per_step == listed.tokens_per_step == 8 * 2240
    assert dict(shared.sequences)[4096] == pytest.approx(2 * dict(listed.sequences)[4096])


def test_sorted_micro_batches_are_as_long_as_their_sequences() -> None:
    lengths, shares = padded_lengths(recipe(lengths=LENGTHS, batching="sorted"), np.array([8.0]))
    assert float(lengths @ shares[0]) == MEAN


def test_padding_to_the_maximum() -> None:
    lengths, shares = padded_lengths(recipe(lengths=LENGTHS, batching="padded"), np.array([8.0]))
    assert (lengths.tolist(), shares.tolist()) == ([4096.0], [[1.0]])


# --- what a step costs --------------------------------------------------------------------------


def test_lengths_that_are_all_equal_change_nothing() -> None:
    usual = run(micro_batch=2)
    for batching in ("packed", "padded", "dynamic", "sorted"):
        found = run(micro_batch=2, lengths=(4096, 4096), batching=batching)
        assert found.step_time_s == pytest.approx(usual.step_time_s, rel=1e-12)
        assert found.memory_total_bytes == usual.memory_total_bytes
        assert found.model_flop == pytest.approx(usual.model_flop, rel=1e-12)


def test_padding_to_the_maximum_costs_the_maximum() -> None:
    assert run(lengths=LENGTHS, batching="padded").step_time_s == pytest.approx(run().step_time_s)


@pytest.mark.parametrize("term", ["gemm", "attention", "memory_bound"])
def test_micro_batches_of_one_are_never_padded(term: str) -> None:
    """The mean of four runs, each with sequences of one of the lengths."""
    apart = [float(run(sequence_length=n).terms_s[term][0]) for n in LENGTHS]
    for batching in ("dynamic", "sorted"):
        found = float(run(lengths=LENGTHS, batching=batching).terms_s[term][0])
        assert found == pytest.approx(sum(apart) / 4, rel=1e-9)


def test_dynamic_lies_between_sorted_and_padded() -> None:
    times = [
        float(run(micro_batch=4, lengths=LENGTHS, batching=x).step_time_s[0])
        for x in ("sorted", "dynamic", "padded")
    ]
    assert times[0] < times[1] < times[2]


def test_memory_is_that_of_the_longest() -> None:
    usual = run(micro_batch=2).memory_total_bytes
    for batching in ("padded", "dynamic", "sorted"):
        found = run(micro_batch=2, lengths=LENGTHS, batching=batching)
        assert found.memory_total_bytes == usual


def test_packed_sequences_attend_to_themselves() -> None:
    """Half the sum of squares: a token of length l meets l / 2 keys, and most tokens stand in the
    longest."""
    usual, packed = run(), run(lengths=LENGTHS)
    for term in ("gemm", "memory_bound"):
        assert packed.terms_s[term][0] == usual.terms_s[term][0]
    pairs = sum(n * n for n in LENGTHS) / sum(LENGTHS) / 4096
    per_token = 2 * 2 * 16 * 2048 * (4096 / 2)  # two products, 16 layers of 32 heads of 64
    expected = 3 * per_token * 8 * 4096 * (1 - pairs)
    assert usual.model_flop - packed.model_flop == pytest.approx(expected, rel=1e-9)
    assert packed.terms_s["attention"][0] < usual.terms_s["attention"][0]


@pytest.mark.parametrize(("batching", "tokens"), [("packed", 8 * 4096), ("dynamic", 8 * MEAN)])
def test_padding_is_no_token(batching: str, tokens: int) -> None:
    assert recipe(lengths=LENGTHS, batching=batching).tokens_per_step == tokens


def test_alone_and_beside_others_cost_the_same() -> None:
    how = recipe(lengths=LENGTHS, batching="dynamic")
    work = Workload(architecture=presets.load("llama-3.2-1b"), recipe=how)
    sizes = [1, 2, 4]
    table = evaluate(Layouts.of(micro_batch=sizes, global_batch=8), work, H100, CORE)
    for i, size in enumerate(sizes):
        alone = evaluate(Layouts.of(micro_batch=size, global_batch=8), work, H100, CORE)
        assert table.step_time_s[i] == pytest.approx(alone.step_time_s[0], rel=1e-12)


# --- from the scenario --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lengths": [100, 9000]}, "training.lengths: must be at most sequence_length = 4096"),
        ({"lengths": []}, "training.lengths"),
        ({"lengths": [0]}, "training.lengths.0: "),
        ({"batching": "bucketed"}, "training.batching: must be 'packed', 'padded', 'dynamic'"),
    ],
)
def test_wrong_values(given: dict[str, Any], message: str) -> None:
    document = {
        "model": {"name": "llama-3.2-1b"},
        "training": {"sequence_length": 4096, "global_batch": 8, **given},
        "cluster": {"name": "dgx-h100", "gpus": 1},
    }
    with pytest.raises(InputError) as caught:
        make_scenario(document)
    assert message in str(caught.value)
