"""Timed calls of one accelerator as classes, each with the figures of a profile that it can fit.

The one place that knows which record of a document belongs to which table of a profile, and which
formula of ``cost/`` prices it. A figure without a prior here stays as the base profile has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.calibration.least_squares import Model, Prior, Rows
from simulator.cost.kernels.flash_attention import attention_s
from simulator.cost.kernels.gemm import device_rates, gemm_s
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.hardware.accelerator import BACKWARD_FLOP, Accelerator
from simulator.measured.measurements import Call
from simulator.records import dataclass

Skipped = dict[str, int]
"""Reason -> calls that no class takes."""


@dataclass(frozen=True, kw_only=True)
class FitClass:
    """Calls that one table of a profile prices."""

    name: str
    """``gemm bf16``, ``attention sdpa backward``, ``memory-bound norm``, ..."""
    path: tuple[str, ...]
    """Table of the profile."""
    rows: Rows
    places: tuple[str, ...]
    """File and record of each row."""
    parts: tuple[str, ...]
    """Direction of each row, for the table of errors."""
    scored: np.ndarray[Any, np.dtype[np.bool_]]
    """Rows large enough for their errors to count."""
    least_s: Floats
    """What no device can beat: FLOPs over the peak, bytes over the bandwidth."""
    base: Mapping[str, float]
    """Figures of the base profile."""
    priors: Mapping[str, Prior]
    """Figures to fit; centred at the base profile."""
    predict: Model
    headline: str
    """The figure that carries the spread of the fit."""


WIDTHS = {
    "launch_s": Prior(value=0.0, width=0.4, low=0.2e-6, high=1e-3),
    "peak_fraction": Prior(value=0.0, width=0.15, low=0.02, high=1.05),
    "sustained_fraction": Prior(value=0.0, width=0.1, low=0.4, high=1.0),
    "memory_fraction": Prior(value=0.0, width=0.15, low=0.02, high=1.05),
    "prologue_k": Prior(value=0.0, width=0.5, low=10.0, high=3000.0),
    "wave_quantisation": Prior(value=0.0, width=0.4, low=0.0, high=1.0, linear=True),
    "small_tile_penalty": Prior(value=0.0, width=0.2, low=0.0, high=3.0, linear=True),
    "split_k_s": Prior(value=0.0, width=0.4, low=0.2e-6, high=500e-6),
    "l2_refetch": Prior(value=0.0, width=0.6, low=0.0, high=5.0, linear=True),
    "prologue_keys": Prior(value=0.0, width=0.5, low=5.0, high=5000.0),
    "backward_fraction": Prior(value=0.0, width=0.2, low=0.2, high=1.25),
}
"""How far a device may lie from its base, by figure, and hard bounds."""

_GEMM_LIBRARY = "cublas"
"""What torch calls for its products."""
_BLOCK_SCALED = ("fp8_blockwise", "nvfp4")
"""Types whose kernels never split the reduction."""

ATTENTION_LIBRARIES = {"torch.sdpa-flash": "sdpa", "torch.sdpa-cudnn": "flash"}
"""Library of a record -> of the profile; Transformer Engine takes cuDNN's kernels."""

STREAM_CLASSES = {
    "copy": "copy",
    "cast_to_fp32": "copy",
    "cast_to_bf16": "copy",
    "residual_add": "elementwise",
    "gelu": "elementwise",
    "dropout": "elementwise",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "softmax": "softmax",
    "adamw": "optimizer",
}
"""Memory-bound kernel -> class. Operators that torch runs as several kernels are not among them."""

_CPU_CLASSES = {**STREAM_CLASSES, "gelu": "activation", "cross_entropy": "loss"}
"""On a CPU activations are slower than sums, and all operators of a loss are timed as one call."""

_LARGE, _LONG, _FULL_WAVES, _STREAM_SCORED, _STREAM_LEAST = 512.0, 1024.0, 2.0, 1e7, 1e6
_HEAD = 128.0
_ATTENTION_SIZES = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")


def accelerator_classes(calls: Iterable[Call], base: Accelerator) -> tuple[list[FitClass], Skipped]:
    """Sort calls into the classes of an accelerator profile; the rest is counted by reason."""
    sorted_calls: dict[tuple[str, ...], list[Call]] = {}
    skipped: Skipped = {}
    for call in calls:
        key, reason = _key(call, base)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            sorted_calls.setdefault(key, []).append(call)
    makers = {"gemm": _gemm, "attention": _attention, "stream": _stream}
    order = sorted(sorted_calls, key=lambda key: (key[:2], "backward" in key, key))
    return [makers[key[0]](key, sorted_calls[key], base) for key in order], skipped


