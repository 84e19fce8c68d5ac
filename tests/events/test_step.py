"""Steps worked out by hand: when each action starts, what the step takes, and why."""

from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.events.simulated_step import simulate, summarise
from simulator.events.step.streams import SPAN_KINDS, STREAMS
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload


def spans(played: Any, rank: int, stream: str = "compute") -> list[tuple[str, int, float, float]]:
    """Kind, micro-batch, start and end of a stream's spans."""
    line = summarise(played).timeline
    rows = np.flatnonzero((line.rank == rank) & (line.stream == STREAMS.index(stream)))
    return [
        (
            SPAN_KINDS[line.kind[i]],
            int(line.micro_batch[i]),
            float(line.start_s[i]),
            float(line.end_s[i]),
        )
        for i in rows
    ]


def shown(played: Any) -> dict[str, float]:
    """Terms that are not zero."""
    return {k: round(v, 9) for k, v in summarise(played).terms_s.items() if abs(v) > 1e-12}


def test_1f1b_on_two_ranks_is_the_textbook_timeline(worked: Any) -> None:
    # F 1 s, B 2 s: rank 1 works from 1 to 7 without a pause, rank 0 waits for its two gradients
    played = worked([1.0, 1.0], [2.0, 2.0], 2)
    assert spans(played, 0) == [
        ("forward", 0, 0.0, 1.0),
        ("forward", 1, 1.0, 2.0),
        ("backward", 0, 4.0, 6.0),
        ("backward", 1, 7.0, 9.0),
    ]
    assert spans(played, 1) == [
        ("forward", 0, 1.0, 2.0),
        ("backward", 0, 2.0, 4.0),
        ("forward", 1, 4.0, 5.0),
        ("backward", 1, 5.0, 7.0),
    ]
    # one forward pass before rank 1 begins, one backward pass after it has ended
    assert shown(played) == {"gemm": 6.0, "bubble_warmup": 1.0, "bubble_drain": 2.0}


def test_blocking_sends_lengthen_every_pass(worked: Any) -> None:
    # (m v + p - 1) x 2 sends: Narayanan et al. 2021; here (4 + 2) x 2 x 0.25
    played = worked([1.0] * 3, [2.0] * 3, 4, send=0.25)
    found = summarise(played)
    assert found.step_time_s == pytest.approx((4 + 2) * (3.0 + 0.5), rel=1e-12)
    assert found.terms_s["pp"] == pytest.approx(6 * 0.5, rel=1e-12)
    assert found.terms_s["bubble_warmup"] == pytest.approx(2.0)
    assert found.terms_s["bubble_drain"] == pytest.approx(4.0)
    kinds = {kind for kind, *_ in spans(played, 2, "pipeline")}
    assert kinds == {"send", "receive"}  # the last stage sends gradients, receives activations


def test_a_send_beside_compute_delays_only_who_waits_for_it(worked: Any) -> None:
    # one micro-batch: F, 0.5 s on the wire, F B, 0.5 s on the wire, B
    played = worked([1.0, 1.0], [2.0, 2.0], 1, lag=0.5)
    assert summarise(played).step_time_s == 1.0 + 0.5 + 3.0 + 0.5 + 2.0
    assert spans(played, 0, "pipeline") == [("send", 0, 1.0, 1.5)]
    assert spans(played, 1, "pipeline") == [("send", 0, 4.5, 5.0)]
    assert shown(played)["pp"] == 1.0


@pytest.mark.parametrize(
    ("schedule", "chunks", "bubble"),
    [  # p 4, F 1, I 1, W 1 per micro-batch: the table of cost/pipeline/bubble.py and its sources
        ("gpipe", 1, 9.0), ("1f1b", 1, 9.0), ("interleaved", 3, 3.0), ("looped_bfs", 3, 3.0),
        ("zb_h1", 1, 3.0), ("zb_h2", 1, 3.0), ("interleaved_zb", 3, 1.0), ("zb_v", 2, 1.5),
        ("dualpipe_v", 2, 3.0),
    ],
)  # fmt: skip
def test_equal_stages_have_the_published_bubble(
    schedule: str, chunks: int, bubble: float, worked: Any
) -> None:
    m, split = 12, schedule.startswith(("zb", "interleaved_zb", "dualpipe"))
    played = worked(
        [1.0] * 4,
        [2.0] * 4,
        m,
        schedule=schedule,
        chunks=chunks,
        weight=1.0 / chunks if split else 0.0,
    )
    found = summarise(played)
    # DualPipeV: (p - 1)(2F + I - W) / 2, DeepSeek-V3, table 2
    wanted = 3.0 * (2.0 + 1.0 - 1.0) / 2.0 if schedule == "dualpipe_v" else bubble
    assert found.step_time_s == pytest.approx(m * 3.0 + wanted, rel=1e-9)
    idle = found.terms_s["bubble_warmup"] + found.terms_s["bubble_drain"]
    assert idle == pytest.approx(wanted, rel=1e-9)


