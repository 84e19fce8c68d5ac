"""Rows of a table of kernel times as calls that can be priced: shape, device, type, library.

What a row means is settled here: which product, which attention, which bytes, and how long it
took. Rows that there is no formula or no figures for are skipped with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.microbenchmarks import (
    Floats,
    Masks,
    Sieve,
    Table,
    Texts,
    Words,
    groups,
    profiles,
    refuse_impossible,
)

__all__ = [
    *("ATTENTION_COLUMNS", "BACKWARD_FLOP", "GEMM_COLUMNS", "KernelCalls", "Shape"),
    *("attention_bytes", "causal_flop", "framework_name", "gemm_type", "read_kernels"),
]

Shape = Mapping[str, Floats]
"""Sizes of calls of one family, by the names of the formulas."""

GEMM_COLUMNS = {"m": "M", "n": "N", "k": "K"}
"""Size: column."""

ATTENTION_COLUMNS = {
    "batch": "batch",
    "heads": "heads_q",
    "kv_heads": "heads_kv",
    "sequence": "seq_q",
    "head_size": "head_dim",
}

BACKWARD_FLOP = 2.5
"""FLOPs of the backward pass of fused attention over those of the forward pass: five products
(one of them done again) against two."""

_FAMILIES = {
    "gemm": "gemm",
    "simumax_matmul": "gemm",
    "attention_prefill": "attention",
    "simumax_sdp_fwd": "attention",
    "simumax_sdp_bwd": "attention",
    "moe_grouped_ffn": "experts",
}

_NO_FORMULA = {
    "attention_decode": "attention of one token over a cache",
    "attention_bidirectional": "attention without a mask",
    "quantize_computescale": "scales of fp8 computed alone",
    "stream_read": "reading without a result",
    "stream_init_write": "writing without an operand",
    "stream_stencil3": "stencils",
    "stream_stencil5": "stencils",
}

_EXPERTS = re.compile(r"tp=([1-9]\d{0,5}) ep=([1-9]\d{0,5}) routing=(\S+)")
_16_BIT = ("fp16", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCalls:
    """One table, column by column; what the sieve has skipped is blank or NaN."""

    sieve: Sieve
    family: Texts
    """Which formula: gemm, attention, experts or stream."""
    device: Texts
    """Accelerator profile."""
    dtype: Texts
    """Type as the profiles call it."""
    library: Texts
    """Key of the family's table in the profile."""
    backward: Masks
    """The backward pass of attention."""
    shapes: Mapping[str, Shape]
    """By family."""
    flop: Floats
    """Of one call; NaN for memory-bound kernels."""
    measured_s: Floats
    accelerators: Mapping[str, Accelerator]


def read_kernels(table: Table, words: Words) -> KernelCalls:
    """Tell what each row of a table of kernel times is, and skip what cannot be priced."""
    sieve, kernel = Sieve(table), table.text("kernel")
    sieve.known("kernel", {*_FAMILIES, *_NO_FORMULA, *words.stream_classes})
    for name, what in _NO_FORMULA.items():
        sieve.skip(f"no formula for {what}", kernel == name)
    family = _mapped(kernel, _FAMILIES | dict.fromkeys(words.stream_classes, "stream"), other="")
    device = profiles(sieve, "accelerators", words.accelerators)
    accelerators = {name: load_accelerator(name) for name in np.unique(device[sieve.kept]).tolist()}
    sieve.refuse(table.text("dtype") == "", "dtype", "required field is blank")
    dtype = _mapped(table.text("dtype"), words.types)
    _skip_attention(sieve, family == "attention", dtype)
    library = _libraries(sieve, family, device, dtype, words, accelerators)
    backward = (kernel == "simumax_sdp_bwd") | (table.text("direction") == "bwd")
    shapes = {
        "gemm": _gemm(sieve, family == "gemm", dtype),
        "attention": _attention(sieve, family == "attention"),
        "experts": _experts(sieve, family == "experts"),
        "stream": {"moved_bytes": sieve.positive("bytes", family == "stream")},
    }
    calls = KernelCalls(
        sieve=sieve, family=family, device=device, dtype=dtype, library=library, backward=backward,
        shapes=shapes, flop=_flop(family, shapes, backward),
        measured_s=_seconds(sieve, shapes["attention"], backward), accelerators=accelerators,
    )  # fmt: skip
    _check_limits(calls)
    return calls


