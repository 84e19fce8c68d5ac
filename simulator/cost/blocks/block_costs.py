"""What every part of the model costs one rank and micro-batch, as ``block_prices.py`` prices it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from statistics import NormalDist
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.operators.operations import Ranks
from simulator.layout.keys import distinct_codes
from simulator.records import dataclass
from simulator.workload.recipe import Recipe

PASS_TERMS = (
    *("gemm", "attention", "memory_bound", "launch", "stragglers", "slowdown"),
    *("tp", "cp", "ep"),
)
"""Terms of a forward or backward pass, in the order in which they are added."""

_MEMORY = ("saved_bytes", "rebuilt_bytes", "transient_bytes", "passing_bytes")


@dataclass(frozen=True, kw_only=True)
class BlockCosts:
    """Costs of one micro-batch on one rank; arrays of shape (terms,) (keys, parts)."""

    forward_s: Floats
    """Shape (terms, keys, parts), terms as in PASS_TERMS."""
    backward_s: Floats
    """Shape (terms, keys, parts), without recomputation."""
    wgrad_s: Floats
    """Shape (keys, parts): the share of `backward_s` that no other stage waits for."""
    recompute_s: Floats
    """Shape (modes, keys, parts): forward work done again, modes as in RECOMPUTE."""
    hidden_s: Floats
    """Shape (2, 3, keys, parts): forward and backward; tp, cp, ep communication hidden under
    compute."""
    alone_s: Floats
    """Shape (2, terms, keys, parts): what a forward and a backward pass take longer where no other
    micro-batch hides their expert traffic."""
    exchange_s: Floats
    """Shape (3, keys, parts): context and expert traffic, forward, backward and what selective
    recomputation repeats, hidden or not. While it lasts, no gradient or parameter travels on the
    same links."""
    saved_bytes: Floats
    """Shape (modes, keys, parts): kept from forward to backward per micro-batch."""
    rebuilt_bytes: Floats
    """Shape (modes, keys, parts): what recomputation holds while one part's backward runs."""
    transient_bytes: Floats
    """Shape (keys, parts): temporaries of the backward pass."""
    passing_bytes: Floats
    """Shape (keys, parts): the part of saved bytes that a waiting micro-batch has let go of."""
    full_flop: Floats
    """Shape (keys, parts): FLOPs that full recomputation repeats, attention causal."""
    selective_flop: Floats
    """Shape (keys, parts): FLOPs that selective recomputation repeats."""
    boundary_bytes: Floats
    """Shape (keys,): the activation that crosses a pipeline boundary."""
    input_s: Floats
    """Shape (keys, 3): copies of the input to the first stage, to the last one, and to both."""

    @staticmethod
    def joined(pieces: list[tuple[NDArray[np.intp], BlockCosts]]) -> BlockCosts:
        """Put costs of some keys, priced apart, together; each piece says which keys it holds."""
        order = np.argsort(np.concatenate([keys for keys, _ in pieces]), kind="stable")
        columns = {}
        for field in fields(BlockCosts):
            values = [getattr(costs, field.name) for _, costs in pieces]
            axis = _axis(values[0])
            columns[field.name] = np.take(np.concatenate(values, axis=axis), order, axis=axis)
        return BlockCosts(**columns)

    def take(self, keys: NDArray[np.intp]) -> BlockCosts:
        """Costs of some keys."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return BlockCosts(**{name: np.take(x, keys, axis=_axis(x)) for name, x in values.items()})

    @property
    def parts(self) -> int:
        """Block kinds, embedding and head."""
        return int(self.forward_s.shape[2])


class KnownBlocks:
    """Costs that tables of one setting asked for: each key is priced once, whatever the table."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self._pieces: list[BlockCosts] = []
        self._places: dict[int, dict[bytes, tuple[int, int]]] = {}

    def of(
        self,
        names: Sequence[bytes],
        modules: Sequence[int],
        price: Callable[[NDArray[np.intp]], list[BlockCosts]],
    ) -> list[BlockCosts]:
        """Costs of keys with each of some sets of recomputed modules.

        Parameters
        ----------
        names : sequence of bytes
            What tells each key from others.
        modules : sequence of int
            The sets.
        price : callable
            Prices keys by their places in `names`, with each of the sets.
        """
        with self._lock:
            if sum(map(len, self._places.values())) > _MOST_KNOWN:
                self._forget()
            known = [self._places.setdefault(mask, {}) for mask in modules]
            new: dict[bytes, int] = {}
            for i, name in enumerate(names):
                if not all(name in places for places in known):
                    new.setdefault(name, i)
            priced = price(np.array([*new.values()], dtype=np.intp)) if new else []
            for places, costs in zip(known if new else (), priced, strict=True):
                places.update((name, (len(self._pieces), i)) for i, name in enumerate(new))
                self._pieces.append(costs)
            return [self._gathered([places[name] for name in names]) for places in known]

    def _gathered(self, places: list[tuple[int, int]]) -> BlockCosts:
        piece, row = np.array(places, dtype=np.intp).T
        pieces = [(np.flatnonzero(piece == i), self._pieces[i]) for i in distinct_codes(piece)]
        if len(pieces) > 1:
            return BlockCosts.joined([(some, costs.take(row[some])) for some, costs in pieces])
        whole = pieces[0][1]
        same = len(row) == len(whole.boundary_bytes) and bool((row == np.arange(len(row))).all())
        return whole if same else whole.take(row)


_MOST_KNOWN = 1 << 15
"""Keys, each with every set, that stay known in one setting; of 5 kB each."""


def _axis(values: Floats) -> int:
    """Where keys stand: before the parts."""
    return max(values.ndim - 2, 0)


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


def slowest_of(members: Any) -> Floats:
    """Expected largest of so many draws from a standard normal distribution.

    ``quantile((n - 0.375) / (n + 0.25))`` (Blom 1958, as Royston 1982 gives it); within 2 % of the
    exact value from 2 draws on, and 0 for one.

    Examples
    --------
    >>> slowest_of([1, 2, 8, 1024]).round(2).tolist()
    [0.0, 0.59, 1.43, 3.23]
    """
    n = np.asarray(members, dtype=float)
    asked, normal = n.ravel().tolist(), NormalDist()
    deviates = {x: normal.inv_cdf((x - 0.375) / (x + 0.25)) for x in dict.fromkeys(asked)}
    return np.array([deviates[x] for x in asked]).reshape(n.shape)
