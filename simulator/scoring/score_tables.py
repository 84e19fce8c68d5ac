"""Tables of microbenchmarks, whatever they hold, predicted and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.collectives.calls import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcasts_s,
    one_way_send_s,
    reduce_scatter_s,
    send_s,
)
from simulator.cost.collectives.dispatch import dispatch_s
from simulator.cost.kernels.expert_layer import expert_layer_s
from simulator.cost.kernels.flash_attention import attention_s
from simulator.cost.kernels.gemm import device_rates, gemm_s
from simulator.cost.kernels.memory_bound import stream_figures, stream_s
from simulator.cost.kernels.residual import attention_sizes, residual_factor
from simulator.cost.operators.mlp import FeedForward, feed_forward
from simulator.errors import InputError
from simulator.hardware.accelerator import Accelerator
from simulator.hardware.cluster import Cluster, with_release
from simulator.hardware.residuals import SIZES, TimedShapes, load_residuals
from simulator.layout.placement import Group
from simulator.measured.collective_calls import (
    DEEPEP_MOST_SERVERS,
    CollectiveCalls,
    read_a2a,
    read_collectives,
)
from simulator.measured.kernel_calls import (
    KernelCalls,
    Shape,
    framework_name,
    gemm_type,
    read_kernels,
)
from simulator.measured.microbenchmarks import Table, Texts, Words, groups, load_words, read_table
from simulator.measured.table_kinds import sort_tables
from simulator.scoring.benchmark_score import (
    BenchmarkKind,
    BenchmarkScore,
    score,
    size_decade,
    summaries,
)
from simulator.software.kernels import Kernels

# --- kernels -----------------------------------------------------------------------------

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
        own = _take(shape, rows)
        sizes: dict[str, Any] = {name: own[name] for name in ("tokens", "hidden", "ffn", "batch")}
        ops = feed_forward(FeedForward(name="expert fc", gated=gated, **sizes), 2.0, _FUSED)
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


# --- collectives -------------------------------------------------------------------------


def _broadcast_s(cluster: Cluster, size_bytes: Any, group: Group) -> Floats:
    """Time of one broadcast, or of one reduction to a root, which is a broadcast backwards."""
    return broadcasts_s(cluster, np.asarray(size_bytes) * group.size, group) / group.size


_FORMULAS: dict[str, Callable[[Cluster, Any, Group], Floats]] = {
    "all_gather": all_gather_s,
    "all_to_all": all_to_all_s,
    "broadcast": _broadcast_s,
    "reduce": _broadcast_s,
}
_REDUCTIONS: dict[str, Callable[..., Floats]] = {
    "all_reduce": all_reduce_s,
    "reduce_scatter": reduce_scatter_s,
}
_SENDS: dict[str, Callable[[Cluster, Any, Any], Floats]] = {
    "send": send_s,
    "one_way_send": one_way_send_s,
}
_EXPERTS = {"dispatch": "deepep", "low_latency_dispatch": "deepep_low_latency"}


def score_collectives(table: Table, words: Words) -> BenchmarkScore:
    """Predict a table of times of collectives."""
    return _score("collectives", read_collectives(table, words))


def score_a2a(table: Table, words: Words) -> BenchmarkScore:
    """Predict a table of times of expert dispatch and combine."""
    return _score("a2a", read_a2a(table, words))


def _score(kind: BenchmarkKind, calls: CollectiveCalls) -> BenchmarkScore:
    predicted_s = np.full(len(calls.size_bytes), np.nan)
    servers = calls.group.domains
    labels = (
        calls.cluster,
        calls.operation,
        calls.copies.astype(str),
        calls.experts.astype(str),
        calls.release,
        calls.label,
        servers.astype(str),
    )
    for (name, operation, copies, experts, release, label, nodes), rows in groups(
        calls.sieve.kept, *labels
    ):
        cluster = with_release(calls.clusters[name], release)
        routed = (int(copies), int(experts), label, int(nodes))
        call_s = _call_s(cluster, calls, operation, rows, routed)
        predicted_s[rows] = np.maximum(call_s, _starts_s(cluster, calls, operation, rows))
    return score(
        kind,
        calls.sieve,
        predicted_s=predicted_s,
        measured_s=calls.measured_s,
        device=calls.cluster,
        library=calls.library,
        dtype=calls.dtype,
        kernel=calls.label,
        decade=size_decade(calls.size_bytes, "bytes"),
    )


def _call_s(
    cluster: Cluster,
    calls: CollectiveCalls,
    operation: str,
    rows: Ints,
    routed: tuple[int, int, str, int],
) -> Floats:
    """Seconds of rows of one operation; `routed`: copies, experts, the way, servers."""
    size_bytes, group = calls.size_bytes[rows], calls.group.take(rows)
    if operation in _SENDS:
        return _SENDS[operation](cluster, size_bytes, group.local < group.size)
    if operation in _EXPERTS:
        copies, experts, way, nodes = routed
        most = DEEPEP_MOST_SERVERS if operation == "dispatch" else nodes
        return dispatch_s(
            cluster,
            size_bytes,
            copies,
            group,
            experts=experts,
            way=way,
            library=_EXPERTS[operation],
            units=calls.units[rows],
            groups=nodes,
            row_bytes=calls.row_bytes[rows],
            top_groups=min(nodes, most),
        )
    if operation in _REDUCTIONS:
        integer = calls.dtype[rows] == "int8"
        return _REDUCTIONS[operation](cluster, size_bytes, group, integer=integer)
    return _FORMULAS[operation](cluster, size_bytes, group)


def _starts_s(cluster: Cluster, calls: CollectiveCalls, operation: str, rows: Ints) -> Floats:
    """What host threads take to start calls on several accelerators each; nothing with one each."""
    library, starts = cluster.library, calls.starts[rows]
    messages = 2.0 * calls.group.size[rows] if operation == "all_to_all" else 0.0
    each_s = float(library.enqueue_s) + float(library.enqueue_peer_s) * messages
    return np.where(starts > 1.0, starts * each_s, 0.0)


__all__ = ["BenchmarkScore", "summaries"]

_SCORERS: dict[BenchmarkKind, Callable[[Table, Words], BenchmarkScore]] = {
    "kernels": score_kernels,
    "collectives": score_collectives,
    "a2a": score_a2a,
}


def score_microbenchmarks(paths: Iterable[Path | str]) -> tuple[BenchmarkScore, ...]:
    """Predict every row of tables of microbenchmarks, and score the predictions.

    Parameters
    ----------
    paths : iterable of paths
        CSV files as validation/microbenchmarks/README.md describes them. Which kind of table each
        one is, its header tells.

    Returns
    -------
    tuple of BenchmarkScore
        One per table: those of kernels first, then collectives, then expert all-to-all. Rows that
        cannot be predicted are counted with the reason.

    Raises
    ------
    InputError
        If a file is no table, or one of measured runs.

    Examples
    --------
    >>> from simulator import catalogue
    >>> folder = catalogue.folder("validation") / "microbenchmarks"
    >>> (found,) = score_microbenchmarks([folder / "collectives.csv"])
    >>> found.kind, found.rows == len(found.line) + sum(found.skipped.values())
    ('collectives', True)
    """
    tables, problems = sort_tables(paths)
    wrong = tables.get("runs", [])
    problems += [f"{path}: is a table of measured runs, not of microbenchmarks" for path in wrong]
    if problems:
        raise InputError(problems)
    words = load_words()
    return tuple(
        scorer(read_table(path, kind), words)
        for kind, scorer in _SCORERS.items()
        for path in tables.get(kind, [])
    )
