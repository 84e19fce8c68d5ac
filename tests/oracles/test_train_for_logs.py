"""Logs made now, by a training that runs now, against that training's own clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.interop.logs.megatron_log import read_megatron_log
from simulator.interop.logs.mlperf_log import read_mlperf_log
from simulator.interop.logs.torchtitan_log import read_torchtitan_log
from simulator.workload.recipe import Recipe

pytest.importorskip("torch")

PROGRAM = Path(__file__).resolve().parent / "train_for_logs.py"
READERS = {
    "megatron": read_megatron_log,
    "megatron-2023": read_megatron_log,
    "torchtitan": read_torchtitan_log,
    "torchtitan-2024": read_torchtitan_log,
    "mlperf": read_mlperf_log,
}
ABSOLUTE_S = 4e-3
"""Megatron-LM prints tenths of a millisecond, MLPerf milliseconds at both ends of four steps."""
INTERRUPTED = 0.5
"""Share of steps in which a busy machine may stop the process between its two readings."""
TOKENS_OF_RANK = 4 * 64
STEPS, LONGEST_S = 16, 600


def training(out: Path, ranks: int, *styles: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), *styles, "--ranks", str(ranks), "--out", str(out)]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.Popen(
        [*command, "--steps", str(STEPS)],
        env=kept | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Folders with logs of one rank and of two."""
    folders = {ranks: tmp_path_factory.mktemp(f"ranks{ranks}") for ranks in (1, 2)}
    started = (
        training(folders[1], 1, "megatron-2023", "torchtitan-2024"),
        training(folders[2], 2, "megatron", "torchtitan", "mlperf"),
    )
    try:
        for child in started:
            said = child.communicate(timeout=LONGEST_S)[1]
            assert child.returncode == 0, said
    finally:
        for child in started:
            child.kill()
    return folders


@pytest.mark.parametrize(
    ("ranks", "style"),
    [(1, "megatron-2023"), (1, "torchtitan-2024"), (2, "megatron"), (2, "torchtitan"),
     (2, "mlperf")],
)  # fmt: skip
def test_a_log_made_now_gives_the_times_of_its_clock(
    made: dict[int, Path], ranks: int, style: str
) -> None:
    recipe = Recipe(sequence_length=64, global_batch=4 * ranks)
    log = READERS[style](made[ranks] / f"{style}.log", recipe, ranks)
    truth: dict[int, float] = {}
    peaks: list[float] = []
    for path in made[ranks].glob(f"{style}.[01].json"):
        told: dict[str, Any] = json.loads(path.read_text())
        peaks += [told["memory_bytes"]] if told["memory_bytes"] else []
        if style == "mlperf" and path.name.endswith("1.json"):
            continue  # rank 0 alone prints
        for step, seconds in told["entries"]:
            truth[step] = max(seconds, truth.get(step, 0.0))
    assert list(log.steps) == sorted(truth)
    expected = [truth[int(step)] for step in log.steps]
    # torchtitan rounds tps, which is tokens of the rank / seconds, to a whole number
    rounding = 0.51 * max(expected) / TOKENS_OF_RANK if log.framework == "torchtitan" else 0.0
    near = np.isclose(log.step_times_s, expected, rtol=rounding, atol=ABSOLUTE_S)
    assert near.mean() > 1.0 - INTERRUPTED
    # the oldest form says neither whether blocks were compiled nor whether they were checkpointed
    assert len(log.notes) == {"mlperf": 1, "torchtitan-2024": 2}.get(style, 0), log.notes
    if peaks:
        assert log.memory_bytes["reserved"] == pytest.approx(max(peaks), rel=0.03)
    stated = {name: found.value for name, found in log.stated.items()}
    assert stated.get("global_batch", 4 * ranks) == 4 * ranks
    assert stated.get("gpus", ranks) == ranks
