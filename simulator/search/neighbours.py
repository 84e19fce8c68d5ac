"""Layouts one step away in a field, and the walk along them from the best of the grid.

The grid (``candidates.py``) leaves gaps: shard groups other than all replicas and a domain, chunks
that do not divide the layers, numbers of recomputed layers between eighths, degrees beyond its
caps. From the best layouts of different degrees every field is moved by a step, what can run, fits
and may be better is priced in full, and so on from what was better, until nothing is. Fields that
follow from a moved one keep what they meant: a shard group of all replicas stays that of all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from itertools import combinations, permutations
from math import gcd
from typing import Any, Protocol

import numpy as np

from simulator.arrays import Floats, Ints
from simulator.cost.estimate import Estimate, concatenate
from simulator.cost.pricing import price_keys, with_paths
from simulator.cost.step import Unfilled, least_step_s
from simulator.layout.layouts import RANK_ORDERS, RECOMPUTE, SHARDINGS, Layouts, divisors, mask_of
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.layout.rules.rule import Setting as RuleSetting
from simulator.layout.rules.software_rules import sayable
from simulator.layout.stages import even_pieces
from simulator.records import dataclass
from simulator.schedules.registry import SCHEDULES, WORDS, usual
from simulator.search.candidates import MOST_CHUNKS, MOST_CP, attention_heads, module_sets
from simulator.search.in_threads import may_go_on
from simulator.search.memory_filter import Setting
from simulator.search.sharding_choices import shardings
from simulator.search.stage_splits import rebalanced_stages, worth_rebalancing

Order = Callable[[Estimate], Ints]
"""Places of layouts, best first."""


class Bound(Protocol):
    """What no layout with a step of so many seconds can do better than."""

    limit: float
    """What the best of the layouts that were ordered last comes to; less is better."""

    def least(self, estimate: Estimate) -> Floats:
        """What layouts come to at the least, if their steps are no shorter than those given."""


def by_step(estimate: Estimate) -> Ints:
    """Places of layouts, the fastest first."""
    return np.argsort(estimate.step_time_s, kind="stable")


STARTS = 4
"""Best layouts of different degrees (tp, pp, cp) that a walk begins from."""

_MOST_ROUNDS = 24
AHEAD = 3
"""Better layouts of a round from which the next one goes on."""

_REBALANCED = 4
"""Neighbours of a round whose layers are dealt anew."""

_FEW_PIECES = 12
"""Of a pipeline, so many may give a layer to any other; of more, to the next one and to the next of
the same rank, and first and last, which hold embedding and head, to any. These two may do so at
once; where a slower step may be better, any two of half as many, or one half of its layers."""

_DEGREES = ("tp", "pp", "cp", "dp")
_ALIKE = 1.1
"""Times the step of the best up to which what is better by the goal is much the same step."""
_SLOWER = 1.0
"""Times the step of the best so far above whose lower bound a neighbour is not priced."""

_SLACK = 0.999
"""Of a step without fill and drain: the longest path may have a few passes less than a rank."""

Row = dict[str, int]
_Name = tuple[int | tuple[int, ...], ...]
"""What tells a layout from others, whatever table it stands in; the last field is stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """What a walk came to."""

    better: Estimate | None
    """Layouts better than the best of the grid, the best first; None where none is."""
    tried: int
    """Layouts that were looked at beside the grid's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The neighbours of some layouts, whatever is better among them."""

    both: Estimate | None
    """The best layout so far, then neighbours that may be better; None where none may."""
    tried: int
    seen: set[_Name]
    """Layouts that were looked at up to then."""


