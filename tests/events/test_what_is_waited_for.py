"""What an action waits for in vain, in words: first, middle and last piece."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.events.step.programs import program
from simulator.schedules.schedule import KINDS


@pytest.mark.parametrize(
    ("kind", "piece", "missing", "words"),
    [
        ("F", 1, ("F", 0), "forward pass F1 of piece 0"),
        ("F", 2, ("F", 1), "forward pass F1 of piece 1"),
        ("B", 2, ("F", 2), "forward pass F1 of piece 2"),
        ("B", 1, ("B", 2), "backward pass B1 or I1 of piece 2"),
        ("B", 0, ("B", 1), "backward pass B1 or I1 of piece 1"),
    ],
)
def test_a_pass_that_nobody_lists_is_named(
    kind: str, piece: int, missing: tuple[str, int], words: str
) -> None:
    """Three ranks, two micro-batches: one pass of the second is left out of GPipe's."""
    made = program("gpipe", 3, 2)

    def at(letter: str, place: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        kinds = np.array([KINDS[number] for number in made.kind])
        return np.asarray((kinds == letter) & (made.piece == place) & (made.micro_batch == 1))

    kept = ~at(*missing)
    assert at(kind, piece).sum() == 1 and kept.sum() == len(made) - 1
    names = ("rank", "kind", "micro_batch", "chunk", "piece", "with_next")
    less = replace(made, **{name: getattr(made, name)[kept] for name in names})
    with pytest.raises(InputError, match=rf"waits for the {words}, which no rank lists"):
        _ = less.awaited
