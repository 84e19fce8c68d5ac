"""What an iteration of an engine's replica takes, and how many tokens its cache holds.

One iteration writes a token for each running sequence: products, attention to the caches, experts,
all-reduces, the head and the sampler, and the host's work between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from types import SimpleNamespace
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.collectives.calls import all_reduce_s
from simulator.cost.kernels.gemm import OPERAND_BYTES, device_rates, gemm_s
from simulator.cost.kernels.residual import residual_factor
from simulator.files import figures
from simulator.hardware.cluster import Cluster
from simulator.hardware.residuals import load_residuals
from simulator.layout.placement import Group
from simulator.records import dataclass
from simulator.reinforcement.decode_kernels import (
    ROUTING_EXPONENT,
    all_reduce_in_domain_s,
    decode_attention_s,
    expert_layer_s,
    expert_residual,
    reached_experts,
)
from simulator.rollouts.profiles import (
    DecodeKernels,
    Engine,
    load_decode_kernels,
    load_engine,
)
from simulator.rollouts.rl_section import RL, Generation
from simulator.workload.architecture import Architecture, Block
from simulator.workload.modules import MLP, Attention, MoE

_WIDE = 2.0
"""Bytes of a 16-bit element."""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A copy of the policy in an engine, on accelerators of its own."""

    architecture: Architecture
    cluster: Cluster
    engine: Engine
    kernels: DecodeKernels
    borrowed: str
    """Device whose decode kernels stand in; blank: its own."""
    section: Generation
    one_by_one: bool
    """Requests come one by one to a process of its own."""
    routing: float = ROUTING_EXPONENT
    _known: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, rl: RL, architecture: Architecture, cluster: Cluster) -> Replica:
        """Make the replica that [rl.generation] describes."""
        chip = cluster.accelerator
        kernels, borrowed = load_decode_kernels(chip.name, chip.generation)
        return cls(
            architecture=architecture,
            cluster=cluster,
            engine=load_engine(rl.generation.engine),
            kernels=kernels,
            borrowed=borrowed,
            section=rl.generation,
            one_by_one=rl.asks_one_by_one,
        )

    @property
    def attention_ranks(self) -> int:
        """Ranks over which the heads of a sequence are cut."""
        return self.section.tp // self.section.dp_attention

    @property
    def most_sequences(self) -> int:
        """Sequences that run at once, if the cache holds them."""
        said, engine = self.section.max_sequences, self.engine
        if said is not None:
            return said
        return engine.streamed_sequences if self.one_by_one else engine.listed_sequences

    @property
    def idle_tokens(self) -> float:
        """Tokens that would still fit into a running sequence's last page of the cache, on average.

        Pages are handed out whole (vLLM's block_size): of b tokens, 0 to b - 1 are free.
        """
        return (self.engine.block_tokens - 1) / 2.0

    @property
    def weight_bytes(self) -> float:
        """Weights of the fullest rank of the replica."""
        if "weights" not in self._known:
            self._known["weights"] = _weight_bytes(self.architecture, self.section)
        return float(self._known["weights"])

    @property
    def token_bytes(self) -> float:
        """Keys and values of a token on one rank, all layers."""
        per = 1.0 if self.section.cache_precision == "fp8" else _WIDE
        return sum(
            count * per * _cached_width(kind.attention, self.attention_ranks)
            for kind, count in _layers(self.architecture)
            if kind.attention is not None
        )

    def cache_tokens(self, memory_share: float) -> float:
        """Tokens that the caches of the replica hold; 0 or less: weights alone are too large."""
        room = self.cache_bytes(memory_share)
        return room / self.token_bytes * self.section.dp_attention

    def cache_bytes(self, memory_share: float) -> float:
        """Memory of one rank that is left for the cache."""
        memory = float(self.cluster.accelerator.memory.usable_bytes)
        return memory * memory_share - self.weight_bytes - self.reserve_bytes

    @property
    def reserve_bytes(self) -> float:
        """Memory of one rank beside weights and cache."""
        engine = self.engine
        return float(engine.reserve_bytes + engine.reserve_cut_bytes / self.section.tp)

    @property
    def tokens_per_iteration(self) -> float:
        """Mean tokens that a sequence gets in an iteration; above 1 with speculation.

        Of k proposals those before the first wrong one are kept, and one more is sampled:
        ``(1 - a^(k + 1)) / (1 - a)`` (Leviathan et al. 2023, equation 1).
        """
        kept, proposed = self.section.acceptance, self.section.speculative_tokens
        if kept == 1.0:
            return float(proposed + 1)
        return float((1.0 - kept ** (proposed + 1)) / (1.0 - kept))

    def iteration_s(self, sequences: Any, tokens: Any) -> Floats:
        """Time of an iteration, in seconds.

        Parameters
        ----------
        sequences : array_like
            Sequences that run in the replica, 1 or more.
        tokens : array_like
            Tokens in all their caches.
        """
        sequences, tokens = np.asarray(sequences, float), np.asarray(tokens, float)
        return np.asarray(self.steady_s(sequences) + self.attention_s(sequences, tokens))

    def attention_s(self, sequences: Any, tokens: Any) -> Any:
        """Attention of all layers in an iteration; of plain numbers a plain number."""
        groups = self.section.dp_attention
        here, seen = sequences / groups, tokens / groups
        rows = here * (1 + self.section.speculative_tokens)
        total = 0.0 * (here + seen)
        for count, window, shape in self._attention_shapes():
            kept = np.minimum(seen, here * window) if window else seen
            width = shape["width_bytes"]
            total = total + count * decode_attention_s(
                shape["figures"],
                shape["bandwidth"],
                sequences=rows,
                heads=shape["heads"],
                kv_heads=shape["kv_heads"],
                cache_bytes=kept * width,
            )
        return total

    def _attention_shapes(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Layers of each kind of attention, its window (0: none), and its shape on a rank."""
        if "attention" not in self._known:
            per, cut = 1.0 if self.section.cache_precision == "fp8" else _WIDE, self.attention_ranks
            common = {
                "figures": SimpleNamespace(**{name: float(f) for name, f in figures(self.kernels)}),
                "bandwidth": float(self.cluster.accelerator.memory.bandwidth_bytes_per_s),
            }
            self._known["attention"] = [
                (count, kind.attention.window, {
                    "heads": max(kind.attention.heads / cut, 1.0),
                    "kv_heads": 1.0 if kind.attention.is_mla
                    else max(kind.attention.kv_heads / cut, 1.0),
                    "width_bytes": per * _cached_width(kind.attention, cut),
                    **common,
                })
                for kind, count in _layers(self.architecture) if kind.attention is not None
            ]  # fmt: skip
        shapes: list[tuple[int, int, dict[str, Any]]] = self._known["attention"]
        return shapes

    def steady_s(self, sequences: Any) -> Floats:
        """An iteration but for attention: what does not hang on the lengths of contexts."""
        rows = np.asarray(sequences, float)
        return np.asarray(np.interp(rows, *self._table()))

    def _table(self) -> tuple[Floats, Floats]:
        """Times of some numbers of sequences, between which it is a straight line."""
        if "table" not in self._known:
            most = max(self.most_sequences, 2)
            some = np.unique(np.round(np.geomspace(1, most, 28)))
            self._known["table"] = (some, self._steady_s(some))
        table: tuple[Floats, Floats] = self._known["table"]
        return table

    def _steady_s(self, sequences: Floats) -> Floats:
        rows = sequences * (1 + self.section.speculative_tokens)
        seconds = self.parts_s(rows)
        draft = self.section.speculative_tokens
        blocks = seconds["products"] + seconds["experts"] + seconds["all_reduce"]
        layers = len(self.architecture.layer_kinds)
        proposals = draft * (blocks / layers + seconds["head"]) if draft else 0.0
        host_s = self.host_s(sequences)
        device_s = sum(seconds.values()) + proposals
        if not self.section.cuda_graphs:
            launched = self._kernels() * float(self.engine.launch_s)
            device_s = np.maximum(device_s, launched)
        return np.asarray(device_s + host_s)

    def host_s(self, sequences: Any) -> Floats:
        """Host time between two iterations, which nothing hides."""
        engine, far = self.engine, self.section.tp > self.cluster.node.accelerators
        spread = engine.spread_host_s if self.section.tp > 1 and (far or not self.one_by_one) else 0
        sequence_s = engine.host_s_per_sequence + 0.0
        if not self.one_by_one:
            sequence_s += engine.listed_host_s_per_sequence
        return np.asarray(engine.host_s + sequence_s * np.asarray(sequences, float) + spread)

    def parts_s(self, rows: Any) -> dict[str, Floats]:
        """Device time of `rows` tokens by kind, attention to caches left out, all layers."""
        rows = np.asarray(rows, float)
        hidden = self.architecture.hidden
        parts = dict.fromkeys(("products", "experts", "all_reduce", "small", "head"),
                              np.zeros(rows.shape))  # fmt: skip
        reduce_s = self._all_reduce_s(rows * hidden * _WIDE)
        bandwidth = float(self.cluster.accelerator.memory.bandwidth_bytes_per_s)
        for kind, count in _layers(self.architecture):
            parts["products"] = parts["products"] + count * self._products_s(kind, rows)
            if isinstance(kind.mlp, MoE):
                parts["experts"] = parts["experts"] + count * self._experts_s(kind.mlp, rows)
            calls = (kind.attention is not None) + (kind.mlp is not None)
            parts["all_reduce"] = parts["all_reduce"] + count * calls * reduce_s
            passes_s = 6.0 * rows * hidden * _WIDE / (0.8 * bandwidth)
            small_s = self._small_kernels(kind) * float(self.engine.kernel_s) + passes_s
            parts["small"] = parts["small"] + count * small_s
        parts["head"] = self._head_s(rows)
        return parts

    def _kernels(self) -> float:
        """Kernels of an iteration that the host launches without graphs."""
        return sum(
            count * (self._small_kernels(kind) + 6.0) for kind, count in _layers(self.architecture)
        )

    def _small_kernels(self, kind: Block) -> float:
        engine = self.engine
        return float(engine.kernels_per_expert_block if kind.is_moe else engine.kernels_per_block)

    def _products_s(self, kind: Block, rows: Floats) -> Floats:
        """Products of a block, routed experts left out; equal sizes are fused as engines do."""
        width, total = kind.width or self.architecture.hidden, np.zeros(rows.shape)
        groups, cut = self.section.dp_attention, self.attention_ranks
        if kind.attention is not None:
            for n, k in _attention_products(kind.attention, width, cut):
                total = total + self._gemm_s(rows / groups, n, k)
        tp = self.section.tp
        for inner, gated in _dense_parts(kind):
            total = total + self._gemm_s(rows, inner * (1 + gated) / tp, width)
            total = total + self._gemm_s(rows, width, inner / tp)
        if isinstance(kind.mlp, MoE):
            total = total + self._gemm_s(rows, kind.mlp.experts, width, wide=True)
        return total

    def _experts_s(self, moe: MoE, rows: Floats) -> Floats:
        """The fused layer of routed experts on one rank."""
        ep, tp = self.section.ep, self.section.tp
        cut, chip = tp // ep, self.cluster.accelerator
        reached = reached_experts(rows, moe.experts, moe.top_k, exponent=self.routing) / ep
        dtype = self.section.precision
        seconds = expert_layer_s(
            self.kernels,
            float(chip.memory.bandwidth_bytes_per_s),
            float(chip.matrix_flop_per_s[dtype]),
            tokens=rows,
            reached=reached,
            copies=rows * moe.top_k / ep,
            hidden=self.architecture.hidden,
            ffn=moe.ffn_hidden / cut,
            matrices=3.0 if moe.gated else 2.0,
            weight_bytes=OPERAND_BYTES.get(dtype, _WIDE),
        )
        timed = load_residuals(chip.name if not self.borrowed else self.borrowed, "decode_experts")
        factor = expert_residual(
            timed.get(("vllm", "bf16")),
            tokens=rows,
            experts=moe.experts / ep,
            hidden=self.architecture.hidden,
            ffn=moe.ffn_hidden / cut,
            top_k=moe.top_k,
        )
        return seconds * factor

    def _head_s(self, rows: Floats) -> Floats:
        """Head, gather of its parts and sampler."""
        tp, outputs = self.section.tp, self.architecture.output_rows
        seconds = self._gemm_s(rows, outputs / tp, self.architecture.hidden, wide=True)
        bandwidth = float(self.cluster.accelerator.memory.bandwidth_bytes_per_s)
        sampled_s = rows * outputs * float(self.engine.sampler_bytes) / (0.8 * bandwidth)
        gathered_s = self._all_reduce_s(rows * outputs * _WIDE) / 2.0 if tp > 1 else 0.0
        return np.asarray(seconds + gathered_s + sampled_s + float(self.engine.sampler_s))

    def _gemm_s(self, rows: Floats, n: float, k: float, *, wide: bool = False) -> Floats:
        """A product of activations by weights, at the clock of short calls."""
        chip = self.cluster.accelerator
        dtype = chip.sixteen_bit if wide or self.section.precision == "bf16" else "fp8"
        library = self.engine.library if dtype in chip.gemm.get(self.engine.library, {}) else ""
        library = library or next(name for name in chip.gemm if dtype in chip.gemm[name])
        kernel = chip.gemm[library][dtype]
        sizes = {"m": np.maximum(rows, 1.0), "n": max(n, 1.0), "k": max(k, 1.0)}
        seconds = gemm_s(device_rates(chip, dtype), kernel, **sizes, result_bytes=_WIDE,
                         sustained=False)  # fmt: skip
        timed = load_residuals(chip.name).get((library, dtype))
        return seconds if timed is None else seconds * residual_factor(timed, **sizes)

    def _all_reduce_s(self, size_bytes: Floats) -> Floats:
        """A sum over the replica: the engine's own inside a server, NCCL's beyond."""
        tp = self.section.tp
        if tp == 1:
            return np.zeros(size_bytes.shape)
        group = Group(size=np.array([tp]), local=np.array([min(tp, self.cluster.domain)]))
        flat = size_bytes.ravel()
        general = all_reduce_s(
            self.cluster, flat, Group(size=np.repeat(group.size, len(flat)),
                                      local=np.repeat(group.local, len(flat)))
        )  # fmt: skip
        if tp <= self.cluster.node.accelerators and self.cluster.node.scale_up.kind == "nvlink":
            general = np.minimum(general, all_reduce_in_domain_s(self.kernels, tp, flat))
        return np.asarray(general).reshape(size_bytes.shape)

    def prefill_s(self, tokens: Any, length: Any) -> Any:
        """Time that prompts' tokens add, of sequences of a mean length so far.

        Products run on chunks as large as an iteration takes; attention's FLOPs count causally at
        the rate of its library.
        """
        if "prefill" not in self._known:
            chunk = float(self.section.chunk_tokens or self.engine.chunk_tokens)
            parts = self.parts_s(np.array([chunk]))
            whole = sum(float(seconds[0]) for name, seconds in parts.items() if name != "head")
            self._known["prefill"] = whole / chunk
            self._known["attended"] = self._attended_s()
        attended: Callable[[Any], Any] = self._known["attended"]
        return tokens * (self._known["prefill"] + attended(length))

    def _attended_s(self) -> Callable[[Any], Any]:
        """Seconds of attention of a prompt's token by the tokens before it."""
        chip, cut = self.cluster.accelerator, self.attention_ranks
        rate = 0.5 * float(chip.matrix_flop_per_s[chip.sixteen_bit])
        flop = sum(
            count * 2.0 * (kind.attention.head_dim + kind.attention.value_dim)
            * kind.attention.heads / cut
            for kind, count in _layers(self.architecture) if kind.attention is not None
        )  # fmt: skip
        return lambda length: flop * length / 2.0 / rate


def _layers(architecture: Architecture) -> list[tuple[Block, int]]:
    """Block kinds and how many layers are of each, those that predict ahead left out."""
    kinds = architecture.layer_kinds
    return [
        (block, kinds.count(index))
        for index, block in enumerate(architecture.blocks)
        if not block.predicts_ahead and kinds.count(index)
    ]


def _cached_width(attention: Attention, cut: int) -> float:
    """Elements of keys and values that a rank keeps of a token in a layer."""
    if attention.is_mla:
        return float(attention.kv_lora_rank + attention.rope_head_dim)
    return max(attention.kv_heads / cut, 1.0) * (attention.head_dim + attention.value_dim)


def _attention_products(attention: Attention, width: int, cut: int) -> list[tuple[float, float]]:
    """Sizes (outputs, inputs) of the products of attention on a rank, latent ones absorbed."""
    heads = max(attention.heads / cut, 1.0)
    if not attention.is_mla:
        keys = max(attention.kv_heads / cut, 1.0) * (attention.head_dim + attention.value_dim)
        query = heads * attention.head_dim * (1 + attention.output_gate)
        return [(query + keys, width), (width, heads * attention.value_dim)]
    latent, rope = attention.kv_lora_rank, attention.rope_head_dim
    rank = attention.q_lora_rank
    down = [(float(rank + latent + rope), float(width))]
    up = (heads * attention.head_dim, float(rank or width))
    absorbed = [(heads * latent, float(attention.head_dim - rope)),
                (heads * attention.value_dim, float(latent))]  # fmt: skip
    return [*down, up, *absorbed, (float(width), heads * attention.value_dim)]


def _dense_parts(kind: Block) -> list[tuple[int, bool]]:
    """Inner widths of a block's dense feed-forward parts, and whether each has a gate."""
    if isinstance(kind.mlp, MLP):
        return [(kind.mlp.ffn_hidden, kind.mlp.gated)]
    if isinstance(kind.mlp, MoE) and kind.mlp.shared_ffn_hidden:
        return [(kind.mlp.shared_ffn_hidden, kind.mlp.gated)]
    return []


def _weight_bytes(architecture: Architecture, section: Generation) -> float:
    """Weights of a rank: blocks in the engine's type, embedding and head in 16 bit."""
    per = OPERAND_BYTES.get(section.precision, _WIDE)
    total = 0.0
    for kind, count in _layers(architecture):
        width = kind.width or architecture.hidden
        for weight in kind.weights(width):
            in_attention = weight.name in _ATTENTION_WEIGHTS
            cut = section.tp // section.dp_attention if in_attention else section.tp
            cut = 1 if weight.cut == "whole" else cut
            cut = min(cut, weight.pieces) if weight.pieces else cut
            total += count * per * weight.parameters / cut
    tables = architecture.parameters - sum(
        count * kind.parameters(architecture.hidden) for kind, count in _layers(architecture)
    )
    return float(total + _WIDE * tables / section.tp)


_ATTENTION_WEIGHTS = ("q", "k", "v", "o", "q_up", "q_down", "kv_up", "kv_down", "query", "sink")
