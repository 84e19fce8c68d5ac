"""Which ranks may share states, and to how many they may be resharded after a forward pass."""

from __future__ import annotations

from math import gcd

import numpy as np

from simulator.arrays import Ints
from simulator.layout.layouts import SHARDINGS, Layouts, divisors
from simulator.layout.rules.rule import (
    Case,
    Mask,
    Rule,
    Setting,
    Wording,
    among,
    closest,
    software_has,
)

_ZERO3 = SHARDINGS.index("zero3")

SHARDING = software_has(
    field="layout.sharding",
    reason="the software has no such sharding of states",
    words=SHARDINGS,
    allowed="sharding",
)

SHARDED_PIPELINE = software_has(
    field="layout.sharding",
    reason="the software cannot combine this sharding with pp > 1",
    words=SHARDINGS,
    allowed="sharding_with_pipeline",
    of=lambda x: x.pp > 1,
    when=" with pp > 1",
)

SHARDED_TENSOR = software_has(
    field="layout.sharding",
    reason="the software cannot combine this sharding with tp > 1",
    words=SHARDINGS,
    allowed="sharding_with_tensor",
    of=lambda x: x.tp > 1,
    when=" with tp > 1",
)


def _word_shard_group(case: Case) -> Wording:
    ranks = case.row["dp"] * case.row["cp"]
    near = closest(case.row["shard_group"], divisors(ranks))
    return Wording(f"must divide dp x cp = {ranks}", near=near)


SHARD_GROUP = Rule(
    field="layout.shard_group",
    reason="shard_group does not divide dp x cp",
    wrong=lambda x, at: (x.dp * x.cp) % np.maximum(x.shard_group, 1) != 0,
    wording=_word_shard_group,
)


def _replicas(x: Layouts) -> Ints:
    """Groups of ranks that each hold all the states once."""
    return np.asarray(x.dp * x.cp // np.maximum(x.shard_group, 1))


def _same_experts(x: Layouts) -> Ints:
    """Ranks that hold the same experts."""
    return np.asarray(np.maximum(x.dp * x.cp * x.tp // (x.ep * x.etp), 1))


def _shares_among_fewer(x: Layouts, at: Setting) -> Mask:
    """Hybrid sharding that the software lacks, or whose replicas the ranks of an expert lack."""
    replicas = _replicas(x)
    hybrid = (x.sharding > 0) & (replicas > 1)
    uneven = (_same_experts(x) % np.maximum(replicas, 1) != 0) & at.architecture.is_moe
    can = at.software.supports.hybrid_sharding
    return np.asarray(hybrid & (~among(x.sharding, SHARDINGS, can) | uneven))


def _word_hybrid(case: Case) -> Wording:
    row = case.row
    ranks = row["dp"] * row["cp"]
    if row["sharding"] not in case.software.supports.hybrid_sharding:
        must = f"must be dp x cp = {ranks} with {row['sharding']} in {case.software.name}"
        return Wording(must, near=[ranks])
    experts = ranks * row["tp"] // (row["ep"] * row["etp"])
    must = f"its replicas must divide the {experts} ranks that hold the same experts"
    near = [size for size in divisors(ranks) if experts % (ranks // size) == 0]
    return Wording(must, near=closest(row["shard_group"], near))


HYBRID = Rule(
    field="layout.shard_group",
    reason="the software cannot share this sharding among fewer ranks than all replicas",
    wrong=_shares_among_fewer,
    wording=_word_hybrid,
)


def _reshards_badly(x: Layouts, at: Setting) -> Mask:
    """Parameters resharded to a group that does not divide those who share a block or its experts.

    Experts are shared by fewer ranks, which the smaller group must divide, too.
    """
    shard, group = np.maximum(x.shard_group, 1), np.maximum(x.reshard_after_forward, 1)
    per_replica = np.maximum(_same_experts(x) // np.maximum(_replicas(x), 1), 1)
    share = per_replica if at.architecture.is_moe else shard
    whole = (x.pp > 1) & at.software.fsdp2.keeps_gathered_with_pipeline
    wrong = (x.sharding != _ZERO3) | (shard % group != 0) | (share % group != 0)
    lacking = "group" not in at.software.supports.reshard
    return np.asarray((x.reshard_after_forward > 0) & (wrong | whole | lacking))


def _word_reshard(case: Case) -> Wording:
    row = case.row
    if row["sharding"] != "zero3":
        return Wording(f"needs sharding = 'zero3' (it is {row['sharding']!r})")
    if "group" not in case.software.supports.reshard:
        return Wording(f"must be left out in {case.software.name}")
    ranks = row["shard_group"]
    if case.architecture.is_moe:
        replicas = row["dp"] * row["cp"] // ranks
        ranks = gcd(ranks, row["dp"] * row["cp"] * row["tp"] // (row["ep"] * row["etp"] * replicas))
    near = closest(row["reshard_after_forward"], divisors(ranks)[1:])
    return Wording(f"must divide the {ranks} ranks that share states", near=near)


RESHARD = Rule(
    field="layout.reshard_after_forward",
    reason="reshard_after_forward needs zero3, a divisor of the ranks that share, and software"
    " that can",
    wrong=_reshards_badly,
    wording=_word_reshard,
)


def _trains_fp8_weights(at: Setting) -> bool:
    """Frozen ones need no fp32 copy: NeMo runs fp8_params with plain Adam for adapters."""
    recipe = at.workload.recipe
    return recipe.fp8_weights and recipe.lora_rank == 0


def _word_fp8_weights(case: Case) -> Wording:
    """Megatron-Core: "--fp8-param-gather only supported with distributed optimizer"."""
    words = [word for word in case.software.supports.sharding if word != "ddp"]
    must = f"must be one of {', '.join(words)} with training.fp8_weights"
    return Wording(must, repr(case.row["sharding"]))


FP8_WEIGHTS = Rule(
    field="layout.sharding",
    reason="weights in 8 bit alone need optimizer states that ranks share",
    wrong=lambda x, at: _trains_fp8_weights(at) & (x.sharding == SHARDINGS.index("ddp")),
    wording=_word_fp8_weights,
)
