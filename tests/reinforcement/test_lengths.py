"""Answers' lengths: means as given, caps kept, packing by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.rollouts.lengths import (
    answer_lengths,
    normal_quantiles,
    packed_bins,
    sequence_lengths,
)
from simulator.rollouts.rl_section import RL


def rl(**fields: object) -> RL:
    return RL(**{"prompts": 64, "samples": 32, "answer_tokens": 1000.0, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.8, 1.5])
@pytest.mark.parametrize("mean", [300.0, 1000.0, 3200.0])
def test_the_mean_is_the_one_that_was_given(mean: float, spread: float) -> None:
    lengths = answer_lengths(rl(answer_tokens=mean, spread=spread), 3968)
    assert lengths.mean() == pytest.approx(mean, rel=1e-6)
    assert lengths.max() <= 3968


def test_answers_end_at_the_longest_that_is_asked_for() -> None:
    """A window of 3,968 tokens leaves room for more than 2,000; it is no reason to write them."""
    short = answer_lengths(rl(longest_answer=2000, spread=1.5), 3968)
    assert short.max() == 2000.0 and short.mean() == pytest.approx(1000.0, rel=1e-6)
    assert answer_lengths(rl(longest_answer=8000, spread=1.5), 3968).max() == 3968.0
    given = rl(answer_tokens=None, answer_lengths=(100, 4000), longest_answer=2000)
    assert set(answer_lengths(given, 3968).ravel().tolist()) == {100.0, 2000.0}


def test_a_cap_near_the_mean_cuts_half_of_the_answers() -> None:
    """Public runs of Qwen3 with 8,192 tokens report 55 % at the cap (marin issue 8653)."""
    lengths = answer_lengths(rl(answer_tokens=5700.0), 8072)
    assert 0.35 < (lengths >= 8072).mean() < 0.65


def test_quantiles_of_the_normal_distribution() -> None:
    assert normal_quantiles(40)[38:].tolist() == pytest.approx([1.7805, 2.2414], abs=1e-3)


def test_answers_to_a_prompt_are_alike_as_far_as_asked() -> None:
    apart, alike = (
        np.log(answer_lengths(rl(between_prompts=share, answer_tokens=500.0), 100_000))
        for share in (0.1, 0.9)
    )
    assert apart.mean(axis=1).std() < 0.5 * alike.mean(axis=1).std()


def test_the_same_section_has_the_same_lengths() -> None:
    assert np.array_equal(answer_lengths(rl(), 3968), answer_lengths(rl(), 3968))


def test_a_list_of_lengths_is_spread_over_the_answers() -> None:
    lengths = answer_lengths(rl(answer_tokens=None, answer_lengths=(100, 200, 4000)), 2000)
    assert sorted(set(lengths.ravel().tolist())) == [100.0, 200.0, 2000.0]
    assert (lengths == 100.0).mean() == pytest.approx(1 / 3, abs=0.01)


def test_a_file_of_lengths(tmp_path: Path) -> None:
    log = tmp_path / "lengths.txt"
    log.write_text("100\n300\n")
    lengths = answer_lengths(rl(answer_tokens=None, answer_file=str(log)), 4000)
    assert lengths.mean() == pytest.approx(200.0)
    log.write_text("100\nmany\n")
    with pytest.raises(InputError, match=r"rl\.answer_file: must hold the tokens of an answer"):
        answer_lengths(rl(answer_tokens=None, answer_file=str(log)), 4000)


def test_sequences_hold_prompts_and_results_of_tools() -> None:
    lengths = sequence_lengths(rl(prompt_tokens=50, turns=3, tool_tokens=10), np.array([100.0]))
    assert lengths.tolist() == [170.0]


@pytest.mark.parametrize(
    ("lengths", "size", "bins"),
    [
        ([4.0] * 5, 4.0, 5),
        ([2.0] * 5, 4.0, 3),
        ([3.0, 1.0, 3.0, 1.0], 4.0, 2),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 5.0, 3),
    ],
)
def test_bins_by_hand(lengths: list[float], size: float, bins: int) -> None:
    assert packed_bins(np.array(lengths), size) == bins


def test_bins_hold_what_first_fit_decreasing_can_promise() -> None:
    """At most 11/9 of the least number and 6/9 more (Dosa 2007); never fewer than tokens need."""
    random = np.random.default_rng(7)
    for _ in range(20):
        lengths = random.integers(1, 1000, size=200).astype(float)
        least = lengths.sum() / 1000.0
        assert least <= packed_bins(lengths, 1000.0) <= 11 / 9 * np.ceil(least) + 30


@pytest.mark.parametrize("samples", [1, 2, 32])
@pytest.mark.parametrize("between", [0.0, 0.3, 1.0])
def test_lengths_of_few_and_of_many_answers_a_prompt_spread_as_asked(
    samples: int, between: float
) -> None:
    """Logarithms vary by the spread: a part of the variance between prompts, the rest within."""
    section = rl(prompts=256, samples=samples, spread=0.4, between_prompts=between)
    logs = np.log(answer_lengths(section, 10**9))
    assert logs.shape == (256, samples)
    parts = normal_quantiles(256).var(), normal_quantiles(samples).var() if samples > 1 else 0.0
    share = 1.0 if samples == 1 else between
    expected = 0.4**2 * (share * parts[0] + (1.0 - share) * parts[1])
    assert logs.var() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("words", ["", "12 0", "12 -3 40", "inf 5", "nan"])
def test_a_file_of_lengths_holds_numbers_above_zero(tmp_path: Path, words: str) -> None:
    (tmp_path / "log").write_text(words)
    with pytest.raises(InputError, match=r"rl\.answer_file: must hold numbers above 0"):
        answer_lengths(rl(answer_tokens=None, answer_file=str(tmp_path / "log")), 4000)


@pytest.mark.parametrize("seed", range(20))
def test_sequences_are_packed_one_by_one_into_the_fullest_bin_that_takes_them(seed: int) -> None:
    """Best fit of lengths in falling order (Johnson 1974), with a bin in hand for each."""
    random = np.random.default_rng(seed)
    size = int(random.integers(20, 200))
    lengths = random.integers(1, size + 1, random.integers(1, 400)) ** random.choice([1, 1, 0.7])
    lengths = np.ceil(lengths)
    bins: list[float] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [place for place, free in enumerate(bins) if free >= length]
        if not fitting:
            bins.append(float(size))
            fitting = [len(bins) - 1]
        bins[min(fitting, key=lambda place: bins[place])] -= length
    assert packed_bins(lengths, float(size)) == len(bins)
