"""The links that each flow between two GPUs crosses, many flows at a time.

Inside a domain a flow takes the ports of both GPUs. Beyond it takes the adapters of a rail, leaves
and pods up to where the two meet. Where rails are aligned and GPUs have fast links, the sender
hands the bytes to the GPU of its server on the receiver's rail, as NCCL's PXN does, and the flow
never leaves that rail. What crosses a lost link tries every other rail, then ways around.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simulator.arrays import Bools, Floats, Ints
from simulator.errors import InputError, problem
from simulator.events.network.links import Topology, link_name, rail_choices
from simulator.records import dataclass

Entries = tuple[Ints, Ints, Floats]


@dataclass(frozen=True, kw_only=True, slots=True)
class Routes:
    """Links by flow: flow f crosses ``link[first[f]:first[f + 1]]`` with `share` of its bytes."""

    first: Ints
    link: Ints
    share: Floats

    def __len__(self) -> int:
        """Number of flows."""
        return len(self.first) - 1


def routes(
    topology: Topology, source: ArrayLike, target: ArrayLike, *, spread: bool = False
) -> Routes:
    """Links between GPUs.

    Parameters
    ----------
    topology : Topology
    source, target : array_like of int
        GPUs, one pair per flow; a flow to itself crosses nothing.
    spread : bool
        The flow is a part of a collective that uses all wires of a domain without a switch at once,
        as rings of several channels do; a send takes the one pair of wires to its target.

    Raises
    ------
    InputError
        If a GPU is not one of the cluster, or lost links leave no way between two.
    """
    start, end = _gpus(topology, "source", source), _gpus(topology, "target", target)
    seats = topology.seats
    near = (seats.domain[start] == seats.domain[end]) & (start != end)
    far = seats.domain[start] != seats.domain[end]
    parts: list[tuple[Ints, Ints, Floats]] = []
    if topology.graph is not None:
        from simulator.events.network.graph_routes import near_ways

        inside, stuck = near_ways(topology, start, end, np.flatnonzero(near), spread=spread)
        parts.append(inside)
    elif topology.has("torus"):
        ring, stuck = _torus(topology, start, end, np.flatnonzero(near))
        parts.append(ring)
    else:
        table = _near(topology, start[near], end[near], spread)
        sound = _sound(topology, table)
        flow = np.flatnonzero(near)
        parts.append(_entries(flow[sound], table[sound]))
        stuck = flow[~sound]
    across = np.sort(np.concatenate([np.flatnonzero(far), stuck]))
    if len(across):
        parts.append(_across(topology, start, end, across))
    flow, link, share = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(parts) > 1 or topology.has("torus") or topology.graph is not None:
        order = np.argsort(flow, kind="stable")
        flow, link, share = flow[order], link[order], share[order]
    first = np.concatenate([[0], np.cumsum(np.bincount(flow, minlength=len(start)))])
    return Routes(first=first.astype(np.int64), link=link, share=share)


def host_routes(topology: Topology, gpu: ArrayLike, *, up: bool) -> Routes:
    """Copies between GPUs and host memory, `up` to the host.

    Each GPU has a link for them. On boards whose only links are PCIe, what it says to its peers
    goes the same way, over its port and the switch above it.
    """
    at = _gpus(topology, "gpu", gpu)
    way = "up" if up else "down"
    if not topology.has(f"host-{way}"):
        raise InputError("network: host copies: the node profile gives no host_bytes_per_s")
    links = [topology.at(f"host-{way}", at)]
    if topology.pcie and topology.has(f"gpu-{way}"):
        links.append(topology.at(f"gpu-{way}", at))
    if topology.pcie and topology.has(f"pcie-{way}"):
        links.append(topology.at(f"pcie-{way}", topology.seats.switch[at]))
    table = np.stack(links, axis=1)
    first = np.arange(len(at) + 1) * table.shape[1]
    return Routes(first=first, link=table.ravel(), share=np.ones(table.size))


def _gpus(topology: Topology, name: str, values: ArrayLike) -> Ints:
    gpu = np.atleast_1d(np.asarray(values, dtype=np.int64))
    wrong = np.flatnonzero((gpu < 0) | (gpu >= topology.gpus))
    if len(wrong):
        near = 0 if gpu[wrong[0]] < 0 else topology.gpus - 1
        rule = f"must be a GPU of the cluster, 0 to {topology.gpus - 1}"
        said = problem("network", f"{name}[{wrong[0]}]", rule, int(gpu[wrong[0]]))
        raise InputError(f"{said} (nearest: {near})")
    return gpu


def _entries(flow: Ints, table: Ints) -> tuple[Ints, Ints, Floats]:
    """Rows of links, -1 for none, as (flow, link, share) in the order of flows."""
    used = table >= 0
    link = table[used]
    return np.repeat(flow, used.sum(axis=1)), link, np.ones(len(link))


def _sound(topology: Topology, table: Ints) -> Bools:
    """Rows that cross no lost link."""
    alive = np.append(topology.capacity_bytes_per_s > 0.0, True)  # -1 is the last: no link
    return np.asarray(alive[table].all(axis=1))


def _near(topology: Topology, start: Ints, end: Ints, spread: bool) -> Ints:
    """Rows of links inside a domain: ports, wires of a mesh, PCIe switches."""
    none = np.full(len(start), -1, dtype=np.int64)
    columns = [topology.at("gpu-up", start)]
    seats = topology.seats
    if topology.has("pair") and not spread:
        place = (seats.domain[start], seats.local[start], seats.local[end])
        columns.append(topology.at("pair", *place))
    if topology.has("pcie-up"):
        leaves = seats.switch[start] != seats.switch[end]
        columns.append(np.where(leaves, topology.at("pcie-up", seats.switch[start]), none))
        columns.append(np.where(leaves, topology.at("pcie-down", seats.switch[end]), none))
    columns.append(topology.at("gpu-down", end))
    return np.stack(columns, axis=1)


def _across(topology: Topology, start: Ints, end: Ints, flows: Ints) -> tuple[Ints, Ints, Floats]:
    """Ways over the network: the usual rail, every other rail, a detour over another group."""
    rail, done = topology.seats.rail, []
    if not topology.has("adapter-up"):
        first = flows[:1]
        regular = topology.graph is None
        table = _near(topology, start[first], end[first], False) if regular else first[:0, None]
        _no_way(topology, start, end, flows[0], table)
    if topology.graph is not None:
        from simulator.events.network.graph_routes import ways_across

        entries, left = ways_across(topology, start, end, flows)
        if len(left):
            _no_way(topology, start, end, left[0], np.zeros((0, 0), dtype=np.int64))
        return entries
    left, last = flows, np.zeros((0, 0), dtype=np.int64)
    attempts = rail_choices(topology, rail[start], rail[end])
    groups = topology.blocks["global"].shape[0] if topology.has("global") else 0
    for over in [-1, *range(groups)]:
        for out, into in attempts:
            if not len(left):
                break
            last = _far(topology, start[left], end[left], out[left], into[left], over)
            sound = _sound(topology, last)
            done.append(_entries(left[sound], last[sound]))
            left, last = left[~sound], last[~sound]
    if len(left):
        _no_way(topology, start, end, left[0], last)
    flow, link, share = (np.concatenate(column) for column in zip(*done, strict=True))
    return flow, link, share


def _far(topology: Topology, start: Ints, end: Ints, out: Ints, into: Ints, over: int) -> Ints:
    """Rows of links from GPU to GPU, out by one rail and in by another, over a group or none."""
    t, seats = topology, topology.seats
    here, there = seats.server[start], seats.server[end]
    columns = [
        *_to_rail(topology, start, here, out, "gpu-up", "gpu-down"),
        t.at("adapter-up", here, out),
        *_switches(topology, here, there, out, into, over),
        t.at("adapter-down", there, into),
        *_to_rail(topology, end, there, into, "gpu-down", "gpu-up"),
    ]
    return np.stack(columns, axis=1)


def _to_rail(
    topology: Topology, gpu: Ints, server: Ints, rail: Ints, own: str, other: str
) -> list[Ints]:
    """Links between a GPU and the adapters of a rail.

    On PCIe boards the port of the GPU, and the host bridge where the adapter hangs on another
    switch; with rails and fast links, where the rail is not its own, the ports to the GPU beside
    the adapter; else nothing that is known to be narrower than the adapter.
    """
    seats, none = topology.seats, np.full(len(gpu), -1, dtype=np.int64)
    each = int(topology.gpus_of_server[1]) // topology.rails
    beside = topology.gpus_of_server[server] + rail * each
    port = topology.at(own, gpu) if topology.has(own) else none
    if topology.proxies:
        handed = seats.rail[gpu] != rail
        return [np.where(handed, port, none), np.where(handed, topology.at(other, beside), none)]
    if not topology.pcie:
        return []
    if not topology.has("pcie-up"):
        return [port]
    crosses = seats.switch[beside] != seats.switch[gpu]
    way = ("pcie-up", "pcie-down") if own == "gpu-up" else ("pcie-down", "pcie-up")
    bridge = [
        np.where(crosses, topology.at(kind, seats.switch[end]), none)
        for kind, end in zip(way, (gpu, beside), strict=True)
    ]
    return [port, *bridge]


def _switches(
    topology: Topology, here: Ints, there: Ints, out: Ints, into: Ints, over: int
) -> list[Ints]:
    """Links above the adapters, up to where the two servers meet."""
    t, none = topology, np.full(len(here), -1, dtype=np.int64)
    rails = t.rails if t.aligned else 1
    unit_here, unit_there = here // t.leaf_servers, there // t.leaf_servers
    leaf_here = unit_here * rails + (out if t.aligned else 0)
    leaf_there = unit_there * rails + (into if t.aligned else 0)
    climbs = leaf_here != leaf_there
    columns = [
        np.where(climbs, t.at("leaf-up", leaf_here), none),
        np.where(climbs, t.at("leaf-down", leaf_there), none),
    ]
    pod_here, pod_there = here // t.pod_servers, there // t.pod_servers
    beyond = pod_here != pod_there
    if t.has("pod-up"):
        columns += [
            np.where(beyond, t.at("pod-up", pod_here), none),
            np.where(beyond, t.at("pod-down", pod_there), none),
        ]
    if t.has("global") and over < 0:
        columns.append(np.where(beyond, t.at("global", pod_here, pod_there), none))
    elif t.has("global"):
        detour = beyond & (pod_here != over) & (pod_there != over)
        direct = np.where(beyond, t.at("global", pod_here, pod_there), none)
        columns += [
            np.where(detour, t.at("global", pod_here, over), direct),
            np.where(detour, t.at("global", over, pod_there), none),
        ]
    return columns


def _no_way(topology: Topology, start: Ints, end: Ints, flow: int, table: Ints) -> None:
    lost = np.flatnonzero(topology.capacity_bytes_per_s <= 0.0)
    crossed = [int(link) for link in table[:1].ravel() if link >= 0 and link in lost]
    names = [link_name(topology, number) for number in crossed or [int(x) for x in lost[:4]]]
    raise InputError(
        f"network: no way is left from GPU {start[flow]} to GPU {end[flow]}: "
        f"lost {', '.join(names)}"
    )


def _torus(topology: Topology, start: Ints, end: Ints, flows: Ints) -> tuple[Entries, Ints]:
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
) -> tuple[Entries, Bools]:
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
