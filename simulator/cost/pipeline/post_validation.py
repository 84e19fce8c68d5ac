"""Zero-bubble steps one after the other, without waiting for the norm of all gradients.

Each rank updates its parameters with the norm of the ranks that are done, begins its next step,
and rolls the update back where it turns out to be wrong (Qi et al. 2024, section 4). The steps of
different ranks may then lie askew, and one follows another in the longest time that a rank takes
from its first action to its last. With p stages and passes F, I and W:

==============  ================================================================
schedule        idle time of a rank between its first and its last action
==============  ================================================================
zb_h2           (p - 1) max(F + I - 2 W, I - F, 0)
zb_v            (p - 1) max(F + I - 2 W, 2 F - I - W, 2 (I - W), I - F, 0) / 2
the others      as with a barrier: their first rank begins first and ends last
==============  ================================================================

The first is Qi et al. 2023, table 2, for passes as they assume them (F <= W, I <= F); the rest are
what their tables of actions give when they are played. Weight passes of zb_v that are longer than
both others leave a little more: less than one of them a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.passes import over_parts
from simulator.cost.tables import Priced
from simulator.schedules.registry import SCHEDULES, by_code

if TYPE_CHECKING:
    from simulator.cost.tables import Selection

__all__ = ["without_barrier"]


_ASKEW = by_code(lambda schedule: schedule.askew_idle_s is not None)


def without_barrier(
    terms: dict[str, Floats],
    rows: Selection,
    priced: Priced,
    passes_s: tuple[Floats, Floats],
    slowest: NDArray[np.intp],
) -> None:
    """Shorten fill and drain of layouts whose schedule gains by steps that lie askew.

    Parameters
    ----------
    terms : dict
        ``bubble_warmup`` and ``bubble_drain`` of steps with a barrier; changed in place.
    rows, priced : Selection, Priced
    passes_s : tuple of ndarray
        Forward and backward pass of every column.
    slowest : ndarray
        The column with the longest passes.
    """
    layouts, ranks = rows.layouts, rows.ranks
    askew = _ASKEW[layouts.schedule]
    if not askew.any():
        return
    at = np.arange(len(slowest))
    weights = over_parts(rows.parts, priced.blocks.wgrad_s[rows.block_key][:, None, :])
    others = layouts.pp - 1.0
    forward, back = (
        (ranks * x).sum(axis=1) - x[at, slowest] for x in (passes_s[0], passes_s[1] - weights)
    )
    own = weights[at, slowest] * others
    idle = np.zeros_like(own)
    for code, schedule in enumerate(SCHEDULES.values()):
        if schedule.askew_idle_s:
            rule_s = schedule.askew_idle_s(forward, back, own)
            idle = np.where(layouts.schedule == code, rule_s, idle)
    barrier = terms["bubble_warmup"] + terms["bubble_drain"]
    share = np.where(askew, np.minimum(idle / np.maximum(barrier, 1e-300), 1.0), 1.0)
    for name in ("bubble_warmup", "bubble_drain"):
        terms[name] = terms[name] * share
