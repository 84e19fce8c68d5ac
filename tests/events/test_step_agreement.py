"""Events against the closed form on random layouts (42, as evidence 294): pipelines within 1 %,
whole steps too where no data-parallel communication runs beside first and last passes.

The closed form takes a pipeline's longest path at rounded costs (``cost/pipeline/paths.py``). What
is left are slowed first and last passes off that path, the share of a pass before a first bucket,
and windows that bubbles lengthen: bounds below name each.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.step import evaluate
from simulator.events.deviations.deviations import replicas_of
from simulator.events.simulated_step import simulate, summarise
from simulator.events.step.play import play_step
from simulator.hardware.cluster import load_cluster
from simulator.layout.layouts import RECOMPUTE, SHARDINGS, Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.schedules.registry import SCHEDULES, WORDS
from simulator.software.profile import load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

CASES = {
    "llama": ("llama-3.1-70b", "dgx-h100", 256, "megatron-core", 8192),
    "deepseek": ("deepseek-v3", "dgx-h100", 512, "megatron-core", 4096),
    "titan": ("llama-3.1-405b", "aws-p5", 256, "torchtitan", 8192),
    "old": ("megatron-175b", "dgx-a100", 256, "megatron-lm-2022", 2048),
    "qwen": ("qwen3-235b-a22b", "dgx-h100", 256, "torchtitan", 4096),
    "mixtral": ("mixtral-8x7b", "dgx-h100", 128, "megatron-core-defaults", 4096),
    "small": ("llama-3.1-8b", "dgx-h100", 64, "megatron-core", 4096),
}
EACH = 36
SHARE = {"sample": 1 / 7, "whole": 1.0}
"""Of the layouts of each case: in a sample every seventh, another one in the next case."""
APART = ("qwen",)
"""Cases whose gathers end before the first passes; torch reduces after a pipeline's last ones."""
ASYNCHRONOUS = ("pipedream", "pipedream_2bw")
LATER = ("v_half", "v_min")
"""Schedules added since: they take the layouts that are drawn for ZB-V, of as many chunks."""


def setting(name: str, batch: int = 1) -> tuple[Workload, Any, Any]:
    model, cluster, gpus, software, length = CASES[name]
    recipe = Recipe(sequence_length=length, global_batch=batch)
    work = Workload(architecture=presets.load(model), recipe=recipe)
    used = load_software(software)
    every = replace(used, supports=replace(used.supports, schedules=WORDS))
    if name in APART:
        every = replace(every, overlap=replace(every.overlap, parameter_gather=False))
    return work, load_cluster(cluster, gpus), every


