"""What context parallelism moves around one attention module, by its kind.

The sequence is split over cp ranks, every rank with one chunk of its first half and the mirrored
chunk of its second (so that causal ranks have equal work). Ways to let queries see all keys:

- ring (Liu et al. 2023, arXiv 2310.01889): keys and values go round beside the attention.
- all_gather (Llama 3, arXiv 2407.21783, section 3.3.2): keys and values are gathered.
- all_to_all (Ulysses, Jacobs et al. 2023, arXiv 2309.14509): every rank gets all tokens of 1 / cp
  of the heads and gives the results back.
- hierarchical (USP, Fang and Zhao 2024, arXiv 2405.07719; TransformerEngine's a2a+p2p): all-to-all
  inside groups of adjacent ranks, and a ring of what each then has between the groups.

Read in the code: TransformerEngine's context_parallel.py and torch 2.13's
distributed/tensor/experimental/_context_parallel/_attention.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.operators.operations import Collective, ModuleOperators, Ranks, Stream
from simulator.layout.layouts import CP_KINDS
from simulator.records import dataclass
from simulator.software.kernels import Kernels
from simulator.software.overlap import Overlap

_RING, _GATHER = CP_KINDS.index("ring"), CP_KINDS.index("all_gather")
_ALL_TO_ALL, _HIERARCHICAL = CP_KINDS.index("all_to_all"), CP_KINDS.index("hierarchical")

_FP32 = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """Elements per token of one rank's heads."""

    query: Any
    key: Any
    value: Any
    result: Any


def attention_window_s(c: Collective, overlap: Overlap, size: Any, attention_s: Any) -> Any:
    """Seconds of attention that may hide a collective under this software."""
    if not overlap.context_ring:
        return 0.0
    if c.window == "attention":
        return attention_s * (size - 1) / size
    return attention_s / size if c.window == "first block" else 0.0


def exchange_context(
    widths: Widths,
    tokens: Any,
    keys: Any,
    ranks: Ranks,
    size: float,
    *,
    kernels: Kernels,
    heads_per_key: Any = 1.0,
    repeated: Any = 1.0,
) -> ModuleOperators:
    """List the exchanges of context parallelism, and the copies and sums around them.

    Parameters
    ----------
    tokens, keys : array
        Tokens of one rank behind its queries, and behind its keys and values.
    size : float
        Bytes of one activation element.
    heads_per_key : array, optional
        Query heads that share a key: torch repeats keys and values for them first.
    repeated : array, optional
        Times that all_to_all sends a key, to ranks that are more than there are keys.

    Notes
    -----
    No kind keeps what it received: the backward pass gathers, or sends round, again. Only
    TransformerEngine's all_gather keeps the result twice, as computed and as put together.
    """
    ops = ModuleOperators()
    copies = heads_per_key if kernels.context_attention == "torch" else 1.0
    pairs = copies * (widths.key + widths.value)
    ring, gather, swap, both = (
        np.where(ranks.cp_kind == code, 1.0, 0.0)
        for code in (_RING, _GATHER, _ALL_TO_ALL, _HIERARCHICAL)
    )
    own = keys * pairs * size
    ops.streams.append(_sums(widths, tokens, pairs, ranks, size, kernels=kernels))
    ops.collectives += _pass_round(own * ring, keys * pairs * gather, ranks, size, kernels)
    if gather.any():
        ops.add(_gather(own * gather * np.where(ranks.cp > 1, ranks.cp, 0.0), kernels))
        if kernels.context_attention == "transformer_engine":
            again = np.where(ranks.cp > 1, gather, 0.0) * tokens * widths.result * size
            ops.keep("attention output by chunk", again, module="core_attn")
    if swap.any():
        swap = np.where(ranks.cp > 1, swap * size, 0.0)
        keeps = kernels.transformer_engine.keeps_exchanged_output
        ops.add(_swap(widths, tokens * swap, keys * repeated * swap, keeps=keeps))
    if both.any():
        both = np.where(ranks.cp > 1, both, 0.0)
        within = tokens * both * size, keys * both * size
        ops.add(_swap(widths, *within, keeps=False, group="cp_a2a"))
        ops.collectives += _pass_between(own * both * (ranks.cp / ranks.cp_a2a - 1.0))
    return ops


