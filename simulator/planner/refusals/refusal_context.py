"""Why a layout's context parallelism cannot run, in the words of the field that is wrong."""

from __future__ import annotations

from collections.abc import Callable

from simulator.planner.candidates import divisors
from simulator.planner.refusals.case import Case

__all__ = ["SENTENCES", "kind"]


def kind(case: Case) -> str:
    """The software has no such kind, or none at all."""
    software = case.scenario.software
    words = software.supports.cp_kinds
    if not words:
        return case.line(
            "layout.cp", f"must be 1: {software.name} has no context parallelism", near=[1]
        )
    rule = f"must be one of {', '.join(words)} in {software.name}"
    return case.line("layout.cp_kind", rule, repr(case.row["cp_kind"]))


def _heads(case: Case) -> str:
    """Ulysses over cp ranks that do not divide the key/value heads."""
    fewest = _fewest_heads(case)
    rule = f"must divide the {fewest} key/value heads of a tensor-parallel rank with all_to_all"
    near = case.nearest("cp", divisors(fewest), lambda cp: fewest % cp == 0)
    return case.line("layout.cp", rule, near=near)


def _groups(case: Case) -> str:
    """Groups of hierarchical context parallelism that do not fit cp, or that nothing asks for."""
    cp, word = case.row["cp"], case.row["cp_kind"]
    proper = [size for size in divisors(cp) if 1 < size < cp]
    if word != "hierarchical" or cp == 1:
        return case.line(
            "layout.cp_a2a", "must be 1 without hierarchical context parallelism", near=[1]
        )
    if not proper:
        rule = "must be a product of two numbers above 1 with hierarchical context parallelism"
        return case.line("layout.cp", rule, near=[4])
    rule = f"must divide cp = {cp} and leave a ring of two ranks or more"
    fewest = _fewest_heads(case)
    return case.line(
        "layout.cp_a2a", rule, near=[x for x in proper if fewest % x == 0][-1:] or proper[:1]
    )


def _group_heads(case: Case) -> str:
    """Groups of hierarchical context parallelism that do not divide the key/value heads."""
    fewest, cp = _fewest_heads(case), case.row["cp"]
    rule = f"must divide the {fewest} key/value heads of a tensor-parallel rank"
    near = [x for x in divisors(cp) if 1 < x < cp and fewest % x == 0]
    return case.line("layout.cp_a2a", rule, near=near[-1:])


def _fewest_heads(case: Case) -> int:
    counts = [kind.attention for kind in case.scenario.workload.architecture.blocks]
    tp = case.row["tp"]
    return min(max((a.heads if a.is_mla else a.kv_heads) // tp, 1) for a in counts)


SENTENCES: dict[str, Callable[[Case], str]] = {
    "all_to_all needs key/value heads that cp divides on every tensor-parallel rank": _heads,
    "cp_a2a goes with hierarchical context parallelism, where it divides cp and leaves a ring": (
        _groups
    ),
    "hierarchical context parallelism needs key/value heads that cp_a2a divides on every rank": (
        _group_heads
    ),
}
"""The sentence of each reason."""
