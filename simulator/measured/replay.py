"""A measured run (one CSV row) -> workload, cluster, software and layout, ready to be predicted.

Columns are those of the measured-runs table (validation/README.md). Blank fields take the
documented default and are counted as assumed (``rows.assumed_fields``). What this version cannot
express is refused with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from simulator import catalogue
from simulator.errors import InputError, brief, did_you_mean
from simulator.files import Figure, build, read_toml, record
from simulator.hardware.cluster import Cluster, NodeGroup, load_cluster
from simulator.layout.degrees import accelerators
from simulator.layout.layouts import OFFLOADS, Layouts
from simulator.layout.rules.divisibility_rules import STAGES
from simulator.layout.rules.feasibility import FEASIBLE, REASONS, code_of, reasons
from simulator.measured import run_switches
from simulator.measured.rows import choice, flag, number, text, whole
from simulator.software.profile import Software, load_software
from simulator.software.releases import Nearest, Releases, UnknownFamily, load_releases
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.recipe import OPTIMIZERS, PRECISIONS, Recipe, Workload

__all__ = ["NotReplayable", "Run", "Tables", "load_tables", "replay"]

_POSITIONS = ("rope", "learned", "alibi", "none")
_ONE_NODE = "single-node"
_TORUS = re.compile(r"ici-3d-torus ([1-9][0-9]{0,3})x([1-9][0-9]{0,3})x([1-9][0-9]{0,3})")
"""A slice of a pod of TPUs: chips along its three axes."""
_MOST_LAYERS = 10_000
_MANY_STAGES = code_of(STAGES)


_GEMMA4 = ("gemma4", "gemma4_moe")
"""Five layers of six with a window of 1,024 tokens; the sixth sees all through heads of 512 on a
quarter of the key heads. Attention and MLP end in a norm too, and where there are experts the dense
MLP runs beside them (AI-Hypercomputer/maxtext@e591f30c src/maxtext/configs/models/gemma4-26b.yml,
gemma4-31b.yml and src/maxtext/models/gemma4.py)."""
_NORMED = ("qwen3", "qwen3_moe", *_GEMMA4)
"""Families with norms on queries and keys, by their published configurations."""
_ROUTED: dict[str, dict[str, Any]] = {
    "gpt_oss": {"bias": True, "clamped": True},
    "deepseek_v2": {"groups": 8, "top_groups": 3, "fp32_router": True},
    "deepseek_v3": {"groups": 8, "top_groups": 4, "fp32_router": True},
    "kimi_k2": {"fp32_router": True},
}
"""Families whose experts have more than sizes, by their published configurations."""


class NotReplayable(Exception):
    """Why a row cannot be predicted."""


@record
class Tables:
    """How words of the measured-runs table map to profiles: validation/replay.toml."""

    releases: Releases
    """Which software profile stands for a software name."""
    clusters: dict[str, str]
    """Cluster profile whose server carries a GPU name."""
    router_kernels: Figure
    """Share of the kernels that experts add to a block which router and preparation of the
    dispatch have: what a graph of these captures."""
    fp8_weights: dict[str, tuple[str, ...]]
    """Types with which runs of a software keep the weights of their linears in 8 bit alone, where
    ranks share optimizer states; a software that is not there does as its profile says."""
    flash_attn: dict[str, tuple[str, ...]]
    """Models, by software, whose runs turn cuDNN's attention off: Transformer Engine calls
    flash-attn on every device."""
    gradient_copies: Figure
    """Memory traffic per byte of gradients that FSDP copies into the buffer of its reduction, where
    products do not write there."""
    loss_bytes: dict[str, Figure]
    """Bytes for every logit at the fullest moment of the loss, by word of ``loss_fusion``."""
    deterministic_workspace_bytes: Figure
    """Workspaces of torch's products in deterministic mode, of both threads."""
    fabric: dict[str, Figure]
    """Share of the adapter rate that collectives reach, by kind of fabric."""
    context_bytes: Figure
    """What a process takes of a device before it allocates, which nvidia-smi counts and torch does
    not: the CUDA context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One measured run, ready to be predicted."""

    workload: Workload
    cluster: Cluster
    software: Software
    layout: Layouts
    stands: Nearest | None = None
    """The release whose profile stands for the row's software; None where no row names one."""


