"""The layout that is meant when only some of its fields are given: stated defaults for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.layout.layouts import Layouts, data_parallel_degree, divisors
from simulator.layout.rules.context_rules import fewest_kv_heads
from simulator.scenario import Scenario
from simulator.schedules.registry import SCHEDULES, usual
from simulator.software.profile import Software
from simulator.software.supports import Supports

DEFAULTS = {
    "tp": "1",
    "pp": "1; as many as stages has pieces, over vpp",
    "vpp": "1; 2 where a V-shaped schedule is given",
    "cp": "1",
    "cp_kind": "the first that the software has; hierarchical where cp_a2a is above 1",
    "cp_a2a": "1; with hierarchical the largest group that divides cp and the key/value heads of a"
    " rank, leaves a ring, and stays in a scale-up domain if any does",
    "dp": "cluster.gpus / (tp x pp x cp)",
    "ep": "1",
    "etp": "1 (Megatron-LM's own default is tp; the launch command names it either way)",
    "dispatcher": "the first that the software has",
    "micro_batch": "1",
    "sharding": "zero1 where the software can combine it with the other degrees, else its fully"
    " sharded kind (zero2 with pp > 1); ddp on a single data-parallel rank; zero3 where"
    " reshard_after_forward is given, zero2 where it is false",
    "shard_group": "dp x cp",
    "reshard_after_forward": "true; with pp > 1 as the software does",
    "sequence_parallel": "true where tp > 1 and the software has it",
    "recompute": "none; full where recompute_layers, selective where recompute_modules is given",
    "recompute_layers": "0: every layer that recompute covers",
    "recompute_modules": "none: what selective recomputation names in the software",
    "offload_layers": "0: no activations in host memory",
    "optimizer_offload": "none",
    "parameter_offload": "none",
    "schedule": "interleaved where vpp > 1, else 1f1b",
    "rank_order": "the first that the software has",
    "stages": "dealt evenly, embedding and head as a layer each where that divides",
}
"""What a layout field means when it is not given, in the order in which they are filled."""


def complete(
    scenario: Scenario, pinned: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fill the layout fields that are not given, as DEFAULTS says.

    Returns
    -------
    row, defaults : dict
        The whole layout as keywords of ``Layouts.of``, and the part of it that was filled.
    """
    row: dict[str, Any] = {**pinned, "global_batch": scenario.workload.recipe.global_batch}
    filled: dict[str, Any] = {}

    def default(name: str, value: Any) -> None:
        if name not in row:
            row[name] = filled[name] = value

    can = scenario.software.supports
    pieces = len(row.get("stages") or ())
    default("tp", 1)
    default("pp", max(pieces // row.get("vpp", 1), 1))
    default("cp", 1)
    schedule = SCHEDULES.get(row.get("schedule", ""))
    default("vpp", schedule.only_chunks if schedule and row["pp"] > 1 else 1)
    dp = data_parallel_degree(scenario.cluster.gpus, row["tp"], row["pp"], row["cp"])
    default("dp", max(dp, 1))
    for name in ("ep", "etp", "micro_batch"):
        default(name, 1)
    reshard = row.get("reshard_after_forward")
    if reshard is False or (reshard == 1 and reshard is not True):
        row |= {"sharding": "zero2", "reshard_after_forward": True}
    elif reshard is not None:
        default("sharding", "zero3")
    default("sharding", _sharding(can, row))
    default("shard_group", row["dp"] * row["cp"])
    default("reshard_after_forward", True)
    default("sequence_parallel", row["tp"] > 1 and True in can.sequence_parallel)
    selective = "selective" if row.get("recompute_modules") else "none"
    default("recompute", "full" if row.get("recompute_layers") else selective)
    default("recompute_layers", 0)
    default("recompute_modules", "")
    default("offload_layers", 0)
    default("optimizer_offload", "none")
    default("parameter_offload", "none")
    default("schedule", usual(row["vpp"]))
    kind = "hierarchical" if row.get("cp_a2a", 1) > 1 else (*can.cp_kinds, "ring")[0]
    default("cp_kind", kind)
    default("cp_a2a", _group(scenario, row))
    default("dispatcher", can.dispatchers[0] if can.dispatchers else "alltoall")
    default("rank_order", can.rank_orders[0])
    default("stages", [])
    return row, filled


def layout_fields(scenario: Scenario, layouts: Layouts, i: int = 0) -> dict[str, Any]:
    """One layout as `predict` takes it back, field by field.

    ``reshard_after_forward`` is null where it says nothing: no zero3, or a pipeline of software
    that then keeps parameters whole.
    """
    row = layouts.row(i)
    whole = row["pp"] > 1 and scenario.software.fsdp2.keeps_gathered_with_pipeline
    if row["sharding"] != "zero3" or whole:
        row["reshard_after_forward"] = None
    return row


def stated_layout(row: Mapping[str, Any], software: Software) -> dict[str, Any]:
    """A whole layout as fields of the section [layout]; dp and groups of all follow the cluster."""
    left_out = {"global_batch", "dp"} | ({"cp_kind", "cp_a2a"} if row["cp"] == 1 else set())
    whole = row["pp"] > 1 and software.fsdp2.keeps_gathered_with_pipeline
    if row["sharding"] != "zero3" or whole or row["reshard_after_forward"] is True:
        left_out.add("reshard_after_forward")
    if row["shard_group"] == row["dp"] * row["cp"]:
        left_out.add("shard_group")
    return {name: value for name, value in row.items() if name not in left_out}


def _group(scenario: Scenario, row: Mapping[str, Any]) -> int:
    """Ranks of an all-to-all group that hierarchical context parallelism would take."""
    if row["cp_kind"] != "hierarchical":
        return 1
    fewest = fewest_kv_heads(scenario.workload.architecture, row["tp"])
    proper = [size for size in divisors(row["cp"]) if 1 < size < row["cp"]]
    fine = [size for size in proper if fewest % size == 0]
    near = [size for size in fine if size * row["tp"] <= scenario.cluster.domain]
    return max(near or fine[:1] or proper[:1] or [1])


def _sharding(can: Supports, row: Mapping[str, Any]) -> str:
    """The sharding that the framework would use with these degrees."""
    possible = [
        word
        for word in can.sharding
        if (row["pp"] == 1 or word in can.sharding_with_pipeline)
        and (row["tp"] == 1 or word in can.sharding_with_tensor)
    ]
    full = ("zero3", "zero2") if row["pp"] == 1 else ("zero2", "zero3")
    alone = row["dp"] * row["cp"] == 1
    order = ("ddp", "zero1", *full) if alone else ("zero1", *full, "ddp")
    return next((word for word in order if word in possible), can.sharding[0])
