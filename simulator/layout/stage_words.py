"""How a user writes the layers of pipeline pieces: a list, or Megatron's pipeline layout string."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from simulator.arrays import Ints
from simulator.layout.layouts import Layouts
from simulator.layout.stages import pieces_of

_MOST_LAYERS = 100_000

_MOST_CHARACTERS = 20_000
"""Of a string whose repetitions are written out."""


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
