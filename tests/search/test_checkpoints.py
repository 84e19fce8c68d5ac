"""Checkpoints against sizes that others published, and seconds worked out by hand."""

import math
from typing import Any

import pytest

from simulator.api import plan, predict
from simulator.errors import InputError
from simulator.search.checkpoints import Checkpoint, CheckpointFile
from simulator.units import show_bytes

STORAGE = {
    "write_bytes_per_s": 40e9, "read_bytes_per_s": 100e9, "node_write_bytes_per_s": 4e9,
    "node_read_bytes_per_s": 8e9, "queue_nodes": 0,
}  # fmt: skip


def saved(model: str, gpus: int = 64, **asked: Any) -> Checkpoint:
    return predict(model=model, cluster="dgx-h100", gpus=gpus, **asked).checkpoint


def file_of(checkpoint: Checkpoint, holds: str, form: str) -> CheckpointFile:
    (found,) = [f for f in checkpoint.files if (f.holds, f.format) == (holds, form)]
    return found


@pytest.mark.parametrize(
    ("model", "total_size"),
    [
        ("llama-3.1-8b", 16_060_522_496),
        ("mixtral-8x7b", 93_405_585_408),
        ("qwen2.5-0.5b", 988_065_536),  # its embedding is tied, and written once
    ],
)
def test_export_is_what_hugging_face_lists(model: str, total_size: int) -> None:
    """`total_size` of the published model.safetensors.index.json; Qwen's file less its header."""
    assert file_of(saved(model, tp=1), "weights", "safetensors").bytes == total_size


def test_states_are_fourteen_bytes_where_weights_are_16_bit() -> None:
    """2 bytes of weights, 4 of fp32 ones, 8 of moments: BLOOM's 2.3 TB beside 329 GiB, as 14:2."""
    checkpoint = saved("llama-3.1-8b", software="megatron-core-0.16")
    assert checkpoint.bytes == 7 * 16_060_522_496
    weights = file_of(checkpoint, "weights", "sharded").bytes
    published = 2.3 * 1024**4 / (329 * 1024**3)
    assert checkpoint.bytes / weights == pytest.approx(published, rel=0.03)


def test_fsdp2_writes_fp32_weights_and_moments() -> None:
    """torchtitan's dcp of Llama 3.1 8B: 12 bytes a parameter, the weights 4 of them."""
    checkpoint = saved("llama-3.1-8b", gpus=8, software="torchtitan-0.2", sharding="zero3")
    assert checkpoint.bytes == 6 * 16_060_522_496
    assert file_of(checkpoint, "weights", "sharded").bytes == 2 * 16_060_522_496
    assert file_of(checkpoint, "weights", "safetensors").bytes == 16_060_522_496


def test_copies_in_8_bit_are_written_by_nobody() -> None:
    half, eight = (saved("llama-3.1-8b", gpus=8, precision=word) for word in ("bf16", "fp8"))
    assert eight.bytes == half.bytes


def test_adapters_are_a_file_of_their_own() -> None:
    """Rank 16 on q and v of Llama 3.1 8B (peft's count): 32 x 16 x (4096+4096 + 4096+1024) x 2."""
    checkpoint = saved("llama-3.1-8b", gpus=8, lora_rank=16, lora_targets=["q", "v"])
    assert file_of(checkpoint, "adapters", "safetensors").bytes == 32 * 16 * 13_312 * 2.0


def test_seconds_are_bytes_over_the_storage_given() -> None:
    run = {"storage": STORAGE, "checkpoints": {"every_steps": 100, "keep": 3}}
    checkpoint = saved("llama-3.1-8b", tp=2, sharding="zero1", tokens="100B", run=run)
    size = 7 * 16_060_522_496
    assert checkpoint.write_s == pytest.approx(size / 32e9)  # 8 servers of 4 GB/s
    assert checkpoint.read_s == pytest.approx(size / 64e9)
    assert checkpoint.bytes_per_gpu == pytest.approx(size / 64)
    alone = file_of(checkpoint, "states", "consolidated")
    assert (alone.servers, alone.write_s) == (1, pytest.approx(size / 4e9))
    assert alone.read_s == pytest.approx(size / 8e9)
    assert alone.fits_host is True  # 112 GB in the 2 TB of a DGX
    # asynchronous: a copy of 25 GB/s, and one per cent of the time in which it is written
    assert checkpoint.stall_s == pytest.approx(size / 64 / 25e9 + 0.01 * checkpoint.write_s)


def test_what_stays_is_the_newest_and_the_last_counts() -> None:
    job = {"model": "llama-3.1-8b", "gpus": 64, "tp": 2, "tokens": "100B"}
    every = {"every_steps": 100}
    whole = saved(**job, run={"checkpoints": every})
    recipe = predict(cluster="dgx-h100", **job).scenario.workload.recipe
    assert whole.every_steps == pytest.approx(100)
    assert whole.written == whole.kept == math.ceil(recipe.steps / 100)
    few = saved(**job, run={"checkpoints": {**every, "keep": 3}})
    assert (few.written, few.kept, few.kept_bytes) == (whole.written, 3, 3 * few.bytes)
    assert f"3 of {few.written:,} stay, {show_bytes(3 * few.bytes)}" in few.sentence()
    unbounded = f"{whole.written:,} are written; run.checkpoints.keep bounds what stays"
    assert whole.sentence().endswith(unbounded)
    short = saved("llama-3.1-8b", tp=2, run={"checkpoints": every})
    assert (short.written, short.kept, short.kept_bytes) == (None, None, None)


def test_where_nothing_fails_no_interval_is_known() -> None:
    ideal = saved("llama-3.1-8b", tp=2, tokens="100B", ideal=True)
    assert (ideal.every_s, ideal.written) == (None, None)
    assert ideal.write_s > 0.0


def test_a_plan_says_it_of_every_layout() -> None:
    answer = plan(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, tokens="10B")
    rows = answer.document()["layouts"]
    assert [row["checkpoint"]["bytes"] for row in rows] == [answer.checkpoint.bytes] * len(rows)
    assert "a checkpoint is" in answer.checkpoint.sentence()


def test_none_kept_is_refused() -> None:
    with pytest.raises(InputError, match=r"run\.checkpoints\.keep: .* equal to 1, got 0"):
        saved("llama-3.1-8b", run={"checkpoints": {"keep": 0}})


def test_writes_that_take_longer_than_the_interval_are_said() -> None:
    """112 GB at 32 GB/s are 3.5 s, in the background: no checkpoint begins before the last ends."""
    run = {"storage": STORAGE, "checkpoints": {"every_steps": 1}}
    answer = predict(
        model="llama-3.1-8b",
        cluster="dgx-h100",
        gpus=64,
        tp=2,
        sharding="zero1",
        global_batch=64,
        tokens="100B",
        run=run,
    )
    checkpoint, step_s = answer.checkpoint, answer.step_time_s
    writing_s = 7 * 16_060_522_496 / 32e9
    assert checkpoint.write_s == pytest.approx(writing_s) and step_s < writing_s
    assert checkpoint.asked_s == pytest.approx(step_s)
    soonest = math.ceil(writing_s / step_s)
    said = f"asked for: every {soonest} steps at the soonest"
    assert said in checkpoint.sentence() and "writes take longer" in checkpoint.sentence()
    run = {"storage": STORAGE, "checkpoints": {"every_steps": 100}}
    seldom = predict(
        model="llama-3.1-8b", cluster="dgx-h100", gpus=64, tp=2, tokens="100B", run=run
    ).checkpoint
    assert seldom.asked_s is None and "soonest" not in seldom.sentence()
