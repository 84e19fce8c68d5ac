"""Transformers of torch's own modules: GPT, Llama and mixture-of-experts blocks.

The projections to queries, keys and values are three modules, so that tensor parallelism can cut
each by heads. There is no dropout and no auxiliary loss of the router. Vocabularies are padded to
a multiple of 128, as trainers do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The shape of a model; `ffn` is the width of the MLP, or of one expert."""

    family: str  # gpt, llama or moe
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    head_size: int
    experts: int = 0
    top_k: int = 0
    tied: bool = False
    """The output projection uses the embedding table."""
    longest: int = 2048
    """Positions that a GPT has learned embeddings for."""


def _gpt(layers: int, hidden: int, heads: int) -> Architecture:
    return Architecture(
        family="gpt",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        vocabulary=50304,
        head_size=hidden // heads,
        tied=True,
    )


def _llama(layers, hidden, heads, kv_heads, ffn, vocabulary, tied=False, **more) -> Architecture:
    return Architecture(
        family="moe" if "experts" in more else "llama",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocabulary=vocabulary,
        tied=tied,
        head_size=hidden // heads,
        **more,
    )


MODELS = {
    "gpt3-small": _gpt(12, 768, 12),  # 0.125 billion parameters; shapes of arXiv 2005.14165
    "gpt3-xl": _gpt(24, 2048, 16),  # 1.3
    "gpt3-6.7b": _gpt(32, 4096, 32),  # 6.7
    "llama-small": _llama(12, 768, 12, 4, 2048, 32000),  # 0.12; made up for these programs
    "llama-3.2-1b": _llama(16, 2048, 32, 8, 8192, 128256, tied=True),  # 1.2; published configs
    "llama-3.2-3b": _llama(28, 3072, 24, 8, 8192, 128256, tied=True),  # 3.2
    "llama-3.1-8b": _llama(32, 4096, 32, 8, 14336, 128256),  # 8.0
    "llama-3.1-70b": _llama(80, 8192, 64, 8, 28672, 128256),  # 70.6
    "moe-small": _llama(12, 768, 12, 4, 2048, 32000, experts=8, top_k=2),  # 0.52; made up
    "olmoe-1b-7b": _llama(16, 2048, 16, 16, 1024, 50304, experts=64, top_k=8),  # 6.9
    "mixtral-8x7b": _llama(32, 4096, 32, 8, 14336, 32000, experts=8, top_k=2),  # 46.7
    "gpt-mini": Architecture(
        family="gpt", layers=8, hidden=256, heads=4, kv_heads=4, ffn=1024, vocabulary=2048,
        head_size=64, longest=256,
    ),
    "gpt-tiny": Architecture(
        family="gpt", layers=4, hidden=64, heads=4, kv_heads=4, ffn=256, vocabulary=256,
        head_size=16, longest=128,
    ),
    "llama-tiny": _llama(4, 64, 4, 2, 128, 256),
    "moe-tiny": _llama(4, 64, 4, 2, 96, 256, experts=4, top_k=2),
}  # fmt: skip
"""OLMoE's normalisation of queries and keys is left out."""


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embedding to (batch, heads, tokens, head size)."""
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-two, one), dim=-1) * sin


def rotary_tables(head_size: int, length: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines and sines for positions 0 to `length` - 1: (length, head size)."""
    power = torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), 5e5**-power)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


class Attention(nn.Module):
    """Causal attention with grouped keys and values; heads are counted at run time (TP)."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.head_size, self.grouped = shape.head_size, shape.kv_heads < shape.heads
        wide, narrow = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        bias = shape.family == "gpt"
        self.wq = nn.Linear(shape.hidden, wide, bias)
        self.wk = nn.Linear(shape.hidden, narrow, bias)
        self.wv = nn.Linear(shape.hidden, narrow, bias)
        self.wo = nn.Linear(wide, shape.hidden, bias)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self.head_size).transpose(1, 2)

    def forward(self, x, cos=None, sin=None):
        """Attend among the tokens of (batch, tokens, hidden)."""
        q, k, v = self._heads(self.wq(x)), self._heads(self.wk(x)), self._heads(self.wv(x))
        if cos is not None:
            cos, sin = cos.to(q.dtype), sin.to(q.dtype)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.wo(out.transpose(1, 2).flatten(2))


class PlainMlp(nn.Module):
    """The MLP of a GPT."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.hidden, shape.ffn)
        self.w2 = nn.Linear(shape.ffn, shape.hidden)

    def forward(self, x):
        """Return w2 gelu(w1 x)."""
        return self.w2(F.gelu(self.w1(x), approximate="tanh"))


class GatedMlp(nn.Module):
    """The MLP of a Llama."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.w2 = nn.Linear(shape.ffn, shape.hidden, bias=False)
        self.w3 = nn.Linear(shape.hidden, shape.ffn, bias=False)

    def forward(self, x):
        """Return w2 (silu(w1 x) * w3 x)."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


