"""What the remarks of a measured run state in fixed phrases, put into model, software and layout.

The table of measured runs has columns for what every run has. What few have stands in its `notes`
in a fixed wording (validation/README.md lists the phrases); other remarks change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulator.errors import InputError
from simulator.files import Figure
from simulator.measured.rows import flag, text
from simulator.software.host_work import HostWork
from simulator.software.profile import Kernels, Overlap, StateBytes
from simulator.workload.architecture import Architecture

__all__ = [
    "captured",
    "dispatcher",
    "kernels",
    "offloaded",
    "overlap",
    "recipe",
    "states",
    "windowed",
]

_BYTES = {"fp16": 2.0, "bf16": 2.0, "fp32": 4.0}
_REDUCED = re.compile(r"gradients (accumulated and )?reduced in (fp16|bf16|fp32)")
_MOMENTS = re.compile(r"optimizer moments in (bf16|fp16)")
_NOT_FUSED = "gradient accumulation not fused"
_OFFLOADED = re.compile(r"activations of ([0-9]{1,6}) layers offloaded")
_DISPATCHER = re.compile(r"moe dispatcher=(deepep|hybridep)")
_CAPTURED = re.compile(r"cuda graph ([^;]+)")
_WINDOWED = re.compile(r"every second layer uses a ([0-9]{1,9})-token sliding window")
_EXPERT_OVERLAP = "moe a2a overlap on"
_CHUNKED = re.compile(r"(?:^|; )chunked cross entropy(?: in ([0-9]{1,6}) pieces)?(?:;|$)")
_ON_TORCH_1 = "FSDP mixed precision PURE"
_IN_BACKWARD = re.compile(r"(?:^|; )optimizer step in backward(?:;|$)")
_CHUNKS = 8
"""Pieces of torchtune's chunked loss unless stated (CEWithChunkedOutputLoss, num_output_chunks)."""

_MODULES: dict[str, Any] = {
    "core_attn": "core_attn", "layernorm": "norm", "norm": "norm", "mlp": "mlp",
    "mlp_act": "mlp_act", "moe_act": "mlp_act", "moe": "moe", "shared_experts": "shared_experts",
    "mla_up_proj": "mla_up_proj",
    "half_matmul": "half_matmul",
}  # fmt: skip
"""Words of the column recompute_modules, and ours."""


def windowed(row: Mapping[str, str], model: Architecture) -> Architecture:
    """Give every second layer the sliding window that is stated."""
    found = _WINDOWED.search(row.get("notes") or "")
    if not found:
        return model
    attention = replace(model.blocks[-1].attention, window=int(found.group(1)))
    blocks = (*model.blocks, replace(model.blocks[-1], attention=attention))
    kinds = [len(blocks) - 1 if i % 2 == 0 else kind for i, kind in enumerate(model.layer_kinds)]
    return replace(model, blocks=blocks, layer_kinds=tuple(kinds))


def kernels(row: Mapping[str, str], usual: Kernels) -> Kernels:
    """Kernels with what is recomputed and what is not fused, and who moves tokens to experts.

    Raises
    ------
    InputError
        If the column ``recompute_modules`` has a word that is no module.
    """
    notes = row.get("notes") or ""
    if row.get("recompute_modules"):
        words = text(row, "recompute_modules").split("+")
        if unknown := [word for word in words if word not in _MODULES]:
            rule = f"must be among {', '.join(_MODULES)}, joined by +"
            raise InputError(f"recompute_modules: {rule}, got {unknown[0]!r}")
        modules = dict.fromkeys(_MODULES[word] for word in words)
        usual = replace(usual, selective_modules=tuple(modules))
    if row.get("software") == "llm-foundry-2023" and _ON_TORCH_1 in notes:
        usual = replace(usual, recompute_stops_early="never")
    if _NOT_FUSED in notes:
        fused = tuple(word for word in usual.fused if word != "gradient_accumulation")
        usual = replace(usual, fused=fused)
    stated = _DISPATCHER.search(notes)
    if stated is None:
        return usual
    return replace(usual, expert_library="hybridep" if stated[1] == "hybridep" else "deepep")


def dispatcher(row: Mapping[str, str], usual: str) -> str:
    """How tokens reach their experts: as stated, else as the software usually does it."""
    return "deepep" if _DISPATCHER.search(row.get("notes") or "") else usual


def overlap(row: Mapping[str, str], usual: Overlap) -> Overlap:
    """Overlap with the expert traffic hidden where that is stated."""
    return replace(usual, expert=usual.expert or _EXPERT_OVERLAP in (row.get("notes") or ""))


def captured(row: Mapping[str, str], host: HostWork, router_kernels: float) -> HostWork:
    """Host work that captured graphs leave: none, or that of the modules not named.

    `router_kernels` is the share of a MoE layer's further kernels that a graph of the router and
    the dispatch's preparation captures.
    """
    found = _CAPTURED.search(row.get("notes") or "")
    scope = re.findall("[a-z_]+", found.group(1)) if found else []
    partial = "moe_router" in scope
    dense = 1.0 if not partial or "attn" in scope else 0.0
    experts = router_kernels if partial else 1.0
    return replace(host, captured_fraction=Figure(dense), captured_moe_fraction=Figure(experts))


def states(row: Mapping[str, str], usual: StateBytes, copies: Figure) -> StateBytes:
    """Bytes per parameter with the type of the reduction that is stated.

    Where products do not write into the buffer of the reduction and ranks share gradients, these
    are copied there: `copies` is the traffic for every byte (Megatron-FSDP).
    """
    notes = row.get("notes") or ""
    if _NOT_FUSED in notes and row.get("sharding") in ("zero2", "zero3"):
        usual = replace(usual, reduce_copies=copies)
    found = _REDUCED.search(notes)
    if not found:
        return usual
    size = Figure(_BYTES[found.group(2)], "datasheet", "the run's own remark")
    return replace(usual, reduce=size, gradient=size if found.group(1) else usual.gradient)


def recipe(row: Mapping[str, str]) -> dict[str, Any]:
    """Fields of the recipe that are stated: loss in pieces, place and types of the optimizer."""
    notes = row.get("notes") or ""
    found: dict[str, Any] = {}
    if chunked := _CHUNKED.search(notes):
        found["loss_chunks"] = int(chunked.group(1) or _CHUNKS)
    if _IN_BACKWARD.search(notes):
        found["optimizer_in_backward"] = True
    if moments := _MOMENTS.search(notes):
        found["moment_dtype"] = moments.group(1)
    return found


def offloaded(row: Mapping[str, str], layers: int) -> int:
    """Layers of a rank whose activations go to the host: as stated, else all `layers`."""
    if not flag(row, "cpu_offload"):
        return 0
    found = _OFFLOADED.search(row.get("notes") or "")
    return min(int(found.group(1)), layers) if found else layers
