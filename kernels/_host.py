"""What the host does for a block beside its kernels: tiny blocks, plain, cut and gathered.

A block of a few numbers costs nothing but the host's work: Python, dispatch, autograd. The same
block cut over a mesh of one rank (DTensor, which then asks for no collective), or wrapped by FSDP2
over all ranks (which does little over one), takes longer by what these do on the host for every
block. What counts is the time at work of the thread: waiting for others does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import _layouts
import torch
import torch.distributed as dist
from _cases import Case
from _models import Architecture, Transformer, initialise
from _training import WithLoss
from launch import operators_of
from torch import nn

BLOCKS, TOKENS = 4, 8
TINY = Architecture(
    family="gpt",
    layers=BLOCKS,
    hidden=16,
    heads=2,
    kv_heads=2,
    ffn=32,
    vocabulary=32,
    head_size=8,
    longest=TOKENS,
)


@dataclass(frozen=True)
class Tiny:
    """A model of tiny blocks in one wrapping."""

    wrapping: str
    layers: nn.Module
    root: nn.Module
    optimizer: torch.optim.Optimizer

    @property
    def loss_context(self):
        """What torch wants around the loss where the logits are cut."""
        from contextlib import nullcontext

        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel() if self.wrapping == "tensor" else nullcontext()


def tiny(wrapping: str, mesh) -> Tiny:
    """Build it; `mesh` says over which ranks it is cut or sharded."""
    model = Transformer(TINY, uniform=True)
    initialise(model, 0)
    if wrapping == "tensor":
        _layouts.apply_tp(model, mesh, False)
    root = WithLoss(model, 1)
    if wrapping == "sharded":
        case = Case(model="gpt-tiny", precision="fp32", sharding="zero3")
        _layouts.apply_fsdp(root, model.layers.values(), mesh, case)
    groups: dict[object, list] = {}
    for one in root.parameters():
        groups.setdefault(getattr(one, "device_mesh", None), []).append(one)
    optimizer = torch.optim.AdamW([{"params": one} for one in groups.values()], fused=True)
    return Tiny(wrapping, model.layers, root, optimizer)


class Timer:
    """Seconds of the passes of one tiny model, with all its blocks and with one."""

    def __init__(self, model: Tiny) -> None:
        self.model = model
        self.tokens = torch.randint(TINY.vocabulary, (1, TOKENS))
        self.labels = torch.randint(TINY.vocabulary, (1, TOKENS))
        self.passes()  # what is made once
        self.short()

    def passes(self) -> dict[str, float]:
        """Take one step; return seconds at work of forward pass, backward pass and optimizer."""
        with self.model.loss_context:
            begin = time.thread_time()
            loss = self.model.root(self.tokens, self.labels)
            ahead = time.thread_time()
            loss.backward()
            back = time.thread_time()
        self.model.optimizer.step()
        end = time.thread_time()
        self.model.optimizer.zero_grad(set_to_none=True)
        return {"forward": ahead - begin, "backward": back - ahead, "step": end - back}

    def short(self) -> dict[str, float]:
        """Return the same with one block left: the difference to `passes` is that of the others.

        FSDP2, the optimizer and the loss have work of their own per model, which both have.
        """
        layers = self.model.layers
        kept = dict(layers.items())
        for name in list(kept)[1:]:
            del layers[name]
        few = self.passes()
        for name in list(kept)[1:]:
            layers[name] = kept[name]
        return few


def reductions(mesh) -> dict[str, Callable[[], None]]:
    """Return a sum of a few numbers over the ranks of `mesh`, plain and as DTensor asks for it."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    own, group = torch.ones(1, 1, TINY.hidden, requires_grad=True), mesh.get_group()
    buffer = own.detach().clone()

    def cut() -> None:
        whole = DTensor.from_local(own, mesh, [Partial()], run_check=False)
        whole.redistribute(placements=[Replicate()]).to_local().clone()

    return {"plain": lambda: dist.all_reduce(buffer, group=group), "tensor": cut}


def operators_per_block() -> int:
    """Return the operators of the forward pass of one plain tiny block."""
    model = Transformer(TINY, uniform=True)
    initialise(model, 0)
    x = torch.randn(1, TOKENS, TINY.hidden)
    block: Callable = next(iter(model.layers.values()))

    def forward() -> None:
        with torch.no_grad():
            block(x)

    return operators_of(forward)
