"""A measured run (one CSV row) -> workload, cluster, software and layout, ready to be predicted.

Columns are those of the measured-runs table (validation/README.md). Blank fields take the
documented default and are counted as assumed. What this version cannot express is refused with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator import catalogue
from simulator.errors import InputError, did_you_mean
from simulator.files import Figure, read_toml, record, build
from simulator.hardware.cluster import Cluster, NodeGroup, load_cluster
from simulator.layout.layout import Layouts
from simulator.software import Software, load_software
from simulator.workload.architecture import MLP, Architecture, Attention, Block, MoE
from simulator.workload.recipe import Recipe, Workload

__all__ = ["NotReplayable", "Run", "Tables", "load_tables", "replay"]


class NotReplayable(Exception):
    """Why a row cannot be predicted."""


@record
class Tables:
    """How words of the measured-runs table map to profiles: validation/replay.toml."""

    clusters: dict[str, str]
    """Cluster profile whose server carries a GPU name."""
    software: dict[str, str]
    """Software profile that stands for a software name."""
    fabric: dict[str, Figure]
    """Share of the adapter rate that collectives reach, by kind of fabric."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One measured run, ready to be predicted."""

    workload: Workload
    cluster: Cluster
    software: Software
    layout: Layouts


def load_tables() -> Tables:
    """Read validation/replay.toml."""
    path = catalogue.folder("validation") / "replay.toml"
    return build(Tables, read_toml(path), where=str(path))


def replay(row: Mapping[str, str], tables: Tables) -> Run:
    """Turn one row into a run.

    Raises
    ------
    NotReplayable
        If this version has no profile or no model for what the row describes.
    InputError
        If a field is missing, is not a number or contradicts another.
    """
    if row.get("precision") == "nvfp4":
        raise NotReplayable("nvfp4 is not modelled yet")
    if _int(row, "mtp_layers", 0):
        raise NotReplayable("multi-token prediction is not modelled yet")
    if _flag(row, "cpu_offload"):
        raise NotReplayable("activation offload is not modelled yet")
    architecture = _architecture(row)
    return Run(
        workload=Workload(architecture=architecture, recipe=_recipe(row)),
        cluster=_cluster(row, tables),
        software=_software(row, tables),
        layout=_layout(row),
    )


def _int(row: Mapping[str, str], field: str, default: int | None = None) -> int:
    text = row.get(field, "")
    if text == "" and default is not None:
        return default
    try:
        number = float(text)
        if not math.isfinite(number) or number != int(number) or number < 0:
            raise ValueError
    except ValueError:
        raise InputError(f"{field}: must be a whole number, got {text!r}") from None
    return int(number)


def _flag(row: Mapping[str, str], field: str, default: bool = False) -> bool:
    text = row.get(field, "")
    if text not in ("", "true", "false"):
        raise InputError(f"{field}: must be true or false, got {text!r}")
    return default if text == "" else text == "true"


def _architecture(row: Mapping[str, str]) -> Architecture:
    """Sizes from the row; norm, biases and dropout from the family."""
    gpt = row["family"] in ("gpt", "bloom")
    layer_norm = gpt or row["family"] in ("mpt", "nemotron")
    hidden, layers = _int(row, "hidden"), _int(row, "layers")
    gated = _flag(row, "gated_mlp")
    attention = _attention(row, gpt)
    norm = "layer" if layer_norm else "rms"
    dense = Block(attention=attention, norm=norm, dropout=gpt, norms=2,
                  mlp=MLP(ffn_hidden=_int(row, "ffn_hidden"), gated=gated, bias=gpt))  # fmt: skip
    blocks, kinds = (dense,), (0,) * layers
    if _int(row, "num_experts", 0):
        moe = MoE(experts=_int(row, "num_experts"), top_k=_int(row, "top_k"), gated=gated,
                  ffn_hidden=_int(row, "moe_ffn_hidden"),
                  shared_ffn_hidden=_int(row, "shared_expert_ffn", 0))  # fmt: skip
        sparse = Block(attention=attention, norm=norm, dropout=gpt, mlp=moe)
        first = _int(row, "first_dense_layers", 0)
        blocks, kinds = ((dense, sparse), (0,) * first + (1,) * (layers - first)) if first else ((sparse,), kinds)
    position = row.get("position") or "rope"
    return Architecture(
        name=row["model"], family=row["family"], hidden=hidden, blocks=blocks, layer_kinds=kinds,
        vocabulary=_int(row, "vocab"), tied_embeddings=_flag(row, "tied_embeddings"), position=position,
        max_positions=_int(row, "seq_len"), final_norm=norm,
    )  # fmt: skip


