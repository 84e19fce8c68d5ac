"""What a log tells of a difference: outside the interval, tail, warm-up, memory, ranks."""

from __future__ import annotations

from functools import cache

import numpy as np

from simulator.api import predict
from simulator.measured.log import MeasuredLog
from simulator.planner.prediction import Prediction
from simulator.scoring.log_differences import differences, how_to_trace
from simulator.scoring.logs import LogComparison


@cache
def prediction() -> Prediction:
    return predict(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, global_batch=64, tp=2)


def compared(times: list[float], dropped: int = 0, reserved: float = 0.0) -> LogComparison:
    """A log whose step times are multiples of the predicted one."""
    step_s = prediction().step_time_s
    log = MeasuredLog(
        framework="megatron",
        path="train.log",
        steps=np.arange(len(times)),
        step_times_s=np.array(times) * step_s,
        lines=np.arange(len(times)),
        dropped=dropped,
        rule="by hand",
        tokens_per_gpu=1.0,
        memory_bytes={"reserved": reserved * prediction().estimate.usable_bytes},
        ranks=(7,),
    )
    return LogComparison(log=log, prediction=prediction(), from_log={})


def test_a_value_inside_the_interval_needs_no_explanation() -> None:
    first, *rest = differences(compared([1.0] * 20))
    assert "inside P10 to P90" in first
    assert rest == []


def test_a_value_outside_is_remarked_with_the_side_and_the_edge() -> None:
    low, high = (x / prediction().step_time_s for x in prediction().interval_s)
    slow = differences(compared([2 * high] * 20))
    assert "above P90" in slow[0]
    assert "100.0 %" in slow[0]  # twice the edge
    assert any("Stragglers: the log has lines of 1 of 8 ranks" in line for line in slow)
    assert "below P10" in differences(compared([low / 2] * 20))[0]


def test_steps_far_above_the_others_are_named() -> None:
    # 18 steps of 1 and two of 10: median 1, mean 1.9
    lines = differences(compared([1.0] * 18 + [10.0] * 2))
    (tail,) = [line for line in lines if line.startswith("Incidents")]
    assert "+90.0 %" in tail
    assert "2 of 20 step lines" in tail and "that of step 18 (+" in tail and ", 19 (+" in tail


def test_two_checkpoints_in_fifty_steps_are_noticed() -> None:
    """Steps of 29 s with 0.1 s of jitter, two of 34 s: the mean is 0.6 % up."""
    chance = np.random.default_rng(0)
    times = 1.0 + 0.1 / 29 * chance.standard_normal(54)
    assert not any("Incidents" in line for line in differences(compared(list(times))))
    times[[11, 37]] += 5 / 29
    (line,) = [line for line in differences(compared(list(times))) if "Incidents" in line]
    assert "2 of 54 step lines" in line
    assert {" 11 (+", " 37 (+"} <= {line[i : i + 6] for i in range(len(line))}


def test_tukeys_outer_fence_is_where_incidents_begin() -> None:
    """Quartiles 1.0 and 1.1: three ranges of 0.1 above the third are 1.4."""
    times = [1.0] * 20 + [1.1] * 20 + [1.39, 1.41]
    (line,) = [line for line in differences(compared(times)) if "Incidents" in line]
    assert "1 of 42 step lines" in line and "that of step 41 (+" in line


def test_a_wide_spread_has_no_incident() -> None:
    lines = differences(compared([1.0, 1.3] * 12 + [1.0] * 10 + [1.4, 1.45]))
    assert not any("Incidents" in line for line in lines)
    assert any(line.startswith("Tail: the mean step is +") for line in lines)


def test_warm_up_and_full_memory_are_told() -> None:
    lines = differences(compared([11.0, 3.0] + [1.0] * 20, dropped=2, reserved=0.99))
    assert any(line.startswith("Warm-up: 2 step lines") for line in lines)  # 10 + 2 steps more
    assert any(line.startswith("Memory: 99.0 %") for line in lines)
    assert "--profile-ranks 0" in how_to_trace(compared([1.0]))