def _mapped(text: Texts, words: Mapping[str, str], *, other: str | None = None) -> Texts:
    """Each word by its meaning; one without is `other`, or stays as it is."""
    return np.array([words.get(w, w if other is None else other) for w in text.tolist()], dtype=str)


# --- device, type, library ---------------------------------------------------------------


def framework_name(framework: str) -> str:
    """A framework without its release and remarks.

    Examples
    --------
    >>> framework_name("trtllm/1.3.0rc20"), framework_name("vidur (torch/vllm/sarathi kernels)")
    ('trtllm', 'vidur')
    """
    return framework.partition(" (")[0].partition("/")[0]


def gemm_type(dtype: str) -> str:
    """Type whose figures a matrix product of `dtype` takes: fp16 runs at the rate of bf16."""
    return "bf16" if dtype == "fp16" else dtype


def _skip_attention(sieve: Sieve, rows: Masks, dtype: Texts) -> None:
    """Skip attention that the formula does not describe."""
    text = sieve.table.text
    sieve.skip("no formula for attention below 16 bit", rows & ~np.isin(dtype, _16_BIT))
    cache = np.char.find(text("impl"), "kv=fp8") >= 0
    sieve.skip("no formula for keys and values in fp8", rows & cache)
    sieve.skip("no formula for attention without a mask", rows & (text("causal") == "0"))
    differ = (text("seq_kv") != "") & (text("seq_kv") != text("seq_q"))
    sieve.skip("no formula for queries and keys of unequal length", rows & differ)


def _libraries(
    sieve: Sieve, family: Texts, device: Texts, dtype: Texts, words: Words,
    accelerators: Mapping[str, Accelerator],
) -> Texts:  # fmt: skip
    """Key of each row's figures in its profile; rows without figures are skipped."""
    columns = [sieve.table.text(name) for name in ("kernel", "impl", "framework")]
    library = np.full(len(family), "", dtype=object)
    for key, rows in list(groups(sieve.kept, family, device, dtype, *columns)):
        kind, name, number, *labels = key
        wanted, found = _figures(accelerators[name], kind, number, labels, words)
        library[rows] = found
        reason = f"no figures of {wanted} for {number} on {name}"
        sieve.skip(reason, (library == "") & sieve.table.at(rows))
    return np.asarray(library, dtype=str)


def _figures(
    accelerator: Accelerator, family: str, dtype: str, labels: list[str], words: Words
) -> tuple[str, str]:
    """Library or class that a call asks for, and the one whose figures it gets, blank if none.

    The same fall-backs as where training is priced (cost/blocks.py): another attention library
    runs like flash, another class of memory-bound kernel like elementwise ones.
    """
    kernel, impl, framework = labels
    if family == "stream":
        wanted = words.stream_classes[kernel]
        table, other = set(accelerator.stream), "elementwise"
    elif family == "attention":
        wanted = words.attention_libraries.get(impl.partition("/")[0], "flash")
        table, other = set(accelerator.attention), "flash"
    else:
        own, units = words.gemm_libraries, gemm_type(dtype)
        named = own.get(impl) or own.get(framework_name(framework) or impl)
        wanted = named or impl
        table = {library for library, types in accelerator.gemm.items() if units in types}
        # of 16 bit every library known here calls cuBLAS for most shapes
        other = "cublas" if named and units == "bf16" else ""
    if family != "stream" and dtype not in accelerator.matrix_flop_per_s:
        table = set()
    return wanted, next((name for name in (wanted, other) if name in table), "")


# --- sizes -------------------------------------------------------------------------------


def causal_flop(shape: Shape) -> Floats:
    """FLOPs of a forward call under a causal mask: half of two products over all pairs."""
    return 2.0 * shape["batch"] * shape["heads"] * shape["sequence"] ** 2 * shape["head_size"]


def attention_bytes(shape: Shape) -> Floats:
    """Bytes of a forward call in 16 bit: queries and result; keys and values, with their cache."""
    heads = 2.0 * shape["heads"] + 4.0 * shape["kv_heads"]
    return 2.0 * shape["batch"] * shape["sequence"] * shape["head_size"] * heads


