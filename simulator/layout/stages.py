"""Pipeline stages: which layers each pipeline rank and chunk holds, as users write them or not.

`Stages` has one row per (pipeline plan, rank, chunk). A pipeline plan is what stages depend on:
(schedule, pp, vpp, micro-batches); layouts that share one share its rows. `StageTable` folds
the rows of a plan by rank, and ranks that hold the same layers into one column, so that a million
layouts are evaluated over a handful of columns each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.layout.keys import distinct_codes, unique_rows
from simulator.layout.layouts import Layouts
from simulator.records import dataclass
from simulator.schedules.action_tables import in_flight
from simulator.schedules.registry import SCHEDULES, WORDS, by_code, usual_codes

_COPIES = by_code(attrgetter("copies"))

_MOST_LAYERS = 100_000

_MOST_CHARACTERS = 20_000
"""Of a string whose repetitions are written out."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One row per (plan, pipeline rank, chunk)."""

    plan: Ints
    """Index of the pipeline plan."""
    rank: Ints
    """Pipeline rank."""
    chunk: Ints
    """Chunk of the rank; 0 without interleaving."""
    blocks: Ints
    """Blocks of each kind, shape (rows, kinds)."""
    embedding: Ints
    """1 on the chunk that holds the input embedding."""
    head: Ints
    """1 on the chunk that holds the final norm, the output head and the loss."""
    in_flight: Ints
    """Micro-batches whose activations the chunk holds at the fullest moment of its rank."""
    versions: Ints
    """Versions of the weights that the rank keeps; 1 but for PipeDream."""


@dataclass(frozen=True, kw_only=True)
class StageTable:
    """Per plan, the distinct ranks; shape (plans, columns), padded with empty ranks.

    Parts are the block kinds, then the embedding, then the head.
    """

    parts: Floats
    """What a rank holds, shape (plans, columns, parts)."""
    in_flight: Floats
    """The same times micro-batches in flight; 1F1B frees the head's logits at once."""
    versions: Floats
    """Versions of the weights that the ranks keep, shape (plans, columns)."""
    rank: Ints
    """The first pipeline rank of the column; its memory is the largest of those folded into it."""
    ranks: Floats
    """How many ranks the column stands for; 0 marks padding."""

    @property
    def columns(self) -> int:
        """Most distinct ranks of any plan."""
        return int(self.rank.shape[1])


def stages(
    *,
    pp: Any,
    vpp: Any,
    micro_batches: Any,
    layer_kinds: Any,
    kinds: int,
    ahead: int = 0,
    schedule: Any = None,
    splits: Sequence[Sequence[int]] = (),
) -> Stages:
    """List the stages of pipeline plans.

    A plan with a split of its own (`splits`, one for each plan, empty where it has none) gives
    each of its pp x vpp pieces as many layers as that says, in the order of the model. Else
    layers are dealt evenly over the pp x vpp chunks in order; chunk c of rank r is the (c pp +
    r)-th piece of the model (Narayanan et al. 2021, section 2.2). Where they do not divide but
    two more would, embedding and head count as a layer each (Megatron-Core's
    account_for_embedding_in_pipeline_split and its twin for the loss; torchtitan; BLOOM). Else
    every piece but the last takes the same number and the last one, which has the head, what is
    left (Megatron-Bridge's layouts of DeepSeek-V3; DeepSpeed). Where nothing would be left for
    it, the last pieces but the very last take one more than the first. The last `ahead` entries
    of `layer_kinds` predict ahead and stay on the last piece, with the head; it may have no
    other.

    Micro-batches in flight follow the schedule's formula or, where it has none, what its table of
    actions holds. `schedule` is a code of ``schedules/registry.py`` per plan; not given, it follows
    from vpp. V-shaped ones give the last piece to the first rank; DualPipe gives every piece to two
    ranks.
    """
    pp, vpp, m = (np.atleast_1d(np.asarray(x, dtype=np.int64)) for x in (pp, vpp, micro_batches))
    code = usual_codes(vpp) if schedule is None else np.asarray(schedule)
    chunks = _COPIES[code] * vpp
    plan = np.repeat(np.arange(len(pp)), pp * chunks)
    within = np.arange(len(plan)) - np.repeat(np.cumsum(pp * chunks) - pp * chunks, pp * chunks)
    v, n = chunks[plan], (pp * vpp)[plan]
    rank, chunk = within // v, within % v
    piece, flying, versions = _by_schedule(code, plan, rank, chunk, (pp, vpp, m))

    layer_kinds = np.asarray(layer_kinds)
    dealt = np.fromiter(map(len, splits), dtype=np.int64)
    start, end = np.zeros_like(plan), np.zeros_like(plan)
    if not len(dealt) or not dealt.all():
        start, end = (
            _first_layer(g, n, len(layer_kinds) - ahead, ahead > 0) for g in (piece, piece + 1)
        )
    if dealt.any():
        layers = np.fromiter(chain.from_iterable(splits), dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(layers)])
        first = np.cumsum(dealt) - dealt
        rows = np.flatnonzero(dealt[plan])
        base = first[plan[rows]]
        start[rows] = before[base + piece[rows]] - before[base]
        end[rows] = before[base + piece[rows] + 1] - before[base]
    end = np.where(piece == n - 1, len(layer_kinds), end)
    held = np.zeros((len(layer_kinds) + 1, kinds), dtype=np.int64)
    held[1:] = np.cumsum(layer_kinds[:, None] == np.arange(kinds), axis=0)

    return Stages(
        plan=plan,
        rank=rank,
        chunk=chunk,
        blocks=held[end] - held[start],
        embedding=(piece == 0).astype(np.int64),
        head=(piece == n - 1).astype(np.int64),
        in_flight=flying,
        versions=versions,
    )


