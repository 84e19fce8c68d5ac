"""Arithmetic of parallel degrees: their products, and what a number divides into."""

from __future__ import annotations

from typing import Any


def accelerators(tp: Any, pp: Any, cp: Any, dp: Any = 1) -> Any:
    """Accelerators that a layout of these degrees takes: tp x pp x cp of each replica, dp of them.

    Numbers or arrays; without `dp`, those of one replica of the model.
    """
    return dp * tp * pp * cp


def data_parallel_degree(gpus: int, tp: Any, pp: Any, cp: Any) -> Any:
    """Replicas of the model that `gpus` accelerators hold; 0 where not even one fits."""
    return gpus // accelerators(tp, pp, cp)


def divisors(number: int) -> list[int]:
    """List the divisors of a positive number, smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def odd_part(number: int) -> int:
    """Return what is left of a positive number without its factors of two.

    >>> odd_part(24), odd_part(64), odd_part(17)
    (3, 1, 17)
    """
    return number // (number & -number)
