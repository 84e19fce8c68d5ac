"""The parts of a small training step, each at the size that the step has it, as calls to time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import _timing
import collectives
import torch
import torch.distributed as dist
import torch.nn.functional as F
from _models import Architecture

SETS = 4
"""Buffers of a part that are used in turn: together more than a core's own cache holds."""
WAITED_CALLS = 5
"""Collectives of one reading."""
LOGIT_BYTES = 22
"""Traffic of each half of an eager fp32 loss for every logit: copies, maximum, sum, gradient."""
ADAMW_BYTES = 28
"""Traffic of fused AdamW for every fp32 parameter: four numbers read, three written."""


@dataclass(frozen=True)
class Part:
    """One call of a step: what its record says, and a function that runs it once."""

    kernel: str
    direction: str
    shape: dict
    run: Callable[[], object]
    more: dict = field(default_factory=dict)
    together: bool = False
    """A time is that of the slowest rank, else the mean of the ranks."""
    before: Callable[[], object] | None = None
    """What every rank does before each call, untimed."""
    calls: int = 2
    """Calls of one visit."""
    averaged: bool = False
    """The calls of a visit are one reading, their mean: waits for others differ a lot, and a step
    has the sum of many."""


def values(*shape: int, grad: bool = False) -> torch.Tensor:
    """Make random fp32 values."""
    made = _timing.values(shape, torch.float32, _DEVICE)
    return made.requires_grad_(grad)


_DEVICE = _timing.Device("cpu")


def in_turn(make: Callable[[], tuple], sets: int = SETS) -> Callable[[], tuple]:
    """Make several sets of inputs and return what takes the next one."""
    made = _timing.Rotation([make() for _ in range(sets)], cold=False)
    return made


# --- kernels --------------------------------------------------------------------------------


