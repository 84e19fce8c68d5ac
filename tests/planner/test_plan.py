"""The search: nothing is lost in the count, the goal ranks, a miss says what came nearest."""

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.estimate import VERDICTS, Estimate
from simulator.cost.memory.peak import lasting_bytes
from simulator.cost.step import evaluate, least_step_s, memory_needs
from simulator.economics.planning_factor import planning_factor
from simulator.errors import InfeasibleError
from simulator.files import Figure
from simulator.layout.layouts import SHARDINGS
from simulator.layout.rules.feasibility import FEASIBLE, REASONS, reasons
from simulator.layout.rules.rule import Setting
from simulator.layout.rules.software_rules import UNSAID, sayable
from simulator.planner.layout_row import layout_rows
from simulator.planner.plan import Plan, alternatives, plan
from simulator.planner.prediction import predict
from simulator.planner.sensitivity import binding, memory_margin
from simulator.questions.plan.screen import missed_goals
from simulator.report.wording import goal_words
from simulator.scenario import Scenario, make_scenario
from simulator.search import explore as exploring
from simulator.search.candidates import candidates, families
from simulator.search.explore import HEADROOM, TOO_LARGE, UNTRIED, explore, fastest_of_pairs
from simulator.search.memory_filter import every_row, least_first, open_space
from simulator.search.with_failures import priced
from simulator.units import show_percent, show_usd
from tests.search.test_never_beaten import drawn_scenario

FACTOR = planning_factor().value


def scenario(**sections: Mapping[str, Any]) -> Scenario:
    """Llama 3.1 8B on 32 H100s, with sections or fields replaced."""
    document: dict[str, dict[str, Any]] = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 8192, "global_batch": 64, "tokens": 1e11},
        "cluster": {"name": "dgx-h100", "gpus": 32},
    }
    for name, fields in sections.items():
        document.setdefault(name, {}).update(fields)
    return make_scenario(document)


def parts(of: Scenario) -> tuple[Any, ...]:
    return of.workload, of.cluster, of.software, of.pinned


@pytest.fixture(scope="module")
def free() -> Plan:
    """The answer to the plain scenario, which nothing pins."""
    return plan(scenario())


@pytest.fixture(scope="module")
def refused() -> str:
    """What is said where nothing fits: 70 B parameters on 8 GPUs."""
    with pytest.raises(InfeasibleError) as error:
        plan(scenario(**LARGE, cluster={"gpus": 8}))
    return str(error.value)


LARGE = {
    "model": {"name": "llama-3.1-70b"},
    "training": {"sequence_length": 8192, "global_batch": 64, "tokens": 1e11},
}


FEW = {"tp": 2, "recompute": "none"}
"""Leaves some hundred layouts: enough to rank."""


@pytest.mark.parametrize("software", ["megatron-core", "torchtitan", "megatron-lm-2022"])
def test_dropped_and_feasible_layouts_add_up_to_all(software: str) -> None:
    found = explore(*parts(scenario(cluster={"software": software, "gpus": 8})))
    assert found.feasible + sum(found.dropped.values()) == found.layouts
    assert found.evaluated == found.feasible + found.dropped.get(TOO_LARGE, 0)
    assert set(found.dropped) <= {*REASONS[1:], TOO_LARGE, UNTRIED, UNSAID}
    assert all(count > 0 for count in found.dropped.values())


