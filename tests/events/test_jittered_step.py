"""Steps whose durations vary: the folded answer against NumPy with every replica written out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.events.deviations.deviations import Deviation
from simulator.events.deviations.jittered_step import Jitter, jittered_step
from simulator.events.sharing.contended import Network
from simulator.events.simulated_step import simulate
from simulator.events.step.charge import pacing_rank, terms, work
from simulator.events.step.play import Played
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

Worked = Callable[..., Played]

SPREAD, SEEDS, SAMPLES = 0.1, 300, 20_000


def drawn(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Lognormal factors of mean 1."""
    return np.exp(SPREAD * rng.standard_normal(shape) - SPREAD**2 / 2.0)


def agree(folded: NDArray[np.float64], unfolded: NDArray[np.float64]) -> None:
    """Means within four standard errors of their difference, spreads within a fifth."""
    error = np.hypot(folded.std() / len(folded) ** 0.5, unfolded.std() / len(unfolded) ** 0.5)
    assert folded.mean() == pytest.approx(unfolded.mean(), abs=4.0 * error)
    assert folded.std() == pytest.approx(unfolded.std(), rel=0.2)


def spans(steady: Played, seeds: int = SEEDS) -> NDArray[np.float64]:
    """Step times of many seeds."""
    each = (jittered_step(steady, Jitter(spread=SPREAD, seed=seed)) for seed in range(seeds))
    return np.array([played.times.makespan_s for played in each])


def test_replicas_without_a_pipeline(worked: Worked) -> None:
    """12 replicas of 6 micro-batches, 1 s and 2 s: the slowest sum decides, then 3 s of reduction
    that vary too."""
    steady = worked([1.0], [2.0], 6, dp=12, reduce_s=np.array([[3.0]]), overlaps=(False, False))
    assert steady.times.makespan_s == 21.0
    rng = np.random.default_rng(5)
    passes = drawn(rng, SAMPLES, 12, 6) + 2.0 * drawn(rng, SAMPLES, 12, 6)
    agree(spans(steady), passes.sum(axis=2).max(axis=1) + 3.0 * drawn(rng, SAMPLES))


@pytest.mark.evidence
def test_replicas_of_a_pipeline_of_two(worked: Worked) -> None:
    """1F1B of three micro-batches on two stages, 32 replicas, each written out with its own draws;
    every stage reduces when the last of its replicas is there, and the step ends with the later:
    stage 0 after 16 s, stage 1 after 10 + 12. Another replica may be last in each, which costs
    0.3 s of 23."""
    reduce_s = np.array([[0.0], [12.0]])
    steady = worked([1.0, 1.0], [4.0, 1.0], 3, dp=32, reduce_s=reduce_s, overlaps=(False, False))
    assert steady.times.makespan_s == 22.0
    rng = np.random.default_rng(6)
    f, b = drawn(rng, 2, 3, SAMPLES, 32), drawn(rng, 2, 3, SAMPLES, 32)
    b[0] *= 4.0
    # rank 0: F0 F1 B0 F2 B1 B2; rank 1: F0 B0 F1 B1 F2 B2
    a0 = f[0, 0]
    a1 = a0 + f[0, 1]
    c0 = a0 + f[1, 0] + b[1, 0]
    a2 = np.maximum(a1, c0) + b[0, 0]  # B0
    a3 = a2 + f[0, 2]  # F2
    c1 = np.maximum(c0, a1) + f[1, 1] + b[1, 1]
    a4 = np.maximum(a3, c1) + b[0, 1]
    c2 = np.maximum(c1, a3) + f[1, 2] + b[1, 2]
    a5 = np.maximum(a4, c2) + b[0, 2]
    ends = [x.max(axis=1) + reduce_s[s, 0] * drawn(rng, SAMPLES) for s, x in enumerate((a5, c2))]
    agree(spans(steady, 1000), np.maximum(*ends))


def test_a_replica_that_is_unfolded_varies_like_any_other(worked: Worked) -> None:
    """Seven of 3 s and one of 3.6 s a micro-batch."""
    slow: dict[str, Any] = {"forward": [1.2], "backward": [2.4]}
    steady = worked([1.0], [2.0], 4, dp=8, others=(slow,))
    rng = np.random.default_rng(7)
    each = drawn(rng, SAMPLES, 8, 4) + 2.0 * drawn(rng, SAMPLES, 8, 4)
    each[:, 7] *= 1.2
    agree(spans(steady), each.sum(axis=2).max(axis=1))


def setting(software: str = "megatron-core", m: int = 4, **layout: Any) -> Any:
    table = Layouts.of(**layout, global_batch=m * layout.get("dp", 1))
    recipe = Recipe(sequence_length=4096, global_batch=int(table.global_batch[0]))
    work_ = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    return table, work_, load_cluster("dgx-h100", int(table.world[0])), load_software(software)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("layout", "software", "together"),
    [
        ({"tp": 8}, "megatron-core", 8),
        ({"tp": 2, "cp": 2, "dp": 2}, "megatron-core", 4),
        ({"dp": 64, "sharding": "zero3"}, "torchtitan", 64),
    ],
)
def test_ranks_that_keep_step_wait_for_their_slowest(
    layout: dict[str, Any], software: str, together: int
) -> None:
    """Every pass is as long as the largest of so many draws; parameters that are gathered in every
    layer keep all replicas in step. Replicas apart: the slowest sum of such passes."""
    given = setting(software, 8, **layout)
    plain = simulate(*given)
    ratios = []
    for seed in range(40):
        found = simulate(*given, jitter=Jitter(spread=0.05, seed=seed))
        ratios.append(found.terms_s["gemm"] / plain.terms_s["gemm"])
    rng = np.random.default_rng(8)
    replicas = 1 if layout.get("sharding") == "zero3" else layout.get("dp", 1)
    z = rng.standard_normal((500, replicas, 16, together)).max(axis=3)
    share = np.array([1.0, 2.0] * 8) / 24.0  # forward and backward passes, nearly
    longest = (np.exp(0.05 * z - 0.05**2 / 2.0) * share).sum(axis=2).max(axis=1)
    error = np.std(ratios) / 40**0.5 + longest.std() / 500**0.5
    assert np.mean(ratios) == pytest.approx(longest.mean(), abs=4.0 * error)


