"""Operators of the heads of several tasks: experts that they share, gates, towers, outputs."""

from __future__ import annotations

from typing import Any

from simulator.cost.operators.operations import Gemm, Operators, Ranks, Stream, element_bytes
from simulator.cost.operators.roles import GemmRole
from simulator.workload.recipe import Recipe
from simulator.workload.tasks import TaskHeads


def task_heads(ops: Operators, tasks: TaskHeads, width: int, ranks: Ranks, recipe: Recipe) -> None:
    """List them for one rank; every tensor-parallel rank has them whole.

    Kept for the backward pass, as eager torch does: the input, the rectified inner tensors, the
    experts' results together, the softmax of the gates, what every tower reads, and the logarithms
    of the outputs' probabilities.
    """
    size = element_bytes(recipe)
    vectors = ranks.own_tokens(recipe) if tasks.per_token else ranks.micro_batch
    seen, reads = sum(tasks.shares), tasks.tower_inputs(width)
    for w in tasks.weights(width):
        ops.gemms.append(
            Gemm(
                name=w.name,
                m=vectors * w.share,
                n=w.rows,
                k=w.columns,
                batch=float(w.count),
                kind="head",
                role=GemmRole.TASK_HEAD,
            )
        )
    if tasks.experts:
        ops.gemms.append(
            Gemm(
                name="task mixing",
                m=seen,
                n=reads,
                k=tasks.experts,
                batch=vectors,
                kind="attention",
                role=GemmRole.TASK_HEAD,
            )
        )
    kept = _kept(tasks, width)
    for name, elements in kept:
        ops.keep(name, vectors * elements * size)
    moved: Any = 2 * size * vectors * sum(elements for _, elements in kept[1:])
    ops.streams.append(
        Stream(
            name="task activations",
            kind="elementwise",
            forward_bytes=moved,
            backward_bytes=1.5 * moved,
            calls=float(len(kept) - 1),
        )
    )


def _kept(tasks: TaskHeads, width: int) -> list[tuple[str, float]]:
    """Elements that a vector leaves for the backward pass, by name."""
    seen, reads = sum(tasks.shares), tasks.tower_inputs(width)
    kept: list[tuple[str, float]] = [("task input", width)]
    if tasks.experts:
        kept += [
            ("task experts' inner", tasks.experts * tasks.expert_hidden),
            ("task experts' results", tasks.experts * reads),
            ("task gates", len(tasks.outputs) * tasks.experts),
            ("task tower inputs", seen * reads),
        ]
    if tasks.tower_hidden:
        kept.append(("task towers' inner", seen * tasks.tower_hidden))
    outputs = zip(tasks.outputs, tasks.shares, strict=True)
    return [*kept, ("task outputs", sum(size * share for size, share in outputs))]
