"""What a model is: blocks of attention and MLP, embeddings, a head. Sizes only, no layout.

An :class:`Architecture` lists its distinct block kinds once and names, layer by layer, which
kind stands there; DeepSeek-V3 has two kinds and 61 layers. Counts of parameters
follow from the sizes; how a rank shards them is the business of ``cost/operators.py``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from simulator.files import record

__all__ = ["MLP", "Architecture", "Attention", "Block", "MoE"]

Positive = Annotated[int, Gt(0)]
Count = Annotated[int, Ge(0)]


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
    dropout: bool = False
    """Attention dropout during training (GPT-2, GPT-3); its mask is kept for the backward pass."""
    window: Count = 0
    """Sliding-window size in tokens; 0 means full causal attention."""

    @property
    def is_mla(self) -> bool:
        """Whether this is multi-head latent attention."""
        return self.kv_lora_rank > 0

    @property
    def value_dim(self) -> int:
        """Size of one value head."""
        return self.value_head_dim or self.head_dim

    def parameters(self, hidden: int) -> int:
        """Count the weights and biases of the module for a model of width `hidden`."""
        if self.is_mla:
            nope = self.head_dim - self.rope_head_dim
            query_out = self.heads * self.head_dim
            if self.q_lora_rank:
                query = hidden * self.q_lora_rank + self.q_lora_rank + self.q_lora_rank * query_out
            else:
                query = hidden * query_out
            down = hidden * (self.kv_lora_rank + self.rope_head_dim) + self.kv_lora_rank
            up = self.kv_lora_rank * self.heads * (nope + self.value_dim)
            return query + down + up + self.heads * self.value_dim * hidden
        query_out, kv_out = self.heads * self.head_dim, self.kv_heads * self.head_dim
        weights = hidden * (query_out + 2 * kv_out) + query_out * hidden
        biases = self.qkv_bias * (query_out + 2 * kv_out) + self.output_bias * hidden
        return weights + biases + self.qk_norm * 2 * self.head_dim


@record
class MLP:
    """A dense feed-forward module."""

    ffn_hidden: Positive
    """Width of the inner layer."""
    gated: bool = True
    """Three matrices with a gate (SwiGLU) or two (GELU, ReLU)."""
    bias: bool = False
    """Whether the linear layers have biases."""

    def parameters(self, hidden: int) -> int:
        """Count the weights and biases."""
        wide = 2 if self.gated else 1
        weights = (wide + 1) * hidden * self.ffn_hidden
        return weights + self.bias * (wide * self.ffn_hidden + hidden)


@record
class MoE:
    """A mixture-of-experts module: a router, routed experts and shared experts."""

    experts: Positive
    """Routed experts."""
    top_k: Positive
    """Experts per token."""
    ffn_hidden: Positive
    """Inner width of one routed expert."""
    shared_ffn_hidden: Count = 0
    """Summed inner width of the shared experts, which every token passes."""
    gated: bool = True
    """Three matrices per expert (SwiGLU) or two."""

    def parameters(self, hidden: int) -> int:
        """Count router, routed and shared experts; a router bias is a buffer and does not count."""
        wide = 3 if self.gated else 2
        routed = self.experts * wide * hidden * self.ffn_hidden
        return routed + wide * hidden * self.shared_ffn_hidden + hidden * self.experts

    def active_parameters(self, hidden: int) -> int:
        """Count the parameters that one token passes."""
        wide = 3 if self.gated else 2
        routed = self.top_k * wide * hidden * self.ffn_hidden
        return routed + wide * hidden * self.shared_ffn_hidden + hidden * self.experts


@record
class Block:
    """One transformer layer: two norms, attention, and either a dense MLP or experts."""

    attention: Attention
    mlp: MLP | MoE
    norm: Literal["rms", "layer"] = "rms"
    """RMS norm has one weight vector, layer norm has a weight and a bias."""
    norms: Count = 2
    """Norms in the block."""
    dropout: bool = False
    """Dropout after attention and MLP during training (GPT-2, GPT-3)."""
    parallel_residual: bool = False
    """Attention and MLP read the same input (GPT-NeoX)."""
    predicts_ahead: bool = False
    """A multi-token-prediction layer: it joins the hidden state with the embedding of the next
    token by a projection, and has a norm and a loss of its own over the model's output head
    (DeepSeek-V3 report, arXiv 2412.19437, section 2.2)."""

    @property
    def is_moe(self) -> bool:
        """Whether the block holds experts."""
        return isinstance(self.mlp, MoE)

    def parameters(self, hidden: int) -> int:
        """Count all parameters of the block."""
        norms = self.norm_vectors * hidden * (2 if self.norm == "layer" else 1)
        joined = 2 * hidden * hidden if self.predicts_ahead else 0
        return self.attention.parameters(hidden) + self.mlp.parameters(hidden) + norms + joined

    @property
    def norm_vectors(self) -> int:
        """Norms of the block; a multi-token-prediction layer has one on each input and a last."""
        return self.norms + (3 if self.predicts_ahead else 0)

    def active_parameters(self, hidden: int) -> int:
        """Count the parameters that one token passes."""
        if isinstance(self.mlp, MoE):
            idle = self.mlp.parameters(hidden) - self.mlp.active_parameters(hidden)
            return self.parameters(hidden) - idle
        return self.parameters(hidden)


@record
class Architecture:
    """A whole model: block kinds, the kind of every layer, embeddings and head."""

    name: str
    family: str
    """The ``model_type`` it came from, or ``custom``."""
    hidden: Positive
    """Width of the residual stream."""
    blocks: tuple[Block, ...]
    """The distinct block kinds."""
    layer_kinds: tuple[int, ...]
    """For each layer, first to last, the index of its kind in `blocks`."""
    vocabulary: Positive
    """Rows of the token embedding, as published (a framework may pad it further)."""
    tied_embeddings: bool = False
    """The output head shares the input embedding."""
    position: Literal["rope", "learned", "alibi", "none"] = "rope"
    """How positions enter."""
    max_positions: Positive = 1_048_576
    """Longest sequence the model is defined for; rows of a learned position embedding."""
    final_norm: Literal["rms", "layer"] = "rms"
    """The norm before the head."""
    mtp_layers: Count = 0
    """Multi-token-prediction layers (published beside the model, not in its parameter count)."""

    def predicting_ahead(self, count: int) -> Architecture:
        """Return the model with `count` multi-token-prediction layers behind its own.

        They are blocks of the last layer's kind with a projection, a norm and a loss more; the
        embedding and the head are the model's own. Their parameters are counted then.
        """
        if count == 0:
            return self
        ahead = replace(self.blocks[self.layer_kinds[-1]], predicts_ahead=True)
        kinds = self.layer_kinds + (len(self.blocks),) * count
        return replace(self, blocks=(*self.blocks, ahead), layer_kinds=kinds, mtp_layers=count)

    @property
    def layers(self) -> int:
        """Number of transformer layers, those that predict ahead not counted."""
        return sum(not self.blocks[kind].predicts_ahead for kind in self.layer_kinds)

    @property
    def is_moe(self) -> bool:
        """Whether any layer holds experts."""
        return any(self.blocks[kind].is_moe for kind in set(self.layer_kinds))

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding and of a learned position embedding."""
        positions = self.max_positions if self.position == "learned" else 0
        return (self.vocabulary + positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the final norm and of an untied output head."""
        norm = self.hidden * (2 if self.final_norm == "layer" else 1)
        return norm + (0 if self.tied_embeddings else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters, tied tensors once, multi-token-prediction layers left out."""
        return self._sum("parameters") + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes (an expert model's active size), embeddings included."""
        return self._sum("active_parameters") + self.embedding_parameters + self.head_parameters

    def _sum(self, count: str) -> int:
        kinds = Counter(self.layer_kinds)
        return sum(n * getattr(self.blocks[kind], count)(self.hidden) for kind, n in kinds.items())