def test_the_count_is_that_of_judging_and_evaluating_every_row() -> None:
    of = scenario()
    table = candidates(*parts(of))
    at = Setting(workload=of.workload, cluster=of.cluster, software=of.software)
    able = (reasons(table, *parts(of)[:3]) == FEASIBLE) & sayable(table, at, of.pinned)
    every = evaluate(table[able], *parts(of)[:3])
    found = explore(*parts(of)[:3], {**parts(of)[3], "stages": ()}, keep=100, walks=False)
    assert found.layouts == len(table)
    if UNTRIED not in found.dropped:
        assert found.evaluated == len(every)
    assert found.feasible == every.fits.sum()
    for listed, code in ((found.best, "FITS"), (found.tight, "TIGHT")):
        mine = every.step_time_s[every.verdict == VERDICTS.index(code)]
        assert listed.step_time_s.tolist() == np.sort(mine)[: len(listed)].tolist()
        assert set(listed.to_frame()["memory_verdict"]) <= {code}
    assert len(found.best) == 100
    allowed = explore(*parts(of)[:3], {**parts(of)[3], "stages": ()}, keep=100, allow_tight=True)
    fits = np.sort(every.step_time_s[every.fits])[:100]
    assert allowed.best.step_time_s.tolist() == fits.tolist() and not len(allowed.tight)
    near = every.memory_total_bytes <= HEADROOM * every.usable_bytes
    assert found.roomy.step_time_s.tolist() == np.sort(every.step_time_s[near])[:100].tolist()
    assert found.fastest_too_large is not None
    assert found.fastest_too_large.step_time_s[0] == every.step_time_s[near & ~every.fits].min()
    assert found.timed < len(every) / 4, "few have to be timed to know the fastest"


SPACES = {
    "dense": {},
    "experts": {
        "model": {"name": "mixtral-8x7b"},
        "training": {"sequence_length": 4096},
        "cluster": {"gpus": 16},
        "layout": {"micro_batch": 1},
    },
    "fsdp": {"cluster": {"software": "torchtitan", "gpus": 16}},
    "short pipelines": {"training": {"global_batch": 8}, "cluster": {"gpus": 8}},
    "host": {
        "cluster": {"software": "deepspeed", "gpus": 8},
        "layout": {"optimizer_offload": "cpu"},
    },
    "activations on the host": {
        "cluster": {"gpus": 8},
        "layout": {"offload_layers": 8, "recompute": "none", "pp": 1},
    },
    "any schedule": {
        "cluster": {"software": "torchtitan", "gpus": 8},
        "layout": {"schedule": "any", "recompute": "none"},
    },
    "large micro-batches": {
        "model": {"name": "bert-large"},
        "training": {"sequence_length": 512, "global_batch": 4096},
        "cluster": {"gpus": 8},
        "layout": {"pp": 1, "cp": 1},
    },
    "fp8": {"training": {"precision": "fp8"}, "cluster": {"gpus": 8}},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SPACES)
def test_the_answer_is_that_of_pricing_every_layout(name: str) -> None:
    of = scenario(**SPACES[name])
    quick, whole = (explore(*parts(of), keep=40, exhaustive=x) for x in (False, True))
    assert quick.feasible == whole.feasible
    if "schedule" not in of.pinned:
        assert quick.layouts == whole.layouts
    if UNTRIED not in quick.dropped:
        assert quick.dropped == whole.dropped
        assert quick.evaluated == whole.evaluated
    assert whole.timed == whole.evaluated >= quick.evaluated >= quick.timed
    for few, many in (
        (quick.best, whole.best),
        (quick.tight, whole.tight),
        (quick.roomy, whole.roomy),
    ):
        assert few.step_time_s.tolist() == pytest.approx(many.step_time_s.tolist(), rel=1e-12)
        for i in range(len(few)):
            assert few.layouts.row(i) == many.layouts.row(i)
    for one, other in (
        (quick.fastest_too_large, whole.fastest_too_large),
        (quick.fastest_safe, whole.fastest_safe),
    ):
        assert (one is None) == (other is None)
        assert one is None or other is None or one.layouts.row() == other.layouts.row()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by_keys", [False, True])
