"""Rows of a table of kernel times as calls that can be priced: shape, device, type, library.

What a row means is settled here: which product, which attention, which bytes, and how long it
took. Rows that there is no formula or no figures for are skipped with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from simulator.arrays import Bools, Floats
from simulator.hardware.accelerator import BACKWARD_FLOP, Accelerator
from simulator.hardware.cluster import load_accelerator
from simulator.measured.microbenchmarks import (
    Sieve,
    Table,
    Texts,
    Words,
    groups,
    profiles,
    refuse_impossible,
)
from simulator.records import dataclass

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

_WIDEST = 256.0
"""Heads that the libraries have a kernel of their own for."""

_PASSES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "both"}
_FLOP = {"forward": 1.0, "backward": BACKWARD_FLOP, "both": 1.0 + BACKWARD_FLOP}

_FAMILIES = {
    "gemm": "gemm",
    "attention_prefill": "attention",
    "attention_bidirectional": "attention",
    "attention_training": "attention",
    "moe_grouped_ffn": "experts",
}

_NO_FORMULA = {
    "attention_decode": "attention of one token over a cache",
    "stream_read": "reading without a result",
    "stream_init_write": "writing without an operand",
    "stream_stencil3": "stencils",
    "stream_stencil5": "stencils",
}

_OPERAND_BYTES = 2.0

_EXPERTS = re.compile(r"tp=([1-9]\d{0,5}) ep=([1-9]\d{0,5}) routing=(\S+)")
_VALUE_SIZE = re.compile(r"\bv_head_dim=([1-9]\d{0,4})\b")


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
    loaded: Bools
    """Timed back to back: at the clock of a training step."""
    passes: Texts
    """Of attention: forward, backward or both."""
    shapes: Mapping[str, Shape]
    """By family."""
    flop: Floats
    """Of one call; NaN for memory-bound kernels."""
    measured_s: Floats
    accelerators: Mapping[str, Accelerator]


def read_kernels(table: Table, words: Words) -> KernelCalls:
    """Tell what each row of a table of kernel times is, and skip what cannot be priced."""
    sieve, kernel = Sieve(table), table.text("kernel")
    families = {**_FAMILIES, **words.families, **dict.fromkeys(words.stream_classes, "stream")}
    sieve.known("kernel", {*families, *_NO_FORMULA})
    for name, what in _NO_FORMULA.items():
        sieve.skip(f"no formula for {what}", kernel == name)
    family = _mapped(kernel, families, other="")
    device = profiles(sieve, "accelerators", words.accelerators)
    accelerators = {name: load_accelerator(name) for name in np.unique(device[sieve.kept]).tolist()}
    sieve.refuse(table.text("dtype") == "", "dtype", "required field is blank")
    dtype = _mapped(table.text("dtype"), words.types)
    _skip_attention(sieve, family == "attention")
    library = _libraries(sieve, family, device, dtype, words, accelerators)
    passes = pass_of(table, words)
    shapes = {
        "gemm": _gemm(sieve, family == "gemm", dtype),
        "attention": attention_shape(sieve, family == "attention"),
        "experts": _experts(sieve, family == "experts"),
        "stream": stream_shape(sieve, family == "stream"),
    }
    calls = KernelCalls(
        sieve=sieve,
        family=family,
        device=device,
        dtype=dtype,
        library=library,
        loaded=family == _mapped(table.text("framework"), words.under_load, other="-"),
        passes=passes,
        shapes=shapes,
        flop=_flop(family, shapes, passes),
        measured_s=call_seconds(sieve, shapes["attention"], passes, words),
        accelerators=accelerators,
    )
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


_NEVER_CACHED = ("flash2",)
"""Libraries of training alone, without a cache that calls without a mask could do without."""


def attention_library(words: Words, impl: str, dtype: str, causal: str) -> str:
    """Key of the attention table for a call: its library, and what sets the call apart.

    Examples
    --------
    >>> from simulator.measured.microbenchmarks import load_words
    >>> words = load_words()
    >>> attention_library(words, "torch_flow/kv=fp8", "bf16", "1")
    'trtllm_fp8_cache'
    >>> attention_library(words, "vllm_vit_flash_attn_fa3", "bf16", "0")
    'fa3_varlen'
    """
    name = words.attention_libraries.get(impl.partition("/")[0], "flash")
    if dtype in ("fp8", "mxfp8"):
        return f"{name}_{dtype}"
    if impl.endswith("/kv=fp8"):
        return f"{name}_fp8_cache"
    return f"{name}_varlen" if causal == "0" and name not in _NEVER_CACHED else name


def gemm_type(dtype: str) -> str:
    """Type whose figures a GEMM of `dtype` takes: fp16 runs at the rate of bf16."""
    return "bf16" if dtype == "fp16" else dtype


def _skip_attention(sieve: Sieve, rows: Bools) -> None:
    """Skip attention that the formula does not describe."""
    text = sieve.table.text
    differ = (text("seq_kv") != "") & (text("seq_kv") != text("seq_q"))
    sieve.skip("no formula for queries and keys of unequal length", rows & differ)


def _libraries(
    sieve: Sieve,
    family: Texts,
    device: Texts,
    dtype: Texts,
    words: Words,
    accelerators: Mapping[str, Accelerator],
) -> Texts:
    """Key of each row's figures in its profile; rows without figures are skipped."""
    columns = [sieve.table.text(name) for name in ("kernel", "impl", "framework", "causal")]
    library = np.full(len(family), "", dtype=object)
    for key, rows in list(groups(sieve.kept, family, device, dtype, *columns)):
        kind, name, number, *labels = key
        wanted, known = _figures(accelerators[name], kind, number, labels, words)
        library[rows] = known
        if not known:
            sieve.skip(f"no figures of {wanted} for {number} on {name}", sieve.table.at(rows))
    return np.asarray(library, dtype=str)


