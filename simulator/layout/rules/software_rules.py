"""What the training framework has, in which combinations, and what its launcher cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simulator.layout.layouts import MODULES, RANK_ORDERS, RECOMPUTE, SHARDINGS, Layouts
from simulator.layout.rules.rule import (
    Case,
    Mask,
    Rule,
    Setting,
    Wording,
    among,
    must_be_one_of,
    software_has,
)
from simulator.schedules.registry import SCHEDULES, WORDS
from simulator.software.profile import launchers

_DDP, _ZERO1, _ZERO3 = (SHARDINGS.index(word) for word in ("ddp", "zero1", "zero3"))
_FULL, _SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")

UNSAID = "the launch command of the software cannot say it"
"""Reason of layouts that a search leaves out."""


def _lacks(field: str, what: str) -> Callable[[Case], Wording]:
    """Word a degree above 1 of what the software does not have."""

    def wording(case: Case) -> Wording:
        must = f"must be 1: {case.software.name} has no {what}"
        return Wording(must, near=[1], field=f"layout.{field}")

    return wording


SEQUENCE_PARALLEL = Rule(
    field="layout.sequence_parallel",
    reason="sequence parallelism needs tp > 1",
    wrong=lambda x, at: (x.sequence_parallel > 0) & (x.tp == 1),
    wording=lambda case: Wording("must be false where tp is 1"),
)


def _lacks_tensor(x: Layouts, at: Setting) -> Mask:
    can = at.software.supports
    sequence = np.isin(x.sequence_parallel, [int(value) for value in can.sequence_parallel])
    return (x.tp > 1) & ~(can.tensor & sequence)


def _word_tensor(case: Case) -> Wording:
    if not case.software.supports.tensor:
        return _lacks("tp", "tensor parallelism")(case)
    must = str(not case.row["sequence_parallel"]).lower()
    return Wording(f"must be {must} with tp > 1 in {case.software.name}")


TENSOR = Rule(
    field="layout.sequence_parallel",
    reason="the software has no such tensor or sequence parallelism",
    wrong=_lacks_tensor,
    wording=_word_tensor,
)


def _lacks_pipeline(x: Layouts, at: Setting) -> Mask:
    can = at.software.supports
    return ((x.pp > 1) & (not can.pipeline)) | ~among(x.schedule, WORDS, can.schedules)


def _word_pipeline(case: Case) -> Wording:
    if case.row["pp"] > 1 and not case.software.supports.pipeline:
        return _lacks("pp", "pipeline parallelism")(case)
    if case.row["vpp"] > 1 and SCHEDULES[case.row["schedule"]].by_default:
        return _lacks("vpp", "interleaved schedule")(case)
    return must_be_one_of("schedule", "schedules")(case)


PIPELINE = Rule(
    field="layout.schedule",
    reason="the software has no such pipeline schedule",
    wrong=_lacks_pipeline,
    wording=_word_pipeline,
)


EXPERT_PARALLEL = Rule(
    field="layout.ep",
    reason="the software has no expert parallelism",
    wrong=lambda x, at: (x.ep * x.etp > 1) & (not at.software.supports.expert),
    wording=lambda case: _lacks("ep" if case.row["ep"] > 1 else "etp", "expert parallelism")(case),
)


RECOMPUTATION = software_has(
    field="layout.recompute",
    reason="the software has no such recomputation",
    words=RECOMPUTE,
    allowed="recompute",
)


def _lacks_modules(x: Layouts, at: Setting) -> Mask:
    can = sum(1 << MODULES.index(word) for word in at.software.supports.recompute_modules)
    named = x.recompute_modules
    return (named != 0) & ((x.recompute != RECOMPUTE.index("selective")) | (named & ~can != 0))


def _word_modules(case: Case) -> Wording:
    if case.row["recompute"] != "selective":
        return Wording(f"needs recompute = 'selective' (it is {case.row['recompute']!r})")
    return must_be_one_of("recompute_modules", "recompute_modules")(case)


RECOMPUTE_MODULES = Rule(
    field="layout.recompute_modules",
    reason="recompute_modules needs selective recomputation and modules that the software has",
    wrong=_lacks_modules,
    wording=_word_modules,
)


def _lacks_rank_order(x: Layouts, at: Setting) -> Mask:
    can = at.software.supports.rank_orders
    return ~among(x.rank_order, RANK_ORDERS, can) | _splits_experts(x, at)


def _splits_experts(x: Layouts, at: Setting) -> Mask:
    """Where pipeline ranks are not outermost, experts (etp = tp if there are none) keep to tp x cp.

    megatron/core/parallel_state.py: with any other order, the data-parallel size of the attention
    and of the MoE layers must be the same. Software without experts has no such grid.
    """
    if not at.software.supports.expert:
        return np.full(len(x), False)
    outermost = tuple(order for order in RANK_ORDERS if order.endswith("pp"))
    together = x.ep * x.etp if at.architecture.is_moe else x.tp
    moved = ~among(x.rank_order, RANK_ORDERS, outermost)
    return np.asarray((x.pp > 1) & moved & (together != x.tp * x.cp))


def _word_rank_order(case: Case) -> Wording:
    order = case.row["rank_order"]
    if order not in case.software.supports.rank_orders:
        return must_be_one_of("rank_order", "rank_orders")(case)
    row = case.row
    experts = (
        f"ep x etp = {row['ep'] * row['etp']}" if case.architecture.is_moe else f"tp = {row['tp']}"
    )
    return Wording(
        f"with pp > 1 needs {experts} to be tp x cp = {row['tp'] * row['cp']}", repr(order)
    )


RANK_ORDER = Rule(
    field="layout.rank_order",
    reason="the software has no such rank order",
    wrong=_lacks_rank_order,
    wording=_word_rank_order,
)


def _alone(x: Layouts, of: Any) -> Mask:
    """Replicas that share nothing, of ranks that do in a command's words."""
    return (x.sharding == _DDP) & (of > 1)


