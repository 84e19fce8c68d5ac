"""What each piece of the physics is worth: the same rows, predicted with more and more of it.

Each step but the first is the simulator itself on altered records: a device without tiles, a
network without bounds, a software that overlaps nothing. No formula stands here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from simulator.arrays import Floats
from simulator.cost.estimate import Estimate
from simulator.cost.kernels.gemm import NO_SPLIT_S
from simulator.cost.step import evaluate
from simulator.cost.terms import TERMS
from simulator.files import Figure
from simulator.hardware.accelerator import AttentionKernel, GemmKernel
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import Layouts
from simulator.measured.replay import Run, load_tables, replay
from simulator.scoring.baselines import ConstantEfficiency
from simulator.scoring.scores import ScoredRow, summary
from simulator.software.overlap import Overlap
from simulator.software.profile import Software, load_software
from workshop.facts import facts

NEUTRAL: str = facts(__file__)["neutral_software"]
"""Profile whose kernels and states stand for every run's before its own software counts."""

STEPS = {
    "constant efficiency": "one rate per GPU and class of precision, whatever the layout",
    "roofline": "operators at the sustained rate of GEMMs or memory; the mean stage",
    "+ tiles and waves": "output tiles, waves, split reductions, start-up of kernels, attention's"
    " rise with the sequence",
    "+ collectives": "every collective and send, none hidden, on the run's own network",
    "+ schedule": "pipeline fill and drain; the slowest stage instead of the mean one",
    "+ overlap": "what the run's software hides, and what hiding costs",
    "+ software": "the run's own kernels, fusions, state types and host time: the whole model",
}
"""The steps in their order, each with all before it."""

_NO_LIMIT = 1e30
_NO_SPLIT_S = 2 * NO_SPLIT_S
_RANKING = ("groups", "median_tau", "median_regret")
_IDLE = tuple(term.name for term in TERMS if term.stream == "idle")


def ablation(
    rows: Sequence[ScoredRow], baseline: ConstantEfficiency
) -> dict[str, tuple[ScoredRow, ...]]:
    """Predict rows again at every step.

    Parameters
    ----------
    rows : sequence of ScoredRow
        Rows that were predicted and measured.
    baseline : ConstantEfficiency
        The first step.

    Returns
    -------
    dict
        By name of the step (`STEPS`): the rows with the step's ``predicted_step_s``. The last
        step's are the rows as they came.
    """
    neutral, tables = neutral_software(), load_tables()
    runs = [replay(row.run.fields, tables, where=row.run.where) for row in rows]
    times: dict[str, dict[int, float | None]] = {name: {} for name in STEPS}
    for members in together(runs):
        layouts = Layouts.concatenate(runs[i].layout for i in members)
        for name, seconds in _times_s(replace(runs[members[0]], layout=layouts), neutral).items():
            times[name] |= zip(members, seconds.tolist(), strict=True)
    first, *_, last = STEPS
    times[first] = {i: baseline.predict_s(row.run) for i, row in enumerate(rows)}
    times[last] = {i: row.predicted_step_s for i, row in enumerate(rows)}
    return {
        name: tuple(replace(row, predicted_step_s=times[name][i]) for i, row in enumerate(rows))
        for name in STEPS
    }


def step_figures(rows: Sequence[ScoredRow]) -> dict[str, dict[str, Any]]:
    """Score one step by split.

    Returns
    -------
    dict
        By split: ``n``, ``mape`` and ``bias`` of all rows, ``dense`` and ``moe``: mean absolute
        error of those; ``groups``, ``median_tau``, ``median_regret`` of rankings.
    """
    found = summary(rows)
    kinds = {"dense": "dense", "moe": "MoE"}
    return {
        split: {
            **{key: errors[key] for key in ("n", "mape", "bias")},
            **{
                key: found["by_kind"].get(kind, {}).get("by_split", {}).get(split, {}).get("mape")
                for key, kind in kinds.items()
            },
            **{key: found["ranking_by_split"].get(split, {}).get(key) for key in _RANKING},
        }
        for split, errors in found["by_split"].items()
    }


def together(runs: Sequence[Run], *, software: bool = False) -> list[list[int]]:
    """Indices of runs that no step tells apart but by their layout: they are priced together.

    With `software`, runs of one list have the same software, not only what it overlaps.
    """
    groups: dict[Hashable, list[list[int]]] = defaultdict(list)
    for index, run in enumerate(runs):
        near = groups[run.workload, run.software.overlap, run.cluster.gpus]
        for some in near:
            other = runs[some[0]]
            if other.cluster == run.cluster and not (software and other.software != run.software):
                some.append(index)
                break
        else:
            near.append([index])
    return [some for near in groups.values() for some in near]