def _key(call: Call, base: Accelerator) -> tuple[tuple[str, ...], str]:
    """Return the class of a call, or the reason why it has none."""
    if call.kernel == "gemm":
        return _gemm_key(call, base)
    if call.kernel == "attention":
        return _attention_key(call, base)
    classes = _CPU_CLASSES if _is_cpu(base) else STREAM_CLASSES
    if call.kernel in classes:
        kind = classes[call.kernel]
        if kind not in base.stream:
            return (), f"the base has no stream.{kind}"
        if call.kernel == "adamw" and call.library != "fused":
            return (), "AdamW in more than one kernel"
        if _in_step(call):
            return ("stream", kind), ""
        if not call.cold:
            return (), "memory-bound, but the data may have been in the cache"
        if call.moved_bytes is None or call.moved_bytes < _STREAM_LEAST:
            return (), "memory-bound and below 1 MB"
        return ("stream", kind), ""
    return (), f"{call.kernel}: no figures of an accelerator profile follow from it"


def _is_cpu(base: Accelerator) -> bool:
    return base.generation == "cpu"


def _in_step(call: Call) -> bool:
    """Whether a call was timed at the size and with the caches of the step that it is for."""
    return call.note.get("in_step") is True


def _gemm_key(call: Call, base: Accelerator) -> tuple[tuple[str, ...], str]:
    dtype = "bf16" if call.dtype == "fp16" and "bf16" in base.matrix_flop_per_s else call.dtype
    types = base.gemm.get(_GEMM_LIBRARY, {})
    if dtype not in types or dtype not in base.matrix_flop_per_s:
        return (), f"gemm {call.dtype}: the base has no such type"
    if not all(call.shape.get(name, 0.0) >= 1.0 for name in "mnk"):
        return (), "gemm without m, n and k"
    if call.note.get("scaling") == "row":
        return (), "gemm fp8 with a scale for every row"
    if call.note.get("output"):
        return (), "gemm with a result of another type"
    return ("gemm", _GEMM_LIBRARY, dtype), ""


def _attention_key(call: Call, base: Accelerator) -> tuple[tuple[str, ...], str]:
    library = ATTENTION_LIBRARIES.get(call.library, "")
    shape = call.shape
    if library not in base.attention:
        return (), f"attention by {call.library or 'a library without a name'}"
    if call.dtype not in (("fp32",) if _is_cpu(base) else ("bf16", "fp16")):
        return (), f"attention in {call.dtype}"
    if not all(shape.get(name, 0.0) >= 1.0 for name in _ATTENTION_SIZES):
        return (), f"attention without {', '.join(_ATTENTION_SIZES)}"
    if not shape.get("causal") or shape.get("seq_q") != shape.get("seq_kv"):
        return (), "attention without a causal mask"
    if call.direction not in ("forward", "backward"):
        return (), f"attention, {call.direction}"
    if _in_step(call):
        return ("attention", library, call.direction), ""
    if shape.get("head_dim") != _HEAD or shape.get("head_dim_v", _HEAD) != _HEAD:
        return (), "attention with heads of another size than 128"
    tiles = shape["batch"] * shape["heads_q"] * np.ceil(shape["seq_q"] / 128.0)
    if shape["seq_q"] < _LONG or tiles < _FULL_WAVES * base.compute_units:
        return (), "attention too short or too small to fill the device"
    return ("attention", library, call.direction), ""


# --- classes --------------------------------------------------------------------------------


def _made(
    name: str,
    path: tuple[str, ...],
    calls: Sequence[Call],
    rows: Rows,
    *,
    scored: Any,
    least_s: Floats,
    table: Any,
    fitted: Iterable[str],
    predict: Callable[..., Floats],
    headline: str,
    parts: Sequence[str],
) -> FitClass:
    base = {f.name: float(getattr(table, f.name)) for f in dataclasses.fields(table)}
    priors = {}
    for figure in fitted:
        like = WIDTHS[figure]
        centre = min(max(base[figure], like.low), like.high)
        priors[figure] = dataclasses.replace(like, value=centre)
    return FitClass(
        name=name,
        path=path,
        rows=rows,
        places=tuple(call.place for call in calls),
        parts=tuple(parts),
        scored=np.asarray(scored, dtype=bool),
        least_s=least_s,
        base=base,
        priors=priors,
        headline=headline,
        predict=lambda values, rows: predict({**base, **values}, rows),
    )


def _are_in_step(calls: Sequence[Call]) -> Any:
    return np.array([_in_step(call) for call in calls])


def _seconds(calls: Sequence[Call]) -> Floats:
    return np.array([call.seconds for call in calls])


def _sizes(calls: Sequence[Call], names: Mapping[str, str]) -> Rows:
    return {
        key: np.array([call.shape.get(name, 1.0) for call in calls]) for key, name in names.items()
    }