class Experts(nn.Module):
    """A router and gated experts, each token to `top_k` of them.

    `uniform`: the router works, but token t goes to experts t·k, t·k + 1, ..., so that all
    have the same load and no size waits for the device. The experts are one grouped GEMM on a
    GPU in bf16 where torch has one and loads are uniform in multiples of 8, else a loop.
    """

    def __init__(self, shape: Architecture, uniform: bool) -> None:
        super().__init__()
        self.experts, self.top_k, self.uniform = shape.experts, shape.top_k, uniform
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.w1 = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.ffn))
        self.w3 = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.ffn))
        self.w2 = nn.Parameter(torch.empty(shape.experts, shape.ffn, shape.hidden))

    def forward(self, x):
        """Route, permute, compute, and add up again, for (batch, tokens, hidden)."""
        tokens = x.flatten(0, 1)
        weights, chosen = self._route(tokens)
        order = chosen.flatten().argsort(stable=True)
        at = order // self.top_k
        out = self._compute(tokens[at], chosen)
        out = out * weights.flatten()[order, None].to(out.dtype)
        return torch.zeros_like(tokens, dtype=out.dtype).index_add(0, at, out).view(x.shape)

    def _route(self, tokens):
        likely = F.softmax(self.router(tokens).float(), dim=-1)
        weights, chosen = likely.topk(self.top_k, dim=-1)
        if self.uniform:
            chosen = torch.arange(chosen.numel(), device=chosen.device) % self.experts
            chosen = chosen.view_as(weights)
            weights = likely.gather(1, chosen)
        return weights / weights.sum(dim=-1, keepdim=True), chosen

    def _loads(self, chosen) -> list[int]:
        """Return the tokens of each expert (asks the device unless loads are uniform)."""
        if not self.uniform:
            return torch.bincount(chosen.flatten(), minlength=self.experts).tolist()
        count = chosen.numel()
        return [(count + self.experts - 1 - at) // self.experts for at in range(self.experts)]

    def _compute(self, given, chosen):
        loads = self._loads(chosen)
        if given.is_cuda and grouped_mm and self.uniform and all(load % 8 == 0 for load in loads):
            return self._grouped(given, loads[0])
        parts = []
        for at, part in enumerate(given.split(loads)):
            inner = F.silu(part @ self.w1[at]) * (part @ self.w3[at])
            parts.append(inner @ self.w2[at])
        return torch.cat(parts)

    def _grouped(self, given, load: int):
        dtype = torch.bfloat16
        ends = torch.arange(1, self.experts + 1, device=given.device, dtype=torch.int32) * load
        given, w1, w2, w3 = (one.to(dtype) for one in (given, self.w1, self.w2, self.w3))
        inner = F.silu(grouped_mm(given, w1, offs=ends)) * grouped_mm(given, w3, offs=ends)
        return grouped_mm(inner, w2, offs=ends)


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm and added to its input."""

    def __init__(self, shape: Architecture, uniform: bool) -> None:
        super().__init__()
        norm = nn.LayerNorm if shape.family == "gpt" else nn.RMSNorm
        self.norm1, self.norm2 = norm(shape.hidden, eps=1e-5), norm(shape.hidden, eps=1e-5)
        self.attention = Attention(shape)
        if shape.family == "moe":
            self.mlp = Experts(shape, uniform)
        else:
            self.mlp = PlainMlp(shape) if shape.family == "gpt" else GatedMlp(shape)

    def forward(self, x, cos=None, sin=None):
        """Map (batch, tokens, hidden) to the same shape."""
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Embedding, layers, norm and output projection; a pipeline stage keeps only its part.

    forward(tokens) gives logits; forward(hidden) does on a later stage, and a stage that is not
    the last gives hidden values. With `head=False` the last norm's output is given instead.
    """

    def __init__(self, shape: Architecture, *, uniform: bool = True) -> None:
        super().__init__()
        self.shape, self.tables = shape, None
        self.settled = False  # copy the embeddings: a compiled block wants TP's collective done
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.longest, shape.hidden) if _is_gpt(shape) else None
        self.layers = nn.ModuleDict({str(at): Block(shape, uniform) for at in range(shape.layers)})
        self.norm = (nn.LayerNorm if _is_gpt(shape) else nn.RMSNorm)(shape.hidden, eps=1e-5)
        self.output = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def tie(self) -> None:
        """Let the output use the embedding table where the architecture says so (again)."""
        if self.shape.tied and self.embedding is not None and self.output is not None:
            self.output.weight = self.embedding.weight

    def keep(self, layers: range, *, first: bool, last: bool) -> None:
        """Drop what other pipeline stages hold."""
        for name in [name for name in self.layers if int(name) not in layers]:
            del self.layers[name]
        if not first:
            self.embedding = self.positions = None
        if not last:
            self.norm = self.output = None

    def make_tables(self, length: int, device) -> None:
        """Compute the rotary tables; they are no parameters and no buffers."""
        if not _is_gpt(self.shape):
            self.tables = rotary_tables(self.shape.head_size, length, device)

    def forward(self, x, head: bool = True):
        """Run this stage."""
        if self.embedding is not None:
            places = torch.arange(x.shape[1], device=x.device)[None]
            x = self.embedding(x)
            x = x if self.positions is None else x + self.positions(places)
            x = x.clone() if self.settled else x
        for layer in self.layers.values():
            x = layer(x) if self.tables is None else layer(x, *self.tables)
        x = x if self.norm is None else self.norm(x)
        return self.output(x) if head and self.output is not None else x


def _is_gpt(shape: Architecture) -> bool:
    return shape.family == "gpt"


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a distributed tensor; another tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def initialise(model: nn.Module, seed: int) -> None:
    """Fill every parameter (of a sharded one this rank's part) in a fixed order."""
    device = next(model.parameters()).device
    source = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            own = local(parameter)
            if name.endswith("bias"):
                own.zero_()
            elif "norm" in name:
                own.fill_(1.0)
            else:
                own.normal_(0.0, 0.02, generator=source)
