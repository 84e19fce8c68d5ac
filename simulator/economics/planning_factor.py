"""What published trainings took over their prediction: the planning factor, and a total beyond it.

The hours of a run as predicted hold the step and what failures, checkpoints and slow steps take.
Those of a whole run as reported hold more: attempts that were given up, evaluation, bring-up,
longer contexts, slower layouts and software than are planned. How much, is learnt from trainings
whose GPU-hours were published (``workshop/fits/planning_factor.py``).
"""

from __future__ import annotations

from functools import lru_cache
from math import erf, exp, inf, log, sqrt
from typing import ClassVar

from simulator import catalogue
from simulator.files import Figure, Number, Whole, read_profile, record
from simulator.records import dataclass

HELD = "restarts, evaluation, lost runs, software"
"""What reported hours hold on top."""


@record
class TakenOnTop:
    """What runs of one kind took: a log-normal factor on the predicted hours."""

    factor: Figure
    """The median; its spread is the standard deviation of the logarithm of a further run."""
    runs: Whole
    """Of which it was learnt."""
    least_gpu_hours: Number
    most_gpu_hours: Number
    """Of these runs, as reported."""
    step_spread: Number
    """Standard deviation of the logarithm of their steps as predicted, which the spread holds."""


@record
class PublishedRuns:
    """Planning factors, as hardware_profiles/planning_factors/NAME.toml gives them."""

    name: str
    whole_run: TakenOnTop
    """Hours as reported, whatever they hold."""
    steady_rate: TakenOnTop
    """Tokens over a measured rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanningFactor:
    """What to multiply days and money of a run by; P10 and P90 hold the errors of its step."""

    KEYS: ClassVar[tuple[str, ...]] = ("value", "p10", "p90", "from=runs", "kind")

    value: float
    p10: float
    p90: float
    runs: int
    kind: str
    step_spread: float
    """Standard deviation of the logarithm of a step time that P10 and P90 hold already."""
    most_gpu_hours: float = 0.0
    least_gpu_hours: float = 0.0
    """Of the runs it was learnt of."""

    def sentence(self, gpu_hours: float | None = None) -> str:
        """Say what it is and of which runs; `gpu_hours` are those that are planned."""
        words = (
            f"x {self.value:.2f} ({self.p10:.2f} to {self.p90:.2f}), which {self.runs} published"
            f" runs took on top: {HELD}"
        )
        if gpu_hours is not None and gpu_hours < 0.1 * self.least_gpu_hours:
            words += "; all of them were far longer than this one"
        return words


def interval(factor: float, log_spread: float, runs: int) -> tuple[float, float]:
    """P10 and P90 of the factor of a further run, by Student's t.

    The quantile is that of the normal distribution and two terms of its expansion by the degrees of
    freedom (Abramowitz and Stegun, 26.7.5).

    Examples
    --------
    Of ten runs, t of nine degrees of freedom is 1.383:

    >>> from math import log
    >>> low, high = interval(1.0, 0.3, 10)
    >>> round(log(high) / 0.3, 2), round(low * high, 6)
    (1.38, 1.0)
    """
    x, free = quantile(0.9), runs - 1
    student = (
        x + (x**3 + x) / (4.0 * free) + (5.0 * x**5 + 16.0 * x**3 + 3.0 * x) / (96.0 * free**2)
    )
    return factor * exp(-student * log_spread), factor * exp(student * log_spread)


@lru_cache(maxsize=1)
def planning_factor() -> PlanningFactor:
    """Return what whole runs took on top."""
    path = catalogue.find("planning_factors", "published")
    runs: PublishedRuns = read_profile(PublishedRuns, path, kind="planning_factors")
    top = runs.whole_run
    low, high = interval(float(top.factor), float(top.factor.spread or 0.0), int(top.runs))
    return PlanningFactor(
        value=float(top.factor),
        p10=low,
        p90=high,
        runs=int(top.runs),
        kind="whole run",
        step_spread=float(top.step_spread),
        least_gpu_hours=float(top.least_gpu_hours),
        most_gpu_hours=float(top.most_gpu_hours),
    )


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


@lru_cache(maxsize=64)
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
