"""What each named term is worth: the whole model with one term taken out at a time.

Where the ablation builds the model up step by step, this takes from the finished one. A term of the
breakdown is taken out of the step by its own seconds (what it adds to fill and drain of a pipeline
stays); what is no term of its own is switched off in the records. No formula stands here, and
nothing is fitted again: what a term explains would be laid upon others by a fit without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from simulator.arrays import Floats
from simulator.cost.estimate import Estimate
from simulator.cost.step import evaluate
from simulator.cost.terms import TERMS
from simulator.files import Figure
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.measured.replay import Run, load_tables, replay
from simulator.scoring.scores import ScoredRow
from simulator.software.profile import Software, load_software
from workshop.cases.ablation import NEUTRAL, together, with_kernels, without_overlap

BEARS = 0.005
"""Least share of a step by which a term must move it, for the run to count with it."""

_WHOLE = ("gemm", "bubble_warmup", "bubble_drain")
"""Terms that are no addition to others (`gemm`), or that stand in one row together."""

_OF_TERMS = {term.name: term.label for term in TERMS if term.name not in _WHOLE}

SWITCHES = {
    **_OF_TERMS,
    "bubble": "pipeline fill and drain",
    "stages": "the slowest stage instead of the mean one: embedding, head, uneven layers",
    "clocks": "rates under training load instead of those of kernels timed alone",
    "idle_units": "under a power cap, a higher clock for products that leave units idle",
    "overlap": "what the software hides behind compute, at the cost of the slowdown above",
    "fusions": f"the software's own unfused kernels and dropout instead of `{NEUTRAL}`'s",
}
"""What is taken out, one at a time: name and what it stands for."""


def without_terms(rows: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Predict rows again without each of `SWITCHES`, and score the rows that it bears on.

    Parameters
    ----------
    rows : sequence of ScoredRow
        Rows that were predicted and measured.

    Returns
    -------
    list of dict
        One for each switch: ``name``, ``what``, and by split ``runs``: how many it moves by at
        least `BEARS`; of these the median ``share`` of the step (negative where it is slower
        without), the mean absolute error
        ``without`` it and ``mape`` with it, and ``bias_without`` and ``bias``. None without a run.
    """
    tables = load_tables()
    runs = [replay(row.run.fields, tables, where=row.run.where) for row in rows]
    whole, without = np.zeros(len(rows)), {name: np.zeros(len(rows)) for name in SWITCHES}
    neutral = load_software(NEUTRAL)
    for members in together(runs, software=True):
        layouts = Layouts.concatenate(runs[i].layout for i in members)
        run = replace(runs[members[0]], layout=layouts)
        estimate = evaluate(layouts, run.workload, run.cluster, run.software)
        whole[members] = estimate.step_time_s
        for name, seconds in _switched(estimate, run, neutral).items():
            without[name][members] = seconds
    measured = np.array([row.measured_step_s for row in rows], dtype=float)
    splits = np.array([row.run.get("split") for row in rows])
    found = []
    for name, what in SWITCHES.items():
        by_split = {
            split: _figures(whole[some], without[name][some], measured[some])
            for split in dict.fromkeys(splits.tolist())
            if len(some := np.flatnonzero(splits == split))
        }
        found.append({"name": name, "what": what, **by_split})
    return found


def _figures(whole_s: Floats, without_s: Floats, measured_s: Floats) -> dict[str, Any]:
    """Errors with and without, of the rows that are moved."""
    share = (whole_s - without_s) / whole_s
    moved = np.abs(share) >= BEARS
    keys = ("share", "mape", "without", "bias", "bias_without")
    if not moved.any():
        return {"runs": 0, **dict.fromkeys(keys)}
    errors, bare = (x[moved] / measured_s[moved] - 1.0 for x in (whole_s, without_s))
    values = (
        np.median(share[moved]),
        np.mean(np.abs(errors)),
        np.mean(np.abs(bare)),
        np.mean(errors),
        np.mean(bare),
    )
    return {"runs": int(moved.sum()), **dict(zip(keys, map(float, values), strict=True))}


def _switched(estimate: Estimate, run: Run, neutral: Software) -> Mapping[str, Floats]:
    """Step times of a run's layouts without each of `SWITCHES`."""
    step_s, terms = estimate.step_time_s, estimate.terms_s
    software = run.software
    hiding_nothing = replace(software, overlap=without_overlap(software.overlap))
    burst, one_clock, bare, alike = (
        evaluate(run.layout, run.workload, cluster, other)
        for cluster, other in (
            (at_burst_rate(run.cluster), software),
            (at_one_clock(run.cluster), software),
            (run.cluster, hiding_nothing),
            (run.cluster, fused_alike(software, neutral)),
        )
    )
    return {
        **{name: step_s - terms[name] for name in _OF_TERMS},
        "bubble": step_s - terms["bubble_warmup"] - terms["bubble_drain"],
        "stages": step_s - estimate.imbalance_s,
        "clocks": burst.step_time_s,
        "idle_units": one_clock.step_time_s,
        "overlap": bare.step_time_s,
        "fusions": alike.step_time_s,
    }


def at_burst_rate(cluster: Cluster) -> Cluster:
    """Give a cluster devices that compute in training as fast as in a short timing."""
    cool: Any = partial(replace, training_fraction=Figure(1.0))
    return with_kernels(cluster, gemm=cool, attention=cool)


def at_one_clock(cluster: Cluster) -> Cluster:
    """Give a cluster devices whose clock under a power cap is that of a product that fills them."""
    return with_kernels(cluster, gemm=partial(replace, clock_exponent=Figure(0.0)))


def fused_alike(software: Software, neutral: Software) -> Software:
    """Give a software the fusions of another, and its own of everything else."""
    return replace(software, kernels=replace(software.kernels, fused=neutral.kernels.fused))
