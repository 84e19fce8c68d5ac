"""Mixers in place of attention against torch: products over chunks, FLOPs, kept bytes.

References are held against their token-by-token definition first. Kernels that keep other tensors
than eager torch are autograd functions that save what those do.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Operators, Ranks
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.profile import load_software
from simulator.workload.architecture import Block
from simulator.workload.mixers import GatedDelta, LightningAttention, Mamba2, Mixer
from simulator.workload.recipe import Recipe

KERNELS = load_software("megatron-core").kernels
DELTA = GatedDelta(
    key_heads=2, value_heads=4, key_head_dim=32, value_head_dim=16, chunk=16, convolution=3
)
LIGHTNING = LightningAttention(heads=4, head_dim=32, chunk=64)
MAMBA2 = Mamba2(heads=8, head_dim=32, state_size=16, groups=2, chunk=64)
HIDDEN = 96

Tensor = torch.Tensor


def state_space(x: Tensor, decay: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Mamba-2 token by token: S = exp(decay) S + x b, y = S c (arXiv 2405.21060, eq. 1).

    `x` is (batch, length, heads, head), `decay` (batch, length, heads), `b` and `c` (batch, length,
    groups, state); the step is in `x` already.
    """
    heads = x.shape[2] // b.shape[2]
    b, c = (t.repeat_interleave(heads, 2) for t in (b, c))
    state, outputs = x.new_zeros(*x[:, 0].shape, b.shape[-1]), []
    for at in range(x.shape[1]):
        state = state * decay[:, at].exp()[..., None, None]
        state = state + x[:, at, ..., None] * b[:, at, :, None]
        outputs.append((state * c[:, at, :, None]).sum(-1))
    return torch.stack(outputs, 1)


def chunked_state_space(x: Tensor, decay: Tensor, b: Tensor, c: Tensor, size: int) -> Tensor:
    """The same over chunks of `size` tokens (section 6): four products a chunk."""
    batch, length, heads, head = x.shape
    groups, state_size, chunks = b.shape[2], b.shape[3], length // size

    def cut(t: Tensor) -> Tensor:  # (batch, chunks, heads, size, ...)
        return t.reshape(batch, chunks, size, *t.shape[2:]).transpose(2, 3)

    def per_head(t: Tensor) -> Tensor:
        return t.repeat_interleave(heads // groups, 2)

    x, decay, b, c = cut(x), cut(decay).cumsum(-1), cut(b), cut(c)
    scores = c @ b.transpose(-1, -2)
    past = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(~past, -torch.inf).exp()
    inside = (per_head(scores) * between) @ x
    left = (decay[..., -1:] - decay).exp()[..., None]
    states = (x * left).transpose(-1, -2) @ per_head(b)
    before, state = [], x.new_zeros(batch, heads, head, state_size)
    for at in range(chunks):
        before.append(state)
        state = state * decay[:, at, :, -1].exp()[..., None, None] + states[:, at]
    outside = (per_head(c) * decay.exp()[..., None]) @ torch.stack(before, 1).transpose(-1, -2)
    return (inside + outside).transpose(2, 3).reshape(batch, length, heads, head)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor) -> Tensor:
    """Gated delta rule token by token (arXiv 2412.06464, eq. 10).

    S = exp(decay) S, then S + k (rate (v - S k)), y = S q; all (batch, heads, length, size).
    """
    state, outputs = q.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), []
    for at in range(q.shape[2]):
        state = state * decay[:, :, at].exp()[..., None, None]
        wrong = v[:, :, at] - (state * k[:, :, at, :, None]).sum(-2)
        state = state + k[:, :, at, :, None] * (rate[:, :, at, None] * wrong)[:, :, None]
        outputs.append((state * q[:, :, at, :, None]).sum(-2))
    return torch.stack(outputs, 2)