def pieces_of(row: Layouts) -> Ints:
    """Pieces of the model that every rank of a layout holds, shape (pp, chunks); read only."""
    return held_pieces(int(row.schedule[0]), int(row.pp[0]), int(row.vpp[0] * row.copies[0]))


@lru_cache(256)
def held_pieces(code: int, pp: int, chunks: int) -> Ints:
    """The same of so many ranks and chunks, by the code of the schedule."""
    rank, chunk = np.divmod(np.arange(pp * chunks), chunks)
    pieces: Ints = SCHEDULES[WORDS[code]].piece(np.full(pp * chunks, pp), rank, chunk)
    pieces.flags.writeable = False
    return pieces.reshape(pp, chunks)


def _by_schedule(
    code: NDArray[Any], plan: Ints, rank: Ints, chunk: Ints, plans: tuple[Ints, Ints, Ints]
) -> tuple[Ints, Ints, Ints]:
    """Piece of the model, micro-batches in flight and versions of the weights of every row.

    `plans` are pp, vpp and micro-batches of the plans, `code` their schedules.
    """
    piece, held, versions = (np.zeros_like(plan) for _ in range(3))
    for word in distinct_codes(code):
        schedule, rows = SCHEDULES[WORDS[word]], code[plan] == word
        r, c, (pp, vpp, m) = rank[rows], chunk[rows], (x[plan[rows]] for x in plans)
        piece[rows] = schedule.piece(pp, r, c)
        versions[rows] = schedule.weight_versions(r, pp, m)
        if schedule.in_flight:
            held[rows] = schedule.in_flight(r, c, pp, vpp, m)
            continue
        for index in np.flatnonzero(code == word):
            ranks, chunks, count = (int(x[index]) for x in plans)
            held[plan == index] = in_flight(WORDS[word], ranks, count, chunks).ravel()
    return piece, held, versions


def even_pieces(layers: int, pieces: int, *, ahead: int = 0) -> Ints:
    """Layers of every piece as `stages` deals them, without those that predict ahead.

    >>> even_pieces(126, 16).tolist() == [7, *[8] * 14, 7]
    True
    """
    first = np.arange(pieces + 1), np.full(pieces + 1, pieces)
    return np.asarray(np.diff(_first_layer(*first, layers, ahead > 0)))


