"""Costs of passes rounded to a grid of ratios: at which of them a layout's pipeline is played.

Rounding is by factors to the forward pass of the model's commonest block, so that it depends on
nothing but the layout, and layouts of a search share few rounded costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats
from simulator.cost.passes import FULL, SELECTIVE, ZERO3, part_passes, stages_s, total
from simulator.cost.tables import Priced
from simulator.layout.keys import unique_rows
from simulator.layout.layouts import Layouts
from simulator.schedules.registry import SPLITS_BACKWARD

_FINE = 1.0 / 32.0
"""Costs are rounded to multiples of so much of the commonest block's forward pass. Embedding and
head are rounded more coarsely where they stand beside more than two blocks."""

_COARSE = (1.0, 1.0 / 2.0)
"""The same in a search: of schedules whose backward passes are whole, and of those in which weight
passes fill idle time."""


def rounded_costs(
    priced: Priced, layouts: Layouts, *, coarse: bool
) -> tuple[NDArray[np.intp], Floats]:
    """Round what the passes of each layout cost.

    Parameters
    ----------
    priced : Priced
        All but its paths.
    layouts : Layouts
        All of its rows.
    coarse : bool
        Round to the steps `_COARSE`, and recomputed blocks to quarters of a rank: for a search,
        which prices what it keeps once more at fine ones. A path that is not the longest is too
        short, so that a search overlooks none of the best but for many that look better.

    Returns
    -------
    ndarray
        Row of the second result for each layout.
    ndarray
        Blocks of a rank that are recomputed in full, negative (chunks where coarse), a send, what a
        block takes longer alone; then of every part its forward, backward and weight passes. The
        commonest block's forward pass is 1.
    """
    arch = priced.workload.architecture
    block_key, state_key = priced.block_key, priced.state_key
    chunks, full = layouts.vpp * layouts.copies, layouts.recompute == FULL
    held = len(arch.layer_kinds) / (layouts.pp * layouts.vpp)
    given, whole = layouts.recompute_layers, chunks + 0 * layouts.pp
    finest = np.maximum(chunks / 4.0, 1.0) if coarse else 1.0
    some = np.rint(np.rint(given / held / finest) * finest).astype(np.int64)
    blocks_told = (chunks > 1) & (given > 0) & (not coarse)
    told = np.where(blocks_told, -given, some)
    again = np.where(full, np.where(given == 0, whole, told), 0)
    mode = np.where(layouts.recompute == SELECTIVE, SELECTIVE, 0)
    split = SPLITS_BACKWARD[layouts.schedule].astype(np.int64)
    # gathers beside the passes are the layout's own; else costs are those of the block key
    gathers = np.where((layouts.sharding == ZERO3) & (layouts.pp > 1), state_key + 1, 0)
    ends = np.clip(np.rint(np.log2(held / 2.0)), -1.0, 2.0).astype(np.int64) + 1
    apart = (layouts.pp > 1).astype(np.int64)
    keys = unique_rows(block_key, mode, ends, priced.hop_crosses[state_key], split, gathers, apart)
    some, first = layouts[keys.first], keys.first
    forward, backward = _passes(priced, some, block_key[first], state_key[first], mode[first])
    common = int(np.bincount(np.asarray(arch.layer_kinds, np.int64), minlength=1).argmax())
    unit, at, blocks = forward[:, common], block_key[first], priced.blocks
    sent = priced.send_s[priced.hop_crosses[state_key[first]], at]
    alone = total(blocks.alone_s[0])[at, common] * priced.software.overlap.expert
    weight = np.where(split[first, None], blocks.wgrad_s[at], 0.0)
    costs = np.column_stack([sent, alone, forward, backward, weight]) / unit[:, None]
    steps = np.array(_COARSE if coarse else (_FINE, _FINE))[split[first]]
    step = np.repeat(steps[:, None], costs.shape[1], axis=1)
    count = forward.shape[1]
    for part in (count - 2, count - 1):
        step[:, 2 + part :: count] *= 2.0 ** (ends[first, None] - 1)
    rounded, inverse = np.rint(costs / step) * step, np.zeros(1, dtype=np.intp)
    if len(rounded) != 1:
        rounded, inverse = np.unique(rounded, axis=0, return_inverse=True)
    row = inverse.reshape(-1)[keys.inverse]
    both = unique_rows(row, again - again.min())
    return both.inverse, np.column_stack([again[both.first], rounded[row[both.first]]])


def _passes(
    priced: Priced,
    layouts: Layouts,
    block_key: NDArray[Any],
    state_key: NDArray[Any],
    mode: NDArray[Any],
) -> tuple[Floats, Floats]:
    """Forward and backward pass of every part without full recomputation."""
    blocks = priced.blocks
    again = np.where((mode == SELECTIVE)[:, None], blocks.recompute_s[SELECTIVE][block_key], 0.0)
    forward, backward = total(blocks.forward_s)[block_key], total(blocks.backward_s)[block_key]
    gathering = np.flatnonzero((layouts.sharding == ZERO3) & (layouts.pp > 1))
    if len(gathering):
        m = np.minimum(layouts.micro_batches, 4 * layouts.pp)[gathering] / layouts.copies[gathering]
        none = np.zeros_like(forward[gathering])
        passes = part_passes(
            priced, layouts[gathering], block_key[gathering], state_key[gathering], m, none
        )
        forward[gathering], backward[gathering] = passes.forward_s, passes.backward_s
    fetched = stages_s(blocks.input_s[block_key], layouts.pp > 1)
    forward[:, -2:] += fetched * (not priced.software.input.prefetched)
    return forward, backward + again
