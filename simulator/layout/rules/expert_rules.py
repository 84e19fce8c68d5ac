"""What a mixture of experts asks of the degrees, and how tokens reach the experts."""

from __future__ import annotations

from simulator.layout.layouts import DISPATCHERS, Layouts, divisors
from simulator.layout.rules.rule import (
    Case,
    Mask,
    Rule,
    Setting,
    Wording,
    divides_sizes,
    obeyed_by_all,
    software_has,
    wide,
)


def _cuts_experts(x: Layouts, at: Setting) -> Mask:
    counts = wide(moe.experts for moe in at.architecture.moes)
    return ~obeyed_by_all([count % x.ep == 0 for count in counts], len(x))


def _word_experts(case: Case) -> Wording:
    moes = case.architecture.moes
    count = next(moe.experts for moe in moes if moe.experts % case.row["ep"])
    near = case.nearest("ep", divisors(count), lambda ep: count % ep == 0)
    return Wording(f"must divide {count} experts", near=near)


EXPERTS = Rule(
    field="layout.ep",
    reason="ep does not divide the experts",
    wrong=_cuts_experts,
    wording=_word_experts,
)


def _word_folding(case: Case) -> Wording:
    row = case.row
    ranks, etp = row["dp"] * row["cp"] * row["tp"], row["etp"]
    near = case.nearest("ep", divisors(ranks), lambda ep: ranks % (ep * etp) == 0)
    must = f"ep x etp must divide dp x cp x tp = {ranks}"
    return Wording(must, f"{row['ep']} x {etp}", [f"ep {ep}" for ep in near])


FOLDING = Rule(
    field="layout.ep",
    reason="ep x etp does not divide dp x cp x tp",
    wrong=lambda x, at: (x.dp * x.cp * x.tp) % (x.ep * x.etp) != 0,
    wording=_word_folding,
)


EXPERT_WIDTH = divides_sizes(
    field="layout.etp",
    reason="etp does not divide the expert width",
    sizes=lambda arch: [moe.ffn_hidden for moe in arch.moes],
    must="must divide the expert width {}",
)


def _word_dense(case: Case) -> Wording:
    name = "ep" if case.row["ep"] > 1 else "etp"
    must = f"must be 1: {case.architecture.name} has no experts"
    return Wording(must, near=[1], field=f"layout.{name}")


DENSE = Rule(
    field="layout.ep",
    reason="experts need ep, etp = 1 on a dense model",
    wrong=lambda x, at: (x.ep * x.etp > 1) & (not at.architecture.moes),
    wording=_word_dense,
)


def _splits_tokens(x: Layouts, at: Setting) -> Mask:
    return (x.sequence_parallel == 0) & (x.tp > 1) & bool(at.architecture.moes)


SEQUENCE_PARALLEL_EXPERTS = Rule(
    field="layout.sequence_parallel",
    reason="experts with tp > 1 need sequence parallelism",
    wrong=_splits_tokens,
    wording=lambda case: Wording("must be true: experts with tp > 1 need it"),
)


# --- dispatch; with one expert rank there is nothing to send -----------------------------------


DISPATCHER = software_has(
    field="layout.dispatcher",
    reason="the software has no such dispatch of tokens to experts",
    words=DISPATCHERS,
    allowed="dispatchers",
    of=lambda x: x.ep * x.etp > 1,
)


def _gathers_beside(x: Layouts, at: Setting) -> Mask:
    """All tokens gathered where only a share of them may go, or beside compute.

    megatron/core/transformer/transformer_config.py: moe_expert_capacity_factor works with alltoall,
    overlap_moe_expert_parallel_comm with alltoall and flex.
    """
    gathers = (x.ep * x.etp > 1) & (x.dispatcher == DISPATCHERS.index("allgather"))
    capacity = at.workload.recipe.moe_capacity_factor is not None
    return gathers & (capacity or at.software.overlap.expert)


def _word_all_gather(case: Case) -> Wording:
    others = [word for word in case.software.supports.dispatchers if word != "allgather"]
    capacity = case.workload.recipe.moe_capacity_factor is not None
    why = "training.moe_capacity_factor" if capacity else "overlapped expert traffic"
    return Wording(f"must not be allgather with {why}", near=others)


ALL_GATHER = Rule(
    field="layout.dispatcher",
    reason="an all-gather of tokens takes neither a capacity factor nor overlapped expert traffic",
    wrong=_gathers_beside,
    wording=_word_all_gather,
)
