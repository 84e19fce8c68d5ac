"""Whether a profile can be true: references that resolve, figures within physical limits."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from simulator import catalogue
from simulator.errors import InputError, brief, did_you_mean
from simulator.files import figures, read_toml
from simulator.hardware.cluster import load_library, load_node
from simulator.hardware.edge_list import edges_of
from simulator.hardware.node import wrong_domain
from simulator.profiles import KINDS, load
from simulator.reliability.reliability_profile import wrong_run

MOST = 1.05
"""A share of a limit may pass it by this: clocks boost, data sheets round."""

RATIOS = {
    "backward_fraction": 1.3,
    "pair_fraction": 20.0,
    "fragmentation_fraction": 2.0,
    "time_fraction": 2.0,
    "training_fraction": 1.25,
    "ll_time_fraction": 2.0,
    "tail_fraction": 2.0,
    "link_fraction": 2.0,
}
"""Fractions that are ratios of two rates, and what they stay below: attention's backward over its
forward rate, a pair's over a whole domain's bus bandwidth, idle over used memory, times of two
releases, a training rate over that of timed calls (which may cast inside), the wait at the end of
attention over its longest tile, what expert traffic reaches over the rate of a plain all-to-all."""

LONGEST_LAUNCH_S = 1e-3
"""No device takes longer to start a kernel."""

LONGEST_HOP_S = 1e-2
"""No message takes longer to start."""

_SIGNS = {
    "compute_units": "accelerators",
    "matrix_flop_per_s": "accelerators",
    "scale_up": "nodes",
    "accelerators": "nodes",
    "fabric": "clusters",
    "node": "clusters",
    "ring_base_s": "collectives",
    "launcher": "software",
    "platforms": "software",
    "host": "software",
    "included_power": "prices",
    "usd_per_gpu_hour": "prices",
    "power_usage_effectiveness": "sites",
    "causes": "reliability",
    "tokenizers_bytes_per_s": "inputs",
    "first_byte_s": "stores",
}
"""Field that only profiles of this kind have."""

_TRAINING = "cublas"
"""The library of GEMMs that training calls; serving libraries have some types only."""


def kind_of(path: Path) -> str:
    """Tell what kind of profile a file is: by its folder or, failing that, by what it states.

    Raises
    ------
    InputError
        If neither says.
    """
    if path.parent.name in KINDS:
        return path.parent.name
    raw = read_toml(path)
    found = next((kind for sign, kind in _SIGNS.items() if sign in raw), None)
    if found is None:
        raise InputError(
            f"{path}: cannot tell what kind of profile this is; put it into a folder called one of "
            f"{', '.join(KINDS)}"
        )
    return found


def check(path: Path, kind: str = "") -> list[str]:
    """List everything that is wrong with a profile, each as ``file: field: rule, got value``."""
    try:
        kind = kind or kind_of(path)
        value = load(kind, path).value
    except InputError as error:
        return list(error.problems)
    own = _LIMITS.get(kind)
    shares = [*_evidence(value), *_shares(value), *(own(value) if own is not None else ())]
    if kind == "clusters":
        shares += _topology(value, path)
    return [f"{path}: {problem}" for problem in shares]


def _evidence(value: Any) -> Iterator[str]:
    """Figures without a source or with a date that is none."""
    for name, figure in figures(value):
        if figure.date:
            try:
                datetime.date.fromisoformat(figure.date)
            except ValueError:
                yield f"{name}: date must be year-month-day, got {brief(figure.date)}"
        if figure.source == "":
            yield f"{name}: source must say where the figure is from"
        if figure.grade == "fitted" and figure.source == "user":
            yield f"{name}: a fitted figure needs a source"


def _shares(value: Any) -> Iterator[str]:
    """Fractions above one, kernels that take forever."""
    for name, figure in figures(value):
        last = name.rpartition(".")[2]
        most = RATIOS.get(last, MOST)
        if last.endswith("_fraction") and figure > most:
            yield f"{name}: must be at most {most:g} (a share of a physical limit), got {figure:g}"
        if last == "launch_s" and not 0.0 < figure < LONGEST_LAUNCH_S:
            yield f"{name}: must lie between 0 and {LONGEST_LAUNCH_S:g} seconds, got {figure:g}"


def _accelerator(device: Any) -> Iterator[str]:
    memory, power = device.memory, device.power
    if memory.usable_bytes > MOST * memory.capacity_bytes:
        rule = f"must be at most the capacity, {memory.capacity_bytes:g}"
        yield f"memory.usable_bytes: {rule}, got {memory.usable_bytes:g}"
    if memory.l2_bytes > 0.1 * memory.capacity_bytes:
        yield f"memory.l2_bytes: a cache is smaller than the memory, got {memory.l2_bytes:g}"
    if not 0.0 < power.idle_watt < power.busy_watt:
        rule = f"must be below busy_watt, {power.busy_watt:g}"
        yield f"power.idle_watt: {rule}, got {power.idle_watt:g}"
    if device.generation != "cpu" and not {"bf16", "fp16"} & set(device.matrix_flop_per_s):
        yield "matrix_flop_per_s: must have bf16 or fp16"
    for dtype, peak in device.matrix_flop_per_s.items():
        if not 1e10 < peak < 1e18:
            yield f"matrix_flop_per_s.{dtype}: must be FLOP per second, got {peak:g}"
    for library, types in device.gemm.items():
        for dtype in set(types) - set(device.matrix_flop_per_s):
            yield f"gemm.{library}.{dtype}: has no peak in matrix_flop_per_s"
        missing = set(device.matrix_flop_per_s) - set(types) if library == _TRAINING else set()
        for dtype in missing:
            yield f"gemm.{library}: has no {dtype}, of which matrix_flop_per_s has a peak"
    if not 1e9 < memory.bandwidth_bytes_per_s < 1e14:
        rate = memory.bandwidth_bytes_per_s
        yield f"memory.bandwidth_bytes_per_s: must be bytes per second, got {rate:g}"


def _node(node: Any) -> Iterator[str]:
    yield from _reference("accelerator", "accelerators", node.accelerator)
    if wrong := wrong_domain(node):
        yield wrong
    links = node.scale_up
    wires = links.bandwidth_bytes_per_s
    limits = {
        "bus_bytes_per_s": wires,
        "send_bytes_per_s": wires,
        "all_to_all_bytes_per_s": wires,
        "nvls_bytes_per_s": 2.0 * wires,  # reduction in the switch halves the traffic
    }
    for name, most in limits.items():
        rate = getattr(links, name, None)
        if rate is not None and not 0.0 < rate <= MOST * most:
            rule = f"must be at most {most:g}, what the links carry"
            yield f"scale_up.{name}: {rule}, got {rate:g}"
    if links.domain % node.accelerators:
        rule = f"must be a multiple of the server's {node.accelerators} accelerators"
        yield f"scale_up.domain: {rule}, got {links.domain}"
    if links.torus and math.prod(links.torus) != links.domain:
        shape = " x ".join(str(length) for length in links.torus)
        rule = f"must multiply to the domain's {links.domain} accelerators"
        yield f"scale_up.torus: {rule}, got {shape} = {math.prod(links.torus)}"
    under = links.pcie_switch_accelerators
    if under is not None and node.accelerators % under:
        rule = f"must divide the server's {node.accelerators} accelerators"
        yield f"scale_up.pcie_switch_accelerators: {rule}, got {under}"


def _cluster(cluster: Any) -> Iterator[str]:
    for field, kind in (("node", "nodes"), ("price", "prices"), ("collectives", "collectives")):
        yield from _reference(field, kind, getattr(cluster, field))
    if cluster.fabric.oversubscription < 1.0:
        got = cluster.fabric.oversubscription
        yield f"fabric.oversubscription: must be at least 1 (non-blocking), got {got:g}"
    yield from _pods(cluster.fabric)
    try:
        link = load_node(cluster.node).scale_up.kind
        library = load_library(cluster.collectives)
    except InputError:
        return  # said above, or by the check of that file
    if link not in library.ring_hop_s:
        yield f"collectives: {library.name} has no latencies of {link} links"


def _topology(cluster: Any, path: Path) -> Iterator[str]:
    """What is wrong with the cables of a cluster, of all servers that they join."""
    try:
        edges_of(cluster.topology, path)
    except InputError as error:
        yield from (problem.removeprefix(f"{path}: ") for problem in error.problems)


def _pods(fabric: Any) -> Iterator[str]:
    pod, leaf = fabric.pod_servers, fabric.leaf_servers
    if pod is None and fabric.topology == "dragonfly":
        yield "fabric.pod_servers: a dragonfly must have it, the servers of one group"
    if pod is not None and pod % leaf:
        whole = max(round(pod / leaf), 1) * leaf
        rule = f"must be a multiple of leaf_servers, {leaf}"
        yield f"fabric.pod_servers: {rule}, got {pod} (nearest: {whole})"
    if fabric.pod_oversubscription < 1.0:
        rule = "must be at least 1 (non-blocking)"
        yield f"fabric.pod_oversubscription: {rule}, got {fabric.pod_oversubscription:g}"


def _price(price: Any) -> Iterator[str]:
    yield from _reference("site", "sites", price.site)
    usd = price.usd_per_gpu_hour
    if usd is not None and not 0.0 < usd < 1000.0:
        yield f"usd_per_gpu_hour: must be US dollars for one accelerator and hour, got {usd:g}"


def _site(site: Any) -> Iterator[str]:
    ratio = site.power_usage_effectiveness
    if not 1.0 <= ratio < 5.0:
        yield f"power_usage_effectiveness: must be at least 1, got {ratio:g}"


def _reliability(run: Any) -> Iterator[str]:
    yield from (text.removeprefix("profile: run.") for text in wrong_run(run, "profile"))


def _library(library: Any) -> Iterator[str]:
    for name, figure in figures(library):
        first = name.partition(".")[0]
        seconds = first.endswith("_s") and not first.endswith("_per_s")
        if seconds and figure > LONGEST_HOP_S:
            yield f"{name}: must be seconds (microseconds are e-6), got {figure:g}"


def _reference(field: str, kind: str, name: str) -> Iterator[str]:
    try:
        catalogue.find(kind, name)
    except InputError:
        what = kind.removesuffix("s")
        yield f"{field}: unknown {what} {name!r}{did_you_mean(name, catalogue.names(kind))}"


_LIMITS: dict[str, Callable[[Any], Iterator[str]]] = {
    "accelerators": _accelerator,
    "nodes": _node,
    "clusters": _cluster,
    "prices": _price,
    "sites": _site,
    "collectives": _library,
    "reliability": _reliability,
}
