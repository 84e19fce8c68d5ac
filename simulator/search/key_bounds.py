"""Which degrees and micro-batches may be fast and light: bounds before their layouts are listed.

Layouts of one key (tp, pp, cp, ep, etp, micro-batch, rank order) differ in chunks, in how they
share states and in what they recompute. None of them is faster than its blocks without any of
that, dealt to ranks that all take as long, and none holds less than states that are shared as
widely as can be, on ranks that all hold as much. Of a large space nearly all keys fall by these two
bounds: their layouts, forty and more of each, are never listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.cost.memory.peak import rank_lasting_bytes
from simulator.cost.passes import block_passes, over_parts
from simulator.cost.pricing import price_keys
from simulator.layout.keys import unique_rows
from simulator.layout.layouts import Layouts
from simulator.layout.rules import host_rules, schedule_rules, sharding_rules
from simulator.layout.rules.divisibility_rules import EVEN_STAGES, SPLIT, STAGES
from simulator.layout.rules.feasibility import (
    DEPEND_ON_RECOMPUTATION,
    FEASIBLE,
    RULES,
    reasons,
)
from simulator.layout.rules.rule import Rule
from simulator.records import dataclass
from simulator.search.candidates import Degrees, Pick, families
from simulator.search.memory_filter import Setting

_SLACK = 0.99
"""Of what ranks hold at the mean: shards are padded, and sums are rounded."""

_CHUNKS_AND_STATES = {
    *(STAGES, EVEN_STAGES, SPLIT, *DEPEND_ON_RECOMPUTATION),
    *(
        rule
        for rules in (host_rules, schedule_rules, sharding_rules)
        for rule in vars(rules).values()
        if isinstance(rule, Rule)
    ),
}
RULES_OF_KEYS = tuple(rule for rule in RULES if rule not in _CHUNKS_AND_STATES)
"""Rules that say the same of all layouts of a key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """Keys of an enumeration that can run."""

    least_s: Floats
    """A lower bound on the step time of every layout of the key."""
    held_bytes: Floats
    """The same of what lasts on its fullest rank; 0 where that may wait elsewhere."""
    grid: Ints
    """Index into `degrees`."""
    place: Ints
    """Place of the key among those of its degrees."""
    largest: NDArray[np.bool_]
    """Whether its micro-batch is the largest that can run with its degrees."""
    degrees: list[Degrees]
    layouts: Ints
    """Rows of each key of some degrees, by what they recompute not told apart."""
    rows: int
    """Rows of all keys together, those that cannot run among them."""

    def light(self, most_bytes: float) -> Keys:
        """The keys whose states leave room."""
        some = np.flatnonzero(self.held_bytes <= most_bytes)
        names = ("least_s", "held_bytes", "grid", "place", "largest")
        return replace(self, **{name: getattr(self, name)[some] for name in names})

    def may_grow(self, closed: NDArray[np.bool_]) -> set[Degrees]:
        """Degrees of which a key with the largest micro-batch is not opened."""
        some = self.grid[self.largest & closed]
        return {self.degrees[i] for i in np.unique(some).tolist()}

    def batches(self, values: Floats, most: int) -> Iterator[Ints]:
        """Keys of some `most` rows at a time, the least values first."""
        order = np.argsort(values, kind="stable")
        batch = np.cumsum(self.layouts[self.grid[order]]) // most
        pieces = np.split(order, np.flatnonzero(np.diff(batch)) + 1)
        yield from (some for some in pieces if len(some))

    def rows_of(self, some: Ints) -> Pick:
        """The rows of some keys: all of their chunks and ways to share states."""
        grids = np.unique(self.grid[some]).tolist()
        places = {self.degrees[i]: np.sort(self.place[some[self.grid[some] == i]]) for i in grids}

        def pick(grid: Degrees, shape: Sequence[int], _: Mapping[str, NDArray[Any]]) -> Ints:
            if (key := places.get(grid)) is None:
                return np.arange(0)
            chunks, states = np.arange(shape[0]), np.arange(shape[-1])
            row = chunks[:, None] * prod(shape[1:-1]) + key
            return np.asarray((row[:, :, None] * shape[-1] + states).ravel())

        return pick


def bounded_keys(setting: Setting, pinned: Mapping[str, Any] | None, **ranges: Any) -> Keys:
    """Bound the keys of an enumeration; `ranges` as ``candidates.families`` takes them."""
    degrees, layouts = list[Degrees](), list[int]()
    grids, places, rows = list[Ints](), list[Ints](), 0

    def outline(grid: Degrees, shape: Sequence[int], shared: Mapping[str, NDArray[Any]]) -> Ints:
        """Every key with its first chunks and each way to share states among all."""
        nonlocal rows
        group = shared["shard_group"]
        widest = np.flatnonzero(group == group.max(initial=0))
        key = np.arange(prod(shape[1:-1]))
        places.append(np.repeat(key, len(widest)))
        grids.append(np.full(len(places[-1]), len(degrees)))
        degrees.append(grid)
        layouts.append(shape[0] * shape[-1])
        rows += prod(shape)
        return np.asarray((key[:, None] * shape[-1] + widest).ravel())

    outlined = list(families(*setting, pinned, pick=outline, **ranges))
    none = np.zeros(0, dtype=np.int64)
    grid, place = (np.concatenate([none, *x]) for x in (grids, places))
    able, least_s, held, micro = none, np.zeros(0), np.zeros(0), none
    if len(grid):
        base = outlined[0].base
        able = np.flatnonzero(reasons(base, *setting, rules=RULES_OF_KEYS) == FEASIBLE)
        micro = base.micro_batch[able]
    if len(able):
        modules = sorted({kind.modules for kind in outlined[0].kinds})
        least_s, held = _bounds(base[able], modules, setting)
    largest = np.zeros(len(degrees), dtype=np.int64)
    np.maximum.at(largest, grid[able], micro)
    key = unique_rows(grid[able], place[able])
    held_bytes = np.full(len(key.first), np.inf)
    np.minimum.at(held_bytes, key.inverse, held)
    return Keys(
        least_s=least_s[key.first],
        held_bytes=held_bytes,
        grid=grid[able][key.first],
        place=place[able][key.first],
        largest=(micro == largest[grid[able]])[key.first],
        degrees=degrees,
        layouts=np.array(layouts, dtype=np.int64),
        rows=rows,
    )


def _bounds(base: Layouts, modules: Sequence[int], setting: Setting) -> tuple[Floats, Floats]:
    """Lower bounds on the step time and on what lasts on the fullest rank.

    No chunks, stages or ways to share states make the mean of all ranks less.
    """
    priced = price_keys(base, *setting, modules=modules)
    ahead_s, back_s = block_passes(priced.blocks)
    passes_s = (ahead_s + back_s).reshape(len(modules), -1, ahead_s.shape[1]).min(axis=0)
    table = priced.table
    share = table.ranks / table.ranks.sum(axis=1, keepdims=True)
    parts = (share[:, :, None] * table.parts).sum(axis=1)[priced.plan]
    m = base.micro_batches / base.copies
    least_s = m * over_parts(parts, passes_s[priced.block_key]) * (1.0 - 1e-9)
    first = unique_rows(priced.state_key).first
    held = (share[priced.plan[first]] * rank_lasting_bytes(priced)).sum(axis=1)[priced.state_key]
    away = (base.optimizer_offload > 0) | (base.parameter_offload > 0)
    return least_s, np.where(away, 0.0, _SLACK * held)
