"""Why a played step takes another time than its closed form, term by term."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.cost.terms import LABELS
from simulator.units import show_percent, show_seconds, show_signed_percent

_MOST = 3
_FELT = 0.001
"""Differences below this share of the step are not named."""


def played_words(played_s: Mapping[str, float], closed_s: Mapping[str, float]) -> str:
    """Compare the terms of a played step with those of the closed form; each adds up to its step.

    Examples
    --------
    >>> played_words({"gemm": 1.0, "pp": 0.1}, {"gemm": 1.0, "pp": 0.05}).partition(": ")[2]
    'pipeline sends +50.0 ms.'
    """
    played, closed = sum(played_s.values()), sum(closed_s.values())
    gaps = {
        name: played_s.get(name, 0.0) - closed_s.get(name, 0.0) for name in {**closed_s, **played_s}
    }
    felt = sorted((n for n in gaps if abs(gaps[n]) > _FELT * closed), key=lambda n: -abs(gaps[n]))
    both = f"{show_seconds(played)} played, {show_seconds(closed)} by the closed form"
    if not felt:
        return f"{both}: the same, term by term, to {show_percent(_FELT)} of the step."
    words = ", ".join(
        f"{LABELS.get(name, name)} {'+' if gaps[name] > 0 else '-'}{show_seconds(abs(gaps[name]))}"
        for name in felt[:_MOST]
    )
    more = f" and {len(felt) - _MOST} smaller ones" if len(felt) > _MOST else ""
    return f"{both} ({show_signed_percent(played / closed - 1.0)}): {words}{more}."
