"""Files that describe a network: edges of our own, outputs of ibnetdiscover and nvidia-smi.

In the output of ``ibnetdiscover`` a node begins with ``Switch``, ``Ca`` or ``Rt``, its number of
ports, its GUID in quotes and, after ``#``, its description; a line for each connected port follows:
``[port] "peer GUID"[peer port]``, and at its end width and speed (``4xNDR``). Every cable stands
under both its ends (man page ibnetdiscover(8), "Topology file format"). Of an adapter the
description is host and device.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator import catalogue
from simulator.errors import InputError, did_you_mean
from simulator.hardware.cluster import load_node
from simulator.hardware.edge_list import Edge, check_edges, endpoint, is_switch_name, read_edges
from simulator.interop.fabrics.nvidia_topo import is_nvidia_topology, read_nvidia_topology
from simulator.plain_files import read_text
from simulator.records import dataclass


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


GBIT_PER_S_OF_LANE = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 14.0625 * 64 / 66, "EDR": 25.0,
    "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""Data rate of a lane by InfiniBand generation, after 8b/10b or 64b/66b coding."""

_NODE = re.compile(r'(Switch|Ca|Rt)\s+\d+\s+"([SHR]-[0-9a-fA-F]{1,16})"\s*#\s*"([^"]*)"')
_PORT = re.compile(
    r'\[(\d+)\](?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?\s+"([SHR]-[0-9a-fA-F]{1,16})"'
    r"\[(\d+)\].*\s(\d+)x([A-Z]+\d*)\b"
)
_REST = re.compile(
    r"\s*$|#|\w+=|Non-Chassis Nodes|Chassis \d|Line |Spine |\s*\d+x",
)
"""Lines without a cable: comments, identifiers, headings of chassis."""
_NO_ADAPTER = ("aggregation node", "sharp")
"""Words in the description of what a switch reduces with, which looks like an adapter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovered:
    """A fabric as it was discovered."""

    edges: tuple[Edge, ...]
    servers: tuple[str, ...]
    """Name of each server, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class _Cable:
    ends: tuple[tuple[str, int], tuple[str, int]]
    """GUID and port of both ends, the lower first."""
    bytes_per_s: float


def is_ibnetdiscover(text: str) -> bool:
    """Tell whether a text is such an output."""
    return any(_NODE.match(line) for line in text.splitlines())


def read_ibnetdiscover(path: Path | str, *, hosts: str = ".*") -> Discovered:
    """Read a fabric; servers are numbered in the order of their names, adapters of their devices.

    Parameters
    ----------
    path : path
    hosts : str
        Regular expression that the names of servers match; adapters of others are left out.

    Raises
    ------
    InputError
        If a line cannot be read, or a node is missing, as at the end of a file that was cut off.
    """
    names, cables = _read(path)
    adapters = _adapters(names, hosts, str(path))
    ends = {guid: name for guid, (name, _) in adapters.items()} | _switches(names)
    bundles: Counter[tuple[str, str, float]] = Counter()
    for cable in cables:
        guids = [guid for guid, _ in cable.ends]
        if all(guid in ends for guid in guids):
            a, b = (ends[guid] for guid in guids)
            bundles[a, b, cable.bytes_per_s] += 1
    edges = tuple(
        Edge(end_a=a, end_b=b, bytes_per_s=rate, count=n) for (a, b, rate), n in bundles.items()
    )
    if not edges:
        raise InputError(f"{path}: no cable between adapters of hosts {hosts!r} and switches")
    return Discovered(edges=edges, servers=tuple(dict.fromkeys(h for _, h in adapters.values())))


def _read(path: Path | str) -> tuple[dict[str, str], list[_Cable]]:
    """Descriptions by GUID, and each cable once."""
    names: dict[str, str] = {}
    cables: dict[_Cable, int] = {}
    wrong: list[str] = []
    here = ""
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if node := _NODE.match(line):
            here = node[2].lower()
            names[here] = node[3].strip()
        elif line.startswith("["):
            wrong += _add_cable(cables, here, line, f"{path}: line {number}")
        elif not _REST.match(line):
            wrong.append(f"{path}: line {number}: not a line of ibnetdiscover, got {line[:60]!r}")
    for guid in sorted({guid for cable in cables for guid, _ in cable.ends} - set(names)):
        wrong.append(f"{path}: {guid}: a cable leads to it, but it is not listed: cut off?")
    if not names:
        wrong.append(f"{path}: no switch and no adapter")
    if wrong:
        raise InputError(wrong[:10])
    return names, list(cables)


def _add_cable(cables: dict[_Cable, int], here: str, line: str, where: str) -> Iterator[str]:
    """Take the cable of a port; or say what is wrong with its line."""
    port = _PORT.match(line)
    if port is None:
        yield f'{where}: must be [port] "GUID"[port] ... width and speed, got {line[:60]!r}'
    elif not here:
        yield f"{where}: a port before any node"
    elif port[5] not in GBIT_PER_S_OF_LANE:
        yield f"{where}: unknown speed {port[5]!r}{did_you_mean(port[5], GBIT_PER_S_OF_LANE)}"
    else:
        a, b = sorted([(here, int(port[1])), (port[2].lower(), int(port[3]))])
        rate = int(port[4]) * GBIT_PER_S_OF_LANE[port[5]] * 1e9 / 8
        cables[_Cable((a, b), rate)] = 1


def _adapters(names: dict[str, str], hosts: str, where: str) -> dict[str, tuple[str, str]]:
    """End and host of each adapter by GUID."""
    try:
        wanted = re.compile(hosts)
    except re.error as error:
        raise InputError(
            f"{where}: hosts: not a regular expression ({error}), got {hosts!r}"
        ) from None
    placed = []
    for guid, description in names.items():
        host, _, device = description.rpartition(" ")
        ignored = any(word in description.lower() for word in _NO_ADAPTER)
        if guid.startswith("h-") and not ignored and wanted.fullmatch(host or device):
            placed.append((host or device, device, guid))
    placed.sort(key=lambda row: ([_natural(word) for word in row[:2]], row[2]))
    server: dict[str, int] = {}
    count: Counter[str] = Counter()
    ends: dict[str, tuple[str, str]] = {}
    for host, _, guid in placed:
        number = server.setdefault(host, len(server))
        ends[guid] = f"adapter {number}.{count[host]}", host
        count[host] += 1
    return ends


def _natural(word: str) -> list[tuple[int, str]]:
    """A key that puts node2 before node10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", word)
    ]


def _switches(names: dict[str, str]) -> dict[str, str]:
    """Name of each switch by GUID: its description where no other has it."""
    twice = Counter(names.values())
    return {
        guid: text if twice[text] == 1 and is_switch_name(text) else f"switch {guid[2:]}"
        for guid, text in names.items()
        if guid.startswith("s-")
    }
