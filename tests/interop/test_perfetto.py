"""A simulated step as a trace: what the Trace Event Format demands, and what a reader looks for."""

import gzip
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.events.played import SimulatedStep
from simulator.events.simulated_step import simulate
from simulator.events.step.streams import CAUSES, SPAN_KINDS, STREAMS
from simulator.events.step.timeline import MemoryCurve, Timeline
from simulator.hardware.cluster import load_cluster
from simulator.interop.traces.perfetto import trace_bytes, trace_events
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

SPANS = [
    # rank, stream, start, end, kind, micro-batch, cause, critical
    (0, "compute", 0.0, 1.0, "forward", 0, "gemm", True),
    (0, "pipeline", 1.0, 1.5, "send", 0, "pp", True),
    (1, "compute", 1.5, 2.5, "forward", 0, "gemm", True),
    (1, "data", 2.5, 4.0, "reduce", -1, "dp", True),
]


@pytest.fixture
def step() -> SimulatedStep:
    """Two stages: a forward pass, a send of half a second, a forward pass, a reduction."""
    columns = list(zip(*SPANS, strict=True))
    line = Timeline(
        rank=np.array(columns[0], dtype=np.int32),
        stream=np.array([STREAMS.index(x) for x in columns[1]], dtype=np.int8),
        start_s=np.array(columns[2]),
        end_s=np.array(columns[3]),
        kind=np.array([SPAN_KINDS.index(x) for x in columns[4]], dtype=np.int8),
        micro_batch=np.array(columns[5], dtype=np.int32),
        chunk=np.array([0, 0, 0, -1], dtype=np.int32),
        cause=np.array([CAUSES.index(x) for x in columns[6]], dtype=np.int8),
        critical=np.array(columns[7]),
        ranks_of=np.array([4, 12]),
        flows=np.array([[1, 2]]),
    )
    held = np.zeros((2, len(MEMORY_KINDS)))
    held[:, MEMORY_KINDS.index("weights")] = (2.0**30, 2.0**31)
    curve = MemoryCurve(
        rank=np.array([0, 1], dtype=np.int32), time_s=np.array([0.0, 1.5]), kinds_bytes=held
    )
    none = np.zeros((2, len(STREAMS)))
    return SimulatedStep(
        step_time_s=4.0,
        terms_s={},
        hidden_s={},
        pacing_rank=0,
        ranks_of=line.ranks_of,
        busy_s=none,
        exposed_s=none,
        idle_s=none,
        critical_share={},
        tasks=4,
        build_seconds=0.0,
        run_seconds=0.0,
        draw=lambda: line,
        weigh=lambda: [curve],
    )


def by_letter(step: SimulatedStep, letter: str) -> list[dict[str, Any]]:
    return [event for event in trace_events(step) if event["ph"] == letter]


def test_spans_are_complete_events_in_microseconds(step: SimulatedStep) -> None:
    spans = by_letter(step, "X")
    assert [(e["pid"], e["name"], e["ts"], e["dur"]) for e in spans] == [
        (0, "forward 0", 0.0, 1e6),
        (0, "send 0", 1e6, 0.5e6),
        (1, "forward 0", 1.5e6, 1e6),
        (1, "reduce", 2.5e6, 1.5e6),
    ]
    assert spans[0]["args"] == {
        "charged to": "GEMMs",
        "critical": True,
        "micro-batch": 0,
        "chunk": 0,
    }
    assert "micro-batch" not in spans[3]["args"]


def test_an_arrow_leads_from_the_send_to_the_pass_that_waits(step: SimulatedStep) -> None:
    (start,), (end,) = by_letter(step, "s"), by_letter(step, "f")
    assert start["id"] == end["id"] and end["bp"] == "e"
    pipeline, compute = STREAMS.index("pipeline"), STREAMS.index("compute")
    assert (start["pid"], start["tid"], end["pid"], end["tid"]) == (0, pipeline, 1, compute)
    assert 1e6 < start["ts"] < 1.5e6 and end["ts"] == 1.5e6