def test_no_spread_is_no_jitter_to_the_bit() -> None:
    given = setting(tp=2, pp=2, dp=2)
    plain, none = simulate(*given), simulate(*given, jitter=Jitter(spread=0.0, seed=3))
    assert none.step_time_s == plain.step_time_s and dict(none.terms_s) == dict(plain.terms_s)
    assert none.timeline.end_s.tobytes() == plain.timeline.end_s.tobytes()
    assert none.jitter is not None and set(none.jitter.lost_s.values()) == {0.0}


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2, "pp": 4, "dp": 2},
        {"tp": 2, "pp": 4, "vpp": 2, "dp": 2},
        {"pp": 4, "schedule": "zb_h1"},
        {"pp": 4, "schedule": "dualpipe"},
        {"pp": 4, "schedule": "pipedream"},
    ],
)
def test_terms_still_add_up_and_seeds_repeat(layout: dict[str, Any]) -> None:
    given = setting(m=16, **layout)
    plain = simulate(*given)
    one, same, other = (simulate(*given, jitter=Jitter(spread=0.03, seed=x)) for x in (1, 1, 2))
    assert one.terms_s == same.terms_s and one.jitter == same.jitter
    assert one.timeline.end_s.tobytes() == same.timeline.end_s.tobytes()
    assert len({x.step_time_s for x in (one, other, plain)}) == 3
    assert sum(one.terms_s.values()) == pytest.approx(one.step_time_s, rel=1e-12)
    assert one.jitter is not None and one.jitter.steady_s == pytest.approx(plain.step_time_s)
    lost_s = one.step_time_s - plain.step_time_s
    assert sum(one.jitter.lost_s.values()) == pytest.approx(lost_s, rel=1e-9)
    if layout.get("schedule") != "pipedream":
        assert one.timeline.end_s.max() == pytest.approx(one.step_time_s, rel=1e-12)


@pytest.mark.parametrize("spread", [0.0, 0.05])
@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2, "pp": 4, "dp": 8},
        {"tp": 4, "pp": 4, "vpp": 2, "dp": 4},
        {"tp": 4, "pp": 4, "vpp": 2, "dp": 2, "schedule": "dualpipe_v", "recompute": "full"},
        {"tp": 4, "pp": 2, "dp": 4, "cp": 2, "cp_kind": "ring"},
    ],
)
def test_what_is_drawn_is_what_is_charged(layout: dict[str, Any], spread: float) -> None:
    """Spans of a stream never overlap, add up to its busy seconds and end with the step, whatever
    was slowed by whom."""
    network = Network(contention=True)
    found = simulate(*setting(m=16, **layout), network=network, jitter=Jitter(spread=spread))
    line = found.timeline
    same = (line.rank[1:] == line.rank[:-1]) & (line.stream[1:] == line.stream[:-1])
    assert (line.start_s[1:] >= line.end_s[:-1] - 1e-9)[same].all()
    spans = np.zeros_like(found.busy_s)
    np.add.at(spans, (line.rank, line.stream), line.end_s - line.start_s)
    np.testing.assert_allclose(spans, found.busy_s, rtol=1e-9, atol=1e-12)
    assert line.end_s.max() == pytest.approx(found.step_time_s, rel=1e-12)
    assert sum(found.terms_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    assert sum(found.critical_share.values()) == pytest.approx(1.0)


def test_beside_slow_gpus_and_shared_links() -> None:
    """All at once: what varies is drawn first, then shares links."""
    given = setting(tp=4, pp=2, vpp=4, dp=4, m=8)
    found = simulate(
        *given,
        jitter=Jitter(spread=0.02),
        network=Network(contention=True),
        deviations=[Deviation(stage=1, replica=2, compute=1.3)],
    )
    assert found.jitter is not None and found.sharing is not None
    assert found.jitter.steady_s < found.sharing.alone_s <= found.step_time_s
    assert sum(found.terms_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)


def test_idle_time_grows_where_ranks_wait_for_one_another(worked: Worked) -> None:
    """Four equal stages: what varies costs the pacing rank more than its own passes vary by."""
    steady = worked([1.0] * 4, [2.0] * 4, 16)
    grown = np.zeros(2)
    for seed in range(30):
        played = jittered_step(steady, Jitter(spread=SPREAD, seed=seed))
        rank = pacing_rank(played)
        own = work(played)[0][rank].sum()
        grown += own - 48.0, terms(played, work(played)[0], rank).sum() - own - 9.0
    assert grown[1] > 30.0  # a second in every step of 57


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"spread": -0.1}, r"jitter: must be finite and not negative .*got -0.1 \(nearest: 0\)"),
        ({"spread": np.nan}, "jitter: must be finite"),
        ({"spread": np.inf}, "jitter: must be finite"),
        ({"spread": 1e9}, r"jitter: must be at most 2, got 1000000000.0 \(nearest: 2\)"),
        ({"spread": 0.1, "seed": -1}, r"seed: must not be negative, got -1 \(nearest: 0\)"),
    ],
)
def test_jitter_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Jitter(**given)
