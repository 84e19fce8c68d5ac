"""What a few measured runs state in columns of their own, put into model, software and layout.

A blank column stands for what the software usually does (validation/README.md lists them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from simulator.errors import InputError, brief
from simulator.files import Figure
from simulator.layout.layouts import CP_KINDS
from simulator.measured.rows import choice, flag, number, text, whole
from simulator.software.allocator_memory import Allocator, Workspaces
from simulator.software.host_work import HostWork
from simulator.software.input_fetch import InputFetch
from simulator.software.kernels import Kernels
from simulator.software.overlap import Overlap
from simulator.software.states import StateBytes
from simulator.workload.architecture import Architecture

__all__ = [
    "allocator",
    "captured",
    "cp_kind",
    "dispatcher",
    "fetch",
    "kernels",
    "lengths",
    "offloaded",
    "overlap",
    "recipe",
    "stages",
    "states",
    "windowed",
]

GRAPH_PARTS = ("full_iteration", "attn", "moe_router", "moe_preprocess")
"""Words of the column ``cuda_graph_scope``."""

_BYTES = {"fp16": 2.0, "bf16": 2.0, "fp32": 4.0}
_MOMENTS = ("bf16", "fp16", "fp32")
_STOPS = ("never", "16bit", "always")
_DISPATCHERS = ("alltoall", "allgather", "deepep", "hybridep")
_LAYERS = re.compile("[0-9]{1,5}")
_TOKENS = re.compile("[1-9][0-9]{0,8}")
_FUSED = "fused_gradient_accumulation"
_LOSSES = ("none", "compiled", "transformer_engine")
_IMPLEMENTATIONS = ("transformer_engine", "local")
_SUMS = ("fused", "scatter_add", "index_add")
_ATTENTIONS = ("cudnn", "flash_attn")
_QUANTISED_TYPES = ("mxfp8",)
"""Types in which attention, or the output head, is priced where a row says so."""

_MODULES: dict[str, Any] = {
    "core_attn": "core_attn", "layernorm": "norm", "norm": "norm", "mlp": "mlp",
    "mlp_act": "mlp_act", "moe_act": "mlp_act", "moe": "moe", "shared_experts": "shared_experts",
    "mla_up_proj": "mla_up_proj",
    "half_matmul": "half_matmul",
}  # fmt: skip
"""Words of the column recompute_modules, and ours."""


def windowed(row: Mapping[str, str], model: Architecture) -> Architecture:
    """Give every second layer, the first one among them, the sliding window that is stated."""
    window = whole(row, "sliding_window_every_second", 0)
    if not window:
        return model
    last = model.blocks[-1]
    assert last.attention is not None, "a window belongs to attention"
    attention = replace(last.attention, window=window)
    blocks = (*model.blocks, replace(last, attention=attention))
    kinds = [len(blocks) - 1 if i % 2 == 0 else kind for i, kind in enumerate(model.layer_kinds)]
    return replace(model, blocks=blocks, layer_kinds=tuple(kinds))


def kernels(
    row: Mapping[str, str], usual: Kernels, losses: Mapping[str, Figure] = MappingProxyType({})
) -> Kernels:
    """Kernels with what is recomputed and what is not fused, and who moves tokens to experts.

    `losses` are bytes for every logit of losses that are not Transformer Engine's, by word.

    Raises
    ------
    InputError
        If a column has a word that it does not know.
    """
    if row.get("recompute_modules"):
        words = text(row, "recompute_modules").split("+")
        if unknown := [word for word in words if word not in _MODULES]:
            rule = f"must be among {', '.join(_MODULES)}, joined by +"
            raise InputError(f"recompute_modules: {rule}, got {brief(unknown[0])}")
        modules = dict.fromkeys(_MODULES[word] for word in words)
        usual = replace(usual, selective_modules=tuple(modules))
    stops: Any = choice(row, "recompute_stops_early", _STOPS)
    if stops:
        usual = replace(usual, recompute_stops_early=stops)
    if row.get(_FUSED):
        others = tuple(word for word in usual.fused if word != "gradient_accumulation")
        fused = flag(row, _FUSED)
        usual = replace(usual, fused=(*others, "gradient_accumulation") if fused else others)
    if loss := choice(row, "loss_fusion", _LOSSES):
        unfused = tuple(word for word in usual.fused if word != "loss")
        if loss == "transformer_engine":
            usual = replace(usual, fused=(*unfused, "loss"))
        else:
            usual = replace(usual, fused=unfused, loss_bytes_per_logit=losses[loss])
    if row.get("grouped_experts") and not flag(row, "grouped_experts"):
        usual = replace(usual, expert_products="streams")
    if added := choice(row, "unpermute", _SUMS):
        usual = replace(usual, keeps_expert_outputs=added == "index_add")
    for column, field in (("fp8_attention", "quantised_attention"), ("fp8_head", "quantised_head")):
        if flag(row, column):
            types: Any = {field: _QUANTISED_TYPES}
            own = replace(usual.transformer_engine, **types)
            usual = replace(usual, transformer_engine=own)
    way: Any = choice(row, "dispatcher", _DISPATCHERS)
    return replace(usual, expert_library=way) if way in ("deepep", "hybridep") else usual


def attention(row: Mapping[str, str], kernels: Kernels, usual: str = "") -> Kernels:
    """Kernels with the library of attention that a row states, or else `usual`; "": its profile's.

    Raises
    ------
    InputError
        If the column has a word that it does not know.
    """
    library = choice(row, "attention_library", _ATTENTIONS) or usual
    if not library:
        return kernels
    engine, copies = kernels.transformer_engine, library == "flash_attn"
    everywhere = (*engine.flash_attn_on, *engine.flash_attn_library) if copies else ()
    engine = replace(engine, flash_attn_on=tuple(dict.fromkeys(everywhere)))
    return replace(kernels, transformer_engine=engine, copies_attention_output=copies)


def fused_experts(usual: Kernels, *, whole_step: bool) -> Kernels:
    """Kernels whose grouped products of experts activate and cast, or not.

    Megatron-Bridge's recipes (0.5.0 scripts/performance/configs, 0.6.0 perf_recipes) set
    ``cutedsl_fused_grouped_mlp`` where a graph holds the whole step, and nowhere else.
    """
    if whole_step or not usual.transformer_engine.fused_grouped_mlp:
        return usual
    engine = replace(usual.transformer_engine, fused_grouped_mlp=())
    return replace(usual, transformer_engine=engine)


def dispatcher(row: Mapping[str, str], usual: str) -> str:
    """How tokens reach their experts: as stated, else as the software usually does it."""
    way = choice(row, "dispatcher", _DISPATCHERS)
    return "deepep" if way == "hybridep" else way or usual


def cp_kind(row: Mapping[str, str], usual: str) -> str:
    """How context-parallel ranks exchange: as stated, else as the software usually does it."""
    return choice(row, "cp_kind", CP_KINDS) or usual


def stages(row: Mapping[str, str]) -> list[int]:
    """Layers of every piece of the pipeline in the order of the model; none stated: dealt evenly.

    Raises
    ------
    InputError
        If it is not a list of whole numbers joined by ``+``.
    """
    return _joined(row, "stages", _LAYERS, "layers of every piece joined by +, as 2+4+4+2")


def lengths(row: Mapping[str, str]) -> list[int]:
    """Tokens of the samples packed into a sequence, quantiles; none stated: one fills it.

    Raises
    ------
    InputError
        If it is not a list of whole numbers above zero joined by ``+``.
    """
    return _joined(row, "lengths", _TOKENS, "tokens of samples joined by +, as 120+240+480")


def _joined(row: Mapping[str, str], column: str, number: re.Pattern[str], what: str) -> list[int]:
    """Whole numbers that a column joins by ``+``; none where it is blank."""
    given = (row.get(column) or "").strip()
    words = given.split("+") if given else []
    if not all(number.fullmatch(word) for word in words):
        raise InputError(f"{column}: must be {what}, got {brief(given)}")
    return [int(word) for word in words]


def fetch(row: Mapping[str, str], usual: InputFetch) -> InputFetch:
    """Input without the mask of a sequence's pairs where the loader makes none."""
    if not row.get("mask_in_dataloader") or flag(row, "mask_in_dataloader"):
        return usual
    return replace(usual, mask_bytes=Figure(0.0, "datasheet", "stated for the run"))


