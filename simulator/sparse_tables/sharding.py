"""Tables dealt to ranks: whole, by column, by row; the busiest next to the emptiest.

And which of their rows are read: distinct rows of a batch and hits of a cache under Zipf's law.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simulator.arrays import Floats
from simulator.records import dataclass
from simulator.sparse_tables.sparse_section import Sparse, SparseTable

_NARROWEST = 16
"""Elements of a column part: what one read of memory brings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A table, or a part of its width, on one rank; or a part of its rows on every rank."""

    table: SparseTable
    width: int
    by_row: bool = False

    def kept_bytes(self, sparse: Sparse) -> float:
        """Of the whole shard, with the optimizer's states of its rows."""
        row = self.width * sparse.element_bytes + sparse.row_state_bytes
        return float(self.table.rows) * row


@dataclass(frozen=True, kw_only=True)
class Deal:
    """Who holds what; arrays over ranks."""

    shards: tuple[tuple[Shard, ...], ...]
    """Of every rank, those by row left out."""
    by_row: tuple[Shard, ...]
    """Tables of which every rank holds a part of the rows."""
    kept_bytes: Floats

    @property
    def widths(self) -> Floats:
        """Elements that each rank sends for one sample: sums of its own rows."""
        return np.array([float(sum(s.width for s in shards)) for shards in self.shards])

    @property
    def row_width(self) -> float:
        """Elements of one sample that are summed up over all ranks."""
        return float(sum(shard.width for shard in self.by_row))


def width_of(table: SparseTable, sparse: Sparse) -> int:
    """Elements of a row."""
    return table.width or sparse.width


def table_bytes(table: SparseTable, sparse: Sparse) -> float:
    """Of one table, with the optimizer's states of its rows."""
    return Shard(table=table, width=width_of(table, sparse)).kept_bytes(sparse)


def deal(sparse: Sparse, ranks: int, room_bytes: float) -> Deal:
    """Deal the tables to ranks with so much room for them each.

    Shards go to the rank with the fewest bytes read so far that has room, the busiest shard first;
    where none has, to the emptiest. By greedy dealing no rank reads more than 4/3 of the best
    possible (Graham 1969), if memory binds nowhere.
    """
    whole, by_row = list[Shard](), list[Shard]()
    for table in sparse.tables:
        width = width_of(table, sparse)
        shard_of_table = Shard(table=table, width=width)
        for _ in range(table.count):
            if sparse.sharding == "row":
                by_row.append(replace(shard_of_table, by_row=True))
                continue
            parts = _parts(shard_of_table, sparse, ranks, room_bytes)
            if parts == 0:
                by_row.append(replace(shard_of_table, by_row=True))
            else:
                whole += [replace(shard_of_table, width=cut) for cut in _cuts(width, parts)]
    whole.sort(key=lambda s: (-s.table.pooling * s.width, -s.kept_bytes(sparse)))
    shared = sum(s.kept_bytes(sparse) for s in by_row) / ranks
    kept, reads = np.full(ranks, shared), np.zeros(ranks)
    held: list[list[Shard]] = [[] for _ in range(ranks)]
    for shard in whole:
        size = shard.kept_bytes(sparse)
        free = kept + size <= room_bytes
        rank = int(np.lexsort((kept, np.where(free, reads, np.inf)))[0])
        if not free[rank]:
            rank = int(kept.argmin())
        held[rank].append(shard)
        kept[rank] += size
        reads[rank] += shard.table.pooling * shard.width
    return Deal(shards=tuple(map(tuple, held)), by_row=tuple(by_row), kept_bytes=kept)


def _parts(shard: Shard, sparse: Sparse, ranks: int, room_bytes: float) -> int:
    """Parts of a table's width; 0: no part is small enough, so that its rows are split."""
    most = max(1, min(ranks, shard.width // _NARROWEST))
    if sparse.sharding == "table":
        return 1
    if sparse.sharding == "column":
        return most
    needed = math.ceil(shard.kept_bytes(sparse) / max(room_bytes, 1.0))
    return needed if needed <= most else 0


def _cuts(width: int, parts: int) -> Iterator[int]:
    """Widths of so many parts, as even as can be."""
    for i in range(parts):
        yield width * (i + 1) // parts - width * i // parts


_EXACT = 4096
"""Most popular rows that are counted one by one; further ones in runs."""
_RUNS = 2000


def _rows(rows: int) -> tuple[Floats, Floats]:
    """Places of rows by popularity (a run by its middle), and how many rows each stands for."""
    head = np.arange(1.0, min(rows, _EXACT) + 1)
    if rows <= _EXACT:
        return head, np.ones_like(head)
    edges = np.geomspace(_EXACT, rows, _RUNS + 1)
    counts = np.diff(edges)
    return np.concatenate([head, edges[:-1] + counts / 2]), np.concatenate(
        [np.ones_like(head), counts]
    )


def distinct_rows_read(rows: int, reads: float, skew: float) -> float:
    """Expected number of distinct rows among so many reads.

    A row of probability p is read at least once with ``1 - exp(-reads p)`` (reads are many and
    independent).

    Examples
    --------
    A thousand reads of a thousand rows that are all alike leave 1/e of them unread.

    >>> round(distinct_rows_read(1000, 1000, 0.0))
    632
    """
    places, counts = _rows(rows)
    weight = places**-skew
    share = weight / (counts * weight).sum()
    return float((counts * -np.expm1(-reads * share)).sum())


def hit_fraction(rows: int, kept_fraction: float, skew: float) -> float:
    """Share of the reads that find their row among the most popular ones that are kept.

    Examples
    --------
    >>> hit_fraction(10**6, 0.1, 0.0), round(hit_fraction(10**6, 0.1, 1.0), 2)
    (0.1, 0.84)
    """
    if skew == 0.0:
        return kept_fraction
    places, counts = _rows(rows)
    weight = counts * places**-skew
    below = np.cumsum(weight) / weight.sum()
    return float(np.interp(kept_fraction * rows, np.cumsum(counts), below))
