"""The modules of a block, sizes only: attention, a dense MLP, a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from simulator.files import record
from simulator.workload.weights import Weight, active_parameters, parameters, vector

Positive = Annotated[int, Gt(0)]
Count = Annotated[int, Ge(0)]
Activation = Literal["gelu", "gelu_new", "relu", "squared_relu"]

MOST_PICKS = 4_096
"""Experts of a token; published models have up to some hundreds."""


@record
class Linear:
    """A small linear on every token: what it reads and writes, held by every rank."""

    outputs: Positive
    inputs: Positive
    bias: bool = False
    count: Positive = 1


def beside(linears: Iterable[Linear], scales: int) -> list[Weight]:
    """List weights that stand beside a part's modules."""
    return [
        *(
            Weight(name="beside", rows=x.outputs, columns=x.inputs, bias=x.bias, count=x.count)
            for x in linears
        ),
        *([vector("scales", scales)] if scales else []),
    ]


@record
class Indexer:
    """Picks the tokens that each query sees (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).

    Small heads with one key score them: a sum over heads of weight x rectified score.
    """

    heads: Positive
    head_dim: Positive
    top_k: Positive
    """Tokens that a query sees, at most."""
    block: Positive = 1
    """Neighbouring tokens that are picked together."""
    compression: Positive = 1
    """Tokens that lie in one key of the indexer."""
    weighted: bool = True
    """Weights of the heads are projected from the input."""
    biased_norm: bool = True
    """A layer norm on the key; else an RMS norm on queries and on the key."""

    def weights(self, hidden: int, q_lora_rank: int) -> list[Weight]:
        """List its weights; queries come from latent attention's compressed ones where it has."""
        rows, columns = self.heads * self.head_dim, q_lora_rank or hidden
        return [
            Weight(name="indexer", rows=rows, columns=columns),
            Weight(name="indexer", rows=self.head_dim, columns=hidden),
            vector("indexer norm", 2 * self.head_dim),
            *([Weight(name="indexer", rows=self.heads, columns=hidden)] if self.weighted else []),
        ]


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
    """Whether the query, key and value projections have biases; of MLA the down-projections."""
    key_bias: bool = True
    """Whether keys have one where queries do (Whisper's have none)."""
    output_bias: bool = False
    """Whether the output projection has a bias."""
    qk_norm: bool = False
    """RMS norms of `head_dim` weights on queries and keys (Qwen3)."""
    qk_norm_width: Literal["head", "all"] = "head"
    """Weights of those norms: of a head, or of all heads side by side (OLMo 2, Cohere)."""
    qk_norm_bias: bool = False
    """They are layer norms, with biases (Phi)."""
    output_gate: bool = False
    """A gate as wide as the queries, projected with them, on the result (Qwen3-Next)."""
    gate_bias: bool = True
    """Whether that gate has biases where queries do."""
    head_gate: bool = False
    """A number for each head and token, projected from the input, scales its result (Laguna)."""
    shares_keys: bool = False
    """Keys and values are those of an earlier layer (last layers of Gemma 3n and 4)."""
    keys_are_values: bool = False
    """Values are the keys before their norm and rotation (global layers of Gemma 4)."""
    indexer: Indexer | None = None
    """What picks the tokens that a query sees; None: it sees its whole window."""
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

    def _query_and_key_norm(self) -> Weight:
        """Weights and biases of the norms on queries and keys."""
        heads = (self.heads, self.kv_heads) if self.qk_norm_width == "all" else (1, 1)
        normed = heads[0] + (0 if self.shares_keys else heads[1])
        elements = normed * self.head_dim * (1 + self.qk_norm_bias)
        whole = self.qk_norm_width == "all"
        return vector("query and key norm", elements, cut="rows" if whole else "whole")

    def weights(self, hidden: int) -> list[Weight]:
        """List the weights of the module in a model of width `hidden`."""
        latent, value = self.kv_lora_rank > 0, self.value_head_dim or self.head_dim
        weights = self._latent_projections(hidden) if latent else self._projections(hidden)
        weights.append(
            Weight(
                name="o",
                rows=hidden,
                columns=self.heads * value,
                cut="columns",
                bias=self.output_bias,
            )
        )
        if self.head_gate:
            weights.append(Weight(name="head_gate", rows=self.heads, columns=hidden))
        if self.indexer is not None:
            weights += self.indexer.weights(hidden, self.q_lora_rank)
        return weights

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
        down = Weight(name="q_down", rows=rank, columns=hidden, bias=self.qkv_bias)
        gate = Weight(name="output_gate", rows=heads * self.value_dim, columns=hidden, cut="rows")
        return [
            *([down, vector("query norm", rank)] if rank else []),
            query,
            Weight(
                name="kv_down",
                rows=latent + self.rope_head_dim,
                columns=hidden,
                bias=self.qkv_bias,
            ),
            vector("key norm", latent),
            Weight(name="kv_up", rows=up, columns=latent, cut="rows"),
            *([gate] if self.output_gate else []),
            *([vector("sink", heads, cut="rows")] if self.sinks else []),
        ]

    def _projections(self, hidden: int) -> list[Weight]:
        """Queries, keys and values, with what belongs to heads or stands in front of them."""
        query = self.heads * self.head_dim
        both = [("k", self.head_dim), ("v", self.value_head_dim or self.head_dim)]
        if self.shares_keys or self.keys_are_values:
            both = [] if self.shares_keys else both[:1]
        weights = _filter(hidden) if self.filtered else []
        apart = self.output_gate and self.qkv_bias and not self.gate_bias
        if apart:
            weights.append(Weight(name="output_gate", rows=query, columns=hidden, cut="rows"))
        weights.append(
            Weight(
                name="q",
                rows=query * (1 + (self.output_gate and not apart)),
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
                bias=self.qkv_bias and (self.key_bias or name == "v"),
            )
            for name, size in both
        ]
        if self.qk_norm:
            weights.append(self._query_and_key_norm())
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