def load_tables(*, software: str = "") -> Tables:
    """Read validation/replay.toml, and forget the profiles that earlier replays read.

    `software` names a profile for words of families that are not known; none: they are refused.

    Raises
    ------
    InputError
        If there is no such profile.
    """
    if software:
        catalogue.find("software", software, where="--software", field="name")
    for read in (_profile, _software_profile, _homes):
        read.cache_clear()
    path = catalogue.folder("validation") / "replay.toml"
    releases = replace(load_releases(), fallback=software)
    raw = {**read_toml(path), "releases": releases}
    return build(Tables, raw, where=str(path))


def replay(row: Mapping[str, str], tables: Tables, *, where: str = "row") -> Run:
    """Turn one row into a run.

    Parameters
    ----------
    row : mapping
        Text by column; a column that is missing counts as blank.
    tables : Tables
        See :func:`load_tables`.
    where : str
        Where the row stands (``runs.csv: line 7``); every problem of the row begins with it.

    Raises
    ------
    NotReplayable
        If this version has no profile or no model for what the row describes.
    InputError
        If a field is missing, is not a number or contradicts another.
    """
    parts: dict[str, Any] = {}
    problems: list[str] = []
    steps: dict[str, Callable[[], Any]] = {
        "architecture": lambda: _architecture(row),
        "recipe": lambda: _recipe(row, tables),
        "cluster": lambda: _cluster(row, tables),
        "software": lambda: _software(row, tables),
        "layout": lambda: _layout(row, tables),
    }
    for name, step in steps.items():
        try:
            parts[name] = step()
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(f"{where}: {line}" for line in dict.fromkeys(problems))
    workload = Workload(architecture=parts["architecture"], recipe=parts["recipe"])
    can, layout = parts["software"].supports, parts["layout"]
    ways = can.dispatchers
    away = layout.offload_layers
    if "all_layers" in can.offload_excludes:  # "offloaded" without a number is all that can be
        away = np.minimum(away, workload.architecture.layers - 1)
    layout = layout.replace(
        offload_layers=away,
        cp_kind=run_switches.cp_kind(row, can.cp_kinds[0] if can.cp_kinds else "ring"),
        dispatcher=run_switches.dispatcher(row, ways[0] if ways else "alltoall"),
    )
    run = Run(
        workload=workload,
        cluster=parts["cluster"],
        software=parts["software"],
        layout=layout,
        stands=_stands(row, tables),
    )
    _check(run)
    return run


def _check(run: Run) -> None:
    """Refuse what the device, the software or arithmetic rules out.

    Frameworks that count embedding and head as layers may have two stages more than layers.
    """
    recipe, device = run.workload.recipe, run.cluster.accelerator
    precision = recipe.precision
    if recipe.matrix_type not in device.matrix_flop_per_s:
        raise NotReplayable(f"{device.name} has no {precision}")
    if precision not in run.software.supports.precisions:
        raise NotReplayable(f"{run.software.name} does not train in {precision}")
    code = int(reasons(run.layout, run.workload, run.cluster, run.software)[0])
    stages = int(run.layout.pp[0]) * int(run.layout.vpp[0])
    if code == _MANY_STAGES and stages <= run.workload.architecture.layers + 2:
        return
    if code != FEASIBLE:
        raise NotReplayable(f"the layout cannot run: {REASONS[code]}")


# --- the model and how it is trained -----------------------------------------------------


