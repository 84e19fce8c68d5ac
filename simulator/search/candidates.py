"""Enumerate the layouts worth trying for a workload, a cluster and a software.

The grid is the product of divisors: tp, pp, vpp, cp, ep, etp, micro-batch, ways to share states
(``sharding_choices.py``), sequence parallelism, recomputation and rank order; dp follows from the
number of accelerators. Pinned fields take their given value only. Every row is then judged by
``layout/rules/feasibility.py``; combinations that differ in nothing (two rank orders of a layout
without pipeline) appear once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Ints
from simulator.hardware.cluster import Cluster
from simulator.layout.layouts import (
    CP_KINDS,
    DISPATCHERS,
    OFFLOADS,
    RANK_ORDERS,
    RECOMPUTE,
    SHARDINGS,
    Layouts,
    accelerators,
    data_parallel_degree,
    divisors,
    mask_of,
)
from simulator.records import dataclass
from simulator.schedules.registry import SCHEDULES, WORDS, usual
from simulator.search.sharding_choices import shared_states
from simulator.software.profile import Software
from simulator.software.supports import Supports
from simulator.workload.architecture import MLP, Architecture
from simulator.workload.recipe import Workload

Degrees = tuple[int, int, int, int]
"""tp, pp, cp and dp."""

Range = tuple[float, float]
"""Numbers above the first, up to the second."""

Pick = Callable[[Degrees, Sequence[int], Mapping[str, NDArray[Any]]], Ints]
"""Rows to list of the product of a grid's axes: by its degrees, the lengths of the axes, chunks
first and ways to share states last, and these ways."""

Memo = dict[tuple[Any, ...], Any]
"""Choices of degrees that calls share, by the degrees."""

EVERY: Range = (0, float("inf"))
"""All numbers."""

MOST_RECOMPUTE_STEPS = 8
"""Full recomputation of n layers of a rank is tried at most at this many n, evenly spaced."""

MOST_CP = 64
"""Context-parallel ranks."""

FEWEST_TOKENS = 2048
"""Of a sequence on a context-parallel rank."""

MOST_DOMAINS, SMALL_TP = 2, 8
"""Fast domains that tensor parallelism may span, and ranks that it may have whatever they are."""

MOST_CHUNKS = 20
"""Virtual pipeline chunks per rank above this are not tried unless pinned."""


def _tiers(can: Supports, offloads: bool) -> Sequence[str]:
    """Where states may wait; nowhere but on the device where the software does not offload."""
    return (OFFLOADS if can.nvme_offload else OFFLOADS[:2]) if offloads else OFFLOADS[:1]


def _offloaded(can: Supports, arch: Architecture) -> list[int]:
    """Layers whose activations may wait in host memory: none, quarters of them, all."""
    return sorted({arch.layers * n // 4 for n in range(5 if can.offload else 1)})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """A field whose words are all tried where it is pinned to "any"."""

    words: Callable[[Supports, Architecture], Sequence[Any]]
    """What the software has, its default first."""
    matters: Callable[[Layouts], NDArray[np.bool_]]
    """Layouts that differ by it; the others are listed once."""


_CHOICES = {
    "schedule": _Choice(words=lambda can, _: can.schedules, matters=lambda x: x.pp > 1),
    "dispatcher": _Choice(words=lambda can, _: can.dispatchers, matters=lambda x: x.ep * x.etp > 1),
    "optimizer_offload": _Choice(
        words=lambda can, _: _tiers(can, can.optimizer_offload), matters=lambda x: x.tp > 0
    ),
    "parameter_offload": _Choice(
        words=lambda can, _: _tiers(can, can.parameter_offload),
        matters=lambda x: x.sharding == SHARDINGS.index("zero3"),
    ),
    "offload_layers": _Choice(words=_offloaded, matters=lambda x: x.pp == 1),
    "cp_kind": _Choice(
        words=lambda can, _: can.cp_kinds or CP_KINDS[:1], matters=lambda x: x.cp > 1
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recomputed:
    """A kind of recomputation that the layouts of a family are tried with."""

    recompute: int
    """Index into RECOMPUTE."""
    modules: int
    """Bits of MODULES; 0: the usual."""
    layers: NDArray[Any]
    """Layers of a rank that full recomputation covers, of every row of the family's base."""
    rows: NDArray[np.intp]
    """Rows of the base that are tried with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Layouts that differ in what they recompute alone share a row of `base`."""

    base: Layouts
    """Without recomputation."""
    kinds: tuple[Recomputed, ...]
    number: Ints
    """Of each row of the base, its place among all rows of the bases of its enumeration."""

    def __len__(self) -> int:
        return sum(len(kind.rows) for kind in self.kinds)

    def of(self, kind: Recomputed, rows: NDArray[Any] | slice) -> Layouts:
        """Some rows of the base with a kind of recomputation."""
        return replace(self.base[rows], **self._fields(kind, rows))

    def table(self) -> Layouts:
        """All of its layouts, kind by kind."""
        return Layouts.concatenate([self.of(kind, kind.rows) for kind in self.kinds])

    def _fields(self, kind: Recomputed, rows: NDArray[Any] | slice) -> dict[str, Any]:
        layers = kind.layers[rows]
        return {
            "recompute": np.broadcast_to(np.int32(kind.recompute), len(layers)),
            "recompute_layers": layers,
            "recompute_modules": np.broadcast_to(np.int32(kind.modules), len(layers)),
        }


