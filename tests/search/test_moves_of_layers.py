"""Pieces of a pipeline that may give a layer to one another."""

from __future__ import annotations

from itertools import permutations

import pytest

from simulator.search.neighbours import _single_moves


@pytest.mark.parametrize("pieces", [2, 3, 12])
def test_of_few_pieces_any_gives_to_any(pieces: int) -> None:
    moves = [move for (move,) in _single_moves(pieces, 2)]
    assert sorted(moves) == sorted(permutations(range(pieces), 2))


@pytest.mark.parametrize(("pieces", "pp"), [(13, 13), (24, 8), (30, 5)])
def test_of_many_to_the_next_one_to_that_of_the_same_rank_and_to_the_ends(
    pieces: int, pp: int
) -> None:
    moves = [move for (move,) in _single_moves(pieces, pp)]
    ends = {0, pieces - 1}
    assert sorted(moves) == sorted(
        (a, b)
        for a in range(pieces)
        for b in range(pieces)
        if a != b and (b - a in (1, -1, pp, -pp) or a in ends or b in ends)
    )
