"""Shares of a step, and the gap to its prediction by cause.

The three steps of `three_steps` are made by hand, on the streams on which torch puts products and
NCCL's kernels. What Holistic Trace Analysis 0.5.0 says of the same events is quoted where it is
used; it leaves the last step out too, and stops at the last kernel of the second.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.api import predict
from simulator.cost.terms import TERMS
from simulator.errors import InputError
from simulator.interop.traces.kineto_events import Events
from simulator.interop.traces.kineto_table import make_trace
from simulator.scenario import Scenario, make_scenario
from simulator.scoring.trace import Collective, Spans, Trace, account, measure
from simulator.scoring.trace_gap import (
    CAUSES,
    _possible,
    _same_device,
    cause_of,
    compare_trace,
)

US = 1e-6
TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "vocab_size": 256, "max_position_embeddings": 128,
}  # fmt: skip
TP = {"Process Group Name": "1", "Group size": 2, "In msg nelems": 512, "dtype": "BFloat16"}
DP = {"Process Group Name": "2", "Group size": 4, "In msg nelems": 512, "dtype": "BFloat16"}


def scenario(gpus: int = 8, **layout: Any) -> Scenario:
    return make_scenario(
        {
            "model": TINY,
            "training": {"sequence_length": 64, "global_batch": 16},
            "cluster": {"name": "dgx-h100", "gpus": gpus},
            "layout": layout,
        }
    )


class Maker:
    """A trace event by event, times in microseconds."""

    def __init__(self) -> None:
        self.events = Events()
        self.correlation = 0

    def mark(self, name: str, begin: float, end: float) -> None:
        self.events.add(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": name,
                "pid": 9,
                "tid": 9,
                "ts": begin,
                "dur": end - begin,
            }
        )

    def kernel(
        self, name: str, begin: float, end: float, *, stream: int, launch: float, **args: Any
    ) -> None:
        self.correlation += 1
        linked = {"correlation": self.correlation, **args}
        self.events.add(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": 9,
                "tid": 9,
                "ts": launch,
                "dur": 4,
                "args": linked,
            }
        )
        self.events.add(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": begin,
                "dur": end - begin,
                "args": {"device": 0, "stream": stream, **linked},
            }
        )

    def trace(self, **info: Any) -> Trace:
        head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
        return make_trace(self.events, {**head, "distributedInfo": info}, where="made by hand")


def three_steps(**info: Any) -> Trace:
    """Steps of 1000 us; in each the host launches six kernels, five of them at once."""
    made = Maker()
    for k in range(3):
        t = 1000 * k
        made.mark(f"ProfilerStep#{5 + k}", t, t + 1000)
        made.kernel("nvjet_tst_192x192", t + 100, t + 400, stream=7, launch=t + 10)
        made.kernel(
            "ncclDevKernel_AllGather_RING_LL(args)",
            t + 380,
            t + 480,
            stream=24,
            launch=t + 20,
            **{"Collective name": "_allgather_base", **TP},
        )
        made.kernel("flash_fwd_kernel", t + 450, t + 550, stream=7, launch=t + 30)
        made.kernel("triton_red_fused_rms_norm_0", t + 560, t + 600, stream=7, launch=t + 40)
        made.kernel(
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)",
            t + 590,
            t + 880,
            stream=20,
            launch=t + 50,
            **{"Collective name": "_reduce_scatter_base", **DP},
        )
        made.kernel("multi_tensor_apply_kernel", t + 900, t + 950, stream=7, launch=t + 890)
    return made.trace(**info)


# --- a step shared out ---------------------------------------------------------------------


def test_a_step_by_hand() -> None:
    step = measure(three_steps())
    assert (step.steps, step.counted) == (3, 2)
    assert step.step_s == pytest.approx(1000 * US)
    expected = {"gemm": 300, "attention": 100, "memory_bound": 40, "optimizer": 50, "other": 0}
    assert step.compute_s == pytest.approx({k: v * US for k, v in expected.items()})
    reduction, gather = step.collectives  # the more exposed first
    assert (reduction.collective.kind, gather.collective.kind) == ("reduce_scatter", "all_gather")
    assert reduction.exposed_s == pytest.approx(280 * US)
    assert reduction.hidden_s == pytest.approx(10 * US)
    assert gather.exposed_s == pytest.approx(50 * US)
    assert gather.hidden_s == pytest.approx((20 + 30) * US)
    assert (gather.calls, gather.bytes_) == (1.0, 1024.0)
    # 880 to 900: launched at 890. 950 to 1100: launched in the next step. 550 to 560: long before.
    assert step.launch_s == pytest.approx((20 + 150) * US)
    assert step.idle_s == pytest.approx(10 * US)


def test_the_same_as_holistic_trace_analysis() -> None:
    # get_temporal_breakdown: compute_time 980, non_compute_time 660; get_comm_comp_overlap: 15.38
    step = measure(three_steps())
    assert step.counted * sum(step.compute_s.values()) == pytest.approx(980 * US)
    assert step.counted * step.exposed_s == pytest.approx(660 * US)
    overlap = step.hidden_s / (step.hidden_s + step.exposed_s)
    assert 100 * overlap == pytest.approx(15.38, abs=0.005)


def test_two_marks_are_one_step_from_its_first_kernel_to_the_next_one() -> None:
    """At 100 and at 1,150 us: 1,050 us, of which it computes 300; marks alone would say 1,000."""
    made = Maker()
    for begin, late in ((0, 100), (1000, 150)):
        made.mark(f"ProfilerStep#{begin}", begin, begin + 1000)
        made.kernel("nvjet_tst", begin + late, begin + late + 300, stream=7, launch=begin + 10)
    step = measure(made.trace())
    assert (step.steps, step.counted) == (2, 1)
    assert step.step_s == pytest.approx(1050 * US)
    assert sum(step.compute_s.values()) == pytest.approx(300 * US)


def test_a_number_of_steps_overrules_the_marks() -> None:
    step = measure(three_steps(), steps=5)
    assert (step.steps, step.counted) == (5, 5)
    assert step.step_s == pytest.approx(3000 * US / 5)
    assert step.compute_s["gemm"] == pytest.approx(900 * US / 5)


def test_optimizer_steps_are_counted_where_nothing_marks_steps() -> None:
    made = Maker()
    for k in range(4):
        made.kernel("nvjet_x", 100 * k, 100 * k + 50, stream=7, launch=100 * k)
        made.mark("Optimizer.step#AdamW.step", 100 * k + 60, 100 * k + 80)
        made.kernel(
            "vectorized_elementwise_kernel",
            100 * k + 70,
            100 * k + 90,
            stream=7,
            launch=100 * k + 65,
        )
    step = measure(made.trace())
    assert step.steps == 4
    assert step.compute_s["optimizer"] == pytest.approx(20 * US)  # by who launched it, not by name
    assert step.notes == (
        "no ProfilerStep marks: the whole trace was taken, and optimizer steps were counted (4)",
    )


def test_kernels_that_run_at_once_share_their_time() -> None:
    made = Maker()
    made.kernel("nvjet_x", 0, 100, stream=7, launch=0)
    made.kernel("flash_fwd_kernel", 50, 150, stream=8, launch=0)
    step = measure(made.trace(), steps=1)
    assert step.compute_s["gemm"] == pytest.approx((50 + 25) * US)
    assert step.compute_s["attention"] == pytest.approx((50 + 25) * US)


def test_a_trace_in_which_nothing_takes_time() -> None:
    made = Maker()
    made.kernel("nvjet_x", 0, 0, stream=7, launch=-4)
    made.events.first_us = made.events.last_us = 0.0
    with pytest.raises(InputError, match="made by hand: nothing ran in this trace"):
        measure(made.trace(), steps=1)


PIECES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2)), min_size=0, max_size=12
)


@given(PIECES, PIECES)
def test_every_instant_is_counted_once(work: list[Any], talk: list[Any]) -> None:
    def spans(pieces: list[tuple[int, int, int]]) -> Spans:
        table = np.array(pieces, dtype=float).reshape(-1, 3)
        return Spans(
            start_s=table[:, 0], end_s=table[:, 0] + table[:, 1], code=table[:, 2].astype(np.int64)
        )

    found = account(spans(work), spans(talk), (5.0, 45.0), (3, 3))
    gaps = (found.gap_end_s - found.gap_start_s).sum()
    assert found.compute_s.sum() + found.exposed_s.sum() + gaps == pytest.approx(40.0)
    # One microsecond after the other: what runs in it?
    grid = np.arange(5, 45) + 0.5
    on = [{c for a, n, c in work if a < t < a + n} for t in grid]
    comm = [{c for a, n, c in talk if a < t < a + n} for t in grid]
    assert found.compute_s.sum() == pytest.approx(sum(bool(x) for x in on))
    for code in range(3):
        hidden = sum(bool(x) and code in y for x, y in zip(on, comm, strict=True))
        assert found.hidden_s[code] == pytest.approx(hidden)
    assert gaps == pytest.approx(sum(not x and not y for x, y in zip(on, comm, strict=True)))


# --- the gap to a prediction ---------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        {"tp": 2, "dp": 4},
        {"dp": 8, "sharding": "zero3"},
        {"tp": 2, "pp": 2, "recompute": "full"},
        {"tp": 2, "recompute": "selective"},
        {"cp": 2, "recompute": "full", "recompute_layers": 1},
    ],
)
def test_the_gaps_add_up(layout: dict[str, Any]) -> None:
    step = measure(three_steps())
    found = compare_trace(step, scenario(**layout))
    whole = found.prediction.step_time_s - step.step_s
    assert sum(cause.gap_s for cause in found.causes) == pytest.approx(whole, rel=1e-12)
    assert sum(found.share(cause) or 0.0 for cause in found.causes) == pytest.approx(1.0)
    sizes = [abs(cause.gap_s) for cause in found.causes]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(c.predicted_s for c in found.causes) == pytest.approx(found.prediction.step_time_s)
    assert sum(c.measured_s for c in found.causes) == pytest.approx(step.step_s)


def test_collectives_stand_beside_the_terms_of_their_group() -> None:
    found = compare_trace(measure(three_steps()), scenario(tp=2, dp=4))
    causes = {cause.name: cause for cause in found.causes}
    assert causes["tp"].measured_s == pytest.approx(50 * US)
    assert causes["data"].measured_s == pytest.approx(280 * US)
    assert causes["tp"].measured_hidden_s == pytest.approx(50 * US)
    estimate = found.prediction.estimate
    assert causes["tp"].predicted_s == pytest.approx(float(estimate.terms_s["tp"][0]))
    assert causes["data"].predicted_hidden_s == pytest.approx(
        float(estimate.hidden_s["dp"][0] + estimate.hidden_s["fsdp"][0])
    )
    assert "collectives" not in causes


def test_recomputed_blocks_count_with_the_kernels_that_they_run() -> None:
    step = measure(three_steps())
    without = compare_trace(step, scenario(tp=2, recompute="none"))
    full = compare_trace(step, scenario(tp=2, recompute="full"))
    some = {cause.name: cause.predicted_s for cause in without.causes}
    more = {cause.name: cause.predicted_s for cause in full.causes}
    assert "recompute" not in more
    # A block's backward pass holds two products for each of the forward pass, one of which is
    # repeated; the head is not repeated.
    assert some["gemm"] < more["gemm"] < some["gemm"] * 4 / 3
    assert more["attention"] > some["attention"]
    assert more["optimizer"] == pytest.approx(some["optimizer"])


def test_selective_recomputation_stays_a_line_of_its_own() -> None:
    found = compare_trace(measure(three_steps()), scenario(tp=2, recompute="selective"))
    terms = found.prediction.estimate.terms_s
    own = sum(cause.predicted_s for cause in found.causes if cause.name == "recompute")
    assert own == pytest.approx(float(terms["recompute"][0]))


def test_every_term_of_the_table_has_a_cause_but_two_that_are_spread() -> None:
    taken = [term for _, some in CAUSES.values() for term in some]
    assert len(taken) == len(set(taken))
    assert {term.name for term in TERMS} - set(taken) == {"recompute", "slowdown"}


def test_idling_of_a_pipeline_is_fill_and_drain() -> None:
    found = compare_trace(measure(three_steps()), scenario(pp=2))
    causes = {cause.name: cause for cause in found.causes}
    assert causes["pipeline"].measured_s == pytest.approx(10 * US)
    assert "idle" not in causes
    assert any("pipeline stage" in note for note in found.notes)


def test_a_trace_of_another_run_is_refused() -> None:
    step = measure(three_steps(rank=0, world_size=16))
    with pytest.raises(InputError, match=r"world_size must be cluster\.gpus .*\(8\), got 16"):
        compare_trace(step, scenario())
    large = make_scenario(
        {
            "model": {"name": "llama-3.1-8b"},
            "training": {"sequence_length": 4096, "global_batch": 8},
            "cluster": {"name": "dgx-h100", "gpus": 8},
        }
    )
    with pytest.raises(InputError, match=r"a step of 0\.001 s would take .* of the peak"):
        compare_trace(measure(three_steps()), large)


def test_a_trace_of_another_device_is_said_to_be() -> None:
    step = measure(three_steps())
    assert compare_trace(step, scenario()).notes == (
        "a collective lasts until the slowest rank has come: waiting counts with it",
    )
    other = replace(step, trace=replace(step.trace, device="NVIDIA A100-SXM4-80GB"))
    assert (
        "the trace is of a NVIDIA A100-SXM4-80GB, the prediction of h100-sxm"
        in compare_trace(other, scenario()).notes
    )


# --- which term a collective belongs to ----------------------------------------------------

LAYOUT = {"tp": 2, "cp": 2, "dp": 4, "pp": 2, "ep": 1, "rank_order": "tp-cp-dp-pp"}


@pytest.mark.parametrize(
    ("collective", "layout", "expected"),
    [
        # words of Megatron-Core and of torch's mesh dimensions
        ({"description": "TENSOR_MODEL_PARALLEL_GROUP"}, {}, "tp"),
        ({"description": "DATA_PARALLEL_GROUP_WITH_CP"}, {}, "data"),
        ({"description": "EXPERT_MODEL_PARALLEL_GROUP"}, {}, "ep"),
        ({"description": "EXPERT_DATA_PARALLEL_GROUP"}, {}, "data"),
        ({"description": "EXPERT_TENSOR_PARALLEL_GROUP"}, {}, "tp"),
        ({"description": "PIPELINE_MODEL_PARALLEL_GROUP"}, {}, "pipeline"),
        ({"description": "mesh_dp_shard_cp"}, {}, "data"),
        ({"description": "mesh_tp"}, {}, "tp"),
        # kinds
        ({"kind": "send_recv"}, {}, "pipeline"),
        ({"kind": "send_recv"}, {"pp": 1}, "cp"),
        ({"kind": "all_to_all"}, {"ep": 4}, "ep"),
        # members: rank = tp + 2 cp + 4 dp + 16 pp
        ({"size": 2, "ranks": (0, 1)}, {}, "tp"),
        ({"size": 2, "ranks": (1, 3)}, {}, "cp"),
        ({"size": 2, "ranks": (1, 17)}, {}, "pipeline"),
        ({"size": 4, "ranks": (0, 4, 8, 12)}, {}, "data"),
        ({"size": 8, "ranks": (0, 2, 4, 6, 8, 10, 12, 14)}, {}, "data"),
        ({"size": 32, "ranks": tuple(range(32))}, {}, "collectives"),
        # size alone
        ({"size": 4}, {}, "data"),
        ({"size": 8}, {}, "data"),
        ({"size": 2}, {}, "collectives"),
        ({}, {"tp": 1, "cp": 1, "pp": 1}, "data"),
        ({}, {}, "collectives"),
        ({"description": "default_pg", "size": 32}, {}, "collectives"),
    ],
)
def test_causes_of_collectives(
    collective: dict[str, Any], layout: dict[str, Any], expected: str
) -> None:
    one = Collective(**{"kind": "all_reduce", **collective})
    assert cause_of(one, {**LAYOUT, **layout}) == expected


def test_a_step_a_fiftieth_faster_than_the_peak_is_of_another_run() -> None:
    """FLOPs of the model over the dense peak of eight H100, 989.4 TFLOP/s each by the datasheet."""
    found = predict(model="llama-3.1-8b", cluster="dgx-h100", gpus=8, global_batch=64, tp=2)
    least_s = float(found.estimate.model_flop) / (8 * 989.4e12)
    trace: Any = SimpleNamespace(where="trace.json")
    _possible(cast("Any", SimpleNamespace(step_s=least_s * 1.02, trace=trace)), found)
    with pytest.raises(InputError, match=r"trace.json: .* of the peak FLOP rate"):
        _possible(cast("Any", SimpleNamespace(step_s=least_s / 1.02, trace=trace)), found)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm", True),
        ("NVIDIA H100 80GB HBM3", "h200-sxm", False),
        ("NVIDIA A100-SXM4-80GB", "h100-sxm-80gb", False),  # a size and a maker are no models
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32", True),
        ("AMD Instinct", "mi300x", True),  # it names no model
    ],
)
def test_devices_are_the_same_by_a_word_with_letters_and_digits(
    one: str, other: str, same: bool
) -> None:
    assert _same_device(one, other) is same
