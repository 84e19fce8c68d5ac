"""How often a step reduces its gradients, and what passes lie between two reductions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.schedules.registry import BREADTH_FIRST, TAKES_ROUNDS
from simulator.software.profile import Software

_ZERO2 = SHARDINGS.index("zero2")


def round_passes(layouts: Layouts) -> Floats:
    """Passes of a chunk between the last ones of two chunks of a rank."""
    m, takes = layouts.micro_batches, TAKES_ROUNDS[layouts.schedule]
    size = m // layouts.rounds
    return np.select([takes, BREADTH_FIRST[layouts.schedule]], [size, m], default=1).astype(float)


def reductions(layouts: Layouts, software: Software, once: NDArray[np.bool_]) -> Floats:
    """Reductions of a rank's gradients in a step, where they are not part of every pass.

    One, one after every micro-batch (zero2), or one after every round of micro-batches that a chunk
    takes without a break. `once`: where they are not reduced after every micro-batch.
    """
    m = layouts.micro_batches / layouts.copies
    every = (layouts.sharding == _ZERO2) & software.states.reduces_every_micro_batch & ~once
    each_round = once & software.fsdp2.reduces_each_round
    return np.select([every, each_round], [m, layouts.rounds], default=1.0)
