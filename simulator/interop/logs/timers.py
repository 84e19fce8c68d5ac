"""Timers that trainers print beside their step lines: loading, and passes by their slowest rank.

Megatron-Core at ``--timing-log-level 2`` (megatron/core/timers.py: least and most over ranks, in ms
of an iteration; the forward pass has the loader in it), OLMo-core's
``throughput/device/data loading (s)``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from simulator.records import dataclass

_MEGATRON = re.compile(
    r"^\s{0,16}(batch-generator|forward-compute|backward-compute) \.{3,64}: "
    r"\((\d{1,12}\.\d{1,6}), (\d{1,12}\.\d{1,6})\)"
)
_OLMO = re.compile(r"throughput/device/data loading \(s\)=(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timers:
    """Medians over a log, in seconds of a step; None where it prints none."""

    loading_s: float | None = None
    """Of the rank that waits longest for its batches."""
    passes_s: float | None = None
    """Forward and backward passes of the slowest rank, without loading."""
    rank_spread: float | None = None
    """Passes of the slowest rank over those of the fastest."""


def read_timers(lines: Iterable[str]) -> Timers:
    """Read the timers of a log.

    Examples
    --------
    >>> read_timers(["    forward-compute ........: (1000.00, 1500.00)",
    ...              "    backward-compute .......: (2000.00, 3000.00)",
    ...              "    batch-generator ........: (2.00, 4.00)"]).rank_spread
    1.5
    """
    seconds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if match := _MEGATRON.match(line):
            seconds[match[1]].append((float(match[2]) / 1e3, float(match[3]) / 1e3))
        elif match := _OLMO.search(line):
            seconds["batch-generator"].append((float(match[1]), float(match[1])))
    least, most = (
        {name: float(np.median([pair[side] for pair in some])) for name, some in seconds.items()}
        for side in (0, 1)
    )
    loading_s, passes = most.get("batch-generator"), ("forward-compute", "backward-compute")
    if not all(least.get(name) for name in passes):
        return Timers(loading_s=loading_s)
    longest_s = sum(most[name] for name in passes)
    return Timers(
        loading_s=loading_s,
        passes_s=max(longest_s - (loading_s or 0.0), 0.0),
        rank_spread=longest_s / sum(least[name] for name in passes),
    )
