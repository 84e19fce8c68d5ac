"""A part of a traced module -> operators; data parallelism only, so no collectives."""

from __future__ import annotations

from simulator.arrays import Floats
from simulator.cost.operators.operations import (
    Flash,
    Gemm,
    Operators,
    Ranks,
    Saved,
    Stream,
    element_bytes,
)
from simulator.errors import InputError
from simulator.workload.recipe import Recipe, beyond_traces
from simulator.workload.traced import TracedPart


def traced(part: TracedPart, ranks: Ranks, recipe: Recipe, *, is_block: bool = True) -> Operators:
    """List the operators of one part of a traced module for one micro-batch.

    Every GEMM runs again twice in the backward pass; bytes of the other kernels are
    those that torch's own backward pass moves.

    Raises
    ------
    InputError
        If the recipe computes in a type of another size than the trace, or needs more of a model
        than a trace knows.
    """
    if wrong := beyond_traces(recipe):
        raise InputError(f"training.{name}: not yet for a traced module" for name in wrong)
    if part.element_bytes != element_bytes(recipe):
        raise InputError(
            f"training.precision: the module was traced with {part.element_bytes}-byte numbers,"
            f" got {recipe.precision!r}; trace it again"
        )
    samples = ranks.micro_batch
    streams = [
        Stream(
            name=s.kind,
            kind=s.kind,
            forward_bytes=s.forward_bytes.at(samples),
            backward_bytes=s.backward_bytes.at(samples),
            calls=s.calls,
        )
        for s in part.streams
    ]
    return Operators(
        gemms=_products(part, samples),
        flash=_flash(part, samples),
        streams=streams,
        saved=[Saved("saved tensors", part.saved_bytes.at(samples))],
        transient_bytes=part.transient_bytes.at(samples),
        checkpoint_bytes=part.input_bytes.at(samples),
        is_block=is_block,
        counts_kernels=True,
    )


def _products(part: TracedPart, samples: Floats) -> list[Gemm]:
    return [
        Gemm(
            name=f"product {i}",
            m=g.m.at(samples),
            n=g.n.at(samples),
            k=g.k.at(samples),
            batch=g.batch.at(samples),
            kind="linear" if g.weights else "attention",
        )
        for i, g in enumerate(part.gemms)
    ]


def _flash(part: TracedPart, samples: Floats) -> list[Flash]:
    return [
        Flash(
            heads=f.heads.at(samples),
            queries=f.queries,
            keys=f.seen,
            span=f.keys,
            score_size=f.score_size,
            value_size=f.value_size,
            query_bytes=f.query_bytes.at(samples),
            key_bytes=f.key_bytes.at(samples),
        )
        for f in part.flash
    ]
