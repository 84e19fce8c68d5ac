"""A layout for people: each of its choices in words, and what the word means.

``Layouts.describe`` has the short form; this one stands beside it and where the pointer rests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulator.layout.layouts import dealt_words
from simulator.records import dataclass
from simulator.schedules.registry import SCHEDULES


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One choice of a layout."""

    short: str
    """As ``describe`` writes it: ``vpp10``."""
    plain: str
    """``10 virtual stages``."""
    meaning: str


_SHARDED = {
    "ddp": ("no ZeRO", "each replica keeps all gradients and optimizer states"),
    "zero1": ("ZeRO-1", "optimizer states are split over the replicas"),
    "zero2": ("ZeRO-2", "gradients and optimizer states are split over the replicas"),
    "zero3": ("ZeRO-3", "weights, too, are split over the replicas and gathered block by block"),
}

_KEYS_TRAVEL = {
    "all_gather": ("keys and values gathered", "how they travel among the GPUs of a sequence"),
    "all_to_all": ("all-to-all (Ulysses)", "sequences are exchanged for heads around attention"),
    "hierarchical": (
        "all-to-all in groups of {}",
        "sequences are exchanged for heads inside, a ring goes beyond",
    ),
}

_RECOMPUTED = {
    "selective": "outputs of these modules are computed again in the backward pass, to save memory",
    "full": "whole blocks are computed again in the backward pass, to save memory",
}


def layout_choices(row: Mapping[str, Any]) -> list[Choice]:
    """List the choices of a layout (``Layouts.row``), degrees of 1 left out.

    >>> from simulator.layout.layouts import Layouts
    >>> [c.plain for c in layout_choices(Layouts.of(tp=4, dp=2, sequence_parallel=True).row())]
    ['TP 4', 'DP 2', 'micro-batch 1', 'sequence parallel', 'no ZeRO']
    """
    every = (*_degrees(row), *_pipeline(row), *_replicas(row), *_saved_memory(row))
    return [Choice(short=short, plain=plain, meaning=meaning) for short, plain, meaning in every]


def plain_layout(row: Mapping[str, Any]) -> str:
    """Write a layout in a line: ``TP 4, PP 4 (10 virtual stages), DP 64, micro-batch 1, ZeRO-1``.

    >>> from simulator.layout.layouts import Layouts
    >>> plain_layout(Layouts.of(pp=2, vpp=2, dp=8, stages=(1, 2, 2, 1), sharding="zero1").row())
    'PP 2 (2 virtual stages, layers 1 + 2 of 2 + 1), DP 8, micro-batch 1, ZeRO-1'
    """
    words, inside = list[str](), list[str]()
    for choice in layout_choices(row):
        if choice.short.startswith(("vpp", "stages:")):
            inside.append(choice.plain)
            continue
        if inside:
            words[-1] += f" ({', '.join(inside)})"
            inside = []
        words.append(choice.plain)
    return ", ".join(words)


_Triple = tuple[str, str, str]


def _degrees(row: Mapping[str, Any]) -> Iterator[_Triple]:
    if row["tp"] > 1:
        yield f"tp{row['tp']}", f"TP {row['tp']}", "each layer is split over so many GPUs"
    if row["cp"] > 1:
        yield f"cp{row['cp']}", f"CP {row['cp']}", "each sequence is split over so many GPUs"
        if (kind := row["cp_kind"]) != "ring":
            inner, (plain, meaning) = row["cp_a2a"], _KEYS_TRAVEL[kind]
            yield f"{kind}:{inner}" if inner > 1 else kind, plain.format(inner), meaning


def _pipeline(row: Mapping[str, Any]) -> Iterator[_Triple]:
    pp, vpp = row["pp"], row["vpp"]
    if pp > 1:
        yield f"pp{pp}", f"PP {pp}", "the layers are split over so many stages, one after another"
    if vpp > 1:
        meaning = "each stage holds so many pieces in turn (interleaved): a smaller pipeline bubble"
        yield f"vpp{vpp}", f"{vpp} virtual stages", meaning
    if row["stages"]:
        dealt = dealt_words(row["stages"])
        plain = dealt.replace("x", " of ").replace("+", " + ")
        meaning = "layers of each piece of the pipeline, those in a row that are alike once"
        yield f"stages:{dealt}", f"layers {plain}", meaning
    if not SCHEDULES[row["schedule"]].by_default:
        yield row["schedule"], f"schedule {row['schedule']}", "order of the passes in the pipeline"


def _replicas(row: Mapping[str, Any]) -> Iterator[_Triple]:
    if row["dp"] > 1:
        yield f"dp{row['dp']}", f"DP {row['dp']}", "so many replicas share the batch"
    if row["ep"] > 1:
        yield f"ep{row['ep']}", f"EP {row['ep']}", "experts are dealt over so many GPUs"
    if row["etp"] > 1:
        yield f"etp{row['etp']}", f"ETP {row['etp']}", "each expert is split over so many GPUs"
    if row["ep"] * row["etp"] > 1 and row["dispatcher"] != "alltoall":
        yield row["dispatcher"], f"{row['dispatcher']} dispatch", "how tokens reach their experts"
    size = row["micro_batch"]
    yield f"mb{size}", f"micro-batch {size}", "sequences of a forward pass"
    if row["sequence_parallel"]:
        meaning = "norms and dropout are split along the sequence over the TP group"
        yield "sp", "sequence parallel", meaning
    word, (plain, meaning) = row["sharding"], _SHARDED[row["sharding"]]
    if word != "ddp" and row["shard_group"] < row["dp"] * row["cp"]:
        word, plain = f"{word}:{row['shard_group']}", f"{plain} in groups of {row['shard_group']}"
    yield word, plain, meaning
    kept = row["reshard_after_forward"]
    if kept is not True and kept is not None:
        words = "weights kept after forward" if not kept else f"resharded over {kept}"
        yield f"reshard:{kept}", words, "over how many GPUs gathered weights are split again"


def _saved_memory(row: Mapping[str, Any]) -> Iterator[_Triple]:
    kind = row["recompute"]
    if kind != "none":
        more = row["recompute_layers"] or row["recompute_modules"]
        what = {"selective": more or "attention", "full": f"{more} layers" if more else "all"}[kind]
        yield f"{kind}:{more}" if more else kind, f"recompute {what}", _RECOMPUTED[kind]
    if layers := row["offload_layers"]:
        meaning = "activations of so many layers wait in host memory"
        yield f"offload:{layers}", f"activations of {layers} layers offloaded", meaning
    for name in ("optimizer", "parameter"):
        if (tier := row[f"{name}_offload"]) != "none":
            short = f"{name}-offload" + (":nvme" if tier == "nvme" else "")
            yield short, f"{name} on {tier}", "kept outside the GPU and fetched when needed"
    if row["rank_order"] != "tp-cp-dp-pp":
        yield row["rank_order"], f"ranks {row['rank_order']}", "which neighbours share a server"
