"""Which GPUs make up each process group of a layout: the rank grid, written out."""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import Ints
from simulator.errors import InputError, problem
from simulator.layout.layouts import RANK_ORDERS, Layouts

_OVER = {"tp": ("tp",), "cp": ("cp",), "dp": ("dp", "cp"), "pp": ("pp",)}
DIMENSIONS = (*_OVER, "etp", "ep", "edp", "experts")
"""Kinds of groups; dp holds the context-parallel ranks too, experts all ranks of ep and etp."""


def group_members(layout: Layouts, name: str) -> Ints:
    """GPUs of every group of one kind, (groups, members), in the order of ranks.

    Parameters
    ----------
    layout : Layouts
        One row.
    name : str
        One of `DIMENSIONS`.

    Examples
    --------
    >>> group_members(Layouts.of(tp=2, dp=2, global_batch=2), "dp").tolist()
    [[0, 2], [1, 3]]
    """
    if name not in DIMENSIONS:
        raise InputError(problem("network", "group", "unknown kind of group", name, DIMENSIONS))
    row = layout.row()
    order, grid = _grid(layout)
    if name in _OVER:
        axes = [order.index(dimension) for dimension in _OVER[name]]
        axes.sort()
        moved = np.moveaxis(grid, axes, range(-len(axes), 0))
        return moved.reshape(-1, math.prod(grid.shape[axis] for axis in axes))
    stages = np.moveaxis(grid, order.index("pp"), 0).reshape(int(row["pp"]), -1)
    etp, ep = int(row["etp"]), int(row["ep"])
    experts = stages.reshape(len(stages), -1, ep, etp)
    if name == "experts":
        return experts.reshape(-1, ep * etp)
    axis = {"edp": 1, "ep": 2, "etp": 3}[name]
    return np.moveaxis(experts, axis, -1).reshape(-1, experts.shape[axis])


def stage_members(layout: Layouts) -> Ints:
    """GPUs of every pipeline rank of every replica, (dp, pp, tp x cp).

    Examples
    --------
    >>> stage_members(Layouts.of(tp=2, pp=2, dp=2, global_batch=2)).tolist()
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    order, grid = _grid(layout)
    moved = np.moveaxis(grid, [order.index("dp"), order.index("pp")], [0, 1])
    return moved.reshape(*moved.shape[:2], -1)


def _grid(layout: Layouts) -> tuple[list[str], Ints]:
    """Dimensions of the rank grid from the outermost to the innermost, and GPUs along them."""
    row = layout.row()
    order = RANK_ORDERS[int(layout.rank_order[0])].split("-")[::-1]
    degrees = [int(row[dimension]) for dimension in order]
    return order, np.arange(math.prod(degrees), dtype=np.int64).reshape(degrees)
