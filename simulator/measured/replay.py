"""A measured run (one CSV row) -> workload, cluster, software and layout, ready to be predicted.

Columns are those of the measured-runs table (validation/README.md). Blank fields take the
documented default and are counted as assumed (``rows.assumed_fields``). What this version cannot
express is refused with a reason.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from simulator import catalogue
from simulator.errors import InputError, brief, did_you_mean
from simulator.files import Figure, build, read_toml, record
from simulator.hardware.cluster import Cluster, NodeGroup, load_cluster
from simulator.hardware.fabric import Fabric
from simulator.hardware.node import Node
from simulator.layout.layouts import CP_KINDS, OFFLOADS, Layouts, accelerators
from simulator.layout.rules.divisibility_rules import STAGES
from simulator.layout.rules.feasibility import FEASIBLE, REASONS, code_of, reasons
from simulator.measured.rows import SOFTWARE, Said, read_row
from simulator.record_cache import for_same_records
from simulator.records import dataclass
from simulator.software.overrides import is_switch, with_overrides
from simulator.software.profile import Software, load_software
from simulator.software.releases import Nearest, Releases, UnknownFamily, load_releases
from simulator.spellings import accelerator_named, plain_device, precision_named
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.expert_routing import Routing
from simulator.workload.modules import Activation
from simulator.workload.recipe import OPTIMIZERS, PRECISIONS, Recipe, Workload

_POSITIONS = ("rope", "learned", "alibi", "none")
_MOMENTS = ("bf16", "fp16", "fp32")
_ONE_NODE = "single-node"
_TORUS = re.compile(
    r"ici[- ]?(?:[23]d[- ]?torus)?[- ]?([1-9][0-9]{0,3}(?:x[1-9][0-9]{0,3}){1,2})", re.I
)
"""A slice of a pod of TPUs: chips along its three axes."""
_MANY_STAGES = code_of(STAGES)


class NotReplayable(Exception):
    """Why a row cannot be predicted."""


@record
class Far:
    """Layers that see the whole sequence, among others that have a window."""

    every: int
    """The last of so many."""
    window: int
    """Tokens that the others see."""
    wider_heads: int
    """Width of its heads over that of the others."""
    fewer_key_heads: int
    """Key heads of the others over its own."""


@record
class Family:
    """What models of a family have beyond sizes."""

    norm: Literal["layer", "rms"] = "rms"
    dropout: bool = False
    attention: dict[str, bool] = field(default_factory=dict)
    """Fields of `Attention`, where it is not latent."""
    mlp: dict[str, bool] = field(default_factory=dict)
    """Fields of `MLP`."""
    activation: Activation = "gelu"
    """That of the dense MLP."""
    experts: dict[str, int | bool] = field(default_factory=dict)
    """Fields of `MoE`."""
    far: Far | None = None
    """Few layers see the whole sequence. Blocks end in a norm too, the dense MLP runs beside
    experts, and logits are capped (Gemma)."""
    with_learned_positions: str = ""
    """The family that it is where positions are learned."""


@record
class Tables:
    """How words of the measured-runs table map to profiles and models: validation/replay.toml."""

    releases: Releases
    """Which software profile stands for a software name."""
    clusters: dict[str, str]
    """Cluster profile whose server carries a GPU name."""
    clusters_on: dict[str, dict[str, str]] = field(default_factory=dict)
    """The same where servers of a kind of fabric are others."""
    fp8_weights: dict[str, tuple[str, ...]]
    """Types with which runs of a software keep the weights of their linears in 8 bit alone, where
    ranks share optimizer states; a software that is not there does as its profile says."""
    fabric: dict[str, Figure]
    """Share of the adapter rate that collectives reach, by kind of fabric."""
    context_bytes: Figure
    """What a process takes of a device before it allocates, which nvidia-smi counts and torch does
    not: the CUDA context."""
    families: dict[str, Family]
    """What models have beyond sizes, by family."""

    def family(self, row: Said) -> Family:
        """What the model of a row has beyond sizes."""
        family = self.families.get(row.need("family"), Family())
        if family.with_learned_positions and row.get("position") == "learned":
            return self.families[family.with_learned_positions]
        return family


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
    for read in (_profile, _software_profile, _homes, _overridden):
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
    said = read_row(row)
    parts: dict[str, Any] = {}
    problems: list[str] = []
    steps: dict[str, Callable[[], Any]] = {
        "architecture": lambda: _architecture(said, tables.family(said)),
        "recipe": lambda: _recipe(said, _stands(said, tables), tables),
        "cluster": lambda: _cluster(said, tables),
        "software": lambda: _software(said, _stands(said, tables), tables),
        "layout": lambda: _layout(said, _software_profile(_stands(said, tables).profile)),
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
    away = layout.offload_layers
    if "all_layers" in can.offload_excludes:  # "offloaded" without a number is all that can be
        away = np.minimum(away, workload.architecture.layers - 1)
    dispatcher = can.dispatchers[0] if can.dispatchers else "alltoall"
    run = Run(
        workload=workload,
        cluster=parts["cluster"],
        software=parts["software"],
        layout=layout.replace(offload_layers=away, dispatcher=dispatcher),
        stands=_stands(said, tables),
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


def _architecture(said: Said, family: Family) -> Architecture:
    """Sizes from the row; norm, biases and dropout from the family."""
    drops = said.get("dropout", family.dropout)
    layers, gated = said.need("layers"), said.get("gated_mlp", False)
    attention = replace(_attention(said, family), dropout=drops)
    more: dict[str, Any] = dict(family.mlp, activation=family.activation)
    mlp = MLP(ffn_hidden=said.need("ffn_hidden"), gated=gated, **more)
    dense = Block(attention=attention, norm=family.norm, dropout=drops, norms=2, mlp=mlp)
    blocks: tuple[Block, ...] = (dense,)
    kinds = (0,) * layers
    if said.get("num_experts"):
        experts = _experts(said, gated, family)
        sparse = Block(attention=attention, norm=family.norm, dropout=drops, mlp=experts)
        first = said.get("first_dense_layers", 0)
        if first > layers:
            raise InputError(
                f"first_dense_layers: must be at most the {layers} layers, got {first}"
            )
        blocks = (dense, sparse) if first else (sparse,)
        kinds = (0,) * first + (1 if first else 0,) * (layers - first)
    position: Any = said.word("position", _POSITIONS, "rope")
    model = Architecture(
        name=said.need("model"),
        family=said.need("family"),
        hidden=said.need("hidden"),
        blocks=blocks,
        layer_kinds=kinds,
        vocabulary=said.need("vocab"),
        tied_embeddings=said.get("tied_embeddings", False),
        position=position,
        max_positions=said.need("seq_len"),
        final_norm=family.norm,
    )
    if family.far is not None:
        model = _far(said, model, family.far)
    if window := said.get("sliding_window_every_second"):
        model = _windowed(model, window)
    return model.predicting_ahead(said.get("mtp_layers", 0))


def _far(said: Said, model: Architecture, far: Far) -> Architecture:
    """Windows in all layers but few, which have wide heads; norms on both ends of a block."""
    plain = model.blocks[-1]
    assert plain.attention is not None, "what a row describes has attention"
    mlp = plain.mlp
    if isinstance(mlp, MoE) and not mlp.shared_ffn_hidden:
        mlp = replace(mlp, shared_ffn_hidden=said.need("ffn_hidden"))
    near = replace(plain.attention, window=far.window)
    few = max(plain.attention.kv_heads // far.fewer_key_heads, 1)
    wide = far.wider_heads * plain.attention.head_dim
    whole = replace(plain.attention, head_dim=wide, kv_heads=few)
    blocks = tuple(replace(plain, attention=kind, mlp=mlp, norms=4) for kind in (near, whole))
    kinds = tuple(int(layer % far.every == far.every - 1) for layer in range(model.layers))
    return replace(model, blocks=blocks, layer_kinds=kinds, logit_softcap=True)


def _windowed(model: Architecture, window: int) -> Architecture:
    """Give every second layer, the first one among them, a sliding window."""
    last = model.blocks[-1]
    assert last.attention is not None, "a window belongs to attention"
    blocks = (*model.blocks, replace(last, attention=replace(last.attention, window=window)))
    kinds = [len(blocks) - 1 if i % 2 == 0 else kind for i, kind in enumerate(model.layer_kinds)]
    return replace(model, blocks=blocks, layer_kinds=tuple(kinds))


def _experts(said: Said, gated: bool, family: Family) -> MoE:
    experts, top_k = said.need("num_experts"), said.need("top_k")
    if top_k > experts:
        raise InputError(f"top_k: must be at most the {experts} experts, got {top_k}")
    more: dict[str, Any] = dict(family.experts)
    return MoE(
        experts=experts,
        top_k=top_k,
        gated=gated,
        ffn_hidden=said.need("moe_ffn_hidden"),
        shared_ffn_hidden=said.get("shared_expert_ffn", 0),
        **more,
    )


def _attention(said: Said, family: Family) -> Attention:
    heads = said.need("heads")
    if said.get("kv_lora_rank"):
        rope = said.need("qk_rope_head_dim")
        return Attention(
            heads=heads,
            kv_heads=heads,
            rope_head_dim=rope,
            head_dim=said.need("qk_nope_head_dim") + rope,
            value_head_dim=said.need("v_head_dim"),
            q_lora_rank=said.get("q_lora_rank", 0),
            kv_lora_rank=said.need("kv_lora_rank"),
        )
    kv_heads = said.need("kv_heads")
    if heads % kv_heads:
        raise InputError(f"kv_heads: must divide the {heads} heads, got {kv_heads}")
    more: dict[str, Any] = dict(family.attention)
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=said.need("head_dim"), **more)


def _recipe(said: Said, stands: Nearest, tables: Tables) -> Recipe:
    precision, optimizer = said.need("precision"), said.need("optimizer")
    dtype = precision if precision in PRECISIONS else precision_named(precision)
    if dtype not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise InputError(
            f"precision: must be one of {', '.join(PRECISIONS)}, got {brief(precision)}{hint}"
        )
    ours = "adamw" if optimizer == "adam" else optimizer
    if ours not in OPTIMIZERS:
        raise NotReplayable(f"optimizer {optimizer} is not modelled yet")
    usual = _software_profile(stands.profile).supports.fp8_weights_usual
    alone = dtype in tables.fp8_weights.get(stands.known, usual) and said.get("sharding") != "ddp"
    raw: dict[str, Any] = {
        "sequence_length": said.need("seq_len"),
        "global_batch": said.need("global_batch"),
        "precision": dtype,
        "optimizer": ours,
        "fp8_weights": said.get("fp8_weights", alone),
    }
    if capacity := said.get("capacity_factor"):  # "padded and dropped to this capacity"
        raw |= {"moe_capacity_factor": capacity, "moe_pads_to_capacity": True}
    if routing := said.word("moe_routing", get_args(Routing)):
        raw["moe_routing"] = routing
    elif (even := said.get("moe_balanced")) is not None:
        raw["moe_routing"] = "forced" if even else "adapting"
    if moments := said.word("moment_dtype", _MOMENTS):
        raw["moment_dtype"] = moments
    for column in ("lengths", "loss_chunks", "optimizer_in_backward"):
        if value := said.get(column):
            raw[column] = value
    if rank := said.get("lora_rank"):
        raw |= {"lora_rank": rank, "quantised_base": said.get("quantised_base", False)}
        if targets := said.get("lora_targets"):
            raw["lora_targets"] = targets.split("+")
    return build(Recipe, raw, where="recipe")


# --- the machine, the framework, the layout ----------------------------------------------


@lru_cache(maxsize=128)
def _profile(name: str) -> Cluster:
    return load_cluster(name, 1)


@lru_cache(maxsize=64)
def _software_profile(name: str) -> Software:
    return load_software(name)


def _stands(said: Said, tables: Tables) -> Nearest:
    """The release whose profile stands for the row's software."""
    try:
        return tables.releases.nearest(said.need("software"), where="software")
    except UnknownFamily as error:
        raise NotReplayable(str(error)) from None