def drawn(name: str, size: int = 120_000) -> Layouts:
    """Feasible layouts, as many of each schedule, up to 16 times as many micro-batches as ranks."""
    work, cluster, software = setting(name)
    rng = np.random.default_rng(9)
    most = {"tp": 4, "cp": 2, "ep": 7, "etp": 2, "micro_batch": 3}
    given = {field: 2 ** rng.integers(0, top, size) for field, top in most.items()}
    given["vpp"] = rng.choice([1, 1, 2, 2, 2, 3, 4, 5, 6], size)
    given["pp"] = rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 32], size)
    given["dp"] = np.maximum(cluster.gpus // (given["tp"] * given["cp"] * given["pp"]), 1)
    m = given["pp"] * rng.choice([1, 1, 2, 2, 3, 4, 8, 16], size)
    few = rng.random(size) < 0.15
    m = np.where(few, np.maximum(m // rng.integers(1, 6, size), 1), m)
    table = Layouts.of(
        **given,
        global_batch=given["dp"] * given["micro_batch"] * m,
        sharding=rng.integers(0, len(SHARDINGS), size),
        sequence_parallel=rng.integers(0, 2, size),
        recompute=rng.integers(0, len(RECOMPUTE), size),
        recompute_layers=np.maximum(rng.integers(-3, 4, size), 0),
        schedule=rng.integers(0, WORDS.index(LATER[0]), size),
    )
    able = np.flatnonzero(reasons(table, work, cluster, software) == FEASIBLE)
    order = np.argsort(
        np.concatenate(
            [np.arange((table.schedule[able] == s).sum()) for s in np.unique(table.schedule[able])]
        ),
        kind="stable",
    )
    by_schedule = able[np.argsort(table.schedule[able], kind="stable")]
    taken = table[by_schedule[order][:EACH]]
    alike = taken[taken.schedule == WORDS.index("zb_v")]
    return Layouts.concatenate([taken, *(alike.replace(schedule=word) for word in LATER)])


@dataclass
class Compared:
    """One layout: what events say over the closed form, and what may explain it."""

    name: str
    schedule: str
    pipeline: float
    """Difference of passes and sends alone, as a share of the step."""
    whole: float
    """Difference of the step."""
    above: float
    """Slowed first and last passes, and the share of a pass before a first bucket."""
    below: float
    """The same passes where they are off the path, and shown data-parallel communication that
    longer windows may hide."""
    unequal: float
    """How far chunks of one rank lie apart."""
    rounds: float
    """Micro-batches over ranks."""
    apart: bool
    """Nothing runs beside first and last passes."""
    wrong_sum: float
    """Difference between the sum of terms and the step."""


def compare(name: str, layout: Layouts) -> Compared:
    given = setting(name, int(layout.global_batch[0]))
    (one,) = replicas_of(layout, *given)
    closed, played = evaluate(layout, *given), summarise(play_step([one]))
    whole, step_end = float(closed.step_time_s[0]), one.step_end
    window = one.passes.window_s.sum(axis=1) / step_end.buckets[:, None]
    early = sum(
        float((window[:, way] * (work_s.sum(axis=1) > 0)).max())
        for way, work_s in enumerate((step_end.gather_s, step_end.reduce_s))
        if step_end.overlaps[way]
    )
    seconds = one.passes.seconds[:, :, :2].sum(axis=2)
    slowed = float(step_end.overlap_slowdown_s.sum())
    return Compared(
        name=f"{name} {layout.describe()} m {int(layout.micro_batches[0])}",
        schedule=WORDS[int(layout.schedule[0])],
        pipeline=pipeline_alone(layout, given) / whole,
        whole=played.step_time_s / whole - 1.0,
        above=(slowed + early) / whole,
        below=(slowed + early + float(closed.terms_s["dp"][0])) / whole,
        unequal=float((seconds.max(axis=1) / seconds.min(axis=1)).max() - 1.0),
        rounds=float(layout.micro_batches[0] / layout.pp[0]),
        apart=not any(step_end.overlaps),
        wrong_sum=sum(played.terms_s.values()) / played.step_time_s - 1.0,
    )


def pipeline_alone(layout: Layouts, given: tuple[Workload, Any, Any]) -> float:
    """Events less closed form, in seconds, with nothing beside the passes.

    Software that overlaps no reduction or gather with passes pays them before and after: both
    leave them and the optimizer out.
    """
    work, cluster, software = given
    apart = replace(software.overlap, gradient_reduce=False, parameter_gather=False)
    states = replace(software.states, reduces_every_micro_batch=False)
    bare = (work, cluster, replace(software, overlap=apart, states=states))
    closed = evaluate(layout, *bare)
    once = sum(float(closed.terms_s[term][0]) for term in ("dp", "optimizer"))
    (one,) = replicas_of(layout, *bare)
    step_end, none = one.step_end, np.zeros_like(one.step_end.reduce_s)
    nothing = replace(
        step_end,
        reduce_s=none,
        gather_s=none,
        exposed_reductions_s=none,
        overlap_slowdown_s=np.zeros_like(step_end.overlap_slowdown_s),
        tied_embedding_sum_s=0.0,
        optimizer_s=np.zeros_like(step_end.optimizer_s),
    )
    played = summarise(play_step([replace(one, step_end=nothing)]))
    return played.step_time_s - (float(closed.step_time_s[0]) - once)


@pytest.fixture(scope="module")
def compared(extent: str) -> list[Compared]:
    step = round(1 / SHARE[extent])
    return [
        compare(name, row)
        for first, name in enumerate(CASES)
        for row in rows(drawn(name))[first % step :: step]
    ]


def rows(table: Layouts) -> list[Layouts]:
    return [table[i] for i in range(len(table))]


def test_layouts_of_every_kind(compared: list[Compared], extent: str) -> None:
    assert len(compared) >= 200 * SHARE[extent]
    assert {one.schedule for one in compared} == set(SCHEDULES)
    assert sum(one.unequal > 0.1 for one in compared) > 60 * SHARE[extent]
    assert sum(one.rounds < 2 for one in compared) > 40 * SHARE[extent]
    assert all(abs(one.wrong_sum) < 1e-12 for one in compared)


def within(one: Compared) -> float:
    """Share of a step that a pipeline may be apart.

    V-Half and V-Min go on growing for more rounds than the closed form plays where passes are far
    from equal (full recomputation): it is above them then.
    """
    return 0.035 if one.schedule in LATER else 0.012


def test_pipelines_are_near_the_closed_form(compared: list[Compared]) -> None:
    """Uneven stages, unequal chunks, experts, few micro-batches: passes, sends, fill and drain."""
    for one in compared:
        assert abs(one.pipeline) < within(one), one
    assert np.median([abs(one.pipeline) for one in compared]) < 2e-4


@pytest.mark.parametrize(
    ("name", "layout", "m"),
    [
        ("llama", {"cp": 2, "pp": 2, "vpp": 2, "recompute_layers": 10}, 2),
        ("llama", {"tp": 8, "pp": 2, "vpp": 4, "recompute_layers": 5}, 2),
        ("llama", {"cp": 2, "pp": 2, "vpp": 20, "recompute_layers": 25}, 4),
        ("small", {"pp": 2, "vpp": 2, "recompute_layers": 12}, 2),
        ("deepseek", {"tp": 4, "pp": 4, "vpp": 7, "recompute_layers": 3}, 4),
    ],
)
def test_chunks_that_are_recomputed_in_part_are_within_a_percent(
    name: str, layout: dict[str, Any], m: int
) -> None:
    """Few micro-batches, of chunks that differ by the blocks that are recomputed."""
    row = Layouts.of(**layout, schedule="interleaved", recompute="full", global_batch=m)
    given = setting(name, m)
    cluster = replace(given[1], groups=(replace(given[1].groups[0], gpus=int(row.world[0])),))
    given = (given[0], cluster, given[2])
    whole = float(evaluate(row, *given).step_time_s[0])
    assert abs(pipeline_alone(row, given)) < 0.01 * whole


def test_steps_without_communication_beside_passes_are_near_it(
    compared: list[Compared], extent: str
) -> None:
    few = [one for one in compared if one.above < 1e-3 and one.below < 1e-3]
    plain = [one for one in compared if one.apart or one in few]
    assert len(plain) >= 40 * SHARE[extent]
    for one in plain:
        assert abs(one.whole) < 0.012, one


def test_what_differs_elsewhere_is_named(compared: list[Compared]) -> None:
    """Reductions and gathers beside the passes of chunks: no more than they may show or hide."""
    for one in compared:
        assert -within(one) - one.below < one.whole < within(one) + one.above, one
    flushed = [abs(one.whole) for one in compared if one.schedule not in ASYNCHRONOUS]
    assert np.mean(np.array(flushed) < 0.01) > 0.85
    assert max(flushed) < 0.07
    assert max(abs(one.whole) for one in compared) < 0.11


@pytest.mark.parametrize("m", [10, 20])
def test_what_gathers_slow_is_spread_over_a_round_of_passes(m: int) -> None:
    """Eight chunks of ten ranks, gathers and reductions beside them.

    A micro-batch that alone were slowed in every chunk would carry all of it through all ranks:
    10 and 6 % of these steps.
    """
    row = Layouts.of(tp=8, pp=10, vpp=8, dp=4, schedule="interleaved", recompute="full",
                     sharding="zero1", global_batch=4 * m)  # fmt: skip
    recipe = Recipe(sequence_length=8192, global_batch=4 * m)
    work = Workload(architecture=presets.load("llama-3.1-70b"), recipe=recipe)
    given = work, load_cluster("dgx-h100", 320), load_software("megatron-core")
    whole = float(evaluate(row, *given).step_time_s[0])
    assert simulate(row, *given).step_time_s == pytest.approx(whole, rel=0.005)


def test_one_chunk_per_rank_agrees_but_for_slowed_passes(
    compared: list[Compared], extent: str
) -> None:
    """Sends, pipeline, buckets, slowed passes, optimizer: the closed form has all that there is."""
    plain = [abs(one.whole) for one in compared if one.schedule in ("1f1b", "gpipe")]
    assert len(plain) >= 30 * SHARE[extent]
    assert np.median(plain) < 1e-4


ALONE: list[tuple[str, str, str, dict[str, Any]]] = [
    ("llama-3.1-70b", "dgx-h100", "megatron-core", {"tp": 8}),
    ("megatron-175b", "dgx-a100", "megatron-lm-2022", {"tp": 8, "recompute": "selective"}),
    ("llama-3.1-405b", "aws-p5", "torchtitan", {"tp": 8, "cp": 2, "dp": 4, "sharding": "zero3"}),
    ("llama-3.1-70b", "dgx-h100", "megatron-core", {"tp": 8, "offload_layers": 20}),
    (
        "llama-3.1-70b",
        "dgx-h100",
        "megatron-core",
        {"tp": 8, "offload_layers": 80, "recompute": "full", "recompute_layers": 10},
    ),
    (
        "llama-3.1-70b",
        "dgx-h100",
        "megatron-core",
        {"tp": 8, "dp": 4, "sharding": "zero1", "optimizer_offload": "cpu"},
    ),
    ("llama-2-13b", "dgx-a100", "deepspeed", {"dp": 8, "sharding": "zero2"}),
    (
        "llama-2-13b",
        "dgx-a100",
        "deepspeed",
        {"dp": 8, "sharding": "zero3", "optimizer_offload": "cpu", "parameter_offload": "cpu"},
    ),
    ("mixtral-8x7b", "dgx-h100", "megatron-core", {"dp": 8, "ep": 8}),
]


@pytest.mark.parametrize(("model", "cluster", "software", "layout"), ALONE)
@pytest.mark.parametrize("pairs", [False, True])
def test_without_a_pipeline_every_term_is_the_closed_forms(
    model: str, cluster: str, software: str, layout: dict[str, Any], pairs: bool
) -> None:
    """Nothing waits for another rank: terms and what is hidden, to the last digits.

    But for the first bucket, which events do not start before its gradients are there.
    """
    table = Layouts.of(**layout, global_batch=8 * layout.get("dp", 1))
    recipe = Recipe(sequence_length=4096, global_batch=int(table.global_batch[0]))
    work = Workload(architecture=presets.load(model), recipe=recipe)
    used = load_software(software)
    used = replace(used, overlap=replace(used.overlap, expert=pairs))
    setting = (table, work, load_cluster(cluster, int(table.world[0])), used)
    closed, played = evaluate(*setting), simulate(*setting)
    least = 1e-9 * played.step_time_s
    for term, seconds in closed.terms_s.items():
        rel = 0.01 if term == "dp" else 0.0
        assert played.terms_s[term] == pytest.approx(float(seconds[0]), rel=rel, abs=least), term
    for stream, seconds in closed.hidden_s.items():
        rel = 0.01 if stream == "dp" else 0.0
        assert played.hidden_s[stream] == pytest.approx(float(seconds[0]), rel=rel, abs=least)


@pytest.mark.parametrize(
    ("schedule", "vpp", "within"),
    [("1f1b", 1, 0.005), ("interleaved", 2, 0.005), ("gpipe", 1, 0.01), ("dualpipe", 1, 0.03)],
)
def test_passes_in_pairs_hide_each_others_expert_traffic(
    schedule: str, vpp: int, within: float
) -> None:
    """DeepSeek-V3 with combined 1F1B: passes before the first pair and after the last show it."""
    layout = Layouts.of(pp=8, dp=32, ep=32, vpp=vpp, schedule=schedule, global_batch=32 * 64)
    work, _, used = setting("deepseek", 32 * 64)
    used = replace(used, overlap=replace(used.overlap, expert=True))
    given = (layout, work, load_cluster("dgx-h100", 256), used)
    closed, played = evaluate(*given), simulate(*given)
    assert played.step_time_s == pytest.approx(float(closed.step_time_s[0]), rel=within)
    apart = simulate(*given[:3], replace(used, overlap=replace(used.overlap, expert=False)))
    assert (played.step_time_s < (1 - 1e-9) * apart.step_time_s) == (schedule != "gpipe")
