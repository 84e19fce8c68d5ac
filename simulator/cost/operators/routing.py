"""Where a token's experts are: how many places it reaches, and how full the fullest rank is.

Under the even spread that balancing losses aim at, experts are drawn at random; a load vector says
what a run's experts really got.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, gcd
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.workload.architecture import MoE
from simulator.workload.expert_routing import alike_load
from simulator.workload.recipe import Recipe


def rank_load(recipe: Recipe, moe: MoE, ep: Any) -> Floats:
    """Tokens that the fullest of `ep` expert ranks computes, over the mean of all ranks.

    A rank holds experts / ep neighbouring experts. A capacity cuts every expert at that many times
    the mean before the sum; what is padded to it is full on all ranks. Fewer ranks than an
    imbalance is of cannot be as uneven: one rank has the mean.
    """
    ep = np.asarray(ep, dtype=float)
    if recipe.moe_pads_to_capacity:
        return np.full(ep.shape, recipe.expert_load)
    if recipe.moe_load is None and recipe.hot_share and recipe.moe_imbalance == 1.0:
        return _shared_load(recipe, moe, ep)
    if recipe.moe_load is None:
        return np.asarray(np.minimum(recipe.expert_load, moe.largest_load(ep)))
    shares = np.repeat(
        np.asarray(recipe.moe_load, dtype=float), moe.experts // len(recipe.moe_load)
    )
    loads = shares / shares.mean()
    if recipe.moe_capacity_factor is not None:
        loads = np.minimum(loads, recipe.moe_capacity_factor)
    found = np.ones(ep.shape)
    for ranks in np.unique(ep):
        fullest = loads.reshape(int(ranks), -1).mean(axis=1).max()
        found = np.where(ep == ranks, fullest, found)
    return found


def _shared_load(recipe: Recipe, moe: MoE, ep: Floats) -> Floats:
    """The same where a share of the picks is alike in all tokens, and the rest is even."""
    share, most = recipe.hot_share, recipe.moe_capacity_factor or np.inf
    load = np.ones(ep.shape)
    for ranks in np.unique(ep):
        alike = alike_load(moe.experts, moe.top_k, int(ranks))
        load = np.where(ep == ranks, min(1.0 + share * (alike - 1.0), most), load)
    return load


def reached_places(
    places: Any,
    *,
    picks: int,
    experts: int,
    groups: int = 1,
    top_groups: int = 1,
    in_turn: bool = False,
) -> Floats:
    """Places with at least one of the experts of a token, on average.

    Experts stand in order on equal places (expert ranks, or scale-up domains). Of n places, k of E
    experts reach ``n (1 - C(E - E/n, k) / C(E, k))``. Where the router takes the best experts of
    its G' best of G groups only, no more than G' groups count (see `_limited`).

    Parameters
    ----------
    places : array_like
        How many there are.
    picks, experts : int
        Experts per token, of how many.
    groups, top_groups : int
        Groups of experts, and how many of them a token may pick from; 1 of 1 is no limit.
    in_turn : bool
        A token gets the k experts that follow the last token's, whatever its group: so few places
        as those neighbours stand on.
    """
    places = np.asarray(places, dtype=float)
    if in_turn:
        first = np.arange(0, experts, gcd(picks, experts))
        size = experts / places[..., None]
        crossed = (first + picks - 1) // size - first // size
        return np.minimum(crossed.mean(axis=-1) + 1.0, places)
    free = _unlimited(places, picks, experts)
    if top_groups >= groups:
        return free
    found = free
    for count in np.unique(places):
        limited = _limited(round(float(count)), picks, experts, groups, top_groups)
        found = np.where(places == count, np.minimum(limited, free), found)
    return found


def _unlimited(places: Floats, picks: int, experts: int) -> Floats:
    missed: Floats = np.ones(np.shape(places))
    for i in range(picks):  # none of the picks so far is at the place, nor is the next one
        missed = missed * np.maximum(1.0 - experts / places / (experts - i), 0.0)
    return np.asarray(places * (1.0 - missed))


@lru_cache(maxsize=4096)
def _limited(places: int, picks: int, experts: int, groups: int, top_groups: int) -> float:
    """Places that a token reaches if no more than `top_groups` groups may have its experts.

    Device-limited routing (DeepSeek-V2, arXiv 2405.04434, section 2.2.2) takes the groups whose
    best experts score highest. Going down the list of all experts by score, the first `top_groups`
    groups that come up are those; so the groups in use are as many as the first k experts come
    from, but at most `top_groups`:

        P(d groups) = C(G, d) sum_i (-1)^i C(d, i) C((d - i) e, k) / C(E, k),  e = E / G

    DeepSeek-V3 (arXiv 2412.19437, section 2.1.2) scores a group by the sum of its best experts,
    which reaches 1 % less (tests/cost/test_routing.py). A place is part of one group or holds whole
    groups; else the most that the groups can touch is taken.
    """
    size = experts // groups
    if experts % places or (places % groups and groups % places):
        return float(top_groups * (-(-places // groups) + 1))
    total = 0.0
    for used in range(-(-picks // size), min(groups, picks) + 1):
        share = comb(groups, used) * _hitting(used, size, picks) / comb(experts, picks)
        held = min(used, top_groups)
        if groups % places == 0:
            missed = comb(groups - groups // places, held) / comb(groups, held)
            total += share * places * (1.0 - missed)
        else:
            missed = _hitting(held, size, picks, gone=experts // places)
            missed /= _hitting(held, size, picks)
            total += share * held * (places // groups) * (1.0 - missed)
    return total


def _hitting(groups: int, size: int, picks: int, gone: int = 0) -> int:
    """Ways to pick experts so that every one of `groups` has one; `gone` of the first are barred.

    By inclusion and exclusion over the groups that are missed.
    """
    whole = sum(
        (-1) ** i * comb(groups - 1, i) * comb((groups - i) * size - gone, picks)
        for i in range(groups)
    )
    without_first = sum(
        (-1) ** i * comb(groups - 1, i) * comb((groups - 1 - i) * size, picks)
        for i in range(groups)
    )
    return whole - without_first
