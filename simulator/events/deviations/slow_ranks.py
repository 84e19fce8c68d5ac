"""Passes of ranks on unlike servers that wait for one another in every layer.

They compute as long as the slowest of them, and each of their calls is as long as over the slowest
links. What is hidden beside the slowest's compute stays hidden; what its calls take longer on the
links of others shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from simulator.arrays import Floats
from simulator.cost.terms import HIDDEN, TERMS
from simulator.events.step.pass_costs import CAUSE, Passes
from simulator.events.step.pass_phases import COMPUTE_TERMS

_OWN = np.isin([term.name for term in TERMS], [*COMPUTE_TERMS, "launch"])
"""What each rank does by itself; the rest is calls."""


def in_step_passes(passes: Sequence[Passes]) -> Passes:
    """Join passes of the same ranks, each priced on one kind of servers."""
    shown = np.stack([rank_passes.shown_s for rank_passes in passes])
    slowest = np.argmax(shown[..., _OWN].sum(axis=-1), axis=0)

    def of_slowest(name: str) -> Floats:
        columns = np.stack([getattr(rank_passes, name) for rank_passes in passes])
        return np.asarray(np.take_along_axis(columns, slowest[None, ..., None], axis=0)[0])

    calls = np.where(_OWN, 0.0, shown)
    for i, name in enumerate(HIDDEN):
        calls[..., CAUSE[name]] += np.stack(
            [rank_passes.hidden_s[..., i] for rank_passes in passes]
        )
    slowest_calls = np.take_along_axis(calls, slowest[None, ..., None], axis=0)[0]
    longest = {
        field.name: np.max([getattr(rank_passes, field.name) for rank_passes in passes], axis=0)
        for field in fields(Passes)
        if field.name not in ("shown_s", "hidden_s", "alone_s")
    }
    return Passes(
        shown_s=of_slowest("shown_s") + (calls.max(axis=0) - slowest_calls),
        hidden_s=of_slowest("hidden_s"),
        alone_s=of_slowest("alone_s"),
        **longest,
    )
