"""Properties of memory over random layouts and recipes: every schedule, offload and stash."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.estimate import memory_verdict
from simulator.cost.memory.peak import MEMORY_KINDS
from simulator.cost.rank_memory import rank_memory
from simulator.cost.step import Estimate, evaluate
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import SHARDINGS, Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.schedules.registry import SCHEDULES, WORDS
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, StashBytes, Workload
from tests.search.test_never_beaten import drawn_layout, drawn_scenario, runnable

ARCH = presets.load("llama-3.1-8b")
CLUSTER = load_cluster("dgx-h100", 32)
SOFTWARES = {name: load_software(name) for name in ("megatron-core", "torchtitan")}
STASH = StashBytes(attention=1.0, activation_input=1.0, norm_input=1.0)
BATCH = 64


def run(
    software: str, columns: dict[str, Any], stash: StashBytes | None = None, length: int = 4096
) -> Estimate:
    recipe = Recipe(sequence_length=length, global_batch=BATCH, stash_bytes=stash)
    work = Workload(architecture=ARCH, recipe=recipe)
    return evaluate(Layouts.of(global_batch=BATCH, **columns), work, CLUSTER, SOFTWARES[software])


@st.composite
def row(draw: st.DrawFn) -> dict[str, Any]:
    """One layout of at most 32 GPUs with even numbers of micro-batches; it need not be allowed."""
    schedule = draw(st.sampled_from(WORDS))
    pp = 4 if schedule not in ("1f1b", "interleaved") else draw(st.sampled_from([1, 2, 4]))
    vpp = max(SCHEDULES[schedule].fewest_chunks, 1)
    if pp == 1:
        schedule, vpp = "1f1b", 1
    kind, cp = draw(st.sampled_from(["ring", "all_to_all", "hierarchical"])), 4
    if kind != "hierarchical":
        cp = draw(st.sampled_from([1, 2]))
    recompute = draw(st.sampled_from(["none", "selective", "full"]))
    return {
        "tp": draw(st.sampled_from([1, 2])),
        "pp": pp,
        "vpp": vpp,
        "schedule": schedule,
        "cp": cp,
        "cp_kind": kind,
        "cp_a2a": 2 if kind == "hierarchical" else 1,
        "dp": 2,
        "micro_batch": draw(st.sampled_from([1, 2])),
        "sharding": draw(st.sampled_from(SHARDINGS)),
        "recompute": recompute,
        "recompute_layers": draw(st.sampled_from([0, 2])) if recompute == "full" else 0,
        "offload_layers": draw(st.sampled_from([0, 4])) if pp == 1 else 0,
        "optimizer_offload": draw(st.sampled_from(["none", "cpu"])),
    }


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [one[name] for one in rows] for name in rows[0]}


tables = st.lists(row(), min_size=2, max_size=6)
names = st.sampled_from(sorted(SOFTWARES))
stashes = st.sampled_from([None, STASH])


@settings(max_examples=settings.default.max_examples // 20)
@given(names, tables, stashes)
def test_kinds_add_up_and_a_layout_is_the_same_alone_and_stacked(
    software: str, rows: list[dict[str, Any]], stash: StashBytes | None
) -> None:
    found = run(software, columns(rows), stash)
    kinds = np.stack([found.memory_bytes[kind] for kind in MEMORY_KINDS])
    assert kinds.sum(axis=0) == pytest.approx(found.memory_total_bytes, rel=1e-12)
    assert (kinds >= 0).all()
    for i, one in enumerate(rows):
        alone = run(software, columns([one]), stash)
        assert alone.memory_total_bytes[0] == pytest.approx(found.memory_total_bytes[i], rel=1e-12)
        assert alone.verdict[0] == found.verdict[i]
        assert alone.peak_moment[0] == found.peak_moment[i]


@settings(max_examples=settings.default.max_examples // 20)
@given(names, row(), stashes)
def test_the_fullest_rank_is_the_layouts(
    software: str, one: dict[str, Any], stash: StashBytes | None
) -> None:
    found = run(software, columns([one]), stash)
    recipe = Recipe(sequence_length=4096, global_batch=BATCH, stash_bytes=stash)
    work = Workload(architecture=ARCH, recipe=recipe)
    ranks = rank_memory(found.layouts, work, CLUSTER, SOFTWARES[software])
    assert ranks.total_bytes.max() == pytest.approx(found.memory_total_bytes[0], rel=1e-12)
    assert ranks.p90_bytes.max() == pytest.approx(found.memory_p90_bytes[0], rel=1e-12)


@settings(max_examples=settings.default.max_examples // 20)
@given(names, tables)
def test_saving_never_costs_memory(software: str, rows: list[dict[str, Any]]) -> None:
    """Stashes, offload and recomputation of everything; each alone, the rest as drawn.

    Decoding a stash needs room for one decoded tensor, which only pays with a block in flight or
    more to spare, so kept activations are compared there, not totals.
    """
    plain = columns([{**one, "recompute": "none", "recompute_layers": 0} for one in rows])
    before = run(software, {**plain, "offload_layers": 0, "optimizer_offload": "none"})
    full = {**plain, "offload_layers": 0, "optimizer_offload": "none", "recompute": "full"}
    again = run(software, full)
    slack = 1e-9 * before.memory_total_bytes
    assert (again.memory_total_bytes <= before.memory_total_bytes + slack).all()
    away = run(software, {**plain, "optimizer_offload": "cpu"})
    assert (away.memory_total_bytes <= before.memory_total_bytes + slack).all()
    small = run(software, {**plain, "offload_layers": 0, "optimizer_offload": "none"}, STASH)
    kept, less = (x.memory_bytes["activations"] for x in (before, small))
    at_block = before.peak_moment == small.peak_moment
    assert (less[at_block] <= kept[at_block] + slack[at_block]).all()


@settings(max_examples=settings.default.max_examples // 20)
@given(st.sampled_from(WORDS), st.sampled_from(["none", "selective", "full"]), stashes)
def test_activations_double_with_the_micro_batch_and_with_the_length(
    schedule: str, recompute: str, stash: StashBytes | None
) -> None:
    """Flash attention keeps nothing of length squared; in flight are as many micro-batches.

    GPipe and breadth-first hold them all, of which there are half as many.
    """
    layout = {
        "pp": 4,
        "vpp": max(SCHEDULES[schedule].fewest_chunks, 1),
        "schedule": schedule,
        "dp": 2,
        "recompute": recompute,
    }
    one, two = (run("megatron-core", {**layout, "micro_batch": b}, stash) for b in (1, 2))
    times = 1.0 if schedule in ("gpipe", "looped_bfs") else 2.0
    assert two.memory_bytes["activations"] == pytest.approx(
        times * one.memory_bytes["activations"], rel=1e-9
    )
    longer = run("megatron-core", {**layout, "micro_batch": 1}, stash, length=8192)
    assert longer.memory_bytes["activations"] == pytest.approx(
        2 * one.memory_bytes["activations"], rel=1e-9
    )


@given(st.floats(1e9, 1e12), st.floats(0.0, 0.5), st.floats(1e9, 1e12), st.floats(1.0, 2.0))
def test_a_verdict_only_improves_with_more_memory_and_less_spread(
    need: float, spread: float, usable: float, more: float
) -> None:
    def verdict(line: float, error: float) -> int:
        return int(memory_verdict(np.array([need]), np.array([error]), line)[0])

    assert verdict(usable * more, spread) <= verdict(usable, spread)
    assert verdict(usable, spread / more) <= verdict(usable, spread)
    assert (verdict(usable, spread) == 2) == (need > usable)


def test_p10_p50_p90_are_in_order_and_share_their_error() -> None:
    software = SOFTWARES["torchtitan"]
    assert software.allocator.reserved_spread is not None
    found = run("torchtitan", {"dp": [8, 4, 8], "tp": [1, 2, 1], "micro_batch": [1, 1, 2]})
    assert (found.memory_p10_bytes < found.memory_total_bytes).all()
    assert (found.memory_total_bytes < found.memory_p90_bytes).all()
    ratio = found.memory_p90_bytes / found.memory_total_bytes
    assert ratio[0] == pytest.approx(ratio[2]) and ratio[1] > ratio[0]
    none = replace(software, allocator=replace(software.allocator, reserved_spread=None))
    work = Workload(architecture=ARCH, recipe=Recipe(sequence_length=4096, global_batch=BATCH))
    unknown = evaluate(found.layouts, work, CLUSTER, none)
    assert np.isnan(unknown.memory_p90_bytes[0]) and unknown.verdict_word(0) in ("FITS", "OOM")


def falls_with_the_micro_batch(number: int) -> list[str]:
    """Layouts of a drawn scenario that need less memory with twice the micro-batch.

    Left out are those of which fewer micro-batches wait then (a pipeline holds up to twice as many
    as it has ranks, if there are), and those that have a single one left: what sums gradients over
    several is gone.
    """
    chance, of = random.Random(f"law {number}"), None
    while of is None:
        of = drawn_scenario(chance)
    setting = of.workload, of.cluster, of.software
    table = runnable([drawn_layout(of, chance) for _ in range(120)], of, capped=False)
    if table is None:
        return []
    twice = table.replace(micro_batch=2 * table.micro_batch)
    able = table.global_batch % (table.dp * 2 * table.micro_batch) == 0
    able &= (twice.micro_batches >= 2) & (twice.micro_batches >= 2 * table.pp * (table.pp > 1))
    able &= reasons(twice, *setting) == FEASIBLE
    some = np.flatnonzero(able)
    if not len(some):
        return []
    few, more = (evaluate(x[some], *setting).memory_total_bytes for x in (table, twice))
    return [table[some].describe(i) for i in np.flatnonzero(more < few * (1.0 - 1e-9)).tolist()]


def test_memory_falls_with_the_micro_batch_only_where_fewer_wait() -> None:
    assert [falls for n in range(4) if (falls := falls_with_the_micro_batch(n))] == []


@pytest.mark.evidence
def test_memory_of_150_scenarios_falls_only_where_fewer_wait() -> None:
    assert {n: falls for n in range(150) if (falls := falls_with_the_micro_batch(n))} == {}
