"""Moving what the explorer's page has: the time of an answer, and memory that stays flat."""

import itertools
import json
import resource
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from simulator.explorer.web import application

MOVES, EACH_ONCE = 100, 20
MOST_S = 0.2
"""Nine of ten answers take no more of the processor, twice what they do on an idle machine or more:
on a busy one they also wait, which the times of the wall show, and their own work slows down."""

QUESTIONS = {
    "llama-3.1-70b": {"gpus": 256, "tokens": 1e12, "sequence_length": 8192, "global_batch": 1024},
    "deepseek-v3": {"gpus": 2048, "tokens": 1.5e13, "sequence_length": 4096, "global_batch": 15360},
}


@pytest.mark.benchmark(group="explorer")
@pytest.mark.parametrize("model", QUESTIONS)
def test_nine_of_ten_moves_are_answered_within_200_ms(benchmark: Any, model: str) -> None:
    start = {"model": model, "cluster": "dgx-h100", **QUESTIONS[model]}
    clock = itertools.count()
    pages = TestClient(
        application(clock=lambda: float(next(clock))),
        base_url="http://127.0.0.1",
        client=("127.0.0.1", 1),
    )
    searched = pages.get("/api/search", params={"q": json.dumps(start)}).json()
    gpus, length = start["gpus"], start["sequence_length"]
    moves = itertools.cycle(
        [
            *({"gpus": gpus * n // 8} for n in (4, 6, 8, 10, 12, 16, 24, 32)),
            *({"pins": {"tp": n}} for n in (1, 2, 4, 8)),
            *({"pins": {"recompute": word}} for word in ("none", "selective", "full")),
            *({"sequence_length": length * n // 2} for n in (1, 2, 4)),
            *({"deadline_days": n, "minimize": "cost"} for n in (30, 90)),
        ]
    )
    walls: list[float] = []
    spent: list[float] = []

    def move() -> None:
        asked = {"q": json.dumps({**start, **next(moves)}), "last": searched["key"]}
        began, own = time.perf_counter(), time.process_time()
        reply = pages.get("/api/now", params=asked)
        spent.append(time.process_time() - own)
        walls.append(time.perf_counter() - began)
        assert reply.status_code == 200, reply.text

    benchmark.pedantic(move, rounds=MOVES)
    while len(spent) < EACH_ONCE:  # where benchmarks are off, that was one move
        move()
    p50, p90 = np.quantile(walls, [0.5, 0.9])
    own = float(np.quantile(spent, 0.9))
    benchmark.extra_info |= {"p50_ms": round(1e3 * p50), "p90_ms": round(1e3 * p90)}
    benchmark.extra_info["p90_process_ms"] = round(1e3 * own)
    benchmark.extra_info["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    assert own < MOST_S
