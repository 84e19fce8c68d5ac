"""Mixers of tokens that stand in place of attention, and cost the same for every token.

A mixer gives its sizes, what a reader is told of it (``word``, ``assumption``), the counts that
tensor parallelism has to divide (``shares``), its weights, and its products over chunks of a
sequence; ``cost/operators/mixers.py`` lists its operators.
"""

from __future__ import annotations

from typing import ClassVar

from simulator.files import record
from simulator.records import dataclass
from simulator.workload.modules import Count, Positive
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


def _out(hidden: int, inner: int, *, bias: bool = False) -> Weight:
    """Projection back to the residual stream."""
    return Weight(name="mixer_out", rows=hidden, columns=inner, cut="columns", bias=bias)


def _short(channels: int, seen: int, *, bias: bool) -> Weight:
    """Convolution of each channel over the last tokens."""
    return Weight(
        name="convolution", rows=channels, columns=seen, cut="rows", bias=bias, per="none"
    )


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
    """A bias of the projection in front."""
    output_bias: bool = False
    """A bias of the projection behind."""
    gated_norm: bool = True
    """A norm of groups behind the gate (Falcon-H1 has none)."""

    word: ClassVar[str] = "Mamba-2"
    assumption: ClassVar[str] = (
        "Mamba-2 runs mamba_ssm's kernels, which nobody timed here: chunks are priced as"
        " batched products, the rest by the bytes it moves"
    )

    @property
    def inner(self) -> int:
        """Width of input and gate."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: input, B and C."""
        return self.inner + 2 * self.groups * self.state_size

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
            *([vector("gated norm", self.inner, cut="rows")] if self.gated_norm else []),
            _out(hidden, self.inner, bias=self.output_bias),
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

    word: ClassVar[str] = "gated delta rule"
    assumption: ClassVar[str] = (
        "the gated delta rule runs fla's kernels, which nobody timed here: chunks are priced"
        " as batched products, the rest by the bytes it moves"
    )

    @property
    def keys(self) -> int:
        """Width of all queries, and of all keys."""
        return self.key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        """Width of all values, and of the gate."""
        return self.value_heads * self.value_head_dim

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
        """List the products of the chunked form over a sequence of `length` tokens."""
        key, value = self.key_head_dim, self.value_head_dim
        return _delta_products(self.value_heads, key, value, self.chunk, length)


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

    word: ClassVar[str] = "lightning attention"
    assumption: ClassVar[str] = (
        "lightning attention runs kernels that nobody timed here: chunks are priced as batched"
        " products, the rest by the bytes it moves"
    )

    @property
    def inner(self) -> int:
        """Width of queries, keys, values and gate."""
        return self.heads * self.head_dim

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
        return [
            _chunk("scores", count, size, size, head, causal=True),
            _chunk("output", count, size, head, size, causal=True),
            _chunk("state output", count, size, head, head),
            _chunk("update", count, head, head, size),
        ]


class Scan:
    """What mixers share that say themselves what they keep and move between their projections."""

    word: ClassVar[str]
    """What lists of models call it."""
    kernels: ClassVar[float]
    """Kernels of a forward pass between the projections."""

    @property
    def assumption(self) -> str:
        """What its prediction assumes, for the reader of one."""
        return (
            f"{self.word} runs kernels that nobody timed here: its products are priced as batched"
            " ones, the rest by the bytes it moves"
        )

    def products(self, length: int) -> list[ChunkProduct]:
        """List its products over a sequence of `length` tokens, weights not among them."""
        return []