def kernel_parts(shape: Architecture, batch: int, sequence: int, cuts: int) -> list[Part]:
    """Return products, attention and memory-bound operators of a GPT.

    Whole and cut over `cuts` tensor-parallel ranks, for the whole batch and for one sequence.
    """
    parts: list[Part] = []
    for tokens in (batch * sequence, sequence):
        for cut in (1, cuts):
            parts += _products(shape, tokens, cut)
        parts += _streams(shape, tokens, cuts)
    for sequences in (batch, 1):
        for heads in (shape.heads, max(shape.heads // cuts, 1)):
            for length in (sequence, sequence // 2):
                parts += _attention(sequences, heads, length, shape.head_size)
    return parts + _loss(shape, batch * sequence) + _optimizer(shape) + _copies(shape)


def _products(shape: Architecture, tokens: int, cut: int) -> list[Part]:
    """Linear layers as autograd runs them: bias forward, its gradient with that of the weight."""
    sizes = {
        (shape.hidden // cut, shape.hidden),
        (shape.hidden, shape.hidden // cut),
        (shape.ffn // cut, shape.hidden),
        (shape.hidden, shape.ffn // cut),
        (shape.vocabulary // cut, shape.hidden),
    }
    parts = []
    for n, k in sorted(sizes):
        take = in_turn(
            lambda n=n, k=k: (values(tokens, k), values(n, k), values(n), values(tokens, n))
        )
        ways = {
            "forward": ((tokens, n, k), lambda x, w, b, g: F.linear(x, w, b)),
            "dgrad": ((tokens, k, n), lambda x, w, b, g: torch.mm(g, w)),
            "wgrad": ((n, k, tokens), lambda x, w, b, g: (torch.mm(g.t(), x), g.sum(0))),
        }
        for direction, (size, call) in ways.items():
            parts.append(
                Part(
                    "gemm",
                    direction,
                    dict(zip("mnk", size, strict=True)),
                    lambda call=call, take=take: call(*take()),
                    {"library": "torch.mm"},
                )
            )
    return parts


def _attention(batch: int, heads: int, length: int, size: int) -> list[Part]:
    """Attention from the projections' output to the next one's input, both ways."""

    def call(q, k, v):
        q, k, v = (x.view(batch, length, heads, size).transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(2)

    def inputs():
        return tuple(values(batch, length, heads * size, grad=True) for _ in range(3))

    def graph():
        given = inputs()
        return call(*given), given, values(batch, length, heads * size)

    shape = {
        "batch": batch,
        "heads_q": heads,
        "heads_kv": heads,
        "seq_q": length,
        "seq_kv": length,
        "head_dim": size,
        "head_dim_v": size,
        "causal": True,
    }
    more = {"library": "torch.sdpa-flash"}
    ahead, back = in_turn(inputs), in_turn(graph)
    return [
        Part("attention", "forward", shape, lambda: call(*ahead()), more),
        Part("attention", "backward", shape, lambda: gradients(*back()), more),
    ]


def gradients(result, given, gradient):
    """Compute the gradients; the graph may be used again."""
    return torch.autograd.grad(result, given, gradient, retain_graph=True)


def _both(kernel: str, rows: int, columns: int, call, make, factors: tuple[float, float]):
    """Return an operator forward and backward; `factors`: fp32 values moved per element."""

    def graph():
        given = make()
        result = call(*given)
        wanted = [one for one in given if one.is_floating_point()]
        return result, wanted, torch.ones_like(result)

    ahead, back = in_turn(make), in_turn(graph)
    shape, moved = {"rows": rows, "columns": columns}, [4 * f * rows * columns for f in factors]
    return [
        Part(kernel, "forward", shape, lambda: call(*ahead()), {"bytes": moved[0]}),
        Part(kernel, "backward", shape, lambda: gradients(*back()), {"bytes": moved[1]}),
    ]


def _streams(shape: Architecture, tokens: int, cuts: int) -> list[Part]:
    """Norms, activations, residual additions."""
    parts: list[Part] = []
    wide = shape.hidden
    for rows in (tokens, tokens // 2):
        parts += _both(
            "layer_norm",
            rows,
            wide,
            lambda x, w, b: F.layer_norm(x, (wide,), w, b),
            lambda rows=rows: (
                values(rows, wide, grad=True),
                values(wide, grad=True),
                values(wide, grad=True),
            ),
            (2, 3),
        )
        take = in_turn(lambda rows=rows: (values(rows, wide), values(rows, wide)))
        size = {"rows": rows, "columns": wide}
        for name, call in (("forward", torch.add), ("in place", torch.Tensor.add_)):
            parts.append(
                Part(
                    "residual_add",
                    name,
                    size,
                    lambda call=call, take=take: call(*take()),
                    {"bytes": 12 * rows * wide},
                )
            )
    for columns in (shape.ffn, shape.ffn // cuts):
        parts += _both(
            "gelu",
            tokens,
            columns,
            lambda x: F.gelu(x, approximate="tanh"),
            lambda columns=columns: (values(tokens, columns, grad=True),),
            (2, 3),
        )
    return parts


def _loss(shape: Architecture, tokens: int) -> list[Part]:
    parts: list[Part] = []
    for rows in (tokens, tokens // 2, tokens // 4):
        each = LOGIT_BYTES / 4
        labels = torch.randint(shape.vocabulary, (rows,))
        parts += _both(
            "cross_entropy",
            rows,
            shape.vocabulary,
            lambda x, labels=labels: F.cross_entropy(x, labels),
            lambda rows=rows: (values(rows, shape.vocabulary, grad=True),),
            (each, each),
        )
    return parts


def _optimizer(shape: Architecture) -> list[Part]:
    """AdamW over the share of 8 blocks' parameters that one of so many optimizers has, in turn."""
    parts, each, all_tensors = [], shape.hidden * shape.hidden, 96
    for optimizers in (8, 6, 4, 3, 2, 1):
        tensors = all_tensors // optimizers
        take = in_turn(lambda n=tensors: _adamw(n, each), optimizers)
        more = {"library": "fused", "bytes": ADAMW_BYTES * each * tensors}
        size = {"elements": each * tensors, "tensors": tensors}
        parts.append(Part("adamw", "step", size, lambda take=take: take().step(), more, calls=1))
    return parts


def _adamw(tensors: int, each: int) -> torch.optim.Optimizer:
    made = [values(each, grad=True) for _ in range(tensors)]
    for one in made:
        one.grad = values(each)
    return torch.optim.AdamW(made, lr=1e-4, fused=True)


def _copies(shape: Architecture) -> list[Part]:
    """Copies of a matrix, a block and several blocks: into new memory and into old.

    Weights are cold when they are copied: as many sets take turns as a model has.
    """
    parts, whole = [], 96 * shape.hidden**2
    for elements in (shape.hidden**2, 12 * shape.hidden**2, 48 * shape.hidden**2):
        take = in_turn(
            lambda elements=elements: (values(elements), values(elements)), whole // elements
        )
        ways = {"forward": lambda a, b: a.clone(), "in place": lambda a, b: b.copy_(a)}
        for name, call in ways.items():
            parts.append(
                Part(
                    "copy",
                    name,
                    {"rows": 1, "columns": elements},
                    lambda call=call, take=take: call(*take()),
                    {"bytes": 8 * elements},
                )
            )
    return parts


# --- communication --------------------------------------------------------------------------


def collective_parts(sizes: dict[str, list[int]], world, product) -> list[Part]:
    """Return collectives of the whole world as a step meets them: `sizes` lists bytes by kernel.

    Every rank computes before a call, so that ranks do not come at once, threads have to wake, and
    the mean time in the call holds the mean wait for the slower rank, as in a step.
    """
    shape = collectives.sub_groups(world.size, world.size, 1)
    parts = []
    for kernel, several in sizes.items():
        for size in several:
            case = collectives.Case(kernel, "fp32", size, shape)
            call = collectives.operation(kernel, dist.group.WORLD, shape.groups[0])
            take = in_turn(_buffers(case))
            record = {
                "message_bytes": collectives.rounded_bytes(case),
                "ranks": world.size,
                "stride": 1,
                "nodes": 1,
                "groups": 1,
            }
            more = {"library": world.library}
            parts.append(
                Part(
                    kernel,
                    "forward",
                    record,
                    lambda call=call, take=take: call(*take()),
                    more,
                    before=product,
                    calls=WAITED_CALLS,
                    averaged=True,
                )
            )
    return parts


def _buffers(case: collectives.Case) -> Callable[[], tuple]:
    """Return what makes a pair of buffers; zeros, which sums do not make grow."""
    count = collectives.rounded_bytes(case) // 4
    share = count // case.shape.size
    give = share if case.kernel == "all_gather" else count
    get = share if case.kernel == "reduce_scatter" else count
    return lambda: (torch.zeros(give), torch.zeros(get))


def product(shape: Architecture, tokens: int) -> Callable[[], object]:
    """Return the product of an MLP's first linear."""
    x, w = values(tokens, shape.hidden), values(shape.ffn, shape.hidden)
    return lambda: torch.mm(x, w.t())


def overlap_parts(shape: Architecture, tokens: int, message_bytes: int) -> list[Part]:
    """Return a row of products alone, an all-reduce alone, and both started at once."""
    x, w, buffer = (
        values(tokens, shape.hidden),
        values(shape.ffn, shape.hidden),
        torch.zeros(message_bytes // 4),
    )
    times = 24

    def products() -> None:
        for _ in range(times):
            torch.mm(x, w.t())

    def reduce():
        return dist.all_reduce(buffer, async_op=True)

    def both() -> None:
        work = reduce()
        products()
        work.wait()

    size = {"message_bytes": message_bytes, "ranks": dist.get_world_size(), "products": times}
    calls = {"product": products, "collective": lambda: reduce().wait(), "both": both}
    return [
        Part("overlap", name, size, call, together=True, calls=1) for name, call in calls.items()
    ]
