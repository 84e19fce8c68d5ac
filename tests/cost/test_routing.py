"""Places that a token reaches and the load of the fullest rank: brute force, drawn routers."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from simulator.cost.operators.routing import rank_load, reached_places
from simulator.workload import presets
from simulator.workload.architecture import MoE
from simulator.workload.recipe import Recipe

V2, V3 = (160, 8, 3, 6), (256, 8, 4, 8)  # experts, groups, groups in use, picks
EIGHT = MoE(experts=8, top_k=2, ffn_hidden=16)


def reached(places: int, experts: int, groups: int, top: int, picks: int) -> float:
    return float(
        reached_places(places, picks=picks, experts=experts, groups=groups, top_groups=top)
    )


def drawn(places: int, experts: int, groups: int, top: int, picks: int, best: int) -> float:
    """Mean of 20,000 routers with random scores; a group scores the sum of its `best` experts."""
    scores = np.random.default_rng(7).random((20_000, experts))
    grouped = np.sort(scores.reshape(len(scores), groups, -1), axis=2)[:, :, -best:].sum(axis=2)
    barred = np.argsort(grouped, axis=1)[:, : groups - top]
    each = scores.reshape(len(scores), groups, -1)
    np.put_along_axis(each, barred[:, :, None], -1.0, axis=1)
    chosen = np.argsort(each.reshape(scores.shape), axis=1)[:, -picks:]
    hit = np.zeros((len(scores), places), dtype=bool)
    np.put_along_axis(hit, chosen * places // experts, True, axis=1)
    return float(hit.sum(axis=1).mean())


@pytest.mark.parametrize(("experts", "picks", "places"), [(8, 2, 4), (12, 3, 3), (12, 4, 6)])
def test_without_groups_every_set_of_experts_is_as_likely(
    experts: int, picks: int, places: int
) -> None:
    sets = list(combinations(range(experts), picks))
    found = [len({expert * places // experts for expert in one}) for one in sets]
    assert reached(places, experts, 1, 1, picks) == pytest.approx(np.mean(found), rel=1e-12)


@pytest.mark.parametrize(
    ("experts", "picks", "places"), [(256, 8, 64), (128, 8, 8), (12, 8, 4), (384, 8, 5), (8, 2, 8)]
)
def test_experts_in_turn_stand_side_by_side(experts: int, picks: int, places: int) -> None:
    turn = np.arange(experts * picks).reshape(-1, picks) % experts
    counted = np.mean([len(set(token * places // experts)) for token in turn])
    found = reached_places(
        places, picks=picks, experts=experts, groups=8, top_groups=4, in_turn=True
    )
    assert float(found) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(("experts", "groups", "top", "picks"), [(8, 4, 2, 3), (9, 3, 2, 3)])
def test_with_groups_every_order_of_the_experts_is_as_likely(
    experts: int, groups: int, top: int, picks: int
) -> None:
    """All orders of 8 or 9 experts by score are 40,320 or 362,880; the first so many decide."""
    rng, size = np.random.default_rng(1), experts // groups
    orders = [rng.permutation(experts) for _ in range(30_000)]
    halves = (p for p in range(2, experts + 1) if experts % p == 0)
    for places in (p for p in halves if p % groups == 0 or groups % p == 0):
        counts = []
        for order in orders:
            allowed = list(dict.fromkeys(int(expert) // size for expert in order))[:top]
            taken = [e for e in order if e // size in allowed][:picks]
            counts.append(len({int(e) * places // experts for e in taken}))
        error = 4 * np.std(counts) / len(orders) ** 0.5
        found = reached(places, experts, groups, top, picks)
        # a place that is part of a group: which experts fill up the last groups is not quite even
        assert found == pytest.approx(np.mean(counts), abs=error + 0.02 * (places > groups))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("published", [V2, V3])
@pytest.mark.parametrize("places", [2, 4, 8, 16, 32])
def test_published_routers(published: tuple[int, int, int, int], places: int) -> None:
    """DeepSeek-V2 scores a group by its best expert, V3 by its best two (2 % off at most)."""
    found = reached(places, *published)
    assert found == pytest.approx(drawn(places, *published, best=1), rel=1.2e-2)
    assert found == pytest.approx(drawn(places, *published, best=2), rel=2.2e-2)


def test_no_more_domains_than_groups_that_a_token_may_use() -> None:
    """DeepSeek-V3, section 2.1.2: at most four nodes; V2, section 2.2.2: at most three devices."""
    assert 3.9 < reached(8, *V3) <= 4 < 5.2 < reached(8, 256, 1, 1, 8)
    assert 2.9 < reached(8, *V2) <= 3 < 4.4 < reached(8, 160, 1, 1, 6)
    # five domains: a group lies on two of them at most
    assert reached(5, *V2) <= reached(5, 160, 1, 1, 6)
    # all groups allowed is no limit
    for places in (2, 8, 64):
        assert reached(places, 256, 8, 8, 8) == reached(places, 256, 1, 1, 8)


def test_limits_of_groups_come_from_the_config() -> None:
    moe = {name: presets.load(name).blocks[-1].mlp for name in ("deepseek-v2", "deepseek-v3")}
    assert [(m.groups, m.top_groups) for m in moe.values()] == [(8, 3), (8, 4)]  # type: ignore[union-attr]


def load(ep: int, vector: Any, moe: MoE = EIGHT, **training: Any) -> float:
    recipe = Recipe(sequence_length=8, global_batch=8, moe_load=vector, **training)
    return float(rank_load(recipe, moe, np.array([ep]))[0])


VECTOR = (0.25, 0.05, 0.10, 0.10, 0.20, 0.10, 0.10, 0.10)


@pytest.mark.parametrize(("ep", "fullest"), [(1, 1.0), (2, 1.0), (4, 1.2), (8, 2.0)])
def test_the_fullest_rank_of_a_load_vector(ep: int, fullest: float) -> None:
    """Sums of neighbours: 0.5 and 0.5; 0.30, 0.20, 0.30, 0.20; then single experts, 0.25."""
    assert load(ep, VECTOR) == pytest.approx(fullest, rel=1e-12)


def test_a_share_for_every_rank_is_spread_over_its_experts() -> None:
    ranks = (0.4, 0.3, 0.2, 0.1)
    assert [load(ep, ranks) for ep in (2, 4, 8)] == pytest.approx([1.4, 1.6, 1.6], rel=1e-12)


def test_capacity_cuts_every_expert_before_a_rank_adds_up() -> None:
    # expert 0 has twice the mean and is cut to 1.5; with its neighbour's 0.4 the rank has 0.95,
    # less than the 1.2 of experts 4 and 5 (1.6 is cut to 1.5, and 0.8): 1.15
    assert load(8, VECTOR, moe_capacity_factor=1.5) == pytest.approx(1.5)
    assert load(4, VECTOR, moe_capacity_factor=1.5) == pytest.approx(1.15)
    padded = load(4, VECTOR, moe_capacity_factor=1.5, moe_pads_to_capacity=True)
    assert padded == 1.5


def test_even_shares_are_no_load_at_all() -> None:
    wide = replace(EIGHT, experts=64)
    for ep in (1, 8, 64):
        assert load(ep, (1 / 64,) * 64, wide) == pytest.approx(1.0, rel=1e-12)
