"""Ways through a torus of chips: axis by axis, the shorter way round, half each way where equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Floats, Ints
from simulator.events.network.links import Topology

Entries = tuple[Ints, Ints, Floats]


def paths(topology: Topology, start: Ints, end: Ints, flows: Ints) -> tuple[Entries, Ints]:
    """Links of the flows `flows` as (flow, link, share); and those that lost links leave no way.

    Axes in order, the first first; where a link is lost in the opposite order, then the long way
    round along each axis and along all.
    """
    axes = len(topology.torus)
    orders = [tuple(range(axes)), tuple(reversed(range(axes)))]
    turns = [(), *((axis,) for axis in range(axes)), tuple(range(axes))]
    done: list[Entries] = []
    left = flows
    for turned in turns:
        for order in orders:
            if not len(left):
                break
            found, sound = _walk(topology, start, end, left, order, turned)
            keep = np.isin(found[0], left[sound])
            done.append(tuple(column[keep] for column in found))  # type: ignore[arg-type]
            left = left[~sound]
    if not done:
        empty = np.zeros(0, dtype=np.int64)
        return (empty, empty, np.zeros(0)), left
    flow, link, share = (np.concatenate(column) for column in zip(*done, strict=True))
    return (flow, link, share), left


def _walk(
    topology: Topology,
    start: Ints,
    end: Ints,
    flows: Ints,
    order: tuple[int, ...],
    turned: tuple[int, ...],
) -> tuple[Entries, NDArray[np.bool_]]:
    """Ways of all flows, axes in this order, the long way round along the turned ones."""
    shape = topology.torus
    place = np.stack(np.unravel_index(topology.seats.local[start[flows]], shape))
    goal = np.stack(np.unravel_index(topology.seats.local[end[flows]], shape))
    base = topology.seats.domain[start[flows]] * int(np.prod(shape))
    entries: list[Entries] = []
    possible = np.ones(len(flows), dtype=bool)
    for axis in order:
        length, wraps = shape[axis], shape[axis] % topology.torus_wraps_at == 0
        wraps = wraps and length > 2
        ahead = (goal[axis] - place[axis]) % length
        back = (place[axis] - goal[axis]) % length
        forward = np.where(ahead < back, 1.0, np.where(ahead > back, 0.0, 0.5))
        if not wraps:
            forward = (goal[axis] > place[axis]).astype(float)
            ahead, back = np.abs(goal[axis] - place[axis]), np.abs(goal[axis] - place[axis])
        if axis in turned:
            possible &= wraps | (ahead == 0)
            forward = np.where(forward == 0.5, 1.0, 1.0 - forward)
        for share, hops, step in ((forward, ahead, 1), (1.0 - forward, back, -1)):
            going = np.where((share > 0.0) & (goal[axis] != place[axis]), hops, 0)
            rows, link = _line(topology, base, place, axis, hops=going, step=step)
            entries.append((flows[rows], link, share[rows]))
        place = place.copy()
        place[axis] = goal[axis]
    flow, link, share = (np.concatenate(column) for column in zip(*entries, strict=True))
    lost = flow[topology.capacity_bytes_per_s[link] <= 0.0]
    sound = possible & ~np.isin(flows, lost)
    return (flow, link, share), sound


def _line(
    topology: Topology, base: Ints, place: Ints, axis: int, *, hops: Ints, step: int
) -> tuple[Ints, Ints]:
    """Rows and links of `hops` steps along one axis from `place`."""
    row = np.repeat(np.arange(len(hops)), hops)
    hop = np.arange(len(row)) - np.repeat(np.cumsum(hops) - hops, hops)
    at = place[:, row].copy()
    at[axis] = (at[axis] + step * hop) % topology.torus[axis]
    chip = base[row] + np.ravel_multi_index(tuple(at), topology.torus)
    return row, topology.at("torus", chip, np.int64(2 * axis + (step < 0)))