def test_pipedream_neither_fills_nor_drains(worked: Any) -> None:
    # the slowest stage's passes, m times
    played = worked([1.0, 1.5, 1.0], [2.0, 2.5, 2.0], 6, schedule="pipedream")
    assert summarise(played).step_time_s == pytest.approx(6 * 4.0, rel=1e-12)


# --- once per step -------------------------------------------------------------------------------


def test_buckets_start_when_their_gradients_are_ready(worked: Any) -> None:
    # F 1, B 2; 4 s of reduction in two buckets: the first is ready at 2 and takes until 4, the
    # second was ready at 3 and takes until 6; then the optimizer
    reduce_s, buckets = np.full((1, 1), 4.0), np.full(1, 2.0)
    played = worked(
        [1.0], [2.0], 1, dp=2, reduce_s=reduce_s, buckets=buckets, optimizer_s=np.full(1, 0.5)
    )
    assert spans(played, 0, "data") == [("reduce", -1, 2.0, 4.0), ("reduce", -1, 4.0, 6.0)]
    assert shown(played) == {"gemm": 3.0, "dp": 3.0, "optimizer": 0.5}
    found = summarise(played)
    data = STREAMS.index("data")
    assert found.busy_s[0, data] == 4.0
    assert found.exposed_s[0, data] == 3.0
    assert found.hidden_s["dp"] == 1.0


def test_buckets_of_a_pass_that_waits_begin_when_it_does(worked: Any) -> None:
    # rank 0's last B runs from 7 to 9 (see the textbook timeline): half of its gradients are there
    # at 8, so 2 s of reduction in two buckets take from 8 to 10
    reduce_s = np.array([[2.0], [0.0]])
    played = worked([1.0] * 2, [2.0] * 2, 2, dp=2, reduce_s=reduce_s, buckets=np.full(2, 2.0))
    assert spans(played, 0, "data") == [("reduce", -1, 8.0, 9.0), ("reduce", -1, 9.0, 10.0)]
    assert shown(played) == {"gemm": 6.0, "bubble_warmup": 1.0, "bubble_drain": 2.0, "dp": 1.0}


def test_chunks_reduce_as_they_end(worked: Any) -> None:
    # two chunks of B 1 s on one rank, 3 micro-batches: the second chunk's last B ends at 8, that of
    # the first at 9; each has 1 s to reduce in one bucket
    reduce_s = np.full((1, 2), 1.0)
    played = worked([1.0], [2.0], 3, schedule="interleaved", chunks=2, dp=2, reduce_s=reduce_s)
    assert spans(played, 0, "data") == [("reduce", -1, 8.0, 9.0), ("reduce", -1, 9.0, 10.0)]
    assert shown(played) == {"gemm": 9.0, "dp": 1.0}


def test_a_reduction_slows_the_pass_beside_it_on_every_rank_of_the_drain(worked: Any) -> None:
    # 0.25 s on each of two ranks: rank 1's last B ends a quarter late, rank 0's starts then
    slowed = np.zeros((2, 2, 1))
    slowed[1] = 0.25
    played = worked([1.0] * 2, [2.0] * 2, 2, overlap_slowdown_s=slowed)
    assert summarise(played).step_time_s == 9.5
    assert summarise(played).terms_s["slowdown"] == 0.25


def test_a_short_reduction_shows_its_last_bucket(worked: Any) -> None:
    # 1 s in four buckets beside a pass of 2 s: a quarter of a second follows the pass
    played = worked([1.0], [2.0], 3, dp=2, reduce_s=np.full((1, 1), 1.0), buckets=np.full(1, 4.0))
    assert summarise(played).step_time_s == pytest.approx(9.25)


