"""A step whose passes and tails are given as plain numbers, so that timelines can be worked out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.pricing import price
from simulator.cost.tables import select
from simulator.cost.terms import HIDDEN, TERMS
from simulator.events.step.pass_costs import CAUSE, Passes
from simulator.events.step.play import Played, Replica, play_step, replica_of
from simulator.events.step.step_end import StepEndWork
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

Worked = Callable[..., Played]


def passes(
    forward: list[float], backward: list[float], weight: float, send: float, lag: float, chunks: int
) -> Passes:
    """The same chunks on a rank; `weight` of a backward pass is its weight half."""
    shown = np.zeros((len(forward), chunks, 4, len(TERMS)))
    f, b = np.array(forward)[:, None] / chunks, np.array(backward)[:, None] / chunks
    for kind, seconds in enumerate((f, b, b - weight, np.full_like(b, weight))):
        shown[:, :, kind, CAUSE["gemm"]] = seconds
    shown[:, :, :3, CAUSE["pp"]] += send
    windows = np.broadcast_to(np.stack([f, b], axis=2), (len(forward), chunks, 2))
    return Passes(
        shown_s=shown,
        hidden_s=np.zeros((*shown.shape[:3], len(HIDDEN))),
        alone_s=np.zeros_like(shown),
        window_s=windows.copy(),
        send_s=np.full(len(forward), lag),
        copy_s=np.zeros((len(forward), chunks)),
    )


def step_end(ranks: int, chunks: int, given: dict[str, Any]) -> StepEndWork:
    """No tail but what is given."""
    none = np.zeros((ranks, chunks))
    plain = StepEndWork(
        reduce_s=none,
        gather_s=none,
        buckets=np.ones(ranks),
        overlaps=(True, True),
        reductions=1.0,
        exposed_reductions_s=none,
        overlap_slowdown_s=np.zeros((2, ranks, chunks)),
        reduction_slowdown_s=none,
        tied_embedding_sum_s=0.0,
        norm_s=0.0,
        gradients_s=0.0,
        hidden_gradients_s=0.0,
        copied_s=np.zeros(ranks),
        copies_each=False,
        optimizer_s=np.zeros(ranks),
        host_s=np.zeros(ranks),
    )
    return replace(plain, **given)


@pytest.fixture(scope="session")
def worked() -> Worked:
    """Play a step of given seconds: forward and backward pass of every rank, one or more chunks."""

    def run(
        forward: list[float],
        backward: list[float],
        m: int,
        *,
        schedule: str = "1f1b",
        chunks: int = 1,
        weight: float = 0.0,
        send: float = 0.0,
        lag: float = 0.0,
        dp: int = 1,
        copy: tuple[float, ...] = (),
        others: tuple[dict[str, Any], ...] = (),
        **tail: Any,
    ) -> Played:
        pp = len(forward)
        vpp = 1 if schedule == "dualpipe" else chunks
        arch = replace(presets.load("llama-3.1-8b"), layer_kinds=(0,) * (4 * pp * chunks))
        recipe = Recipe(sequence_length=1024, global_batch=m * dp)
        layout = Layouts.of(pp=pp, vpp=vpp, dp=dp, schedule=schedule, global_batch=m * dp)
        work, cluster = Workload(architecture=arch, recipe=recipe), load_cluster("dgx-h100", 8)
        cluster = replace(cluster, groups=(replace(cluster.groups[0], gpus=pp * dp),))
        priced = price(layout, work, cluster, load_software("megatron-core"), every_rank=True)
        real = replica_of(select(layout, priced, slice(0, 1)), priced, dp - len(others))

        def one(count: int, f: list[float], b: list[float]) -> Replica:
            given = passes(f, b, weight, send, lag, chunks)
            if copy:
                copied = np.broadcast_to(np.array(copy)[:, None], (pp, chunks))
                given = replace(given, copy_s=copied / chunks)
            return replace(real, count=count, passes=given, step_end=step_end(pp, chunks, tail))

        rest = [one(1, x["forward"], x["backward"]) for x in others]
        return play_step([one(dp - len(others), forward, backward), *rest])

    return run
