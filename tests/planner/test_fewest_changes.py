"""Each single choice that makes a layout faster is among the answers, the best first."""

from typing import Any

from simulator.planner.fewest_changes import LEAST_GAIN, cheapest_changes
from simulator.planner.prediction import Prediction, predict
from simulator.scenario import make_scenario

TRIED = {"pp": (1,), "micro_batch": (1, 2, 4)}
"""Fields, and values that leave the others as they are, but for what follows from them."""


def ask(**layout: Any) -> Prediction:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 8192, "global_batch": 128},
        "cluster": {"name": "dgx-h100", "gpus": 8, "software": "megatron-core"},
        "layout": layout,
    }
    return predict(make_scenario(document))


def test_every_choice_that_gains_alone_is_answered() -> None:
    layout = {"tp": 4, "pp": 2}
    now = ask(**layout)
    found = cheapest_changes(now, most=20)
    single = [change for change in found if len(change.choices) == 1]
    gains = [change.gain for change in single]
    assert gains == sorted(gains, reverse=True) and min(gains) > 0.0
    best = {change.choices[0]: change.gain for change in reversed(single)}
    for name, values in TRIED.items():
        others = [ask(**{**layout, name: value}) for value in values]
        steps = [other.step_time_s for other in others if other.fits]
        gain = now.step_time_s / min([*steps, now.step_time_s]) - 1.0
        assert gain <= max(1.1 * best.get(name, 0.0), LEAST_GAIN), name