def overlap(row: Mapping[str, str], usual: Overlap) -> Overlap:
    """Overlap with the expert traffic hidden, or not, where that is stated."""
    if not row.get("expert_overlap"):
        return usual
    return replace(usual, expert=flag(row, "expert_overlap"))


def captured(row: Mapping[str, str], host: HostWork, router_kernels: float) -> HostWork:
    """Host work that captured graphs leave: none, or that of the modules not named.

    `router_kernels` is the share of a MoE layer's further kernels that a graph of the router and
    the dispatch's preparation captures.

    Raises
    ------
    InputError
        If the scope has a word that is no part of a step.
    """
    scope = (row.get("cuda_graph_scope") or "full_iteration").split("+")
    if unknown := [word for word in scope if word not in GRAPH_PARTS]:
        rule = f"must be among {', '.join(GRAPH_PARTS)}, joined by +"
        raise InputError(f"cuda_graph_scope: {rule}, got {brief(unknown[0])}")
    partial = "moe_router" in scope
    dense = 1.0 if not partial or "attn" in scope else 0.0
    experts = router_kernels if partial else 1.0
    return replace(host, captured_fraction=Figure(dense), captured_moe_fraction=Figure(experts))


def allocator(row: Mapping[str, str], usual: Allocator, deterministic: Figure) -> Allocator:
    """Workspaces as the run's products take them.

    `deterministic` is what torch's product library keeps for its two threads where runs must come
    out alike. Blocks that are not Transformer Engine's call it on every stage, and unfused scores
    go through a buffer of their own; the product of the router is Transformer Engine's there, too
    (Megatron-LM megatron/core/transformer/moe/moe_utils.py: RouterGatingLinearFunction).
    """
    local = choice(row, "transformer_impl", _IMPLEMENTATIONS) == "local"
    if row.get("grouped_experts") and not flag(row, "grouped_experts"):
        usual = usual.without_grouped_products()
    if flag(row, "deterministic"):
        own = {
            name: replace(some, head_workspace_bytes=None)
            for name, some in usual.workspaces_of.items()
        }
        usual = replace(usual, head_workspace_bytes=deterministic, workspaces_of=own)
    if not local:
        return usual
    own = {
        name: Workspaces(
            workspace_bytes=some.head_workspace_bytes,
            grouped_workspace_bytes=some.workspace_bytes,
        )
        for name, some in usual.workspaces_of.items()
    }
    return replace(
        usual,
        workspace_bytes=usual.head_workspace_bytes,
        head_workspace_bytes=Figure(0.0),
        dummy_gradient_copies=Figure(0.0),
        grouped_workspace_bytes=usual.workspace_bytes,
        workspaces_of=own,
        scores_buffer=True,
    )


