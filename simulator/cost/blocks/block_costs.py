"""What every part of the model costs one rank and micro-batch, as ``block_prices.py`` prices it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.records import dataclass

PASS_TERMS = (
    *("gemm", "attention", "memory_bound", "launch", "stragglers", "slowdown"),
    *("tp", "cp", "ep"),
)
"""Terms of a forward or backward pass, in the order in which they are added."""


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
        pieces = [(np.flatnonzero(piece == i), self._pieces[i]) for i in np.unique(piece).tolist()]
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
