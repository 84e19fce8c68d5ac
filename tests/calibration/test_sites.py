"""Sites with rates of their own: what they have in common counts, not how many rows each has."""

import numpy as np
import pytest

from simulator.calibration.gauss_newton import descend
from simulator.calibration.sites import SPREAD, Site, at_site, settled, site_columns, sites
from simulator.calibration.training_parameters import PARAMETERS

RATE = "a100_rate"
FAMILIES = ["many"] * 100 + ["few"] * 10
WIDTH = PARAMETERS[RATE].prior.width


def test_a_deviation_multiplies_the_rate_of_its_site_alone() -> None:
    known = (Site(RATE, "many"), Site("h100_rate", "many"), Site(RATE, "few"))
    values = {RATE: 0.8, "h100_rate": 0.7, "a100_stream": 0.6}
    found = at_site(values, "many", known, np.array([1.0, 0.0, -2.0]))
    assert found == pytest.approx({**values, RATE: 0.8 * np.exp(SPREAD)})
    assert values[RATE] == 0.8


def test_sites_are_sources_that_a_rate_reaches() -> None:
    reached: dict[str, list[int]] = {name: [] for name in PARAMETERS}
    found = sites(FAMILIES, {**reached, RATE: [0, 1, 105], "a100_stream": [3]})
    assert found == (Site(RATE, "few"), Site(RATE, "many"))


def test_a_hundred_rows_of_one_site_count_as_one_site() -> None:
    """One site is 5 % slow in a hundred rows, the other 5 % fast in ten; errors of 1 % weigh."""
    slopes = np.zeros((110, len(PARAMETERS)))
    slopes[:, list(PARAMETERS).index(RATE)] = -WIDTH  # a faster rate shortens the step
    known = (Site(RATE, "many"), Site(RATE, "few"))
    columns = site_columns(slopes, FAMILIES, known)
    assert columns[0].tolist() == pytest.approx([-SPREAD, 0.0])
    measured = np.where(np.array(FAMILIES) == "many", -0.05, 0.05)

    def common_rate(steep: np.ndarray) -> float:
        ends = np.full(steep.shape[1], -20.0), np.full(steep.shape[1], 20.0)
        found = descend(lambda at: measured + steep @ at, lambda at, errors: steep,
                        np.zeros(steep.shape[1]), ends, soft=0.04)  # fmt: skip
        return float(found.at[0]) * WIDTH

    rate = slopes[:, [list(PARAMETERS).index(RATE)]]
    alone, with_sites = common_rate(rate), common_rate(np.hstack([rate, columns]))
    assert alone < -0.035
    assert abs(with_sites) < 0.01


def test_sites_settle_where_nothing_else_moves() -> None:
    """Least squares with one square for the prior: n e c / (n c^2 + s^2), s the soft error."""
    errors, column = np.full(50, 1e-6), np.full((50, 1), 0.02)
    (offset,) = settled(errors, column, 0.04)
    assert offset == pytest.approx(-50 * 1e-6 * 0.02 / (50 * 0.02**2 + 0.04**2), rel=1e-4)
