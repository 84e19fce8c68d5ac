"""What context parallelism and mixers in place of attention ask of software, cp and heads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.arrays import Ints
from simulator.layout.layouts import CP_KINDS, Layouts, divisors
from simulator.layout.rules.rule import (
    Case,
    Mask,
    Rule,
    Setting,
    Wording,
    among,
    divides_sizes,
    obeyed_by_all,
    wide,
)
from simulator.workload.architecture import Architecture


def _word_kind(case: Case) -> Wording:
    words, name = case.software.supports.cp_kinds, case.software.name
    if not words:
        return Wording(f"must be 1: {name} has no context parallelism", near=[1], field="layout.cp")
    return Wording(f"must be one of {', '.join(words)} in {name}", repr(case.row["cp_kind"]))


KIND = Rule(
    field="layout.cp_kind",
    reason="the software has no such context parallelism",
    wrong=lambda x, at: (x.cp > 1) & ~among(x.cp_kind, CP_KINDS, at.software.supports.cp_kinds),
    wording=_word_kind,
)


# --- heads split over context-parallel ranks ----------------------------------------------------


def _splits_heads(
    kind: str, ranks: Callable[[Layouts], Ints]
) -> Callable[[Layouts, Setting], Mask]:
    """Ulysses splits the heads of a tensor-parallel rank over `ranks`.

    TransformerEngine (AttnFuncWithCPAndQKVOA2A) asks this of queries and of keys and values, which
    it does not repeat; a rank whose tp is above the key/value heads has one of them. DeepSpeed
    (runtime/sequence_parallel/ulysses_sp.py) repeats them where they divide the ranks.
    """

    def wrong(x: Layouts, at: Setting) -> Mask:
        splits = (x.cp > 1) & (x.cp_kind == CP_KINDS.index(kind))
        if not splits.any():
            return splits
        blocks = at.architecture.blocks
        kinds = [a for b in blocks for a in (b.attention, b.cross_attention) if a]
        queries = wide(a.heads for a in kinds)
        keys = wide(a.heads if a.is_mla else a.kv_heads for a in kinds)
        shares = np.maximum(ranks(x), 1)
        even = [np.maximum(count // x.tp, 1) % shares == 0 for count in queries]
        for count in keys:
            heads = np.maximum(count // x.tp, 1)
            repeated = at.software.supports.repeats_keys_over_cp & (shares % heads == 0)
            even.append((heads % shares == 0) | repeated)
        return np.asarray(splits & ~obeyed_by_all(even, len(x)))

    return wrong


def fewest_kv_heads(arch: Architecture, tp: int) -> int:
    """Key/value heads of a tensor-parallel rank, one at the least, in the block with the fewest."""
    heads = [a.heads if a.is_mla else a.kv_heads for a in arch.attentions]
    return min((max(count // tp, 1) for count in heads), default=1)


def _word_all_to_all(case: Case) -> Wording:
    fewest = fewest_kv_heads(case.architecture, case.row["tp"])
    if case.software.supports.repeats_keys_over_cp:
        queries = min(a.heads for a in case.architecture.attentions) // case.row["tp"] or 1
        must = f"must divide the {queries} heads of a tensor-parallel rank, and divide or be a"
        must += f" multiple of its {fewest} key/value heads, with all_to_all"
        near = case.nearest("cp", divisors(queries), lambda cp: not (fewest % cp and cp % fewest))
        return Wording(must, near=near)
    must = f"must divide the {fewest} key/value heads of a tensor-parallel rank with all_to_all"
    return Wording(must, near=case.nearest("cp", divisors(fewest), lambda cp: fewest % cp == 0))


ALL_TO_ALL_HEADS = Rule(
    field="layout.cp",
    reason="all_to_all needs key/value heads that cp divides on every tensor-parallel rank",
    wrong=_splits_heads("all_to_all", lambda x: x.cp),
    wording=_word_all_to_all,
)


def _word_group_heads(case: Case) -> Wording:
    fewest, cp = fewest_kv_heads(case.architecture, case.row["tp"]), case.row["cp"]
    near = [size for size in divisors(cp) if 1 < size < cp and fewest % size == 0]
    must = f"must divide the {fewest} key/value heads of a tensor-parallel rank"
    return Wording(must, near=near[-1:])


GROUP_HEADS = Rule(
    field="layout.cp_a2a",
    reason="hierarchical context parallelism needs key/value heads that cp_a2a divides on every"
    " rank",
    wrong=_splits_heads("hierarchical", lambda x: x.cp_a2a),
    wording=_word_group_heads,
)


# --- groups of hierarchical context parallelism -------------------------------------------------


def _misfits_groups(x: Layouts, at: Setting) -> Mask:
    """Hierarchical context parallelism has groups of cp_a2a ranks, and rings of two or more."""
    grouped = (x.cp > 1) & (x.cp_kind == CP_KINDS.index("hierarchical"))
    size = np.maximum(x.cp_a2a, 1)
    divides = (size > 1) & (size < x.cp) & (x.cp % size == 0)
    return np.asarray(np.where(grouped, ~divides, size > 1))


def _word_groups(case: Case) -> Wording:
    """Groups that do not fit cp, or that nothing asks for."""
    cp, word = case.row["cp"], case.row["cp_kind"]
    if word != "hierarchical" or cp == 1:
        return Wording("must be 1 without hierarchical context parallelism", near=[1])
    proper = [size for size in divisors(cp) if 1 < size < cp]
    if not proper:
        must = "must be a product of two numbers above 1 with hierarchical context parallelism"
        return Wording(must, near=[4], field="layout.cp")
    fewest = fewest_kv_heads(case.architecture, case.row["tp"])
    near = [size for size in proper if fewest % size == 0][-1:] or proper[:1]
    return Wording(f"must divide cp = {cp} and leave a ring of two ranks or more", near=near)


GROUPS = Rule(
    field="layout.cp_a2a",
    reason="cp_a2a goes with hierarchical context parallelism, where it divides cp and leaves a"
    " ring",
    wrong=_misfits_groups,
    wording=_word_groups,
)


MIXER_SHARES = divides_sizes(
    field="layout.tp",
    reason="tp does not divide the heads and groups of a mixer in place of attention",
    sizes=lambda arch: [count for mixer in arch.mixers for count in mixer.shares],
    must="must divide {} heads or groups of a mixer",
)


def _word_context(case: Case) -> Wording:
    name = case.architecture.name
    must = f"must be 1: how {name} passes states between context-parallel ranks is not modelled"
    return Wording(must, near=[1])


MIXER_CONTEXT = Rule(
    field="layout.cp",
    reason="context parallelism of mixers in place of attention is not modelled",
    wrong=lambda x, at: (x.cp > 1) & bool(at.architecture.mixers),
    wording=_word_context,
)
