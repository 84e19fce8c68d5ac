"""Mamba-2: a state space whose state decays by one factor per head and token."""

from __future__ import annotations

from simulator.files import record
from simulator.workload.mixers import ChunkProduct
from simulator.workload.modules import Positive
from simulator.workload.weights import Weight, vector


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