def walk(
    best: Estimate,
    setting: Setting,
    pinned: Mapping[str, Any],
    order: Order,
    *,
    slower: float = _SLOWER,
    surely: bool = False,
    bound: Bound | None = None,
    known: dict[bytes, Round] | None = None,
) -> Walk:
    """Walk from the best layouts of a search until no step of a field makes anything better.

    Parameters
    ----------
    best : Estimate
        Layouts that fit, the best first.
    pinned : mapping
        Layout fields with a fixed value.
    order : callable
        What is better: places of the layouts of an estimate, best first; equal ones keep theirs.
    slower : float
        Times the step of the best above whose lower bound a neighbour cannot be better.
    surely : bool
        Go to layouts that FIT alone, not to TIGHT ones.
    bound : Bound, optional
        Leaves out neighbours that cannot be better before they are priced in full.
    known : dict, optional
        Rounds of walks from the same search with other goals and prices, and of this one
        afterwards: what is better is asked anew, neighbours are not priced again.
    """
    limits: dict[str, Any] = {"slower": slower, "surely": surely}
    steps = _steps(best, setting, pinned, order, bound=bound, known=known, **limits)
    return _walked([steps], setting, pinned)[0]


def walk_each(
    several: Sequence[tuple[Estimate, Order, Mapping[str, Any]]],
    setting: Setting,
    pinned: Mapping[str, Any],
) -> list[Walk]:
    """Walks from several searches at once, whose neighbours are priced together.

    As :func:`walk` says of each alone: `several` are what a search found, the order, and the rest
    by its name.
    """
    usual: dict[str, Any] = {"slower": _SLOWER, "surely": False, "bound": None, "known": None}
    steps = [
        _steps(best, setting, pinned, order, **{**usual, **limits})
        for best, order, limits in several
    ]
    return _walked(steps, setting, pinned)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """Neighbours that a walk wants priced."""

    table: Layouts
    lead_s: float
    """Step of the best so far."""
    slower: float
    """Times that up to which a neighbour may be better."""
    surely: bool
    bound: Bound | None


_Steps = Generator[_Asked, Estimate | None, Walk]
"""A walk, which is given the estimates of what it asks for."""


def _walked(several: list[_Steps], setting: Setting, pinned: Mapping[str, Any]) -> list[Walk]:
    """Take walks to their ends, a round of all of them at a time."""
    done = dict[int, Walk]()
    given: dict[int, Estimate | None] = dict.fromkeys(range(len(several)))
    while given:
        may_go_on()
        asked = dict[int, _Asked]()
        for i, estimate in given.items():
            try:
                asked[i] = several[i].send(estimate)
            except StopIteration as end:
                done[i] = end.value
        answers = _priced(list(asked.values()), setting, pinned) if asked else []
        given = dict(zip(asked, answers, strict=True))
    return [done[i] for i in range(len(several))]


def _steps(
    best: Estimate,
    setting: Setting,
    pinned: Mapping[str, Any],
    order: Order,
    *,
    slower: float,
    surely: bool,
    bound: Bound | None,
    known: dict[bytes, Round] | None,
) -> _Steps:
    """The rounds of :func:`walk`."""
    rounds = {} if known is None else known
    moves = Moves(setting, pinned, slower=slower > _ALIKE)
    leader, tried = best.take(slice(0, 1)), 0
    ahead, better = best.take(_starts(best.layouts)).layouts, list[Estimate]()
    seen, path = set[_Name](), pickle.dumps((slower, surely))
    for _ in range(_MOST_ROUNDS):
        limit = None if bound is None else bound.limit
        path = sha256(path + pickle.dumps((_names(leader.layouts), _names(ahead), limit))).digest()
        if path not in rounds:
            seen = set(seen)
            table = moves.around(ahead, seen)
            limits: dict[str, Any] = {"slower": slower, "surely": surely}
            lead_s = float(leader.step_time_s[0])
            priced = yield _Asked(table=table, lead_s=lead_s, bound=bound, **limits)
            both = None if priced is None else _able(leader, priced, **limits)
            rounds[path] = Round(both=both, tried=len(table), seen=seen)
        both, seen = rounds[path].both, rounds[path].seen
        tried += rounds[path].tried
        if both is None:
            break
        places = order(both)
        won = places[: int(np.flatnonzero(places == 0)[0])]
        if not len(won):
            break
        winners = both.take(won[:AHEAD])
        better.insert(0, winners)
        leader, ahead = winners.take(slice(0, 1)), winners.layouts
    return Walk(better=concatenate(better) if better else None, tried=tried)


