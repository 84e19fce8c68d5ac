"""Numbers of releases that are dates, and months between them."""

from __future__ import annotations

import pytest

from simulator.software.releases import Nearest, Release


@pytest.mark.parametrize(
    ("number", "months"),
    [
        ((26, 4), 12 * 2026 + 4), ((2024, 12), 12 * 2024 + 12), ((15, 1), 12 * 2015 + 1),
        ((14, 12), None), ((2014, 12), None), ((99, 12), 12 * 2099 + 12), ((100, 1), None),
        ((2099, 12), 12 * 2099 + 12), ((2100, 1), None), ((26, 0), None), ((26, 13), None),
        ((26,), None), ((26, 4, 7), 12 * 2026 + 4), ((0, 9), None), ((2, 11), None),
    ],
)  # fmt: skip
def test_a_number_that_is_a_month(number: tuple[int, ...], months: int | None) -> None:
    assert Release(family="x", number=number).months == months


def test_a_word_that_is_known_needs_no_other() -> None:
    assert Nearest(word="x-1", known="x-1", profile="x").text is None
    assert Nearest(word="x-2", known="x-1", profile="x").text == "x-1 for x-2"
