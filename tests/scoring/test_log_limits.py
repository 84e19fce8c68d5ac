"""What a log tells of a difference, on both sides of each limit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator.api import predict
from simulator.measured.log import MeasuredLog
from simulator.planner.prediction import Prediction
from simulator.scoring.log_differences import differences
from simulator.scoring.logs import LogComparison


@cache
def prediction(gpus: int = 8) -> Prediction:
    return predict(model="llama-3.1-8b", cluster="dgx-h100", gpus=gpus, global_batch=64, tp=1,
                   sharding="zero3", recompute="full")  # fmt: skip


def lines(times: list[float], *, launch: float = 0.0, gpus: int = 8, **log: Any) -> list[str]:
    """Sentences on a log of multiples of the predicted step, of which launches take a share."""
    said = prediction(gpus)
    step_s, estimate = said.step_time_s, said.estimate
    terms = {**estimate.terms_s, "launch": np.array([launch * step_s])}
    said = replace(said, estimate=replace(estimate, terms_s=terms))
    reserved = log.pop("reserved", 0.0) * estimate.usable_bytes
    given: dict[str, Any] = {
        "framework": "megatron", "path": "train.log", "steps": 100 + np.arange(len(times)),
        "step_times_s": np.array(times) * step_s, "lines": np.arange(len(times)), "dropped": 0,
        "rule": "by hand", "tokens_per_gpu": 1.0, "memory_bytes": {"device": reserved},
    }  # fmt: skip
    measured = MeasuredLog(**{**given, **log})
    return differences(LogComparison(log=measured, prediction=said, from_log={}))


def begins(found: list[str], word: str) -> list[str]:
    return [line for line in found if line.startswith(word)]


@pytest.mark.parametrize(("share", "said"), [(0.029, False), (0.031, True)])
def test_launches_of_three_percent_of_the_step(share: float, said: bool) -> None:
    found = begins(lines([1.0] * 9, launch=share), "Host")
    assert bool(found) is said
    assert not found or "Host: 3.1 % of the predicted step" in found[0]


@pytest.mark.parametrize(("share", "said"), [(0.969, False), (0.971, True)])
def test_memory_that_is_full_but_for_three_percent(share: float, said: bool) -> None:
    assert bool(begins(lines([1.0] * 9, reserved=share), "Memory")) is said


@pytest.mark.parametrize(("first", "said"), [(1.99, False), (2.01, True)])
def test_a_warm_up_of_a_step_more(first: float, said: bool) -> None:
    """The steps that are left out took a whole median step more than as many others."""
    found = begins(lines([first, *[1.0] * 9], dropped=1), "Warm-up")
    assert bool(found) is said
    assert not found or found[0].startswith("Warm-up: 1 step lines took ")
    assert not begins(lines([1.0] * 9), "Warm-up")


@pytest.mark.parametrize(("high", "said"), [(1.09, False), (1.11, True)])
def test_one_step_in_ten_that_takes_a_tenth_more(high: float, said: bool) -> None:
    """Steps of 0.8 on the other side keep the fence of incidents away."""
    found = begins(lines([0.7] * 8 + [1.0] * 8 + [high] * 5), "One step in ten")
    assert bool(found) is said
    assert not found or "takes 11.0 % more than the median" in found[0]


@pytest.mark.parametrize(("more", "said"), [(0.09, False), (0.11, True)])
def test_a_mean_of_a_hundredth_above_the_median(more: float, said: bool) -> None:
    """Two of twenty steps take a tenth more, about: a mean of 0.9 or 1.1 %, and no incident."""
    found = lines([0.95] * 6 + [1.0] * 6 + [1.05] * 6 + [1.0 + more] * 2)
    assert bool(begins(found, "Tail")) is said and not begins(found, "Incidents")


@pytest.mark.parametrize(("slow", "named", "more"), [(5, 5, ""), (6, 5, " and 1 more")])
def test_five_incidents_are_named_the_longest_first(slow: int, named: int, more: str) -> None:
    times = [1.0] * 40 + [9.0 + i for i in range(slow)]
    (found,) = begins(lines(times), "Incidents")
    steps = [100 + 40 + i for i in range(slow)]
    assert f"Incidents: {slow} of {40 + slow} step lines" in found
    assert [step for step in steps if f" {step} (+" in found] == steps[-named:]
    assert found.count("(+") == named and f"){more}:" in found
    assert found.index(f" {steps[-1]} (+") < found.index(f" {steps[-2]} (+")


@pytest.mark.parametrize(("above", "said"), [(1.009, 0), (1.011, 1)])
def test_steps_a_hundredth_above_the_others_are_no_incident(above: float, said: int) -> None:
    """All others alike: the quartiles leave no room, a hundredth of the median does."""
    assert len(begins(lines([1.0] * 20 + [above]), "Incidents")) == said


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("over", [0.99, 1.01])
def test_ranks_wait_for_the_slowest_where_there_are_several(gpus: int, over: float) -> None:
    edge = prediction(gpus).interval_s[1] / prediction(gpus).step_time_s
    found = lines([over * edge] * 9, gpus=gpus, ranks=(3, 7))
    assert bool(begins(found, "Stragglers")) is (over > 1.0 and gpus > 1)
    assert ("lies inside P10 to P90" in found[0]) is (over < 1.0)
    assert (f"lines of 2 of {gpus} ranks" in " ".join(found)) is (over > 1.0 and gpus > 1)


@pytest.mark.parametrize(("end", "word"), [(0, "below P10"), (1, "above P90")])
def test_how_far_a_median_lies_outside(end: int, word: str) -> None:
    edge = prediction().interval_s[end] / prediction().step_time_s
    found = lines([edge * (1.25 if end else 0.75)] * 9)[0]
    assert word in found and "by 25.0 %: four of five" in found
