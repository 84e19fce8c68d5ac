"""A worker of a parameter server: its fastest layout, without an optimizer."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any, ClassVar

import numpy as np

from simulator.cost.estimate import Estimate, concatenate
from simulator.errors import InputError, problem
from simulator.hardware.cluster import Cluster
from simulator.parameter_servers.server_section import ParameterServer
from simulator.questions.run_options import Piece
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.defaults import layout_fields
from simulator.search.fastest import fastest, why_not


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker(Piece):
    """One worker and its layout."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("gpus", "batch", "feasible", "reason?", "layout", "step_s", "memory_bytes"),
        "freed_bytes",
    )

    gpus: int
    step_s: float = inf
    """Compute of a step, without an optimizer: servers have it."""
    memory_bytes: float = 0.0
    """On its worst rank."""
    freed_bytes: float = 0.0
    """What the optimizer's states, and a cache in host memory, leave free of it."""


def per_worker(cluster: Cluster, section: ParameterServer) -> int:
    """Accelerators of a worker: those of one server unless given."""
    return section.worker_gpus or min(cluster.node.accelerators, cluster.gpus)


def fastest_worker(scenario: Scenario, section: ParameterServer, workers: int) -> Worker:
    """The fastest layout of one worker, which keeps no optimizer states."""
    cluster, gpus = scenario.cluster, per_worker(scenario.cluster, section)
    recipe = scenario.workload.recipe
    batch = recipe.global_batch // (workers - section.backup_workers)
    empty = Worker(gpus=gpus, batch=batch)
    small = cluster.with_gpus(gpus)
    plain = replace(recipe, global_batch=batch, optimizer="sgd", moment_dtype=None)
    pinned = {k: v for k, v in scenario.pinned.items() if k not in ("dp", "shard_group")}
    one = replace(
        scenario,
        cluster=small,
        workload=replace(scenario.workload, recipe=plain),
        pinned=pinned,
    )
    searched = fastest(one)
    found = searched.found
    if found is None:
        return replace(empty, reason=searched.reason)
    tried = [each for each in (found.best, found.roomy) if len(each)]
    if not tried:
        return replace(empty, reason=searched.reason)
    estimate = concatenate(tried)
    freed = _freed_bytes(estimate, scenario, section)
    need = estimate.memory_total_bytes - freed
    fit = replace(estimate, memory_total_bytes=need).able(allow_tight=scenario.allow_tight)
    seconds = np.where(fit, _compute_s(estimate, one, section), np.inf)
    row = int(np.argmin(seconds))
    if np.isinf(seconds[row]):
        return replace(empty, reason=why_not(found))
    return replace(
        empty,
        described=estimate.layouts.describe(row),
        layout=layout_fields(scenario, estimate.layouts, row),
        step_s=float(seconds[row]),
        memory_bytes=float(need[row]),
        freed_bytes=float(freed[row]),
    )


def _freed_bytes(estimate: Estimate, scenario: Scenario, section: ParameterServer) -> Any:
    """Optimizer states; with a cache on the host all layers but one at work and one on its way."""
    kinds = estimate.memory_bytes
    freed = kinds["optimizer"]
    if section.worker_cache == "host":
        layers = max(scenario.workload.architecture.layers, 2)
        freed = freed + (kinds["weights"] + kinds["gradients"]) * (1.0 - 2.0 / layers)
    return freed


def _compute_s(estimate: Estimate, worker: Scenario, section: ParameterServer) -> Any:
    """Seconds of a step without the optimizer, and no less than copies of a cache on the host.

    Weights are copied for the forward and the backward pass of every micro-batch, gradients once
    back; layers that compute hide those of others (GeePS, section 4).
    """
    seconds = estimate.step_time_s - estimate.terms_s["optimizer"]
    if section.worker_cache == "gpu":
        return seconds
    node, layouts = worker.cluster.node, estimate.layouts
    if node.host_bytes_per_s is None:
        rule = f"not known how fast copies to the host of {node.name} are; must be 'gpu'"
        raise InputError(problem(worker.where, "parameter_server.worker_cache", rule, "host"))
    passes = worker.workload.recipe.global_batch / (layouts.micro_batch * layouts.dp)
    kinds = estimate.memory_bytes
    copied = 2.0 * passes * kinds["weights"] + kinds["gradients"]
    return np.maximum(seconds, copied / float(node.host_bytes_per_s))
