"""What AdamW of torch reads and writes in a step, operator by operator, with clipping before it."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simulator.software.profile import load_software

SIZES = ((64, 256), (1000,), (3, 5, 7))
PARAMETERS = sum(torch.Size(size).numel() for size in SIZES)


class Traffic(TorchDispatchMode):
    """Adds up distinct tensors read and tensors written; step counters and scalars are small."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        read = {x.data_ptr(): x for x in tree_leaves((args, kwargs)) if _large(x)}
        in_place = name.endswith("_") and not name.endswith("__")
        if "_fused_" in name:
            written = tree_leaves(args[:1]) + tree_leaves(args[2:4])  # weights, both moments
        else:
            written = tree_leaves(args[:1] if in_place else result)
        views = any(word in name for word in ("view", "detach", "alias", "unbind"))
        if not views:
            self.moved += sum(x.nbytes for x in read.values())
            self.moved += sum(x.nbytes for x in written if _large(x))
        return result


def _large(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.numel() > 10


@pytest.mark.parametrize(("software", "fused"), [("torchtitan", True), ("torchtitan-2024", False)])
def test_a_step_moves_what_the_profile_says(software: str, fused: bool) -> None:
    """Once the moments are there; gradients are freed, not zeroed."""
    weights = [torch.nn.Parameter(torch.ones(size)) for size in SIZES]
    adamw = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.1, fused=fused, foreach=not fused)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        with Traffic() as traffic:
            torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
            adamw.step()
    per_parameter = float(load_software(software).states.optimizer_traffic)
    assert traffic.moved == per_parameter * PARAMETERS