def _gemm(sieve: Sieve, rows: Masks, dtype: Texts) -> Shape:
    """Sizes of a product; one that adds to its result in memory reads it as well."""
    shape = {name: sieve.positive(column, rows) for name, column in GEMM_COLUMNS.items()}
    impl = sieve.table.text("impl")
    wide = (np.char.find(impl, "out=fp32") >= 0) | np.isin(dtype, ("fp32", "tf32"))
    times = np.where(np.char.find(impl, "acc=True") >= 0, 2.0, 1.0)
    shape["batch"] = sieve.positive("batch", rows, blank=1.0)
    return shape | {"result_bytes": times * np.where(wide, 4.0, 2.0)}


def _attention(sieve: Sieve, rows: Masks) -> Shape:
    return {name: sieve.positive(column, rows) for name, column in ATTENTION_COLUMNS.items()}


def _experts(sieve: Sieve, rows: Masks) -> Shape:
    """Evenly routed tokens of one rank's experts; ``tp=T ep=E routing=balanced`` in the note."""
    named = ("tokens", "topk", "experts", "hidden", "inter")
    tokens, top_k, experts, hidden, inter = (sieve.positive(name, rows) for name in named)
    split = [_EXPERTS.search(note) for note in sieve.table.text("note").tolist()]
    tp, ep = (np.array([float(m[i]) if m else 1.0 for m in split]) for i in (1, 2))
    uneven = np.array([m is not None and m[3] != "balanced" for m in split])
    sieve.skip("no formula for uneven routing", rows & uneven)
    each = tokens * top_k / experts
    sieve.skip("no formula for less than one token to an expert", rows & (each < 1.0))
    sieve.skip("no formula for less than one expert to a rank", rows & (experts < ep))
    plain = np.char.find(sieve.table.text("impl"), "nongated") >= 0
    return {"tokens": each, "hidden": hidden, "ffn": inter / tp, "batch": experts / ep,
            "gated": np.where(plain, 0.0, 1.0), "all_tokens": tokens, "top_k": top_k}  # fmt: skip


def _flop(family: Texts, shapes: Mapping[str, Shape], backward: Masks) -> Floats:
    gemm, experts = shapes["gemm"], shapes["experts"]
    each = experts["tokens"] * experts["hidden"] * experts["ffn"] * (2.0 + experts["gated"])
    flop = {
        "gemm": 2.0 * gemm["batch"] * gemm["m"] * gemm["n"] * gemm["k"],
        "attention": causal_flop(shapes["attention"]) * np.where(backward, BACKWARD_FLOP, 1.0),
        "experts": 2.0 * experts["batch"] * each,
    }
    return np.select([family == name for name in flop], list(flop.values()), np.nan)


# --- times -------------------------------------------------------------------------------


def _seconds(sieve: Sieve, attention: Shape, backward: Masks) -> Floats:
    """Measured seconds; SimuMax states attention as a rate over the FLOPs without the mask."""
    text = sieve.table.text
    rated = np.char.startswith(text("kernel"), "simumax_sdp") & (text("time_us") == "")
    rate = sieve.positive("tflops", rated) * 1e12
    unmasked = 2.0 * causal_flop(attention) * np.where(backward, BACKWARD_FLOP, 1.0)
    return np.where(rated, unmasked / rate, sieve.positive("time_us", ~rated) * 1e-6)


def _check_limits(calls: KernelCalls) -> None:
    """Refuse calls that are faster than the matrix units or the memory of their device."""
    sieve, text = calls.sieve, calls.sieve.table.text
    least_s = np.full(len(calls.flop), np.nan)
    for (family, name, dtype), rows in groups(sieve.kept, calls.family, calls.device, calls.dtype):
        device = calls.accelerators[name]
        if family == "stream":
            moved = calls.shapes["stream"]["moved_bytes"][rows]
            least_s[rows] = moved / float(device.memory.bandwidth_bytes_per_s)
        else:
            least_s[rows] = calls.flop[rows] / float(device.matrix_flop_per_s[dtype])
    rated = text("time_us") == ""
    for column, rows in (("time_us", ~rated), ("tflops", rated)):
        refuse_impossible(sieve, column, rows, measured_s=calls.measured_s, least_s=least_s,
                          limit="dense peak or memory rate")  # fmt: skip
