"""Files that describe a network: edges of our own, outputs of ibnetdiscover and nvidia-smi."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from simulator import catalogue
from simulator.errors import InputError
from simulator.hardware.cluster import load_node
from simulator.hardware.edge_list import Edge, check_edges, endpoint, read_edges
from simulator.interop.fabrics.ibnetdiscover import is_ibnetdiscover, read_ibnetdiscover
from simulator.interop.fabrics.nvidia_topo import is_nvidia_topology, read_nvidia_topology
from simulator.plain_files import read_text


def is_profile(name: str) -> bool:
    """Whether a name is that of a cluster profile, not of a file of another kind."""
    named = name.endswith(".toml") or name in catalogue.names("clusters")
    return named or not os.path.isfile(name)


def read_fabric(
    paths: Sequence[Path], *, node: str, hosts: str
) -> tuple[tuple[Edge, ...], tuple[str, ...]]:
    """Edges of all files, and the names of servers where one has them.

    A matrix of `nvidia-smi` stands for every server that the other files have.

    Raises
    ------
    InputError
        If a file is of no known kind or wrong, or a matrix is given without a node.
    """
    edges: list[Edge] = []
    servers: tuple[str, ...] = ()
    matrices = []
    for path in paths:
        text = "" if path.suffix == ".csv" else read_text(path)
        if path.suffix == ".csv":
            edges += read_edges(path)
        elif is_nvidia_topology(text):
            matrices.append(path)
        elif is_ibnetdiscover(text):
            discovered = read_ibnetdiscover(path, hosts=hosts)
            edges += discovered.edges
            servers += discovered.servers
        else:
            kinds = "edges (.csv), ibnetdiscover, nvidia-smi topo -m"
            raise InputError(f"{path}: must be one of: {kinds}")
    ends = (endpoint(name).server for edge in edges for name in (edge.end_a, edge.end_b))
    count = 1 + max(ends, default=0)
    for path in matrices:
        edges += _matrix(path, node, count)
    check_edges(edges, " + ".join(map(str, paths)))
    return tuple(edges), servers


def _matrix(path: Path, node: str, servers: int) -> tuple[Edge, ...]:
    """Edges of a matrix at the rates of a node profile."""
    if not node:
        raise InputError(f"{path}: --node must name a node profile: the matrix has no rates")
    links = load_node(node, where="command line", field="--node")
    up = links.scale_up.bandwidth_bytes_per_s
    copies = links.host_bytes_per_s or up
    return read_nvidia_topology(
        path,
        nvlink_bytes_per_s=float(up),
        pcie_bytes_per_s=float(up if links.scale_up.kind == "pcie" else copies),
        servers=servers,
    )
