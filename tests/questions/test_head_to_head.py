"""Two layouts against each other, and a machine before and after a change."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from simulator.cost.step import evaluate
from simulator.errors import InfeasibleError, InputError
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.changes import MACHINE_CHANGES
from simulator.planner.prediction import predict
from simulator.questions.versus.answer import parse_side, versus
from simulator.questions.versus.what_if import WhatIf, parse_changes, what_if
from simulator.scenario import Scenario, make_scenario
from simulator.search.candidates import candidates

PINNED = {"pp": 1, "cp": 1, "sharding": "zero1", "recompute": "none"}


@lru_cache
def scenario(gpus: int = 16, **more: Any) -> Scenario:
    return make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 4096, "global_batch": 64, "tokens": 1e10},
            "cluster": {"name": "dgx-h100", "gpus": gpus},
            "layout": {**PINNED, **more},
        }
    )


def test_sides_are_predictions_and_terms_add_up() -> None:
    found = versus(scenario(), {"tp": 4}, {"tp": 8}, search=False)
    for i, tp in enumerate((4, 8)):
        alone = predict(scenario(), tp=tp)
        assert found.estimate.step_time_s[i] == pytest.approx(alone.step_time_s, rel=1e-12)
        assert found.certainty.p90_s[i] == pytest.approx(alone.interval_s[1])
        total = sum(pair[i] for pair in found.terms.values())
        assert total == pytest.approx(alone.step_time_s)


def test_a_searched_side_is_the_best_of_its_kind() -> None:
    # Brute force: every candidate with tp = 4 that can run and fits.
    found = versus(scenario(), {"tp": 4}, {"tp": 2})
    some = scenario()
    table = candidates(some.workload, some.cluster, some.software, {**PINNED, "tp": 4})
    able = reasons(table, some.workload, some.cluster, some.software) == FEASIBLE
    every = evaluate(table[able], some.workload, some.cluster, some.software)
    assert found.estimate.step_time_s[0] == pytest.approx(every.step_time_s[every.fits].min())


def test_turned_round_the_chances_are_turned_round() -> None:
    one = versus(scenario(), {"tp": 2}, {"tp": 4}, search=False)
    other = versus(scenario(), {"tp": 4}, {"tp": 2}, search=False)
    assert one.chance_a_faster == pytest.approx(1.0 - other.chance_a_faster)
    assert one.chance_a_faster > 0.5


def test_a_layout_ties_with_itself() -> None:
    same = versus(scenario(), {"tp": 2}, {"tp": 2}, search=False)
    assert same.chance_a_faster == 0.5 and same.tie


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp", "must be field=value"),
        ("tp=", "must be field=value"),
        ("tpp=4", "did you mean 'tp'"),
        ("tp=x", "layout.tp"),
    ],
)
def test_wrong_sides(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_side(text)


def test_a_side_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"layout\.tp"):
        versus(scenario(), {"tp": 3}, {"tp": 4}, search=False)
    with pytest.raises((InputError, InfeasibleError), match="tp"):
        versus(scenario(), {"tp": 3}, {"tp": 4})


def changed(*changes: str, tp: int = 4) -> WhatIf:
    return what_if(scenario(tp=tp, micro_batch=1), changes)


def test_no_change_changes_nothing() -> None:
    same = changed("network.adapter=1", "memory=x1", "host=+0%")
    assert same.ratio == 1.0 and same.same is not None
    assert same.same.step_time_s == float(same.before.estimate.step_time_s[0])


def test_half_the_matrix_rate_doubles_matrix_products() -> None:
    half = changed("matrix=0.5")
    assert half.same is not None
    before, after = half.before.estimate.terms_s, half.same.estimate.terms_s
    ratio = float(after["gemm"][0] / before["gemm"][0])
    assert 1.7 < ratio <= 2.0 + 1e-9  # launch floors do not double


@pytest.mark.parametrize("name", ["memory", "network.adapter", "scale_up", "matrix", "host"])
def test_better_is_never_slower(name: str) -> None:
    """The fastest counts: of layouts that hardly differ the one nearer to measured runs wins."""
    better = changed(f"{name}=+50%")
    before, after = (side.estimate.step_time_s.min() for side in (better.before, better.after))
    assert after <= before * (1.0 + 1e-9)


def test_more_memory_saves_recomputation() -> None:
    # Four sequences of 8,192 at once leave no room for all activations in 80 GB.
    pins = {"tp": 2, "pp": 1, "cp": 1, "sharding": "zero1", "micro_batch": 4}
    document = {**scenario().document, "layout": pins}
    document["training"] = {"sequence_length": 8192, "global_batch": 64}
    more = what_if(make_scenario(document), ["memory=x4"])
    before, after = more.before.estimate, more.after.estimate
    assert before.terms_s["recompute"][0] > after.terms_s["recompute"][0] == 0.0
    assert after.usable_bytes == pytest.approx(4.0 * before.usable_bytes)
    assert more.ratio < 1.0


def test_fields_of_the_scenario_change_too() -> None:
    twice = changed("training.global_batch=128")
    assert twice.after.scenario.workload.recipe.global_batch == 128
    assert 1.8 < twice.ratio < 2.1


def test_networks_as_they_would_be_built() -> None:
    # 8 adapters of 400 Gbit/s: half as many, or half as fast, leave half the bytes/s.
    some = scenario(tp=4, micro_batch=1)
    rates = []
    for text in ("network.gbps=200", "network.adapters=4"):
        (one,) = parse_changes([text])
        assert one.value is not None
        cluster, _ = MACHINE_CHANGES[one.name].made((some.cluster, some.software), one.value)
        rates.append(cluster.network_bytes_per_s_per_gpu)
    assert rates == pytest.approx([some.cluster.network_bytes_per_s_per_gpu / 2] * 2)
    slow = changed("network.oversubscription=8", "network.gbps=100")
    assert slow.ratio > 1.0 and np.isfinite(slow.ratio)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("network.adaptor=0.5", "did you mean 'network.adapter'"),
        ("memory=big", "must be a factor on bytes of device memory"),
        ("memory=0", "must be a factor"),
        ("network.adapters=2.5", "must be a whole number"),
        ("network.oversubscription=0.5", "from 1 to"),
        ("memory", "must be name=value"),
    ],
)
def test_wrong_changes(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_changes([text])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("memory=0.5", 0.5),
        ("memory=x2", 2.0),
        ("memory=+20%", 1.2),
        ("memory=-10.5 %", 0.895),
        ("memory=1000", 1000.0),
        ("memory=1e-3", 0.001),
        ("network.gbps=400", 400.0),
        ("network.gbps=100000", 100_000.0),
        ("network.adapters=1", 1.0),
        ("network.adapters=64", 64.0),
        ("scale_up.domain=65536", 65_536.0),
        ("network.oversubscription=1", 1.0),
        ("network.oversubscription=2.5", 2.5),
    ],
)
def test_a_change_is_read(text: str, value: float) -> None:
    assert [change.value for change in parse_changes([text])] == [pytest.approx(value)]


@pytest.mark.parametrize(
    "text",
    [
        "memory=1000.1", "memory=0", "memory=-100%", "memory=-120%", "memory=half", "memory=",
        "network.gbps=x2", "network.gbps=+20%", "network.gbps=100001", "network.gbps=0",
        "network.adapters=0", "network.adapters=1.5", "network.adapters=65",
        "scale_up.domain=65537", "network.oversubscription=0.9", "nothing=2", "memory",
    ],
)  # fmt: skip
def test_a_change_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="command line: --change"):
        parse_changes([text])
