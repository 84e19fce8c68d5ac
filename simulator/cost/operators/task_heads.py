"""Operators of the heads of several tasks: experts that they share, gates, towers, outputs."""

from __future__ import annotations

from typing import Any

from simulator.cost.operators.operations import Gemm, Operators, Ranks, Stream, element_bytes
from simulator.cost.operators.roles import GemmRole
from simulator.workload.recipe import Recipe
from simulator.workload.tasks import TaskHeads

__all__ = ["task_heads"]


def task_heads(ops: Operators, tasks: TaskHeads, width: int, ranks: Ranks, recipe: Recipe) -> None:
    """List them for one rank; every tensor-parallel rank has them whole.

    Kept for the backward pass, as eager torch does: the input, the rectified inner tensors, the
    experts' results together, the softmax of the gates, what every tower reads, and the logarithms
    of the outputs' probabilities.
    """
    size = element_bytes(recipe)
    vectors = ranks.own_tokens(recipe) if tasks.per_token else ranks.micro_batch
    count, reads = len(tasks.outputs), tasks.tower_inputs(width)
    for w in tasks.weights(width):
        ops.gemms.append(
            Gemm(
                name=w.name,
                m=vectors,
                n=w.rows,
                k=w.columns,
                batch=float(w.count),
                kind="head",
                role=GemmRole.TASK_HEAD,
            )
        )
    kept: list[tuple[str, int]] = [("task input", width)]
    if tasks.experts:
        ops.gemms.append(
            Gemm(
                name="task mixing",
                m=count,
                n=reads,
                k=tasks.experts,
                batch=vectors,
                kind="attention",
                role=GemmRole.TASK_HEAD,
            )
        )
        kept += [
            ("task experts' inner", tasks.experts * tasks.expert_hidden),
            ("task experts' results", tasks.experts * reads),
            ("task gates", count * tasks.experts),
            ("task tower inputs", count * reads),
        ]
    if tasks.tower_hidden:
        kept.append(("task towers' inner", count * tasks.tower_hidden))
    kept.append(("task outputs", sum(tasks.outputs)))
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