_Limit = Callable[[Layouts, Setting], Mask]

_LIMITS: Mapping[str, tuple[tuple[str, ...], _Limit]] = {
    "some recomputed layers": (("recompute_layers",), lambda x, at: x.recompute_layers > 0),
    "recomputed layers that virtual stages share unequally": (
        ("recompute_layers",),
        lambda x, at: (x.recompute == _FULL) & (x.recompute_layers % x.vpp != 0),
    ),
    "selective recomputation": (("recompute",), lambda x, at: x.recompute == _SELECTIVE),
    "zero1": (("sharding",), lambda x, at: x.sharding == _ZERO1),
    "zero1 in groups": (
        ("shard_group",),
        lambda x, at: (x.sharding == _ZERO1) & (x.shard_group < x.dp * x.cp),
    ),
    "ddp with cp": (("sharding", "shard_group"), lambda x, at: _alone(x, x.cp)),
    "ddp with ep": (("sharding", "shard_group"), lambda x, at: _alone(x, x.ep)),
    "groups that part context-parallel ranks": (
        ("shard_group",),
        lambda x, at: x.shard_group % x.cp != 0,
    ),
    "groups narrower than cp times ep": (
        ("shard_group",),
        lambda x, at: (x.sharding == _ZERO3) & (x.shard_group < x.cp * np.minimum(x.ep, x.dp)),
    ),
    "ep over dp": (("ep",), lambda x, at: x.ep > x.dp),
    "tp without sp": (
        ("sequence_parallel",),
        lambda x, at: (x.tp > 1) & (x.sequence_parallel == 0),
    ),
    "etp unlike tp": (
        ("etp",),
        lambda x, at: (x.etp != x.tp) & at.architecture.is_moe & (x.tp > 1),
    ),
}
"""By the word that hardware_profiles/launchers.toml has for it: fields, and of which layouts."""


def unsaid(layouts: Layouts, at: Setting) -> dict[str, Mask]:
    """Fields that the command of the software cannot say, and of which layouts."""
    masks: dict[str, Mask] = {}
    for word in launchers()[at.software.launcher].unsaid:
        fields, limit = _LIMITS[word]
        for field in fields:
            masks[field] = masks.get(field, False) | limit(layouts, at)
    return masks


def unsaid_change(layouts: Layouts, at: Setting, before: Layouts) -> Mask:
    """Layouts with a field that the software's command cannot say, unlike that of one `before`."""
    wrong = np.full(len(layouts), False)
    for field, mask in unsaid(layouts, at).items():
        wrong |= mask & (getattr(layouts, field) != getattr(before, field)[0])
    return wrong


def sayable(layouts: Layouts, at: Setting, pinned: Mapping[str, object]) -> Mask:
    """Layouts that the software's command says whole, but for what somebody pinned.

    States that groups of one rank share are shared by nobody, which ddp is the word for.
    """
    able = np.full(len(layouts), True)
    if "shard_group" not in pinned:
        alone = (layouts.shard_group == 1) & (layouts.dp * layouts.cp > 1)
        able &= ~(alone & (layouts.sharding != _DDP))
    for field, mask in unsaid(layouts, at).items():
        if field not in pinned:
            able &= ~mask
    return able
