"""Chakra traces decode with Google's protobuf by the published messages, and hold the step."""

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.api import simulate
from simulator.events.step.streams import SPAN_KINDS, STREAMS
from simulator.interop.traces.chakra import _node, chakra_traces

descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")

# mlcommons/chakra@6dc63e14, schema/protobuf/et_def.proto: the fields that are written.
MESSAGES = {
    "AttributeProto": {
        "name": (1, "string"), "double_val": (3, "double"), "int64_val": (9, "int64"),
        "bool_val": (27, "bool"), "string_val": (29, "string"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "AttributeProto*")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "int32"),
        "ctrl_deps": (4, "uint64*"), "data_deps": (5, "uint64*"),
        "start_time_micros": (6, "uint64"), "duration_micros": (7, "uint64"),
        "attr": (10, "AttributeProto*"),
    },
}  # fmt: skip
COMP, SEND, RECV, COLL = 4, 5, 6, 7


def messages() -> dict[str, Any]:
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="c", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            word = kind.rstrip("*")
            made = message.field.add(name=field, number=number, label=3 if kind[-1] == "*" else 1)
            if word[0].isupper():
                made.type, made.type_name = 11, f".c.{word}"
            else:
                made.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{word.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"c.{name}"))
        for name in MESSAGES
    }


def decoded(raw: bytes) -> Iterator[bytes]:
    """Length-delimited pieces of a file."""
    at = 0
    while at < len(raw):
        size = shift = 0
        while True:
            byte = raw[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield raw[at : at + size]
        at += size


def test_a_node_decodes_to_what_it_was_made_of() -> None:
    """Numbers beyond seven bits, lists of them, and an attribute of every type."""
    attributes = {"is_cpu_op": False, "own": True, "comm_src": 300, "word": "é", "share": -0.25}
    raw = _node(
        129, "gradients", COLL, [1, 200], [70_000], when=(0.25, 3.5e-3), attributes=attributes
    )
    node = messages()["Node"].FromString(raw)
    assert (node.id, node.name, node.type) == (129, "gradients", COLL)
    assert (list(node.ctrl_deps), list(node.data_deps)) == ([1, 200], [70_000])
    assert (node.start_time_micros, node.duration_micros) == (250_000, 3_500)
    named = {one.name: one for one in node.attr}
    assert list(named) == list(attributes)
    assert (named["is_cpu_op"].bool_val, named["own"].bool_val) == (False, True)
    assert (named["comm_src"].int64_val, named["word"].string_val) == (300, "é")
    assert named["share"].double_val == -0.25
    alone = messages()["Node"].FromString(
        _node(0, "", COMP, [], [], when=(0.0, 1e-6), attributes={})
    )
    assert not alone.ctrl_deps and not alone.data_deps and alone.duration_micros == 1


@pytest.mark.evidence
def test_a_pipelined_step_decodes_to_its_spans() -> None:
    step = simulate(
        model="gpt2-small", cluster="dgx-a100", gpus=8, global_batch=32, pp=4, tp=2, micro_batch=4
    )
    kinds, line = messages(), step.timeline
    traces = chakra_traces(step)
    assert list(traces) == [f"step.{rank}" for rank in sorted(set(line.rank.tolist()))]
    nodes: list[Any] = []
    for raw in traces.values():
        head, *rest = decoded(raw)
        metadata = kinds["GlobalMetadata"].FromString(head)
        assert [a.double_val for a in metadata.attr if a.name == "step_time_s"] == [
            step.step_time_s
        ]
        own = [kinds["Node"].FromString(piece) for piece in rest]
        known = {node.id for node in own}
        assert len(known) == len(own)
        for node in own:  # dependencies are nodes of the same file that end before it starts
            assert set(node.ctrl_deps) | set(node.data_deps) <= known
        nodes += own
    spans = [node for node in nodes if node.id < len(line)]
    assert len(spans) == len(line)
    for node in spans[:: len(spans) // 50]:
        assert node.name.split(" ")[0] == SPAN_KINDS[line.kind[node.id]]
        assert node.duration_micros == round(1e6 * (line.end_s[node.id] - line.start_s[node.id]))
        (stream,) = [a.string_val for a in node.attr if a.name == "stream"]
        assert stream == STREAMS[line.stream[node.id]]
        assert (node.type == COMP) == (stream in ("compute", "host"))
    tags = {kind: sorted(a.int64_val for n in nodes if n.type == kind for a in n.attr
                         if a.name == "comm_tag") for kind in (SEND, RECV)}  # fmt: skip
    assert tags[SEND] == tags[RECV] == list(range(len(line.flows)))  # every send is received
    assert any(node.type == COLL for node in nodes)
