"""The split of layers by dynamic programming against every split there is."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.layout.layer_split import split_layers


def brute_force(times, held, limit, fixed_s, fixed_bytes, micro_batches, fewest):
    """Least step over all splits and all ways of running each stage, one by one."""
    ways, layers, stages = times.shape
    best = np.inf
    for cuts in combinations(range(layers + stages - 1), stages - 1):
        ends = [cut - i for i, cut in enumerate(cuts)]
        bounds = list(zip([0, *ends], [*ends, layers], strict=True))
        if any(b - a < fewest for a, b in bounds):
            continue
        for chosen in product(range(ways), repeat=stages):
            stage_s, fits = [], True
            for s, ((a, b), way) in enumerate(zip(bounds, chosen, strict=True)):
                stage_s.append(sum(times[way, i, s] for i in range(a, b)) + fixed_s[s])
                fits &= sum(held[way, i, s] for i in range(a, b)) + fixed_bytes[s] <= limit[s]
            if fits:
                best = min(best, sum(stage_s) + (micro_batches - 1) * max(stage_s))
    return best


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_equals_brute_force(data):
    ways, layers, stages = (data.draw(st.integers(1, most)) for most in (2, 6, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    whole = data.draw(st.booleans())  # small whole numbers: many ties

    def draw(*shape):
        return rng.integers(0, 4, shape).astype(float) if whole else rng.uniform(0, 3, shape)

    times, held = draw(ways, layers, stages), draw(ways, layers, stages)
    fixed_s, fixed_bytes = draw(stages), draw(stages)
    limit = draw(stages) + rng.uniform(0, 2.0 * layers)
    m, fewest = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 1))
    expected = brute_force(times, held, limit, fixed_s, fixed_bytes, m, fewest)
    found = split_layers(
        times,
        held,
        limit,
        fixed_s=fixed_s,
        fixed_bytes=fixed_bytes,
        micro_batches=m,
        fewest=fewest,
    )
    if found is None:
        assert expected == np.inf
        return
    assert found.step_s == pytest.approx(expected, rel=1e-10, abs=1e-10)
    first = np.r_[0, np.cumsum(found.layers)]
    assert first[-1] == layers and (found.layers >= fewest).all()
    for s, (a, b, way) in enumerate(zip(first[:-1], first[1:], found.way, strict=True)):
        assert times[way, a:b, s].sum() + fixed_s[s] == pytest.approx(found.stage_s[s], abs=1e-9)
        assert held[way, a:b, s].sum() + fixed_bytes[s] <= limit[s] * (1 + 1e-9)


def test_embedding_and_head_take_layers_from_the_ends():
    # 126 layers over 16 stages, a head as long as a layer, an embedding of half a one:
    # 126 + 2 = 16 x 8, so 7, 8, ..., 8, 7 leaves nobody above 8. Evenly, somebody has 8 and a head.
    fixed = np.zeros(16)
    fixed[0], fixed[-1] = 0.5, 1.0
    found = split_layers(np.ones((126, 16)), fixed_s=fixed, micro_batches=64)
    assert found.stage_s.max() == 8.0
    assert found.layers.tolist() == [7, *[8] * 14, 7]


def test_slower_stages_take_fewer_layers():
    # Two stages at half the speed of the other two, 12 layers: x slow and y fast each, 2x + 2y =
    # 12 and 2x s = y s where both are busy all the time: 2, 2, 4, 4.
    seconds = np.ones((12, 1)) * [2.0, 2.0, 1.0, 1.0]
    assert split_layers(seconds, micro_batches=32).layers.tolist() == [2, 2, 4, 4]


def test_a_stage_without_room_recomputes_or_gives_layers_away():
    # Four layers on two stages of one speed; the first has room for two kept or four recomputed.
    seconds = np.stack([np.ones((4, 2)), np.full((4, 2), 4 / 3)])
    held = np.stack([np.ones((4, 2)), np.full((4, 2), 0.5)])
    even = split_layers(seconds, held, [2.0, 2.0], micro_batches=8)
    assert even.layers.tolist() == [2, 2] and even.way.tolist() == [0, 0]
    tight = split_layers(seconds, held, [1.0, 2.0], micro_batches=8)
    # 1 + 3 recomputed: 4 s; 2 recomputed + 2: 2.67 s
    assert tight.layers.tolist() == [2, 2] and tight.way.tolist() == [1, 0]
    assert split_layers(seconds, held, [0.4, 1.6], micro_batches=8) is None


def test_large_models_on_unlike_stages_are_dealt_in_a_moment():
    # 126 unlike layers, 12 stages of one speed and 20 slower ones: no stage can be busier than
    # all of them, so a step is at least m times the work over the sum of speeds.
    layer_s = np.random.default_rng(0).uniform(1.0, 1.1, (126, 1))
    slowness = np.where(np.arange(32) < 12, 1.0, 1.7)
    found = split_layers(layer_s * slowness, micro_batches=128)
    assert found.layers.sum() == 126
    busy = layer_s.sum() / (1 / slowness).sum()
    assert busy <= found.stage_s.max() <= busy + 1.1 * 1.7  # whole layers