def _times_s(run: Run, neutral: Software) -> dict[str, Floats]:
    """Seconds of every layout of a run at the steps between the first and the last."""
    free = without_network(run.cluster)
    overlap = replace(neutral, overlap=run.software.overlap)
    linked = _evaluate(run, run.cluster, neutral)
    return {
        "roofline": _mean_stage_s(_evaluate(run, without_tiles(free), neutral)),
        "+ tiles and waves": _mean_stage_s(_evaluate(run, free, neutral)),
        "+ collectives": _mean_stage_s(linked),
        "+ schedule": linked.step_time_s,
        "+ overlap": _evaluate(run, run.cluster, overlap).step_time_s,
    }


def _evaluate(run: Run, cluster: Cluster, software: Software) -> Estimate:
    return evaluate(run.layout, run.workload, cluster, software)


def _mean_stage_s(estimate: Estimate) -> Floats:
    """Step time if every stage were the mean one and none waited for another."""
    return estimate.step_time_s - estimate.imbalance_s - sum(estimate.terms_s[n] for n in _IDLE)


# --- altered records ---------------------------------------------------------------------


def neutral_software() -> Software:
    """Make the software of all runs alike: `NEUTRAL`, without host time and overlap."""
    base = load_software(NEUTRAL)
    return replace(
        base,
        overlap=without_overlap(base.overlap),
        host=replace(base.host, seconds_per_kernel=Figure(0.0)),
    )


def without_overlap(overlap: Overlap) -> Overlap:
    """Hide nothing: every switch off, every kind of overlap none."""
    off: dict[type, Any] = {bool: False, str: "none"}
    given = {field.name: getattr(overlap, field.name) for field in fields(overlap)}
    return replace(overlap, **{name: off.get(type(value), value) for name, value in given.items()})


def without_network(cluster: Cluster) -> Cluster:
    """Give a cluster links and a collective library that take no time."""
    group = cluster.groups[0]
    node = replace(
        group.node,
        scale_up=_boundless(group.node.scale_up),
        scale_out=_boundless(group.node.scale_out),
    )
    groups = (replace(group, node=node), *cluster.groups[1:])
    return replace(cluster, groups=groups, library=_boundless(cluster.library))


def _boundless(value: Any, name: str = "") -> Any:
    """Give every figure in bytes per second no limit, and every one in seconds no length.

    What a figure is in, its name says, or else that of the record or table that holds it.
    """
    if isinstance(value, Figure):
        if name.endswith("_bytes_per_s"):
            return Figure(_NO_LIMIT)
        return Figure(0.0) if name.endswith("_s") else value
    if isinstance(value, Mapping):
        return {key: _boundless(item, name) for key, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    holds = {key: key if key.endswith("_s") else name for key in parts}
    return replace(value, **{key: _boundless(part, holds[key]) for key, part in parts.items()})


def without_tiles(cluster: Cluster) -> Cluster:
    """Give a cluster devices of one unit as fast as all, so that no wave is ever partly filled.

    What is left of a GEMM is its FLOPs at the rate of full waves, or its traffic.
    """
    stream = cluster.accelerator.stream
    no_launch = {kind: replace(kernel, launch_s=Figure(0.0)) for kind, kernel in stream.items()}
    return with_kernels(
        cluster, gemm=_plain_gemm, attention=_plain_attention, compute_units=1, stream=no_launch
    )


def with_kernels(
    cluster: Cluster,
    *,
    gemm: Callable[[GemmKernel], GemmKernel],
    attention: Callable[[AttentionKernel], AttentionKernel] | None = None,
    **others: Any,
) -> Cluster:
    """Give a cluster devices with every kernel of a kind changed, and `others` of their fields."""
    group = cluster.groups[0]
    device = group.accelerator
    others["gemm"] = {
        library: {dtype: gemm(kernel) for dtype, kernel in types.items()}
        for library, types in device.gemm.items()
    }
    if attention is not None:
        others["attention"] = {name: attention(kernel) for name, kernel in device.attention.items()}
    changed = replace(group, accelerator=replace(device, **others))
    return replace(cluster, groups=(changed, *cluster.groups[1:]))


def _plain_attention(kernel: AttentionKernel) -> AttentionKernel:
    """Keep the rates; drop tiles, prologues, tails and start-up."""
    none = Figure(0.0)
    return replace(
        kernel,
        launch_s=none,
        tile_rows=Figure(1.0),
        prologue_keys=none,
        tail_fraction=none,
        backward_tail_fraction=none,
    )


def _plain_gemm(kernel: GemmKernel) -> GemmKernel:
    """Keep the rates; drop prologues, waves, small tiles, split reductions and start-up."""
    none = Figure(0.0)
    return replace(
        kernel,
        launch_s=none,
        prologue_k=none,
        wave_quantisation=none,
        small_tile_penalty=none,
        l2_refetch=none,
        split_k_s=Figure(_NO_SPLIT_S),
    )