def test_counters(step: SimulatedStep) -> None:
    counters = by_letter(step, "C")
    memory = [e for e in counters if e["name"].startswith("memory")]
    assert [(e["pid"], e["ts"], e["args"]) for e in memory] == [
        (0, 0.0, {"weights": 1.0}),
        (1, 1.5e6, {"weights": 2.0}),
    ]
    links = [(e["name"], e["ts"], e["args"]["share"]) for e in counters if e not in memory]
    assert links == [  # rank 0 stands for 4 of 16 GPUs, rank 1 for 12
        ("pipeline, % of GPUs", 1e6, 25.0),
        ("pipeline, % of GPUs", 1.5e6, 0.0),
        ("data, % of GPUs", 2.5e6, 75.0),
        ("data, % of GPUs", 4e6, 0.0),
    ]


def test_a_span_that_follows_at_once_does_not_count_twice(step: SimulatedStep) -> None:
    """Spans one after the other on one track: by rounding the second begins a hair too early."""
    line = step.timeline
    start, end, rows = np.array([0.0, 0.3]), np.array([0.1 + 0.2, 0.6]), slice(0, 2)
    assert end[0] > start[1]
    two = replace(
        line,
        rank=line.rank[:1].repeat(2),
        stream=line.stream[3:].repeat(2),
        start_s=start,
        end_s=end,
        kind=line.kind[rows],
        micro_batch=line.micro_batch[rows],
        chunk=line.chunk[rows],
        cause=line.cause[rows],
        critical=line.critical[rows],
        flows=np.empty((0, 2), np.int64),
    )
    shares = by_letter(replace(step, draw=lambda: two), "C")[2:]
    assert [(e["ts"], e["args"]["share"]) for e in shares] == [
        (0.0, 25.0),
        (pytest.approx(0.3e6), 25.0),
        (0.6e6, 0.0),
    ]


def test_a_rank_alone_is_not_said_to_have_others_alike(step: SimulatedStep) -> None:
    line = replace(step.timeline, ranks_of=np.array([1, 12]))
    told = by_letter(replace(step, draw=lambda: line), "M")
    names = [e["args"]["name"] for e in told if e["name"] == "process_name"]
    assert "rank 0" in names and "rank 1 (of 12 GPUs alike)" in names


def test_every_track_has_a_name(step: SimulatedStep) -> None:
    named = {(e["pid"], e["tid"]) for e in by_letter(step, "M") if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in by_letter(step, "X")} == named
    processes = {e["pid"] for e in by_letter(step, "M") if e["name"] == "process_name"}
    assert processes == {0, 1, 2}  # two ranks and the links


def test_the_file_is_json_and_the_same_every_time(step: SimulatedStep) -> None:
    text = trace_bytes(step, gzipped=False, title="a model")
    found = json.loads(text)
    assert found["traceEvents"] == list(trace_events(step))
    assert found["otherData"]["title"] == "a model"
    assert "steps" not in found["otherData"]  # it is one
    packed = trace_bytes(step, gzipped=True, title="a model")
    assert gzip.decompress(packed) == text
    assert packed == trace_bytes(step, gzipped=True, title="a model")


def test_steps_in_a_row_are_told_apart() -> None:
    """PipeDream: a micro-batch is counted within its step, which the name and the file say."""
    table = Layouts.of(pp=2, schedule="pipedream", global_batch=4)
    work = Workload(
        architecture=presets.load("llama-3.1-8b"),
        recipe=Recipe(sequence_length=1024, global_batch=4),
    )
    core = load_software("megatron-core")
    used = replace(core, supports=replace(core.supports, schedules=("pipedream",)))
    step = simulate(table, work, load_cluster("dgx-h100", 2), used)
    written = json.loads(trace_bytes(step, gzipped=False))
    assert written["otherData"]["steps"] == 3
    passes = [
        (event["name"], event["args"]["step"], event["args"]["micro-batch"])
        for event in written["traceEvents"]
        if event["ph"] == "X" and event["pid"] == 0 and event["name"].startswith("forward")
    ]
    assert passes == [
        (f"forward {batch} of step {number}", number, batch)
        for number in range(3)
        for batch in range(4)
    ]
