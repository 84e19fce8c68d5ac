"""A step on servers of several kinds beside the same step on each kind alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.events.deviations.deviations import Deviation, replicas_of
from simulator.events.deviations.servers import gpus_on
from simulator.events.step.charge import step_time_s
from simulator.events.step.memory_over_time import closed_bytes, tightest_sources, usable_bytes
from simulator.events.step.play import Played, play_step
from simulator.events.step.programs import Program
from simulator.events.step.timeline import Mixed


def mixed_step(
    played: Played, given: Any, deviations: Sequence[Deviation], table: Program | None
) -> Mixed:
    """Say where the ranks of a played step lie, and play it on each kind of servers alone.

    Parameters
    ----------
    played : Played
    given : tuple
        Layout, workload, cluster and software, which its replicas were priced from.
    deviations : sequence of Deviation
        Likewise.
    table : Program, optional
        The user's table that it was played from.
    """
    row, workload, cluster, software = given
    held = gpus_on(row, cluster)
    alone = [
        step_time_s(play_step(replicas_of(row, workload, kind, software, deviations), table=table))
        for kind in cluster.kinds
    ]
    of_rank = [source for replica in played.replicas for source in tightest_sources(replica)]
    totals = {id(replica): closed_bytes(replica) for replica in of_rank}
    return Mixed(
        kinds=tuple(kind.name for kind in cluster.kinds),
        gpus=np.concatenate(
            [held[list(replica.numbers)].sum(axis=0) for replica in played.replicas]
        ),
        replicas=tuple(replica.numbers for replica in played.replicas),
        memory_bytes=np.array(
            [totals[id(replica)][rank % played.pp] for rank, replica in enumerate(of_rank)]
        ),
        usable_bytes=np.array([usable_bytes(replica) for replica in of_rank]),
        alone_s=tuple(alone),
        steady_s=step_time_s(played),
    )
