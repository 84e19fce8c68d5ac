"""Layers dealt anew: never slower than evenly, near to the best of all splits, within memory."""

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from simulator.api import simulate
from simulator.cost.pricing import price_keys
from simulator.cost.step import evaluate
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.layout.stages import even_pieces
from simulator.planner.plan import plan
from simulator.planner.prediction import predict
from simulator.scenario import Scenario, make_scenario
from simulator.search.candidates import candidates
from simulator.search.explore import SearchResult, explore
from simulator.search.fastest import explore_scenario
from simulator.search.stage_splits import RankCosts, worth_rebalancing


def scenario(model: str = "llama-3.1-8b", gpus: int = 64, **layout: Any) -> Scenario:
    return make_scenario(
        {
            "model": {"name": model},
            "training": {"sequence_length": 8192, "global_batch": 256},
            "cluster": {"name": "dgx-h100", "gpus": gpus, "software": "megatron-core"},
            "layout": layout,
        }
    )


@cache
def found(evenly: bool = False, **layout: Any) -> tuple[Scenario, SearchResult]:
    made = scenario(**layout)
    pinned = made.pinned | ({"stages": ()} if evenly else {})
    return made, explore(made.workload, made.cluster, made.software, pinned, keep=8)


def setting(made: Scenario) -> tuple[Any, Any, Any]:
    return made.workload, made.cluster, made.software


PINS = {"tp": 1, "pp": 4, "vpp": 1, "cp": 1, "micro_batch": 1, "recompute": "none"}


def test_the_split_is_within_a_percent_of_trying_every_split() -> None:
    # 32 layers over 4 stages: every split whose first three stages have 6 to 11 layers. The dealing
    # is exact for its own formula; played through, 9, 9, 8, 6 is 0.5 % faster than 8, 9, 9, 6.
    made, answer = found(**PINS)
    best = answer.best.layouts[:1]
    assert best.row()["stages"], "the head weighs as much as four layers"
    tried = [
        [a, b - a, c - b, 32 - c]
        for a, b, c in combinations(range(1, 32), 3)
        if all(5 < x < 12 for x in (a, b - a, c - b)) and 32 - c > 0
    ]
    table = best[np.zeros(len(tried), dtype=np.intp)].replace(stages=tried)
    every = evaluate(table, *setting(made))
    fastest = every.step_time_s[every.fits].min()
    assert float(answer.best.step_time_s[0]) <= fastest * 1.01


def test_dealt_anew_is_never_slower_than_evenly() -> None:
    made, answer = found(**PINS)
    _, even = found(evenly=True, **PINS)
    assert float(answer.best.step_time_s[0]) < 0.95 * float(even.best.step_time_s[0])
    assert answer.best.fits.all()
    layouts = answer.best.layouts
    own = evaluate(layouts, *setting(made))
    assert np.allclose(own.step_time_s, answer.best.step_time_s, rtol=1e-12)
    evenly = evaluate(layouts.replace(stages=()), *setting(made))
    assert ((own.step_time_s <= evenly.step_time_s) | ~evenly.fits).all()


def test_the_last_stage_gives_layers_away_for_the_head() -> None:
    # logits of 128,256 words: 1.05 GFLOP a token, a layer's 0.44 and its attention: some three
    split = found(**PINS)[1].best.layouts.row()["stages"]
    assert sum(split) == 32
    assert split[-1] <= min(split[:-1]) - 2


def test_given_stages_are_not_decided() -> None:
    given = [8, 8, 8, 8]
    answer = plan(scenario(pp=4, stages=given))
    table = answer.estimate.layouts
    assert all(table.row(i)["stages"] == given for i in range(len(table)))
    assert answer.evenly is None


def test_the_plan_says_what_evenly_would_take() -> None:
    answer = plan(scenario(**PINS))
    assert answer.evenly is not None
    assert answer.evenly.step_time_s[0] > answer.estimate.step_time_s[0]
    assert isinstance(answer.evenly.layouts, Layouts)


@pytest.mark.parametrize("vpp", [2, 4])
def test_chunks_of_interleaved_ranks_follow_their_layers(vpp: int) -> None:
    answer = found(**{**PINS, "vpp": vpp})[1]
    split = np.array(answer.best.layouts.row()["stages"])
    assert split.sum() == 32 and len(split) == 4 * vpp
    by_rank = split.reshape(vpp, 4).sum(axis=0)
    assert by_rank[-1] < by_rank[:-1].min()


def test_what_ranks_take_is_that_of_the_estimates() -> None:
    # both passes of the slowest rank by the sums that layers are dealt by, and m of them by the
    # terms of the estimate: all but sends, what is taken once a step, and what both slow down
    made = scenario(pp=4, tp=1, cp=1, micro_batch=1)
    table = candidates(*setting(made), made.pinned)
    table = table[np.flatnonzero(reasons(table, *setting(made)) == FEASIBLE)]
    table = table[worth_rebalancing(table, made.workload, made.software)][::23]
    ranks = RankCosts.of(table, price_keys(table, *setting(made)))
    every = evaluate(table, *setting(made))
    for i in range(len(table)):
        pieces = even_pieces(32, 4 * int(table.vpp[i])).reshape(-1, 4).sum(axis=0)
        dealt_s = pieces * ranks.block_s[i, 0] + ranks.fixed_s[i, :4]
        terms = ("gemm", "attention", "memory_bound", "recompute", "stragglers")
        steady_s = sum(float(every.terms_s[name][i]) for name in terms)
        assert dealt_s.max() * int(table.micro_batches[i]) == pytest.approx(steady_s, rel=1e-3)
        held = ranks.fixed_bytes[i, :4] + ranks.layer_bytes[i, :4] * pieces
        assert held.max() == pytest.approx(float(every.memory_total_bytes[i]), rel=1e-9)


def test_layouts_of_every_kind_are_dealt_together() -> None:
    # 17 sequences leave tp x pp x cp a multiple of 8: few layouts, of many shapes
    made = scenario(gpus=104)
    recipe = replace(made.workload.recipe, global_batch=17)
    workload = replace(made.workload, recipe=recipe)
    answer = explore(workload, made.cluster, made.software, {"pp": 13}, keep=1)
    assert answer.best.fits.all()


@pytest.mark.evidence
@pytest.mark.parametrize("vpp", [1, 2])
def test_uneven_stages_played_on_events_take_as_long(vpp: int) -> None:
    split = {1: [8, 9, 9, 6], 2: [4, 4, 4, 4, 4, 5, 5, 2]}[vpp]
    made = scenario(pp=4, vpp=vpp, stages=split)
    played = simulate(made)
    assert played.step_time_s == pytest.approx(predict(made).step_time_s, rel=0.01)


def test_the_best_does_not_hang_on_how_many_are_remembered() -> None:
    """A tower of 32 light layers before 28 heavy ones: dealt by count, two ranks are far apart.

    So far that the layout that is best once its layers are dealt by time is not among the fastest
    64 before. `compare` and `size` keep so many, `plan` 512.
    """
    made = make_scenario(
        {
            "model": {"name": "qwen2.5-vl-7b"},
            "training": {"sequence_length": 4096, "global_batch": 1000},
            "cluster": {"name": "oci-h100", "gpus": 32},
            "layout": {"cp": 1, "sharding": "zero1", "rank_order": "tp-cp-dp-pp"},
        }
    )
    few, many = (
        explore_scenario(made, made.pinned, keep=keep, counts=False).best for keep in (64, 2048)
    )
    assert few.step_time_s.min() == pytest.approx(many.step_time_s.min(), rel=1e-12)
    assert few.layouts.stages[0] > 0, "its layers are dealt"