def _filter(hidden: int) -> list[Weight]:
    """Two convolutions over two tokens, to half the width and back, and a norm of the sum."""
    half = hidden // 2
    return [
        Weight(name="filter", rows=half, columns=2 * hidden, bias=True),
        Weight(name="filter", rows=hidden, columns=2 * half, bias=True),
        vector("filter norm", hidden),
    ]


@record
class MLP:
    """A dense feed-forward module."""

    ffn_hidden: Positive
    """Width of the inner layer."""
    gated: bool = True
    """Three matrices with a gate (SwiGLU) or two (GELU, ReLU)."""
    bias: bool = False
    """Whether the linear layers have biases."""
    activation: Activation = "gelu"
    """Without a gate: gelu stands for every smooth one and keeps its input for the backward pass,
    relu keeps its output only (OPT, T5), squared_relu the rectified input (Nemotron); gelu_new is
    what transformers writes out in operators (GPT-2)."""

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
    router_bias: bool = False
    """A bias of the router that is a parameter, with or without biases of the experts."""
    latent: Count = 0
    """Width that tokens are projected to before they go to their experts, and back from (Nemotron 3
    Super); 0: the model's."""
    idle_experts: Count = 0
    """Experts that hand their input on and cost nothing (LongCat-Flash)."""
    clamped: bool = False
    """Gate and linear part of the routed experts are cut to limits before the activation (gpt-oss,
    ``swiglu_limit``)."""
    activation: Activation = "gelu"
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
        inner = self.latent or hidden
        routed = _feed_forward(inner, self.ffn_hidden, gated=self.gated, bias=self.bias)
        scored = self.experts + self.idle_experts
        biased = self.bias or self.router_bias
        return [
            Weight(name="router", rows=scored, columns=hidden, bias=biased),
            *(
                [Weight(name="latent", rows=self.latent, columns=hidden, count=2)]
                * (inner < hidden)
            ),
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
