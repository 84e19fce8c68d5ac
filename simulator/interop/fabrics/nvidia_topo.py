"""The matrix of ``nvidia-smi topo -m`` as edges inside a server: NVLink wires and the PCIe tree.

Cells say how two devices are joined: ``NV#`` by so many NVLinks; else by the lowest thing that both
are under: PIX one PCIe bridge, PXB several, PHB a host bridge, NODE a NUMA node, SYS the processors
(SOC in old releases). Where GPUs would need more links than they have for one pair each, NVLink
leads to a switch. Adapters that are no GPU's nearest (for storage, for management) are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from simulator.errors import InputError
from simulator.hardware.edge_list import Edge
from simulator.plain_files import read_text
from simulator.records import dataclass

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
