"""DeepSpeed's ZeRO stages: bytes by the paper's formulas, and what its defaults make collectives.

Rajbhandari et al. 2020, figure 1: 2 + 2 + 12 bytes a parameter, of which a stage shares out 12, 14
or all 16.
"""

from typing import Any

import numpy as np
import pytest

from simulator.cost.collectives.calls import all_gather_s, all_reduce_s
from simulator.cost.pricing import price
from simulator.cost.states.gathered import released
from simulator.cost.states.state_bytes import part_states
from simulator.cost.step import Priced, evaluate
from simulator.hardware.cluster import load_cluster, with_release
from simulator.layout.layouts import Layouts
from simulator.layout.placement import Group
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

PARAMETERS = 8_030_261_248
CLUSTER, DEEP = load_cluster("dgx-h100", 8), load_software("deepspeed")
THEIRS = with_release(CLUSTER, DEEP.kernels.nccl)
WORK = Workload(
    architecture=presets.load("llama-3.1-8b"), recipe=Recipe(sequence_length=4096, global_batch=16)
)


def layout(**lay: Any) -> Layouts:
    return Layouts.of(dp=8, global_batch=16, recompute="full", **lay)


def priced(**lay: Any) -> Priced:
    return price(layout(**lay), WORK, CLUSTER, DEEP)


@pytest.mark.parametrize(
    ("stage", "bytes_each"), [("zero1", 2 + 2 + 12 / 8), ("zero2", 2 + 14 / 8), ("zero3", 16 / 8)]
)
def test_states_of_every_stage(stage: str, bytes_each: float) -> None:
    found = evaluate(layout(sharding=stage), WORK, CLUSTER, DEEP).memory_bytes
    states = sum(float(found[kind][0]) for kind in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(bytes_each * PARAMETERS, rel=1e-12)


def test_stages_one_and_two_reduce_to_everybody() -> None:
    """use_multi_rank_bucket_allreduce: an all-reduce for every bucket of 5e8 elements."""
    group = Group(size=np.array([8]), local=np.array([8]))
    buckets = -(-2 * PARAMETERS // 10**9)  # 17 of 1 GB
    each = float(all_reduce_s(THEIRS, 2 * PARAMETERS / buckets, group)[0])
    for stage in ("zero1", "zero2"):
        found = priced(sharding=stage).states.reduce_s[0, 0]
        assert found == pytest.approx(buckets * each, rel=1e-12)


def test_what_is_used_again_soon_is_not_gathered_twice() -> None:
    """max_reuse_distance of 1e9: the last 5e8 parameters of the forward pass stay."""
    table = layout(sharding="zero3")
    found = priced(sharding="zero3").states
    share = 1 - 5e8 / PARAMETERS
    assert found.part_regather_s == pytest.approx(found.part_gather_s * share, rel=1e-12)
    parts = np.array([[[32.0, 1.0, 1.0]]])
    each = part_states(WORK, DEEP, table)
    assert released(parts, each, DEEP)[0, 0] == pytest.approx(share, rel=1e-12)


def test_gathered_parameters_by_hand() -> None:
    """1 GB that waits, two blocks of 218,112,000 parameters in 2 B, a bucket of 1 GB."""
    found = evaluate(layout(sharding="zero3"), WORK, CLUSTER, DEEP).memory_bytes["gathered"][0]
    assert found == pytest.approx(2 * 5e8 + 2 * 2 * 218_112_000 + 1e9, rel=1e-12)


def test_hpz_keeps_a_secondary_copy_and_gathers_inside_its_group() -> None:
    usual, near = (
        priced(sharding="zero3").states,
        priced(sharding="zero3", reshard_after_forward=4).states,
    )
    assert (near.part_gather_s == usual.part_gather_s).all()
    group = Group(size=np.array([4]), local=np.array([4]))
    block = float(all_gather_s(THEIRS, 2.0 * 218_112_000, group)[0])
    assert near.part_regather_s[0, 0] == pytest.approx(block * (1 - 5e8 / PARAMETERS), rel=1e-12)
    more = near.state_bytes[3, 0, 0] - usual.state_bytes[3, 0, 0]
    assert more == pytest.approx(2 * 32 * 218_112_000 / 4, rel=1e-12)