@record
class Mamba1(Scan):
    """A selective scan with a state for every channel (Gu and Dao 2023, arXiv 2312.00752)."""

    inner: Positive
    """Channels."""
    state_size: Positive
    step_rank: Positive
    """Width that the steps come from."""
    convolution: Positive = 4
    convolution_bias: bool = True
    bias: bool = False
    output_bias: bool = False
    norms: bool = False
    """RMS norms on step, B and C (Jamba)."""

    word: ClassVar[str] = "Mamba"
    kernels: ClassVar[float] = 4.0
    """Convolution, scan, step's activation, gate."""

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide."""
        return (self.inner,)

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        inner, state, rank = self.inner, self.state_size, self.step_rank
        small = rank + 2 * state
        return [
            Weight(name="mixer_in", rows=2 * inner, columns=hidden, cut="rows", bias=self.bias),
            _short(inner, self.convolution, bias=self.convolution_bias),
            Weight(name="mixer_side", rows=small, columns=inner, cut="columns"),
            Weight(name="mixer_side", rows=inner, columns=rank, cut="rows", bias=True),
            vector("decay and skip", inner * (state + 1), cut="rows"),
            *([vector("norms of step, B and C", small)] if self.norms else []),
            _out(hidden, inner, bias=self.output_bias),
        ]

    def kept(self, length: int) -> float:
        """Elements a token that wait for the backward pass: input, gate, convolved, step; B, C."""
        return 4.0 * self.inner + self.step_rank + 2.0 * self.state_size

    def moved(self, length: int) -> float:
        """Elements a token read and written forward; the scan keeps its state on the chip."""
        return 9.0 * self.inner + 2.0 * self.step_rank + 4.0 * self.state_size


@record
class KimiDelta(Scan):
    """The delta rule with a decay for every channel (Kimi Linear, arXiv 2510.26692)."""

    heads: Positive
    head_dim: Positive
    convolution: Positive = 4
    rank: Count = 0
    """Width in the middle of the decay's and the gate's projections; 0: one matrix each."""
    chunk: Positive = 64

    word: ClassVar[str] = "Kimi delta attention"
    kernels: ClassVar[float] = 20.0
    """Convolutions 3, norms 2, decays and rates 4, the chunked rule 8, gated norm 3."""

    @property
    def inner(self) -> int:
        """Width of queries, of keys, of values, of decays and of the gate."""
        return self.heads * self.head_dim

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide."""
        return (self.heads,)

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        inner, two = self.inner, 2 * (self.rank or self.inner)
        rows = 3 * inner + self.heads + (0 if self.rank else two)
        ranked = [
            Weight(name="mixer_side", rows=two, columns=hidden),
            Weight(name="mixer_side", rows=inner, columns=self.rank, cut="rows", count=2),
        ]
        return [
            Weight(name="mixer_in", rows=rows, columns=hidden, cut="rows"),
            _short(3 * inner, self.convolution, bias=False),
            *(ranked if self.rank else []),
            vector("decay", inner + self.heads, cut="rows"),
            vector("gated norm", self.head_dim),
            _out(hidden, inner),
        ]

    def kept(self, length: int) -> float:
        """Elements a token kept, decays twice as they are in fp32.

        Queries, keys and values before and after the convolution, gate, output, chunks' inverses.
        """
        return 10.0 * self.inner + self.heads * (2.0 + min(self.chunk, length)) + 2.0 * self.rank

    def moved(self, length: int) -> float:
        """Elements a token read and written forward, states of chunks among them."""
        states = 2.0 * self.head_dim * self.inner / min(self.chunk, length)
        return 34.0 * self.inner + states

    def products(self, length: int) -> list[ChunkProduct]:
        """List the products of the chunked form over a sequence of `length` tokens."""
        return _delta_products(self.heads, self.head_dim, self.head_dim, self.chunk, length)


