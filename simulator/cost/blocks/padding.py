"""Micro-batches of sequences of unequal length: mean times, memory of the longest.

Packed micro-batches are always full. Where sequences are padded, a micro-batch is as long as the
longest of its sequences; its time is the mean over the lengths that come, its memory is that of
`sequence_length`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from simulator.arrays import Floats
from simulator.cost.blocks.block_costs import BlockCosts
from simulator.cost.operators.operations import Ranks
from simulator.workload.recipe import Recipe

_MEMORY = ("saved_bytes", "rebuilt_bytes", "transient_bytes", "passing_bytes")


def padded_lengths(recipe: Recipe, micro_batch: Floats) -> tuple[Floats, Floats]:
    """Lengths that micro-batches are padded to, and how often each comes.

    Parameters
    ----------
    recipe : Recipe
        With `lengths`, their shares, and a `batching` that pads.
    micro_batch : ndarray
        Sequences of a micro-batch, shape (keys,).

    Returns
    -------
    lengths, shares : ndarray
        Shapes (lengths,) and (keys, lengths); shares of a key add up to 1.

    Notes
    -----
    dynamic: the longest of b draws is the i-th length with probability ``F_i^b - F_(i - 1)^b``,
    with ``F_i`` the share of sequences that are no longer (i / n where all are equally likely).
    sorted: sequences of one micro-batch are neighbours in a long sorted list, so as long as each
    other; the micro-batches come in random order.
    """
    keys = np.ones((len(micro_batch), 1))
    if recipe.lengths is None or recipe.batching in ("packed", "padded"):
        return np.array([float(recipe.sequence_length)]), keys
    order = np.argsort(recipe.lengths, kind="stable")
    lengths, n = np.asarray(recipe.lengths, dtype=float)[order], len(order)
    shares, below = np.full(n, 1.0 / n), np.arange(n + 1) / n
    if recipe.length_shares is not None:
        shares = np.asarray(recipe.length_shares)[order]
        below = np.append(np.minimum(np.concatenate([[0.0], np.cumsum(shares)[:-1]]), 1.0), 1.0)
    if recipe.batching == "sorted":
        return lengths, keys * shares
    below = below[None, :] ** micro_batch[:, None]
    return lengths, np.diff(below, axis=1)


def mean_costs(
    price: Callable[[Recipe], BlockCosts], recipe: Recipe, ranks: Ranks, longest: BlockCosts
) -> BlockCosts:
    """Costs of a micro-batch of mean length: times and FLOPs averaged over `padded_lengths`.

    Parameters
    ----------
    price : callable
        Prices the parts of the model under a recipe of equal lengths.
    recipe, ranks
        The recipe with unequal lengths, and the layout keys.
    longest : BlockCosts
        Costs at `sequence_length`: what memory has to hold.
    """
    lengths, shares = padded_lengths(recipe, ranks.micro_batch)
    names = [field.name for field in fields(BlockCosts) if field.name not in _MEMORY]
    total = {name: np.zeros_like(getattr(longest, name)) for name in names}
    for length, share in zip(lengths, shares.T, strict=True):
        costs = price(
            replace(recipe, sequence_length=int(length), lengths=None, length_shares=None)
        )
        for name in names:
            values = getattr(costs, name)
            wide = share if values.ndim == 1 else share[:, None]
            total[name] = total[name] + wide * values
    return replace(longest, **total)