def _figures(
    accelerator: Accelerator, family: str, dtype: str, labels: list[str], words: Words
) -> tuple[str, str]:
    """Library or class that a call asks for, and the one whose figures it gets, blank if none.

    The same fall-backs as where training is priced (cost/blocks/block_prices.py): another attention
    library in 16 bit runs like flash, another class of memory-bound kernel like elementwise ones.
    """
    kernel, impl, framework, causal = labels
    if family == "stream":
        wanted = words.stream_classes[kernel]
        table, other = set(accelerator.stream), "elementwise"
    elif family == "attention":
        wanted = attention_library(words, impl, dtype, causal)
        table, other = set(accelerator.attention), "" if "_" in wanted else "flash"
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


def _gemm(sieve: Sieve, rows: Bools, dtype: Texts) -> Shape:
    """Sizes of a product; one that adds to its result in memory reads it as well."""
    shape = {name: sieve.positive(column, rows) for name, column in GEMM_COLUMNS.items()}
    impl = sieve.table.text("impl")
    wide = (np.char.find(impl, "out=fp32") >= 0) | np.isin(dtype, ("fp32", "tf32"))
    times = np.where(np.char.find(impl, "acc=True") >= 0, 2.0, 1.0)
    shape["batch"] = sieve.positive("batch", rows, blank=1.0)
    return shape | {"result_bytes": times * np.where(wide, 4.0, 2.0)}


def attention_shape(sieve: Sieve, rows: Bools) -> Shape:
    """Sizes of fused attention: values are as wide as keys unless the note says otherwise."""
    size = {name: sieve.positive(column, rows) for name, column in ATTENTION_COLUMNS.items()}
    sieve.skip("no formula for heads wider than 256", rows & (size["head_size"] > _WIDEST))
    noted = [_VALUE_SIZE.search(note) for note in sieve.table.text("note").tolist()]
    value = np.array([float(m[1]) if m else np.nan for m in noted])
    value = np.where(np.isnan(value), size["head_size"], value)
    unmasked = sieve.table.text("causal") == "0"
    width = _OPERAND_BYTES * size["batch"] * size["sequence"] * (size["head_size"] + value)
    return {
        "heads": size["batch"] * size["heads"],
        "queries": size["sequence"],
        "keys": size["sequence"] * np.where(unmasked, 1.0, 0.5),
        "span": size["sequence"],
        "score_size": size["head_size"],
        "value_size": value,
        "query_bytes": width * size["heads"],
        "key_bytes": width * size["kv_heads"],
    }


def unmasked_flop(shape: Shape, passes: Texts) -> Floats:
    """FLOPs of attention that counts every pair of a query and a key, masked or not."""
    pairs = shape["heads"] * shape["queries"] * shape["span"]
    times = np.array([_FLOP[name] for name in passes.tolist()])
    return 2.0 * times * pairs * (shape["score_size"] + shape["value_size"])


def stream_shape(sieve: Sieve, rows: Bools) -> Shape:
    """Bytes of memory-bound kernels: of the whole call, and of each of its M rows if known."""
    moved = sieve.positive("bytes", rows)
    each = moved / sieve.positive("M", rows & (sieve.table.text("M") != ""))
    return {"moved_bytes": moved, "row_bytes": np.where(np.isnan(each), 0.0, each)}


def _experts(sieve: Sieve, rows: Bools) -> Shape:
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
    return {
        "tokens": each,
        "hidden": hidden,
        "ffn": inter / tp,
        "batch": experts / ep,
        "gated": np.where(plain, 0.0, 1.0),
        "all_tokens": tokens,
        "all_experts": experts,
        "top_k": top_k,
    }


def _flop(family: Texts, shapes: Mapping[str, Shape], passes: Texts) -> Floats:
    gemm, experts, attention = shapes["gemm"], shapes["experts"], shapes["attention"]
    each = experts["tokens"] * experts["hidden"] * experts["ffn"] * (2.0 + experts["gated"])
    seen = attention["keys"] / attention["span"]
    flop = {
        "gemm": 2.0 * gemm["batch"] * gemm["m"] * gemm["n"] * gemm["k"],
        "attention": seen * unmasked_flop(attention, passes),
        "experts": 2.0 * experts["batch"] * each,
    }
    return np.select([family == name for name in flop], list(flop.values()), np.nan)


# --- times -------------------------------------------------------------------------------


def pass_of(table: Table, words: Words) -> Texts:
    """Which passes a row timed: forward unless it says otherwise."""
    timed = zip(table.text("kernel").tolist(), table.text("direction").tolist(), strict=True)
    passes = [words.unmasked_rates.get(kernel, _PASSES.get(word)) for kernel, word in timed]
    return np.array([name or "forward" for name in passes], dtype=str)


def call_seconds(sieve: Sieve, attention: Shape, passes: Texts, words: Words) -> Floats:
    """Measured seconds; attention in training may be stated as a rate.

    Some count the FLOPs without the mask (`Words.unmasked_rates`), papers (``attention_training``)
    those with it.
    """
    text = sieve.table.text
    training = text("kernel") == "attention_training"
    rated = np.isin(text("kernel"), [*words.unmasked_rates]) | training
    rated = rated & (text("time_us") == "")
    rate = sieve.positive("tflops", rated) * 1e12
    counted = unmasked_flop(attention, passes)
    counted = np.where(training, counted * attention["keys"] / attention["span"], counted)
    return np.where(rated, counted / rate, sieve.positive("time_us", ~rated) * 1e-6)


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
        refuse_impossible(
            sieve,
            column,
            rows,
            measured_s=calls.measured_s,
            least_s=least_s,
            limit="dense peak or memory rate",
        )
