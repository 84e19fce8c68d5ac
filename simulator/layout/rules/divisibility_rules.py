"""What divides into what: accelerators and batch, and the model's heads, widths and layers."""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np

from simulator.layout.layouts import CP_KINDS, RECOMPUTE, Layouts, accelerators, divisors
from simulator.layout.rules.rule import (
    Case,
    Mask,
    Rule,
    Setting,
    Wording,
    around,
    divides_sizes,
    obeyed_by_all,
    wide,
)
from simulator.layout.stages import fullest_rank, with_sum
from simulator.schedules.registry import SCHEDULES
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture, MoE


def _goes_beyond_traced(x: Layouts, at: Setting) -> Mask:
    model_parallel = x.tp * x.pp * x.cp * x.ep * x.etp > 1
    selective = x.recompute == RECOMPUTE.index("selective")
    return (model_parallel | selective) & (at.architecture.traced is not None)


def _word_traced(case: Case) -> Wording:
    name = case.architecture.name
    for degree in ("tp", "pp", "cp", "ep", "etp"):
        if case.row[degree] > 1:
            must = f"must be 1: {name} is a traced module, which runs in data parallelism only"
            return Wording(must, near=[1], field=f"layout.{degree}")
    must = f"must be none or full: of the traced module {name} no part is known alone"
    return Wording(must, repr(case.row["recompute"]))


TRACED = Rule(
    field="layout.recompute",
    reason="a traced module runs in data parallelism, with recomputation of all layers or none",
    wrong=_goes_beyond_traced,
    wording=_word_traced,
)


# --- tensor parallelism -------------------------------------------------------------------------


HEADS = divides_sizes(
    field="layout.tp",
    reason="tp does not divide the attention heads",
    sizes=lambda arch: [attention.heads for attention in arch.attentions],
    must="must divide {} attention heads",
)


def _cuts_kv_heads(x: Layouts, at: Setting) -> Mask:
    counts = wide(attention.kv_heads for attention in at.architecture.attentions)
    fits = [(count % x.tp == 0) | (x.tp % count == 0) for count in counts]
    return ~obeyed_by_all(fits, len(x))


def _word_kv_heads(case: Case) -> Wording:
    counts = [attention.kv_heads for attention in case.architecture.attentions]
    degree = case.row["tp"]
    wrong = next(count for count in counts if count % degree and degree % count)
    must = f"must divide or be a multiple of {wrong} key/value heads"
    near = case.nearest(
        "tp", divisors(case.cluster.gpus), lambda tp: wrong % tp == 0 or tp % wrong == 0
    )
    return Wording(must, near=near)


KV_HEADS = Rule(
    field="layout.tp",
    reason="tp and the key/value heads do not divide one another",
    wrong=_cuts_kv_heads,
    wording=_word_kv_heads,
)


def _mlp_widths(arch: Architecture) -> list[int]:
    """Width of the dense MLP of every kind of block: the shared experts', where it has experts."""
    return [mlp.shared_ffn_hidden if isinstance(mlp, MoE) else mlp.ffn_hidden for mlp in arch.mlps]


MLP_WIDTH = divides_sizes(
    field="layout.tp",
    reason="tp does not divide the MLP width",
    sizes=_mlp_widths,
    must="must divide the MLP width {}",
)


def _cuts_sequence(x: Layouts, at: Setting) -> Mask:
    sharded = np.where(x.sequence_parallel > 0, x.tp, 1)
    mirrored = (x.cp > 1) & ~_in_pieces(x.cp_kind == CP_KINDS.index("all_to_all"), at.software)
    shares = x.cp * np.where(mirrored, 2, 1) * sharded
    return np.asarray(at.workload.recipe.sequence_length % shares != 0)


def _in_pieces(all_to_all: Any, software: Software) -> Any:
    """Whether ranks of context parallelism have a piece each, none mirrored."""
    return all_to_all & software.supports.repeats_keys_over_cp


def _word_sequence(case: Case) -> Wording:
    row, length = case.row, case.workload.recipe.sequence_length
    twice = row["cp"] > 1 and not _in_pieces(row["cp_kind"] == "all_to_all", case.software)
    shares = row["tp"] * row["cp"] * (2 if twice else 1)
    name = "2 x cp x tp" if twice else "cp x tp" if row["cp"] > 1 else "tp"
    return Wording(f"must divide by {name} = {shares}", length, around(length, shares))


