"""torchtitan logs of trainings that ran, whole and damaged; tests/data/logs says how made."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.interop.logs.torchtitan_log import read_torchtitan_log
from simulator.measured.log import MeasuredLog
from simulator.workload.recipe import Recipe

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
TRUTH = json.loads((LOGS / "truth.json").read_text())
RUNS = {"torchtitan_0.3": (4, 1), "torchtitan_tp2": (4, 2), "torchtitan_2024": (8, 2)}
"""Log -> sequences per step, GPUs."""
LIBRARY = LOGS / "torchtitan_0.3.log"


def read(path: Path, run: str, **options: int) -> MeasuredLog:
    batch, gpus = RUNS[run]
    return read_torchtitan_log(
        path, Recipe(sequence_length=64, global_batch=batch), gpus, **options
    )


def changed(folder: Path, text: str) -> Path:
    (folder / "train.log").write_text(text)
    return folder / "train.log"


def agrees(log: MeasuredLog, run: str) -> bool:
    """Whether the times are the clock's; tps is printed whole, some thousands here."""
    same = np.array_equal(log.steps, TRUTH[run]["steps"])
    return same and np.allclose(log.step_times_s, TRUTH[run]["step_times_s"], rtol=2e-3, atol=0)


@pytest.mark.parametrize("run", RUNS)
def test_times_and_memory_are_those_of_the_clock(run: str) -> None:
    log = read(LOGS / f"{run}.log", run)
    assert agrees(log, run)
    # printed in GiB with two decimals
    assert log.memory_bytes["reserved"] == pytest.approx(TRUTH[run]["memory_bytes"], rel=0.02)
    assert set(log.memory_bytes) == {"reserved"}
    assert log.ranks == ((0, 1) if RUNS[run][1] == 2 else ())
    # one that begins with how it was set up leaves nothing open
    assert len(log.notes) == (3 if run == "torchtitan_2024" else 0)
    assert log.software[0] == ("torchtitan" if run == "torchtitan_2024" else "torchtitan-eager")


def test_what_the_logs_say_of_their_runs() -> None:
    found = {
        run: {name: stated.value for name, stated in read(LOGS / f"{run}.log", run).stated.items()}
        for run in RUNS
    }
    same = {"pp": 1, "cp": 1, "ep": 1, "dp": 1, "micro_batch": 4, "sequence_length": 64}
    assert found["torchtitan_0.3"] == {**same, "gpus": 1, "tp": 1, "global_batch": 4}
    assert found["torchtitan_tp2"] == {**same, "gpus": 2, "tp": 2, "global_batch": 4}
    assert found["torchtitan_2024"] == {"sharding": "zero3"}  # torchtitan's default


def test_hybrid_sharding_and_context_parallelism(tmp_path: Path) -> None:
    text = LIBRARY.read_text().replace(
        "dp_replicate=1, dp_shard=1, cp=1, tp=1", "dp_replicate=2, dp_shard=4, cp=2, tp=8"
    )
    log = read(changed(tmp_path, text), "torchtitan_0.3")
    found = {name: stated.value for name, stated in log.stated.items()}
    # 2 x 4 replicas and shards, each of 2 x 8 ranks; states are shared by 4 x 2 of them
    assert (found["dp"], found["gpus"], found["shard_group"]) == (8, 128, 8)
    assert (found["cp"], found["tp"]) == (2, 8)
    pairs = text.replace("dp_shard=4", "dp_shard=2")
    log = read(changed(tmp_path, pairs), "torchtitan_0.3")
    assert log.stated["shard_group"].value == 4  # 2 shards of 2 ranks


