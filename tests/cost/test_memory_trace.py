"""Reserved memory from a trace: the closed form's allocated, and measured peaks of torchtitan."""

import time
from typing import Any

import numpy as np
import pytest

from simulator.api import predict
from simulator.cost.memory_trace import played_micro_batches, replay_memory
from simulator.cost.rank_memory import rank_memory
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.schedules.registry import SCHEDULES
from simulator.software.profile import load_software
from simulator.units import GIB
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload


def both(
    model: str, software: str, batch: int, length: int = 8192, **layout: Any
) -> tuple[list[float], list[float], list[float]]:
    """Allocated bytes of every rank by the closed form and by the trace, and reserved by it."""
    recipe = Recipe(sequence_length=length, global_batch=batch)
    work = Workload(architecture=presets.load(model), recipe=recipe)
    table = Layouts.of(global_batch=batch, **layout)
    given = (table, work, load_cluster("dgx-h100", int(table.world[0])), load_software(software))
    ranks, played = rank_memory(*given), replay_memory(*given)
    kinds = ("communicators", "fragmentation", "context")
    outside = np.sum([ranks.kinds_bytes[kind] for kind in kinds], axis=0)
    closed = list(ranks.total_bytes - outside)
    return closed, [x.allocated_bytes for x in played], [x.reserved_bytes for x in played]


