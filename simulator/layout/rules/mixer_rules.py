"""What mixers in place of attention ask of a layout."""

from __future__ import annotations

from simulator.layout.degrees import divisors
from simulator.layout.layouts import Layouts
from simulator.layout.rules.rule import Case, Mask, Rule, Setting, Wording, obeyed_by_all, wide
from simulator.workload.architecture import Architecture


def _shares(arch: Architecture) -> list[int]:
    return [count for mixer in arch.mixers for count in mixer.shares]


def _cuts_shares(x: Layouts, at: Setting) -> Mask:
    return ~obeyed_by_all([count % x.tp == 0 for count in wide(_shares(at.architecture))], len(x))


def _word_shares(case: Case) -> Wording:
    wrong = next(count for count in _shares(case.architecture) if count % case.row["tp"])
    near = case.nearest("tp", divisors(case.cluster.gpus), lambda tp: wrong % tp == 0)
    return Wording(f"must divide {wrong} heads or groups of a mixer", near=near)


SHARES = Rule(
    field="layout.tp",
    reason="tp does not divide the heads and groups of a mixer in place of attention",
    wrong=_cuts_shares,
    wording=_word_shares,
)


def _word_context(case: Case) -> Wording:
    name = case.architecture.name
    must = f"must be 1: how {name} passes states between context-parallel ranks is not modelled"
    return Wording(must, near=[1])


CONTEXT = Rule(
    field="layout.cp",
    reason="context parallelism of mixers in place of attention is not modelled",
    wrong=lambda x, at: (x.cp > 1) & bool(at.architecture.mixers),
    wording=_word_context,
)
