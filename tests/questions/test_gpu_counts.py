"""Counts as they are typed, and which of them a batch can be split over."""

import pytest

from simulator.errors import InputError
from simulator.questions.compare.gpu_counts import batch_divides, ladder, next_good, parse_counts
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload


def workload(batch: int) -> Workload:
    recipe = Recipe(sequence_length=4096, global_batch=batch)
    return Workload(architecture=presets.load("llama-3.1-70b"), recipe=recipe)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("512", [512]),
        ("64..4096", [64, 128, 256, 512, 1024, 2048, 4096]),
        ("64..100", [64, 100]),
        ("128..256:64,136", [128, 136, 192, 256]),
        ("8..11:1", [8, 9, 10, 11]),
        ("8..8", [8]),
        ("8,8", [8]),
    ],
)
def test_counts(text: str, counts: list[int]) -> None:
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["", "x", "64..", "0", "9..8", "1..9:0", "-8", "1..16777216:1"])
def test_wrong_counts(text: str) -> None:
    with pytest.raises(InputError, match="--gpus"):
        parse_counts(text)


def test_a_ladder_has_whole_servers() -> None:
    assert ladder(8, 72, 8, per_octave=4) == [8, 16, 24, 32, 40, 48, 56, 64]


@pytest.mark.parametrize(
    ("gpus", "batch", "divides", "good"),
    [
        (128, 2048, True, 136),  # next sizes are asked of 128 below
        (136, 2048, False, 160),  # 17 divides neither batch, 80 layers nor 64 heads; 144 has 9
        (160, 2048, True, 256),  # 5 stages leave 32
        (24, 2048, False, 32),
        (24, 1536, True, 32),
    ],
)
def test_sizes_by_hand(gpus: int, batch: int, divides: bool, good: int) -> None:
    assert batch_divides(workload(batch), gpus, 16) == divides
    if not divides:
        assert next_good(workload(batch), gpus, per_server=8, largest_tp=16) == good


@pytest.mark.parametrize(("largest_tp", "divides"), [(8, False), (16, True), (64, True)])
def test_the_largest_tensor_parallelism_counts(largest_tp: int, divides: bool) -> None:
    """One sequence for 256 GPUs: 16 of the 64 heads' divisors times 16 of the 80 layers'."""
    assert batch_divides(workload(1), 256, largest_tp) == divides