def chunked_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor, state: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """The same over chunks of `size` tokens (section 3.3): eight products a chunk."""
    shape = (*q.shape[:2], q.shape[2] // size, size)
    q, k, v = (t.reshape(*shape, -1) for t in (q, k, v))
    decay, rate = decay.reshape(shape).cumsum(-1), rate.reshape(shape)[..., None]
    past = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(~past, -torch.inf).exp()
    mixed = -((k * rate) @ k.transpose(-1, -2) * between).tril(-1)
    rows = [mixed[..., :1, :]]  # (1 - mixed)^-1 by forward substitution
    for at in range(1, size):
        above = torch.cat(rows, -2)
        more = (mixed[..., at, :at, None] * above).sum(-2)
        rows.append((mixed[..., at, :] + more)[..., None, :])
    inverse = torch.cat(rows, -2) + torch.eye(size, device=q.device)
    values = inverse @ (v * rate)
    read = inverse @ (k * rate * decay.exp()[..., None])
    scores = q @ k.transpose(-1, -2) * between
    q = q * decay.exp()[..., None]
    left = k * (decay[..., -1:] - decay).exp()[..., None]
    outputs = []
    for at in range(shape[2]):
        new = values[:, :, at] - read[:, :, at] @ state
        outputs.append(q[:, :, at] @ state + scores[:, :, at] @ new)
        state = state * decay[:, :, at, -1].exp()[..., None, None]
        state = state + left[:, :, at].transpose(-1, -2) @ new
    return torch.cat(outputs, 2), state


def operators(mixer: Mixer, length: int, batch: int, tp: int = 1) -> Operators:
    layout = Layouts.of(micro_batch=batch, tp=tp)
    ranks = Ranks(
        **{x: getattr(layout, x).astype(float) for x in ("tp", "cp", "ep", "etp", "micro_batch")},
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )
    recipe = Recipe(sequence_length=length, global_batch=batch)
    kind = Block(attention=None, mlp=None, mixer=mixer, norms=1)
    return block(kind, HIDDEN, ranks, recipe, KERNELS)


def flop(ops: Operators, kind: str) -> float:
    return float(sum(2 * (g.batch * g.m * g.n * g.k).item() for g in ops.gemms if g.kind == kind))


def counted(run: Callable[[], torch.Tensor]) -> tuple[dict[Any, int], dict[Any, int]]:
    with FlopCounterMode(display=False) as forward:
        result = run()
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    return tuple(mode.get_flop_counts()["Global"] for mode in (forward, backward))


def leaf(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta", requires_grad=True)


def project(x: torch.Tensor, mixer: Mamba2, batch: int, length: int) -> torch.Tensor:
    """Mamba-2 from its input to its output, the scan over chunks."""
    inner, state = mixer.inner, mixer.groups * mixer.state_size
    projected = F.linear(x, leaf(inner + mixer.convolved + mixer.heads, HIDDEN))
    gate, wide, step = projected.split([inner, mixer.convolved, mixer.heads], -1)
    padded = F.pad(wide.transpose(1, 2), (mixer.convolution - 1, 0))
    kernel = leaf(mixer.convolved, 1, mixer.convolution)
    wide = F.silu(F.conv1d(padded, kernel, leaf(mixer.convolved), groups=mixer.convolved))
    x, b, c = wide.transpose(1, 2).split([inner, state, state], -1)
    x = x.reshape(batch, length, mixer.heads, -1)
    b, c = (t.reshape(batch, length, mixer.groups, -1) for t in (b, c))
    step = F.softplus(step + leaf(mixer.heads))
    y = chunked_state_space(
        x * step[..., None], -step * leaf(mixer.heads).exp(), b, c, min(mixer.chunk, length)
    )
    y = (y + x * leaf(mixer.heads)[:, None]).reshape(batch, length, inner) * F.silu(gate)
    return F.linear(F.rms_norm(y, (inner,), leaf(inner)), leaf(HIDDEN, inner))


def test_chunks_of_a_state_space_are_its_definition() -> None:
    torch.manual_seed(0)
    x, b, c = torch.randn(2, 24, 4, 3), torch.randn(2, 24, 2, 5), torch.randn(2, 24, 2, 5)
    decay = -torch.rand(2, 24, 4)
    alone = state_space(x, decay, b, c)
    torch.testing.assert_close(chunked_state_space(x, decay, b, c, 8), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("length", "batch"), [(256, 1), (512, 3), (128, 2)])
def test_flop_of_mamba2(length: int, batch: int) -> None:
    forward, backward = counted(lambda: project(leaf(batch, length, HIDDEN), MAMBA2, batch, length))
    ops, aten = operators(MAMBA2, length, batch), torch.ops.aten
    assert forward[aten.mm] == flop(ops, "linear")
    assert backward[aten.mm] == 2 * flop(ops, "linear")
    assert forward[aten.bmm] == flop(ops, "attention")
    assert backward[aten.bmm] == 2 * flop(ops, "attention")
    # the convolution is no GEMM: two FLOPs for each of its weights and tokens
    assert forward[aten.convolution] == 2 * batch * length * MAMBA2.convolved * MAMBA2.convolution


def test_chunks_of_the_delta_rule_are_its_definition() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 24, 5), torch.randn(2, 3, 24, 5), torch.randn(2, 3, 24, 4)
    k, decay, rate = F.normalize(k, dim=-1), -torch.rand(2, 3, 24), torch.rand(2, 3, 24)
    chunked, _ = chunked_delta_rule(q, k, v, decay, rate, torch.zeros(2, 3, 5, 4), 8)
    alone = delta_rule(q, k, v, decay, rate)
    torch.testing.assert_close(chunked, alone, rtol=1e-4, atol=1e-5)


def project_delta(x: Tensor, mixer: GatedDelta, batch: int, length: int) -> Tensor:
    """Gated delta rule from its input to its output, over chunks."""
    keys, values, heads = mixer.keys, mixer.values, mixer.value_heads
    projected = F.linear(x, leaf(2 * (keys + values + heads), HIDDEN))
    wide, gate, step, rate = projected.split([2 * keys + values, values, heads, heads], -1)
    channels = 2 * keys + values
    padded = F.pad(wide.transpose(1, 2), (mixer.convolution - 1, 0))
    kernel = leaf(channels, 1, mixer.convolution)
    wide = F.silu(F.conv1d(padded, kernel, groups=channels)).transpose(1, 2)

    def by_head(t: Tensor, count: int) -> Tensor:
        return t.reshape(batch, length, count, -1).transpose(1, 2)

    q, k, v = wide.split([keys, keys, values], -1)
    each = heads // mixer.key_heads
    q, k = (
        F.normalize(by_head(t, mixer.key_heads), dim=-1).repeat_interleave(each, 1) for t in (q, k)
    )
    decay = -(F.softplus(step + leaf(heads)) * leaf(heads).exp()).transpose(1, 2)
    state = leaf(batch, heads, mixer.key_head_dim, mixer.value_head_dim)
    y, state = chunked_delta_rule(
        q, k, by_head(v, heads), decay, rate.sigmoid().transpose(1, 2), state, mixer.chunk
    )
    y = F.rms_norm(y.transpose(1, 2), (mixer.value_head_dim,), leaf(mixer.value_head_dim))
    y = y.reshape(batch, length, values) * F.silu(gate)
    return F.linear(y, leaf(HIDDEN, values)).sum() + state.sum()


@pytest.mark.parametrize(("length", "batch"), [(64, 1), (96, 2)])
def test_flop_of_the_delta_rule(length: int, batch: int) -> None:
    """Every chunk reads a state and leaves one, as in kernels that serve all chunks alike."""
    forward, backward = counted(
        lambda: project_delta(leaf(batch, length, HIDDEN), DELTA, batch, length)
    )
    ops, aten = operators(DELTA, length, batch), torch.ops.aten
    assert forward[aten.mm] == flop(ops, "linear")
    assert backward[aten.mm] == 2 * flop(ops, "linear")
    assert forward[aten.bmm] == flop(ops, "attention")
    assert backward[aten.bmm] == 2 * flop(ops, "attention")
    channels = 2 * DELTA.keys + DELTA.values
    assert forward[aten.convolution] == 2 * batch * length * channels * DELTA.convolution


class Keeps(torch.autograd.Function):
    """A kernel of `inputs` that saves the first `saved` of them, new tensors, and its output."""

    @staticmethod
    def forward(ctx: Any, shapes: Any, keeps_output: bool, out: Any, *inputs: Any) -> Any:
        result = inputs[0].new_empty(out)
        new = [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in shapes]
        ctx.save_for_backward(*inputs, *new, *([result] if keeps_output else []))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise NotImplementedError


def kept(run: Callable[[], torch.Tensor]) -> int:
    """Bytes of the distinct storages that autograd saves, parameters left out."""
    storages: dict[int, Any] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        base = x._base if x._base is not None else x
        if not isinstance(base, torch.nn.Parameter):
            storages[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run()
    return sum(storage.nbytes() for storage in storages.values())


def saved(ops: Operators) -> float:
    return float(sum(tensor.size_bytes.sum() for tensor in ops.saved))


def parameter(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(*shape, dtype=torch.bfloat16))


@pytest.mark.parametrize(("length", "batch"), [(256, 1), (512, 3)])
def test_kept_bytes_of_mamba2(length: int, batch: int) -> None:
    """Convolution and scan keep what was projected and their output before the gate.

    mamba_ssm/ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn: ``zxbcdt`` and ``out_x``;
    the gated norm, a kernel of its own, its input and a statistic of every group.
    """
    mixer, rows, fp32 = MAMBA2, (batch, length), torch.float32
    with FakeTensorMode():

        def run() -> torch.Tensor:
            stream = parameter(*rows, HIDDEN) * 1
            normed = Keeps.apply([((*rows, 1), fp32)], False, (*rows, HIDDEN), stream)
            wide = mixer.inner + mixer.convolved + mixer.heads
            projected = F.linear(normed, parameter(wide, HIDDEN))
            scanned = [((*rows, mixer.inner), torch.bfloat16)]
            gated = Keeps.apply(scanned, False, (*rows, mixer.inner), projected)
            statistics = [((*rows, mixer.groups), fp32)]
            normed = Keeps.apply(statistics, False, (*rows, mixer.inner), gated)
            return stream + F.linear(normed, parameter(HIDDEN, mixer.inner))

        assert kept(run) == saved(operators(mixer, length, batch))


@pytest.mark.parametrize("heads", [2, 4])
def test_kept_bytes_of_the_delta_rule(heads: int) -> None:
    """Sigmoid, softplus, copies and repeated heads are torch's own; kernels keep what fla's do.

    fla/ops/gated_delta_rule/chunk.py: queries, keys, values, sums of decays, rates and inverses;
    fla/modules/l2norm.py: its result and a statistic; causal-conv1d its input; the gate's kernel
    both of its operands.
    """
    mixer = replace(DELTA, value_heads=heads)
    rows, half, fp32 = (2, 64), torch.bfloat16, torch.float32
    keys, values = mixer.keys, mixer.values
    channels = 2 * keys + values
    each = heads // mixer.key_heads

    def normed(t: Tensor) -> Tensor:
        by_head = (*rows, mixer.key_heads, mixer.key_head_dim)
        y = Kernel.apply([((*by_head[:3], 1), fp32)], by_head, (), True, t)
        return y.repeat_interleave(each, 2) if each > 1 else y

    def run() -> Tensor:
        stream = parameter(*rows, HIDDEN) * 1
        x = Keeps.apply([((*rows, 1), fp32)], False, (*rows, HIDDEN), stream)
        projected = F.linear(x, parameter(2 * (keys + values + heads), HIDDEN))
        wide, gate, rate, step = projected.split([channels, values, heads, heads], -1)
        mixed = Keeps.apply([], False, (*rows, channels), wide.clone())
        q, k, v = mixed.split([keys, keys, values], -1)
        q, k, v, gate = normed(q), normed(k), v.contiguous(), gate.contiguous()
        slope = parameter(heads).float()
        decay = slope * F.softplus(step.float() + parameter(heads))
        rate = rate.sigmoid()
        sums = ((*rows, heads), fp32)
        inverse = ((*rows, heads, mixer.chunk), half)
        y = Kernel.apply(
            [sums, inverse], (*rows, values), (0, 1, 2, 4), False, q, k, v, decay, rate
        )
        y = Keeps.apply([((*rows, heads), fp32)], False, (*rows, values), y)
        y = Kernel.apply([], (*rows, values), (0, 1), False, y, gate)
        return stream + F.linear(y, parameter(HIDDEN, values))

    with FakeTensorMode():
        # the slope of the decay, a number for each head, is no tensor of tokens
        assert kept(run) - 4 * heads == saved(operators(mixer, *reversed(rows)))


def lightning(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """Lightning attention token by token: S = exp(-rate) S + k v, y = S q (arXiv 2501.08313).

    `rate` is a number for each head, the others (batch, heads, length, head).
    """
    state, outputs = q.new_zeros(*q.shape[:2], q.shape[3], q.shape[3]), []
    for at in range(q.shape[2]):
        state = state * (-rate).exp()[:, None, None]
        state = state + k[:, :, at, :, None] * v[:, :, at, None]
        outputs.append((state * q[:, :, at, :, None]).sum(-2))
    return torch.stack(outputs, 2)


def chunked_lightning(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, state: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """The same over chunks of `size` tokens (algorithm 2): four products a chunk."""
    at = torch.arange(size, device=q.device) + 1.0
    apart, rate = (at[:, None] - at), rate[:, None, None]
    between = torch.where(apart >= 0, -rate * apart, -torch.inf).exp()
    outputs = []
    for part in zip(*(t.split(size, 2) for t in (q, k, v)), strict=True):
        queries, keys, values = part
        inside = (queries @ keys.transpose(-1, -2) * between) @ values
        outputs.append(inside + queries * (-rate * at[:, None]).exp() @ state)
        left = keys * (-rate * (size - at[:, None])).exp()
        state = state * (-rate * size).exp() + left.transpose(-1, -2) @ values
    return torch.cat(outputs, 2), state


def test_chunks_of_lightning_attention_are_its_definition() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 24, 5).unbind()
    rate = torch.tensor([0.1, 0.4, 0.9])
    chunked, _ = chunked_lightning(q, k, v, rate, torch.zeros(2, 3, 5, 5), 8)
    torch.testing.assert_close(chunked, lightning(q, k, v, rate), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("length", "batch"), [(128, 1), (256, 3), (48, 2)])
def test_flop_of_lightning_attention(length: int, batch: int) -> None:
    """Every chunk reads a state and leaves one, as in kernels that serve all chunks alike."""
    mixer = LIGHTNING
    inner, head = mixer.inner, (mixer.heads, mixer.head_dim)

    def run() -> Tensor:
        x = leaf(batch, length, HIDDEN)
        wide, gate = F.linear(x, leaf(4 * inner, HIDDEN)).split([3 * inner, inner], -1)
        by_head = F.silu(wide).reshape(batch, length, mixer.heads, -1).transpose(1, 2)
        state, rate = leaf(batch, *head, mixer.head_dim), leaf(mixer.heads)
        size = min(mixer.chunk, length)
        y, state = chunked_lightning(*by_head.chunk(3, -1), rate, state, size)
        y = y.transpose(1, 2).reshape(batch, length, inner)
        y = F.rms_norm(y, (inner,), leaf(inner)) * gate.sigmoid()
        return F.linear(y, leaf(HIDDEN, inner)).sum() + state.sum()

    forward, backward = counted(run)
    ops, aten = operators(mixer, length, batch), torch.ops.aten
    assert forward[aten.mm] == flop(ops, "linear")
    assert backward[aten.mm] == 2 * flop(ops, "linear")
    assert forward[aten.bmm] == flop(ops, "attention")
    assert backward[aten.bmm] == 2 * flop(ops, "attention")


@pytest.mark.parametrize(("length", "batch"), [(128, 1), (256, 3)])
def test_kept_bytes_of_lightning_attention(length: int, batch: int) -> None:
    """SiLU, sigmoid and products are torch's own; the chunks' kernel keeps what it read.

    lightning_attn/ops/triton/lightning_attn2.py: queries, keys and values by head (and rates, which
    are no tensor of tokens); the norm, a kernel of its own, its input and a statistic.
    """
    mixer, rows, fp32 = LIGHTNING, (batch, length), torch.float32
    inner = mixer.inner

    def run() -> Tensor:
        stream = parameter(*rows, HIDDEN) * 1
        x = Keeps.apply([((*rows, 1), fp32)], False, (*rows, HIDDEN), stream)
        wide = F.silu(F.linear(x, parameter(3 * inner, HIDDEN)))
        by_head = wide.reshape(*rows, mixer.heads, -1).transpose(1, 2).chunk(3, -1)
        q, k, v = (t.contiguous() for t in by_head)
        y = Keeps.apply([], False, q.shape, q, k, v)
        y = y.transpose(1, 2).reshape(*rows, inner)
        y = Keeps.apply([((*rows, 1), fp32)], False, (*rows, inner), y)
        y = F.linear(x, parameter(inner, HIDDEN)).sigmoid() * y
        return stream + F.linear(y, parameter(HIDDEN, inner))

    with FakeTensorMode():
        assert kept(run) == saved(operators(mixer, length, batch))


def test_tensor_parallel_ranks_share_the_heads_of_lightning_attention() -> None:
    """Half the heads of two ranks, and two numbers for each token that they agree on."""
    mixer, length = LIGHTNING, 128
    whole, half = (operators(mixer, length, 1, tp=tp) for tp in (1, 2))
    assert flop(whole, "linear") == 2 * flop(half, "linear")
    assert flop(whole, "attention") == 2 * flop(half, "attention")
    agreed = [c for c in half.collectives if c.size_bytes == 4 * length]
    assert [(c.operation, c.group) for c in agreed] == [("all_reduce", "tp")] * 2
    assert mixer.shares == (4,)


class Kernel(torch.autograd.Function):
    """A kernel that saves some of its inputs by place, new tensors, and its output if asked."""

    @staticmethod
    def forward(
        ctx: Any, shapes: Any, out: Any, places: Any, keeps_output: bool, *inputs: Any
    ) -> Any:
        result = inputs[0].new_empty(out)
        new = [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in shapes]
        chosen = [inputs[place] for place in places]
        ctx.save_for_backward(*chosen, *new, *([result] if keeps_output else []))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise NotImplementedError
