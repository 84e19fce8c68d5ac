"""A pass of a model over a batch without a backward one: a teacher's, a reference's, a scoring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.step import evaluate
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.software.profile import Software
from simulator.workload.architecture import Architecture
from simulator.workload.recipe import Workload


def only_forward(layouts: Layouts) -> Layouts:
    """The same layouts with nothing computed again and nothing moved to hosts."""
    return layouts.replace(
        recompute="none", recompute_layers=0, recompute_modules="", offload_layers=0,
        optimizer_offload="none", parameter_offload="none",
    )  # fmt: skip


def frozen(model: Architecture, workload: Workload, *, head: bool) -> Workload:
    """The workload of a model of which nothing is trained.

    A head that is tied to a frozen embedding is not trained either: only forward passes are left.
    With `head` the model keeps a table of its own, as what is stored does.
    """
    recipe = replace(
        workload.recipe, lora_rank=0, quantised_base=False, frozen_layers=model.layers,
        frozen_embedding=True,
    )  # fmt: skip
    return Workload(
        architecture=model if head else replace(model, tied_embeddings=True), recipe=recipe
    )


def forward_pass_s(
    model: Architecture,
    layouts: Layouts,
    workload: Workload,
    cluster: Cluster,
    software: Software,
) -> tuple[Ints, Floats]:
    """Seconds of a forward pass over a batch, for those layouts that the model can have.

    Returns
    -------
    rows, seconds : ndarray
        Indices of those layouts, and what a pass takes in each.
    """
    plain, passing = only_forward(layouts), frozen(model, workload, head=False)
    can = np.flatnonzero(reasons(plain, passing, cluster, software) == FEASIBLE)
    if not len(can):
        return can, np.zeros(0)
    passes = evaluate(plain[can], passing, cluster, software)
    return can, passes.step_time_s - passes.terms_s["optimizer"] - passes.terms_s["input"]
