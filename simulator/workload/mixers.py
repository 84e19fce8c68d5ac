"""Mixers of tokens that stand in place of attention, and cost the same for every token.

A mixer gives its sizes, what a reader is told of it (``word``, ``assumption``), the counts that
tensor parallelism has to divide (``shares``), its weights, and its products over chunks of a
sequence; ``cost/operators/mixers.py`` lists its operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.files import record
from simulator.workload.modules import Positive
from simulator.workload.weights import Weight, vector


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkProduct:
    """`count` equal products of (m, k) by (k, n) over one sequence, weights not among them."""

    name: str
    count: int
    """Heads, or groups of heads, times chunks of the sequence: what tensor parallelism shares."""
    m: int
    n: int
    k: int
    causal: bool = False
    """All is computed, half of it counts: tokens of a chunk see themselves and those before."""

    @property
    def flop(self) -> float:
        """FLOPs of a forward pass over one sequence, causal ones counted half."""
        return (1.0 if self.causal else 2.0) * self.count * self.m * self.n * self.k


@record
class Mamba2:
    """A Mamba-2 mixer (Dao and Gu 2024, arXiv 2405.21060), with a norm of groups behind its gate.

    One projection gives gate, input, the maps B into and C out of the state, and a step for each
    head; input, B and C pass a short convolution over the tokens.
    """

    heads: Positive
    head_dim: Positive
    state_size: Positive
    groups: Positive = 1
    """Groups of heads that share B and C, and whose outputs are normed together."""
    convolution: Positive = 4
    """Tokens that the convolution sees."""
    chunk: Positive = 128
    """Tokens whose outputs are computed as one masked product."""
    convolution_bias: bool = True
    bias: bool = False
    """Biases of both projections."""

    @property
    def inner(self) -> int:
        """Width of input and gate."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: input, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def word(self) -> str:
        """What lists of models call it."""
        return "Mamba-2"

    @property
    def assumption(self) -> str:
        """What its prediction assumes, for the reader of one."""
        return (
            "Mamba-2 runs mamba_ssm's kernels, which nobody timed here: chunks are priced as"
            " batched products, the rest by the bytes it moves"
        )

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide (Megatron-Core, ssm/mamba_mixer.py)."""
        return self.heads, self.groups

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        projected = self.inner + self.convolved + self.heads
        return [
            Weight(name="mixer_in", rows=projected, columns=hidden, cut="rows", bias=self.bias),
            Weight(
                name="convolution",
                rows=self.convolved,
                columns=self.convolution,
                cut="rows",
                bias=self.convolution_bias,
                per="none",
            ),
            vector("decay, step and skip", 3 * self.heads, cut="rows"),
            vector("gated norm", self.inner, cut="rows"),
            Weight(
                name="mixer_out", rows=hidden, columns=self.inner, cut="columns", bias=self.bias
            ),
        ]

    def products(self, length: int) -> list[ChunkProduct]:
        """List the products of the chunked form (section 6) over a sequence of `length` tokens.

        Scores of C and B within a chunk, once for a group of heads; the state that a chunk leaves;
        scores by inputs; what the state before the chunk adds. A last chunk is padded.
        """
        size = min(self.chunk, length)
        chunks = -(-length // size)
        heads, head, state = chunks * self.heads, self.head_dim, self.state_size
        return [
            ChunkProduct(
                name="chunk scores",
                count=chunks * self.groups,
                m=size,
                n=size,
                k=state,
                causal=True,
            ),
            ChunkProduct(name="chunk state", count=heads, m=head, n=state, k=size),
            ChunkProduct(name="chunk output", count=heads, m=size, n=head, k=size, causal=True),
            ChunkProduct(name="state output", count=heads, m=size, n=head, k=state),
        ]


@record
class GatedDelta:
    """Linear attention by the gated delta rule (Yang et al. 2024, arXiv 2412.06464; Qwen3-Next).

    Projections give queries, keys, values, an output gate, and a decay and a rate for each value
    head; queries, keys and values pass a short convolution over the tokens.
    """

    key_heads: Positive
    """Heads of queries and keys, each for as many neighbouring value heads."""
    value_heads: Positive
    key_head_dim: Positive
    value_head_dim: Positive
    convolution: Positive = 4
    """Tokens that the convolution sees."""
    chunk: Positive = 64
    """Tokens whose corrections are solved together (fla and transformers)."""

    @property
    def keys(self) -> int:
        """Width of all queries, and of all keys."""
        return self.key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        """Width of all values, and of the gate."""
        return self.value_heads * self.value_head_dim

    @property
    def word(self) -> str:
        """What lists of models call it."""
        return "gated delta rule"

    @property
    def assumption(self) -> str:
        """What its prediction assumes, for the reader of one."""
        return (
            "the gated delta rule runs fla's kernels, which nobody timed here: chunks are priced"
            " as batched products, the rest by the bytes it moves"
        )

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide (Megatron-Core, ssm/gated_delta_net.py)."""
        return self.key_heads, self.value_heads

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        projected = 2 * (self.keys + self.values + self.value_heads)
        return [
            Weight(name="mixer_in", rows=projected, columns=hidden, cut="rows"),
            Weight(
                name="convolution",
                rows=2 * self.keys + self.values,
                columns=self.convolution,
                cut="rows",
                per="none",
            ),
            vector("decay and step", 2 * self.value_heads, cut="rows"),
            vector("gated norm", self.value_head_dim),
            Weight(name="mixer_out", rows=hidden, columns=self.values, cut="columns"),
        ]

    def products(self, length: int) -> list[ChunkProduct]:
        """List the products of the chunked form (section 3.3) over a sequence of `length` tokens.

        Keys by keys, whose triangle is inverted; the inverse by values and by keys; queries by
        keys; what the state before the chunk predicts of the values, and adds to the outputs; the
        outputs' part inside the chunk; the state's update. A last chunk is padded.
        """
        size = min(self.chunk, length)
        count = self.value_heads * -(-length // size)
        key, value = self.key_head_dim, self.value_head_dim

        def product(name: str, m: int, n: int, k: int, *, causal: bool = False) -> ChunkProduct:
            return ChunkProduct(name=f"chunk {name}", count=count, m=m, n=n, k=k, causal=causal)

        return [
            product("keys", size, size, key, causal=True),
            product("corrected values", size, value, size, causal=True),
            product("corrected keys", size, key, size, causal=True),
            product("scores", size, size, key, causal=True),
            product("prediction", size, value, key),
            product("state output", size, value, key),
            product("output", size, value, size, causal=True),
            product("update", key, value, size),
        ]


@record
class LightningAttention:
    """Linear attention whose heads forget at fixed rates (MiniMax-01, arXiv 2501.08313).

    Queries, keys and values pass a SiLU; a norm over all heads and a gate of the input's come
    behind. Rates of decay follow from head and layer and are no parameters.
    """

    heads: Positive
    head_dim: Positive
    chunk: Positive = 256
    """Tokens whose outputs are computed as one masked product (``block_size``)."""

    @property
    def inner(self) -> int:
        """Width of queries, keys, values and gate."""
        return self.heads * self.head_dim

    @property
    def word(self) -> str:
        """What lists of models call it."""
        return "lightning attention"

    @property
    def assumption(self) -> str:
        """What its prediction assumes, for the reader of one."""
        return (
            "lightning attention runs kernels that nobody timed here: chunks are priced as batched"
            " products, the rest by the bytes it moves"
        )

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide."""
        return (self.heads,)

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        return [
            Weight(name="mixer_in", rows=4 * self.inner, columns=hidden, cut="rows"),
            vector("norm of heads", self.inner, cut="rows"),
            Weight(name="mixer_out", rows=hidden, columns=self.inner, cut="columns"),
        ]

    def products(self, length: int) -> list[ChunkProduct]:
        """List its products over a sequence of `length` tokens (algorithm 2 of the report).

        Queries by keys within a chunk, those by values; queries by the state before the chunk; what
        the chunk adds to the state. A last chunk is padded.
        """
        size, head = min(self.chunk, length), self.head_dim
        count = self.heads * -(-length // size)

        def product(name: str, m: int, n: int, k: int, *, causal: bool = False) -> ChunkProduct:
            return ChunkProduct(name=f"chunk {name}", count=count, m=m, n=n, k=k, causal=causal)

        return [
            product("scores", size, size, head, causal=True),
            product("output", size, head, size, causal=True),
            product("state output", size, head, head),
            product("update", head, head, size),
        ]


Mixer = Mamba2 | GatedDelta | LightningAttention
"""What may stand in a block as its mixer."""
