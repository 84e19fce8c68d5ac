"""The cables of a cluster as a user lists them: ``[topology]`` of a cluster profile, or a CSV file.

An end of a cable is ``gpu SERVER.INDEX``, ``adapter SERVER.INDEX`` (both counted from 0, servers in
the order of ranks) or any other name: that of a switch. A run takes the first servers listed.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen

from simulator.errors import InputError, nearest, problem
from simulator.files import Number, Whole, build, check_header, read_csv, record
from simulator.plain_files import write_files
from simulator.records import dataclass

COLUMNS = ("end_a", "end_b", "bytes_per_s", "latency_s", "count")
"""Of a CSV file; the last two may be left out."""

MOST_EDGES = 200_000
"""Edges that are read; the fabric of 32,768 GPUs has about 100,000."""

_SHOWN = 6
"""Problems of one kind that are named before the rest are only counted."""

_SERVER_END = re.compile(r"(gpu|adapter) (\d{1,6})\.(\d{1,4})")
_LIKE_SERVER_END = re.compile(r"(gpu|adapter|nic)s?[\s_-]*\d", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
_SWITCH = re.compile(r"\w(?: ?[\w.:;/+()#-])*")


@record
class Edge:
    """Equal cables between two ends, each as fast either way at the same time."""

    end_a: Annotated[str, MaxLen(100)]
    """``gpu 3.1`` is GPU 1 of server 3, ``adapter 3.1`` its adapter 1, any other name a switch."""
    end_b: Annotated[str, MaxLen(100)]
    bytes_per_s: Annotated[Number, Gt(0)]
    """Rate of one cable, one direction."""
    latency_s: Annotated[Number, Ge(0)] = 0.0
    """Of one crossing. Only shown: calls take the latencies of the collective library."""
    count: Annotated[Whole, Gt(0), Le(10_000)] = 1
    """Cables side by side."""


@record
class TopologySection:
    """``[topology]`` of a cluster profile: the network as it is cabled."""

    file: str | None = None
    """CSV file of edges, beside the profile."""
    edges: tuple[Edge, ...] = ()
    """The edges themselves, ``[[topology.edges]]``, where there is no file."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What an end of a cable is."""

    kind: Literal["gpu", "adapter", "switch"]
    server: int = -1
    """-1 of switches."""
    index: int = -1
    """Place in the server, -1 of switches."""


@lru_cache(maxsize=1 << 18)
def endpoint(name: str) -> Endpoint:
    """Read the name of an end.

    Examples
    --------
    >>> endpoint("adapter 3.1")
    Endpoint(kind='adapter', server=3, index=1)
    >>> endpoint("spine 2").kind
    'switch'
    """
    if match := _SERVER_END.fullmatch(name):
        kind, server, index = match.groups()
        return Endpoint("gpu" if kind == "gpu" else "adapter", int(server), int(index))
    return Endpoint("switch")


def read_edges(path: Path | str) -> tuple[Edge, ...]:
    """Read a CSV file of edges; the columns are those of `Edge`.

    Raises
    ------
    InputError
        With everything that is wrong, each with its line.
    """
    edges: list[Edge] = []
    wrong: list[str] = []
    for line, row in read_csv(path):
        if not edges and not wrong:
            check_header(path, row, required=COLUMNS[:3], known=COLUMNS)
        _within_limit(len(edges), str(path))
        try:
            cells = {name: _value(name, cell) for name, cell in row.items() if cell.strip()}
            edges.append(build(Edge, cells, where=f"{path}: line {line}"))
        except InputError as error:
            wrong += error.problems
    if wrong:
        raise InputError(_first(wrong, f"{path}: lines"))
    return _checked(edges, str(path))


def _value(name: str, cell: str) -> Any:
    """A cell as what its column holds; what cannot be converted stays a word, for the rule."""
    if name.startswith("end_"):
        return cell.strip()
    try:
        return int(cell) if name == "count" else float(cell)
    except ValueError:
        return cell


def edges_of(section: TopologySection | None, profile: Path) -> tuple[Edge, ...]:
    """Edges that a cluster profile states or names a file of; none where it has no such section."""
    if section is None:
        return ()
    where = f"{profile}: topology"
    if (section.file is None) == (not section.edges):
        raise InputError(f"{where}: must have either file or edges")
    if section.file is not None:
        return read_edges(profile.parent / section.file)
    return _checked(section.edges, where)


def _checked(edges: Sequence[Edge], where: str) -> tuple[Edge, ...]:
    _within_limit(len(edges) - 1, where)
    check_edges(edges, where)
    return tuple(edges)


def _within_limit(number: int, where: str) -> None:
    if number >= MOST_EDGES:
        raise InputError(f"{where}: edges: must be at most {MOST_EDGES}")


def check_edges(edges: Sequence[Edge], where: str) -> None:
    """Refuse ends that are none, cables from an end to itself, switches that nothing passes.

    Raises
    ------
    InputError
        With all of them; a name that is near is given.
    """
    if not edges:
        raise InputError(f"{where}: edges: must be at least one")
    cables: Counter[str] = Counter()
    for edge in edges:
        cables.update((edge.end_a, edge.end_b))
    wrong = [text for name in cables if (text := _name_problem(name, cables))]
    wrong += [
        problem("edges", "end_b", "must be another end than end_a", edge.end_b)
        for edge in edges
        if edge.end_a == edge.end_b
    ]
    if wrong:
        raise InputError(f"{where}: {text}" for text in _first(wrong, "edges"))


