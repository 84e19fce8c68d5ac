"""What a simulated step shows beside its time: timeline, streams, memory, and how fast it is."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.memory.peak import MEMORY_KINDS, peak_memory
from simulator.cost.pricing import price
from simulator.cost.step import evaluate
from simulator.cost.tables import select
from simulator.errors import InputError
from simulator.events.played import SimulatedStep
from simulator.events.simulated_step import simulate
from simulator.events.step.programs import program
from simulator.events.step.streams import CAUSES, SPAN_KINDS, STREAMS
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import Layouts
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

LAYOUTS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4, "dp": 2}),
    ("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4, "vpp": 2, "dp": 2, "sharding": "zero1"}),
    ("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4, "schedule": "zb_h1"}),
    (
        "llama-3.1-70b",
        "megatron-core",
        {"tp": 8, "pp": 4, "vpp": 2, "schedule": "dualpipe_v", "recompute": "full"},
    ),
    ("llama-3.1-405b", "torchtitan", {"tp": 8, "pp": 4, "dp": 2, "sharding": "zero3"}),
    ("deepseek-v3", "megatron-core", {"pp": 4, "dp": 16, "ep": 8, "sharding": "zero1"}),
    ("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4, "schedule": "gpipe"}),
]


def given(model: str, software: str, layout: dict[str, Any], m: int = 16) -> Any:
    table = Layouts.of(**layout, global_batch=m * layout.get("dp", 1))
    recipe = Recipe(sequence_length=4096, global_batch=int(table.global_batch[0]))
    work = Workload(architecture=presets.load(model), recipe=recipe)
    return table, work, load_cluster("dgx-h100", int(table.world[0])), load_software(software)


@pytest.fixture(scope="module", params=LAYOUTS, ids=[str(x[2]) for x in LAYOUTS])
def case(request: pytest.FixtureRequest) -> tuple[Any, SimulatedStep]:
    setting = given(*request.param)
    return setting, simulate(*setting)


def test_spans_of_a_stream_do_not_overlap(case: tuple[Any, SimulatedStep]) -> None:
    line = case[1].timeline
    same = (line.rank[1:] == line.rank[:-1]) & (line.stream[1:] == line.stream[:-1])
    assert (line.start_s[1:] >= line.end_s[:-1] - 1e-9)[same].all()
    assert (line.end_s > line.start_s).all()
    assert line.start_s.min() >= 0.0
    assert line.end_s.max() == pytest.approx(case[1].step_time_s, rel=1e-12)


def test_spans_add_up_to_the_busy_seconds_of_each_stream(case: tuple[Any, SimulatedStep]) -> None:
    found, line = case[1], case[1].timeline
    ranks = len(found.ranks_of)
    spans = np.zeros((ranks, len(STREAMS)))
    np.add.at(spans, (line.rank, line.stream), line.end_s - line.start_s)
    np.testing.assert_allclose(spans, found.busy_s, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.busy_s + found.idle_s, found.step_time_s, rtol=1e-9)
    assert (found.exposed_s <= found.busy_s + 1e-9).all()


def test_every_send_arrives_before_the_pass_that_waits_for_it(
    case: tuple[Any, SimulatedStep],
) -> None:
    layout, line = case[0][0].row(), case[1].timeline
    send, pass_ = line.flows.T
    pieces, m = layout["pp"] * layout["vpp"], 16
    turns = layout["schedule"] in ("zb_v", "dualpipe_v")  # the last rank hands over to itself
    assert len(line.flows) == 2 * m * (pieces - 1 - turns)
    assert (line.end_s[send] <= line.start_s[pass_] + 1e-9).all()
    assert (line.rank[send] != line.rank[pass_]).all()
    assert (line.kind[send] == SPAN_KINDS.index("send")).all()
    assert (line.micro_batch[send] == line.micro_batch[pass_]).all()


def test_terms_and_shares_are_complete(case: tuple[Any, SimulatedStep]) -> None:
    found = case[1]
    assert tuple(found.terms_s) == tuple(found.critical_share) == CAUSES
    assert sum(found.terms_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    assert min(found.terms_s.values()) >= 0.0
    assert sum(found.critical_share.values()) == pytest.approx(1.0)
    closed = evaluate(*case[0])
    for name in ("gemm", "attention", "recompute", "tp", "cp", "launch"):
        assert found.terms_s[name] == pytest.approx(float(closed.terms_s[name][0]), rel=1e-9)


def test_memory_over_time_peaks_where_the_closed_form_does(
    case: tuple[Any, SimulatedStep],
) -> None:
    setting, curve = case[0], case[1].memory
    priced = price(*setting, every_rank=True)
    closed = peak_memory(select(setting[0], priced, slice(0, 1)), priced)
    for rank in range(int(setting[0].pp[0])):
        when, total, held = curve.peak(rank)
        assert total == pytest.approx(float(closed.total_bytes[0, rank]), rel=1e-6)
        assert held["activations"] == pytest.approx(
            float(closed.kinds_bytes[MEMORY_KINDS.index("activations"), 0, rank]), rel=1e-6
        )
        assert 0.0 < when < case[1].step_time_s
    # before the first pass and after the last one no activations are held
    last = [np.flatnonzero(curve.rank == rank)[-1] for rank in range(int(setting[0].pp[0]))]
    first = [np.flatnonzero(curve.rank == rank)[0] for rank in range(int(setting[0].pp[0]))]
    at = MEMORY_KINDS.index("activations")
    np.testing.assert_allclose(curve.kinds_bytes[last, at], curve.kinds_bytes[first, at])


def test_1f1b_holds_as_many_micro_batches_as_ranks_follow() -> None:
    """Rank r of p keeps p - r micro-batches: its activations step up so often before any falls."""
    setting = given("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4}, m=8)
    curve = simulate(*setting).memory
    held = curve.kinds_bytes[:, MEMORY_KINDS.index("activations")]
    for rank in range(4):
        own = held[curve.rank == rank]
        rises = np.flatnonzero(np.diff(own) > 0)
        falls = np.flatnonzero(np.diff(own) < 0)
        assert (rises < falls[0]).sum() == 4 - rank


def test_the_same_input_gives_the_same_bytes() -> None:
    setting = given(*LAYOUTS[1])
    one, other = simulate(*setting), simulate(*setting)
    assert one.terms_s == other.terms_s
    assert one.timeline.start_s.tobytes() == other.timeline.start_s.tobytes()
    assert one.memory.kinds_bytes.tobytes() == other.memory.kinds_bytes.tobytes()


def test_gpt3_on_256_gpus_is_simulated_in_a_fifth_of_a_second() -> None:
    """tp 8, pp 32, vpp 3, 512 micro-batches: pricing, 195,000 tasks, engine and terms."""
    arch = presets.load("gpt3-175b")
    work = Workload(architecture=arch, recipe=Recipe(sequence_length=2048, global_batch=512))
    layout = Layouts.of(tp=8, pp=32, vpp=3, global_batch=512)
    setting = (layout, work, load_cluster("dgx-h100", 256), load_software("megatron-core"))
    simulate(*setting)  # compiles, once per machine
    seconds = []
    for _ in range(3):
        began = time.process_time()
        found = simulate(*setting)
        seconds.append(time.process_time() - began)
    assert found.tasks > 2 * 32 * 3 * 512
    assert min(seconds) < 0.2


def test_replacing_nothing_changes_nothing() -> None:
    setting = given(*LAYOUTS[0])
    assert simulate(replace(setting[0]), *setting[1:]).terms_s == simulate(*setting).terms_s


# --- tables of the user's ------------------------------------------------------------------------


def test_a_table_in_place_of_the_schedule_is_played() -> None:
    setting = given("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4})
    gpipe = (setting[0].replace(schedule="gpipe"), *setting[1:])
    found = simulate(*setting, table=program("gpipe", 4, 16))
    assert found.terms_s == simulate(*gpipe).terms_s
    assert found.memory.peak(0)[1] > simulate(*setting).memory.peak(0)[1]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (("1f1b", 2, 16, 1), r"table: must have the layout's 4 ranks \(pp\), got 2"),
        (("1f1b", 4, 8, 1), r"must have the layout's 16 micro-batches .*, got 8"),
        (("interleaved", 4, 16, 2), r"must have the layout's 1 chunks \(vpp\), got 2"),
    ],
)
def test_a_table_of_another_layout_is_refused(table: tuple[Any, ...], said: str) -> None:
    setting = given("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4})
    with pytest.raises(InputError, match=said):
        simulate(*setting, table=program(*table))


def test_a_table_that_places_pieces_otherwise_is_refused() -> None:
    setting = given("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4, "vpp": 2})
    with pytest.raises(InputError, match=r"must place pieces of the model as interleaved does"):
        simulate(*setting, table=program("zb_v", 4, 16, 2))


def test_links_are_as_busy_as_their_busiest_rank() -> None:
    setting = given("llama-3.1-70b", "megatron-lm-2022", {"tp": 8}, m=4)
    found, closed = simulate(*setting), evaluate(*setting)
    both = float(closed.terms_s["tp"][0] + closed.hidden_s["tp"][0])
    assert found.links["tensor"] == pytest.approx(both / float(closed.step_time_s[0]), rel=1e-9)
    assert found.links["expert"] == 0.0