SEQUENCE = Rule(
    field="training.sequence_length",
    reason="tp, cp do not divide the sequence length",
    wrong=_cuts_sequence,
    wording=_word_sequence,
)


# --- layers -------------------------------------------------------------------------------------


def _word_stages(case: Case) -> Wording:
    row, layers = case.row, case.architecture.layers
    name = "pp" if row["vpp"] == 1 else "vpp"
    most = layers if name == "pp" else layers // row["pp"]
    must = f"pp x vpp must be at most the {layers} layers (or {layers + 2}: embedding and head)"
    near = case.nearest(name, range(1, most + 1), lambda value: value <= most)
    return Wording(must, near=near, field=f"layout.{name}")


def _has_empty_stages(x: Layouts, at: Setting) -> Mask:
    """More pieces than layers, but where embedding and head have one each to themselves."""
    layers, pieces = at.architecture.layers, x.pp * x.vpp
    ends = (x.vpp > 1) & (pieces == layers + 2) & at.software.supports.uneven_stages
    return np.asarray((layers < pieces) & ~ends & (x.stages == 0))


STAGES = Rule(
    field="layout.pp",
    reason="fewer layers than pipeline stages",
    wrong=_has_empty_stages,
    wording=_word_stages,
)


def _has_uneven_stages(x: Layouts, at: Setting) -> Mask:
    if at.software.supports.uneven_stages:
        return np.full(len(x), False)
    return np.asarray((at.architecture.layers % (x.pp * x.vpp) != 0) & (x.stages == 0))


def _word_even(case: Case) -> Wording:
    row, layers = case.row, case.architecture.layers
    must = f"pp x vpp must divide {layers} layers ({case.software.name} has no uneven stages)"
    name = "pp" if row["vpp"] == 1 else "vpp"
    other = row["vpp"] if name == "pp" else row["pp"]
    near = case.nearest(name, range(1, layers + 1), lambda value: layers % (value * other) == 0)
    return Wording(must, near=near, field=f"layout.{name}")


EVEN_STAGES = Rule(
    field="layout.pp",
    reason="layers do not divide evenly over pp x vpp",
    wrong=_has_uneven_stages,
    wording=_word_even,
)


def _sums(arch: Architecture) -> tuple[int, int]:
    """What a split may sum to: the layers, or those that predict ahead with them."""
    return arch.layers, len(arch.layer_kinds)


def _has_wrong_split(x: Layouts, at: Setting) -> Mask:
    if not x.stages.any():
        return np.full(len(x), False)
    size, whole = (np.array([f(split) for split in x.splits])[x.stages] for f in (len, sum))
    wrong = (size != x.pp * x.vpp) | ~np.isin(whole, _sums(at.architecture))
    if not at.software.supports.uneven_stages:
        wrong |= np.array([len(set(split)) > 1 for split in x.splits])[x.stages]
    if not at.software.supports.empty_stages:
        wrong |= np.array([0 in split[1:-1] for split in x.splits])[x.stages]
    return np.asarray(wrong & (x.stages > 0))


