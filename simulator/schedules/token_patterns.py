"""Orders of work written as patterns of tokens, repeated; counting gives the micro-batches.

A token is a letter of KINDS and a chunk; "+" joins it to the next one; "W" takes the oldest waiting
weight pass, "W0" that of chunk 0.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Ints
from simulator.schedules.schedule import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    KINDS,
    Order,
)

Tokens = list[tuple[int, str]]
"""Patterns of a rank and how often each is repeated."""


def of_ranks(ranks: list[Tokens], m: int) -> Order:
    """Read the patterns of every rank; micro-batches from m on are left out."""
    columns = [_expand(tokens, m) for tokens in ranks]
    kind, micro_batch, chunk, pair = (
        np.concatenate([column[i] for column in columns]) for i in range(4)
    )
    return Order(
        rank=np.repeat(np.arange(len(ranks)), [len(column[0]) for column in columns]),
        kind=kind,
        micro_batch=micro_batch,
        chunk=chunk,
        with_next=pair.astype(bool),
    )


def _expand(tokens: Tokens, m: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Kind, micro-batch, chunk and pairing of one rank; micro-batches from m on are left out."""
    letters = [word for count, pattern in tokens for word in pattern.split() * count]
    kind = np.array([KINDS.index(word[0]) for word in letters], dtype=np.int64)
    chunk = np.array([int(word[1]) if len(word) > 1 else -1 for word in letters], dtype=np.int64)
    pair = np.array([word.endswith("+") for word in letters], dtype=np.int64)
    micro_batch = np.zeros_like(kind)
    backward = (kind == BACKWARD) | (kind == BACKWARD_INPUT)
    for of_kind in (kind == FORWARD, backward, kind == BACKWARD_WEIGHT):
        for part in (0, 1):
            rows = np.flatnonzero(of_kind & (chunk == part))
            micro_batch[rows] = np.arange(len(rows))
    oldest, waiting = np.flatnonzero(chunk == -1), np.flatnonzero(kind == BACKWARD_INPUT)
    chunk[oldest] = chunk[waiting[: len(oldest)]]
    micro_batch[oldest] = micro_batch[waiting[: len(oldest)]]
    kept = micro_batch < m
    return kind[kept], micro_batch[kept], chunk[kept], pair[kept]
