"""Logs with bytes changed, lost and repeated: a reading or a message, never a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.interop.logs.megatron_log import read_megatron_log
from simulator.interop.logs.mlperf_log import read_mlperf_log
from simulator.interop.logs.torchtitan_log import read_torchtitan_log
from simulator.workload.recipe import Recipe

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
READERS = {
    "megatron_2025": read_megatron_log,
    "torchtitan_0.3": read_torchtitan_log,
    "torchtitan_2024": read_torchtitan_log,
    "mlperf_4.1": read_mlperf_log,
}
PIECES = (
    b"", b"9" * 25, b"-", b",", b".", b"\n", b"\r", b"\xff", b"nan", b"Infinity", b"1e999", b"0",
    b'"', b"{", b"}", b"null", b" | ", b"step: ", b"[rank" + b"9" * 20 + b"]:",
)  # fmt: skip
TRIALS = 250


def damaged(raw: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 12)):
        begin = chance.randrange(len(raw))
        end = begin + chance.choice((0, 1, 3, 80))
        raw = raw[:begin] + chance.choice(PIECES) + raw[end:]
    return raw


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_log_is_read_or_refused(name: str, tmp_path: Path) -> None:
    raw, path, chance = (
        (LOGS / f"{name}.log").read_bytes(),
        tmp_path / "train.log",
        random.Random(1),
    )
    read = 0
    for _ in range(TRIALS):
        path.write_bytes(damaged(raw, chance))
        try:
            log = READERS[name](path, Recipe(sequence_length=64, global_batch=8), 2)
        except InputError as error:
            assert error.problems
            continue
        read += 1
        assert np.isfinite(log.step_times_s).all() and (log.step_times_s > 0).all()
        assert list(log.steps) == sorted(set(log.steps.tolist()))
        numbers = [log.median_step_s, *log.spread_s, *log.memory_bytes.values()]
        json.dumps([*numbers, log.model_tflops_per_gpu], allow_nan=False)
    assert read > TRIALS / 2
