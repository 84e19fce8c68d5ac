"""Predicted against measured times of kernels, by the formulas that price training steps."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.kernels.expert_layer import expert_layer_s
from simulator.cost.kernels.flash_attention import attention_s
from simulator.cost.kernels.gemm import device_rates, gemm_s
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.cost.kernels.residual import attention_sizes, residual_factor
from simulator.cost.operators.mlp import FeedForward, feed_forward
from simulator.cost.operators.operations import Operators
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.residuals import SIZES, TimedShapes, load_residuals
from simulator.measured.kernel_calls import (
    KernelCalls,
    Shape,
    framework_name,
    gemm_type,
    read_kernels,
)
from simulator.measured.microbenchmarks import Table, Texts, Words, groups
from simulator.scoring.benchmark_score import BenchmarkScore, score, size_decade
from simulator.software.kernels import Kernels

_FUSED = Kernels(gemm_library="", attention="flash", fused=("bias_activation",))
"""Timed expert layers run their activation as one kernel."""

_LAYER_SIZES = ("hidden", "ffn", "gated", "all_tokens", "all_experts", "top_k")


def score_kernels(table: Table, words: Words) -> BenchmarkScore:
    """Predict a table of kernel times, each call at the clock of a short burst."""
    calls = read_kernels(table, words)
    stream = calls.family == "stream"
    size = np.where(stream, calls.shapes["stream"]["moved_bytes"], calls.flop)
    flop, moved = size_decade(size, "FLOP"), size_decade(size, "bytes")
    return score(
        "kernels",
        calls.sieve,
        predicted_s=_predict(calls),
        measured_s=calls.measured_s,
        device=calls.device,
        library=_labels(table),
        dtype=calls.dtype,
        kernel=_kernels(table),
        decade=np.where(stream, moved, flop),
    )


def _labels(table: Table) -> Texts:
    """Framework without its release, and the kernel that it says it ran."""
    pairs = zip(table.text("framework").tolist(), table.text("impl").tolist(), strict=True)
    return np.array([f"{framework_name(framework)} {impl}".strip() for framework, impl in pairs])


def _kernels(table: Table) -> Texts:
    """Kernel, and the direction where a product is one of the backward pass."""
    direction = table.text("direction")
    backward = np.isin(direction, ("dgrad", "wgrad"))
    return np.char.add(table.text("kernel"), np.where(backward, np.char.add(" ", direction), ""))


def _predict(calls: KernelCalls) -> Floats:
    predicted_s = np.full(len(calls.flop), np.nan)
    loaded = calls.loaded.astype(str)
    labels = (calls.family, calls.device, calls.dtype, calls.library, calls.passes, loaded)
    for (family, name, dtype, library, passes, load), rows in groups(calls.sieve.kept, *labels):
        device = calls.accelerators[name]
        shape = _take(calls.shapes[family], rows)
        if family == "gemm":
            hot = load == str(True)
            predicted_s[rows] = _gemm_s(device, dtype, library, sustained=hot, **shape)
            if hot:  # as steps are priced, without what timings of bursts leave over
                continue
        elif family == "attention":
            predicted_s[rows] = _attention_s(device, dtype, library, shape, passes)
        elif family == "experts":
            predicted_s[rows] = _experts_s(device, dtype, library, shape)
        else:
            predicted_s[rows] = stream_s(**shape, **stream_figures(device, library))
        if family in SIZES and passes == "forward":
            timed = load_residuals(name, family).get((library, gemm_type(dtype)))
            predicted_s[rows] *= _near_timed(timed, shape) if timed is not None else 1.0
    return predicted_s


def _take(shape: Shape, rows: Ints) -> dict[str, Floats]:
    return {name: column[rows] for name, column in shape.items()}


def _gemm_s(
    device: Accelerator, dtype: str, library: str, *, sustained: bool = False, **shape: Any
) -> Floats:
    kernel = device.gemm[library][gemm_type(dtype)]
    return gemm_s(device_rates(device, dtype), kernel, **shape, sustained=sustained)


def _near_timed(timed: TimedShapes, shape: Shape) -> Floats:
    """Factor by what was timed near each call; batches of products were not timed.

    Of attention it is for forward calls: on the two devices that timed both passes, what the
    formula leaves over in one does not tell of the other.
    """
    if timed.kernel == "attention":
        return residual_factor(timed, **attention_sizes(shape))
    if timed.kernel == "experts":
        return residual_factor(timed, **{**shape, "experts": shape["batch"]})
    factor = residual_factor(timed, m=shape["m"], n=shape["n"], k=shape["k"])
    return np.where(shape["batch"] == 1.0, factor, 1.0)


def _attention_s(
    device: Accelerator, dtype: str, library: str, shape: Shape, passes: str
) -> Floats:
    rates, kernel = device_rates(device, dtype), device.attention[library]
    backward = {"forward": (False,), "backward": (True,), "both": (False, True)}[passes]
    return np.asarray(
        sum(attention_s(rates, kernel, **shape, backward=b, sustained=False) for b in backward)
    )


def _experts_s(device: Accelerator, dtype: str, library: str, shape: Shape) -> Floats:
    """The layer as it was timed; without figures of it, two batched products and an activation."""
    kernel = device.gemm[library][gemm_type(dtype)]
    layer = device.grouped.get(library, {}).get(gemm_type(dtype))
    if layer is not None:
        return expert_layer_s(
            tokens=shape["tokens"],
            experts=shape["batch"],
            **{name: shape[name] for name in _LAYER_SIZES},
            rates=device_rates(device, dtype),
            figures={field.name: float(getattr(layer, field.name)) for field in fields(layer)},
            sustained_fraction=float(kernel.sustained_fraction),
            clock_exponent=float(kernel.clock_exponent),
        )
    total_s = np.empty(len(shape["tokens"]))
    for gated in (False, True):
        rows = np.flatnonzero(shape["gated"] == float(gated))
        if not len(rows):
            continue
        ops, own = Operators(), _take(shape, rows)
        sizes: dict[str, Any] = {name: own[name] for name in ("tokens", "hidden", "ffn", "batch")}
        feed_forward(ops, FeedForward(name="expert fc", gated=gated, **sizes), 2.0, _FUSED)
        parts = [
            _gemm_s(
                device,
                dtype,
                library,
                m=np.ceil(g.m),
                n=np.ceil(g.n),
                k=np.ceil(g.k),
                batch=np.ceil(g.batch),
                result_bytes=2.0,
            )
            for g in ops.gemms
        ]
        parts += [
            stream_s(moved_bytes=s.forward_bytes, calls=s.calls, **stream_figures(device, s.kind))
            for s in ops.streams
        ]
        total_s[rows] = np.sum(parts, axis=0)
    return total_s
