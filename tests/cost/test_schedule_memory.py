"""What a schedule costs in memory: copies and versions of the weights, micro-batches in flight."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.cost.memory.peak import MEMORY_KINDS, peak_memory
from simulator.cost.pricing import price
from simulator.cost.tables import select
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload


def by_rank(
    schedule: str, m: int, software: str = "megatron-core", **layout: Any
) -> dict[str, NDArray[np.float64]]:
    """Bytes of every kind on each of four pipeline ranks of Llama-3.1-8B."""
    dp = layout.get("dp", 1)
    recipe = Recipe(sequence_length=4096, global_batch=m * dp)
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    table = Layouts.of(pp=4, schedule=schedule, global_batch=m * dp, **layout)
    setting = (work, load_cluster("dgx-h100", 4 * dp), load_software(software))
    priced = price(table, *setting, every_rank=True)
    rows = select(table, priced, slice(0, 1))
    kinds = peak_memory(rows, priced).kinds_bytes[:, 0, np.argsort(rows.rank[0])]
    return dict(zip(MEMORY_KINDS, kinds, strict=True))


def test_dualpipe_holds_weights_and_gradients_of_two_stages() -> None:
    # DeepSeek-V3, table 2: parameters 2x; the mirrored rank holds the same two
    one, both = by_rank("1f1b", 16), by_rank("dualpipe", 16)
    for kind in ("weights", "gradients", "optimizer"):
        assert both[kind] == pytest.approx(one[kind] + one[kind][::-1], rel=1e-12)


@pytest.mark.parametrize("dp", [1, 4])
def test_dualpipes_mirrored_ranks_share_the_sharded_optimizer(dp: int) -> None:
    one, both = (by_rank(x, 16, dp=dp, sharding="zero1") for x in ("1f1b", "dualpipe"))
    pair = one["optimizer"] + one["optimizer"][::-1]
    assert both["optimizer"] == pytest.approx(pair / 2, rel=1e-12)
    assert both["weights"] == pytest.approx(one["weights"] + one["weights"][::-1], rel=1e-12)


def test_pipedream_stashes_a_version_for_every_micro_batch_in_flight() -> None:
    # Narayanan et al. 2019, section 3.3: n - s versions; one of gradients and optimizer states
    one, stashed = by_rank("1f1b", 1), by_rank("pipedream", 1)
    assert stashed["weights"] == pytest.approx(one["weights"] * [4, 3, 2, 1], rel=1e-12)
    for kind in ("gradients", "optimizer"):
        assert stashed[kind] == pytest.approx(one[kind], rel=1e-12)


def test_pipedream_2bw_keeps_two_versions() -> None:
    # Narayanan et al. 2021 (ICML), section 3.1
    one, double = by_rank("1f1b", 8), by_rank("pipedream_2bw", 8)
    assert double["weights"] == pytest.approx(2 * one["weights"], rel=1e-12)
    assert double["activations"] == pytest.approx(one["activations"], rel=1e-12)


def test_gpipe_holds_every_micro_batch_and_zero_bubble_as_many_as_the_first_rank() -> None:
    one = by_rank("1f1b", 8)["activations"] / [4, 3, 2, 1]
    assert by_rank("gpipe", 8)["activations"] == pytest.approx(8 * one, rel=1e-12)
    assert by_rank("zb_h1", 8)["activations"] == pytest.approx(4 * one, rel=1e-12)
    assert by_rank("zb_h2", 8)["activations"] == pytest.approx(7 * one, rel=1e-12)


def test_logits_wait_for_their_weight_pass() -> None:
    loss = {x: by_rank(x, 8)["loss"][-1] for x in ("1f1b", "zb_h1", "gpipe")}
    kept = (loss["gpipe"] - loss["1f1b"]) / 7
    assert loss["zb_h1"] == pytest.approx(loss["1f1b"] + 3 * kept, rel=1e-12)
    # 4096 tokens of a vocabulary of 128,256 in bf16 at the least
    assert kept >= 4096 * 128256 * 2


def test_a_waiting_micro_batch_keeps_the_log_softmax_alone() -> None:
    """Eager torch: the 16-bit logits are gone once the loss has been taken; 4 of 6 bytes wait.

    The final norm and the head keep 4096 x 4096 inputs of 2 bytes each beside them, and the norm
    its fp32 statistics.
    """
    eager = {"software": "torchtitan-2024", "sharding": "zero3"}
    loss = {m: by_rank("gpipe", m, **eager) for m in (8, 9)}
    wait = loss[9]["loss"][-1] - loss[8]["loss"][-1]
    logits, inputs = 4096 * 128256 * 4, 2 * 4096 * 4096 * 2
    assert wait == pytest.approx(logits + inputs, rel=1e-3)


def test_logits_of_other_micro_batches_wait_beside_a_block() -> None:
    """Full recomputation of eight micro-batches: at a block's backward pass seven have logits."""
    held = by_rank("gpipe", 8, recompute="full")["loss"][-1]
    more = by_rank("gpipe", 9, recompute="full")["loss"][-1]
    alone = by_rank("1f1b", 8, recompute="full")["loss"][-1]
    assert more - held == pytest.approx((held - alone) / 7, rel=1e-9)