def _architecture(row: Mapping[str, str]) -> Architecture:
    """Sizes from the row; norm, biases and dropout from the family."""
    family = text(row, "family")
    # Experts with learned positions are those of a GPT, with its norms, biases and dropout.
    gpt = family in ("gpt", "bloom") or (family == "moe" and row.get("position") == "learned")
    drops = flag(row, "dropout") if row.get("dropout") else gpt
    norm: Literal["layer", "rms"] = "layer" if gpt or family in ("mpt", "nemotron") else "rms"
    layers = whole(row, "layers", most=_MOST_LAYERS)
    gated = flag(row, "gated_mlp")
    position: Any = text(row, "position", _POSITIONS) if row.get("position") else "rope"
    attention = replace(_attention(row, gpt), dropout=drops)
    mlp = MLP(ffn_hidden=whole(row, "ffn_hidden"), gated=gated, bias=gpt)
    dense = Block(attention=attention, norm=norm, dropout=drops, norms=2, mlp=mlp)
    blocks: tuple[Block, ...] = (dense,)
    kinds = (0,) * layers
    if whole(row, "num_experts", 0):
        sparse = Block(attention=attention, norm=norm, dropout=drops, mlp=_experts(row, gated))
        first = whole(row, "first_dense_layers", 0)
        if first > layers:
            raise InputError(
                f"first_dense_layers: must be at most the {layers} layers, got {first}"
            )
        blocks = (dense, sparse) if first else (sparse,)
        kinds = (0,) * first + (1 if first else 0,) * (layers - first)
    model = Architecture(
        name=text(row, "model"),
        family=family,
        hidden=whole(row, "hidden"),
        blocks=blocks,
        layer_kinds=kinds,
        vocabulary=whole(row, "vocab"),
        tied_embeddings=flag(row, "tied_embeddings"),
        position=position,
        max_positions=whole(row, "seq_len"),
        final_norm=norm,
    )
    if family in _GEMMA4:
        model = _gemma4(row, model)
    model = run_switches.windowed(row, model)
    return model.predicting_ahead(whole(row, "mtp_layers", 0, most=_MOST_LAYERS))


def _gemma4(row: Mapping[str, str], model: Architecture) -> Architecture:
    """Windows in five layers of six, wide heads in the sixth, norms on both ends."""
    plain = model.blocks[-1]
    assert plain.attention is not None, "what a row describes has attention"
    mlp = plain.mlp
    if isinstance(mlp, MoE) and not mlp.shared_ffn_hidden:
        mlp = replace(mlp, shared_ffn_hidden=whole(row, "ffn_hidden"))
    near = replace(plain.attention, window=1024)
    few = max(plain.attention.kv_heads // 4, 1)
    far = replace(plain.attention, head_dim=2 * plain.attention.head_dim, kv_heads=few)
    blocks = tuple(replace(plain, attention=one, mlp=mlp, norms=4) for one in (near, far))
    kinds = tuple(int(layer % 6 == 5) for layer in range(model.layers))
    return replace(model, blocks=blocks, layer_kinds=kinds, logit_softcap=True)


def _experts(row: Mapping[str, str], gated: bool) -> MoE:
    experts, top_k = whole(row, "num_experts"), whole(row, "top_k")
    if top_k > experts:
        raise InputError(f"top_k: must be at most the {experts} experts, got {top_k}")
    shape = MoE(
        experts=experts,
        top_k=top_k,
        gated=gated,
        ffn_hidden=whole(row, "moe_ffn_hidden"),
        shared_ffn_hidden=whole(row, "shared_expert_ffn", 0),
    )
    return replace(shape, **_ROUTED.get(row.get("family") or "", {}))


def _attention(row: Mapping[str, str], gpt: bool) -> Attention:
    heads = whole(row, "heads")
    if whole(row, "kv_lora_rank", 0):
        rope = whole(row, "qk_rope_head_dim")
        return Attention(
            heads=heads,
            kv_heads=heads,
            rope_head_dim=rope,
            head_dim=whole(row, "qk_nope_head_dim") + rope,
            value_head_dim=whole(row, "v_head_dim"),
            q_lora_rank=whole(row, "q_lora_rank", 0),
            kv_lora_rank=whole(row, "kv_lora_rank"),
        )
    kv_heads, sinks = whole(row, "kv_heads"), text(row, "family") == "gpt_oss"
    if heads % kv_heads:
        raise InputError(f"kv_heads: must divide the {heads} heads, got {kv_heads}")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=whole(row, "head_dim"),
        qkv_bias=gpt or sinks,
        output_bias=gpt or sinks,
        qk_norm=text(row, "family") in _NORMED,
        sinks=sinks,
        scaled_rotary=sinks,
    )


