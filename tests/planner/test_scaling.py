"""The speed-up report: factors that multiply, causes that add up, sizes that do not fit."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.cost.step import evaluate
from simulator.hardware.cluster import load_cluster
from simulator.planner.plan import plan
from simulator.planner.scaling import CAUSES, Scaling, counts, gpu_seconds_per_token, scaling
from simulator.scenario import Scenario, make_scenario
from simulator.search.explore import explore


def scenario(model: str, gpus: int, **layout: object) -> Scenario:
    return make_scenario(
        {
            "model": {"name": model},
            "training": {"sequence_length": 4096, "global_batch": 256, "tokens": 1e12},
            "cluster": {"name": "dgx-h100", "gpus": gpus},
            "layout": layout,
        }
    )


@pytest.fixture(scope="module")
def piped() -> Scaling:
    """Llama 3.1 8B on 64 GPUs, in pipelines of four."""
    return scaling(scenario("llama-3.1-8b", 64, pp=4))


@pytest.mark.parametrize(
    ("name", "gpus", "sizes"),
    [
        ("dgx-h100", 64, [8, 16, 32, 64]),
        ("dgx-h100", 24, [8, 16, 24]),
        ("dgx-h100", 4, [4]),
        ("gb200-nvl72", 72, [8, 16, 32, 64, 72]),
    ],
)
def test_counts_double_in_whole_servers(name: str, gpus: int, sizes: list[int]) -> None:
    assert counts(load_cluster(name, gpus)) == sizes


def test_gpu_seconds_per_token_by_hand() -> None:
    # 4 GPUs, 32 tokens: every second of the step is 1/8 GPU-second per token.
    some = scenario("llama-3.2-1b", 4)
    estimate = explore(some.workload, some.cluster, some.software, keep=1).best
    zero = {name: np.zeros(1) for name in estimate.terms_s}
    given = {"gemm": 6.0, "attention": 1.0, "launch": 1.0, "tp": 2.0, "bubble_drain": 4.0}
    terms = zero | {name: np.array([seconds]) for name, seconds in given.items()}
    made = replace(estimate, terms_s=terms, imbalance_s=np.array([2.0]))
    recipe = replace(some.workload.recipe, sequence_length=8, global_batch=4)

    causes = gpu_seconds_per_token(made, recipe)

    expected = {"kernels": 6.0 / 8, "imbalance": 2.0 / 8, "tp": 2.0 / 8, "bubble": 4.0 / 8}
    assert causes == pytest.approx(dict.fromkeys(CAUSES, 0.0) | expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", [{"pp": 4}, {}, {"tp": 4, "recompute": "full"}])
def test_factors_multiply_and_causes_add_up(layout: dict[str, object], piped: Scaling) -> None:
    report = piped if layout == {"pp": 4} else scaling(scenario("llama-3.1-8b", 64, **layout))
    points = [point for point in report.points if point.estimate is not None]
    assert [point.gpus for point in report.points] == [8, 16, 32, 64]
    assert points[0].gpus == report.base_gpus
    assert (points[0].speedup, points[0].ratio) == (1.0, 1.0)
    for point in points:
        speed = report.single_card_tokens_per_s * point.gpus * point.ratio
        assert speed == pytest.approx(point.tokens_per_s, rel=1e-12)
        assert point.speedup == pytest.approx(point.ratio * point.gpus / report.base_gpus)
        assert sum(point.eaten.values()) == pytest.approx(1.0 - point.ratio, abs=1e-12)
        assert set(point.eaten) == set(CAUSES)


def test_causes_are_the_whole_step(piped: Scaling) -> None:
    best = piped.points[-1].estimate
    assert best is not None
    assert best.imbalance_s[0] > 0, "the case should be uneven"
    recipe = scenario("llama-3.1-8b", 64, pp=4).workload.recipe
    total = float(best.step_time_s[0]) * 64 / recipe.tokens_per_step
    assert sum(gpu_seconds_per_token(best, recipe).values()) == pytest.approx(total, rel=1e-12)


def test_sizes_that_do_not_fit_say_why() -> None:
    report = scaling(scenario("llama-3.1-70b", 16))
    eight = report.points[0]
    assert eight.gpus == 8 and eight.estimate is None
    assert "does not fit" in eight.reason and "usable" in eight.reason
    assert report.base_gpus == 16 or report.points[1].estimate is None


def test_a_size_is_given_up_only_where_the_search_finds_nothing() -> None:
    some = scenario("llama-3.1-70b", 8)
    assert "alone" in scaling(some).points[0].reason
    assert not explore(some.workload, some.cluster, some.software, keep=1).feasible


@pytest.mark.evidence
def test_the_last_size_is_the_plan_itself() -> None:
    some = scenario("llama-3.1-8b", 32)
    answer = plan(some)
    calls: list[tuple[int, int]] = []
    report = scaling(some, found=answer.found, progress=lambda *call: calls.append(call))
    again = scaling(some)
    fastest = float(answer.estimate.step_time_s.min())
    for last in (report.points[-1], again.points[-1]):
        assert last.estimate is not None
        assert float(last.estimate.step_time_s[0]) == pytest.approx(fastest, rel=1e-12)
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_a_pinned_data_parallel_degree_is_set_free_elsewhere() -> None:
    report = scaling(scenario("llama-3.2-1b", 32, dp=32, tp=1))
    degrees = [int(p.estimate.layouts.dp[0]) for p in report.points if p.estimate is not None]
    assert all(p.estimate.layouts.tp[0] == 1 for p in report.points if p.estimate is not None)
    assert degrees[-1] == 32


def test_a_point_says_what_weighs_most(piped: Scaling) -> None:
    last = piped.points[-1]
    first, *_ = last.largest(3).values()
    assert abs(first) == max(abs(share) for share in last.eaten.values())


def test_points_are_estimates_of_their_own_cluster() -> None:
    some = scenario("llama-3.1-8b", 16, tp=2)
    for point in scaling(some).points:
        if point.estimate is not None:
            groups = (replace(some.cluster.groups[0], gpus=point.gpus),)
            cluster = replace(some.cluster, groups=groups)
            again = evaluate(point.estimate.layouts, some.workload, cluster, some.software)
            assert again.step_time_s == pytest.approx(point.estimate.step_time_s, rel=1e-12)
