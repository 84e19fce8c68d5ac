"""Log-normal totals against scipy."""

import pytest
from scipy.stats import lognorm, norm

from simulator.economics.planning_factor import Span, quantile


@pytest.mark.parametrize("chance", [0.01, 0.1, 0.5, 0.77, 0.9, 0.999])
def test_quantiles_and_chances(chance: float) -> None:
    span = Span(p50=40.0, log_spread=0.2)
    assert quantile(chance) == pytest.approx(norm.ppf(chance), abs=1e-9)
    assert span.at(chance) == pytest.approx(lognorm(s=0.2, scale=40.0).ppf(chance))
    assert span.chance_within(45.0) == pytest.approx(lognorm(s=0.2, scale=40.0).cdf(45.0))


def test_a_sure_total() -> None:
    span = Span(p50=3.0, log_spread=0.0)
    assert (span.p10, span.p90) == (3.0, 3.0)
    assert (span.chance_within(3.0), span.chance_within(2.9)) == (1.0, 0.0)