def _gemm(key: tuple[str, ...], calls: Sequence[Call], base: Accelerator) -> FitClass:
    """Products: figures of all three directions together."""
    _, library, dtype = key
    rates = device_rates(base, dtype)
    rows = _sizes(calls, {name: name for name in "mnk"}) | {"seconds": _seconds(calls)}
    table = base.gemm[library][dtype]
    known = {field.name for field in dataclasses.fields(table)} & set(WIDTHS)
    known -= {"split_k_s"} if dtype in _BLOCK_SCALED else set()
    known -= {"split_k_s", "sustained_fraction"} if _is_cpu(base) else set()
    fixed: dict[str, float] = {}
    if getattr(table, "quantise_bytes_per_element", 0.0):
        # The profile's calls cast an operand; these have it cast, and start as 16-bit products do.
        launch_s = float(base.gemm[library][base.sixteen_bit].launch_s)
        fixed = {"quantise_bytes_per_element": 0.0, "launch_s": launch_s}

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        sizes = {name: rows[name] for name in "mnk"}
        result = 4.0 if dtype in ("fp32", "tf32") else 2.0
        figures: dict[str, Any] = {**values, **fixed}
        kernel = dataclasses.replace(table, **figures)
        return gemm_s(rates, kernel, **sizes, result_bytes=result, sustained=False)

    smallest = np.minimum(np.minimum(rows["m"], rows["n"]), rows["k"])
    flop = 2.0 * rows["m"] * rows["n"] * rows["k"]
    return _made(
        f"gemm {dtype}",
        key,
        calls,
        rows,
        scored=(smallest >= _LARGE) | _are_in_step(calls),
        least_s=flop / rates.peak_flop_per_s,
        table=table,
        predict=predict,
        fitted=sorted(known - set(fixed)),
        headline="peak_fraction",
        parts=[call.direction or "forward" for call in calls],
    )


def _attention(key: tuple[str, ...], calls: Sequence[Call], base: Accelerator) -> FitClass:
    """Fused attention; the backward pass fits its rate over the forward pass of the base."""
    _, library, direction = key
    names = {
        "batch": "batch",
        "heads": "heads_q",
        "kv": "heads_kv",
        "sequence": "seq_q",
        "head": "head_dim",
    }
    rows = _sizes(calls, names) | {"seconds": _seconds(calls)}
    dtype, size = ("fp32", 4.0) if _is_cpu(base) else (base.sixteen_bit, 2.0)
    rates, kernel = device_rates(base, dtype), base.attention[library]
    backward = direction == "backward"

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        heads, length = rows["batch"] * rows["heads"], rows["sequence"]
        one = 2.0 * rows["head"] * length * size  # two tensors
        sizes = {
            "heads": heads,
            "queries": length,
            "keys": length / 2.0,
            "span": length,
            "score_size": rows["head"],
            "value_size": rows["head"],
            "query_bytes": heads * one,
            "key_bytes": rows["batch"] * rows["kv"] * one,
        }
        figures: dict[str, Any] = dict(values)
        fitted = dataclasses.replace(kernel, **figures)
        return attention_s(rates, fitted, **sizes, backward=backward, sustained=False)

    flop = 2.0 * rows["batch"] * rows["heads"] * rows["sequence"] ** 2 * rows["head"]
    least_s = (BACKWARD_FLOP if backward else 1.0) * flop / rates.peak_flop_per_s
    headline = "backward_fraction" if backward else "peak_fraction"
    return _made(
        f"attention {library} {direction}",
        key[:2],
        calls,
        rows,
        scored=np.ones(len(calls)),
        least_s=least_s,
        table=base.attention[library],
        predict=predict,
        fitted=[headline] if backward else ["peak_fraction", "prologue_keys"],
        headline=headline,
        parts=[direction] * len(calls),
    )


def _stream(key: tuple[str, ...], calls: Sequence[Call], base: Accelerator) -> FitClass:
    device = stream_figures(base, key[1])
    moved = np.array([float(call.moved_bytes or 0.0) for call in calls])
    rows = {"moved_bytes": moved, "seconds": _seconds(calls)}

    def predict(values: Mapping[str, float], rows: Rows) -> Floats:
        return stream_s(moved_bytes=rows["moved_bytes"], **{**device, **values})

    return _made(
        f"memory-bound {key[1]}",
        key,
        calls,
        rows,
        scored=(moved >= _STREAM_SCORED) | _are_in_step(calls),
        least_s=moved / device["bandwidth_bytes_per_s"],
        table=base.stream[key[1]],
        predict=predict,
        fitted=["launch_s", "memory_fraction"],
        headline="memory_fraction",
        parts=[call.direction or "forward" for call in calls],
    )
