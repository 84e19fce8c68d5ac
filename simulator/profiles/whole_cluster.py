"""How many GPUs show the network of a cluster as a whole."""

from __future__ import annotations

from simulator import catalogue
from simulator.files import read_profile
from simulator.hardware.cluster import ClusterProfile, load_node
from simulator.hardware.edge_list import edges_of, endpoint


def whole_gpus(name: str) -> int:
    """GPUs of all servers that a profile lists cables of; else of two leaves, or two pods."""
    path = catalogue.find("clusters", name, where="command line", field="cluster")
    profile = read_profile(ClusterProfile, path, kind="clusters")
    node = load_node(profile.node, where=str(path), field="node")
    edges = edges_of(profile.topology, path)
    if edges:
        ends = (endpoint(end).server for edge in edges for end in (edge.end_a, edge.end_b))
        return (1 + max(ends)) * node.accelerators
    servers = 2 * (profile.fabric.pod_servers or profile.fabric.leaf_servers)
    gpus = max(servers * node.accelerators, 2 * node.scale_up.domain)
    return min(gpus, profile.largest or gpus)
