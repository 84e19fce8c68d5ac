"""Gated delta rule: a state of keys by values, decayed and corrected by every token."""

from __future__ import annotations

from simulator.files import record
from simulator.workload.mixers import ChunkProduct
from simulator.workload.modules import Positive
from simulator.workload.weights import Weight, vector


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