def _able(leader: Estimate, priced: Estimate, *, slower: float, surely: bool) -> Estimate | None:
    """The leader, then the neighbours that fit and may be better; None where none is."""
    fits = priced.verdict == 0 if surely else priced.fits
    able = np.flatnonzero(fits & (priced.step_time_s <= slower * float(leader.step_time_s[0])))
    return concatenate([leader, priced.take(able)]) if len(able) else None


def _starts(layouts: Layouts) -> Ints:
    """Places of the best of each of the first few degrees."""
    first: dict[tuple[int, ...], int] = {}
    columns = (layouts.tp, layouts.pp, layouts.cp)
    for place, degrees in enumerate(zip(*(x.tolist() for x in columns), strict=True)):
        if len(first) < STARTS:
            first.setdefault(degrees, place)
    return np.array(list(first.values()))


def _priced(
    several: list[_Asked], setting: Setting, pinned: Mapping[str, Any]
) -> list[Estimate | None]:
    """Neighbours that fit and may be better, of each walk, some of them with layers dealt anew.

    What is too slow even if its pipeline neither fills nor drains needs no longest path. What is
    dealt anew is to be faster than the best so far.
    """
    workload, cluster, software = setting
    at = RuleSetting(workload=workload, cluster=cluster, software=software)
    tables = [asked.table for asked in several]
    table = tables[0] if len(tables) == 1 else Layouts.concatenate(tables)
    walk = np.repeat(np.arange(len(tables)), [len(x) for x in tables])
    able = np.flatnonzero((reasons(table, *setting) == FEASIBLE) & sayable(table, at, pinned))
    table, walk = table[able], walk[able]
    none: list[Estimate | None] = [None for _ in several]
    if not len(table):
        return none
    lead_s = np.array([asked.lead_s for asked in several])
    most_s = lead_s * [asked.slower for asked in several]
    known = price_keys(table, *setting)
    some = np.flatnonzero(least_step_s(table, known) <= most_s[walk])
    if not len(some):
        return none
    table, walk, known = table[some], walk[some], known.of(some)
    unfilled = Unfilled.of(table, known)
    filled = unfilled.estimate
    shortest_s = _SLACK * (filled.step_time_s - filled.terms_s["pp"])  # without sends: the least
    surely = np.array([asked.surely for asked in several])[walk]
    fits = np.where(surely, filled.verdict == 0, filled.fits)
    able = np.flatnonzero(fits & (shortest_s <= most_s[walk]))
    able = _within_bounds(able, walk, filled, shortest_s, several)
    pieces = list[tuple[Ints, Estimate]]()
    if len(able):
        fine = with_paths(known.of(able), table[able], coarse=False)
        pieces.append((walk[able], unfilled.filled(able, fine.paths)))
    if "stages" not in pinned:
        even_s = shortest_s - filled.imbalance_s
        worth = worth_rebalancing(table, workload, software) & (even_s < lead_s[walk])
        about_s = even_s * (1.0 + (table.pp - 1.0) / (table.vpp * table.micro_batches))
        of_each = (np.flatnonzero(worth & (walk == i)) for i in range(len(several)))
        first = [rows[np.argsort(about_s[rows], kind="stable")[:_REBALANCED]] for rows in of_each]
        chosen = np.concatenate(first)
        if len(chosen) and (split := rebalanced_stages(table[chosen], known.of(chosen))):
            pieces.append((walk[chosen][split[0]], split[1]))
    return [_of_walk(i, pieces) for i in range(len(several))]


def _within_bounds(
    able: Ints, walk: Ints, filled: Estimate, shortest_s: Floats, several: list[_Asked]
) -> Ints:
    """Those whose goal their walk's bound does not rule out, if their steps are the shortest."""
    for i, asked in enumerate(several):
        mine = able[walk[able] == i]
        if asked.bound is None or not len(mine):
            continue
        shortest = replace(filled.take(mine), step_time_s=shortest_s[mine])
        lost = mine[asked.bound.least(shortest) > asked.bound.limit]
        able = np.setdiff1d(able, lost, assume_unique=True)
    return able