def states(row: Mapping[str, str], usual: StateBytes, copies: Figure) -> StateBytes:
    """Bytes per parameter with the types of gradients, and the buckets, that are stated.

    Where products do not write into the buffer of the reduction and ranks share gradients, these
    are copied there: `copies` is the traffic for every byte (Megatron-FSDP).
    """
    stated: dict[str, Any] = {}
    if row.get(_FUSED) and not flag(row, _FUSED) and row.get("sharding") in ("zero2", "zero3"):
        stated["reduce_copies"] = copies
    if flag(row, "split_master_weights"):
        stated["master"] = Figure(2.0, "datasheet", "the other half of fp32 is the 16-bit weight")
    for field, column in (("reduce", "reduce_dtype"), ("gradient", "gradient_dtype")):
        if dtype := choice(row, column, _BYTES):
            stated[field] = Figure(_BYTES[dtype], "datasheet", "stated for the run")
    if row.get("bucket_bytes"):
        bucket = number(row, "bucket_bytes")
        stated["bucket_bytes"] = Figure(bucket, "datasheet", "stated for the run")
        stated["bucket_bytes_per_rank"] = Figure(0.0, "datasheet", "stated for the run")
    return replace(usual, **stated) if stated else usual


def recipe(row: Mapping[str, str]) -> dict[str, Any]:
    """Fields of the recipe that are stated: packed samples, loss, optimizer, adapters."""
    stated: dict[str, Any] = {}
    if packed := lengths(row):
        stated["lengths"] = packed
    if pieces := whole(row, "loss_chunks", 0):
        stated["loss_chunks"] = pieces
    if flag(row, "optimizer_in_backward"):
        stated["optimizer_in_backward"] = True
    if moments := choice(row, "moment_dtype", _MOMENTS):
        stated["moment_dtype"] = moments
    if rank := whole(row, "lora_rank", 0):
        stated["lora_rank"] = rank
        if row.get("lora_targets"):
            stated["lora_targets"] = text(row, "lora_targets").split("+")
        stated["quantised_base"] = flag(row, "quantised_base")
    return stated


def offloaded(row: Mapping[str, str], layers: int) -> int:
    """Layers of a rank whose activations go to the host: as stated, else all `layers`."""
    if not flag(row, "cpu_offload"):
        return 0
    return min(whole(row, "offload_layers", 0) or layers, layers)
