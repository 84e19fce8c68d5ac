"""Numbers that a search does not go beyond, said where they cut it and with what they cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.layout.layouts import accelerators, divisors
from simulator.scenario import Scenario
from simulator.search.candidates import (
    FEWEST_TOKENS,
    MOST_CHUNKS,
    MOST_CP,
    MOST_DOMAINS,
    MOST_RECOMPUTE_STEPS,
    attention_heads,
    chunk_axis,
    longest_cp,
    widest_tp,
)

_ALONE = "is tried a step from the best alone"
"""Beyond the grid (``search/neighbours.py``); where nothing fits, all of it."""


def search_caps(scenario: Scenario) -> list[str]:
    """Say which caps cut the search of a scenario, and what they cut; empty where none does.

    `pinned` fields of the scenario are those of the search (``search/allowed.py``): what is pinned
    is not searched, and no cap cuts it.

    Examples
    --------
    >>> from simulator.scenario import make_scenario
    >>> for line in search_caps(make_scenario({
    ...     "model": {"name": "llama-3.1-70b"},
    ...     "training": {"sequence_length": 8192, "global_batch": 64},
    ...     "cluster": {"name": "dgx-h100", "gpus": 64},
    ...     "layout": {"recompute": "none"},
    ... })):
    ...     print(line)
    tp above 16 (two fast domains) is tried a step from the best alone: 32, 64
    cp above 4 (2,048 tokens a rank) is tried a step from the best alone: 8, 16, 32, 64
    virtual stages above 20 are not searched: 40 with pp 2
    """
    arch, can = scenario.workload.architecture, scenario.software.supports
    cluster, pinned, caps = scenario.cluster, scenario.pinned, []
    shares = divisors(cluster.gpus)
    if "tp" not in pinned and can.tensor:
        most = widest_tp(cluster.domain)
        if cut := [d for d in shares if most < d <= attention_heads(arch)]:
            domains = most == MOST_DOMAINS * cluster.domain
            why = "two fast domains" if domains else "servers are small"
            caps.append(f"tp above {most:,} ({why}) {_ALONE}: {_listed(cut)}")
    if "cp" not in pinned and can.cp_kinds:
        length = scenario.workload.recipe.sequence_length
        longest = longest_cp(length)
        most = min(longest, MOST_CP)
        if cut := [d for d in shares if d > most and length % d == 0]:
            why = f" ({FEWEST_TOKENS:,} tokens a rank)" if longest <= MOST_CP else ""
            caps.append(f"cp above {most:,}{why} {_ALONE}: {_listed(cut)}")
    pps = [d for d in shares if d <= (arch.layers if can.pipeline else 1)]
    pps = [int(pinned["pp"])] if "pp" in pinned else pps
    caps += _chunks(scenario, pps) if "vpp" not in pinned and "stages" not in pinned else []
    return [*caps, *_layers(scenario, pps, pinned)]


def _chunks(scenario: Scenario, pps: list[int]) -> list[str]:
    """Chunks of a rank that are not tried."""
    arch, software = scenario.workload.architecture, scenario.software
    named = scenario.pinned.get("schedule")
    cuts = []
    for pp in pps:
        every = chunk_axis(arch, software, pp, named, most=arch.layers + 2)
        if cut := [str(v) for v in every if v > MOST_CHUNKS]:
            cuts.append(f"{', '.join(cut)} with pp {pp}")
    return (
        [f"virtual stages above {MOST_CHUNKS} are not searched: {'; '.join(cuts)}"] if cuts else []
    )


def _layers(scenario: Scenario, pps: list[int], pinned: Mapping[str, Any]) -> list[str]:
    """Numbers of layers of a rank whose full recomputation is not tried."""
    modes = scenario.software.supports.recompute
    mode = pinned.get("recompute", "full" if "full" in modes else "none")
    named = pinned.get("recompute_modules") and "recompute" not in pinned
    if mode != "full" or named or "recompute_layers" in pinned:
        return []
    able = [pp for pp in pps if scenario.cluster.gpus % accelerators(1, pp, 1) == 0]
    most = max((scenario.workload.architecture.layers // pp for pp in able), default=0)
    if most <= MOST_RECOMPUTE_STEPS:
        return []
    return [
        f"full recomputation of n layers of a rank: {MOST_RECOMPUTE_STEPS} of the up to {most:,}"
        " values of n are tried, evenly spaced, the others a step from the best alone"
    ]


def _listed(numbers: list[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
