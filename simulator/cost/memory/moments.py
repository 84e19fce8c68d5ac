"""Moments of a backward pass at which a rank may be fullest, where gradients are freed every step.

Activations go while gradients come: the loss sees all of the former and none of the latter, the end
of the backward pass one block's activations and all gradients, and the second block lies in
between: the first one's activations are gone, its gradients are there, and under FSDP2 so is the
buffer out of which they are reduced. Further blocks change memory by the same amount each, so that
one end or the other is the fullest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.records import dataclass
from simulator.schedules.registry import BREADTH_FIRST
from simulator.workload.recipe import Recipe

MOMENTS = (
    "backward of a block", "loss and head", "end of the backward pass",
    "backward of the second block", "gather of the second block", "backward of the embedding",
)  # fmt: skip

LOSS, END, GATHER, EMBEDDING = 1, 2, 4, 5

_ZERO2 = SHARDINGS.index("zero2")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemoryNow:
    """What a rank holds beside its states; arrays of shape (layouts, columns)."""

    activations: Floats
    """Of all micro-batches in flight."""
    one_block: Floats
    """Of them, what one block and micro-batch keeps."""
    buffers: Floats
    """Of the pipeline, there throughout."""
    inputs: Floats
    """Of one micro-batch: where it is gone, its buffers are still there."""
    temporaries: Floats
    """Of a block's backward pass."""
    loss: Floats
    waiting: Floats
    """Logits of other micro-batches, while a block goes back."""
    table: Floats
    """Whole gradient of the embedding."""
    flights: Floats
    """Micro-batches in flight."""
    blocks: Floats
    deferred: NDArray[np.bool_]
    """Gradients stay whole until the last micro-batch, so that reduced ones grow in that alone."""
    returned: Floats
    """Gradients of a micro-batch that its backward pass returns together at its end."""
    all_forward: NDArray[np.bool_]
    """All of the step's micro-batches go forward before the first one goes back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The fullest moment of each rank, and what is there then; shape (layouts, columns)."""

    moment: NDArray[Any]
    gradients: Floats
    gathered: Floats
    activations: Floats
    temporaries: Floats


def fullest(
    layouts: Layouts,
    recipe: Recipe,
    held: RankMemoryNow,
    *,
    whole: Floats,
    early: Floats,
    gathered: Floats,
    unreduced: Floats,
) -> Peak:
    """Find the moment at which each rank is fullest.

    Parameters
    ----------
    whole, early : ndarray
        All gradients of a rank, and those of single moments (``cost/states/gathered.py``).
    gathered : ndarray
        Gathered parameters at each of the MOMENTS, shape (6, layouts, columns).
    unreduced : ndarray
        Of these, whole gradients that wait for the last micro-batch; none in the first one.
    """
    sharded = layouts.sharding[:, None] >= _ZERO2
    left = np.where(sharded & (held.blocks > 2), 2.0, 1.0)
    turns = [(np.ones(whole.shape), _growing(recipe, layouts, whole, early, held, left))]
    if held.all_forward.any() and not recipe.optimizer_in_backward:
        turns += _later(layouts, whole, turns[0][1], held)
    activations = np.concatenate([_activations(layouts, held, share, left) for share, _ in turns])
    growing = np.concatenate([gradients for _, gradients in turns])
    growing[END :: len(MOMENTS)] += held.returned
    none = np.zeros_like(held.temporaries)
    temporaries = np.stack(
        [held.temporaries, none, held.temporaries, held.temporaries, none, held.table]
    )
    head = np.stack([held.waiting, held.loss, none, *[held.waiting] * 3])
    gathered = np.concatenate([gathered] * len(turns))
    if len(turns) > 1:
        starts = [i for i in range(len(MOMENTS)) if i != END]
        gathered[starts] -= np.where(held.all_forward, unreduced, 0.0)
    beside = np.concatenate([temporaries + head] * len(turns))
    total = growing + activations + gathered + beside
    at = np.argmax(total, axis=0)[None]
    moment = at % len(MOMENTS)
    return Peak(
        moment=moment[0].astype(np.int8),
        gradients=np.take_along_axis(growing, at, axis=0)[0],
        gathered=np.take_along_axis(gathered, at, axis=0)[0],
        activations=np.take_along_axis(activations, at, axis=0)[0],
        temporaries=np.take_along_axis(temporaries, moment, axis=0)[0],
    )


def _chunks(layouts: Layouts) -> Floats:
    return np.maximum(layouts.vpp, 1)[:, None].astype(float)


def _activations(layouts: Layouts, held: RankMemoryNow, share: Floats, left: Floats) -> Floats:
    """Activations and buffers at each of the MOMENTS, with this share of the former still there.

    A block's are gone by the second one, and those of a micro-batch and chunk by the embedding.
    """
    there = share * held.activations + (1.0 - share) * held.flights * held.inputs
    passed = held.activations / (held.flights * _chunks(layouts))
    fewer = np.maximum(there - held.one_block, 0.0)
    others = np.maximum(there - passed, 0.0)
    return held.buffers + np.stack([there, there, left * held.one_block, fewer, fewer, others])


def _growing(
    recipe: Recipe,
    layouts: Layouts,
    whole: Floats,
    early: Floats,
    held: RankMemoryNow,
    left: Floats,
) -> Floats:
    """Gradients of a rank at each of the MOMENTS, shape (6, layouts, columns).

    With several micro-batches they are all there from the second on, which most schedules take back
    with as many in flight. In the first one, the loss sees none, the first backward pass of a block
    those of the head, the second those of the first block as well, the last those of all but the
    `left` blocks and the embedding, which are whole where they are not sharded; the step that
    follows has all of them and nothing beside. An optimizer that steps inside the backward pass
    leaves no more than one block's.
    """
    head, block, kept, root, table = early
    none = np.zeros_like(whole)
    if recipe.optimizer_in_backward:
        return np.stack([np.maximum(head, block), none, block, block, none, none])
    once = (layouts.micro_batches[:, None] == 1) | held.deferred
    sharded = layouts.sharding[:, None] >= _ZERO2
    blocks = np.where(sharded, whole - root, whole)
    last = np.maximum(blocks - left * kept, 0.0) + head
    beside = held.one_block + held.temporaries
    end = np.where(sharded, last, whole - np.minimum(block + table, beside))
    first = once | held.all_forward
    starting = (head, none, end, head + kept, head + kept, blocks)
    starts = (first, first, once, first, first, first)
    return np.stack(
        [np.where(when, some, whole) for when, some in zip(starts, starting, strict=True)]
    )


def _later(
    layouts: Layouts, whole: Floats, first: Floats, held: RankMemoryNow
) -> list[tuple[Floats, Floats]]:
    """Share of activations and gradients when a second micro-batch goes back, after all forward.

    Through the rank's last chunk, which alone has gradients by then in breadth-first schedules, and
    through its first one, when all chunks have and only its own activations are left; those between
    lie between.
    """
    breadth = BREADTH_FIRST[layouts.schedule][:, None]
    chunks, passed = _chunks(layouts), 1.0 / np.maximum(layouts.micro_batches[:, None], 1)
    turns = []
    for share, gradients in (
        (1.0 - passed / chunks, np.where(breadth, whole / chunks, whole)),
        ((1.0 - passed) / chunks, whole),
    ):
        there = np.where(held.all_forward, gradients, first)
        there[END] = first[END]
        turns.append((np.where(held.all_forward, share, 1.0), there))
    return turns
