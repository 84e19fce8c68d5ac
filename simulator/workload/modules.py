"""The modules of a block, sizes only: attention, a dense MLP, a mixture of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from simulator.files import record
from simulator.workload.weights import Weight, active_parameters, parameters, vector

Positive = Annotated[int, Gt(0)]
Count = Annotated[int, Ge(0)]

MOST_PICKS = 4_096
"""Experts of a token; published models have up to some hundreds."""


@record
class Attention:
    """One attention module; multi-head, grouped-query, multi-query or latent (MLA)."""

    heads: Positive
    """Query heads."""
    kv_heads: Positive
    """Key/value heads; equal to `heads` for multi-head attention, 1 for multi-query."""
    head_dim: Positive
    """Size of one query/key head; for MLA the no-position part plus the rotary part."""
    value_head_dim: Count = 0
    """Size of one value head; 0 means `head_dim`."""
    q_lora_rank: Count = 0
    """MLA: rank of the query's down-projection; 0 means a full query projection."""
    kv_lora_rank: Count = 0
    """MLA: rank of the key/value down-projection; 0 means this is not MLA."""
    rope_head_dim: Count = 0
    """MLA: part of `head_dim` that carries the rotary position, shared by all heads for keys."""
    qkv_bias: bool = False
    """Whether the query, key and value projections have biases."""
    output_bias: bool = False
    """Whether the output projection has a bias."""
    qk_norm: bool = False
    """RMS norms of `head_dim` weights on queries and keys (Qwen3)."""
    output_gate: bool = False
    """A gate as wide as the queries, projected with them, on the result (Qwen3-Next)."""
    plain_qk_norm: bool = False
    """The same without weights (Llama 4)."""
    rotary: bool = True
    """Whether the layer turns queries and keys where the model has rotary positions (Llama 4 has
    layers without)."""
    scaled_rotary: bool = False
    """A factor other than 1 on the rotation of queries and keys (YaRN's, in gpt-oss)."""
    dropout: bool = False
    """Attention dropout during training (GPT-2, GPT-3); its mask is kept for the backward pass."""
    window: Count = 0
    """Sliding-window size in tokens, the token itself included; 0 means the whole sequence."""
    chunked: bool = False
    """The window does not slide: the sequence is cut into chunks of that size, and a token sees
    those before it in its own (Llama 4)."""
    causal: bool = True
    """Tokens see themselves and what came before; false: all of the window (encoders)."""
    sinks: bool = False
    """A learned logit per head takes part in the softmax (gpt-oss)."""
    softcap: bool = False
    """Scores pass a tanh before the softmax (Gemma 2); flash attention has it in its kernel."""
    relative_buckets: Count = 0
    """Rows of a table of biases by distance, a column per head, that this layer owns (T5, Swin)."""
    disentangled: Count = 0
    """Rows of the relative-position embedding that queries and keys meet in two more products of
    scores (DeBERTa); 0 means none. No flash kernel does this."""
    position_projections: bool = False
    """Disentangled: positions have projections of their own (DeBERTa-v3 shares the content's)."""
    filtered: bool = False
    """Localized filtering before queries and keys: two causal convolutions over two tokens, to half
    the width and back, and an RMS norm of the sum (Yuan 2.0, arXiv 2311.15786)."""

    @property
    def is_mla(self) -> bool:
        """Whether this is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def value_dim(self) -> int:
        """Size of one value head."""
        return self.value_head_dim or self.head_dim

    def weights(self, hidden: int) -> list[Weight]:
        """List the weights of the module in a model of width `hidden`."""
        return [
            *(self._latent_projections(hidden) if self.is_mla else self._projections(hidden)),
            Weight(
                name="o",
                rows=hidden,
                columns=self.heads * self.value_dim,
                cut="columns",
                bias=self.output_bias and not self.is_mla,
            ),
        ]

    def parameters(self, hidden: int) -> int:
        """Count the weights and biases of the module for a model of width `hidden`."""
        return parameters(self.weights(hidden))

    def _latent_projections(self, hidden: int) -> list[Weight]:
        """MLA: ranks share the heads, every one has the down-projections and their norms."""
        heads, latent, rank = self.heads, self.kv_lora_rank, self.q_lora_rank
        up = heads * (self.head_dim - self.rope_head_dim + self.value_dim)
        query = Weight(
            name="q_up" if rank else "q",
            rows=heads * self.head_dim,
            columns=rank or hidden,
            cut="rows",
        )
        down = Weight(name="q_down", rows=rank, columns=hidden)
        return [
            *([down, vector("query norm", rank)] if rank else []),
            query,
            Weight(name="kv_down", rows=latent + self.rope_head_dim, columns=hidden),
            vector("key norm", latent),
            Weight(name="kv_up", rows=up, columns=latent, cut="rows"),
        ]

    def _projections(self, hidden: int) -> list[Weight]:
        """Queries, keys and values, with what belongs to heads or stands in front of them."""
        query, half = self.heads * self.head_dim, hidden // 2
        weights = []
        if self.filtered:
            weights += [
                Weight(name="filter", rows=half, columns=2 * hidden, bias=True),
                Weight(name="filter", rows=hidden, columns=2 * half, bias=True),
                vector("filter norm", hidden),
            ]
        weights.append(
            Weight(
                name="q",
                rows=query * (1 + self.output_gate),
                columns=hidden,
                cut="rows",
                bias=self.qkv_bias,
            )
        )
        weights += [
            Weight(
                name=name,
                rows=self.kv_heads * size,
                columns=hidden,
                cut="rows",
                pieces=self.kv_heads,
                bias=self.qkv_bias,
            )
            for name, size in (("k", self.head_dim), ("v", self.value_dim))
        ]
        if self.qk_norm:
            weights.append(vector("query and key norm", 2 * self.head_dim))
        by_head = (("sink", int(self.sinks)), ("distances", self.relative_buckets))
        weights += [
            Weight(name=name, rows=self.heads, columns=columns, cut="rows", per="none")
            for name, columns in by_head
            if columns
        ]
        if self.position_projections:
            weights.append(
                Weight(
                    name="position",
                    rows=query,
                    columns=hidden,
                    cut="rows",
                    bias=True,
                    count=2,
                    per="none",
                )
            )
        return weights


@record
class MLP:
    """A dense feed-forward module."""

    ffn_hidden: Positive
    """Width of the inner layer."""
    gated: bool = True
    """Three matrices with a gate (SwiGLU) or two (GELU, ReLU)."""
    bias: bool = False
    """Whether the linear layers have biases."""
    activation: Literal["gelu", "relu", "squared_relu"] = "gelu"
    """Without a gate: gelu stands for every smooth one and keeps its input for the backward pass,
    relu keeps its output only (OPT, T5), squared_relu the rectified input (Nemotron)."""

    def weights(self, hidden: int) -> list[Weight]:
        """List the weights of the module in a model of width `hidden`."""
        return _feed_forward(hidden, self.ffn_hidden, gated=self.gated, bias=self.bias)

    def parameters(self, hidden: int) -> int:
        """Count the weights and biases."""
        return parameters(self.weights(hidden))


@record
class MoE:
    """A mixture-of-experts module: a router, routed experts and shared experts."""

    experts: Positive
    """Routed experts."""
    top_k: Annotated[int, Gt(0), Le(MOST_PICKS)]
    """Experts per token."""
    ffn_hidden: Positive
    """Inner width of one routed expert."""
    shared_ffn_hidden: Count = 0
    """Summed inner width of the shared experts, which every token passes."""
    gated: bool = True
    """Three matrices per expert (SwiGLU) or two."""
    bias: bool = False
    """Biases on router and routed experts (gpt-oss); one that only balances loads is a buffer."""
    shared_gate: bool = False
    """A number per token scales the shared experts' result (Qwen3-Next)."""
    clamped: bool = False
    """Gate and linear part of the routed experts are cut to limits before the activation (gpt-oss,
    ``swiglu_limit``)."""
    activation: Literal["gelu", "relu", "squared_relu"] = "gelu"
    """As of a dense MLP."""
    fp32_router: bool = False
    """The router's product takes tokens and weights in fp32 (DeepSeek)."""
    groups: Positive = 1
    """Equal groups of neighbouring experts that the router scores first (``n_group``)."""
    top_groups: Positive = 1
    """Groups of them that a token may take its experts from (``topk_group``); 1 of 1 group is no
    limit. It bounds how many domains a dispatch reaches (DeepSeek-V2 and V3)."""

    def largest_load(self, ranks: Any) -> Any:
        """Most that the fullest of so many expert ranks can get, over the mean of all.

        One rank can get every token, but no token more often than it has experts for it: of E
        experts a token has k, and a rank E / ranks.

        Examples
        --------
        >>> moe = MoE(experts=8, top_k=2, ffn_hidden=1)
        >>> [float(moe.largest_load(ranks)) for ranks in (1, 2, 8)]
        [1.0, 2.0, 4.0]
        """
        return np.minimum(ranks, self.experts / self.top_k)

    def weights(self, hidden: int) -> list[Weight]:
        """List router, shared experts and routed experts, these last."""
        shared = _feed_forward(hidden, self.shared_ffn_hidden, gated=self.gated)
        routed = _feed_forward(hidden, self.ffn_hidden, gated=self.gated, bias=self.bias)
        return [
            Weight(name="router", rows=self.experts, columns=hidden, bias=self.bias),
            *(shared if self.shared_ffn_hidden else []),
            *([Weight(name="shared_gate", rows=1, columns=hidden)] if self.shared_gate else []),
            *(replace(weight, count=self.experts, active=self.top_k) for weight in routed),
        ]

    def parameters(self, hidden: int) -> int:
        """Count router, routed and shared experts."""
        return parameters(self.weights(hidden))

    def active_parameters(self, hidden: int) -> int:
        """Count the parameters that one token passes."""
        return active_parameters(self.weights(hidden))


def _feed_forward(hidden: int, inner: int, *, gated: bool, bias: bool = False) -> list[Weight]:
    """Two or three matrices, shared over the inner width."""
    first = Weight(name="up", rows=inner, columns=hidden, cut="rows", bias=bias)
    last = Weight(name="down", rows=hidden, columns=inner, cut="columns", bias=bias)
    return [*([replace(first, name="gate")] if gated else []), first, last]