def _recipe(row: Mapping[str, str], tables: Tables) -> Recipe:
    precision, optimizer = text(row, "precision"), text(row, "optimizer")
    dtype = "fp8" if precision == "fp8_delayed" else precision
    if dtype not in PRECISIONS:
        known = (*PRECISIONS, "fp8_delayed")
        hint = did_you_mean(precision, known)
        raise InputError(
            f"precision: must be one of {', '.join(known)}, got {brief(precision)}{hint}"
        )
    ours = "adamw" if optimizer == "adam" else optimizer
    if ours not in OPTIMIZERS:
        raise NotReplayable(f"optimizer {optimizer} is not modelled yet")
    raw = {
        "sequence_length": whole(row, "seq_len"),
        "global_batch": whole(row, "global_batch"),
        "precision": dtype,
        "optimizer": ours,
    }
    stands = _stands(row, tables)
    usual = _software_profile(stands.profile).supports.fp8_weights_usual
    alone = tables.fp8_weights.get(stands.known, usual)
    raw["fp8_weights"] = dtype in alone and row.get("sharding") != "ddp"
    if row.get("fp8_weights"):
        raw["fp8_weights"] = flag(row, "fp8_weights")
    if row.get("capacity_factor"):  # "padded and dropped to this capacity"
        raw |= {"moe_capacity_factor": number(row, "capacity_factor"), "moe_pads_to_capacity": True}
    return build(Recipe, raw | run_switches.recipe(row), where="recipe")


# --- the machine, the framework, the layout ----------------------------------------------


@lru_cache(maxsize=128)
def _profile(name: str) -> Cluster:
    return load_cluster(name, 1)


@lru_cache(maxsize=64)
def _software_profile(name: str) -> Software:
    return load_software(name)


def _stands(row: Mapping[str, str], tables: Tables) -> Nearest:
    """The release whose profile stands for the row's software."""
    try:
        return tables.releases.nearest(text(row, "software"), where="software")
    except UnknownFamily as error:
        raise NotReplayable(str(error)) from None


_VENDOR = re.compile(r"^(?:nvidia|amd|intel|google|aws|huawei)[\s_-]+(?:instinct[\s_-]+)?")
"""Makers, which tables name before the device."""


@lru_cache(maxsize=1)
def _homes() -> dict[str, str]:
    """The cluster with the shortest name that has an accelerator, by the accelerator's name."""
    homes: dict[str, str] = {}
    for name in sorted(catalogue.names("clusters"), key=lambda name: (len(name), name)):
        homes.setdefault(_profile(name).accelerator.name, name)
    return homes


def _cluster_name(gpu: str, tables: Tables) -> str:
    """The cluster whose server carries a GPU: by a word of the tables or a name of a profile."""
    if gpu in tables.clusters:
        return tables.clusters[gpu]
    word = _VENDOR.sub("", gpu.lower().strip())
    word = re.sub(r"[\s_/]+", "-", word)
    if word in catalogue.names("clusters"):
        return word
    if word in (homes := _homes()):
        return homes[word]
    known = (*tables.clusters, *homes, *catalogue.names("clusters"))
    raise NotReplayable(f"no hardware profile for {gpu}{did_you_mean(gpu, known)}")


def _cluster(row: Mapping[str, str], tables: Tables) -> Cluster:
    """The profile's server, with the row's network, domain and number of GPUs."""
    gpu = text(row, "gpu")
    base = _profile(_cluster_name(gpu, tables))
    own = base.node.accelerators
    gpus, per_node = whole(row, "num_gpus"), whole(row, "gpus_per_node", own)
    if gpus > per_node and gpus % per_node:
        raise InputError(f"num_gpus: must fill nodes of {per_node} GPUs, got {gpus}")
    domain = base.node.scale_up.domain if per_node == own else per_node
    scale_up = replace(base.node.scale_up, domain=whole(row, "nvlink_domain", domain))
    node = replace(base.node, accelerators=per_node, scale_up=scale_up)
    if row.get("nic_gbit_per_gpu"):
        rate = Figure(number(row, "nic_gbit_per_gpu") * 1e9 / 8)
        out = replace(node.scale_out, adapters=per_node, adapter_bytes_per_s=rate)
        node = replace(node, scale_out=out)
    fabric, words = base.fabric, (*tables.fabric, _ONE_NODE)
    if slice_of_torus := _TORUS.fullmatch(row.get("fabric") or ""):
        axes = tuple(int(axis) for axis in slice_of_torus.groups())
        node = replace(node, scale_up=replace(node.scale_up, torus=axes, domain=math.prod(axes)))
    else:
        kind = text(row, "fabric", words) if row.get("fabric") else _ONE_NODE
        if kind in tables.fabric:
            fabric = replace(fabric, usable_fraction=tables.fabric[kind])
    group = NodeGroup(node=node, accelerator=base.accelerator, gpus=gpus)
    return replace(base, groups=(group,), fabric=fabric)