def _of_walk(i: int, pieces: list[tuple[Ints, Estimate]]) -> Estimate | None:
    """The estimates of one walk among those of several."""
    places = [np.flatnonzero(walk == i) for walk, _ in pieces]
    mine = [
        estimate if len(some) == len(estimate) else estimate.take(some)
        for some, (_, estimate) in zip(places, pieces, strict=True)
        if len(some)
    ]
    return concatenate(mine) if mine else None


class Moves:
    """Steps of every field that is not pinned."""

    def __init__(self, setting: Setting, pinned: Mapping[str, Any], *, slower: bool) -> None:
        self.slower = slower
        workload, self.cluster, software = setting
        self.software = software
        self.arch, self.can = workload.architecture, software.supports
        self.batch = workload.recipe.global_batch
        self.fixed = {name for name, value in pinned.items() if value != "any"}
        self.masks = [mask_of(words) for words in module_sets(self.arch, software, pinned)]
        self.experts = min((moe.experts for moe in self.arch.moes), default=1)
        self.kept_whole = software.fsdp2.keeps_gathered_with_pipeline
        ends = 2 if self.can.uneven_stages else 0
        self.pieces = self.arch.layers + ends

    def around(self, layouts: Layouts, seen: set[_Name]) -> Layouts:
        """Layouts one step from some of a table, those left out that were seen; `seen` grows."""
        columns, made = [*layouts.columns()], list[Row]()
        splits: list[tuple[int, ...]] = [()]

        def is_new(row: Row) -> bool:
            if (name := _name(row, splits)) in seen:
                return False
            seen.add(name)
            made.append(row)
            return True

        for start in _rows(layouts):
            if split := layouts.splits[start["stages"]]:
                start["stages"] = len(splits)
                splits.append(split)
            seen.add(_name(start, splits))
            for row in self._of(start):
                is_new(row)
            for dealt in self._dealt(start, split):
                splits.append(dealt)
                if not is_new({**start, "stages": len(splits) - 1}):
                    splits.pop()
        table = np.array([[*row.values()] for row in made], dtype=np.int32)
        table = np.ascontiguousarray(table.reshape(len(made), len(columns)).T)
        return Layouts(**dict(zip(columns, table, strict=True)), splits=tuple(splits))

    def _dealt(self, row: Row, split: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """A layer of one piece given to another, where the slowest rank is not all that counts.

        That one ``search/stage_splits.py`` makes as fast as it can be. Of unlike layers it matters
        which a piece gets; and few micro-batches wait for the sum of all pieces, so that what is
        left of the gradients at the end decides.
        """
        alike = len(set(self.arch.layer_kinds)) == 1
        many = self.batch // (row["dp"] * row["micro_batch"]) > row["pp"]
        fixed = not self.can.uneven_stages or "stages" in self.fixed
        pieces = row["pp"] * row["vpp"]
        if row["pp"] == 1 or fixed or (alike and many and pieces > 2 * _FEW_PIECES):
            return
        ahead = len(self.arch.layer_kinds) - self.arch.layers
        split = split or tuple(even_pieces(self.arch.layers, pieces, ahead=ahead).tolist())
        last, pairs = pieces - 1, [*_single_moves(pieces, row["pp"])]
        if self.slower and pieces <= _FEW_PIECES // 2:
            moves = [pair[0] for pair in pairs]
            pairs += [*combinations(moves, 2), *((x,) * max(split[x[0]] // 2, 1) for x in moves)]
        elif pieces > 2:
            pairs += [((0, 1), (last, last - 1)), ((1, 0), (last - 1, last))]
        for pair in pairs:
            dealt = list(split)
            for source, target in pair:
                dealt[source], dealt[target] = dealt[source] - 1, dealt[target] + 1
            if min(dealt) >= 0 and (self.can.empty_stages or all(dealt[1:-1])):
                yield tuple(dealt)

    def _of(self, row: Row) -> Iterator[Row]:
        yield from self._degrees(row)
        yield from self._pipeline(row)
        yield from self._experts(row)
        yield from self._states(row)
        yield from self._recomputation(row)
        for size in _next(divisors(self.batch // row["dp"]), row["micro_batch"]):
            yield from self._with(row, micro_batch=size)
        for word in self.can.sequence_parallel if row["tp"] > 1 else ():
            yield from self._with(row, sequence_parallel=int(word))
        for order in self.can.rank_orders if row["pp"] > 1 and row["dp"] > 1 else ():
            yield from self._with(row, rank_order=RANK_ORDERS.index(order))

    def _with(self, row: Row, **changed: int) -> Iterator[Row]:
        """The row with some fields changed, where none of them is pinned."""
        if not self.fixed & {name for name, value in changed.items() if row[name] != value}:
            yield {**row, **changed}

    def _degrees(self, row: Row) -> Iterator[Row]:
        """A prime factor moved from one degree to another; what follows from them follows."""
        for source, target in permutations(_DEGREES, 2):
            for prime in _primes(row[source]):
                moved = {source: row[source] // prime, target: row[target] * prime}
                if self.fixed & {*moved}:
                    continue
                if (made := self._followed(row, {**row, **moved})) is not None:
                    yield made
                    if made["etp"] != row["etp"] and made["tp"] % row["etp"] == 0:
                        yield {**made, "etp": row["etp"]}

    def _followed(self, before: Row, row: Row) -> Row | None:
        """Fields that follow from changed degrees; None where they leave the caps."""
        tp, pp, cp, dp = (row[name] for name in _DEGREES)
        most_pp = self.arch.layers if self.can.pipeline else 1
        if tp > attention_heads(self.arch) or cp > MOST_CP or pp > most_pp or self.batch % dp:
            return None
        all_before = before["shard_group"] == before["dp"] * before["cp"]
        group = dp * cp if all_before else gcd(before["shard_group"], dp * cp)
        if group == 1 < dp * cp and SHARDINGS[row["sharding"]] != "ddp":
            group = dp * cp
        again = before["reshard_after_forward"]
        stays = pp == before["pp"]
        vpp = max(min(row["vpp"], self.pieces // pp), 1) if pp > 1 else 1
        micro = max(d for d in divisors(self.batch // dp) if d <= row["micro_batch"])
        covered = row["recompute_layers"]
        follows = {
            "shard_group": group,
            "reshard_after_forward": again if again and group % again == 0 else 0,
            "vpp": vpp,
            "micro_batch": micro,
            "ep": gcd(row["ep"], tp * cp * dp),
            "etp": tp if before["etp"] == before["tp"] else 1,
            "sequence_parallel": self._sequence(before, tp),
            "stages": row["stages"] if stays and vpp == row["vpp"] else 0,
            "recompute_layers": covered if covered < self.arch.layers // pp else 0,
            "schedule": self._schedule(row, pp, vpp),
        }
        pinned = {name for name in self.fixed & {*follows} if follows[name] != before[name]}
        return None if pinned else {**row, **follows}

    def _sequence(self, before: Row, tp: int) -> int:
        if tp == 1:
            return 0
        if before["tp"] > 1:
            return before["sequence_parallel"]
        return int(True in self.can.sequence_parallel)

    def _schedule(self, row: Row, pp: int, vpp: int) -> int:
        """Its schedule where that was named; else the usual one of so many chunks."""
        named = not SCHEDULES[WORDS[row["schedule"]]].by_default
        return row["schedule"] if named and pp > 1 else WORDS.index(usual(vpp))

    def _pipeline(self, row: Row) -> Iterator[Row]:
        """Any number of chunks, since the best are not next to one another; layers by the rule."""
        if row["pp"] == 1 or "stages" in self.fixed:
            return
        most = min(self.pieces // row["pp"], MOST_CHUNKS)
        for vpp in range(1, most + 1):
            schedule = self._schedule(row, row["pp"], vpp)
            yield from self._with(row, vpp=vpp, stages=0, schedule=schedule)
        if row["stages"]:
            yield {**row, "stages": 0}

    def _experts(self, row: Row) -> Iterator[Row]:
        if not self.arch.is_moe or not self.can.expert:
            return
        ranks = row["tp"] * row["cp"] * row["dp"]
        for ep in _next([d for d in divisors(self.experts) if ranks % d == 0], row["ep"]):
            yield from self._with(row, ep=ep)
        for etp in {1, row["tp"], *_next(divisors(row["tp"]), row["etp"])}:
            yield from self._with(row, etp=etp)

    def _states(self, row: Row) -> Iterator[Row]:
        """Other shardings, each with every size of its groups; and sizes to gather from."""
        replicas = row["dp"] * row["cp"]
        groups = divisors(replicas)[1:] or [1]  # of one of several: nothing is shared
        alone = shardings(self.software, {}, row["tp"], row["pp"], 1)
        for word in self.can.sharding if replicas > 1 else alone:
            level = SHARDINGS.index(word)
            for group in groups if word in self.can.hybrid_sharding else [replicas]:
                again = row["reshard_after_forward"] if word == "zero3" else 0
                again = again if again and group % again == 0 and again < group else 0
                changed = {"sharding": level, "shard_group": group, "reshard_after_forward": again}
                yield from self._with(row, **changed)
        kept = row["pp"] > 1 and self.kept_whole
        if SHARDINGS[row["sharding"]] == "zero3" and "group" in self.can.reshard and not kept:
            sizes = [d for d in divisors(row["shard_group"]) if d > 1]
            for again in _next(sizes, row["reshard_after_forward"] or row["shard_group"]):
                again = 0 if again == row["shard_group"] else again
                yield from self._with(row, reshard_after_forward=again)

    def _recomputation(self, row: Row) -> Iterator[Row]:
        """Other kinds and modules; layers of full recomputation one up, one down, and by halves."""
        per_rank = self.arch.layers // row["pp"]
        for mode in self.can.recompute:
            code = RECOMPUTE.index(mode)
            for mask in self.masks if mode == "selective" else (0,):
                yield from self._with(
                    row, recompute=code, recompute_modules=mask, recompute_layers=0
                )
        if "full" not in self.can.recompute:
            return
        full, layers = RECOMPUTE.index("full"), row["recompute_layers"] or per_rank
        if row["recompute"] != full:
            layers = 0
        for count in {layers - 1, layers + 1, layers // 2, 1}:
            if 0 < count <= per_rank:
                covered = 0 if count == per_rank else count
                yield from self._with(
                    row, recompute=full, recompute_modules=0, recompute_layers=covered
                )


@lru_cache(64)
def _single_moves(pieces: int, pp: int) -> list[tuple[tuple[int, int], ...]]:
    """Pieces that give a layer to one another, as _FEW_PIECES says."""
    near, ends = (1, pp) if pieces > _FEW_PIECES else range(1, pieces), (0, pieces - 1)
    return [
        ((source, target),)
        for source, target in permutations(range(pieces), 2)
        if source in ends or target in ends or abs(source - target) in near
    ]


def _rows(layouts: Layouts) -> list[Row]:
    columns = {name: column.tolist() for name, column in layouts.columns().items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _names(layouts: Layouts) -> list[_Name]:
    return [_name(row, layouts.splits) for row in _rows(layouts)]


def _name(row: Row, splits: Sequence[tuple[int, ...]]) -> _Name:
    *values, stages = row.values()
    return (*values, splits[stages])


def _next(values: list[int], value: int) -> list[int]:
    """The nearest of rising values on either side of one."""
    below = [x for x in values if x < value][-1:]
    return below + [x for x in values if x > value][:1]


def _primes(number: int) -> list[int]:
    """Prime factors, each once.

    >>> _primes(12), _primes(1)
    ([2, 3], [])
    """
    return [d for d in divisors(number)[1:] if all(d % p for p in range(2, int(d**0.5) + 1))]
