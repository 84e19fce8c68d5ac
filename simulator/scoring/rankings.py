"""Whether the right layout is called fastest: Kendall's tau and regret of groups of layouts.

A group is runs that differ in nothing but the layout. Plain numbers in, plain numbers out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

TIE = 0.03
"""Measured times that differ by no more than this cannot be told apart; nor can their order."""

FEWEST_LAYOUTS = 5
"""Layouts that a group needs before its ranking is worth a number."""


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> tuple[int, float | None]:
    """Count pairs whose order can be told, and how well they are ordered.

    Only pairs whose measured times differ by more than `TIE` count. Tau is right pairs less wrong
    pairs over all that count; a pair that is predicted equal is neither right nor wrong.

    Returns
    -------
    pairs : int
    tau : float or None
        1: every pair in the right order; -1: every pair reversed; None: no pair counts.

    Examples
    --------
    Two pairs of three are in the right order; then one of them is too close to count:

    >>> kendall_tau([1.0, 3.0, 2.0], [1.0, 2.0, 3.0])
    (3, 0.3333333333333333)
    >>> kendall_tau([1.0, 3.0, 2.0], [1.0, 2.0, 2.05])
    (2, 1.0)
    """
    pairs, score = 0, 0
    for i, j in combinations(range(len(measured)), 2):
        low, high = sorted((measured[i], measured[j]))
        if high <= low * (1.0 + TIE):
            continue
        pairs += 1
        right = (measured[i] - measured[j]) * (predicted[i] - predicted[j])
        score += (right > 0) - (right < 0)
    return pairs, (score / pairs if pairs else None)


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """What picking the predicted best costs: its measured time over the measured best, minus 1.

    Layouts that are predicted equally fast count with the mean of their measured times.

    Examples
    --------
    >>> round(regret([1.0, 1.2, 1.1], [2.2, 2.0, 3.0]), 3)
    0.1
    """
    best = min(predicted)
    chosen = [time for guess, time in zip(predicted, measured, strict=True) if guess <= best]
    return float(np.mean(chosen)) / min(measured) - 1.0


def ranking(
    group: str, layouts: Sequence[Hashable], predicted: Sequence[float], measured: Sequence[float]
) -> dict[str, Any] | None:
    """Score the ranking of one group of runs that differ in nothing but the layout.

    A layout that was measured more than once counts once, with the mean of its times. None if
    fewer than `FEWEST_LAYOUTS` are left.
    """
    times: dict[Hashable, list[tuple[float, float]]] = {}
    for layout, guess, time in zip(layouts, predicted, measured, strict=True):
        times.setdefault(layout, []).append((guess, time))
    if len(times) < FEWEST_LAYOUTS:
        return None
    means = np.array([np.mean(pairs, axis=0) for pairs in times.values()])
    guesses, actual = means[:, 0].tolist(), means[:, 1].tolist()
    pairs, tau = kendall_tau(guesses, actual)
    return {
        "group": group,
        "n": len(times),
        "pairs": pairs,
        "kendall_tau": tau,
        "regret": regret(guesses, actual),
    }


def ranking_statistics(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise several rankings.

    Returns
    -------
    dict
        ``groups``; ``median_tau`` over the groups that have one; ``median_regret`` and
        ``worst_regret``. What no group has is None.

    Examples
    --------
    >>> blind = {"kendall_tau": None, "regret": 0.2}
    >>> ranking_statistics([{"kendall_tau": 0.5, "regret": 0.0}, blind])
    {'groups': 2, 'median_tau': 0.5, 'median_regret': 0.1, 'worst_regret': 0.2}
    """
    found = list(groups)
    taus = [group["kendall_tau"] for group in found if group["kendall_tau"] is not None]
    regrets = [group["regret"] for group in found]
    return {
        "groups": len(found),
        "median_tau": float(np.median(taus)) if taus else None,
        "median_regret": float(np.median(regrets)) if regrets else None,
        "worst_regret": float(max(regrets)) if regrets else None,
    }
