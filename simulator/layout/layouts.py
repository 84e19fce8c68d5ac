"""How the work is split: a table of layouts, one row each, as a struct of arrays; its degrees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.frames import DataFrame, frame
from simulator.records import dataclass
from simulator.schedules.registry import SCHEDULES, TAKES_ROUNDS, WORDS, by_code, usual_codes
from simulator.software.supports import RANK_ORDERS

__all__ = ["RANK_ORDERS"]

SHARDINGS = ("ddp", "zero1", "zero2", "zero3")
"""What data-parallel ranks share: nothing, optimizer states, and gradients, and parameters."""

RECOMPUTE = ("none", "selective", "full")
"""Activations computed again in the backward pass."""

MODULES = (
    *("core_attn", "norm", "mlp", "mlp_act", "moe", "moe_act", "shared_experts", "mla_up_proj"),
    "half_matmul",
)
"""What selective recomputation may name (``software/kernels.py`` says what each is)."""

CP_KINDS = ("ring", "all_gather", "all_to_all", "hierarchical")
"""How queries reach the keys of other context-parallel ranks (``cost/operators/context.py``)."""

DISPATCHERS = ("alltoall", "allgather", "deepep")
"""How tokens reach their experts; cost/operators/mlp.py has what it moves."""

OFFLOADS = ("none", "cpu", "nvme")
"""Where model states wait that the accelerator does not hold."""

_COPIES = by_code(attrgetter("copies"))

_WORDS = {
    "sharding": SHARDINGS,
    "recompute": RECOMPUTE,
    "schedule": WORDS,
    "rank_order": RANK_ORDERS,
    "cp_kind": CP_KINDS,
    "dispatcher": DISPATCHERS,
    "optimizer_offload": OFFLOADS,
    "parameter_offload": OFFLOADS,
}


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Layouts as equal-length integer arrays; ``layouts[i]`` is a table with one row.

    ``dp x tp x pp x cp`` is the number of accelerators. Words (sharding, recompute, schedule,
    rank order) are stored as indices into the tuples of this module,
    schedules into that of ``schedules/registry.py``.
    """

    tp: NDArray[Any]
    """Tensor-parallel degree."""
    pp: NDArray[Any]
    """Pipeline-parallel degree."""
    vpp: NDArray[Any]
    """Virtual pipeline: model chunks per rank."""
    cp: NDArray[Any]
    """Context-parallel degree."""
    cp_kind: NDArray[Any]
    """Index into CP_KINDS: keys and values go round, are gathered, or are exchanged for heads;
    hierarchical exchanges inside groups and goes round between them."""
    cp_a2a: NDArray[Any]
    """Adjacent context-parallel ranks that exchange sequence for heads where cp_kind is
    hierarchical; rings of cp / cp_a2a join the groups. 1 with any other kind."""
    dp: NDArray[Any]
    """Data-parallel degree."""
    ep: NDArray[Any]
    """Expert-parallel degree, taken out of dp x cp x tp."""
    etp: NDArray[Any]
    """Tensor-parallel degree of the experts."""
    dispatcher: NDArray[Any]
    """Index into DISPATCHERS. alltoall: a token goes once to each of its experts (NCCL). allgather:
    all tokens go to all expert ranks, whose outputs are reduced and scattered. deepep: once to each
    scale-up domain that has one of its experts, and there to each such rank (DeepEP, HybridEP)."""
    micro_batch: NDArray[Any]
    """Sequences per micro-step and data-parallel rank."""
    global_batch: NDArray[Any]
    """Sequences per optimizer step."""
    sharding: NDArray[Any]
    """Index into SHARDINGS."""
    shard_group: NDArray[Any]
    """Ranks over which states are sharded; dp x cp by default, fewer is hybrid sharding (HSDP)."""
    reshard_after_forward: NDArray[Any]
    """zero3: ranks over which a block's parameters are sharded between its forward and its backward
    pass, which gathers them from these (FSDP2's number, hpZ of ZeRO++); 0, or true: shard_group."""
    sequence_parallel: NDArray[Any]
    """1: activations between tensor-parallel regions are sharded over tp."""
    recompute: NDArray[Any]
    """Index into RECOMPUTE."""
    recompute_layers: NDArray[Any]
    """Layers of each pipeline rank that full recomputation covers; 0 means all."""
    recompute_modules: NDArray[Any]
    """A bit for each of MODULES that selective recomputation drops and computes again; 0: those
    that the software usually names."""
    offload_layers: NDArray[Any]
    """Layers of each pipeline rank whose kept activations wait in host memory."""
    optimizer_offload: NDArray[Any]
    """Index into OFFLOADS: cpu keeps the optimizer states in host memory, whose processors take the
    optimizer step (ZeRO-Offload); nvme on the server's drives, from where they pass by for the step
    (ZeRO-Infinity)."""
    parameter_offload: NDArray[Any]
    """Index into OFFLOADS: cpu keeps the parameters that zero3 shards in host memory, nvme on the
    server's drives, until a layer needs them (ZeRO-Infinity)."""
    schedule: NDArray[Any]
    """Index into the WORDS of schedules."""
    rank_order: NDArray[Any]
    """Index into RANK_ORDERS."""
    stages: NDArray[Any]
    """Index into `splits`: how the layers are dealt to the pieces of the pipeline."""
    splits: tuple[tuple[int, ...], ...] = ((),)
    """Layers of every piece in the order of the model; the first, (), stands for the rule of
    ``layout/stages.py``, which deals them evenly. Shared by all rows, no column."""

    @classmethod
    def of(cls, **given: Any) -> Layouts:
        """Make a table from numbers, words or sequences; unnamed fields take their defaults.

        Defaults: every degree 1, micro_batch 1, global_batch dp x micro_batch, sharding ddp,
        shard_group dp x cp, sequence_parallel where tp > 1, recompute none, schedule by vpp,
        Megatron's rank order, a ring of context-parallel ranks, an all-to-all to experts, layers
        dealt evenly. `stages` is the list of layers of every piece, or one such list for each row.

        Examples
        --------
        >>> table = Layouts.of(tp=[4, 8], dp=2, global_batch=16, recompute="full")
        >>> len(table), table[1].describe()
        (2, 'tp8 dp2 mb1 sp ddp full')
        """
        known = {*_COLUMNS}
        if unknown := set(given) - known:
            raise TypeError(f"unknown layout field {sorted(unknown)[0]!r}")
        dealt = given.pop("stages", ())
        coded = {name: _coded(name, value) for name, value in given.items()}
        coded["stages"], splits = _dealt(dealt)
        ones = np.ones(1, dtype=np.int32)
        for name in ("tp", "pp", "vpp", "cp", "cp_a2a", "dp", "ep", "etp", "micro_batch"):
            coded.setdefault(name, ones)
        coded.setdefault("global_batch", coded["dp"] * coded["micro_batch"])
        coded.setdefault("shard_group", coded["dp"] * coded["cp"])
        coded.setdefault("sequence_parallel", (coded["tp"] > 1).astype(np.int32))
        coded.setdefault("schedule", usual_codes(coded["vpp"]))
        coded.setdefault("rank_order", ones * RANK_ORDERS.index("tp-cp-dp-pp"))
        for name in (
            "cp_kind",
            "dispatcher",
            "sharding",
            "reshard_after_forward",
            "recompute",
            "recompute_layers",
            "recompute_modules",
            "offload_layers",
            "optimizer_offload",
            "parameter_offload",
        ):
            coded.setdefault(name, 0 * ones)
        wide = dict(zip(coded, np.broadcast_arrays(*coded.values()), strict=True))
        _resolve_reshard(wide)
        columns = {name: _stored(column) for name, column in wide.items()}
        return cls(**columns, splits=splits)

    def __post_init__(self) -> None:
        lengths = {*map(len, _values(self))}
        assert len(lengths) == 1, f"columns of unequal length: {lengths}"

    def __len__(self) -> int:
        return len(self.tp)

    def __getitem__(self, rows: int | slice | NDArray[Any]) -> Layouts:
        if isinstance(rows, (int, np.integer)):
            rows = slice(rows, rows + 1) if rows != -1 else slice(-1, None)
        if isinstance(rows, np.ndarray) and rows.dtype != bool:
            size = len(rows)
        else:
            size = len(self.tp[rows])
        in_order = size == 1 or (isinstance(rows, slice) and rows.step is None)
        if size == len(self) and in_order:
            return self
        columns = {
            name: column[rows] if size < _FEW or column.strides != (0,) else _same(column, size)
            for name, column in self.columns().items()
        }
        return Layouts(**columns, splits=self.splits)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name, in the order of definition."""
        return dict(zip(_COLUMNS, _values(self), strict=True))

    def replace(self, **given: Any) -> Layouts:
        """Return a copy with some columns replaced (numbers, words or sequences).

        `stages` is a list of layers, or one for each row, as in `of`.
        """
        size, more = len(self), dict[str, Any]()
        if "stages" in given:
            codes, more["splits"] = _dealt(given.pop("stages"))
            more["stages"] = np.broadcast_to(codes, size)
        more |= {k: np.broadcast_to(_coded(k, v), size) for k, v in given.items()}
        return replace(self, **more)

    @property
    def world(self) -> NDArray[Any]:
        """Accelerators that a layout uses."""
        return accelerators(self.tp, self.pp, self.cp, self.dp)

    @property
    def micro_batches(self) -> NDArray[Any]:
        """Micro-batches per step and data-parallel rank."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def rounds(self) -> NDArray[Any]:
        """Rounds in which micro-batches go through a rank's chunks; 1 without rounds."""
        some = np.maximum(self.micro_batches // self.pp, 1)
        return np.where(TAKES_ROUNDS[self.schedule], some, 1)

    @property
    def copies(self) -> NDArray[Any]:
        """Stages that a rank holds, each for a share of the micro-batches: 2 with DualPipe."""
        return _COPIES[self.schedule]

    @staticmethod
    def concatenate(tables: Iterable[Layouts]) -> Layouts:
        """Stack tables one below the other; splits that no row has are left out."""
        tables = list(tables)
        parts = [table.columns() for table in tables]
        codes: dict[tuple[int, ...], int] = {(): 0}
        for part, table in zip(parts, tables, strict=True):
            if len(table.splits) > 1:
                code = np.zeros(len(table.splits), dtype=np.int64)
                for place in np.flatnonzero(np.bincount(table.stages)).tolist():
                    code[place] = codes.setdefault(table.splits[place], len(codes))
                part["stages"] = code[table.stages]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Layouts(**columns, splits=tuple(codes))

    def row(self, index: int = 0) -> dict[str, Any]:
        """Return one layout as plain numbers, booleans and words."""
        row: dict[str, Any] = {}
        for name, column in self.columns().items():
            value = int(column[index])
            row[name] = _WORDS[name][value] if name in _WORDS else value
        row["recompute_modules"] = "+".join(modules_of(row["recompute_modules"]))
        row["sequence_parallel"] = bool(row["sequence_parallel"])
        row["reshard_after_forward"] = row["reshard_after_forward"] or True
        row["stages"] = list(self.splits[row["stages"]])
        return row

    def to_frame(self) -> DataFrame:
        """One row per layout, one column per field; words where a code stands for one."""
        columns = {
            name: np.array(_WORDS[name], dtype=object)[column] if name in _WORDS else column
            for name, column in self.columns().items()
        }
        named = ["+".join(modules_of(mask)) for mask in self.recompute_modules.tolist()]
        columns["recompute_modules"] = np.array(named, dtype=object)
        words = [dealt_words(split) for split in self.splits]
        columns["stages"] = np.array(words, dtype=object)[self.stages]
        names = [self.describe(i) for i in range(len(self))]
        return frame(columns, index=names, name="layout")

    def describe(self, index: int = 0) -> str:
        """Name one layout in a few words; degrees of 1 are left out."""
        row = self.row(index)
        words = [f"{k}{row[k]}" for k in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp") if row[k] > 1]
        if row["cp"] > 1 and row["cp_kind"] != "ring":
            kind = row["cp_kind"] + (f":{row['cp_a2a']}" if row["cp_a2a"] > 1 else "")
            words.insert(words.index(f"cp{row['cp']}") + 1, kind)
        if row["ep"] * row["etp"] > 1 and row["dispatcher"] != "alltoall":
            words.append(row["dispatcher"])
        if not SCHEDULES[row["schedule"]].by_default:
            words.append(row["schedule"])
        if row["stages"]:
            words.append("stages:" + dealt_words(row["stages"]))
        words.append(f"mb{row['micro_batch']}")
        if row["sequence_parallel"]:
            words.append("sp")
        words.append(row["sharding"])
        if row["sharding"] != "ddp" and row["shard_group"] < row["dp"] * row["cp"]:
            words[-1] += f":{row['shard_group']}"
        if row["reshard_after_forward"] is not True:
            words.append(f"reshard:{row['reshard_after_forward']}")
        if row["recompute"] != "none":
            layers = row["recompute_layers"]
            more = layers or row["recompute_modules"]
            words.append(row["recompute"] + (f":{more}" if more else ""))
        if row["offload_layers"]:
            words.append(f"offload:{row['offload_layers']}")
        for name in ("optimizer", "parameter"):
            if row[f"{name}_offload"] != "none":
                tier = row[f"{name}_offload"]
                words.append(f"{name}-offload" + (":nvme" if tier == "nvme" else ""))
        if row["rank_order"] != "tp-cp-dp-pp":
            words.append(row["rank_order"])
        return " ".join(words)


_COLUMNS = tuple(field.name for field in fields(Layouts) if field.name != "splits")
"""Fields of which every layout has its own value."""

_values = attrgetter(*_COLUMNS)


def dealt_words(layers: Sequence[int]) -> str:
    """Spell the layers of pipeline pieces, those in a row that are equal once.

    >>> dealt_words([7, 8, 8, 8, 7]), dealt_words([])
    ('7+3x8+7', '')
    """
    runs = [(count, len(list(same))) for count, same in groupby(layers)]
    return "+".join(f"{times}x{count}" if times > 1 else f"{count}" for count, times in runs)


def _dealt(given: Any) -> tuple[NDArray[Any], tuple[tuple[int, ...], ...]]:
    """Codes and splits of a list of layers, or of a list of such lists, one for each row."""
    rows = list(given) if given is not None else []
    several = bool(rows) and not isinstance(rows[0], (int, np.integer))
    each = [tuple(int(count) for count in row) for row in (rows if several else [rows])]
    splits = tuple(dict.fromkeys([(), *each]))
    return np.array([splits.index(split) for split in each], dtype=np.int32), splits


def modules_of(mask: int) -> list[str]:
    """Modules that the bits of a layout's `recompute_modules` stand for.

    >>> modules_of(0), modules_of(1 << MODULES.index("norm"))
    ([], ['norm'])
    """
    return [word for bit, word in enumerate(MODULES) if mask >> bit & 1]


def mask_of(text: str) -> int:
    """A bit for each word of MODULES in words joined by ``+``."""
    words = set(text.split("+")) - {""}
    for word in sorted(words):
        if word not in MODULES:
            known = ", ".join(MODULES)
            raise ValueError(f"recompute_modules: must be among {known}, got {word!r}")
    return sum(1 << MODULES.index(word) for word in words)


_FEW = 500
"""Rows that are gathered as soon as it is seen that they are alike."""


def _stored(column: NDArray[Any]) -> NDArray[Any]:
    """A column, or one value in place of many alike: half of a search's columns are no more."""
    if len(column) == 1 or (len(column) and (column == column[0]).all()):
        value = column[:1].copy()
        value.flags.writeable = False
        return _same(value, len(column))
    return np.ascontiguousarray(column)


def _same(column: NDArray[Any], size: int) -> NDArray[Any]:
    """The first value of a column so many times, stored once; as ``np.broadcast_to``, but soon."""
    return np.ndarray((size,), column.dtype, column[:1], strides=(0,))


def _resolve_reshard(columns: dict[str, NDArray[Any]]) -> None:
    """Put what is the same into the same words.

    Parameters kept whole (resharded to one rank) are zero2; resharded to the shard group, true.
    """
    group, level = columns["reshard_after_forward"], columns["sharding"]
    full = level == SHARDINGS.index("zero3")
    columns["sharding"] = np.where(full & (group == 1), SHARDINGS.index("zero2"), level)
    same = (group == 1) | (group == columns["shard_group"])
    columns["reshard_after_forward"] = np.where(same, 0, group)


def _coded(name: str, value: Any) -> NDArray[Any]:
    """Turn words into their index and anything else into a one-dimensional integer array."""
    words = _WORDS.get(name)
    if isinstance(value, Mapping):
        raise TypeError(f"{name}: expected a number, a word or a sequence, got a table")
    array = np.atleast_1d(np.asarray(value))
    if name == "reshard_after_forward" and array.dtype.kind == "b":
        array = np.where(array, 0, 1)  # true: over shard_group; false: over one rank, not at all
    if name == "recompute_modules" and array.dtype.kind in "US":
        array = np.array([mask_of(text) for text in array.tolist()])
    if words is not None and array.dtype.kind in "US":
        for word in array:
            if word not in words:
                raise ValueError(f"{name}: must be one of {', '.join(words)}, got {str(word)!r}")
        array = np.array([words.index(word) for word in array])
    return array.astype(np.int32)


def accelerators(tp: Any, pp: Any, cp: Any, dp: Any = 1) -> Any:
    """Accelerators that a layout of these degrees takes: tp x pp x cp of each replica, dp of them.

    Numbers or arrays; without `dp`, those of one replica of the model.
    """
    return dp * tp * pp * cp


def data_parallel_degree(gpus: int, tp: Any, pp: Any, cp: Any) -> Any:
    """Replicas of the model that `gpus` accelerators hold; 0 where not even one fits."""
    return gpus // accelerators(tp, pp, cp)


def divisors(number: int) -> list[int]:
    """List the divisors of a positive number, smallest first.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def odd_part(number: int) -> int:
    """Return what is left of a positive number without its factors of two.

    >>> odd_part(24), odd_part(64), odd_part(17)
    (3, 1, 17)
    """
    return number // (number & -number)