@pytest.mark.parametrize("looked_at", [16, 16384])
@pytest.mark.parametrize("name", [*SPACES, "nothing fits"])
def test_what_is_fast_is_found_without_counting_what_fits(
    name: str, looked_at: int, by_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {**LARGE, "cluster": {"gpus": 8}}
    of = scenario(**(nothing if name == "nothing fits" else SPACES[name]))
    monkeypatch.setattr(exploring, "_LOOKED_AT", looked_at)
    if by_keys:
        monkeypatch.setattr(exploring, "_MANY", 0)
        monkeypatch.setattr(exploring, "_OPENED", 8 * looked_at)
    quick, whole = (explore(*parts(of), keep=4, counts=x) for x in (False, True))
    assert quick.layouts == whole.layouts and quick.evaluated <= whole.evaluated
    assert by_keys or quick.evaluated == whole.evaluated
    assert bool(quick.feasible) == bool(whole.feasible) and quick.feasible <= whole.feasible
    for few, many in (
        (quick.best, whole.best),
        (quick.tight, whole.tight),
        (quick.roomy, whole.roomy),
    ):
        assert few.step_time_s.tolist() == many.step_time_s.tolist()
        assert [few.layouts.row(i) for i in range(len(few))] == [
            many.layouts.row(i) for i in range(len(many))
        ]
    assert (name == "nothing fits") == (not quick.feasible) == (quick.nearest_miss is not None)
    if quick.nearest_miss is not None and whole.nearest_miss is not None:
        assert quick.nearest_miss.layouts.row() == whole.nearest_miss.layouts.row()
        assert by_keys or quick.dropped == whole.dropped


PAIRS = [(tp, pp) for tp in (1, 4) for pp in (1, 2, 8)]
SEARCHED_FEW: dict[str, Any] = {"keep": 32, "counts": False, "near_miss": False, "walks": False}


@pytest.fixture(scope="module", params=[{}, {**LARGE, "cluster": {"gpus": 64}}], ids=["8B", "70B"])
def alone(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[Estimate]]:
    """The fastest of each pair of degrees, searched one by one."""
    of = scenario(**request.param)
    every = [explore(*parts(of)[:3], {"tp": tp, "pp": pp}, **SEARCHED_FEW).best for tp, pp in PAIRS]
    return request.param, [x.take(np.argsort(x.step_time_s, kind="stable")[:1]) for x in every]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["by rows", "by keys", "of what was kept"])
