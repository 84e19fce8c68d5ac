"""Why more GPUs may be slower: the batch no longer divides among them."""

from __future__ import annotations

import math

from simulator.layout.layouts import divisors, odd_part
from simulator.scenario import Scenario


def batch_binds(scenario: Scenario) -> str:
    """Say that a batch divides among few of the GPUs only, and what would divide; else a blank.

    Replicas share the sequences of a step evenly, so that their number divides the greatest
    common divisor of batch and GPUs. What is left, tp x pp x cp, is named where it has an odd
    factor, powers of two being what these degrees usually are, or where it is more than a server
    has, or all GPUs, though there are sequences for more replicas; with the nearest batches.

    Examples
    --------
    >>> from simulator.scenario import make_scenario
    >>> print(batch_binds(make_scenario({
    ...     "model": {"name": "llama-3.1-8b"},
    ...     "training": {"sequence_length": 8192, "global_batch": 1024},
    ...     "cluster": {"name": "dgx-h100", "gpus": 136},
    ... })))
    The batch binds: 1,024 sequences divide among at most 8 replicas on 136 GPUs, so that
    tp x pp x cp is a multiple of 17; 1,088 sequences, or 128 GPUs, leave them free.
    >>> print(batch_binds(make_scenario({
    ...     "model": {"name": "llama-3.1-8b"},
    ...     "training": {"sequence_length": 8192, "global_batch": 1021},
    ...     "cluster": {"name": "dgx-h100", "gpus": 64},
    ... })))
    The batch binds: 1,021 sequences divide among at most 1 replica on 64 GPUs, so that
    tp x pp x cp is a multiple of 64; 960 or 1,024 sequences leave them free.
    """
    gpus, batch = scenario.cluster.gpus, scenario.workload.recipe.global_batch
    replicas = math.gcd(gpus, batch)
    forced = gpus // replicas
    odd = odd_part(forced)
    server = scenario.cluster.node.accelerators
    most = max(d for d in divisors(gpus) if d <= batch)
    if odd == 1 and (replicas == most or (forced <= server and replicas > 1)):
        return ""
    if odd == 1:
        below = batch // most * most
        return (
            f"{_divided(batch, replicas, gpus)} {forced:,}; {below:,} or {below + most:,} sequences"
            " leave them free."
        )
    near = max(round(batch / gpus), 1) * gpus
    fewer = next((n for n in range(gpus - server, 0, -server) if _is_free(n, batch)), 0)
    other = f", or {fewer:,} GPUs, leave" if fewer else " leave"
    return f"{_divided(batch, replicas, gpus)} {odd:,}; {near:,} sequences{other} them free."


def _divided(batch: int, replicas: int, gpus: int) -> str:
    some = "replica" if replicas == 1 else "replicas"
    return (
        f"The batch binds: {batch:,} sequences divide among at most {replicas:,} {some} on"
        f" {gpus:,} GPUs, so that tp x pp x cp is a multiple of"
    )


def _is_free(gpus: int, batch: int) -> bool:
    forced = gpus // math.gcd(gpus, batch)
    return forced & (forced - 1) == 0
