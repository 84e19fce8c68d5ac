"""V-Half and V-Min: published memory and bubbles (Qi et al. 2024, arXiv 2405.15362)."""

from typing import Any

import numpy as np
import pytest

from simulator.schedules.action_tables import actions, in_flight
from simulator.schedules.schedule import BACKWARD_WEIGHT, KINDS

RANKS = [2, 3, 4, 5, 6, 7, 8, 12, 16, 24]


def bubble(play: Any, schedule: str, pp: int, m: int, seconds: tuple[float, ...]) -> float:
    """Idle time of a step, in seconds of a pass of one of two chunks."""
    table = actions(schedule, pp, m, 2)
    _, end = play(table, *([x] * (2 * pp) for x in seconds))
    return float(end.max() - 2 * m * sum(seconds))


def test_v_min_of_three_ranks() -> None:
    """Building block of table 8 for d = 3, written out: F 0 1 2 | 3 4 5, loss 3 later, B 8 9 10 |
    11 12 13 for ranks 0 1 2 and 2 1 0, every 6; never more than four chunk passes held."""
    table = actions("v_min", 3, 2, 2)
    columns = (table.kind, table.micro_batch, table.chunk)
    of_last = [column[table.rank == 2].tolist() for column in columns]
    words = [f"{KINDS[k]}{batch}@{chunk}" for k, batch, chunk in zip(*of_last, strict=True)]
    assert [word for word in words if word[0] != "W"] == [
        "F0@0", "F0@1", "F1@0", "F1@1", "I0@1", "I0@0", "I1@1", "I1@0",
    ]  # fmt: skip


@pytest.mark.parametrize("pp", RANKS)
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_v_half_takes_half_of_1f1bs_bubble(pp: int, rounds: int, play: Any) -> None:
    """Bubble rate B/2 where all passes take as long (README of the authors' repository, comparison
    of schedules); 1F1B idles (p - 1)(F + I + W), of which a pass of a chunk is a sixth."""
    wanted = (pp - 1) * 6 / 2
    idle = bubble(play, "v_half", pp, rounds * pp, (1.0, 1.0, 1.0))
    assert idle == wanted - pp % 2


@pytest.mark.parametrize("pp", RANKS)
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_v_min_takes_two_thirds_of_1f1bs_bubble(pp: int, rounds: int, play: Any) -> None:
    # the same: 2B/3; the building block is a pass longer where p divides by three (table 8)
    idle = bubble(play, "v_min", pp, rounds * pp, (1.0, 1.0, 1.0))
    assert abs(idle - (pp - 1) * 6 * 2 / 3) == 1


@pytest.mark.parametrize("pp", [4, 7, 8, 16])
def test_only_v_mins_bubble_grows_where_passes_are_unlike(pp: int, play: Any) -> None:
    # figure 5: passes of 3, 4 and 2
    half, least = (
        [bubble(play, word, pp, rounds * pp, (3.0, 4.0, 2.0)) for rounds in (2, 4, 8)]
        for word in ("v_half", "v_min")
    )
    assert half[0] == half[1] == half[2]
    assert least[2] - least[1] == pytest.approx(2 * (least[1] - least[0]))
    assert least[1] > least[0]


@pytest.mark.parametrize("pp", [*RANKS, 48])
@pytest.mark.parametrize(("schedule", "share"), [("v_half", 1 / 2), ("v_min", 1 / 3)])
def test_published_memory(schedule: str, share: float, pp: int) -> None:
    """Table 1: M/2 and M/3 asymptotically, M being 1F1B's p micro-batches of two chunks each.

    The constant is what rounding of lifespans up to intervals adds, one on each of two chunks
    (equation 1), and what the turns of the building block add.
    """
    held = in_flight(schedule, pp, 2 * pp, 2).sum(axis=1)
    assert share * 2 * pp <= held.max() <= share * 2 * pp + 8 / 3
    assert held.max() <= 2 * in_flight("1f1b", pp, 2 * pp).max()


@pytest.mark.parametrize("schedule", ["v_half", "v_min"])
@pytest.mark.parametrize("pp", RANKS)
def test_memory_is_even_over_the_ranks(schedule: str, pp: int) -> None:
    # section 3: what the V is for; 1F1B's first rank holds p times as much as its last
    held = in_flight(schedule, pp, 4 * pp, 2).sum(axis=1)
    assert held.max() - held.min() <= 2


@pytest.mark.parametrize("schedule", ["v_half", "v_min"])
@pytest.mark.parametrize(("pp", "m"), [(2, 1), (3, 2), (5, 3), (8, 5), (7, 40)])
def test_every_pass_comes_after_what_it_takes(schedule: str, pp: int, m: int, play: Any) -> None:
    table = actions(schedule, pp, m, 2)
    assert len(table) == 3 * 2 * pp * m
    _, end = play(table, *([1.0] * (2 * pp) for _ in range(3)))
    assert end.max() >= 6 * m
    weights = table.kind == BACKWARD_WEIGHT
    key = (table.micro_batch * 2 * pp + table.piece)[weights]
    assert len(np.unique(key)) == 2 * pp * m
