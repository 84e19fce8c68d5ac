"""Files that describe a network: edges of our own, outputs of ibnetdiscover and nvidia-smi.

In the output of ``ibnetdiscover`` a node begins with ``Switch``, ``Ca`` or ``Rt``, its number of
ports, its GUID in quotes and, after ``#``, its description; a line for each connected port follows:
``[port] "peer GUID"[peer port]``, and at its end width and speed (``4xNDR``). Every cable stands
under both its ends (man page ibnetdiscover(8), "Topology file format"). Of an adapter the
description is host and device.

Cells of the matrix of ``nvidia-smi topo -m`` say how two devices of a server are joined: ``NV#`` by
so many NVLinks; else by the lowest thing that both are under: PIX one PCIe bridge, PXB several, PHB
a host bridge, NODE a NUMA node, SYS the processors (SOC in old releases). Where GPUs would need
more links than they have for one pair each, NVLink leads to a switch. Adapters that are no GPU's
nearest (for storage, for management) are left out.
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
        edges += _servers_of_matrix(path, node, count)
    check_edges(edges, " + ".join(map(str, paths)))
    return tuple(edges), servers


def _servers_of_matrix(path: Path, node: str, servers: int) -> tuple[Edge, ...]:
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


LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""What two devices are both under, the lowest first."""

MOST_NVLINKS = 18
"""NVLinks of a GPU (H100, B200); those before had fewer."""

_PLACES = {
    "PIX": "PCIe switch", "PXB": "PCIe bridges", "PHB": "host bridge", "NODE": "NUMA node",
    "SYS": "processors",
}  # fmt: skip
_DEVICE = re.compile(r"GPU\d+|NIC\d+|(?:mlx|hfi|bnxt|irdma|efa)\w*_\d+")
_UNDERLINED = re.compile(r"\x1b\[[\d;]*m")

Cells = dict[tuple[str, str], str]


def is_nvidia_topology(text: str) -> bool:
    """Tell whether a text is such a matrix."""
    return _header(text.splitlines()) is not None


def topology_words(text: str) -> tuple[int, bool]:
    """GPUs of a matrix, and whether NVLink joins any two."""
    lines = [_UNDERLINED.sub("", line).split() for line in text.splitlines()]
    start = _header(text.splitlines())
    names = (
        [] if start is None else [word for word in lines[start] if re.fullmatch(r"GPU\d+", word)]
    )
    rows = [words for words in lines if words and words[0] in names]
    return len(set(names)), any(re.fullmatch(r"NV\d+", word) for words in rows for word in words)


@dataclass(frozen=True, slots=True)
class SeenLinks:
    """What a matrix shows of a server."""

    gpus: int
    adapters: int
    """Those that are a GPU's nearest."""
    joined: int
    """GPUs that NVLink joins with one another; 1: none."""
    nvlinks: dict[str, int]
    """NVLinks of each GPU."""
    apart: tuple[tuple[str, str], ...]
    """Pairs of GPUs, joined by way of others, that no NVLink joins directly."""


def seen_links(path: Path | str) -> SeenLinks:
    """Count what a matrix shows: GPUs, their NVLinks, the groups that these join.

    Raises
    ------
    InputError
        As :func:`read_nvidia_topology`; if NVLink joins groups of unlike sizes, or a GPU by more
        links than there are.
    """
    devices, cells = _matrix(path)
    gpus = [name for name in devices if name.startswith("GPU")]
    nics = _near_gpus(gpus, [name for name in devices if name not in gpus], cells)
    wires = {
        (a, b): int(cells[a, b][2:])
        for a in gpus
        for b in gpus
        if a != b and cells[a, b].startswith("NV")
    }
    groups: list[set[str]] = []
    for gpu in gpus:
        near = {gpu, *(b for a, b in wires if a == gpu)}
        joined = [group for group in groups if group & near]
        groups = [group for group in groups if group not in joined]
        groups.append(near.union(*joined))
    sizes = sorted({len(group) for group in groups})
    if len(sizes) > 1:
        said = " and ".join(map(str, sizes))
        raise InputError(f"{path}: NVLink joins groups of {said} GPUs: --domain N says which count")
    total = {gpu: sum(n for (a, _), n in wires.items() if a == gpu) for gpu in gpus}
    if max(total.values(), default=0) > MOST_NVLINKS:  # all lead to a switch
        if len(counts := sorted(set(wires.values()))) > 1:
            unlike = " and ".join(f"NV{count}" for count in counts)
            raise InputError(
                f"{path}: {unlike} are more than the {MOST_NVLINKS} NVLinks that a GPU has, and"
                " through a switch all pairs have as many: which are right?"
            )
        total = {gpu: max(n for (a, _), n in wires.items() if a == gpu) for gpu in gpus}
    apart = tuple(
        (a, b)
        for group in groups
        for a in sorted(group)
        for b in sorted(group)
        if a < b and (a, b) not in wires
    )
    return SeenLinks(len(gpus), len(nics), sizes[0] if sizes else 1, total, apart)


def _header(lines: list[str]) -> int | None:
    """The line that names the columns."""
    for number, line in enumerate(lines):
        words = _UNDERLINED.sub("", line).split()
        if words[:1] == ["GPU0"] and (len(words) == 1 or words[1] != "X"):
            return number
    return None