def _name_problem(name: str, cables: Counter[str]) -> str | None:
    if endpoint(name).kind != "switch":
        return None
    if _LIKE_SERVER_END.match(name):
        numbers = [*re.findall(r"\d+", name), "0"][:2]
        kind = "gpu" if name[:1].lower() == "g" else "adapter"
        near = f" (nearest: '{kind} {'.'.join(numbers)}')"
        return problem("edges", "end", f"must be named like '{kind} SERVER.INDEX'", name) + near
    if not _SWITCH.fullmatch(name):
        rule = "must be letters, digits, single blanks and any of . : ; / + ( ) # - _"
        return problem("edges", "end", rule, name)
    switches = [other for other in cables if other != name and endpoint(other).kind == "switch"]
    series = {_DIGITS.sub("", other) for other in switches}
    alone = cables[name] == 1 and _DIGITS.sub("", name) not in series
    if alone and (near := nearest(name, switches)):
        return f"edges: {name!r} stands once only, so that nothing passes it{near}"
    return None


def is_switch_name(name: str) -> bool:
    """Whether a switch can be called so."""
    return bool(_SWITCH.fullmatch(name)) and not _LIKE_SERVER_END.match(name) and len(name) <= 100


def write_edges(edges: Iterable[Edge], path: Path) -> None:
    """Write edges as a CSV file that `read_edges` reads."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows([getattr(edge, name) for name in COLUMNS] for edge in edges)
    write_files({path: text.getvalue().encode()})


def _first(wrong: Sequence[str], what: str) -> list[str]:
    """Some problems, and how many more there are."""
    more = len(wrong) - _SHOWN
    return [*wrong[:_SHOWN], *([f"{what}: {more} more of this kind"] if more > 0 else [])]


def of_servers(edges: Iterable[Edge], servers: int) -> list[Edge]:
    """Edges of which no end belongs to a server beyond the first so many."""
    return [
        edge
        for edge in edges
        if endpoint(edge.end_a).server < servers and endpoint(edge.end_b).server < servers
    ]


def has_gpus(edges: Iterable[Edge]) -> bool:
    """Whether cables inside servers are listed, too."""
    return any("gpu" in (endpoint(edge.end_a).kind, endpoint(edge.end_b).kind) for edge in edges)


@dataclass(frozen=True, kw_only=True, slots=True)
class Servers:
    """The servers that edges must join."""

    gpus: int
    """Of all."""
    domain: int
    """GPUs of a scale-up domain."""
    accelerators: int
    """Of a server."""
    adapters: int
    """Of a server."""

    @property
    def count(self) -> int:
        """Servers."""
        return -(-self.gpus // self.accelerators)

    def gpu(self, number: int) -> str:
        """Name of a GPU as an end of a cable."""
        return f"gpu {number // self.accelerators}.{number % self.accelerators}"


def check_servers(edges: Sequence[Edge], servers: Servers, where: str) -> None:
    """Refuse edges that do not join these servers.

    Raises
    ------
    InputError
        If an end is not on its server, one has no cable, or there is no way between two GPUs.
    """
    used = of_servers(edges, servers.count)
    names = dict.fromkeys(name for edge in used for name in (edge.end_a, edge.end_b))
    most = {"gpu": servers.accelerators, "adapter": servers.adapters}
    wrong = []
    for name in names:
        end = endpoint(name)
        if end.kind != "switch" and end.index >= most[end.kind]:
            rule = f"must be one of the {most[end.kind]} that a server has"
            near = f" (nearest: '{end.kind} {end.server}.{most[end.kind] - 1}')"
            wrong.append(problem("edges", "end", rule, name) + near)
    wrong += _without_cable(set(names), servers, has_gpus(used))
    if not wrong:
        wrong = list(_apart(used, servers))
    if wrong:
        raise InputError(f"{where}: {text}" for text in _first(wrong, "edges"))


def _without_cable(names: set[str], servers: Servers, wired: bool) -> list[str]:
    """Adapters of several servers without a cable; GPUs, where any GPU has one."""
    listed = 1 + max((endpoint(name).server for name in names), default=-1)
    if listed < servers.count:
        return [f"edges: must list the {servers.count} servers of the run, got {listed}"]
    wanted = [servers.gpu(number) for number in range(servers.gpus if wired else 0)]
    if servers.count > 1:
        pairs = product(range(servers.count), range(servers.adapters))
        wanted += [f"adapter {server}.{index}" for server, index in pairs]
    return [f"edges: no cable leads to {name!r}" for name in wanted if name not in names]


def _apart(edges: Sequence[Edge], servers: Servers) -> Iterator[str]:
    """Servers without a way to the first one, GPUs without a way to the first of their domain."""
    if has_gpus(edges):
        part = _parts((edge.end_a, edge.end_b) for edge in edges if not _is_network(edge))
        alone = [
            servers.gpu(number)
            for number in range(servers.gpus)
            if part[servers.gpu(number)] != part[servers.gpu(number - number % servers.domain)]
        ]
        for name in alone:
            yield f"edges: no way leads from {name!r} to the first GPU of its domain"
    if servers.count > 1:
        part = _parts((_of_server(edge.end_a), _of_server(edge.end_b)) for edge in edges)
        for server in range(1, servers.count):
            if part[f"server {server}"] != part["server 0"]:
                yield f"edges: no way leads from the GPUs of server 0 to those of server {server}"


def _is_network(edge: Edge) -> bool:
    return "adapter" in (endpoint(edge.end_a).kind, endpoint(edge.end_b).kind)


def _of_server(name: str) -> str:
    """All ends of a server as one: its GPUs hand over what another adapter can send."""
    server = endpoint(name).server
    return name if server < 0 else f"server {server}"


def _parts(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One name of the connected part that each name belongs to."""
    beside: dict[str, list[str]] = {}
    for a, b in pairs:
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    part: dict[str, str] = {}
    for name in beside:
        reached = [] if name in part else [name]
        while reached:
            if (here := reached.pop()) not in part:
                part[here] = name
                reached += beside[here]
    return part
