"""Steps of Gauss-Newton: exact on squares, at bounds, and with errors that weigh less."""

from typing import Any

import numpy as np
import pytest

from workshop.fits.fitting.gauss_newton import Descent, descend

SOFT = 0.04
FREE = 1e9


def solved(slopes: Any, intercepts: Any, *, low: float = -FREE, high: float = FREE) -> Descent:
    """Descent for errors ``intercepts + slopes x`` from the prior."""
    ends = (np.full(slopes.shape[1], low), np.full(slopes.shape[1], high))
    return descend(
        lambda at: intercepts + slopes @ at,
        lambda at, errors: slopes,
        np.zeros(slopes.shape[1]),
        ends,
        soft=SOFT,
    )


def test_one_step_is_exact_where_the_loss_is_a_square() -> None:
    # one row, which a width moves by 0.2: the least of ((0.02 + 0.2 x) / soft)^2 + x^2
    found = solved(np.array([[0.2]]), np.array([0.02]))
    assert found.at == pytest.approx([-0.2 * 0.02 / (0.2**2 + SOFT**2)], rel=0.05)


def test_a_step_that_gains_next_to_nothing_is_not_taken() -> None:
    found = solved(np.array([[1e-6]]), np.array([1e-3]))
    assert found.at == pytest.approx([0.0])


def test_a_parameter_stops_at_its_bound_and_the_others_go_on() -> None:
    # both move one row each by 0.4; the first would go to -1, which its bound forbids
    slopes, intercepts = np.diag([0.4, 0.4]), np.array([0.4, 0.1])
    found = descend(
        lambda at: intercepts + slopes @ at,
        lambda at, errors: slopes,
        np.zeros(2),
        (np.array([-0.5, -9.0]), np.array([9.0, 9.0])),
        soft=SOFT,
    )
    assert found.at[0] == -0.5
    assert found.errors[1] == pytest.approx(0.0, abs=0.004)


def test_a_row_far_off_pulls_no_harder_than_one_near() -> None:
    # the same parameter moves five good rows and one that nothing explains
    slopes, intercepts = np.full((6, 1), 0.1), np.array([0.0] * 5 + [3.0])
    found = solved(slopes, intercepts)
    squares = -0.1 * 3.0 / (6 * 0.01 + SOFT**2)
    assert abs(found.at[0]) < 0.1 * abs(squares)


def test_a_step_too_long_is_shortened() -> None:
    # the error turns where a straight line would not: |x| grows again beyond the minimum
    found = descend(
        lambda at: np.array([np.expm1(3.0 * at[0]) - 2.0]),
        lambda at, errors: np.array([[3.0 * np.exp(3.0 * at[0])]]),
        np.array([-1.0]),
        (np.array([-FREE]), np.array([FREE])),
        soft=0.5,
    )
    assert found.at[0] == pytest.approx(np.log(3.0) / 3.0, abs=0.05)