def test_pairs_of_degrees_searched_together_are_those_searched_alone(
    alone: tuple[dict[str, Any], list[Estimate]], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 70B on 64 GPUs the pairs of few ranks do not fit."""
    sections, best = alone
    setting = parts(scenario(**sections))[:3]
    if way == "by keys":
        monkeypatch.setattr(exploring, "_MANY", 0)
        monkeypatch.setattr(exploring, "_OPENED", 128)
    near = explore(*setting, keep_near=True, walks=False).near if way == "of what was kept" else ()
    together = fastest_of_pairs(setting, {}, PAIRS, near=near)
    assert bool(near) == (way == "of what was kept")
    for one, other in zip(together, best, strict=True):
        assert one.step_time_s.tolist() == pytest.approx(other.step_time_s.tolist(), rel=1e-12)
        assert [one.layouts.row(i) for i in range(len(one))] == [
            other.layouts.row(i) for i in range(len(other))
        ]
    assert all(map(len, best)) == (not sections)


def test_why_nothing_can_run_is_counted_over_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    of = scenario(layout={"tp": 3})
    whole = explore(*parts(of), counts=False)
    monkeypatch.setattr(exploring, "_MANY", 0)
    by_keys = explore(*parts(of), counts=False)
    assert whole.dropped and by_keys.dropped == whole.dropped
    assert by_keys.layouts == whole.layouts


@pytest.mark.evidence
@pytest.mark.parametrize("part", range(4))
def test_searches_by_keys_are_those_of_all_layouts(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of drawn scenarios: winners, TIGHT layouts, near misses and counts, whatever is opened."""
    for number in range(10 * part, 10 * part + 10):
        chance = random.Random(f"by keys {number}")
        of = None
        while of is None:
            of = drawn_scenario(chance)
        monkeypatch.setattr(exploring, "_MANY", 1 << 60)
        keep = chance.choice([1, 16, 64])
        whole = explore(*parts(of), keep=keep, counts=False)
        monkeypatch.setattr(exploring, "_MANY", 0)
        monkeypatch.setattr(exploring, "_OPENED", chance.choice([64, 1024, 16384]))
        by_keys = explore(*parts(of), keep=keep, counts=False)
        assert by_keys.layouts == whole.layouts
        for few, many in ((by_keys.best, whole.best), (by_keys.tight, whole.tight)):
            rows = [[x.layouts.row(i) for i in range(len(x))] for x in (few, many)]
            assert rows[0] == rows[1], number
            assert few.step_time_s.tolist() == many.step_time_s.tolist()
        miss, other = by_keys.nearest_miss, whole.nearest_miss
        assert (miss is None) == (other is None)
        if miss is not None and other is not None:
            assert miss.memory_total_bytes[0] == other.memory_total_bytes[0]


def test_micro_batches_grow_to_what_memory_holds() -> None:
    """ViT-L on 8 A100: a GPU has room for 128 images at once, and that is the fastest."""
    of = scenario(
        model={"name": "vit-large-16"},
        training={"sequence_length": 197, "global_batch": 4096},
        cluster={"name": "dgx-a100", "gpus": 8},
        layout={"tp": 1, "pp": 1, "cp": 1, "recompute": "none"},
    )
    best = explore(*parts(of), keep=1).best
    assert best.layouts.micro_batch[0] > 64
    small = predict(of, micro_batch=16, sharding="zero1").step_time_s
    assert best.step_time_s[0] < small


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SPACES)
def test_no_step_is_shorter_than_its_lower_bound(name: str) -> None:
    of = scenario(**SPACES[name])
    for family in families(*parts(of)):
        space, count = open_space(family, parts(of)[:3], 0, {})
        table = family.table()
        at = Setting(workload=of.workload, cluster=of.cluster, software=of.software)
        able = (reasons(table, *parts(of)[:3]) == FEASIBLE) & sayable(table, at, {})
        assert count.tolist()[0] == able.sum()
        assert count.sum() == len(table)
        if space is None:
            continue
        layouts, priced = space.mixed(every_row(space))
        every = evaluate(layouts, *parts(of)[:3])
        least_s = least_step_s(layouts, priced)
        assert (least_s <= every.step_time_s).all()
        piped = layouts.pp == 1
        if piped.any():
            assert np.median((least_s / every.step_time_s)[piped]) > 0.5, "it is of some use"
        if not layouts.offload_layers.any():
            needs = memory_needs(layouts, priced)
            assert needs.memory_bytes.tolist() == pytest.approx(
                every.memory_total_bytes.tolist(), rel=1e-12
            )
            assert needs.fits.tolist() == every.fits.tolist()
            assert needs.safe.tolist() == (every.verdict == 0).tolist()
        held = lasting_bytes(priced)[priced.state_key]
        stay = (layouts.optimizer_offload == 0) & (layouts.parameter_offload == 0)
        assert (held <= every.memory_total_bytes)[stay].all()


@pytest.mark.evidence
def test_pieces_of_a_search_do_not_change_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = explore(*parts(scenario()))
    monkeypatch.setattr(exploring, "PIECE", 777)
    calls: list[tuple[int, int]] = []
    pieces = explore(*parts(scenario()), progress=lambda done, total: calls.append((done, total)))
    assert pieces.dropped == whole.dropped
    assert pieces.best.step_time_s.tolist() == whole.best.step_time_s.tolist()
    assert pieces.best.layouts.columns()["tp"].tolist() == whole.best.layouts.tp.tolist()
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1] == (whole.layouts, whole.layouts)


def test_keep_takes_the_first_of_the_longer_list(free: Plan) -> None:
    few, many = explore(*parts(scenario()), keep=3).best, free.found.best
    assert len(few) == 3 < 50 < len(many)
    assert few.step_time_s.tolist() == many.step_time_s[:3].tolist()