@lru_cache(maxsize=1)
def _homes() -> dict[str, str]:
    """The cluster with the shortest name that has an accelerator, by the accelerator's name."""
    homes: dict[str, str] = {}
    for name in sorted(catalogue.names("clusters"), key=lambda name: (len(name), name)):
        homes.setdefault(_profile(name).accelerator.name, name)
    return homes


def _cluster_name(said: Said, tables: Tables) -> str:
    """The cluster whose server carries a GPU: by a word of the tables or a name of a profile."""
    gpu = said.need("gpu")
    on_fabric = tables.clusters_on.get(said.get("fabric", ""), {})
    if gpu in on_fabric:
        return on_fabric[gpu]
    if gpu in tables.clusters:
        return tables.clusters[gpu]
    word = plain_device(gpu)
    near = {plain_device(name): name for name in catalogue.names("clusters")}
    if word in near:
        return near[word]
    homes = _homes()
    if (device := accelerator_named(gpu, homes)) is not None:
        return homes[device]
    known = (*tables.clusters, *homes, *catalogue.names("clusters"))
    raise NotReplayable(f"no hardware profile for {gpu}{did_you_mean(gpu, known)}")


def _cluster(said: Said, tables: Tables) -> Cluster:
    """The profile's server, with the row's network, domain and number of GPUs."""
    base = _profile(_cluster_name(said, tables))
    usual = base.node.accelerators
    gpus, per_node = said.need("num_gpus"), said.get("gpus_per_node", usual)
    if gpus > per_node and gpus % per_node:
        raise InputError(f"num_gpus: must fill nodes of {per_node} GPUs, got {gpus}")
    domain = base.node.scale_up.domain if per_node == usual else per_node
    domain, gigabits = said.get("nvlink_domain", domain), said.get("nic_gbit_per_gpu", 0)
    kind = said.get("fabric", "")
    if not _TORUS.fullmatch(kind):
        kind = said.word("fabric", (*tables.fabric, _ONE_NODE), _ONE_NODE)
    node, fabric = _server(base, tables, per_node, domain, gigabits, kind)
    group = NodeGroup(node=node, accelerator=base.accelerator, gpus=gpus)
    return replace(base, groups=(group,), fabric=fabric)


