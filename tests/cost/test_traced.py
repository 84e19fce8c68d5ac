"""Parts of traced modules as operators: sizes by hand, for two micro-batches."""

import numpy as np

from simulator.cost.operators.operations import Ranks
from simulator.cost.operators.traced_blocks import traced
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.workload.recipe import Recipe
from simulator.workload.traced import Amount, TracedFlash, TracedGemm, TracedPart, TracedStream

ONE = Amount(fixed=1.0)
PART = TracedPart(
    parameters=30,
    gemms=(
        TracedGemm(
            m=Amount(per_sample=7.0),
            n=Amount(fixed=5.0),
            k=Amount(fixed=6.0),
            batch=ONE,
            weights=True,
        ),
        TracedGemm(
            m=Amount(fixed=7.0),
            n=Amount(fixed=7.0),
            k=Amount(fixed=3.0),
            batch=Amount(per_sample=2.0),
            weights=False,
        ),
    ),
    flash=(
        TracedFlash(
            heads=Amount(per_sample=2.0),
            queries=7.0,
            keys=7.0,
            score_size=3.0,
            value_size=5.0,
            query_bytes=Amount(per_sample=224.0),
            key_bytes=Amount(per_sample=112.0),
            causal=True,
        ),
    ),
    streams=(
        TracedStream(
            kind="norm",
            forward_bytes=Amount(fixed=10.0, per_sample=4.0),
            backward_bytes=Amount(per_sample=8.0),
            calls=1.5,
        ),
    ),
    saved_bytes=Amount(fixed=2.0, per_sample=100.0),
    input_bytes=Amount(per_sample=84.0),
    transient_bytes=Amount(per_sample=50.0),
    element_bytes=2,
)


def test_every_size_is_a_fixed_part_and_one_per_sample() -> None:
    layout = Layouts.of(micro_batch=[1, 4])
    degrees = {x: getattr(layout, x).astype(float) for x in ("tp", "cp", "ep", "etp")}
    ranks = Ranks(
        **degrees,
        sequence_parallel=layout.sequence_parallel.astype(bool),
        micro_batch=layout.micro_batch.astype(float),
        groups=place(layout, 8),
    )
    ops = traced(PART, ranks, Recipe(sequence_length=7, global_batch=8))
    linear, scores = ops.gemms
    np.testing.assert_array_equal(linear.m, [7, 28])
    np.testing.assert_array_equal(scores.batch, [2, 8])
    np.testing.assert_array_equal(linear.n, [5, 5])
    np.testing.assert_array_equal(scores.m, [7, 7])
    assert (linear.kind, scores.kind) == ("linear", "attention")
    # 2 heads x 7 queries x 3.5 keys x 2 FLOPs x (3 + 5)
    np.testing.assert_array_equal(ops.flash[0].flop, [784, 4 * 784])
    np.testing.assert_array_equal(ops.flash[0].query_bytes, [224, 896])
    np.testing.assert_array_equal(ops.streams[0].forward_bytes, [14, 26])
    np.testing.assert_array_equal(ops.saved[0].size_bytes, [102, 402])
    np.testing.assert_array_equal(ops.checkpoint_bytes, [84, 336])
    assert not ops.collectives


def test_flop_of_a_sample() -> None:
    # 2 x 7 x 5 x 6 of the layer, 2 x 2 x 7 x 7 x 3 of the scores, 784 of the fused call
    assert PART.flop(1.0) == 420 + 588 + 784
    assert PART.flop_per_sample == 420 + 588 + 784
    assert PART.flop(4.0) == 4 * (420 + 588 + 784)