def test_more_memory_needed_than_there_is_names_the_nearest_miss(refused: str) -> None:
    of = scenario(**LARGE, cluster={"gpus": 8})
    found = explore(*parts(of))
    assert found.feasible == 0
    assert len(found.best) == 0
    table = candidates(*parts(of))
    every = evaluate(table[reasons(table, *parts(of)[:3]) == FEASIBLE], *parts(of)[:3])
    assert found.nearest_miss is not None
    least = float(every.memory_total_bytes.min())
    assert found.nearest_miss.memory_total_bytes[0] == pytest.approx(least, rel=1e-12)
    assert "nearest miss" in refused
    assert found.nearest_miss.layouts.describe() in refused
    assert "would fit: " in refused


def test_a_remedy_that_the_message_names_does_fit(refused: str) -> None:
    named = re.search(r"would fit: (\d+) GPUs", refused)
    assert named is not None
    assert explore(*parts(scenario(**LARGE, cluster={"gpus": int(named[1])}))).feasible > 0


def test_nothing_misses_where_something_fits(free: Plan) -> None:
    found = free.found
    assert found.nearest_miss is None
    assert found.fastest_too_large is not None
    assert not found.fastest_too_large.fits.any()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 4},
        {"pp": 4, "micro_batch": 2},
        {"sharding": "zero3"},
        {"recompute": "full"},
        {"sequence_parallel": False, "tp": 2},
    ],
)
def test_every_answer_keeps_what_the_scenario_pins(layout: dict[str, Any]) -> None:
    answer = plan(scenario(layout=layout))
    for i in range(len(answer.estimate)):
        row = answer.estimate.layouts.row(i)
        assert {name: row[name] for name in layout} == layout


def ranked(answer: Plan) -> dict[str, list[float]]:
    result = answer.outcome
    return {
        "time": result.days.tolist(),
        "cost": result.usd.tolist(),
        "energy": result.kwh.tolist(),
    }


@pytest.mark.parametrize("goal", ["time", "cost", "energy"])
def test_answers_stand_in_the_order_of_the_goal(goal: str) -> None:
    answer = plan(scenario(goal={"minimize": goal}, layout=FEW))
    values = list(zip(answer.estimate.verdict, ranked(answer)[goal], strict=True))
    assert len(values) > 100
    assert values == sorted(values), "what FITS first"


def test_what_meets_the_deadline_comes_before_what_misses_it() -> None:
    days = sorted(ranked(plan(scenario(layout=FEW)))["time"])
    middle = FACTOR * (days[20] + days[21]) / 2
    goal = {"minimize": "energy", "deadline_days": middle}
    answer = plan(scenario(goal=goal, layout=FEW))
    meets = answer.in_time[answer.estimate.verdict == 0].tolist()
    assert meets == sorted(meets, reverse=True)
    assert 0 < sum(meets) < len(meets)
    first = ranked(answer)["energy"][: sum(meets)]
    assert first == sorted(first)
    assert all(FACTOR * day <= middle for day in ranked(answer)["time"][: sum(meets)])


def test_what_is_within_the_budget_comes_before_what_is_not(free: Plan) -> None:
    usd = sorted(ranked(free)["cost"])
    middle = FACTOR * (usd[10] + usd[11]) / 2
    answer = plan(scenario(goal={"budget_usd": middle}))
    meets = answer.in_budget.tolist()
    assert meets == sorted(meets, reverse=True)
    assert 0 < sum(meets) < len(meets)


