"""Which models, clusters and software are put together for the self-check."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from simulator import catalogue
from simulator.errors import InputError
from simulator.hardware.accelerator import Platform
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.records import dataclass
from simulator.software.software_section import running_on
from simulator.workload import presets


@dataclass(frozen=True, slots=True)
class Combination:
    """Names of one scenario."""

    model: str
    cluster: str
    software: str


def every_pair() -> list[Combination]:
    """Every model on every cluster, software taken in turn.

    The turn moves by one with every model and every cluster on which the same software runs,
    so that every one of these meets every model and every such cluster: all pairs of the three are
    there, where there are as many such clusters as software.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for cluster in catalogue.names("clusters"):
        alike.setdefault(_software_for(cluster), []).append(cluster)
    return [
        Combination(model, cluster, runs[(i + j) % len(runs)])
        for i, model in enumerate(presets.names())
        for runs, clusters in alike.items()
        for j, cluster in enumerate(clusters)
        if runs
    ]


def one_of_each() -> list[Combination]:
    """Every model, every cluster and every software once at least: as many as the longest list."""
    models, clusters = presets.names(), catalogue.names("clusters")
    left = set(catalogue.names("software"))
    found = []
    for i in range(max(len(models), len(clusters))):
        cluster = clusters[i % len(clusters)]
        runs = _software_for(cluster)
        if not runs:
            continue
        new = [name for name in runs if name in left]
        software = (new or runs)[i % len(new or runs)]
        left.discard(software)
        found.append(Combination(models[i % len(models)], cluster, software))
    return found


def own_profiles() -> list[Combination]:
    """Every pair in which a cluster or software of the user's own takes part."""
    own = {kind: _own(kind) for kind in ("clusters", "software")}
    return [
        one
        for one in every_pair()
        if one.cluster in own["clusters"] or one.software in own["software"]
    ]


def _own(kind: str) -> set[str]:
    folders: Sequence[Path] = catalogue.user_folders()
    return {path.stem for place in folders for path in (place / kind).glob("*.toml")}


@lru_cache(maxsize=512)
def _software_for(cluster: str) -> tuple[str, ...]:
    """Software profiles that run on a cluster's devices; none where the profile is broken."""
    try:
        platform = load_cluster(cluster, 1).accelerator.platform
    except InputError:
        return ()
    return _running_on(platform)


@lru_cache(maxsize=8)
def _running_on(platform: Platform) -> tuple[str, ...]:
    return tuple(running_on(platform))


def whole_servers(cluster: str, servers: int = 2) -> int:
    """Accelerators of so many servers of a cluster."""
    found: Cluster = load_cluster(cluster, 1)
    return servers * found.node.accelerators
