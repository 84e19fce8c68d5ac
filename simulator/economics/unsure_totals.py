"""A total that is not sure: its median, P10 and P90, and the chance that it stays below a limit.

Errors of steps, prices and powers are of the logarithm, and so is what they give together.
"""

from __future__ import annotations

from math import erf, exp, inf, log, sqrt
from typing import ClassVar

from simulator.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A log-normal total: days, USD, kWh.

    Examples
    --------
    >>> span = Span(p50=100.0, log_spread=0.1)
    >>> round(span.p10, 1), round(span.p90, 1), span.chance_within(100.0)
    (88.0, 113.7, 0.5)
    """

    KEYS: ClassVar[tuple[str, ...]] = ("p10", "p50", "p90")

    p50: float
    """The median."""
    log_spread: float
    """Standard deviation of the logarithm."""

    @property
    def p10(self) -> float:
        """What is undercut with a chance of one in ten."""
        return self.at(0.1)

    @property
    def p90(self) -> float:
        """What is exceeded with a chance of one in ten."""
        return self.at(0.9)

    def at(self, chance: float) -> float:
        """Return the value that is not exceeded with this chance, above 0 and below 1."""
        return self.p50 * exp(quantile(chance) * self.log_spread)

    def chance_within(self, limit: float) -> float:
        """Return the chance that the total does not exceed a limit."""
        if self.log_spread <= 0.0:
            return float(self.p50 <= limit)
        return 0.5 * (1.0 + erf(log(limit / self.p50) / (self.log_spread * sqrt(2.0))))


UNKNOWN = dict.fromkeys(Span.KEYS)
"""What JSON says of a total that is not known."""


def quantile(chance: float) -> float:
    """Return the quantile of a standard normal distribution, by bisection of its integral.

    Examples
    --------
    >>> round(quantile(0.9), 6), round(quantile(0.1), 6)
    (1.281552, -1.281552)
    """
    if not 0.0 < chance < 1.0:
        return inf if chance >= 1.0 else -inf
    low, high = -40.0, 40.0
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        below = 0.5 * (1.0 + erf(middle / sqrt(2.0))) < chance
        low, high = (middle, high) if below else (low, middle)
    return 0.5 * (low + high)