def read_nvidia_topology(
    path: Path | str, *, nvlink_bytes_per_s: float, pcie_bytes_per_s: float, servers: int = 1
) -> tuple[Edge, ...]:
    """Read the inside of a server, the same for several.

    Parameters
    ----------
    path : path
    nvlink_bytes_per_s : float
        Rate of all NVLinks of a GPU, one direction.
    pcie_bytes_per_s : float
        Rate of the PCIe lanes of a device.
    servers : int
        Servers that are so.

    Raises
    ------
    InputError
        If the matrix is not whole, a word is unknown, or two cells contradict each other.
    """
    devices, cells = _matrix(path)
    gpus = [name for name in devices if name.startswith("GPU")]
    nics = _near_gpus(gpus, [name for name in devices if name not in gpus], cells)
    ends = {name: f"gpu {{}}.{i}" for i, name in enumerate(gpus)}
    ends |= {name: f"adapter {{}}.{i}" for i, name in enumerate(nics)}
    lines = _nvlinks(gpus, cells, nvlink_bytes_per_s)
    lines += _tree([*gpus, *nics], cells, pcie_bytes_per_s)
    return tuple(
        Edge(
            end_a=ends.get(a, a).format(server),
            end_b=ends.get(b, b).format(server),
            bytes_per_s=rate,
            count=count,
        )
        for server in range(servers)
        for a, b, rate, count in lines
    )


def _matrix(path: Path | str) -> tuple[list[str], Cells]:
    lines = read_text(path).splitlines()
    start = _header(lines)
    if start is None:
        raise InputError(f"{path}: no line names the columns, GPU0 and on")
    devices = [w for w in _UNDERLINED.sub("", lines[start]).split() if _DEVICE.fullmatch(w)]
    cells: Cells = {}
    wrong: list[str] = []
    for number, line in enumerate(lines[start + 1 :], start + 2):
        row, *words = line.split() or [""]
        if row not in devices or (row, row) in cells:
            continue
        if len(words) < len(devices):
            rule = f"must have {len(devices)} cells, got {len(words)}"
            wrong.append(f"{path}: line {number}: {row}: {rule}")
            continue
        for column, word in zip(devices, words, strict=False):
            cells[row, column] = word = "SYS" if word == "SOC" else word
            if not (word == "X" if row == column else _is_known(word)):
                known = ", ".join(("X", "NV#", *LEVELS))
                said = f"unknown word {word!r} (known: {known})"
                wrong.append(f"{path}: line {number}: {row}, {column}: {said}")
    missing = [name for name in devices if not any(name == row for row, _ in cells)]
    if missing and not wrong:
        wrong.append(f"{path}: no row of {', '.join(missing)}: cut off?")
    wrong += [
        f"{path}: {a}, {b}: must be as {b}, {a}, {cells[b, a]}, got {word}"
        for (a, b), word in cells.items()
        if a < b and not wrong and cells[b, a] != word
    ]
    if wrong:
        raise InputError(wrong[:10])
    return devices, cells


def _is_known(word: str) -> bool:
    return word in LEVELS or bool(re.fullmatch(r"NV\d{1,2}", word))


def _near_gpus(gpus: list[str], nics: list[str], cells: Cells) -> list[str]:
    """Adapters that are a GPU's nearest."""
    near: set[str] = set()
    for gpu in gpus:
        levels = {nic: LEVELS.index(cells[gpu, nic]) for nic in nics}
        near |= {nic for nic, level in levels.items() if level == min(levels.values())}
    return [nic for nic in nics if nic in near]


def _nvlinks(gpus: list[str], cells: Cells, rate: float) -> list[tuple[str, str, float, int]]:
    """Wires among GPUs, or from each to the switch."""
    links = {
        (a, b): int(cells[a, b][2:])
        for i, a in enumerate(gpus)
        for b in gpus[i + 1 :]
        if cells[a, b].startswith("NV")
    }
    if not links:
        return []
    most = max(sum(n for pair, n in links.items() if gpu in pair) for gpu in gpus)
    if most <= MOST_NVLINKS:
        return [(a, b, rate / most, n) for (a, b), n in links.items()]
    link = max(links.values())
    return [(gpu, "nvswitch {}", rate / link, link) for gpu in gpus]


def _tree(devices: list[str], cells: Cells, rate: float) -> list[tuple[str, str, float, int]]:
    """PCIe switches, host bridges and processors above the devices.

    Every device has a slot, so that a way over PCIe is longer than one over NVLink. Above a host
    bridge there is as much room as what hangs on it can use.
    """
    lines = [(name, f"slot {{}} {name}", rate, 1) for name in devices]
    top = {name: f"slot {{}} {name}" for name in devices}
    room = dict.fromkeys(top.values(), 1)
    for depth, level in enumerate(LEVELS):
        for number, group in enumerate(_under(devices, cells, LEVELS[: depth + 1])):
            below = list(dict.fromkeys(top[name] for name in group))
            if len(below) > 1:
                above = f"{_PLACES[level]} {{}}.{number}"
                lines += [(name, above, rate, room[name]) for name in below]
                room[above] = sum(room[name] for name in below) if depth > 1 else 1
                top |= dict.fromkeys(group, above)
    return lines


def _under(devices: list[str], cells: Cells, levels: tuple[str, ...]) -> list[list[str]]:
    """Devices that have one of these levels in common, directly or by another device."""
    groups: list[list[str]] = []
    for name in devices:
        joined = [group for group in groups if any(cells[name, x] in levels for x in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([x for group in joined for x in group] + [name])
    return groups
