"""Why states cannot be shared by fewer ranks, or resharded to fewer after the forward pass."""

from __future__ import annotations

from math import gcd

from simulator.planner.candidates import divisors
from simulator.planner.refusals.case import Case, closest

__all__ = ["fp8_weights", "hybrid", "reshard"]


def hybrid(case: Case) -> str:
    """Fewer ranks than all replicas share the states."""
    row, can = case.row, case.scenario.software.supports
    ranks = row["dp"] * row["cp"]
    if row["sharding"] not in can.hybrid_sharding:
        rule = f"must be dp x cp = {ranks} with {row['sharding']} in {case.scenario.software.name}"
        return case.line("layout.shard_group", rule, near=[ranks])
    experts = ranks * row["tp"] // (row["ep"] * row["etp"])
    rule = f"its replicas must divide the {experts} ranks that hold the same experts"
    near = [size for size in divisors(ranks) if experts % (ranks // size) == 0]
    return case.line("layout.shard_group", rule, near=closest(row["shard_group"], near))


def reshard(case: Case) -> str:
    """A number of ranks to reshard to that cannot be."""
    row, scenario = case.row, case.scenario
    field = "layout.reshard_after_forward"
    if row["sharding"] != "zero3":
        return case.line(field, f"needs sharding = 'zero3' (it is {row['sharding']!r})")
    ranks = row["shard_group"]
    if scenario.workload.architecture.is_moe:
        replicas = row["dp"] * row["cp"] // ranks
        ranks = gcd(ranks, row["dp"] * row["cp"] * row["tp"] // (row["ep"] * row["etp"] * replicas))
    near = closest(row["reshard_after_forward"], divisors(ranks)[1:])
    return case.line(field, f"must divide the {ranks} ranks that share states", near=near)


def fp8_weights(case: Case) -> str:
    """Megatron-Core: "--fp8-param-gather only supported with distributed optimizer"."""
    words = [word for word in case.scenario.software.supports.sharding if word != "ddp"]
    rule = f"must be one of {', '.join(words)} with training.fp8_weights"
    return case.line("layout.sharding", rule, repr(case.row["sharding"]))
