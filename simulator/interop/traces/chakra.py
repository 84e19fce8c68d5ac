"""A simulated step as Chakra execution traces of MLCommons, one a simulated rank.

Messages as in mlcommons/chakra@6dc63e14, schema/protobuf/et_def.proto: a file is GlobalMetadata and
then nodes, each with its length before it. A node is a span: it waits for the span before it on its
own stream, and for the one that ended last on another stream of its rank. A pass that waits for a
send of another rank has a receiving node with the tag of that send. Kinds of collectives are told
where the span says them; bytes are not in a played step, durations are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simulator.events.played import SimulatedStep
from simulator.events.step.streams import SPAN_KINDS, STREAMS
from simulator.events.step.timeline import Timeline

_MEM_LOAD, _MEM_STORE, _COMP, _SEND, _RECV, _COLL = 2, 3, 4, 5, 6, 7
_TYPES = {
    "collective": _COLL, "exchange": _COLL, "dispatch": _COLL, "combine": _COLL, "gather": _COLL,
    "reduce": _COLL, "send": _SEND, "receive": _RECV, "offload": _MEM_STORE, "fetch": _MEM_LOAD,
    "input": _MEM_LOAD,
}  # fmt: skip
"""NodeType of a kind of span; COMP_NODE otherwise."""

_COLLECTIVES = {"gather": 2, "dispatch": 6, "combine": 6}
"""CollectiveCommType where the kind of span says it: ALL_GATHER, ALL_TO_ALL."""

_VARINT, _DOUBLE, _BYTES = 0, 1, 2
_MICROSECONDS = 1e6


def chakra_traces(step: SimulatedStep) -> dict[str, bytes]:
    """Return the trace of every simulated rank by its name, ``step.0`` and on."""
    line = step.timeline
    sends = {int(sent): number for number, (sent, _) in enumerate(line.flows)}
    awaited: dict[int, list[int]] = {}
    for number, (_, waits) in enumerate(line.flows):
        awaited.setdefault(int(waits), []).append(number)
    found = {}
    for rank in np.unique(line.rank).tolist():
        about = {
            "simulated_rank": rank,
            "gpus_alike": int(line.ranks_of[rank]),
            "step_time_s": step.step_time_s,
        }
        head = _field(1, "0.0.4") + b"".join(_field(2, _attribute(k, v)) for k, v in about.items())
        nodes = _nodes(line, rank, sends, awaited)
        found[f"step.{rank}"] = b"".join(_delimited(raw) for raw in (head, *nodes))
    return found


def _nodes(
    line: Timeline, rank: int, sends: Mapping[int, int], awaited: Mapping[int, list[int]]
) -> Iterator[bytes]:
    """Nodes of a rank in the order of their start."""
    rows = np.flatnonzero(line.rank == rank)
    rows = rows[np.lexsort((line.end_s[rows], line.start_s[rows]))]
    after = len(line)  # numbers of receiving nodes come behind those of spans
    last: dict[int, int] = {}
    ended: list[tuple[float, int, int]] = []
    for row in rows.tolist():
        stream, kind = int(line.stream[row]), SPAN_KINDS[line.kind[row]]
        waits = []
        for number in awaited.get(row, ()):
            waits.append(after + number)
            yield _receive(line, number, after)
        start, end = float(line.start_s[row]), float(line.end_s[row])
        others = [x for x in ended if x[1] != stream and x[0] <= start + 1e-12]
        if others:
            waits.append(max(others)[2])
        attributes: dict[str, Any] = {"is_cpu_op": False, "stream": STREAMS[stream]}
        if kind in _COLLECTIVES:
            attributes["comm_type"] = _COLLECTIVES[kind]
        if row in sends:
            target = int(line.rank[line.flows[sends[row]][1]])
            attributes |= {"comm_src": rank, "comm_dst": target, "comm_tag": sends[row]}
        name = kind if line.micro_batch[row] < 0 else f"{kind} {int(line.micro_batch[row])}"
        before = [last[stream]] if stream in last else []
        kind_of_node = _TYPES.get(kind, _COMP)
        when = start, end - start
        yield _node(row, name, kind_of_node, before, waits, when=when, attributes=attributes)
        last[stream] = row
        ended = [x for x in ended if x[1] != stream] + [(end, stream, row)]


def _receive(line: Timeline, number: int, after: int) -> bytes:
    """The node that ends when what another rank sends has arrived."""
    sent, waits = (int(x) for x in line.flows[number])
    source, own = int(line.rank[sent]), int(line.rank[waits])
    attributes = {"is_cpu_op": False, "comm_src": source, "comm_dst": own, "comm_tag": number}
    when = float(line.end_s[sent]), 0.0
    return _node(after + number, "receive", _RECV, [], [], when=when, attributes=attributes)


def _node(
    number: int,
    name: str,
    kind: int,
    before: list[int],
    waits: list[int],
    *,
    when: tuple[float, float],
    attributes: Mapping[str, Any],
) -> bytes:
    start, took = (round(_MICROSECONDS * x) for x in when)
    parts = [_field(1, number), _field(2, name), _field(3, kind)]
    parts += [_field(4, _packed(before))] if before else []
    parts += [_field(5, _packed(waits))] if waits else []
    parts += [_field(6, start), _field(7, took)]
    parts += [_field(10, _attribute(key, value)) for key, value in attributes.items()]
    return b"".join(parts)


def _attribute(name: str, value: Any) -> bytes:
    """AttributeProto: bool_val 27, string_val 29, int64_val 9, double_val 3."""
    if isinstance(value, bool):
        return _field(1, name) + _field(27, int(value))
    if isinstance(value, str):
        return _field(1, name) + _field(29, value)
    if isinstance(value, float):
        return _field(1, name) + _varint(3 << 3 | _DOUBLE) + struct.pack("<d", value)
    return _field(1, name) + _field(9, int(value))


def _field(number: int, value: int | str | bytes) -> bytes:
    """A field of a message: a varint, or bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _delimited(raw)


def _packed(values: list[int]) -> bytes:
    return b"".join(_varint(value) for value in values)


def _delimited(raw: bytes) -> bytes:
    return _varint(len(raw)) + raw


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
