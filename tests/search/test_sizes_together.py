"""Sizes of a cluster that are searched in one table are those searched alone."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.files import Figure
from simulator.hardware.cluster import Cluster
from simulator.scenario import Scenario, make_scenario
from simulator.search import explore as exploring
from simulator.search import fastest as searching
from simulator.search.explore import explore, explore_sizes
from simulator.search.fastest import fastest, search_together


def scenario(model: str, cluster: str, **layout: Any) -> Scenario:
    return make_scenario(
        {
            "model": {"name": model},
            "training": {"tokens": 1e11, "sequence_length": 4096, "global_batch": 256},
            "cluster": {"name": cluster, "gpus": 64},
            "layout": layout,
        }
    )


def on(of: Scenario, gpus: int) -> Scenario:
    (group,) = of.cluster.groups
    return replace(of, cluster=replace(of.cluster, groups=(replace(group, gpus=gpus),)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("of", "sizes", "able", "by_keys"),
    [
        (of, sizes, able, by_keys)
        for by_keys in (False, True)
        for of, sizes, able in (
            (scenario("llama-3.1-8b", "dgx-h100"), (8, 24, 64), [True, True, True]),
            (scenario("llama-3.1-70b", "dgx-a100", cp=1), (8, 32, 128), [False, True, True]),
            (scenario("qwen3-30b-a3b", "dgx-h100", micro_batch=1), (32, 128), [True, True]),
        )
    ],
    ids=[f"{name}-{way}" for way in ("counted", "keys") for name in ("8B", "70B", "experts")],
)
def test_each_size_has_what_it_has_alone(
    of: Scenario,
    sizes: tuple[int, ...],
    able: list[bool],
    *,
    by_keys: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few: dict[str, Any] = {"keep": 16, "allow_tight": by_keys}
    clusters = [on(of, gpus).cluster for gpus in sizes]
    alone = [
        explore(of.workload, x, of.software, of.pinned, counts=False, near_miss=False, **few)
        for x in clusters
    ]
    if by_keys:
        monkeypatch.setattr(exploring, "_MANY", 0)
        monkeypatch.setattr(exploring, "_OPENED", 128)
    together = explore_sizes(of.workload, clusters, of.software, of.pinned, **few)
    assert [found is not None for found in together] == able
    for one, other in zip(together, alone, strict=True):
        assert (one is None) == (not len(other.best))
        if one is None:
            continue
        assert (one.layouts, one.walked) == (other.layouts, other.walked)
        for name in ("best", "tight", "roomy"):
            mine, theirs = getattr(one, name), getattr(other, name)
            steps = theirs.step_time_s.tolist()
            assert mine.step_time_s.tolist() == pytest.approx(steps, rel=1e-12)
            rows = [theirs.layouts.row(i) for i in range(len(theirs))]
            assert [mine.layouts.row(i) for i in range(len(mine))] == rows


def test_what_was_searched_together_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    of = scenario("llama-3.1-8b", "dgx-h100", tp=1, pp=2)
    several = [on(of, gpus) for gpus in (16, 64)]
    searching._known.clear()
    search_together(several)
    monkeypatch.setattr(searching, "_searched", None)  # not called
    assert [fastest(x).best.layouts.dp[0] for x in several] == [8, 32]


def _narrow(cluster: Cluster) -> Cluster:
    """Over-subscribed above 4 servers."""
    fabric = replace(cluster.fabric, oversubscription=Figure(2.0, "assumed", ""), leaf_servers=4)
    return replace(cluster, fabric=fabric)


def test_sizes_that_prices_tell_apart_are_not_searched_together() -> None:
    """Domains of another size; leaves that the smaller cluster does not fill."""
    of = scenario("llama-3.1-8b", "dgx-h100", tp=1, pp=1)
    wide = replace(of, cluster=_narrow(of.cluster))
    for several in ([on(of, 4), on(of, 16)], [on(wide, 16), on(wide, 64)]):
        searching._known.clear()
        search_together(several)
        assert not searching._known
    search_together([on(wide, 64), on(wide, 128)])
    assert len(searching._known) == 2