def test_without_overlap_the_whole_reduction_follows(worked: Any) -> None:
    played = worked(
        [1.0],
        [2.0],
        2,
        dp=2,
        reduce_s=np.full((1, 1), 1.5),
        overlaps=(False, False),
        gather_s=np.full((1, 1), 0.5),
        buckets=np.full(1, 4.0),
    )
    assert shown(played) == {"gemm": 6.0, "dp": 2.0}


def test_a_gather_delays_the_first_pass_until_each_layer_is_there(worked: Any) -> None:
    # 4 s in two buckets beside a forward pass of 1 s: the second half of the layers starts at 4,
    # so the pass starts at 3.5
    played = worked([1.0], [2.0], 1, dp=2, gather_s=np.full((1, 1), 4.0), buckets=np.full(1, 2.0))
    assert spans(played, 0)[0] == ("forward", 0, 3.5, 4.5)
    assert shown(played) == {"gemm": 3.0, "dp": 3.5}


def test_ranks_that_end_early_hide_their_reduction_in_the_drain(worked: Any) -> None:
    # rank 1 ends 2 s before rank 0: its reduction of 2 s costs nothing, rank 0's all of it
    reduce_s = np.array([[0.0], [2.0]])
    early = worked([1.0] * 2, [2.0] * 2, 2, dp=2, reduce_s=reduce_s, overlaps=(False, False))
    late = worked([1.0] * 2, [2.0] * 2, 2, dp=2, reduce_s=reduce_s[::-1], overlaps=(False, False))
    assert summarise(early).step_time_s == 9.0
    assert summarise(late).step_time_s == 11.0


def test_the_optimizer_waits_for_every_rank(worked: Any) -> None:
    played = worked(
        [1.0] * 2, [2.0] * 2, 2, optimizer_s=np.array([0.5, 1.0]), tied_embedding_sum_s=0.25
    )
    # all passes end at 9, the word table's sum at 9.25; the slowest optimizer step is the last
    assert summarise(played).step_time_s == 10.25


# --- replicas ------------------------------------------------------------------------------------


def test_a_slow_replica_holds_up_the_others_at_the_reduction(worked: Any) -> None:
    # the other replica's B takes 3 s: it ends at 2 (1 + 3) = 8, both reduce from 8 to 9
    slow = ({"forward": [1.0], "backward": [3.0]},)
    played = worked(
        [1.0],
        [2.0],
        2,
        dp=4,
        others=slow,
        reduce_s=np.full((1, 1), 1.0),
        overlaps=(False, False),
    )
    found = summarise(played)
    assert found.step_time_s == 9.0
    assert found.ranks_of.tolist() == [3, 1]
    assert spans(played, 0, "data") == [("reduce", -1, 8.0, 9.0)]
    assert found.pacing_rank == 1


def test_critical_path_says_what_the_step_is_made_of(worked: Any) -> None:
    played = worked(
        [1.0],
        [2.0],
        2,
        dp=2,
        reduce_s=np.full((1, 1), 2.0),
        overlaps=(False, False),
        optimizer_s=np.full(1, 2.0),
    )
    share = summarise(played).critical_share
    assert share["gemm"] == pytest.approx(0.6)
    assert share["dp"] == pytest.approx(0.2)
    assert share["optimizer"] == pytest.approx(0.2)
    assert sum(share.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"pp": 4, "schedule": "dualpipe", "global_batch": 4}, "dualpipe needs at least 8 micro-"),
        ({"pp": 4, "schedule": "zb_v", "vpp": 3, "global_batch": 8}, "zb_v needs vpp = 2, got 3"),
    ],
)
def test_what_no_schedule_is_defined_for_is_refused(layout: dict[str, Any], said: str) -> None:
    """Layouts that came past the checks of a scenario."""
    table = Layouts.of(**layout)
    recipe = Recipe(sequence_length=1024, global_batch=layout["global_batch"])
    work = Workload(architecture=presets.load("llama-3.1-8b"), recipe=recipe)
    with pytest.raises(InputError, match=said):
        simulate(
            table, work, load_cluster("dgx-h100", layout["pp"]), load_software("megatron-core")
        )