@pytest.mark.parametrize(
    ("times", "ideal", "met"),
    [
        (0.5 * (1.0 + FACTOR), False, False),
        (1.01, True, True),
        (0.99 * FACTOR, False, False),
        (1.01 * FACTOR, False, True),
        (0.99, True, False),
    ],
)
def test_a_goal_is_missed_where_its_chance_is_below_one_half(
    free: Plan, times: float, ideal: bool, met: bool
) -> None:
    """The median to plan for is the planning factor times the median, without it where ideal."""
    result = free.outcome
    days, usd = float(result.days_ideal[0] if ideal else result.days[0]), float(result.usd[0])
    usd *= float(result.days_ideal[0] / result.days[0]) if ideal else 1.0
    goal = {"deadline_days": times * days, "budget_usd": times * usd, "ideal": ideal}
    made = scenario(goal=goal)
    given = replace(free, scenario=made, outcome=priced(free.estimate, made))
    row = layout_rows(given)[0]
    assert (given.meets_deadline, given.meets_budget) == (met, met)
    assert (row.meets_deadline, row.meets_budget) == (met, met)
    assert (given.deadline_chance or 0.0) >= 0.5 if met else (given.deadline_chance or 0.0) < 0.5
    words = goal_words(made.goal, given.goal_chances)
    assert all(one.endswith(", at risk" if met else ", missed") for one in words)
    assert bool(missed_goals(given)) != met


def test_without_tokens_there_are_no_days_but_there_is_a_ranking() -> None:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 8192, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "goal": {"minimize": "cost"},
    }
    answer = plan(make_scenario(document))
    assert np.isnan(answer.outcome.days).all()
    assert answer.in_time.all(), "no deadline was given"
    assert answer.in_budget.all(), "no budget was given"
    steps = list(zip(answer.estimate.verdict, answer.estimate.step_time_s, strict=True))
    assert steps == sorted(steps)


def test_ideal_days_are_steps_times_the_step_time(free: Plan) -> None:
    answer = free
    steps = 1e11 / (8192 * 64)
    days = answer.estimate.step_time_s * steps / 86400
    assert answer.outcome.days_ideal.tolist() == pytest.approx(days.tolist(), rel=1e-12)
    real = days / answer.outcome.goodput
    assert answer.outcome.days.tolist() == pytest.approx(real.tolist(), rel=1e-12)
    tokens = 8192 * 64 / answer.estimate.step_time_s
    assert answer.outcome.tokens_per_s.tolist() == pytest.approx(tokens.tolist(), rel=1e-12)
    hours = real * 24 * 32  # four servers wait with no hot spare beside them
    assert answer.outcome.gpu_hours.tolist() == pytest.approx(hours.tolist(), rel=1e-12)


def test_the_naive_layout_is_data_parallel_with_the_most_sharding(free: Plan) -> None:
    answer = free
    assert answer.naive is not None
    row = answer.naive.layouts.row()
    assert (row["tp"], row["pp"], row["cp"], row["ep"]) == (1, 1, 1, 1)
    assert row["sharding"] == SHARDINGS[-1]
    assert answer.naive.step_time_s[0] >= answer.found.best.step_time_s[0]


def test_where_nothing_fits_the_first_tier_that_would_is_named() -> None:
    """70 B parameters on 16 GPUs: 16 B each leave no room for a step; host memory has it."""
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-70b"},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 16, "software": "deepspeed"},
        }
    )
    with pytest.raises(
        InfeasibleError, match=r"would fit: layout\.optimizer_offload = cpu, as dp16"
    ):
        plan(scenario)


def test_pinned_offload_is_searched_with() -> None:
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 8, "software": "deepspeed"},
            "layout": {"optimizer_offload": "cpu", "recompute": "full"},
        }
    )
    found = plan(scenario)
    assert (found.estimate.layouts.optimizer_offload == 1).all()


def test_hybrid_sharding_wins_where_gathers_over_the_network_show() -> None:
    """One micro-batch of 2,048 tokens on 512 GPUs: zero3 over all waits for every gather."""
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 2048, "global_batch": 512},
            "cluster": {"name": "dgx-h100", "gpus": 512, "software": "torchtitan"},
            "layout": {"sharding": "zero3", "tp": 1, "cp": 1, "pp": 1, "recompute": "none"},
        }
    )
    best = plan(scenario).estimate
    whole = predict(scenario).step_time_s
    assert best.layouts.shard_group[0] < 512 or 0 < best.layouts.reshard_after_forward[0] < 512
    assert best.step_time_s[0] < whole


