"""What the fewest changes of a layout gain: every choice alone, every two together, all at once.

A choice is what a person decides at one place: a degree, the micro-batch, how states are shared,
what is recomputed. What follows from it (data-parallel ranks, sequence parallelism) is no further
change. Whether the model is compiled is one, too, where the software has both profiles. All layouts
that differ in one choice or two are priced in full.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from simulator import catalogue
from simulator.cost.step import Estimate, evaluate
from simulator.errors import InfeasibleError, InputError
from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.layout.rules.rule import Setting
from simulator.layout.rules.software_rules import unsaid_change
from simulator.planner.layout_row import LayoutRow, layout_rows
from simulator.planner.prediction import Prediction, predict
from simulator.planner.variants import Variant, variant_of
from simulator.records import dataclass
from simulator.scenario import Scenario
from simulator.search.candidates import candidates
from simulator.search.defaults import stated_layout
from simulator.software.profile import load_software

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

COMPILE = "compile"
"""The choice to compile the model."""

_EAGER = "-eager"
"""What names of profiles end in whose model is not compiled, as that of their base is."""

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
    alone: list[tuple[str, ...]] = [(name,) for name in CHOICES]
    best = _best_of(now, [*alone, *combinations(CHOICES, 2)])
    best |= (compiled := _compiled(now, alone))
    single = sorted((x for choices, x in best.items() if len(choices) == 1), key=lambda x: -x.gain)
    pairs = [change for choices, change in best.items() if len(choices) == 2]
    steps = [*single[:1], *sorted(pairs, key=_order)[:1]]
    searched = [_search(now)]
    if compiled:
        other = _search(_of(now, _twin(now.scenario)))
        searched.append(None if other is None else _with_twin(now, other))
    if whole := sorted((change for change in searched if change is not None), key=_order):
        steps.append(whole[0])
    rising: list[FewChanges] = []
    for change in steps:
        before = rising[-1].step_time_s if rising else None
        if before is None or (change.step_time_s or 0.0) < (1 - LEAST_GAIN) * before:
            alike = [x for x in rising if x.fields.keys() == change.fields.keys()]
            rising = [*(x for x in rising if x not in alike), change]
    others = [change for change in single[1:] if all(_differ(change, x) for x in rising)]
    chosen = [*rising, *others[: max(most - len(rising), 0)]][:most]
    return sorted(chosen, key=lambda change: (len(change.choices), -change.gain))


def _twin(scenario: Scenario) -> Scenario:
    """The same with the model compiled, where its software has a profile of that; else as it is."""
    name = scenario.software.name
    whole = name.removesuffix(_EAGER)
    if whole == name or whole not in catalogue.names("software"):
        return scenario
    return replace(scenario, software=load_software(whole))


def _of(now: Prediction, scenario: Scenario) -> Prediction:
    """The layout at hand with another software."""
    return predict(replace(scenario, pinned=stated_layout(now.layout, scenario.software)))


def _compiled(now: Prediction, sets: list[tuple[str, ...]]) -> dict[tuple[str, ...], FewChanges]:
    """The model compiled, alone and with another choice, where that is faster and fits."""
    other = _twin(now.scenario)
    if other.software is now.scenario.software:
        return {}
    try:
        there = _of(now, other)
    except InputError:  # compiled, the software has not all of it
        return {}
    best: dict[tuple[str, ...], FewChanges] = {}
    if there.memory_verdict == "FITS" or (there.fits and _may_be_tight(now)):
        same = variant_of(other, there.estimate, of=FewChanges)
        best[()] = same
    best |= _best_of(there, sets)
    both = {(COMPILE, *choices): _with_twin(now, change) for choices, change in best.items()}
    return {choices: change for choices, change in both.items() if change.gain > LEAST_GAIN}


def _with_twin(now: Prediction, change: FewChanges) -> FewChanges:
    """A change of the compiled launch as one of the launch at hand."""
    choices = tuple(name for name in change.choices if name != COMPILE)
    return replace(
        change,
        fields={COMPILE: (False, True), **change.fields},
        choices=(COMPILE, *choices),
        before_s=now.step_time_s if now.fits else float("inf"),
    )


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
    at = Setting(workload=setting[0], cluster=setting[1], software=setting[2])
    tables, owners = [], []
    for number, choices in enumerate(sets):
        table = candidates(*setting, _kept(now.estimate.layouts.row(), choices))
        possible = reasons(table, *setting) == FEASIBLE
        possible &= ~unsaid_change(table, at, now.estimate.layouts)
        table = table[possible]
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
    before, after = now.estimate.layouts.row(), estimate.layouts.row(row)
    changed = {
        name: (before[name], after[name])
        for name in _fields()
        if before[name] != after[name] and not _follows(name, before, after)
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
    from simulator.planner.plan import plan

    try:
        estimate = plan(_free(now.scenario), keep=64).estimate
    except InfeasibleError:
        return None
    best = 0
    if now.fits and estimate.step_time_s[best] >= (1 - LEAST_GAIN) * now.step_time_s:
        return None
    return _variant(now, ("all",), estimate, best)
