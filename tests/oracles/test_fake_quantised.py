"""Quantisation-aware training, against kernels, bytes and saved tensors that torch itself counts.

The fake quantisers follow pytorch/ao@36027d82: quantization/qat/fake_quantizer.py and
quant_primitives.py (`_choose_qparams_affine`, `_quantize_affine_no_dtype_cast`,
`_dequantize_affine_no_dtype_check`, `_Round`), operator by operator.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.cost.operators.block_operators import model_parts
from simulator.cost.operators.operations import Operators, Ranks
from simulator.cost.operators.roles import StreamRole
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

TOKENS, GROUP = 256, 64


class Round(torch.autograd.Function):
    """Rounding through which gradients pass straight."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def scaled_back(x: Any, scale: Any, zero: Any, low: int, high: int, group: int) -> Any:
    shape, scale, zero = x.shape, scale.unsqueeze(-1), zero.unsqueeze(-1)
    grouped = x.view(*shape[:-1], -1, group)
    rounded = torch.clamp(Round.apply(grouped * (1.0 / scale)) + zero, low, high)
    plain = rounded.to(x.dtype, copy=True) - zero.to(x.dtype)
    return (plain * scale).view(shape).to(x.dtype)


@torch.no_grad()
def extremes(x: Any, group: int) -> tuple[Any, Any]:
    grouped = x.view(*x.shape[:-1], -1, group)
    least, most = torch.amin(grouped, -1), torch.amax(grouped, -1)
    return torch.min(least, torch.zeros_like(least)), torch.max(most, torch.zeros_like(most))


def detached(w: Any) -> Any:
    """IntxFakeQuantizer, symmetric, 4 bit, a scale for each group."""
    least, most = extremes(w, GROUP)
    with torch.no_grad():
        scale = torch.max(-least, most) / 7.5
        zero = torch.full_like(scale, 0)
        scale = torch.clamp(scale, min=1e-30)
        scale, zero = scale.to(torch.float32), zero.to(torch.float32)
    return scaled_back(w, scale, zero, -8, 7, GROUP)


def by_token(x: Any) -> Any:
    """IntxFakeQuantizer, asymmetric, 8 bit, a scale for each token."""
    least, most = extremes(x, x.shape[-1])
    with torch.no_grad():
        scale = torch.clamp((most - least) / 255.0, min=1e-7)
        zero = torch.clamp(-128 - Round.apply(least / scale), -128, 127)
        scale, zero = scale.to(torch.float32), zero.to(torch.float32)
    return scaled_back(x, scale, zero, -128, 127, x.shape[-1])


def differentiable(w: Any) -> Any:
    """Int4WeightFakeQuantizer with inputs of 16 bit."""
    grouped = w.to(torch.float32).view(w.shape[0], -1, GROUP)
    most = torch.amax(grouped, dim=-1, keepdim=True)
    least = torch.amin(grouped, dim=-1, keepdim=True)
    scale = torch.clamp(most - least, min=1e-6) / 15
    zero = least + scale * 8
    rounded = Round.apply((grouped - least) / scale).clamp(0, 15) - 8
    return (rounded * scale + zero).view(w.shape).to(w.dtype)