@pytest.mark.parametrize(
    ("model", "software", "layout"),
    [
        ("llama-3.1-8b", "torchtitan", {"dp": 8, "sharding": "zero3"}),
        ("llama-3.1-8b", "torchtitan", {"dp": 8, "sharding": "zero3", "recompute": "full"}),
        ("llama-3.1-70b", "torchtitan", {"dp": 8, "tp": 8, "sharding": "zero3"}),
        ("llama-3.1-8b", "megatron-core", {"dp": 8, "tp": 2, "sharding": "zero1"}),
        ("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4, "dp": 2, "sharding": "zero1"}),
        ("mixtral-8x7b", "megatron-core", {"tp": 2, "pp": 4, "dp": 2, "ep": 2}),
    ],
)
def test_the_trace_allocates_what_the_closed_form_adds_up(
    model: str, software: str, layout: dict[str, Any]
) -> None:
    closed, allocated, reserved = both(model, software, batch=64, **layout)
    assert allocated == pytest.approx(closed, rel=0.02)
    assert all(r >= a for r, a in zip(reserved, allocated, strict=True))


@pytest.mark.parametrize(
    ("dp", "recompute", "micro_batch", "measured_gib"),
    [
        (8, "selective", 2, 77.0),  # titan-002
        (128, "selective", 2, 62.0),  # titan-009
    ],
)
def test_reserved_memory_of_torchtitan(
    dp: int, recompute: str, micro_batch: int, measured_gib: float
) -> None:
    """Llama 3.1 8B at 8192 tokens, torchtitan in December 2024; nothing here is fitted."""
    _, _, (reserved,) = both(
        "llama-3.1-8b",
        "torchtitan-2024",
        batch=micro_batch * dp,
        dp=dp,
        sharding="zero3",
        recompute=recompute,
        micro_batch=micro_batch,
    )
    assert reserved / GIB == pytest.approx(measured_gib, rel=0.02)


VPP = {word: schedule.fewest_chunks for word, schedule in SCHEDULES.items()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_allocates_what_the_closed_form_adds_up(
    schedule: str, recompute: str
) -> None:
    """Action by action on four ranks: states, activations in flight, logits that wait."""
    closed, allocated, reserved = both(
        "llama-3.1-8b",
        "megatron-core",
        16,
        length=4096,
        pp=4,
        schedule=schedule,
        vpp=VPP[schedule],
        recompute=recompute,
        sharding="zero1",
    )
    # a rank of V-Min that holds all it may runs a weight pass next, of less working memory than the
    # backward pass that the closed form counts then
    within = 0.007 if schedule == "v_min" else 0.001
    assert allocated == pytest.approx(closed, rel=within if recompute != "full" else 0.006)
    assert all(r >= a for r, a in zip(reserved, allocated, strict=True))


@pytest.mark.parametrize("schedule", ["interleaved", "interleaved_zb", "zb_v", "1f1b"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_gathered_weights_and_a_loss_in_fp32_under_every_schedule(
    schedule: str, recompute: str
) -> None:
    """FSDP2 keeps weights gathered and gradients unreduced; eager torch keeps a log-softmax."""
    closed, allocated, _ = both(
        "llama-3.1-8b",
        "torchtitan",
        32,
        length=4096,
        pp=4,
        dp=2,
        schedule=schedule,
        vpp=VPP[schedule],
        recompute=recompute,
        sharding="zero3",
    )
    assert allocated == pytest.approx(closed, rel=0.006)


@pytest.mark.parametrize("schedule", ["gpipe", "looped_bfs", "dualpipe", "dualpipe_v"])
def test_where_the_closed_form_takes_two_peaks_at_once_it_is_above_the_trace(
    schedule: str,
) -> None:
    """FSDP2's unreduced gradients come after GPipe's fullest moment, DualPipe's logits before."""
    closed, allocated, _ = both(
        "llama-3.1-8b",
        "torchtitan",
        32,
        length=4096,
        pp=4,
        dp=2,
        schedule=schedule,
        vpp=VPP[schedule],
        sharding="zero3",
    )
    for by_trace, by_sum in zip(allocated, closed, strict=True):
        assert 0.85 * by_sum <= by_trace <= 1.005 * by_sum


def test_gradients_reduced_each_round_leave_two_chunks_of_them() -> None:
    """Chunks with embedding or head are larger than the mean chunk that the closed form takes."""
    given = ("llama-3.1-8b", "meta-llama3-2024", 32)
    layout = {"pp": 4, "dp": 2, "vpp": 8, "schedule": "interleaved", "sharding": "zero2"}
    closed, allocated, _ = both(*given, length=4096, **layout)
    assert allocated == pytest.approx(closed, rel=0.025)


def test_offloaded_activations_leave_two_blocks_on_the_device() -> None:
    """Of 32 equal blocks 30 in host memory, two of them on their way: 2 + 2 stay."""
    given = ("llama-3.1-8b", "torchtune-2024", 8)
    closed, kept, _ = both(*given, dp=8)
    less, away, _ = both(*given, dp=8, offload_layers=30)
    assert away == pytest.approx(less, rel=0.02)
    assert kept[0] - away[0] == pytest.approx(closed[0] - less[0], rel=0.02)
    assert away[0] < 0.7 * kept[0]


def test_offloaded_optimizer_states_are_not_allocated() -> None:
    given = ("llama-3.1-8b", "megatron-core", 8)
    closed, here, _ = both(*given, dp=8)
    less, away, _ = both(*given, dp=8, optimizer_offload="cpu")
    assert away == pytest.approx(less, rel=0.002)
    assert here[0] - away[0] == pytest.approx(closed[0] - less[0], rel=0.002)
    # fp32 weights and two fp32 moments of every parameter, no longer on the device
    assert here[0] - away[0] == pytest.approx(12 * 8_030_261_248, rel=0.01)


def test_the_trace_plays_no_more_micro_batches_than_it_needs() -> None:
    assert played_micro_batches("1f1b", 8, 1024, 1) == 16
    assert played_micro_batches("interleaved", 4, 64, 2) == 8
    assert played_micro_batches("gpipe", 4, 24, 1) == 24
    assert played_micro_batches("1f1b", 4, 3, 1) == 3


def test_frozen_layers_are_blocks_of_their_own_in_the_trace() -> None:
    recipe = Recipe(sequence_length=4096, global_batch=8, frozen_layers=8)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    table = Layouts.of(global_batch=8, dp=8, sharding="zero1")
    given = (table, work, load_cluster("dgx-h100", 8), load_software("megatron-core"))
    ranks, (played,) = rank_memory(*given), replay_memory(*given)
    kinds = ("communicators", "fragmentation", "context")
    outside = np.sum([ranks.kinds_bytes[kind] for kind in kinds], axis=0)
    assert played.allocated_bytes == pytest.approx(
        float((ranks.total_bytes - outside)[0]), rel=0.02
    )


@pytest.mark.parametrize("software", ["megatron-core", "torchtitan"])
def test_a_hundred_million_micro_batches_are_not_played_one_by_one(software: str) -> None:
    """1F1B is steady after a few; torch's pipelining has a buffer for each, more than fit."""
    many = predict(
        model="llama-3.1-8b", cluster="dgx-h100", gpus=8, software=software, pp=4, dp=2,
        global_batch=100_000_000,
    )  # fmt: skip
    layouts, at = many.estimate.layouts, many.scenario
    begun = time.process_time()
    played = replay_memory(layouts, at.workload, at.cluster, at.software)
    assert time.process_time() - begun < 5.0
    assert len(played) == (4 if software == "megatron-core" else 0)
