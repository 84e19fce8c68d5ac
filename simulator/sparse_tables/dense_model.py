"""The dense model of a recommender: bottom layers, interaction, top layers of every task."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from simulator.section import Rule, Section
from simulator.sparse_tables.sharding import width_of
from simulator.sparse_tables.sparse_section import Sparse, read_sparse
from simulator.workload.architecture import Architecture
from simulator.workload.families.traced_model import traced_architecture
from simulator.workload.traced import Amount, TracedGemm, TracedPart, TracedStream

_ELEMENT = 2


def interacted(sparse: Sparse) -> int:
    """Elements that the top layers read.

    Examples
    --------
    DLRM of MLPerf: 26 sums and the bottom's result make 351 pairs, beside the 128 of the bottom.

    >>> from simulator.sparse_tables.sparse_section import read_sparse
    >>> interacted(read_sparse({"name": "dlrm-mlperf"}, where="scenario"))
    479
    """
    if sparse.interaction == "concat":
        return sparse.bottom[-1] + sum(t.count * width_of(t, sparse) for t in sparse.tables)
    vectors = 1 + sum(table.count for table in sparse.tables)
    return sparse.width + vectors * (vectors - 1) // 2


def table_parameters(sparse: Sparse) -> int:
    """Elements of all tables."""
    return sum(t.count * t.rows * width_of(t, sparse) for t in sparse.tables)


def dense_architecture(sparse: Sparse) -> Architecture:
    """What `sparse` computes beside its tables, as a traced model in 16 bit."""
    bottom = _linears([sparse.dense_features, *sparse.bottom], 1.0)
    top = _interaction(sparse)
    for task in sparse.tasks:
        top = _joined(top, _linears([interacted(sparse), *task.top], task.batch_fraction))
    nothing = _linears([], 1.0)
    made = traced_architecture("recommender", (bottom, top), (0, 1), nothing)
    return replace(made, max_positions=1)


def bottom_flop_fraction(arch: Architecture) -> float:
    """Share of the dense model's FLOPs in the layers that need no row."""
    parts = [block.traced.flop_per_sample for block in arch.blocks if block.traced is not None]
    return parts[0] / sum(parts)


def _linears(widths: list[int], fraction: float) -> TracedPart:
    """Linear layers with rectifiers, for a share of the samples."""
    pairs = list(pairwise(widths))
    moved = fraction * _ELEMENT * sum(outputs for _, outputs in pairs)
    kept = fraction * _ELEMENT * sum(inputs + outputs for inputs, outputs in pairs)
    streams = TracedStream(
        kind="elementwise",
        forward_bytes=Amount(per_sample=2 * moved),  # rectifiers read and write
        backward_bytes=Amount(per_sample=3 * moved),
        calls=float(len(pairs)),
    )
    return TracedPart(
        parameters=sum((inputs + 1) * outputs for inputs, outputs in pairs),
        gemms=tuple(
            TracedGemm(
                m=Amount(per_sample=fraction),
                n=Amount(fixed=outputs),
                k=Amount(fixed=inputs),
                batch=Amount(fixed=1.0),
                weights=True,
            )
            for inputs, outputs in pairs
        ),
        flash=(),
        streams=(streams,) if pairs else (),
        saved_bytes=Amount(per_sample=kept),
        input_bytes=Amount(per_sample=_ELEMENT * widths[0] * fraction if widths else 0.0),
        transient_bytes=Amount(per_sample=2 * _ELEMENT * max(widths, default=0)),
        element_bytes=_ELEMENT,
    )


def _interaction(sparse: Sparse) -> TracedPart:
    """Products of all pairs, or sums side by side, as one fused kernel that memory binds.

    A sample's vectors stay on the chip while they are multiplied, as in HugeCTR's and NVIDIA's
    kernels; the backward pass reads them again.
    """
    reads = sparse.bottom[-1] + sum(t.count * width_of(t, sparse) for t in sparse.tables)
    moved = _ELEMENT * float(reads + interacted(sparse))
    again = _ELEMENT * float(reads) if sparse.interaction == "dot" else 0.0
    kernel = TracedStream(
        kind="copy",
        forward_bytes=Amount(per_sample=moved),
        backward_bytes=Amount(per_sample=moved + again),
        calls=1.0,
    )
    return TracedPart(
        parameters=0,
        gemms=(),
        flash=(),
        streams=(kernel,),
        saved_bytes=Amount(per_sample=_ELEMENT * float(reads)),
        input_bytes=Amount(per_sample=_ELEMENT * float(reads)),
        transient_bytes=Amount(per_sample=2 * _ELEMENT * float(reads)),
        element_bytes=_ELEMENT,
    )


def _joined(a: TracedPart, b: TracedPart) -> TracedPart:
    """Two parts as one layer."""

    def both(x: Amount, y: Amount) -> Amount:
        return Amount(fixed=x.fixed + y.fixed, per_sample=x.per_sample + y.per_sample)

    return TracedPart(
        parameters=a.parameters + b.parameters,
        gemms=(*a.gemms, *b.gemms),
        flash=(),
        streams=(*a.streams, *b.streams),
        saved_bytes=both(a.saved_bytes, b.saved_bytes),
        input_bytes=a.input_bytes,
        transient_bytes=max(a.transient_bytes, b.transient_bytes, key=lambda x: x.per_sample),
        element_bytes=_ELEMENT,
    )


def _model(sparse: Sparse, *, where: str) -> Architecture:
    return dense_architecture(sparse)


SPARSE = Section(
    name="sparse",
    schemas=(Sparse,),
    read=Rule(read_sparse),
    makes=(("model", Rule(_model, needs=("sparse",))),),
    instead_of="model",
    refused="its tables are priced by `foreshard recommender`",
)
