"""Scaling series: runs that differ in nothing but the number of GPUs that share the work."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.measured.rows import LAYOUT_COLUMNS, SWITCH_COLUMNS, number, whole
from simulator.records import dataclass
from simulator.scoring.scores import ScoredRow

Kind = Literal["weak", "strong"]

FEWEST_SIZES = 4
"""Numbers of GPUs that a series needs: with fewer, a curve says no more than its rows."""

_GROWING = ("dp", "shard_group")
_SAME = (
    *("source", "split", "model", "gpu", "software", "precision", "optimizer", "seq_len"),
    *(name for name in LAYOUT_COLUMNS if name not in _GROWING),
    *SWITCH_COLUMNS,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One model replica, repeated over more and more GPUs; every array has the order of `rows`."""

    kind: Kind
    """weak: sequences per GPU stay the same; strong: the global batch does."""
    sequences: float
    """Those of a step that stay the same: per GPU (weak) or in all (strong)."""
    rows: tuple[ScoredRow, ...]
    """By number of GPUs; a size that was measured twice is there twice."""
    gpus: NDArray[np.int64]
    predicted_s: NDArray[np.float64]
    measured_s: NDArray[np.float64]
    tokens_per_s_per_gpu: NDArray[np.float64]
    """Measured."""
    predicted_tokens_per_s_per_gpu: NDArray[np.float64]


def series(rows: Iterable[ScoredRow]) -> tuple[Series, ...]:
    """Find the scaling series among rows that were both predicted and measured.

    The rows of a series share source, split, model, accelerator, software and its switches,
    precision, optimizer, sequence length, and the layout of one replica: everything but the
    data-parallel degree. States are sharded over all ranks at every size, or over groups of one
    size; a run whose group is all of its ranks belongs to both. Composed times and measured ones
    are never in one series. Fewer than `FEWEST_SIZES` numbers of GPUs make none.

    Returns
    -------
    tuple of Series
        In the order in which their first rows come.
    """
    groups: dict[Hashable, tuple[Kind, float, list[ScoredRow]]] = {}
    for row in rows:
        if row.predicted_step_s is not None and row.measured_step_s is not None:
            for kind, sequences, shared in _memberships(row):
                key = (kind, sequences, shared)
                groups.setdefault(key, (kind, sequences, []))[2].append(row)
    return tuple(
        _series(kind, sequences, some)
        for kind, sequences, some in groups.values()
        if len({_gpus(row) for row in some}) >= FEWEST_SIZES
    )


def _memberships(row: ScoredRow) -> Iterator[tuple[Kind, float, Hashable]]:
    """Every series that a row may belong to, by what all of its rows share."""
    batch = number(row.run.fields, "global_batch")
    same = (row.composed, row.run.software_fields, *(row.run.get(name) for name in _SAME))
    for group in _shard_groups(row):
        yield "weak", batch / _gpus(row), (group, *same)
        yield "strong", batch, (group, *same)


def _shard_groups(row: ScoredRow) -> Iterator[int | None]:
    """Over how many ranks states are sharded: None for all of them, at any size."""
    fields = row.run.fields
    ranks = whole(fields, "dp", 1) * whole(fields, "cp", 1)
    group = whole(fields, "shard_group", ranks)
    if group == ranks:
        yield None
    yield group


def _series(kind: Kind, sequences: float, some: Sequence[ScoredRow]) -> Series:
    rows = sorted(some, key=_gpus)
    gpus = np.array([_gpus(row) for row in rows])
    predicted_s = np.array([row.predicted_step_s for row in rows], dtype=float)
    measured_s = np.array([row.measured_step_s for row in rows], dtype=float)
    batch = sequences * gpus if kind == "weak" else np.full(len(rows), sequences)
    tokens_per_gpu = batch * number(rows[0].run.fields, "seq_len") / gpus
    return Series(
        kind=kind,
        sequences=sequences,
        rows=tuple(rows),
        gpus=gpus,
        predicted_s=predicted_s,
        measured_s=measured_s,
        tokens_per_s_per_gpu=tokens_per_gpu / measured_s,
        predicted_tokens_per_s_per_gpu=tokens_per_gpu / predicted_s,
    )


def _gpus(row: ScoredRow) -> int:
    return whole(row.run.fields, "num_gpus")