def candidates(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any] | None = None,
) -> Layouts:
    """Enumerate layouts of the cluster's accelerators, distinct rows only.

    Parameters
    ----------
    workload, cluster, software
        What is trained, on what, with what.
    pinned : mapping, optional
        Layout fields with a fixed value.

    Returns
    -------
    Layouts
        Not all feasible; judge them with :func:`simulator.layout.rules.feasibility.reasons`.
    """
    every_family = families(workload, cluster, software, pinned)
    return Layouts.concatenate([family.table() for family in every_family])


def families(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any] | None = None,
    *,
    most: int | None = None,
    micro: Range = EVERY,
    outer: Collection[Degrees] | None = None,
    memo: Memo | None = None,
    wide: bool = False,
    pick: Pick | None = None,
) -> Iterator[Family]:
    """The same layouts, those that differ in recomputation alone together.

    Parameters
    ----------
    most : int, optional
        Rows of a family's base, some (tp, pp, cp) of one size apart; not given, one family.
    micro : tuple
        Micro-batches to list; a pinned one is in all ranges that begin with 0.
    outer : collection, optional
        Degrees (tp, pp, cp, dp) to list; not given, all.
    memo : dict, optional
        What calls for the same setting and pins share, empty at first.
    wide : bool
        The degrees alone that MOST_DOMAINS and FEWEST_TOKENS leave out: what is left to try where
        nothing fits.
    pick : callable, optional
        Rows to list of each grid; not given, all.
    """
    pinned, memo = dict(pinned or {}), {} if memo is None else memo
    ranges: dict[str, Any] = {"micro": micro, "outer": outer, "memo": memo, "wide": wide}
    ranges["pick"] = pick
    for field, choice in _CHOICES.items():
        if pinned.get(field) == "any":
            first = 0
            for i, word in enumerate(choice.words(software.supports, workload.architecture)):
                fixed, last = {**pinned, field: word}, first
                for family in families(workload, cluster, software, fixed, most=most, **ranges):
                    family = replace(family, number=first + family.number)
                    last = max(last, int(family.number.max(initial=0)) + 1)
                    yield family if i == 0 else _only(family, choice.matters(family.base))
                first = last
            return
    for columns in _pieces(workload, cluster, software, pinned, most=most, **ranges):
        yield _family(columns, workload, software, pinned)


def count(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any] | None = None,
    *,
    micro: Range = EVERY,
    outer: Collection[Degrees] | None = None,
    memo: Memo | None = None,
    wide: bool = False,
) -> int:
    """How many layouts there are, those counted twice that a word of "any" does not tell apart.

    `micro`, `outer`, `memo` and `wide` as in :func:`families`.
    """
    pinned, times, layouts = dict(pinned or {}), 1, 0
    memo = {} if memo is None else memo
    for field, choice in _CHOICES.items():
        if pinned.get(field) == "any":
            words = choice.words(software.supports, workload.architecture)
            times, pinned[field] = times * len(words), words[0]
    setting = workload, cluster, software
    ranges: dict[str, Any] = {"micro": micro, "outer": outer, "memo": memo, "wide": wide}
    for (_, pp, _, _), axes, _ in _known_grids(*setting, pinned, **ranges):
        if ("modes", pp) not in memo:
            recomputation = _recomputation(
                Layouts.of(pp=pp), workload.architecture, software, pinned
            )
            memo["modes", pp] = len(list(recomputation))
        layouts += prod(map(len, axes.values())) * int(memo["modes", pp])
    return times * layouts