def _attention(row: Mapping[str, str], gpt: bool) -> Attention:
    if _int(row, "kv_lora_rank", 0):
        rope = _int(row, "qk_rope_head_dim")
        return Attention(
            heads=_int(row, "heads"), kv_heads=_int(row, "heads"),
            head_dim=_int(row, "qk_nope_head_dim") + rope, value_head_dim=_int(row, "v_head_dim"),
            q_lora_rank=_int(row, "q_lora_rank", 0), kv_lora_rank=_int(row, "kv_lora_rank"),
            rope_head_dim=rope,
        )  # fmt: skip
    return Attention(
        heads=_int(row, "heads"), kv_heads=_int(row, "kv_heads"), head_dim=_int(row, "head_dim"),
        qkv_bias=gpt, output_bias=gpt, dropout=gpt,
    )  # fmt: skip


def _recipe(row: Mapping[str, str]) -> Recipe:
    precision = row["precision"]
    short = "fp8" if "fp8" in precision else precision
    optimizer = "sgd" if row["optimizer"] == "sgd" else "adamw"
    if row["optimizer"] not in ("adam", "adamw", "sgd"):
        raise NotReplayable(f"optimizer {row['optimizer']} is not modelled yet")
    raw = {"sequence_length": _int(row, "seq_len"), "global_batch": _int(row, "global_batch"),
           "precision": short, "optimizer": optimizer}  # fmt: skip
    return build(Recipe, raw, where="row")


def _cluster(row: Mapping[str, str], tables: Tables) -> Cluster:
    """The profile's server, with the row's network, domain and number of GPUs."""
    name = tables.clusters.get(row["gpu"])
    if name is None:
        raise NotReplayable(f"no hardware profile for {row['gpu']}{did_you_mean(row['gpu'], tables.clusters)}")
    gpus, per_node = _int(row, "num_gpus"), _int(row, "gpus_per_node", 8)
    base = load_cluster(name, per_node)
    node = replace(base.node, accelerators=per_node,
                   scale_up=replace(base.node.scale_up, domain=_int(row, "nvlink_domain", per_node)))  # fmt: skip
    fabric = base.fabric
    if row.get("nic_gbit_per_gpu"):
        rate = float(row["nic_gbit_per_gpu"]) * 1e9 / 8
        node = replace(node, scale_out=replace(node.scale_out, adapters=per_node, adapter_bytes_per_s=Figure(rate)))
    kind = row.get("fabric", "single-node")
    if kind in tables.fabric:
        fabric = replace(fabric, usable_fraction=tables.fabric[kind])
    group = NodeGroup(node=node, accelerator=base.accelerator, gpus=gpus)
    return replace(base, groups=(group,), fabric=fabric)


def _software(row: Mapping[str, str], tables: Tables) -> Software:
    """The profile, with the switches that the row states."""
    name = tables.software.get(row["software"])
    if name is None:
        raise NotReplayable(f"no software profile for {row['software']} yet")
    software = load_software(name)
    overlap, kernels, host = software.overlap, software.kernels, software.host
    given = {"gradient_reduce": "overlap_grad_reduce", "parameter_gather": "overlap_param_gather"}
    flags = {ours: _flag(row, theirs) for ours, theirs in given.items() if row.get(theirs)}
    if _flag(row, "tp_comm_overlap"):
        flags["tensor"] = "userbuffers"  # type: ignore[assignment]
    if row.get("flash_attention"):
        kernels = replace(kernels, attention="flash" if _flag(row, "flash_attention") else "unfused")
    if _flag(row, "cuda_graphs"):
        host = replace(host, seconds_per_kernel=Figure(0.0))
    return replace(software, overlap=replace(overlap, **flags), kernels=kernels, host=host)


def _layout(row: Mapping[str, str]) -> Layouts:
    numbers = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "micro_batch")
    given: dict[str, Any] = {name: _int(row, name, 1) for name in numbers}
    given["global_batch"] = _int(row, "global_batch")
    if row.get("shard_group"):
        given["shard_group"] = min(_int(row, "shard_group"), given["dp"] * given["cp"])
    given["sharding"], given["recompute"] = row["sharding"], row["recompute"]
    given["recompute_layers"] = _int(row, "recompute_layers", 0)
    if row.get("sequence_parallel"):
        given["sequence_parallel"] = int(_flag(row, "sequence_parallel"))
    world = given["dp"] * given["tp"] * given["pp"] * given["cp"]
    if world != _int(row, "num_gpus"):
        raise InputError(f"dp x tp x pp x cp = {world} is not num_gpus, got {row['num_gpus']}")
    if given["global_batch"] % (given["dp"] * given["micro_batch"]):
        raise InputError(f"global_batch: must divide by dp x micro_batch, got {row['global_batch']}")
    try:
        return Layouts.of(**given)
    except ValueError as error:
        raise InputError(str(error)) from None
