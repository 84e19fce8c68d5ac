"""Runs of which a few terms are given and everything else never happens."""

from collections.abc import Callable
from typing import Any

import pytest

from simulator.reliability.reliability_profile import Reliability, read_run

QUIET: dict[str, Any] = {
    "rate_factor": 1.0,
    "lemon_fraction": 0.0,
    "restart": dict.fromkeys(
        (
            *("schedule_s", "communicators_s", "communicators_per_rank_s", "warmup_s"),
            *("failing_fraction", "retry_s", "manual_fraction", "manual_s"),
        ),
        0.0,
    ),
    "storage": {"queue_nodes": 0},
    "checkpoints": {"mode": "sync", "background_fraction": 0.0},
    "spares": {"hot": 1000, "hot_s": 0.0, "cold_s": 0.0},
    "slow": {"per_node_day": 0.0, "tail_fraction": 0.0, "evaluate_every": 0},
    "maintenance": {"every_s": 0.0},
}


def over(under: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    found = dict(under)
    for name, value in table.items():
        inner = found.get(name)
        both = isinstance(inner, dict) and isinstance(value, dict)
        found[name] = over(inner, value) if both else value
    return found


@pytest.fixture(scope="session")
def quiet() -> Callable[..., Reliability]:
    """Only GPUs fail, as often as said; all that is not said takes no time."""

    def make(per_gpu_day: float = 0.0, **changes: Any) -> Reliability:
        base = read_run({}, where="test")
        causes = {
            name: {"per_device_day": per_gpu_day if name == "gpu" else 0.0, "diagnosis_s": 0.0,
                   "detection_s": 0.0, "replaced_fraction": 0.0}
            for name in base.causes
        }  # fmt: skip
        return read_run(over(over(QUIET, {"causes": causes}), changes), where="test")

    return make
