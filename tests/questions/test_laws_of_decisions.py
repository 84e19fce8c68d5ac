"""What must hold of decisions whatever the figures: relaxing never hurts, equals compare equal."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import catalogue
from simulator.cost.step import evaluate
from simulator.economics.planning_factor import Span
from simulator.goal import Goal
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.mixed_plan import MixedOption, MixedPlan, in_order
from simulator.planner.plan import plan
from simulator.questions.compare.answer import Comparison, compare_clusters
from simulator.questions.compare.offer import Asked, Offer
from simulator.questions.compare.offers import offer
from simulator.questions.size import answer as sizing
from simulator.questions.size.answer import size_run
from simulator.scenario import Scenario, make_scenario
from simulator.search.candidates import candidates

PINS = {"tp": 2, "pp": 1, "cp": 1, "micro_batch": 1, "sharding": "zero1", "recompute": "none"}


def scenario(layout: dict[str, Any] | None = None, **more: Any) -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.2-1b"},
            "training": {"sequence_length": 4096, "global_batch": 64, "tokens": 1e10},
            "cluster": {"name": "dgx-h100", "gpus": 8},
            "layout": PINS if layout is None else layout,
            **more,
        }
    )


@pytest.mark.parametrize("freed", [name for name in PINS if name != "tp"])
def test_a_pin_less_never_worsens_the_best(freed: str) -> None:
    # Of those that are kept: the first may be one nearer to measured runs, at next to no cost.
    pinned = plan(scenario()).estimate.step_time_s.min()
    relaxed = plan(scenario({k: v for k, v in PINS.items() if k != freed})).estimate.step_time_s
    assert relaxed.min() <= pinned * (1 + 1e-12) and relaxed[0] <= 1.01 * pinned


def test_the_best_is_the_best_of_all_one_by_one() -> None:
    # A space that is small enough for brute force: every candidate that can run and fits.
    free = scenario({"pp": 1, "cp": 1})
    table = candidates(free.workload, free.cluster, free.software, free.pinned)
    able = reasons(table, free.workload, free.cluster, free.software) == FEASIBLE
    every = evaluate(table[able], free.workload, free.cluster, free.software)
    assert len(every) > 100
    best = float(every.step_time_s[every.fits].min())
    assert offer(free, Asked()).step_time_s == pytest.approx(best, rel=1e-12)
    assert float(plan(free).estimate.step_time_s[0]) == pytest.approx(best, rel=1e-12)


def test_equal_clusters_compare_equal(tmp_path: Path) -> None:
    # The same cluster under two names; only the name differs in their offers.
    twin = tmp_path / "twin.toml"
    twin.write_text(catalogue.find("clusters", "dgx-h100").read_text())
    found = compare_clusters(scenario(), ["dgx-h100", str(twin)], [8], jobs=1)
    one, other = (replace(row, cluster="") for row in found.rows)
    assert one == other
    assert len(found.pareto()) == 2 and len(found.at_equal_budget()) == 2


def test_two_equal_groups_plan_as_one() -> None:
    group = {"name": "dgx-h100", "gpus": 8}
    halves = scenario(cluster={"groups": [group, group]})
    whole = scenario(cluster={"name": "dgx-h100", "gpus": 16})
    one, other = plan(halves), plan(whole)
    assert np.array_equal(one.estimate.step_time_s, other.estimate.step_time_s)
    assert one.estimate.layouts.describe() == other.estimate.layouts.describe()


def row(days: float, usd: float, gpus: int) -> Offer:
    return Offer(
        cluster=f"c{gpus}",
        gpus=gpus,
        feasible=True,
        step_time_s=days,
        days=Span(p50=days, log_spread=0.1),
        usd=Span(p50=usd, log_spread=0.2),
        kwh=Span(p50=usd, log_spread=0.1),
        memory_headroom=0.1,
    )


def test_more_money_or_time_never_loses_an_offer() -> None:
    rows = [row(100.0 / n, 10.0 + n, n) for n in range(1, 9)]
    for field, limits in (("budget_usd", range(8, 30)), ("deadline_days", range(5, 140, 9))):
        met: set[int] = set()
        for limit in limits:
            asked = Asked(confidence=0.9, **{field: float(limit)})
            now = {one.gpus for one in rows if one.meets(asked)}
            assert met <= now
            met = now
        assert met == {one.gpus for one in rows}


@given(
    seed=st.integers(0, 2**32 - 1),
    deadline=st.floats(1.0, 200.0),
    budget=st.floats(1.0, 200.0),
    more=st.floats(1.0, 4.0),
    confidence=st.floats(0.05, 0.95),
)
def test_relaxing_never_worsens_what_a_comparison_names(
    seed: int, deadline: float, budget: float, more: float, confidence: float
) -> None:
    """The cheapest in time, the fastest for the money, the cheapest of those that meet both."""
    draw = np.random.default_rng(seed)
    rows = tuple(
        replace(row(days, usd, gpus), cluster=f"c{gpus % 3}")
        for gpus, (days, usd) in enumerate(draw.uniform(1.0, 200.0, (12, 2)).tolist(), start=1)
    )

    def named(days: float, usd: float) -> list[list[Offer]]:
        asked = Asked(deadline_days=days, budget_usd=usd, confidence=confidence)
        found = Comparison(scenario=SMALL, asked=asked, rows=rows)
        return [found.at_deadline(), found.at_equal_budget(), found.at_both()]

    for which, strict, loose in zip(
        ("usd", "step", "usd"), named(deadline, budget), named(deadline * more, budget * more),
        strict=True,
    ):  # fmt: skip
        assert {one.cluster for one in strict} <= {one.cluster for one in loose}
        best = [min((_worth(x, which) for x in some), default=np.inf) for some in (strict, loose)]
        assert best[1] <= best[0]
        assert [_worth(one, which) for one in loose] == sorted(_worth(one, which) for one in loose)


def _worth(one: Offer, which: str) -> float:
    if which == "step":
        return one.step_time_s or np.inf
    return one.usd.p50 if one.usd else np.inf


def test_more_confidence_never_meets_more() -> None:
    one = row(50.0, 12.0, 2)
    met = [one.meets(Asked(deadline_days=55.0, confidence=c)) for c in (0.1, 0.5, 0.8, 0.95)]
    assert met == sorted(met, reverse=True) and met[0] and not met[-1]


SMALL = scenario()

LIMITS = st.none() | st.floats(0.5, 200.0)
"""A deadline in days or a budget in USD; None: none is asked."""


def relaxed(limit: float | None, more: float) -> float | None:
    return None if limit is None else limit * more


@given(
    seed=st.integers(0, 2**32 - 1),
    deadline=LIMITS,
    budget=LIMITS,
    more=st.floats(1.0, 4.0),
    confidence=st.floats(0.05, 0.95),
    less=st.floats(0.05, 1.0),
)
def test_relaxing_never_worsens_what_is_bought(
    seed: int, deadline: float | None, budget: float | None, more: float, confidence: float,
    less: float,
) -> None:  # fmt: skip
    """Whatever sizes take and cost: fewer or as many GPUs in time, as soon or sooner for the money.

    Less confidence is one more thing that is relaxed.
    """
    if deadline is None and budget is None:
        return
    draw = np.random.default_rng(seed)
    table = {n: row(float(d), float(u), n) for n, d, u in zip(
        range(1, 65), draw.uniform(0.5, 200.0, 64), draw.uniform(0.5, 200.0, 64), strict=True
    )}  # fmt: skip

    def answer(days: float | None, usd: float | None, chance: float) -> Offer | None:
        found = size_run(
            SMALL, deadline_days=days, budget_usd=usd, confidence=chance, largest=64, jobs=1
        )
        return found.answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizing, "offer_of", lambda made, name, gpus, asked: table[gpus])
        patch.setattr(sizing, "_least", lambda made, asked: 0.0)
        strict = answer(deadline, budget, confidence)
        loose = answer(relaxed(deadline, more), relaxed(budget, more), confidence * less)
    if strict is None:
        return
    assert loose is not None
    if deadline is not None:
        assert loose.gpus <= strict.gpus
    else:
        assert loose.days is not None and strict.days is not None
        assert loose.days.at(confidence * less) <= strict.days.at(confidence * less)


def way(days: float, usd: float, kwh: float, verdict: str = "FITS") -> MixedOption:
    """A way to use servers whose totals alone matter."""
    of_run = {"days": days, "usd": usd, "kwh": kwh}
    outcome = SimpleNamespace(**{name: np.array([value]) for name, value in of_run.items()})
    run: Any = SimpleNamespace(outcome=outcome, memory=SimpleNamespace(verdict=verdict))
    nothing: Any = None
    return MixedOption(
        way="stages",
        kinds=(),
        gpus=8,
        layouts=nothing,
        described="",
        micro_batches=(),
        step_s=days,
        closed_form_s=None,
        run=run,
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    deadline=LIMITS,
    budget=LIMITS,
    more=st.floats(1.0, 4.0),
    goal=st.sampled_from(["time", "cost", "energy"]),
)
def test_relaxing_never_worsens_the_way_to_use_servers_of_several_kinds(
    seed: int, deadline: float | None, budget: float | None, more: float, goal: Any
) -> None:
    draw = np.random.default_rng(seed)
    ways = [way(*drawn) for drawn in draw.uniform(0.5, 200.0, (8, 3)).tolist()]

    def best(days: float | None, usd: float | None) -> tuple[bool, float]:
        asked = Goal(minimize=goal, deadline_days=days, budget_usd=usd)
        made = replace(SMALL, goal=asked)
        first = in_order(ways, made)[0]
        return not first.meets(made), first.value(asked)

    assert best(relaxed(deadline, more), relaxed(budget, more)) <= best(deadline, budget)


def test_ways_that_may_not_fit_stand_behind_those_that_do() -> None:
    tight, safe = way(10.0, 5.0, 5.0, "TIGHT"), way(11.0, 6.0, 6.0)
    assert in_order([tight, safe], SMALL) == (safe, tight)
    assert in_order([tight, safe], replace(SMALL, allow_tight=True)) == (tight, safe)
    ways = MixedPlan(scenario=SMALL, options=(safe, tight))
    assert "9.1 % faster, if a trial run shows that it fits (TIGHT)" in ways.verdict
    alone = MixedPlan(scenario=SMALL, options=(tight,))
    assert "no way FITS" in alone.verdict


def test_an_offer_that_may_not_fit_stands_behind_those_that_do() -> None:
    safe, tight = row(10.0, 9.0, 8), replace(row(8.0, 7.0, 16), memory_verdict="TIGHT")
    rows = (replace(tight, cluster="a"), replace(safe, cluster="a"), replace(tight, cluster="b"))
    for allowed in (False, True):
        asked = Asked(deadline_days=20.0, budget_usd=20.0, allow_tight=allowed)
        found = Comparison(scenario=SMALL, asked=asked, rows=rows)
        first, second = found.at_both()
        assert (first.cluster, first.gpus) == ("a", 16 if allowed else 8)
        assert (second.cluster, second.gpus) == ("b", 16)
        assert (safe in [replace(one, cluster=safe.cluster) for one in found.pareto()]) != allowed
