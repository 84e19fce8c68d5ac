"""Fixed phrases in the notes of older tables of measured runs, put into the columns they stand for.

What a few runs state beyond the common columns had no column once and stood in `notes` in a fixed
wording. A table that has the column is read by its column alone, blank or not; one that has not is
read by the phrase (validation/README.md lists both). This is the only place that reads notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

__all__ = ["GRAPH_PARTS", "with_columns"]

GRAPH_PARTS = ("full_iteration", "attn", "moe_router", "moe_preprocess")
"""Words of the column ``cuda_graph_scope``."""

_TORCHTUNE_CHUNKS = "8"
"""Pieces of torchtune's loss unless stated (CEWithChunkedOutputLoss, num_output_chunks)."""


def _graph_parts(found: re.Match[str]) -> str:
    words = re.findall("[a-z_]+", found[1])
    return "+".join(word for word in words if word in GRAPH_PARTS)


_PHRASES: tuple[tuple[str, str, Callable[[re.Match[str]], str]], ...] = (
    ("reduce_dtype", r"gradients (?:accumulated and )?reduced in (fp16|bf16|fp32)",
     lambda found: found[1]),
    ("gradient_dtype", r"gradients accumulated and reduced in (fp16|bf16|fp32)",
     lambda found: found[1]),
    ("moment_dtype", r"optimizer moments in (bf16|fp16)", lambda found: found[1]),
    ("fused_gradient_accumulation",
     "gradient accumulation not fused|no gradient accumulation fusion", lambda _: "false"),
    # llm-foundry's earlier tables, with PyTorch 1.13: defaults of its
    # scripts/train/benchmarking/submit_benchmarks.py@12a63191
    ("recompute_stops_early", "FSDP mixed precision PURE", lambda _: "never"),
    ("offload_layers", r"activations of ([0-9]{1,6}) layers offloaded", lambda found: found[1]),
    ("sliding_window_every_second",
     r"every second layer uses a ([0-9]{1,9})-token sliding window", lambda found: found[1]),
    ("dispatcher", r"moe dispatcher=(deepep|hybridep)", lambda found: found[1]),
    ("dispatcher", r"moe-token-dispatcher-type=(alltoall|allgather)(?:;|$)",
     lambda found: found[1]),
    ("expert_overlap", "moe a2a overlap on", lambda _: "true"),
    ("loss_chunks", r"(?:^|; )chunked cross entropy(?: in ([0-9]{1,6}) pieces)?(?:;|$)",
     lambda found: found[1] or _TORCHTUNE_CHUNKS),
    ("optimizer_in_backward", r"(?:^|; )optimizer step in backward(?:;|$)", lambda _: "true"),
    ("cuda_graph_scope", r"cuda graph ([^;]+)", _graph_parts),
    ("peak_reserved_gib", r"(?:^|; )reserved ([0-9.]+) GiB(?:;|$)", lambda found: found[1]),
    ("loss_fusion", "cross-entropy-loss-fusion=True", lambda _: "compiled"),
    ("transformer_impl", r"transformer-impl=(transformer_engine|local)(?:;|$)",
     lambda found: found[1]),
    ("deterministic", "(?:^|; )deterministic mode(?:;|$)", lambda _: "true"),
    ("memory_stage", r"last rank = last pipeline stage", lambda _: "last"),
    ("lora_rank", r"(?:^|; )lora-r=([0-9]{1,4})(?:;|$)", lambda found: found[1]),
    ("lora_targets", r"lora-target-modules=(?:linear_qkv|query_key_value)(?:;|$)",
     lambda _: "q+k+v"),
    ("quantised_base", r"CI baseline \w*_qlora_", lambda _: "true"),
    ("split_master_weights", "reuse-fp32-param=True", lambda _: "true"),
    ("composed", "COMPOSED", lambda _: "true"),
    ("excluded", r"EXCLUDED:([^;]*)", lambda found: found[1].strip() or "no reason given"),
)  # fmt: skip
"""Column, phrase that stands for it in `notes`, and what the column says then."""


def with_columns(fields: Mapping[str, str], header: Iterable[str]) -> dict[str, str]:
    """Fill columns that a table has not from the phrases in a row's `notes`.

    Parameters
    ----------
    fields : mapping
        Text by column.
    header : iterable of str
        Columns of the table: what they say holds, blank or not.

    Examples
    --------
    >>> notes = {"notes": "mean of 10 steps; moe dispatcher=hybridep"}
    >>> with_columns(notes, ["notes"])["dispatcher"]
    'hybridep'
    >>> with_columns(notes | {"dispatcher": ""}, ["notes", "dispatcher"])["dispatcher"]
    ''
    """
    notes, known = fields.get("notes") or "", set(header)
    filled = dict(fields)
    for column, phrase, value in _PHRASES:
        stated = re.search(phrase, notes) if notes and column not in known else None
        if stated:
            filled[column] = value(stated)
    return filled
