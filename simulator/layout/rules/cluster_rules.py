"""What the number of accelerators and the global batch ask of the degrees."""

from __future__ import annotations

from math import lcm

import numpy as np

from simulator.layout.degrees import accelerators, divisors
from simulator.layout.layouts import Layouts
from simulator.layout.rules.rule import Case, Mask, Rule, Setting, Wording, around
from simulator.schedules.registry import SCHEDULES


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