@for_same_records(256)
def _server(
    base: Cluster, tables: Tables, per_node: int, domain: int, gigabits: float, kind: str
) -> tuple[Node, Fabric]:
    """Server and fabric of rows that say the same of them: one record, whose prices stay known."""
    node, fabric = base.node, base.fabric
    scale_up = replace(node.scale_up, domain=domain)
    node = replace(node, accelerators=per_node, scale_up=scale_up)
    if gigabits:
        rate = Figure(gigabits * 1e9 / 8)
        out = replace(node.scale_out, adapters=per_node, adapter_bytes_per_s=rate)
        node = replace(node, scale_out=out)
    if slice_of_torus := _TORUS.fullmatch(kind):
        axes = tuple(int(axis) for axis in slice_of_torus[1].lower().split("x"))
        node = replace(node, scale_up=replace(node.scale_up, torus=axes, domain=math.prod(axes)))
    elif kind in tables.fabric:
        fabric = replace(fabric, usable_fraction=tables.fabric[kind])
    return node, fabric


def _software(said: Said, stands: Nearest, tables: Tables) -> Software:
    """The profile, with what the row states put over it."""
    device = _profile(_cluster_name(said, tables)).accelerator.name
    family = said.need("family")
    stated = {
        column.removeprefix(SOFTWARE): said.get(column)
        for column in (*said.values, *said.wrong)
        if column.startswith(SOFTWARE) or is_switch(column)
    }
    if str(stated.get("cuda_graphs", "false")).lower() == "false":
        stated.pop("cuda_graph_scope", None)
    return _overridden(stands, device, family, pickle.dumps(stated))