def _known_grids(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any],
    *,
    micro: Range,
    outer: Collection[Degrees] | None,
    memo: Memo,
    wide: bool,
) -> Iterator[tuple[Degrees, dict[str, NDArray[Any]], dict[str, NDArray[Any]]]]:
    """Degrees, their inner choices and ways to share states, listed once for a memo.

    The last of the choices, ``states``, are places among these ways.
    """
    words = tuple(pinned.get(field) for field in _CHOICES)
    every = ("degrees", cluster.gpus, cluster.sizes, wide)
    if every not in memo:
        memo[every] = list(degrees(workload, cluster, software, pinned, wide))
    for grid in memo[every]:
        if outer is not None and grid not in outer:
            continue
        if (grid, words, micro) not in memo:
            memo[grid, words, micro] = _choices(
                (workload, cluster, software), pinned, grid, micro, (memo, words)
            )
        yield grid, *memo[grid, words, micro]


def _choices(
    setting: tuple[Workload, Cluster, Software],
    pinned: Mapping[str, Any],
    grid: Degrees,
    micro: Range,
    kept: tuple[Memo, tuple[Any, ...]],
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Inner choices and ways to share states of some degrees.

    Each is listed once for a memo and the words of its enumeration, `kept`, by what it hangs on.
    """
    (tp, pp, cp, dp), (_, cluster, software), (memo, words) = grid, setting, kept
    axes = dict[str, NDArray[Any]]()
    for name, on in _hang_on(grid).items():
        if (name, on, words) not in memo:
            memo[name, on, words] = _narrow(_axis(name, setting, pinned, grid))
        axes[name] = memo[name, on, words]
    some = "some micro-batches", dp, words, micro
    if some not in memo:
        memo[some] = _within(axes["micro_batch"], micro, pinned)
    states = "states", tp, pp, cp * dp, words
    if states not in memo:
        columns = shared_states(software, pinned, tp, pp, cp * dp, cluster.domain)
        ways = np.arange(len(columns["sharding"]))
        memo[states] = _narrow(ways), {name: _narrow(x) for name, x in columns.items()}
    ways, shared = memo[states]
    return {**axes, "micro_batch": memo[some], "states": ways}, shared


def _only(family: Family, rows: NDArray[np.bool_]) -> Family:
    """The family of some rows of its base."""
    place = np.cumsum(rows) - 1
    kinds = [
        replace(kind, layers=kind.layers[rows], rows=place[kind.rows[rows[kind.rows]]])
        for kind in family.kinds
    ]
    return Family(base=family.base[rows], kinds=tuple(kinds), number=family.number[rows])


def _family(
    columns: dict[str, NDArray[Any]],
    workload: Workload,
    software: Software,
    pinned: Mapping[str, Any],
) -> Family:
    """The layouts of some grids."""
    number = columns.pop("number")
    free = (
        "dp",
        "offload_layers",
        "optimizer_offload",
        "parameter_offload",
        "stages",
    )
    fixed: dict[str, Any] = {**columns, **{k: v for k, v in pinned.items() if k in free}}
    table = Layouts.of(global_batch=workload.recipe.global_batch, **fixed)
    schedule = pinned.get("schedule")
    if schedule is not None and not SCHEDULES[schedule].by_default:
        code = WORDS.index(schedule)
        table = table.replace(schedule=np.where(table.pp > 1, code, table.schedule))
    kinds = _recomputation(table, workload.architecture, software, pinned)
    return Family(base=table, kinds=tuple(kinds), number=number)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """Some rows of the product of the inner choices of some degrees."""

    degrees: Degrees
    axes: dict[str, NDArray[Any]]
    shared: dict[str, NDArray[Any]]
    rows: Ints
    first: int
    """Rows of the grids before."""


def _pieces(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any],
    *,
    most: int | None,
    pick: Pick | None,
    micro: Range,
    wide: bool,
    **ranges: Any,
) -> Iterator[dict[str, NDArray[Any]]]:
    """One product of the inner choices per (tp, pp, cp); at least one row, be it to blame."""
    grids, size, some, first = list[_Grid](), 0, False, 0
    ranges |= {"micro": micro, "wide": wide}
    for degree, axes, shared in _known_grids(workload, cluster, software, pinned, **ranges):
        some = True
        shape = [len(axis) for axis in axes.values()]
        whole = prod(shape)
        rows = np.arange(whole) if pick is None or not whole else pick(degree, shape, shared)
        if len(rows):
            grid = _Grid(degrees=degree, axes=axes, shared=shared, rows=rows, first=first)
            grids.append(grid)
        size, first = size + len(rows), first + whole
        if most is not None and size >= most:
            yield _columns(grids)
            grids, size = [], 0
    if grids:
        yield _columns(grids)
    if not some and micro[0] == 0 and not wide:
        yield _nearest(cluster, pinned)


def _columns(grids: list[_Grid]) -> dict[str, NDArray[Any]]:
    """Fields of the rows of some grids one after the other, and their numbers."""
    sizes = [len(grid.rows) for grid in grids]
    of = np.repeat(np.arange(len(grids)), sizes)
    rows = np.concatenate([grid.rows for grid in grids])
    degrees = np.array([grid.degrees for grid in grids], dtype=np.int32).T
    columns = dict(zip(("tp", "pp", "cp", "dp"), degrees[:, of], strict=True))
    columns["number"] = np.array([grid.first for grid in grids])[of] + rows
    for name in reversed(grids[0].axes):
        axes = [grid.axes[name] for grid in grids]
        lengths = np.array([len(axis) for axis in axes])
        at: Any = (np.cumsum(lengths) - lengths)[of]
        if (lengths > 1).any():
            rows, place = np.divmod(rows, lengths[of])
            at += place
        if name != "states":
            columns[name] = np.concatenate(axes)[at]
            continue
        for field in grids[0].shared:
            columns[field] = np.concatenate([grid.shared[field] for grid in grids])[at]
    return columns


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Half of the memory where numbers allow it: a million rows have a dozen columns."""
    return values.astype(np.int32) if abs(values).max(initial=0) < 2**31 else values


def _within(sizes: NDArray[Any], span: Range, pinned: Mapping[str, Any]) -> NDArray[Any]:
    """Micro-batches of a range."""
    if "micro_batch" in pinned:
        return sizes if span[0] == 0 else sizes[:0]
    return sizes[(sizes > span[0]) & (sizes <= span[1])]


def degrees(
    workload: Workload,
    cluster: Cluster,
    software: Software,
    pinned: Mapping[str, Any],
    wide: bool,
) -> Iterator[Degrees]:
    """Degrees of every size of the cluster, but those that a pinned dp rules out."""
    for gpus in cluster.sizes or (cluster.gpus,):
        setting = workload, cluster.domain, software, pinned
        every = _outer(gpus, *setting, wide=wide)
        if wide:
            narrow = set(_outer(gpus, *setting, wide=False))
            every = [degrees for degrees in every if degrees not in narrow]
        for tp, pp, cp in every:
            dp = data_parallel_degree(gpus, tp, pp, cp)
            if pinned.get("dp", dp) == dp:
                yield tp, pp, cp, dp


def _outer(
    gpus: int,
    workload: Workload,
    domain: int,
    software: Software,
    pinned: Mapping[str, Any],
    *,
    wide: bool,
) -> list[tuple[int, int, int]]:
    """Degrees (tp, pp, cp) whose product divides the number of accelerators."""
    arch, can = workload.architecture, software.supports
    shares = divisors(gpus)

    def choices(name: str, most: int, supported: bool) -> list[int]:
        if name in pinned:
            return [int(pinned[name])]
        return [d for d in shares if d <= (most if supported else 1)]

    heads = attention_heads(arch)
    tps = choices("tp", heads if wide else min(heads, widest_tp(domain)), can.tensor)
    pps = choices("pp", arch.layers, can.pipeline)
    if pieces := len(pinned.get("stages", ())):
        chunks = int(pinned.get("vpp", 0))
        some = [d for d in pps if pieces % d == 0 and chunks in (0, pieces // d)]
        pps = some or [max(pieces // max(chunks, 1), 1)]
    longest = MOST_CP if wide else longest_cp(workload.recipe.sequence_length)
    cps = choices("cp", min(longest, MOST_CP), bool(can.cp_kinds))
    return [
        (tp, pp, cp)
        for tp in tps
        for pp in pps
        for cp in cps
        if gpus % accelerators(tp, pp, cp) == 0
    ]


def _hang_on(grid: Degrees) -> dict[str, int]:
    """What each choice hangs on once tp, pp, cp and dp are fixed."""
    tp, pp, cp, dp = grid
    return {
        "vpp": pp,
        "micro_batch": dp,
        "sequence_parallel": tp,
        "cp_kind": 0,
        "dispatcher": 0,
        "cp_a2a": cp,
        "rank_order": int(pp > 1 and dp > 1),
        "ep": tp * cp * dp,
        "etp": tp,
    }


def _axis(
    name: str,
    setting: tuple[Workload, Cluster, Software],
    pinned: Mapping[str, Any],
    grid: Degrees,
) -> NDArray[Any]:
    """Choices of a field, which are independent of one another once tp, pp, cp, dp are fixed."""
    (tp, pp, cp, dp), (workload, _, software) = grid, setting
    arch, can, values = workload.architecture, software.supports, list[Any]()
    pieces = len(pinned.get("stages", ()))
    if name == "vpp" and pieces:
        values = [max(pieces // pp, 1)]
    elif name in pinned:
        values = [pinned[name]]
    elif name == "vpp":
        values = chunk_axis(arch, software, pp, pinned.get("schedule"))
    elif name == "micro_batch":
        values = divisors(max(workload.recipe.global_batch // dp, 1))
    elif name == "sequence_parallel":
        values = _sequence_axis(arch, software, tp)
    elif name == "cp_kind":
        values = list(can.cp_kinds[:1]) or [CP_KINDS[0]]
    elif name == "dispatcher":
        values = list(can.dispatchers[:1]) or [DISPATCHERS[0]]
    elif name == "cp_a2a":
        values = _group_axis(pinned.get("cp_kind"), cp)
    elif name == "rank_order":
        every = list(can.rank_orders)
        values = every if pp > 1 and dp > 1 and every else every[:1]
    else:
        values = _expert_axes(arch, software, tp * cp * dp, tp)[name]
    return np.array(_codes(_CODED[name], values) if name in _CODED else values, dtype=np.int64)


def _group_axis(kind: str | None, cp: int) -> list[int]:
    """Sizes of the all-to-all groups of hierarchical context parallelism."""
    proper = [size for size in divisors(cp) if 1 < size < cp]
    return proper if kind == "hierarchical" and proper else [1]


_CODED: dict[str, Sequence[str]] = {
    "rank_order": RANK_ORDERS,
    "cp_kind": CP_KINDS,
    "dispatcher": DISPATCHERS,
}
"""Axes whose values are words."""


def _codes(words: Sequence[str], values: Sequence[Any]) -> list[int]:
    """Numbers of words of a coded axis; anything else is a number already."""
    return [words.index(value) if isinstance(value, str) else int(value) for value in values]


def widest_tp(domain: int) -> int:
    """Tensor-parallel ranks that are tried at the most on fast domains of so many accelerators."""
    return max(MOST_DOMAINS * domain, SMALL_TP)


def longest_cp(sequence_length: int) -> int:
    """Context-parallel ranks that leave each of them enough tokens of a sequence."""
    return max(sequence_length // FEWEST_TOKENS, 1)


def attention_heads(arch: Architecture) -> int:
    """The most that tensor parallelism may share: heads of attention, or what mixers share."""
    shares = [*(att.heads for att in arch.attentions), *(n for m in arch.mixers for n in m.shares)]
    return max(shares, default=1)


def chunk_axis(
    arch: Architecture,
    software: Software,
    pp: int,
    schedule: str | None,
    *,
    most: int = MOST_CHUNKS,
) -> list[int]:
    """Chunks per rank; a pinned schedule says whether there may or must be more than one."""
    ends = 2 if software.supports.uneven_stages else 0  # embedding and head as a layer each
    most = min((arch.layers + ends) // pp, most)
    if pp == 1 or (schedule is None and usual(2) not in software.supports.schedules):
        return [1]
    named = None if schedule is None else SCHEDULES[schedule]
    if named and named.fewest_chunks == named.most_chunks:
        return [named.fewest_chunks]
    first = named.fewest_chunks if named else 1
    return _worth(first, most, pp, arch.layers, software) or [1]


def _worth(first: int, most: int, pp: int, layers: int, software: Software) -> list[int]:
    """Chunks that divide the layers, or that leave uneven stages where the software takes them."""
    whole = any(layers % (pp * v) == 0 for v in range(1, layers // pp + 1))
    uneven = software.supports.uneven_stages and not whole
    return [
        v
        for v in range(first, most + 1)
        if layers % (pp * v) == 0 or (uneven and (pp * v <= layers or pp * v == layers + 2))
    ]


def _sequence_axis(arch: Architecture, software: Software, tp: int) -> list[int]:
    """Sequence parallelism needs tp > 1, and experts with tp > 1 need it."""
    if tp == 1:
        return [0]
    return [int(x) for x in software.supports.sequence_parallel if x or not arch.is_moe]


def _expert_axes(
    arch: Architecture, software: Software, ranks: int, tp: int
) -> dict[str, list[int]]:
    """Expert-parallel degrees that divide the experts and the ranks of a pipeline stage."""
    moes = arch.moes
    if not moes or not software.supports.expert:
        return {"ep": [1], "etp": [1]}
    experts = min(moe.experts for moe in moes)
    return {
        "ep": [d for d in divisors(experts) if ranks % d == 0],
        "etp": sorted({1, tp}),
    }


def _recomputation(
    table: Layouts, arch: Architecture, software: Software, pinned: Mapping[str, Any]
) -> Iterator[Recomputed]:
    """Each kind of recomputation: selective also by what it names, full by the number of layers."""
    modes: list[str] = list(software.supports.recompute)
    if pinned.get("recompute_modules"):
        modes = ["selective"]
    if "recompute" in pinned:
        modes = [str(pinned["recompute"])]
    every, layer_count = np.arange(len(table)), pinned.get("recompute_layers", 0)
    layers = np.full(len(table), layer_count, dtype=np.int32)
    for mode in modes:
        if mode not in RECOMPUTE:
            continue
        code = RECOMPUTE.index(mode)
        for words in module_sets(arch, software, pinned) if mode == "selective" else [""]:
            yield Recomputed(recompute=code, modules=mask_of(words), layers=layers, rows=every)
    if "recompute_layers" in pinned or "full" not in modes:
        return
    per_rank = arch.layers // table.pp
    for step in range(1, MOST_RECOMPUTE_STEPS):
        count = per_rank * step // MOST_RECOMPUTE_STEPS
        before = per_rank * (step - 1) // MOST_RECOMPUTE_STEPS
        rows = np.flatnonzero((count > 0) & (count != before))
        if len(rows):
            full = RECOMPUTE.index("full")
            yield Recomputed(recompute=full, modules=0, layers=count.astype(np.int32), rows=rows)


def module_sets(arch: Architecture, software: Software, pinned: Mapping[str, Any]) -> list[str]:
    """What selective recomputation may name, without what the model lacks; "": the usual."""
    if "recompute_modules" in pinned:
        return [pinned["recompute_modules"]]
    has = {"core_attn", "norm"}
    has |= {"mlp", "mlp_act"} if any(isinstance(block.mlp, MLP) for block in arch.blocks) else set()
    has |= {"moe", "moe_act"} if arch.is_moe else set()
    has |= {"shared_experts"} if any(moe.shared_ffn_hidden for moe in arch.moes) else set()
    has |= {"mla_up_proj"} if any(attention.is_mla for attention in arch.attentions) else set()
    usual = has & set(software.kernels.selective_modules)
    sets = [[word for word in words if word in has] for words in software.supports.recompute_sets]
    named = dict.fromkeys("+".join(words) for words in sets if words and set(words) != usual)
    return ["", *named]


def _nearest(cluster: Cluster, pinned: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """A single row with the pinned degrees, so that the reason why nothing fits can be counted."""
    names = ("tp", "pp", "cp", "vpp", "ep", "etp", "micro_batch")
    more = {k: np.array([int(pinned[k])]) for k in ("shard_group",) if k in pinned}
    row = {name: np.array([int(pinned.get(name, 1))]) for name in names}
    dp = np.maximum(data_parallel_degree(cluster.gpus, row["tp"], row["pp"], row["cp"]), 1)
    return {**row, **more, "dp": dp, "number": np.zeros(1, dtype=np.int64)}