def _sums(
    widths: Widths,
    tokens: Any,
    pairs: Any,
    ranks: Ranks,
    size: float,
    *,
    kernels: Kernels,
) -> Stream:
    """Merging the results of block after block, and adding up partial gradients.

    TransformerEngine (AttnFuncWithCPAndKVP2P of releases 1.11 and 2.8, 16 bit, causal), on the last
    rank, whose blocks have all queries: keys and values are put together, the first block's
    log-sum-exp and result are copied, those of each further block added by a kernel each. Back,
    keys and values are copied, the first block's three gradients too, those of each further block
    added, of keys and values half but for the last (a copy moves 2 B for each, a sum 3 B).

    torch does both operator by operator (`_SDPAMerger`, `_partial_update`). Of a result of B bytes
    in 16 bit: a cast to fp32 (3 B), two differences (6 B each), a product (4 B); where only the
    second half of the queries is at work, half of that and a concatenation (4 B). Keys and values
    are concatenated to be sent (2 B). Back, gradients are cast (3 B), added or added in part (6 or
    7 B), and those of keys and values concatenated (4 B) beside their own (2 B).
    """
    steps = ranks.key_blocks(kernels) - 1.0
    if kernels.context_attention == "torch":
        return Stream(
            name="context merge",
            kind="elementwise",
            calls=0.0,
            forward_bytes=steps * tokens * size * (16.25 * widths.result + 2.0 * pairs),
            backward_bytes=steps * tokens * size * (9.5 * widths.query + 15.5 * pairs),
        )
    rings = np.where(steps > 0.0, 1.0, 0.0)
    sums = tokens * size * (2.0 * rings + 3.0 * steps)
    return Stream(
        name="context merge",
        kind="elementwise",
        calls=3.0 * rings + 2.0 * steps,
        backward_calls=4.0 * rings + 3.0 * steps,
        forward_bytes=sums * widths.result + 2.0 * rings * tokens * pairs * size,
        backward_bytes=sums * widths.query + (4.5 * rings + 1.5 * steps) * tokens * pairs * size,
    )


def _pass_round(
    ring: Any, gathered: Any, ranks: Ranks, size: float, kernels: Kernels
) -> list[Collective]:
    """Sends to the next rank beside the attention: keys and values, and back with gradients.

    TransformerEngine sends gradients in 16 bit, cp - 1 times. torch sends them in fp32 whether it
    gathers or not, and once more to bring them home, which nothing hides.

    Parameters
    ----------
    ring, gathered : array
        Bytes of a rank's own keys and values where they go round, elements where torch gathers.
    """
    steps = ranks.cp - 1.0
    there = _call("ring", ring * steps, window="attention")
    if kernels.context_attention != "torch":
        return [there, _call("ring", 2.0 * (ring * steps), backward=True, window="attention")]
    gradients = (ring / size + gathered) * _FP32
    return [
        there,
        _call("ring", (ring + gradients) * steps, backward=True, window="attention"),
        _call("send", np.where(ranks.cp > 1, gradients, 0.0), backward=True),
    ]


def _pass_between(sent: Any) -> list[Collective]:
    """Rings between groups: after the all-to-all a rank's keys are as many bytes as before.

    They stand for more tokens of fewer heads. Backward as in TransformerEngine's ring.
    """
    return [
        _call("ring", sent, window="attention", group="cp_ring"),
        _call("ring", 2.0 * sent, backward=True, window="attention", group="cp_ring"),
    ]


def _gather(whole: Any, kernels: Kernels) -> ModuleOperators:
    """Gather keys and values in both passes; `whole` are the bytes of all ranks.

    torch starts with its own block beside the gather. TransformerEngine waits, puts the chunks in
    order (a copy), and scatters 16-bit gradients, of which the rank first has those of all keys.
    """
    if kernels.context_attention == "torch":
        gathers = [
            _call("all_gather", whole, backward=backward, window="first block")
            for backward in (False, True)
        ]
        return ModuleOperators(collectives=gathers, transient_bytes=whole)
    return ModuleOperators(
        collectives=[
            _call("all_gather", whole),
            _call("all_gather", whole, backward=True),
            _call("reduce_scatter", whole, backward=True),
        ],
        streams=[_copies("order of gathered keys", 2.0 * whole, 4.0 * whole)],
        transient_bytes=2.0 * whole,
    )


def _swap(
    widths: Widths, tokens: Any, keys: Any, *, keeps: bool, group: str = "cp"
) -> ModuleOperators:
    """Sequence for heads and back: queries, keys and values before attention, its result after.

    The backward pass exchanges the gradients of all four and, where it was kept only as the next
    layer reads it, the result once more (TransformerEngine before 2.8; `keeps`: it was kept before
    the exchange, too). Each is copied before and after. `tokens` and `keys` are bytes of one
    element per token.
    """
    ops = ModuleOperators()
    inputs = [tokens * widths.query, keys * widths.key, keys * widths.value]
    result = tokens * widths.result
    ops.collectives += [_call("all_to_all", sent, group=group) for sent in (*inputs, result)]
    again = () if keeps else (result,)
    ops.collectives += [
        _call("all_to_all", sent, backward=True, group=group) for sent in (result, *again, *inputs)
    ]
    if keeps:
        ops.keep("attention output before the exchange", result, module="core_attn")
    moved = sum(inputs) + result
    ops.streams.append(_copies("order of exchanged heads", 4.0 * moved, 4.0 * (moved + sum(again))))
    return ops


def _call(
    operation: str,
    size_bytes: Any,
    *,
    backward: bool = False,
    window: str = "",
    group: str = "cp",
) -> Collective:
    return Collective(
        operation=operation,
        group=group,
        size_bytes=size_bytes,
        backward=backward,
        window=window,
    )


def _copies(name: str, forward: Any, backward: Any) -> Stream:
    return Stream(
        name=name,
        kind="elementwise",
        calls=0.0,
        forward_bytes=forward,
        backward_bytes=backward,
    )