@record
class GatedRecurrence(Scan):
    """A linear recurrence of channels behind gates: RG-LRU (Griffin, arXiv 2402.19427)."""

    inner: Positive
    heads: Positive
    """Blocks of the gates' weights."""
    convolution: Positive = 4

    word: ClassVar[str] = "gated linear recurrence"
    kernels: ClassVar[float] = 8.0
    """Convolution, gates 2, recurrence, activation and product 2, biases 2."""

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide."""
        return (self.heads,)

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        inner = self.inner
        return [
            Weight(name="mixer_in", rows=2 * inner, columns=hidden, cut="rows", bias=True),
            _short(inner, self.convolution, bias=True),
            Weight(
                name="mixer_side",
                rows=2 * inner,
                columns=inner // self.heads,
                cut="rows",
                bias=True,
            ),
            vector("decay", inner, cut="rows"),
            _out(hidden, inner, bias=True),
        ]

    def kept(self, length: int) -> float:
        """Elements a token kept: both inputs, convolved, gates, state."""
        return 6.0 * self.inner

    def moved(self, length: int) -> float:
        """Elements a token read and written forward."""
        return 12.0 * self.inner


@record
class MatrixMemory(Scan):
    """mLSTM: a matrix of memory for each head under exponential gates (arXiv 2503.13427)."""

    heads: Positive
    key_head_dim: Positive
    value_head_dim: Positive
    chunk: Positive = 64
    bias: bool = False

    word: ClassVar[str] = "mLSTM"
    kernels: ClassVar[float] = 9.0
    """Gates 3, chunks' states, passed on, outputs, norm, output gate 2."""

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide."""
        return (self.heads,)

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        keys, values = self.heads * self.key_head_dim, self.heads * self.value_head_dim
        rows = 2 * keys + 2 * values
        return [
            Weight(name="mixer_in", rows=rows, columns=hidden, cut="rows", bias=self.bias),
            Weight(name="mixer_side", rows=2 * self.heads, columns=hidden, cut="rows", bias=True),
            vector("norm of heads", values, cut="rows"),
            _out(hidden, values, bias=self.bias),
        ]

    def kept(self, length: int) -> float:
        """Elements a token kept: q, k, v, output gate, gates and normaliser in fp32, result."""
        return self.heads * (2.0 * self.key_head_dim + 4.0 * self.value_head_dim + 8.0)

    def moved(self, length: int) -> float:
        """Elements a token read and written forward, states of chunks in fp32 among them."""
        states = 4.0 * self.key_head_dim * self.value_head_dim / min(self.chunk, length)
        return self.heads * (4.0 * self.key_head_dim + 9.0 * self.value_head_dim + states)

    def products(self, length: int) -> list[ChunkProduct]:
        """List the products of the chunked form over a sequence of `length` tokens."""
        size = min(self.chunk, length)
        count = self.heads * -(-length // size)
        key, value = self.key_head_dim, self.value_head_dim
        return [
            _chunk("scores", count, size, size, key, causal=True),
            _chunk("output", count, size, value, size, causal=True),
            _chunk("state output", count, size, value, key),
            _chunk("update", count, key, value, size),
        ]


@record
class TimeMixing(Scan):
    """RWKV-4's weighted sum of values under decays by channel (arXiv 2305.13048)."""

    inner: Positive
    mixes: Positive = 3
    """Vectors that mix a token with the one before: of receptance, key and value."""

    word: ClassVar[str] = "RWKV time mixing"
    kernels: ClassVar[float] = 7.0
    """Mixes of tokens 3, sigmoid, the scan, product, shift."""

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide."""
        return (self.inner,)

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        return [
            Weight(name="mixer_in", rows=3 * self.inner, columns=hidden, cut="rows"),
            vector("decay and first", 2 * self.inner, cut="rows"),
            vector("mixes", self.mixes * hidden),
            _out(hidden, self.inner),
        ]

    def kept(self, length: int) -> float:
        """Elements a token kept: mixed inputs, receptance, key, value, result."""
        return 7.0 * self.inner

    def moved(self, length: int) -> float:
        """Elements a token read and written forward."""
        return 16.0 * self.inner


@record
class ShortConvolution(Scan):
    """A convolution of few tokens between two gates (LFM2, arXiv 2511.23404)."""

    inner: Positive
    convolution: Positive = 3
    bias: bool = False

    word: ClassVar[str] = "gated short convolution"
    kernels: ClassVar[float] = 4.0
    """Gate, copy with channels first, convolution, gate."""

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide."""
        return (self.inner,)

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        inner, bias = self.inner, self.bias
        return [
            Weight(name="mixer_in", rows=3 * inner, columns=hidden, cut="rows", bias=bias),
            _short(inner, self.convolution, bias=bias),
            _out(hidden, inner, bias=bias),
        ]

    def kept(self, length: int) -> float:
        """Elements a token kept: three inputs, what the convolution reads, convolved."""
        return 5.0 * self.inner

    def moved(self, length: int) -> float:
        """Elements a token read and written forward."""
        return 10.0 * self.inner