def with_usable(of: Scenario, usable_bytes: float, **changed: Any) -> Scenario:
    """The same where a device has so many usable bytes."""
    device = of.cluster.accelerator
    device = replace(device, memory=replace(device.memory, usable_bytes=Figure(usable_bytes)))
    group = replace(of.cluster.groups[0], accelerator=device)
    return replace(of, cluster=replace(of.cluster, groups=(group,)), **changed)


def test_a_layout_whose_p90_does_not_fit_does_not_win(free: Plan) -> None:
    """With usable bytes just above the winner's P50 it stands beside one that FITS."""
    winner, line = free.estimate.layouts.row(), float(free.estimate.memory_total_bytes[0]) * 1.001
    found, bold = (plan(with_usable(free.scenario, line, allow_tight=x)) for x in (False, True))
    safe = found.estimate
    assert found.memory_verdict == "FITS" and float(safe.memory_p90_bytes[0]) <= line
    fitting = safe.verdict == 0
    assert fitting[: fitting.sum()].all(), "what FITS stands before what is TIGHT"
    assert safe.step_time_s[0] == safe.step_time_s[fitting].min()
    assert (bold.estimate.layouts.row(), bold.memory_verdict) == (winner, "TIGHT")
    place = found.tight_alternative
    assert place is not None and safe.layouts.row(place) == winner
    assert not fitting[found.pareto].sum() < len(found.pareto), "nor does it stand on the front"
    less = 1.0 - float(bold.estimate.step_time_s[0] / safe.step_time_s[0])
    said = f"{show_percent(less)} faster, if a trial run shows that it fits"
    assert said in memory_margin(found) and memory_margin(found) in binding(found)
    assert dict(alternatives(found))[place] == "better, if it fits"
    assert bold.tight_alternative is None
    more = show_percent(1.0 / (1.0 - less) - 1.0)
    said = f"The fastest that FITS is {safe.layouts.describe(0)}, {more} slower"
    assert said in memory_margin(bold)
    assert memory_margin(free) == "" and free.tight_alternative is None


def test_where_nothing_fits_for_sure_the_tight_one_is_given_and_said(free: Plan) -> None:
    """A line between the P50 of the only layout that is left and its P90: none FITS."""
    only = {"pp": 1, "cp": 1, "micro_batch": 1, "sharding": "zero1", "sequence_parallel": True}
    of = scenario(layout=FEW | only)
    least = predict(of).memory_bytes
    found = plan(with_usable(of, least * 1.0001))
    assert found.memory_verdict == "TIGHT" and found.tight_alternative is None
    assert found.estimate.memory_total_bytes[0] == pytest.approx(least)
    assert "The best layout is TIGHT: its P90 is " in memory_margin(found)
    assert "No layout FITS" in memory_margin(found)


@pytest.mark.parametrize("rows", [0, 1, 64, 1000])
@pytest.mark.parametrize("several", [3, 10**6])
def test_what_is_sorted_piece_by_piece_stands_as_in_a_stable_sort(rows: int, several: int) -> None:
    values = np.random.default_rng(0).integers(several, size=rows).astype(float)
    pieces = list(least_first(values, 64))
    assert all(len(piece) == 64 for piece in pieces[:-1])
    found = np.concatenate([np.arange(0), *pieces])
    assert found.tolist() == np.argsort(values, kind="stable").tolist()


def test_a_line_ends_with_the_money_and_a_mark_where_the_price_is_assumed() -> None:
    given = predict(scenario(economics={"usd_per_gpu_hour": 2.0}))
    assumed = predict(scenario())
    assert not given.outcome.price.assumed and assumed.outcome.price.assumed
    for found, mark in ((given, ""), (assumed, "*")):
        assert found.usd is not None
        assert found.line.endswith(f"days, {show_usd(found.usd)}{mark}")