def _word_split(case: Case) -> Wording:
    row, arch = case.row, case.architecture
    split, pieces, layers = row["stages"], row["pp"] * row["vpp"], arch.layers
    ahead = len(arch.layer_kinds) - layers
    if len(split) != pieces:
        must = f"must have one number for each of pp x vpp = {pieces} pieces"
        near = [layers // pieces + (i < layers % pieces) for i in range(pieces)][::-1]
        return Wording(must, f"{len(split)}", [near])
    if sum(split) not in _sums(arch):
        more = f" (or {layers + ahead}, with what predicts ahead)" if ahead else ""
        must = f"must sum to the {layers} layers{more}"
        return Wording(must, f"{sum(split)}", [with_sum(split, layers)])
    if case.software.supports.uneven_stages:
        must = f"must have a layer in all pieces but the first and the last ({case.software.name})"
        return Wording(must, f"{list(split)}")
    must = f"must be left out: {case.software.name} has no uneven stages"
    return Wording(must, f"{list(split)}")


SPLIT = Rule(
    field="layout.stages",
    reason="layers given for stages do not sum to those of the model, or are not as many",
    wrong=_has_wrong_split,
    wording=_word_split,
)


def _recomputes_too_many(x: Layouts, at: Setting) -> Mask:
    wrong = x.recompute_layers > 0
    some = np.flatnonzero(wrong)
    partial = x[some]
    most = fullest_rank(partial, at.architecture.layers)
    full = partial.recompute == RECOMPUTE.index("full")
    wrong[some] = ~full | (partial.recompute_layers > most)
    return wrong


def _word_recompute_layers(case: Case) -> Wording:
    row = case.row
    if row["recompute"] != "full":
        return Wording(f"needs recompute = 'full' (it is {row['recompute']!r})", near=[0])
    most = int(fullest_rank(Layouts.of(**row), case.architecture.layers)[0])
    return Wording(f"must be at most the {most} layers of a pipeline rank", near=[most])


RECOMPUTE_LAYERS = Rule(
    field="layout.recompute_layers",
    reason="recompute_layers needs full recomputation and at most the layers of a rank",
    wrong=_recomputes_too_many,
    wording=_word_recompute_layers,
)


def _word_world(case: Case) -> Wording:
    row, gpus = case.row, case.cluster.gpus
    replica = accelerators(row["tp"], row["pp"], row["cp"])
    if "dp" in case.given:
        product = " x ".join(str(row[name]) for name in ("dp", "tp", "pp", "cp"))
        must = f"dp x tp x pp x cp must be cluster.gpus = {gpus}"
        offers = [f"dp {gpus // replica}"] if gpus % replica == 0 else []
        return Wording(must, f"{product} = {row['dp'] * replica}", offers)
    product = " x ".join(str(row[name]) for name in ("tp", "pp", "cp"))
    for name in ("pp", "cp", "tp"):
        near = case.nearest(name, divisors(gpus), lambda value: False)
        if name in case.given and near:
            must = f"tp x pp x cp must divide cluster.gpus = {gpus}"
            offers = [f"{name} {value}" for value in near]
            return Wording(must, f"{product} = {replica}", offers, f"layout.{name}")
    per_server = case.cluster.node.accelerators
    in_server = gpus <= per_server and replica <= per_server
    step = replica if in_server else lcm(replica, per_server)
    must = f"must divide by {product} = {replica}"
    return Wording(must, gpus, around(gpus, step), "cluster.gpus")


def _is_of_another_size(x: Layouts, at: Setting) -> Mask:
    sizes = at.cluster.sizes
    return ~np.isin(x.world, sizes) if sizes else x.world != at.cluster.gpus


WORLD = Rule(
    field="layout.dp",
    reason="dp x tp x pp x cp is not the number of GPUs",
    wrong=_is_of_another_size,
    wording=_word_world,
)


def _splits_batch_unevenly(x: Layouts, at: Setting) -> Mask:
    per_step = x.dp * x.micro_batch
    return (x.global_batch % per_step != 0) | (x.global_batch < per_step)


def _word_batch(case: Case) -> Wording:
    row = case.row
    step = row["dp"] * row["micro_batch"]
    rounds = row["pp"] if SCHEDULES[row["schedule"]].takes_rounds else 1
    near = around(row["global_batch"], step * rounds)
    return Wording(f"must divide by dp x micro_batch = {step}", row["global_batch"], near)


BATCH = Rule(
    field="training.global_batch",
    reason="global batch does not divide by dp x micro-batch",
    wrong=_splits_batch_unevenly,
    wording=_word_batch,
)


def _word_step_in_backward(case: Case) -> Wording:
    share = case.row["dp"] * case.row["micro_batch"]
    must = f"must be dp x micro_batch = {share} with training.optimizer_in_backward"
    return Wording(must, case.row["global_batch"], [share])


STEP_IN_BACKWARD = Rule(
    field="training.global_batch",
    reason="an optimizer step inside the backward pass needs a single micro-batch",
    wrong=lambda x, at: (x.micro_batches > 1) & at.workload.recipe.optimizer_in_backward,
    wording=_word_step_in_backward,
)
