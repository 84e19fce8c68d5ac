"""Costs of passes rounded to a grid of ratios: at which of them a layout's pipeline is played.

Rounding is by factors to the forward pass of the model's commonest block, so that it depends on
nothing but the layout, and layouts of a search share few rounded costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.cost.passes import FULL, SELECTIVE, ZERO3, Priced, part_passes, total
from simulator.layout.keys import unique_rows
from simulator.layout.layout import Layouts
from simulator.layout.schedules import SPLIT

__all__ = ["rounded_costs"]

Floats = NDArray[np.float64]

_SMALL, _LEAST = 1.0 / 16.0, 1e-300
"""Costs of this share of the common block's forward pass do not move the path and count as none;
what divides is at least so much."""

_STEPS = (2.0, 4.0)
"""Rounded costs per factor of two: of schedules whose backward passes are whole, and of those in
which weight passes fill idle time, whose paths turn on how much they fill."""


def rounded_costs(
    priced: Priced, layouts: Layouts, key: NDArray[Any], grid: NDArray[Any]
) -> tuple[NDArray[np.intp], Floats]:
    """Round what the passes of each layout cost.

    Parameters
    ----------
    priced : Priced
        All but its paths.
    layouts : Layouts
    key, grid : ndarray
        Block key and state key of each layout.

    Returns
    -------
    ndarray
        Row of the second result for each layout.
    ndarray
        Send, what the common block takes longer alone, recomputation in full of it; then of every
        part the forward pass, backward over forward, and the share of that which is weight
        gradients.
    """
    arch = priced.workload.architecture
    partly = layouts.recompute_layers
    most = (partly == 0) | (2 * partly * layouts.pp >= len(arch.layer_kinds))
    mode = np.where((layouts.recompute == FULL) & ~most, 0, layouts.recompute)
    split = np.isin(layouts.schedule, SPLIT).astype(np.int64)
    # gathers beside the passes are the layout's own; else costs are those of the block key
    gathers = np.where((layouts.sharding == ZERO3) & (layouts.pp > 1), grid + 1, 0)
    own = unique_rows(key, mode, priced.hop_crosses[grid], split, gathers)
    some, first = layouts[own.first], own.first
    forward, backward = _passes(priced, some, key[first], grid[first], mode[first])
    common = int(np.bincount(np.asarray(arch.layer_kinds, np.int64), minlength=1).argmax())
    unit, at, blocks = forward[:, common], key[first], priced.blocks
    sent = priced.send_s[priced.hop_crosses[grid[first]], at] / unit
    alone = total(blocks.alone_s[0])[at, common] / unit * priced.software.overlap.expert
    weight = np.where(split[first, None], blocks.wgrad_s[at] / np.maximum(backward, _LEAST), 0.0)
    rows = [sent, alone, mode[first] == FULL, forward / unit[:, None]]
    rows += [backward / np.maximum(forward, _LEAST), weight]
    distinct, inverse = np.unique(
        _rounded(np.column_stack(rows), np.array(_STEPS)[split[first]]), axis=0, return_inverse=True
    )
    return inverse.reshape(-1)[own.inverse], distinct


def _rounded(ratios: Floats, steps: Floats) -> Floats:
    """Each to the nearest power of two with so many steps between whole ones; small ones to 0."""
    exponents = np.rint(steps[:, None] * np.log2(np.maximum(ratios, _LEAST))) / steps[:, None]
    return np.where(exponents > np.log2(_SMALL), 2.0**exponents, 0.0)


def _passes(
    priced: Priced, layouts: Layouts, key: NDArray[Any], grid: NDArray[Any], mode: NDArray[Any]
) -> tuple[Floats, Floats]:
    """Forward and backward pass of every part without full recomputation."""
    blocks = priced.blocks
    again = np.where((mode == SELECTIVE)[:, None], blocks.recompute_s[SELECTIVE][key], 0.0)
    forward, backward = total(blocks.forward_s)[key], total(blocks.backward_s)[key]
    own = np.flatnonzero((layouts.sharding == ZERO3) & (layouts.pp > 1))
    if len(own):
        m = np.minimum(layouts.micro_batches, 4 * layouts.pp)[own] / layouts.copies[own]
        whole = np.broadcast_to((mode[own] == FULL)[:, None], forward[own].shape).astype(float)
        passes = part_passes(priced, key[own], grid[own], m, mode[own], whole)
        forward[own], backward[own] = passes.forward_s, passes.backward_s
    return forward, backward + again