def test_two_ranks_on_one_line_are_both_read() -> None:
    lines = (LOGS / "torchtitan_2024.log").read_text().splitlines()
    assert [line for line in lines if line.count("step:") == 2]
    assert read(LOGS / "torchtitan_2024.log", "torchtitan_2024").ranks == (0, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: re.sub(r"\x1b\[[\d;]*m", "", text),
        lambda text: text.replace("\x1b", ""),  # copied from a page that shows colours
        lambda text: text.replace("\n", "\r\n"),
        lambda text: re.sub(r"^\[rank\d\]:", "", text, flags=re.M),
        lambda text: text + text,
        lambda text: text.replace("grad_norm:", "lr: 1.0e-03  grad_norm:"),
    ],
    ids=["no colours", "stumps of colours", "crlf", "no ranks", "twice", "more fields"],
)
@pytest.mark.parametrize("run", ["torchtitan_0.3", "torchtitan_tp2"])
def test_other_shapes_of_the_same_log(run: str, change: object, tmp_path: Path) -> None:
    text = change((LOGS / f"{run}.log").read_text())  # type: ignore[operator]
    log = read(changed(tmp_path, text), run)
    if run == "torchtitan_tp2" and not log.ranks:  # one of the two ranks, whichever came last
        assert np.allclose(log.step_times_s, TRUTH[run]["step_times_s"], rtol=0.2)
    else:
        assert agrees(log, run)


def test_throughput_and_its_thousands(tmp_path: Path) -> None:
    text = re.sub(r"tflops: [\d.,]+", "tflops: 1,234.50", LIBRARY.read_text())
    text = re.sub(r"tps: ([\d,]+)", lambda m: f"tps: {1000 * int(m[1].replace(',', '')):,}", text)
    log = read(changed(tmp_path, text), "torchtitan_0.3")
    assert log.model_tflops_per_gpu == 1234.5
    expected = np.array(TRUTH["torchtitan_0.3"]["step_times_s"]) / 1000
    assert log.step_times_s == pytest.approx(expected, rel=2e-3)


def test_validation_is_no_step() -> None:
    text = (LOGS / "torchtitan_tp2.log").read_text()
    assert text.count("validate step: 12") == 2
    steps = [int(step) for step in read(LOGS / "torchtitan_tp2.log", "torchtitan_tp2").steps]
    assert steps == [1, *range(2, 25, 2)]


def test_a_cut_log_gives_no_wrong_number(tmp_path: Path) -> None:
    text = LIBRARY.read_text().rstrip()
    truth = TRUTH["torchtitan_0.3"]
    seconds = dict(zip(truth["steps"], truth["step_times_s"], strict=True))
    for cut in range(text.rindex("\n"), len(text)):
        log = read(changed(tmp_path, text[:cut]), "torchtitan_0.3")
        expected = [seconds[int(step)] for step in log.steps]
        assert log.step_times_s == pytest.approx(expected, rel=2e-3)


def test_a_speed_of_zero_is_no_reading(tmp_path: Path) -> None:
    text = re.sub(r"(step:  4 .*tps: )[\d,]+", r"\g<1>0", LIBRARY.read_text())
    log = read(changed(tmp_path, text), "torchtitan_0.3")
    assert 4 not in log.steps and len(log.steps) == len(TRUTH["torchtitan_0.3"]["steps"]) - 1
    (note,) = log.notes
    assert note.startswith("step lines that cannot be read: 1, the first is line ")


def test_no_memory_counter_is_no_memory(tmp_path: Path) -> None:
    text = re.sub(r"memory: +[\d.]+GiB", "memory: -0.00GiB", LIBRARY.read_text())
    assert read(changed(tmp_path, text), "torchtitan_0.3").memory_bytes == {}


@pytest.mark.parametrize(
    ("name", "hint"),
    [("megatron_2025", "a Megatron-LM log"), ("megatron_2023", "a Megatron-LM log"),
     ("mlperf_4.1", "an MLPerf log")],
)  # fmt: skip
def test_a_log_of_another_kind(name: str, hint: str) -> None:
    path = LOGS / f"{name}.log"
    with pytest.raises(InputError) as caught:
        read(path, "torchtitan_0.3")
    expected = f"{path}: no step line of a torchtitan log in it; it looks like {hint}"
    assert caught.value.problems == (expected,)


def test_a_run_that_died_before_its_first_step(tmp_path: Path) -> None:
    text = LIBRARY.read_text()
    path = changed(tmp_path, "".join(text.splitlines(keepends=True)[:3]))
    with pytest.raises(InputError, match=r"no step line of a torchtitan log in it$"):
        read(path, "torchtitan_0.3")