@lru_cache(maxsize=256)
def _overridden(stands: Nearest, device: str, family: str, stated: bytes) -> Software:
    """The same of rows that state the same."""
    software = _software_profile(stands.profile).standing_for(stands)
    return with_overrides(software.as_recipes_on(device, family), pickle.loads(stated))


def _layout(said: Said, software: Software) -> Layouts:
    """Degrees and switches; what is not stated is as the software's users have it."""
    can = software.supports
    usual_sharding = "zero1" if "zero1" in can.sharding_with_pipeline else can.sharding[-1]
    numbers = ("tp", "pp", "cp", "ep", "etp", "micro_batch", "vpp")
    degrees: dict[str, Any] = {name: said.get(name, 1) for name in numbers}
    gpus, degrees["global_batch"] = said.need("num_gpus"), said.need("global_batch")
    replica = accelerators(degrees["tp"], degrees["pp"], degrees["cp"])
    degrees["dp"] = said.get("dp", max(gpus // replica, 1))
    if can.experts_follow_tensor and said.get("etp") is None:
        degrees["etp"] = degrees["tp"] if said.get("num_experts") else 1
    if said.get("micro_batch") is None and not can.accumulates:
        degrees["micro_batch"] = max(degrees["global_batch"] // degrees["dp"], 1)
    if group := said.get("shard_group"):
        degrees["shard_group"] = min(group, degrees["dp"] * degrees["cp"])
    if said.get("cpu_offload"):
        layers = -(-said.need("layers") // degrees["pp"])
        degrees["offload_layers"] = min(said.get("offload_layers") or layers, layers)
    degrees["optimizer_offload"] = said.word("optimizer_offload", OFFLOADS, "none")
    degrees["sharding"] = said.get("sharding", usual_sharding)
    degrees["recompute"] = said.get("recompute", "none")
    degrees["recompute_layers"] = said.get("recompute_layers", 0)
    degrees["cp_kind"] = said.word("cp_kind", CP_KINDS, can.cp_kinds[0] if can.cp_kinds else "ring")
    if dealt := said.get("stages"):
        degrees["stages"] = dealt
    if said.get("sequence_parallel") is not None and degrees["tp"] > 1:  # off without tp
        degrees["sequence_parallel"] = int(said.get("sequence_parallel"))
    world = accelerators(degrees["tp"], degrees["pp"], degrees["cp"], degrees["dp"])
    if world != gpus:
        raise InputError(f"num_gpus: must be dp x tp x pp x cp = {world}, got {gpus}")
    ranks, experts = world // degrees["pp"], degrees["ep"] * degrees["etp"]
    if experts > ranks:
        raise InputError(f"ep: ep x etp must be at most dp x tp x cp = {ranks}, got {experts}")
    share = degrees["dp"] * degrees["micro_batch"]
    if degrees["global_batch"] % share:
        batch = degrees["global_batch"]
        raise InputError(f"global_batch: must divide by dp x micro_batch = {share}, got {batch}")
    try:
        return Layouts.of(**degrees)
    except ValueError as error:
        raise InputError(str(error)) from None
