"""Rankings worked by hand: which pairs count, what picking the predicted best costs."""

from __future__ import annotations

import pytest

from simulator.scoring.rankings import kendall_tau, ranking, ranking_statistics, regret


def test_tau_counts_pairs_that_differ_by_more_than_3_percent() -> None:
    measured = [1.0, 1.02, 1.5, 2.0]  # five pairs of six; 1.0 and 1.02 are a tie
    assert kendall_tau(measured, measured) == (5, 1.0)
    assert kendall_tau([-x for x in measured], measured) == (5, -1.0)
    assert kendall_tau([1.0, 1.0, 1.0, 1.0], measured) == (5, 0.0)
    assert kendall_tau([1.0, 1.6, 1.5, 2.0], measured) == (5, 0.6)  # 1.02 and 1.5 are swapped


def test_the_bound_of_3_percent_is_itself_a_tie() -> None:
    assert kendall_tau([1.0, 2.0], [100.0, 103.0]) == (0, None)
    assert kendall_tau([1.0, 2.0], [100.0, 103.1]) == (1, 1.0)


def test_regret_by_hand() -> None:
    assert regret([1.0, 2.0, 3.0], [5.0, 4.0, 6.0]) == pytest.approx(0.25)
    assert regret([2.0, 1.0, 3.0], [5.0, 4.0, 6.0]) == 0.0
    assert regret([1.0, 1.0, 1.0], [4.0, 5.0, 6.0]) == pytest.approx(0.25)  # blind: the mean


def test_repeats_of_a_layout_count_once_and_five_layouts_are_needed() -> None:
    measured = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
    found = ranking("g", list("abcdee"), [1.0, 2.0, 3.0, 4.0, 0.5, 0.5], measured)
    assert found is not None
    assert (found["group"], found["n"], found["pairs"]) == ("g", 5, 10)
    assert found["kendall_tau"] == pytest.approx((6 - 4) / 10)
    assert found["regret"] == pytest.approx(5.0)  # picks e: 6.0 on average, best is 1.0
    assert ranking("g", list("abcddd"), measured, measured) is None


def test_several_rankings_are_summed_up_by_their_medians() -> None:
    taus, regrets = [0.9, -0.5, 0.7, None], [0.0, 0.4, 0.1, 0.2]
    groups = [{"kendall_tau": t, "regret": r} for t, r in zip(taus, regrets, strict=True)]
    found = ranking_statistics(groups)
    assert (found["groups"], found["median_tau"], found["worst_regret"]) == (4, 0.7, 0.4)
    assert found["median_regret"] == pytest.approx(0.15)
    assert ranking_statistics([]) == {
        "groups": 0,
        "median_tau": None,
        "median_regret": None,
        "worst_regret": None,
    }
