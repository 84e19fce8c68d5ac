"""Simulate one training step: from a layout to a step time, action by action."""

from __future__ import annotations

import time

import numpy as np

from simulator.cost.step import price, select
from simulator.errors import InputError
from simulator.events.charge import critical_shares, hidden, stream_seconds, terms, work
from simulator.events.passes import CAUSE
from simulator.events.play import Played, play_step, replica_of
from simulator.events.timeline import CAUSES, SimulatedStep
from simulator.hardware.cluster import Cluster
from simulator.layout.layout import Layouts
from simulator.software import Software
from simulator.workload.recipe import Workload

__all__ = ["simulate"]


def simulate(
    layouts_row: Layouts, workload: Workload, cluster: Cluster, software: Software
) -> SimulatedStep:
    """Play one optimizer step of one layout."""
    if len(layouts_row) != 1:
        raise InputError(f"simulate takes one layout at a time, got {len(layouts_row)}")
    began = time.perf_counter()
    priced = price(layouts_row, workload, cluster, software, every_rank=True)
    rows = select(layouts_row, priced, slice(0, 1))
    one = replica_of(rows, priced, int(layouts_row.dp[0]))
    return summarise(play_step([one], began))


def summarise(played: Played) -> SimulatedStep:
    """Charge the time of a played step."""
    shown, hides = work(played)
    pacing = int(np.argmax(shown.sum(axis=1)))
    found = terms(played, shown, pacing)
    total = float(found.sum())
    _, shares = critical_shares(played)
    busy, exposed, idle = stream_seconds(played, shown, hides, total)
    ranks_of = np.repeat([one.count for one in played.replicas], played.pp)
    layouts = played.replicas[0].rows.layouts
    return SimulatedStep(
        step_time_s=total,
        terms_s=dict(zip(CAUSES, found.tolist(), strict=True)),
        hidden_s=hidden(played, hides, float(found[CAUSE["dp"]]), pacing),
        pacing_rank=pacing,
        ranks_of=ranks_of * int(layouts.tp[0] * layouts.cp[0]),
        busy_s=busy,
        exposed_s=exposed,
        idle_s=idle,
        critical_share=shares,
        tasks=len(played.step.graph),
        build_seconds=played.build_seconds,
        run_seconds=played.run_seconds,
        draw=lambda: None,
        weigh=lambda: None,
    )
