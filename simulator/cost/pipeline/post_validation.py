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

from dataclasses import replace

import numpy as np

from simulator.cost.passes import alone_passes, over_parts
from simulator.cost.tables import Priced, RankPasses, Selection, SlowestRank, StepTerms
from simulator.schedules.registry import SCHEDULES, by_code

_ASKEW = by_code(lambda schedule: schedule.barrier_free_idle_s is not None)


def without_barrier(
    terms: StepTerms, rows: Selection, priced: Priced, ranks: RankPasses, slowest: SlowestRank
) -> StepTerms:
    """Shorten fill and drain of layouts whose schedule gains by steps that lie askew.

    `terms` have ``bubble_warmup`` and ``bubble_drain`` of steps with a barrier.
    """
    layouts = rows.layouts
    askew = _ASKEW[layouts.schedule]
    if not askew.any():
        return terms
    longer = alone_passes(priced.blocks, rows.block_key, rows.parts)
    forward_s, backward_s = ranks.forward_s + longer[0], ranks.backward_s + longer[1]
    at = np.arange(len(slowest.column))
    weights = over_parts(rows.parts, priced.blocks.wgrad_s[rows.block_key][:, None, :])
    others = layouts.pp - 1.0
    forward, back = (
        (rows.ranks * x).sum(axis=1) - x[at, slowest.column]
        for x in (forward_s, backward_s - weights)
    )
    own = weights[at, slowest.column] * others
    idle = np.zeros_like(own)
    for code, schedule in enumerate(SCHEDULES.values()):
        if schedule.barrier_free_idle_s:
            rule_s = schedule.barrier_free_idle_s(forward, back, own)
            idle = np.where(layouts.schedule == code, rule_s, idle)
    barrier = terms.shown_s["bubble_warmup"] + terms.shown_s["bubble_drain"]
    share = np.where(askew, np.minimum(idle / np.maximum(barrier, 1e-300), 1.0), 1.0)
    bubbles = {name: terms.shown_s[name] * share for name in ("bubble_warmup", "bubble_drain")}
    return replace(terms, shown_s={**terms.shown_s, **bubbles})
