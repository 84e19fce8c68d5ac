"""What the fewest changes of a layout gain: every choice alone, every two together, all at once.

A choice is what a person decides at one place: a degree, the micro-batch, how states are shared,
what is recomputed. What follows from it (data-parallel ranks, sequence parallelism) is no further
change. All layouts that differ in one choice or two are priced in full.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from simulator.cost.step import Estimate, evaluate
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.planner.layout_row import LayoutRow, layout_rows
from simulator.planner.prediction import Prediction, predict
from simulator.planner.variants import Variant, variant_of
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.candidates import candidates

CHOICES: dict[str, tuple[str, ...]] = {
    "tp": ("tp", "sequence_parallel"),
    "pp": ("pp",),
    "vpp": ("vpp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "etp": ("etp",),
    "micro_batch": ("micro_batch",),
    "sequence_parallel": ("sequence_parallel",),
    "sharding": ("sharding", "shard_group", "reshard_after_forward"),
    "recompute": ("recompute", "recompute_layers", "recompute_modules"),
    "rank_order": ("rank_order",),
}
"""A choice and the layout fields that go with it."""

LEAST_GAIN = 0.01
"""Share of the step time below which a change is not worth naming."""

_MOST_ROWS = 20_000
"""Layouts of a pair of choices that are priced; more are left to the search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FewChanges(Variant):
    """A layout that is faster than the one at hand, or fits where that does not."""

    KEYS: tuple[str, ...] = ("choices", "fields=before_and_after", "gain", "*row")

    choices: tuple[str, ...] = ()
    """What of a layout is decided anew."""

    @property
    def before_and_after(self) -> dict[str, dict[str, Any]]:
        """The fields that change, as JSON says them."""
        keys = ("before", "after")
        return {name: dict(zip(keys, pair, strict=True)) for name, pair in self.fields.items()}

    @property
    def prediction(self) -> Prediction:
        """The layout in full, with days and USD."""
        return predict(self.scenario)

    @property
    def row(self) -> LayoutRow:
        """The layout as JSON says it."""
        return layout_rows(self.prediction)[0]


def cheapest_changes(now: Prediction, most: int = 3) -> list[FewChanges]:
    """The changes that gain most for the fewest choices, fewest first.

    Parameters
    ----------
    now : Prediction
        The layout at hand.
    most : int
        How many are returned at most.

    Notes
    -----
    First the best of one choice, then the best of two, then the best of any number, where each
    gains more than the one before; then further single choices, the best first.
    """
    alone = [(name,) for name in CHOICES]
    best = _best_of(now, [*alone, *combinations(CHOICES, 2)])
    single = sorted((best[choices] for choices in alone if choices in best), key=lambda x: -x.gain)
    pairs = [change for choices, change in best.items() if len(choices) == 2]
    steps = [*single[:1], *sorted(pairs, key=_order)[:1]]
    if (whole := _search(now)) is not None:
        steps.append(whole)
    rising: list[FewChanges] = []
    for change in steps:
        before = rising[-1].step_time_s if rising else None
        if before is None or (change.step_time_s or 0.0) < (1 - LEAST_GAIN) * before:
            rising.append(change)
    others = [change for change in single[1:] if all(_differ(change, x) for x in rising)]
    chosen = [*rising, *others[: max(most - len(rising), 0)]][:most]
    return sorted(chosen, key=lambda change: (len(change.choices), -change.gain))


def _differ(a: FewChanges, b: FewChanges) -> bool:
    return a.fields != b.fields


def _order(change: FewChanges) -> tuple[float, int]:
    return change.step_time_s or 0.0, len(change.choices)


def _fields() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in CHOICES.values() for name in names))


def _best_of(now: Prediction, sets: list[tuple[str, ...]]) -> dict[tuple[str, ...], FewChanges]:
    """For each set of choices the fastest layout that fits and differs in these alone."""
    scenario = now.scenario
    setting = scenario.workload, scenario.cluster, scenario.software
    tables, owners = [], []
    for number, choices in enumerate(sets):
        table = candidates(*setting, _kept(now.layout, choices))
        table = table[reasons(table, *setting) == FEASIBLE]
        if 0 < len(table) <= _MOST_ROWS:
            tables.append(table)
            owners.append(np.full(len(table), number))
    if not tables:
        return {}
    estimate = evaluate(Layouts.concatenate(tables), *setting)
    owner = np.concatenate(owners)
    able = estimate.able(allow_tight=_may_be_tight(now))
    limit = (1 - LEAST_GAIN) * now.step_time_s if now.fits else np.inf
    best_of: dict[tuple[str, ...], FewChanges] = {}
    best_pair = np.inf
    for number, choices in enumerate(sets):
        times = np.where((owner == number) & able, estimate.step_time_s, np.inf)
        best = int(np.argmin(times))
        if times[best] < limit and (len(choices) == 1 or times[best] < best_pair):
            best_pair = times[best] if len(choices) > 1 else best_pair
            change = _variant(now, choices, estimate, best)
            if change is not None:
                best_of[choices] = change
    return best_of


def _may_be_tight(now: Prediction) -> bool:
    """Whether a change may be TIGHT: where that is allowed, or the launch at hand is."""
    return now.scenario.allow_tight or now.memory_verdict == "TIGHT"


def _kept(row: dict[str, Any], choices: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a layout that other choices than these decide."""
    free = {name for choice in choices for name in CHOICES[choice]}
    follows = {"cp_kind", "cp_a2a", "dp", "global_batch", "shard_group", "reshard_after_forward"}
    pinned = {k: v for k, v in row.items() if k not in free | follows}
    if row["shard_group"] != row["dp"] * row["cp"] and "sharding" not in choices:
        pinned["shard_group"] = row["shard_group"]
    return pinned


def _variant(
    now: Prediction, choices: tuple[str, ...], estimate: Estimate, row: int
) -> FewChanges | None:
    after = estimate.layouts.row(row)
    changed = {
        name: (now.layout[name], after[name])
        for name in _fields()
        if now.layout[name] != after[name] and not _follows(name, now.layout, after)
    }
    if not changed:
        return None
    moved = tuple(name for name in CHOICES if any(f in changed for f in CHOICES[name]))
    if "tp" in moved and "sequence_parallel" in moved:
        moved = tuple(name for name in moved if name != "sequence_parallel")
    return variant_of(
        _free(now.scenario),
        estimate,
        row,
        of=FewChanges,
        fields=changed,
        choices=moved or choices,
        before_s=now.step_time_s if now.fits else float("inf"),
    )


def _follows(name: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a field only follows the number of data-parallel ranks: states shared over all."""
    if name != "shard_group":
        return False
    return all(row["shard_group"] == row["dp"] * row["cp"] for row in (before, after))


def _free(scenario: Scenario) -> Scenario:
    return replace(scenario, pinned={}, document={**scenario.document, "layout": {}})


def _search(now: Prediction) -> FewChanges | None:
    """The fastest of all layouts."""
    from simulator.errors import InfeasibleError
    from simulator.planner.plan import plan

    try:
        estimate = plan(_free(now.scenario), keep=64).estimate
    except InfeasibleError:
        return None
    best = 0
    if now.fits and estimate.step_time_s[best] >= (1 - LEAST_GAIN) * now.step_time_s:
        return None
    return _variant(now, ("all",), estimate, best)