def _first_layer(piece: Ints, pieces: Ints, layers: int, last_may_be_empty: bool) -> Ints:
    """First layer of a piece, by the rule that `stages` states."""
    base, extra = layers // pieces, layers % pieces
    widest = base + (extra > 0)
    ends = np.where(piece > 0, piece * ((layers + 2) // pieces) - 1, 0)
    filled = piece * widest
    ahead = np.clip(piece - (pieces - 1 - extra), 0, extra)
    first = np.where(
        (pieces - 1 - last_may_be_empty) * widest < layers,
        np.minimum(filled, layers),
        piece * base + ahead,
    )
    first = np.where((extra > 0) & ((layers + 2) % pieces == 0), ends, first)
    return np.where(piece >= pieces, layers, first)


def fold(table: Stages, *, by_content: bool = True) -> StageTable:
    """Sum the chunks of each rank; ranks of a plan that hold the same layers become one column.

    With `by_content` false every rank keeps its own column (the memory report shows them all).
    """
    starts = np.flatnonzero(table.chunk == 0)
    plan, rank = table.plan[starts], table.rank[starts]
    content = np.column_stack([table.blocks, table.embedding, table.head])
    flying = content * table.in_flight[:, None]
    flying[:, -1] = table.head * np.maximum(table.in_flight, 1)
    parts, flying = (np.add.reduceat(values, starts, axis=0) for values in (content, flying))

    same = unique_rows(plan, *parts.T) if by_content else unique_rows(plan, rank)
    column = _position_in_plan(plan[same.first])
    plans, columns = int(plan.max()) + 1, int(column.max()) + 1
    at = (plan[same.first], column)
    most_flying = np.zeros((len(same.first), parts.shape[1]), dtype=np.int64)
    np.maximum.at(most_flying, same.inverse, flying)
    versions = np.zeros(len(same.first), dtype=np.int64)
    np.maximum.at(versions, same.inverse, table.versions[starts])

    def spread(values: NDArray[Any]) -> NDArray[Any]:
        out = np.zeros((plans, columns, *values.shape[1:]), dtype=values.dtype)
        out[at] = values
        return out

    return StageTable(
        parts=spread(parts[same.first].astype(float)),
        in_flight=spread(most_flying.astype(float)),
        versions=spread(versions.astype(float)),
        rank=spread(rank[same.first]),
        ranks=spread(np.bincount(same.inverse).astype(float)),
    )


def _position_in_plan(plan: Ints) -> Ints:
    """Number the rows of each plan 0, 1, 2, ... (rows of one plan stand together)."""
    new = np.flatnonzero(np.r_[True, plan[1:] != plan[:-1]])
    return np.arange(len(plan)) - np.repeat(new, np.diff(np.r_[new, len(plan)]))


def read_stages(given: object) -> tuple[int, ...] | None:
    """Layers of every piece, in the order of the model.

    A string is read as Megatron-Core does (pipeline_parallel_layer_layout.py): ``E`` the embedding,
    ``t`` a layer, ``m`` a layer that predicts ahead, ``L`` the loss, ``|`` between pieces, ``*n``
    repeats what stands before it, one letter or a bracket; commas are for the eye. Layers that
    predict ahead are no part of a model's layers here, so ``m`` counts as none. An empty list is
    none given.

    Raises
    ------
    ValueError
        With what is wrong.

    Examples
    --------
    >>> read_stages("Et*3|(tt|)*2,t|L"), read_stages([7, 8, 7])
    ((3, 2, 2, 1, 0), (7, 8, 7))
    """
    if isinstance(given, (list, tuple)):
        if not all(type(count) is int and 0 <= count <= _MOST_LAYERS for count in given):
            raise ValueError("must be whole numbers of layers, none negative")
        return tuple(given) or None
    if not isinstance(given, str):
        rule = "must be a list of the layers of every piece, or Megatron's pipeline layout string"
        raise ValueError(rule)
    text = _written_out(re.sub(r"[,\s]", "", given))
    if wrong := set(text) - set("EtmL|"):
        letter = sorted(wrong)[0]
        raise ValueError(f"must be made of E, t, m, L, |, ( ) and *n, found {letter!r}")
    pieces = text.split("|")
    if not pieces[0].startswith("E") or text.count("E") != 1:
        raise ValueError("must have E once, to begin the first piece")
    if not pieces[-1].endswith("L") or text.count("L") != 1:
        raise ValueError("must have L once, to end the last piece")
    if "t" in text.partition("m")[2]:
        raise ValueError("must have m after every t")
    return tuple(piece.count("t") for piece in pieces)


def _written_out(text: str) -> str:
    """The string without repetitions."""
    for pattern in (r"\(([^()]*)\)\*(\d{1,4})", r"([EtmL|])\*(\d{1,4})"):
        while found := re.search(pattern, text):
            text = text[: found.start()] + found[1] * int(found[2]) + text[found.end() :]
            if len(text) > _MOST_CHARACTERS:
                raise ValueError(f"must have at most {_MOST_CHARACTERS} letters, written out")
    return text


def with_sum(layers: Sequence[int], whole: int) -> list[int]:
    """Add layers to the shortest pieces, or take them from the longest, those at the ends first.

    >>> with_sum([7, 8, 8], 24), with_sum([8, 8, 8, 8], 30)
    ([8, 8, 8], [7, 8, 8, 7])
    """
    nearest = list(layers)
    while nearest and (missing := whole - sum(nearest)):
        some = min(nearest) if missing > 0 else max(nearest)
        at = [i for i, count in enumerate(nearest) if count == some]
        at.sort(key=lambda i: min(i, len(nearest) - 1 - i), reverse=missing > 0)
        for i in at[: abs(missing)]:
            nearest[i] += 1 if missing > 0 else -1
    return nearest


def fullest_rank(layouts: Layouts, layers: int) -> Ints:
    """Most layers of any pipeline rank, by row."""
    most = -(-layers // layouts.pp.astype(np.int64))
    for i in np.flatnonzero(layouts.stages).tolist():
        split = np.array(layouts.splits[int(layouts.stages[i])])
        pieces = pieces_of(layouts[i])
        if pieces.max() < len(split):
            most[i] = split[pieces].sum(axis=1).max()
    return np.asarray(most)
