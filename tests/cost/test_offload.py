"""Activations in host memory: bytes that leave the device, and copies beside the passes."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import api
from simulator.cost.step import Estimate, evaluate
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import Layouts
from simulator.planner.prediction import predict
from simulator.scenario import make_scenario
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Recipe, Workload

LLAMA = presets.load("llama-3.1-8b")  # 32 layers
CORE, TUNE = load_software("megatron-core"), load_software("torchtune-2024")
H, F, S, M = 4096, 14336, 8192, 4
BLOCK = S * (12 * H + 4 * 1024 + 6 * F + 4 * 32 + 8)  # tests/cost/test_operators.py
H100 = load_cluster("dgx-h100", 8)
PASSES = (
    "gemm", "attention", "memory_bound", "launch", "slowdown", "recompute", "tp", "cp", "ep",
)  # fmt: skip


def linked(rate: float, base: Cluster = H100) -> Cluster:
    """The cluster with copies to the host at this rate."""
    group = base.groups[0]
    node = replace(group.node, host_bytes_per_s=Figure(rate))
    return replace(base, groups=(replace(group, node=node),))


def run(
    layers: Any,
    rate: float = 50e9,
    software: Software = CORE,
    arch: Architecture = LLAMA,
    **layout: Any,
) -> Estimate:
    """Four micro-batches on each of eight ranks."""
    layout = {"dp": 8, **layout}
    batch = M * layout["dp"]
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=S, global_batch=batch))
    table = Layouts.of(global_batch=batch, offload_layers=layers, **layout)
    return evaluate(table, work, linked(rate), software)


def passes_s(found: Estimate) -> float:
    """Forward and backward passes of all micro-batches."""
    return sum(float(found.terms_s[name][0]) for name in PASSES)


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 3, 10, 31, 32])
def test_all_but_two_of_the_offloaded_blocks_leave_the_device(layers: int) -> None:
    """One is on its way and one in use: a double buffer."""
    before, after = (run(n).memory_bytes["activations"][0] for n in (0, layers))
    assert before - after == pytest.approx(BLOCK * max(layers - 2, 0), rel=1e-9, abs=1.0)


def test_full_recomputation_leaves_inputs_to_offload() -> None:
    before, after = (
        run(n, software=TUNE, recompute="full").memory_bytes["activations"][0] for n in (0, 32)
    )
    assert before == pytest.approx(32 * 2 * S * H)
    assert after == pytest.approx(2 * 2 * S * H)


def test_the_other_kinds_of_memory_stay() -> None:
    before, after = run(0), run(20)
    for kind in before.memory_bytes:
        if kind not in ("activations", "fragmentation"):
            assert after.memory_bytes[kind][0] == before.memory_bytes[kind][0], kind


def test_more_layers_never_take_more_memory_nor_less_time() -> None:
    for rate in (1e9, 50e9, 1e12):
        found = run(np.arange(33), rate)
        assert (np.diff(found.memory_total_bytes) <= 0).all()
        assert (np.diff(found.step_time_s) >= 0).all()


# --- time ---------------------------------------------------------------------------------------


def test_a_fast_link_hides_every_copy() -> None:
    found = run(32, 1e13)
    assert found.terms_s["offload"][0] == 0.0
    bare = run(0, 1e13)  # the input takes the same link
    assert found.step_time_s[0] == bare.step_time_s[0]
    # out and back, 32 blocks, four micro-batches
    assert found.hidden_s["offload"][0] == pytest.approx(2 * 32 * BLOCK * M / 1e13, rel=1e-9)


@pytest.mark.parametrize("layers", [1, 8, 32])
def test_a_slow_link_shows_what_the_passes_do_not_cover(layers: int) -> None:
    """Bytes / rate - passes: 0.1 GB/s is far too slow for either direction."""
    found, plain, rate = run(layers, 1e8, dp=1), run(0, 1e8, dp=1), 1e8
    copies = 2 * layers * BLOCK * M / rate
    assert found.hidden_s["offload"][0] == pytest.approx(passes_s(plain), rel=1e-9)
    assert found.terms_s["offload"][0] == pytest.approx(copies - passes_s(plain), rel=1e-9)
    expected = plain.step_time_s[0] + found.terms_s["offload"][0]
    assert found.step_time_s[0] == pytest.approx(expected, rel=1e-12)


def test_the_shorter_forward_pass_shows_its_copies_first() -> None:
    """Backward takes about twice as long: between the two rates only the way out is seen."""
    whole = passes_s(run(0, dp=1)) / M
    one_way = 32 * BLOCK
    # a copy of half of both passes: longer than the forward pass, shorter than the backward pass
    rate = one_way / (whole / 2)
    found = run(32, rate, dp=1)
    shown, hidden = float(found.terms_s["offload"][0]), float(found.hidden_s["offload"][0])
    assert shown + hidden == pytest.approx(M * whole, rel=1e-9)
    forward_s = whole / 2 - shown / M
    assert 0.28 < forward_s / whole < 0.40  # a third, within a band of any kernel set


@given(layers=st.integers(0, 32), rate=st.floats(1e8, 1e13), faster=st.floats(1.0, 100.0))
@settings(max_examples=settings.default.max_examples // 10)
def test_a_faster_link_is_never_slower_and_no_copy_is_lost(
    layers: int, rate: float, faster: float
) -> None:
    slow, fast = run(layers, rate), run(layers, rate * faster)
    assert fast.step_time_s[0] <= slow.step_time_s[0] * (1 + 1e-12)
    for found, own in ((slow, rate), (fast, rate * faster)):
        copied = float(found.terms_s["offload"][0] + found.hidden_s["offload"][0])
        assert copied == pytest.approx(2 * layers * BLOCK * M / own, rel=1e-9)
        assert found.hidden_s["offload"][0] >= 0


def test_tensor_parallel_ranks_copy_their_share() -> None:
    whole, cut = run(32, 1e13), run(32, 1e13, tp=8, dp=1)
    # a micro-batch of one sequence, all tensors sharded with sequence parallelism
    assert cut.hidden_s["offload"][0] == pytest.approx(whole.hidden_s["offload"][0] / 8, rel=1e-3)


def test_recomputed_blocks_copy_their_inputs_only() -> None:
    found = run(32, 1e13, TUNE, recompute="full")
    assert found.hidden_s["offload"][0] == pytest.approx(2 * 32 * 2 * S * H * M / 1e13, rel=1e-9)


def test_rows_of_a_table_do_not_see_one_another() -> None:
    table = run([0, 5, 32], 5e9)
    for i, layers in enumerate((0, 5, 32)):
        alone = run(layers, 5e9)
        assert table.step_time_s[i] == pytest.approx(alone.step_time_s[0], rel=1e-12)
        assert table.memory_total_bytes[i] == pytest.approx(alone.memory_total_bytes[0], rel=1e-12)
    assert table.terms_s["offload"][0] == table.hidden_s["offload"][0] == 0.0


# --- what a user sees ---------------------------------------------------------------------------


def test_the_layout_says_what_is_offloaded() -> None:
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 8}
    found = api.predict(**asked, offload_layers=12)
    assert found.layout["offload_layers"] == 12
    assert "offload:12" in found.estimate.layouts.describe()
    assert "offload" not in api.predict(**asked).estimate.layouts.describe()


def test_the_document_carries_the_layers_and_the_time() -> None:
    found = api.predict(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, offload_layers=31)
    (layout,) = json.loads(json.dumps(found.document()))["layouts"]
    assert layout["layout"]["offload_layers"] == 31
    assert layout["terms_s"]["offload"] + layout["hidden_s"]["offload"] > 0


def test_the_scenario_may_say_it() -> None:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": S, "global_batch": 32},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "layout": {"offload_layers": 12},
    }
    found = predict(make_scenario(document))
    assert (found.layout["offload_layers"], found.scenario.pinned) == (12, {"offload_layers": 12})
    other = predict(make_scenario(document, overrides=["layout.offload_layers=0"]))
    assert other.layout["offload_layers"] == 0
    assert found.memory_bytes < other.memory_bytes
