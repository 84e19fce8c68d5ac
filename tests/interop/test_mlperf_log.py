"""MLPerf logs of trainings that ran, printed by mllog itself; tests/data/logs says how made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.interop.logs.mlperf_log import read_mlperf_log
from simulator.measured.log import MeasuredLog
from simulator.workload.recipe import Recipe

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
LOG = LOGS / "mlperf_4.1.log"
TRUTH = json.loads((LOGS / "truth.json").read_text())["mlperf_4.1"]
STEPS = 4
"""Training steps between block_start and block_stop."""
CLOCK_S = 2e-3 / STEPS
"""time_ms is whole milliseconds at both ends of a block."""

Event = dict[str, Any]


def read(path: Path, *, batch: int = 4, **options: int) -> MeasuredLog:
    return read_mlperf_log(path, Recipe(sequence_length=64, global_batch=batch), 1, **options)


def events() -> Iterator[Event]:
    for line in LOG.read_text().splitlines():
        yield json.loads(line.removeprefix(":::MLLOG "))


def rewritten(folder: Path, change: Callable[[Event], Event | None]) -> Path:
    """The same events, each changed or left out."""
    lines = [change(event) for event in events()]
    path = folder / "train.log"
    path.write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines if line))
    return path


def agrees(log: MeasuredLog) -> bool:
    same = len(log.step_times_s) == len(TRUTH["step_times_s"])
    return same and np.allclose(log.step_times_s, TRUTH["step_times_s"], rtol=0, atol=CLOCK_S)


def test_blocks_are_those_of_the_clock() -> None:
    log = read(LOG)
    assert agrees(log)
    assert {name: stated.value for name, stated in log.stated.items()} == {
        "global_batch": 4,
        "sequence_length": 64,
    }
    assert log.notes == ("step times from block_start to block_stop, over the steps between them",)
    assert (log.framework, log.memory_bytes, log.model_tflops_per_gpu) == ("mlperf", {}, None)
    assert log.tokens_per_s_per_gpu == pytest.approx(256 / log.median_step_s)


def test_a_batch_of_the_log_goes_before_the_scenario() -> None:
    assert agrees(read(LOG, batch=64))


@pytest.mark.parametrize("prefix", ["0: ", "[default0]:", "2026-11-21 19:30:01 | "])
def test_anything_may_stand_before_the_mark(prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"{prefix}{x}\n" for x in LOG.read_text().splitlines()))
    assert agrees(read(path))


def test_blocks_that_name_only_their_own_size(tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        if event["key"] in ("block_start", "block_stop"):
            event["metadata"]["samples_count"] = STEPS * 4
        return event

    assert agrees(read(rewritten(tmp_path, change)))


def test_blocks_that_name_steps(tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        where = event["metadata"]
        if event["key"] in ("block_start", "block_stop"):
            where["step_num"] = where.pop("samples_count") // 4
        return event

    assert agrees(read(rewritten(tmp_path, change)))


def test_blocks_that_end_with_the_samples_so_far(tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        if event["key"] == "block_start":
            del event["metadata"]["samples_count"]
        return event

    assert agrees(read(rewritten(tmp_path, change)))


def test_throughput_where_there_are_no_blocks(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda e: None if e["key"].startswith("block") else e)
    log = read(path)
    assert log.step_times_s == pytest.approx(TRUTH["step_times_s"], rel=0.05)
    assert log.notes == ("step times from throughput of tracked_stats, in samples per second",)


def test_the_time_of_a_step_goes_before_blocks(tmp_path: Path) -> None:
    seconds = iter(TRUTH["step_times_s"])

    def change(event: Event) -> Event:
        if event["key"] == "tracked_stats":
            event["value"] = {"train_step_time": next(seconds)}
        return event

    log = read(rewritten(tmp_path, change))
    assert log.step_times_s == pytest.approx(TRUTH["step_times_s"])
    assert log.notes == ("step times from train_step_time of tracked_stats",)


def test_epochs_without_the_evaluation_inside(tmp_path: Path) -> None:
    first = next(e["time_ms"] for e in events() if e["key"] == "run_start")
    marks = [(e["key"], e["time_ms"]) for e in events()]
    last = dict(marks)["block_stop"]
    paused = dict(marks)["eval_stop"] - dict(marks)["eval_start"]
    assert paused > 0

    def change(event: Event) -> Event | None:
        if event["key"].startswith("block") or event["key"] == "tracked_stats":
            return None
        if event["key"] in ("run_start", "run_stop"):
            event["key"] = event["key"].replace("run", "epoch")
            event["metadata"] = {"epoch_num": 1}
            event["time_ms"] = first if event["key"] == "epoch_start" else last
        return event

    log = read(rewritten(tmp_path, change))
    # train_samples / global_batch_size = 24 steps in one epoch
    assert log.step_times_s == pytest.approx([(last - first - paused) / 1e3 / 24])
    assert (log.dropped, len(log.steps)) == (0, 1)
    assert log.rule == "the only step line is kept, with the warm-up that is in it"


def test_a_cut_log_gives_no_wrong_number(tmp_path: Path) -> None:
    text = LOG.read_text()
    begin = text.rindex(":::MLLOG", 0, text.rindex("block_stop"))
    whole = read(LOG).step_times_s
    path = tmp_path / "train.log"
    for cut in range(begin, begin + 120, 7):
        path.write_text(text[:cut])
        log = read(path)
        assert list(log.step_times_s) == list(whole[:-1])
    assert "step lines that cannot be read: 1, the first is line " in " ".join(log.notes)


@pytest.mark.parametrize("value", [0, -4, "four", True, None, 1e30])
def test_a_batch_that_is_none_is_passed_over(value: object, tmp_path: Path) -> None:
    def change(event: Event) -> Event:
        return event | ({"value": value} if event["key"] == "global_batch_size" else {})

    log = read(rewritten(tmp_path, change))
    assert "global_batch" not in log.stated
    assert agrees(log)


def test_nothing_timed(tmp_path: Path) -> None:
    def change(event: Event) -> Event | None:
        return event if event["key"] in ("submission_benchmark", "global_batch_size") else None

    path = rewritten(tmp_path, change)
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.problems == (f"{path}: no step line of an MLPerf log in it",)


def test_a_log_of_another_kind() -> None:
    path = LOGS / "torchtitan_0.3.log"
    with pytest.raises(InputError) as caught:
        read(path)
    expected = f"{path}: no step line of an MLPerf log in it; it looks like a torchtitan log"
    assert caught.value.problems == (expected,)
