"""Which layouts can run at all: divisibility, the cluster, and what the software supports.

An infeasible layout is a result with a reason, not an error: the search counts reasons.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules import (
    context_rules,
    divisibility_rules,
    expert_rules,
    host_rules,
    schedule_rules,
    sharding_rules,
    software_rules,
)
from simulator.layout.rules.rule import Rule, Setting
from simulator.software.profile import Software
from simulator.workload.recipe import Workload

FEASIBLE = 0

RULES: tuple[Rule, ...] = (
    divisibility_rules.WORLD,
    divisibility_rules.TRACED,
    divisibility_rules.HEADS,
    divisibility_rules.KV_HEADS,
    divisibility_rules.MLP_WIDTH,
    divisibility_rules.SEQUENCE,
    divisibility_rules.STAGES,
    divisibility_rules.EVEN_STAGES,
    divisibility_rules.BATCH,
    schedule_rules.INTERLEAVING,
    expert_rules.EXPERTS,
    expert_rules.FOLDING,
    expert_rules.EXPERT_WIDTH,
    expert_rules.DENSE,
    software_rules.SEQUENCE_PARALLEL,
    expert_rules.SEQUENCE_PARALLEL_EXPERTS,
    software_rules.TENSOR,
    software_rules.PIPELINE,
    context_rules.KIND,
    software_rules.EXPERT_PARALLEL,
    sharding_rules.SHARDING,
    sharding_rules.SHARDED_PIPELINE,
    sharding_rules.SHARDED_TENSOR,
    software_rules.RECOMPUTATION,
    software_rules.RANK_ORDER,
    divisibility_rules.RECOMPUTE_LAYERS,
    software_rules.RECOMPUTE_MODULES,
    sharding_rules.SHARD_GROUP,
    host_rules.LAYERS,
    host_rules.ACTIVATIONS,
    host_rules.HOST_LINK,
    schedule_rules.SCHEDULE,
    host_rules.OPTIMIZER,
    host_rules.HOST_OPTIMIZER,
    host_rules.PARAMETERS,
    divisibility_rules.STEP_IN_BACKWARD,
    context_rules.ALL_TO_ALL_HEADS,
    sharding_rules.HYBRID,
    sharding_rules.RESHARD,
    host_rules.DRIVES_SUPPORT,
    host_rules.DRIVES,
    expert_rules.DISPATCHER,
    expert_rules.ALL_GATHER,
    host_rules.RECOMPUTE,
    host_rules.GRAPHS,
    host_rules.ALL_LAYERS,
    sharding_rules.FP8_WEIGHTS,
    host_rules.FP8_WEIGHTS,
    context_rules.GROUPS,
    context_rules.GROUP_HEADS,
    schedule_rules.POST_VALIDATION,
    context_rules.MIXER_SHARES,
    context_rules.MIXER_CONTEXT,
    divisibility_rules.SPLIT,
)
"""Every rule; the first one that a layout breaks is reported."""

REASONS = ("feasible", *map(attrgetter("reason"), RULES))
"""Reason by code: a rule's code is its place in RULES, counted from 1."""

DEPEND_ON_DP = (
    divisibility_rules.WORLD,
    divisibility_rules.BATCH,
    schedule_rules.INTERLEAVING,
    expert_rules.FOLDING,
    sharding_rules.SHARD_GROUP,
)
"""Rules that may only be broken because the data-parallel degree is wrong."""

DEPEND_ON_RECOMPUTATION = (
    divisibility_rules.TRACED,
    software_rules.RECOMPUTATION,
    divisibility_rules.RECOMPUTE_LAYERS,
    software_rules.RECOMPUTE_MODULES,
    host_rules.RECOMPUTE,
)
"""Rules that look at what is recomputed; all others say the same of every kind of it."""


def code_of(rule: Rule) -> int:
    """Reason code of a rule."""
    return _CODES[rule]


_CODES = {rule: code for code, rule in enumerate(RULES, start=1)}


def reasons(
    layouts: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
    *,
    rules: tuple[Rule, ...] = RULES,
) -> NDArray[np.int8]:
    """Give each layout its reason code: an index into REASONS, 0 where it can run by `rules`."""
    setting = Setting(workload=workload, cluster=cluster, software=software)
    code = np.zeros(len(layouts), dtype=np.int8)
    for rule in rules:
        broken = rule.wrong(layouts, setting)
        if np.count_nonzero(broken):  # sooner than `any`: mostly of one row
            code = np.where((code == FEASIBLE) & broken, np.int8(_CODES[rule]), code)
    return code