def _software(row: Mapping[str, str], tables: Tables) -> Software:
    """The profile, with the switches that the row states."""
    stands = _stands(row, tables)
    software = _software_profile(stands.profile).standing_for(stands)
    overlap, kernels, host = software.overlap, software.kernels, software.host
    given = {"gradient_reduce": "overlap_grad_reduce", "parameter_gather": "overlap_param_gather"}
    flags: dict[str, Any] = {
        ours: flag(row, theirs) for ours, theirs in given.items() if row.get(theirs)
    }
    if flag(row, "tp_comm_overlap"):
        flags["tensor"] = "async" if software.launcher == "torchtitan" else "userbuffers"
    if row.get("flash_attention"):
        flash = flag(row, "flash_attention")
        kernels = replace(kernels, attention="flash" if flash else "unfused")
    if flag(row, "cuda_graphs"):
        host = run_switches.captured(row, host, tables.router_kernels)
    off = tables.flash_attn.get(stands.known, ())
    usual = "flash_attn" if row.get("model") in off else ""
    kernels = run_switches.attention(row, kernels, usual)
    kernels = run_switches.fused_experts(kernels, whole_step=host.captured_moe_fraction == 1.0)
    return replace(
        software,
        overlap=run_switches.overlap(row, replace(overlap, **flags)),
        kernels=run_switches.kernels(row, kernels, tables.loss_bytes),
        allocator=run_switches.allocator(
            row, software.allocator, tables.deterministic_workspace_bytes
        ),
        host=host,
        input=run_switches.fetch(row, software.input),
        states=run_switches.states(row, software.states, tables.gradient_copies),
    )


def _layout(row: Mapping[str, str], tables: Tables) -> Layouts:
    """Degrees and switches; what is not stated is as the software's users have it."""
    can = _software_profile(_stands(row, tables).profile).supports
    usual_sharding = "zero1" if "zero1" in can.sharding_with_pipeline else can.sharding[-1]
    numbers = ("tp", "pp", "cp", "dp", "ep", "etp", "micro_batch")
    given: dict[str, Any] = {name: whole(row, name, 1) for name in numbers}
    if not row.get("dp"):
        replica = accelerators(given["tp"], given["pp"], given["cp"])
        given["dp"] = max(whole(row, "num_gpus") // replica, 1)
    if can.experts_follow_tensor and not row.get("etp"):
        given["etp"] = given["tp"] if whole(row, "num_experts", 0) else 1
    given["vpp"] = whole(row, "vpp", 1, most=_MOST_LAYERS)
    given["global_batch"] = whole(row, "global_batch")
    if not (row.get("micro_batch") or can.accumulates):
        given["micro_batch"] = max(given["global_batch"] // given["dp"], 1)
    if row.get("shard_group"):
        given["shard_group"] = min(whole(row, "shard_group"), given["dp"] * given["cp"])
    layers = -(-whole(row, "layers", most=_MOST_LAYERS) // given["pp"])
    given["offload_layers"] = run_switches.offloaded(row, layers)
    given["optimizer_offload"] = choice(row, "optimizer_offload", OFFLOADS) or "none"
    given["sharding"] = text(row, "sharding") if row.get("sharding") else usual_sharding
    given["recompute"] = text(row, "recompute") if row.get("recompute") else "none"
    given["recompute_layers"] = whole(row, "recompute_layers", 0, most=_MOST_LAYERS)
    if dealt := run_switches.stages(row):
        given["stages"] = dealt
    if row.get("sequence_parallel") and given["tp"] > 1:  # frameworks turn it off without tp
        given["sequence_parallel"] = int(flag(row, "sequence_parallel"))
    world = accelerators(given["tp"], given["pp"], given["cp"], given["dp"])
    if world != whole(row, "num_gpus"):
        raise InputError(f"num_gpus: must be dp x tp x pp x cp = {world}, got {row['num_gpus']}")
    ranks, experts = world // given["pp"], given["ep"] * given["etp"]
    if experts > ranks:
        raise InputError(f"ep: ep x etp must be at most dp x tp x cp = {ranks}, got {experts}")
    share = given["dp"] * given["micro_batch"]
    if given["global_batch"] % share:
        batch = row["global_batch"]
        raise InputError(f"global_batch: must divide by dp x micro_batch = {share}, got {batch}")
    try:
        return Layouts.of(**given)
    except ValueError as error:
        raise InputError(str(error)) from None