@record
class CompressedAttention(Scan):
    """Attention to a window and to compressed blocks before it (DeepSeek-V4).

    One latent head serves as key and value of all heads. Every `rate` tokens become one; all of
    these are seen (`picked` 0), or those that an indexer picks. Outputs are projected by groups.
    """

    heads: Positive
    head_dim: Positive
    q_rank: Positive
    output_groups: Positive
    output_rank: Positive
    rate: Count
    """Tokens of a compressed block; 0: the window alone."""
    picked: Count = 0
    """Compressed blocks that a query sees, at most."""
    index_heads: Count = 0
    index_dim: Count = 0
    window: Positive = 128
    compressors: Count = 1
    """Overlapping sets of blocks that are compressed."""

    word: ClassVar[str] = "compressed attention"
    kernels: ClassVar[float] = 14.0
    """Norms 2, rotations 2, compression 3, indexer 3, picking, attention, its merge 2."""

    @property
    def inner(self) -> int:
        """Width of all queries."""
        return self.heads * self.head_dim

    @property
    def shares(self) -> tuple[int, ...]:
        """Counts that tensor parallelism has to divide."""
        return self.heads, self.output_groups

    def weights(self, hidden: int) -> list[Weight]:
        """List its weights in a model of width `hidden`."""
        head, latent = self.head_dim, self.output_groups * self.output_rank
        compressed = 2 * self.compressors * head
        index = 2 * self.compressors * self.index_dim
        indexer = [
            Weight(name="mixer_side", rows=self.index_heads * self.index_dim, columns=self.q_rank),
            Weight(name="mixer_side", rows=index + self.index_heads, columns=hidden),
            vector("indexer", self.rate * index // 2 + self.index_dim),
        ]
        compressor = [
            Weight(name="mixer_side", rows=compressed, columns=hidden),
            vector("compressor", self.rate * compressed // 2 + head),
        ]
        return [
            Weight(name="mixer_side", rows=self.q_rank, columns=hidden),
            Weight(name="mixer_in", rows=head, columns=hidden),
            Weight(name="mixer_side", rows=self.inner, columns=self.q_rank, cut="rows"),
            vector("norms", self.q_rank + head),
            vector("sinks", self.heads, cut="rows"),
            *(compressor if self.rate else []),
            *(indexer if self.index_heads else []),
            Weight(
                name="mixer_side",
                rows=latent,
                columns=self.inner // self.output_groups,
                cut="rows",
            ),
            _out(hidden, latent),
        ]

    def _seen(self, length: int) -> float:
        blocks = length / self.rate if self.rate else 0.0
        return min(self.picked, blocks / 2) if self.picked else blocks / 2

    def kept(self, length: int) -> float:
        """Elements a token kept: latent queries, queries, key, compressed ones, output."""
        few = self.compressors * (self.head_dim / self.rate if self.rate else 0.0)
        index = self.index_heads * (self.index_dim + 1) + 2.0 * self.picked
        return self.q_rank * 2 + 2 * self.inner + 2 * self.head_dim + few + index

    def moved(self, length: int) -> float:
        """Elements a token read and written forward; a query's blocks come from the cache."""
        return 8.0 * self.inner + 6.0 * self.q_rank + 10.0 * self.head_dim + 4.0 * self.picked

    def products(self, length: int) -> list[ChunkProduct]:
        """Queries by what they see and back, and the indexer's scores, over a sequence."""
        seen = max(1, round(min(self.window, length) + self._seen(length)))
        head = self.head_dim
        scores = [
            _chunk("scores", self.heads, length, seen, head),
            _chunk("output", self.heads, length, head, seen),
        ]
        if self.index_heads and self.rate:
            blocks = max(1, length // self.rate)
            index = _chunk("index", self.index_heads, length, blocks, self.index_dim, causal=True)
            scores.append(index)
        return scores


def _chunk(name: str, count: int, m: int, n: int, k: int, *, causal: bool = False) -> ChunkProduct:
    return ChunkProduct(name=f"chunk {name}", count=count, m=m, n=n, k=k, causal=causal)


def _delta_products(
    heads: int, key: int, value: int, chunk: int, length: int
) -> list[ChunkProduct]:
    """List the products of the chunked delta rule (arXiv 2412.06464, section 3.3).

    Keys by keys, whose triangle is inverted; the inverse by values and by keys; queries by
    keys; what the state before the chunk predicts of the values, and adds to the outputs; the
    outputs' part inside the chunk; the state's update. A last chunk is padded.
    """
    size = min(chunk, length)
    count = heads * -(-length // size)
    return [
        _chunk("keys", count, size, size, key, causal=True),
        _chunk("corrected values", count, size, value, size, causal=True),
        _chunk("corrected keys", count, size, key, size, causal=True),
        _chunk("scores", count, size, size, key, causal=True),
        _chunk("prediction", count, size, value, key),
        _chunk("state output", count, size, value, key),
        _chunk("output", count, size, value, size, causal=True),
        _chunk("update", count, key, value, size),
    ]


Mixer = (
    Mamba2
    | GatedDelta
    | LightningAttention
    | Mamba1
    | KimiDelta
    | GatedRecurrence
    | MatrixMemory
    | TimeMixing
    | ShortConvolution
    | CompressedAttention
)
"""What may stand in a block as its mixer."""