class Kernels(TorchDispatchMode):
    """Operators that torch runs: bytes of tensors as large as one of `sizes`, and their number."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes, self.moved, self.large, self.small = sizes, 0, 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        made = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not function.is_view and name not in ("detach", "_unsafe_view", "mm", "t"):
            tensors = [x for x in (*args, made) if isinstance(x, torch.Tensor)]
            large = [x for x in tensors if x.numel() in self.sizes]
            self.moved += sum(x.numel() * x.element_size() for x in large)
            self.large += bool(large)
            self.small += not large
        return made


def ours(of: str, frozen: bool, inputs: bool) -> tuple[Operators, Recipe]:
    """The first block of a small model, and the recipe."""
    recipe = Recipe(
        sequence_length=TOKENS,
        global_batch=1,
        fake_quantised_weights=of,  # type: ignore[arg-type]
        fake_quantised_inputs=inputs,
        lora_rank=8 if frozen else 0,
    )
    layout = Layouts.of(global_batch=1)
    work = Workload(architecture=presets.load("llama-3.2-1b"), recipe=recipe)
    kernels = load_software("torch-fsdp").kernels
    return model_parts(work, Ranks.of_each(layout, place(layout, 1)), kernels)[0], recipe


def total(values: Iterable[Any]) -> float:
    return float(sum(np.sum(x) for x in values))


def linears() -> list[tuple[int, int]]:
    """Shapes of a block of Llama 3.2 1B, outputs and inputs."""
    hidden, wide, values = 2048, 8192, 512
    return [
        *((hidden, hidden), (values, hidden), (values, hidden), (hidden, hidden)),
        *((wide, hidden), (wide, hidden), (hidden, wide)),
    ]


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize(
    ("name", "quantise", "frozen"),
    [
        ("detached_scales", detached, False),
        ("detached_scales", detached, True),
        ("differentiable_scales", differentiable, False),
    ],
)
def test_kernels_bytes_and_saved_tensors_are_those_of_torch(
    name: str, quantise: Callable[[Any], Any], frozen: bool, inputs: bool
) -> None:
    forward, backward, saved = [0, 0, 0], [0, 0, 0], 0
    for rows, columns in linears():
        w = torch.randn(rows, columns, dtype=torch.bfloat16, requires_grad=not frozen)
        x = torch.randn(TOKENS, columns, dtype=torch.bfloat16, requires_grad=True)
        kept: dict[int, int] = {}

        sizes = {w.numel(), x.numel()}

        def pack(tensor: Any, sizes: Any = sizes, kept: Any = kept) -> Any:
            if tensor.numel() in sizes:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        counts = Kernels(w.numel(), x.numel())
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with counts:
                rounded, read = quantise(w), by_token(x) if inputs else x
            F.linear(read, rounded)
        counted = counts.moved, counts.large, counts.small
        forward = [a + b for a, b in zip(forward, counted, strict=True)]
        own = (x, w) if inputs else (w,)
        for tensor in own:
            kept.pop(tensor.untyped_storage().data_ptr(), None)
        if not inputs:
            kept.pop(x.untyped_storage().data_ptr(), None)
        saved += sum(kept.values())
        for made, asked in ((rounded, not frozen), (read, inputs)):
            if asked:
                grad = torch.ones_like(made)
                counts = Kernels(made.numel())
                with counts:
                    made.backward(grad)
                counted = (counts.moved, counts.large, counts.small)
                backward = [a + b for a, b in zip(backward, counted, strict=True)]
    ops, _ = ours(name, frozen, inputs)
    streams = [s for s in ops.streams if s.role is StreamRole.FAKE_QUANTISATION]
    over = [s for s in streams if not s.name.startswith("scales")]
    small = [s for s in streams if s.name.startswith("scales")]
    assert total(s.forward_bytes for s in over) == forward[0]
    assert total(s.backward_bytes for s in over) == backward[0]
    assert sum(s.calls for s in over) == forward[1]
    assert sum(s.calls_back for s in over) == backward[1]
    assert sum(s.calls for s in small) == forward[2]
    assert sum(s.calls_back for s in small) == backward[2]
    listed = total(t.size_bytes for t in ops.saved if t.name.startswith("fake quant"))
    assert listed == saved


@pytest.mark.parametrize("quantise", [detached, by_token, differentiable])
def test_what_an_element_takes_in_passing_is_what_torch_allocates(quantise: Any) -> None:
    w = torch.randn(512, 2048, dtype=torch.bfloat16, requires_grad=True)

    def most(run: Callable[[], Any]) -> tuple[float, float, Any]:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            made = run()
        held = top = 0
        for event in seen.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                top = max(top, held)
        return top / w.numel(), held / w.numel(), made

    top, kept, made = most(lambda: quantise(w))
    grad = torch.ones_like(made)
    back, _, _ = most(lambda: made.backward(grad))
    assert max(top - kept, back) == pytest.approx(12.0, rel=0.02)


def test_inputs_that_only_rounding_linears_read_are_not_kept() -> None:
    plain, _ = ours("none", frozen=False, inputs=False)
    rounded, _ = ours("detached_scales", frozen=False, inputs=True)
    gone = {t.name for t in plain.saved} - {t.name for t in rounded.saved}
    assert gone and all(t.linears for t in plain.saved if t.name in gone)
