"""What spreads tokens over experts, and how full the fullest rank is then."""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Literal

from simulator import catalogue
from simulator.files import Figure, read_profile, record

Routing = Literal["forced", "balanced", "adapting", "unbalanced", "random"]


@record
class ExpertRouting:
    """``hardware_profiles/expert_routing.toml``."""

    name: str
    hot_share: dict[Routing, Figure]
    """Share of a layer's picks that goes to the same experts whatever the token."""
    kept_excess: Figure
    """What a rank keeps above the mean over a stage's layers, over what the fullest rank of a layer
    computes above it."""


@lru_cache(maxsize=1)
def load_expert_routing() -> ExpertRouting:
    """Read ``hardware_profiles/expert_routing.toml``."""
    path = catalogue.folder("hardware_profiles") / "expert_routing.toml"
    return read_profile(ExpertRouting, path)


@lru_cache(maxsize=4096)
def alike_load(experts: int, picks: int, ranks: int) -> float:
    """What the fullest rank has over the mean where all tokens pick the same experts.

    Of E experts on n ranks k are drawn at random; the fullest rank has the largest number of them,
    of which the mean is k / n. ``P(largest <= m)`` is the coefficient of ``x^k`` in
    ``(sum_(i <= m) C(E / n, i) x^i)^n``, over ``C(E, k)``.

    Examples
    --------
    >>> [round(alike_load(128, 8, ranks), 2) for ranks in (1, 8, 16)]
    [1.0, 2.53, 3.96]
    """
    size = experts // ranks
    whole, mean = comb(experts, picks), 0.0
    for most in range(min(size, picks)):  # E[largest] = sum of P(largest > m)
        ways = [comb(size, i) if i <= most else 0 for i in range(picks + 1)]
        mean += 1.0 - _power(ways, ranks)[picks] / whole
    return mean * ranks / picks


def _power(series: list[int], exponent: int) -> list[int]:
    """A power of a polynomial, cut behind its last coefficient."""
    if exponent == 1:
        return series
    half = _power(series, exponent // 2)
    squared = _product(half, half)
    return _product(squared, series) if exponent % 2 else squared


def _product(left: list[int], right: list[int]) -> list[int]:
    return [sum(left[i] * right[n - i] for i in range(n + 1)) for n in range(len(left))]
