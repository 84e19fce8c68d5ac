"""One run asked about by every command: the same figures, whatever the command and its form.

Scenarios are drawn here, apart from the generators of other tests; money, tokens and GPU-hours are
worked out by hand from them.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

import simulator
from simulator.answers import encoded
from simulator.errors import InputError

WHOLE = ("days", "usd", "kwh")
SHARED = (
    *("step_time_s", "tokens_per_s_per_gpu", "mfu", "goodput", "days_ideal", "memory_total_bytes"),
    *("memory_p90_bytes", "usable_bytes", "verdict", "deadline_chance", "budget_chance"),
    *("deadline_chance_without_factor", "budget_chance_without_factor"),
    *("usd_per_gpu_hour", "price", "checkpoint", "layout"),
)


def drawn(seed: int) -> dict[str, Any]:
    """A run that somebody might ask about: GPUs of no round number, batches that hardly divide."""
    draw = random.Random(seed)
    gpus = draw.choice([1, 3, 8, 12, 24, 56])
    return {
        "model": draw.choice(["llama-3.2-1b", "gemma-3-1b", "gpt2-xl", "qwen3-0.6b"]),
        "cluster": draw.choice(["dgx-h100", "aws-p4d", "gb200-nvl72", "l40s-pcie"]),
        "gpus": gpus,
        "sequence_length": draw.choice([512, 1024]),
        "global_batch": gpus * draw.choice([1, 3, 16]),
        "tokens": draw.choice([2e9, 7e11]),
        "deadline_days": draw.choice([0.5, 20.0]),
        "budget_usd": draw.choice([900.0, 1e5]),
        "economics": draw.choice(
            [{}, {"usd_per_gpu_hour": 1.7}, {"basis": "own", "in_use": 0.6, "own": OWN}]
        ),
        "run": draw.choice([{}, {"set": "bad"}, {"spares": {"hot": 1}}]),
    }


OWN = {"server_usd": 2e5, "remaining_value_fraction": 0.5, "support_fraction": 0.02}


def same(value: Any) -> Any:
    """A value as another table of layouts gives it: sums of the same terms in another order."""
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.evidence)
                                          for n in range(2, 40))])  # fmt: skip
def test_every_command_says_the_same_of_a_run(seed: int) -> None:
    run = drawn(seed)
    try:
        plan = simulator.plan(**run)
    except InputError as error:
        assert any(word in str(error) for word in ("economics", "whole servers")), str(error)
        return
    best = plan.document()["layouts"][0]
    cluster, gpus = run.pop("cluster"), run.pop("gpus")
    asked = {"deadline_days": run.pop("deadline_days"), "budget_usd": run.pop("budget_usd")}
    (row,) = simulator.compare(clusters=[cluster], gpus=gpus, jobs=1, **asked, **run).rows
    (tried,) = simulator.size(cluster=cluster, gpus=gpus, jobs=1, **asked, **run).tried
    offer, sized = encoded(row), encoded(tried)
    again = simulator.predict(
        cluster=cluster, gpus=gpus, **asked, **run,
        **{k: v for k, v in best["layout"].items() if k != "global_batch" and v is not None},
    ).document()["layouts"][0]  # fmt: skip
    for name in SHARED:
        assert again[name] == same(best[name]), name
        assert offer[name] == same(best[name]), name
        assert sized[name] == same(best[name]), name
    assert offer["planned_days"] == pytest.approx(best["planned_days"], rel=1e-12)
    for name in WHOLE:
        marks = {mark: best[f"{name}{end}"] for mark, end in (("p10", "_p10"), ("p50", ""))}
        if best[name] is not None:
            assert {mark: offer[name][mark] for mark in marks} == pytest.approx(marks, rel=1e-6)
    by_hand(best, run, gpus)


def by_hand(best: dict[str, Any], run: dict[str, Any], gpus: int) -> None:
    """Tokens, days, GPU-hours and money of a layout, from the scenario alone."""
    per_step = run["sequence_length"] * run["global_batch"]
    steps = run["tokens"] / per_step
    assert best["tokens_per_s_per_gpu"] == pytest.approx(per_step / best["step_time_s"] / gpus)
    assert best["days_ideal"] == pytest.approx(steps * best["step_time_s"] / 86_400)
    assert best["days"] == pytest.approx(best["days_ideal"] / best["goodput"])
    degrees = [best["layout"][name] for name in ("dp", "tp", "pp", "cp")]
    assert math.prod(degrees) == gpus
    assert best["gpu_hours"] >= 24 * best["days"] * gpus * (1 - 1e-9), "spares and racks on top"
    assert best["usd"] == pytest.approx(best["usd_per_gpu_hour"] * best["gpu_hours"])
    assert sum(best["memory_bytes"].values()) == pytest.approx(best["memory_total_bytes"])
    assert sum(best["terms_s"].values()) == pytest.approx(best["step_time_s"])
    assert (best["verdict"] == "FITS") == (best["memory_p90_bytes"] <= best["usable_bytes"])
