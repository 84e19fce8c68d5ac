"""Bytes that the less common kinds of block keep, against what autograd saves under fake tensors.

As ``test_saved_bytes.py``, whose kernels stand in for those of a GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from simulator.cost.operators.block_operators import block
from simulator.cost.operators.operations import Operators, Ranks
from simulator.layout.layouts import Layouts
from simulator.layout.placement import place
from simulator.software.kernels import Kernels
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.architecture import MLP, Attention, Block
from simulator.workload.recipe import Recipe

FUSED = load_software("megatron-core").kernels
UNFUSED = load_software("megatron-lm-2022").kernels


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with FakeTensorMode():
        yield
    torch.set_default_dtype(before)


class Norm(torch.autograd.Function):
    """A fused norm keeps its input; statistics are left out on both sides."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class GatedActivation(torch.autograd.Function):
    """Fused: keeps its input, computes the gate again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.cat([grad, grad], -1)


def parameter(*shape: int) -> torch.Tensor:
    return torch.nn.Parameter(torch.empty(*shape))


def stream(*shape: int) -> torch.Tensor:
    """The residual stream as the block before hands it over."""
    return parameter(*shape) * 1


def dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout(x, 0.1, True)[0]


def kept(forward: Callable[[], torch.Tensor]) -> int:
    """Bytes of the distinct storages that autograd saves, parameters and scalars left out."""
    storages: dict[int, Any] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        base = x._base if x._base is not None else x
        if not isinstance(base, torch.nn.Parameter) and x.numel() > 1:
            storages[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = forward()
    assert result.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def operators(
    kind: Block, hidden: int, s: int, b: int, kernels: Kernels, **recipe: Any
) -> Operators:
    layout = Layouts.of(micro_batch=b)
    degrees = {x: getattr(layout, x).astype(float) for x in ("tp", "cp", "ep", "etp")}
    ranks = Ranks(
        **degrees,
        micro_batch=layout.micro_batch.astype(float),
        sequence_parallel=layout.sequence_parallel.astype(bool),
        groups=place(layout, 8),
    )
    training = Recipe(sequence_length=s, global_batch=b, **recipe)
    return block(kind, hidden, ranks, training, kernels)


def ours(
    kind: Block, hidden: int, s: int, b: int, kernels: Kernels, *without: str, **recipe: Any
) -> float:
    saved = operators(kind, hidden, s, b, kernels, **recipe).saved
    left_out = ("statistics", *without)
    kept = [x for x in saved if not any(word in x.name for word in left_out)]
    return sum(float(x.size_bytes.sum()) for x in kept)


def attend(
    y: torch.Tensor, att: Attention, keys: torch.Tensor | None = None, *, values: Any = None
) -> torch.Tensor:
    """Projections and flash attention; from `keys` and `values` where these are not the input."""
    b, s, h = y.shape
    keys = y if keys is None else keys
    values = keys if values is None else values

    def heads(x: torch.Tensor, count: int) -> torch.Tensor:
        weight = parameter(count * att.head_dim, h)
        return F.linear(x, weight).view(b, x.shape[1], count, att.head_dim).transpose(1, 2)

    mixed = F.scaled_dot_product_attention(
        heads(y, att.heads),
        heads(keys, att.kv_heads),
        heads(values, att.kv_heads),
        is_causal=att.causal,
        enable_gqa=True,
    )
    wide = att.heads * att.head_dim
    return F.linear(mixed.transpose(1, 2).reshape(b, s, wide), parameter(h, wide))


def feed(y: torch.Tensor, mlp: MLP) -> torch.Tensor:
    h, f = y.shape[-1], mlp.ffn_hidden
    if mlp.gated:
        return F.linear(GatedActivation.apply(F.linear(y, parameter(2 * f, h))), parameter(h, f))
    inner = F.linear(y, parameter(f, h))
    inner = F.gelu(inner) if mlp.activation == "gelu" else F.relu(inner)
    inner = inner.square() if mlp.activation == "squared_relu" else inner
    return F.linear(inner, parameter(h, f))


def test_gemma_norms_behind_attention_and_mlp_keep_their_inputs() -> None:
    arch, s = presets.load("gemma-2-9b"), 4096
    slid, full = arch.blocks
    assert (slid.norms, slid.attention.window, full.attention.window) == (4, 4096, 0)

    def forward() -> torch.Tensor:
        x = stream(1, s, arch.hidden)
        x = x + Norm.apply(attend(Norm.apply(x), slid.attention))
        return x + Norm.apply(feed(Norm.apply(x), slid.mlp))

    found = kept(forward)
    assert found == ours(slid, arch.hidden, s, 1, FUSED) == ours(full, arch.hidden, s, 1, FUSED)


@pytest.mark.parametrize("name", ["falcon-7b", "pythia-12b"])
def test_parallel_residuals_keep_their_input_once(name: str) -> None:
    """Falcon-7B reads one norm for both, GPT-NeoX two norms of the same input."""
    arch, s, b = presets.load(name), 2048, 2
    kind = arch.blocks[0]
    assert kind.norms == (1 if name == "falcon-7b" else 2)

    def forward() -> torch.Tensor:
        x = stream(b, s, arch.hidden)
        y = Norm.apply(x)
        z = y if kind.norms == 1 else Norm.apply(x)
        return x + attend(y, kind.attention) + feed(z, kind.mlp)

    assert kept(forward) == ours(kind, arch.hidden, s, b, FUSED)


@pytest.mark.parametrize("activation", ["gelu", "relu", "squared_relu"])
def test_rectifiers_keep_their_output_only(activation: Any) -> None:
    arch, s = presets.load("opt-66b"), 2048
    assert arch.blocks[0].mlp.activation == "relu"
    mlp = replace(arch.blocks[0].mlp, activation=activation)
    kind = replace(arch.blocks[0], mlp=mlp, dropout=False)

    def forward() -> torch.Tensor:
        x = stream(1, s, arch.hidden)
        x = x + attend(Norm.apply(x), kind.attention)
        return x + feed(Norm.apply(x), mlp)

    assert kept(forward) == ours(kind, arch.hidden, s, 1, FUSED)


@pytest.mark.parametrize("name", ["bert-large", "vit-large-16"])
def test_encoders_keep_the_same_before_and_behind_their_norms(name: str) -> None:
    arch, b = presets.load(name), 3
    kind = replace(arch.blocks[0], dropout=False)
    kind = replace(kind, attention=replace(kind.attention, dropout=False))
    s = arch.max_positions

    def forward() -> torch.Tensor:
        x = stream(b, s, arch.hidden)
        if name == "vit-large-16":
            x = x + attend(Norm.apply(x), kind.attention)
            return x + feed(Norm.apply(x), kind.mlp)
        x = Norm.apply(x + attend(x, kind.attention))
        return Norm.apply(x + feed(x, kind.mlp))

    assert kept(forward) == ours(kind, arch.hidden, s, b, FUSED)


@pytest.mark.parametrize("name", ["t5-11b", "t5-v1.1-xxl"])
@pytest.mark.parametrize("written", [128, 512])
def test_decoders_keep_keys_and_values_of_the_encoder(name: str, written: int) -> None:
    arch, read, b = presets.load(name), 512, 2
    kind = next(k for k in arch.blocks if k.cross_attention and not k.starts_decoder)
    cross = kind.cross_attention
    assert cross is not None and not cross.causal and kind.attention.causal
    quiet = replace(kind, dropout=False)

    def forward() -> torch.Tensor:
        x, encoded = stream(b, written, arch.hidden), parameter(b, read, arch.hidden)
        x = x + attend(Norm.apply(x), kind.attention)
        x = x + attend(Norm.apply(x), cross, encoded)
        return x + feed(Norm.apply(x), kind.mlp)

    found = kept(forward)
    assert found == ours(quiet, arch.hidden, read, b, FUSED, decoder_length=written)


def test_the_first_layer_of_a_decoder_keeps_what_all_of_them_read() -> None:
    arch, read, written = presets.load("t5-11b"), 512, 128
    first = next(k for k in arch.blocks if k.starts_decoder)
    later = next(k for k in arch.blocks if k.cross_attention and not k.starts_decoder)
    more = [ours(k, arch.hidden, read, 1, FUSED, decoder_length=written) for k in (first, later)]
    # input and output of the encoder's last norm in 16 bit, a dropout mask on both inputs
    assert more[0] - more[1] == (2 * 2 + 1) * read * arch.hidden + written * arch.hidden


def test_localized_filtering() -> None:
    """Yuan 2.0: convolutions over a token and the one before it; values do not pass them."""
    h, s, heads = 2048, 1024, 32
    attention = Attention(heads=heads, kv_heads=heads, head_dim=h // heads, filtered=True)
    kind = Block(attention=attention, mlp=MLP(ffn_hidden=8192))

    def convolve(y: torch.Tensor, inner: int, outer: int) -> torch.Tensor:
        return F.conv1d(F.pad(y, (1, 0)), parameter(outer, inner, 2), parameter(outer))

    def forward() -> torch.Tensor:
        x = stream(1, s, h)
        y = Norm.apply(x)
        narrow = convolve(y.transpose(1, 2), h, h // 2)
        wide = convolve(narrow, h // 2, h).transpose(1, 2)
        filtered = Norm.apply(wide + y)
        x = x + attend(filtered, attention, values=y)
        return x + feed(Norm.apply(x), kind.mlp)

    # torch keeps padded copies: a row more of either input, and that of the first beside y itself
    padded = 2 * (s + 1) * h + 2 * h // 2
    assert kept(forward) == ours(kind, h, s, 1, FUSED) + padded


@pytest.mark.parametrize("b", [1, 4])
def test_disentangled_attention(b: int) -> None:
    """DeBERTa-v3 as transformers computes it: two products with positions, gathered by distance."""
    arch, s = presets.load("deberta-v3-large"), 512
    kind, h = arch.blocks[0], arch.hidden
    att, rows = kind.attention, kind.attention.disentangled
    assert (rows, att.position_projections) == (512, False)
    heads, dim = att.heads, att.head_dim

    def split(x: torch.Tensor) -> torch.Tensor:
        y = x.view(x.shape[0], x.shape[1], heads, dim).permute(0, 2, 1, 3).contiguous()
        return y.view(-1, x.shape[1], dim)

    def forward() -> torch.Tensor:
        x, scale = stream(b, s, h), torch.empty(())
        wq, wk, wv = parameter(h, h), parameter(h, h), parameter(h, h)
        q, k, v = (split(F.linear(x, w)) for w in (wq, wk, wv))
        places = dropped(parameter(1, rows, h) * 1)
        pos_q, pos_k = (split(F.linear(places, w)).repeat(b, 1, 1) for w in (wq, wk))
        scores = torch.bmm(q, k.transpose(-1, -2) / scale)
        for one, other, turn in ((q, pos_k, False), (k, pos_q, True)):
            index = torch.zeros(s, s, dtype=torch.int64).expand(b * heads, s, s)
            found = torch.gather(torch.bmm(one, other.transpose(-1, -2)), -1, index)
            scores = scores + (found.transpose(-1, -2) if turn else found) / scale
        weights = dropped(torch.softmax(scores, -1))
        mixed = torch.bmm(weights, v).view(b, heads, s, dim).permute(0, 2, 1, 3).contiguous()
        x = F.layer_norm(x + dropped(F.linear(mixed.view(b, s, h), parameter(h, h))), (h,))
        inner = F.gelu(F.linear(x, parameter(kind.mlp.ffn_hidden, h)))
        return F.layer_norm(x + dropped(F.linear(inner, parameter(h, kind.mlp.ffn_hidden))), (h,))

    statistics = 2 * 2 * b * s * 2  # of two norms, in 16 bit on a processor
    assert kept(forward) - statistics == ours(kind, h, s, b, UNFUSED)


def test_capped_scores_are_kept_where_no_kernel_caps_them() -> None:
    arch, s, b = presets.load("gemma-2-9b"), 512, 2
    kind = arch.blocks[1]
    heads = kind.attention.heads
    plain = replace(kind, attention=replace(kind.attention, softcap=False))

    def scores(capped: bool) -> Callable[[], torch.Tensor]:
        def forward() -> torch.Tensor:
            x = stream(b, heads, s, s)
            return torch.softmax(torch.tanh(x / 50.0) * 50.0 if capped else x, -1)

        return forward

    more = kept(scores(True)) - kept(scores(False))
    assert more == 2 * b * heads * s * s
    with_cap, without = (ours(k, arch.hidden, s, b, UNFUSED) for k in (kind, plain))
    assert with_cap - without == more
    assert ours(kind, arch.hidden, s, b, FUSED) == ours(plain, arch.hidden, s, b, FUSED)


def test_the_convolution_of_deberta_keeps_its_copies() -> None:
    """The input with channels first, the result before its activation, and the norm's input."""
    arch, s, b = presets.load("deberta-v2-xlarge"), 512, 2
    first, rest = arch.blocks
    h = arch.hidden

    def forward() -> torch.Tensor:
        x, y = (parameter(b, s, h) * 1.0 for _ in range(2))
        channels = x.transpose(1, 2).contiguous()
        out = F.conv1d(channels, parameter(h, h, 3), parameter(h), padding=1)
        out = F.gelu(out.transpose(1, 2).contiguous())
        return Norm.apply(y + out)

    first, rest = (replace(kind, dropout=False) for kind in (first, rest))
    more = ours(first, h, s, b, FUSED) - ours(rest, h, s, b, FUSED)
    assert more == kept(forward) == 3 * b * s * h * 2
