"""The step: terms add up, tables do not change a layout's numbers, and laws of any machine."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.collectives.calls import slowdown_share
from simulator.cost.step import Estimate, estimates, evaluate
from simulator.cost.terms import HIDDEN, TERMS
from simulator.files import Figure
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import RANK_ORDERS, RECOMPUTE, SHARDINGS, Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

CASES = {
    "llama": ("llama-3.1-70b", "dgx-h100", 1024, "megatron-core", 8192, 2048),
    "deepseek": ("deepseek-v3", "dgx-h100", 2048, "megatron-core", 4096, 7680),
    "titan": ("llama-3.1-405b", "aws-p5", 512, "torchtitan", 8192, 256),
    "rounds": ("llama-3.1-8b", "dgx-a100", 96, "meta-llama3-2024", 2048, 144),
    "old": ("megatron-175b", "dgx-a100", 512, "megatron-lm-2022", 2048, 1536),
}
DRAWN = {"sample": (40, 80_000), "whole": (200, 400_000)}
"""Feasible layouts that are looked at, and of how many drawn at random they are the first."""
Case = tuple[Workload, Cluster, Software]


def case(name: str) -> Case:
    model, cluster, gpus, software, length, batch = CASES[name]
    recipe = Recipe(sequence_length=length, global_batch=batch)
    work = Workload(architecture=presets.load(model), recipe=recipe)
    return work, load_cluster(cluster, gpus), load_software(software)


def random_layouts(name: str, number: int, seed: int = 1, size: int = 400_000) -> Layouts:
    """Feasible layouts with degrees, sharding, recomputation and rank order drawn at random."""
    work, cluster, software = case(name)
    rng = np.random.default_rng(seed)
    most = {"tp": 4, "pp": 5, "vpp": 3, "cp": 3, "ep": 7, "etp": 2, "micro_batch": 3}
    drawn = {field: 2 ** rng.integers(0, top, size) for field, top in most.items()}
    drawn["dp"] = np.maximum(cluster.gpus // (drawn["tp"] * drawn["pp"] * drawn["cp"]), 1)
    table = Layouts.of(
        **drawn,
        global_batch=work.recipe.global_batch,
        sharding=rng.integers(0, len(SHARDINGS), size),
        sequence_parallel=rng.integers(0, 2, size),
        recompute=rng.integers(0, len(RECOMPUTE), size),
        recompute_layers=np.maximum(rng.integers(-3, 4, size), 0),
        rank_order=rng.choice([RANK_ORDERS.index(x) for x in software.supports.rank_orders], size),
    )
    able = np.flatnonzero(reasons(table, work, cluster, software) == FEASIBLE)
    assert len(able) >= number
    return table[able[:number]]


@pytest.fixture(scope="module", params=CASES)
def seen(request: pytest.FixtureRequest, extent: str) -> tuple[Layouts, Case, Estimate]:
    number, size = DRAWN[extent]
    layouts = random_layouts(request.param, number, size=size)
    return layouts, case(request.param), evaluate(layouts, *case(request.param))


def columns(found: Estimate) -> dict[str, Any]:
    """Every number of an estimate."""
    named = {f"terms {k}": v for k, v in found.terms_s.items()}
    named |= {f"hidden {k}": v for k, v in found.hidden_s.items()}
    named |= {f"memory {k}": v for k, v in found.memory_bytes.items()}
    return named | {
        "step": found.step_time_s,
        "total": found.memory_total_bytes,
        "imbalance": found.imbalance_s,
        "flop": found.executed_flop,
    }


def agree(one: Estimate, other: Estimate, rel: float) -> None:
    for (name, left), right in zip(columns(one).items(), columns(other).values(), strict=True):
        scale = np.maximum(one.step_time_s if "memory" not in name else np.abs(left), np.abs(left))
        np.testing.assert_array_less(np.abs(left - right), rel * scale + 1e-300, err_msg=name)


def test_terms_add_up_and_none_is_negative(seen: tuple[Layouts, Case, Estimate]) -> None:
    found = seen[2]
    assert list(found.terms_s) == [term.name for term in TERMS]
    assert list(found.hidden_s) == list(HIDDEN)
    np.testing.assert_allclose(sum(found.terms_s.values()), found.step_time_s, rtol=1e-13)
    np.testing.assert_allclose(
        sum(found.memory_bytes.values()), found.memory_total_bytes, rtol=1e-13
    )
    for name, column in columns(found).items():
        assert np.isfinite(column).all(), name
        assert (column >= 0).all(), name
    assert (found.step_time_s > 0).all()


@pytest.mark.sampled(2)
def test_a_layout_costs_the_same_alone_and_in_a_table(
    seen: tuple[Layouts, Case, Estimate],
) -> None:
    layouts, setting, whole = seen
    for i in range(len(layouts)):
        agree(evaluate(layouts[i], *setting), whole.take(slice(i, i + 1)), 1e-12)


def test_folding_equal_ranks_changes_nothing(seen: tuple[Layouts, Case, Estimate]) -> None:
    layouts, setting, whole = seen
    every = evaluate(layouts, *setting, every_rank=True)
    agree(every, whole, 1e-12)
    assert every.peak_stage.tolist() == whole.peak_stage.tolist()


def test_chunks_of_a_long_table_are_the_table(seen: tuple[Layouts, Case, Estimate]) -> None:
    layouts, setting, whole = seen
    times = 10_000 // len(layouts)  # more than one chunk
    pieces = list(estimates(Layouts.concatenate([layouts] * times), *setting))
    assert len(pieces) == 2
    assert [x for piece in pieces for x in piece.step_time_s] == whole.step_time_s.tolist() * times


def test_no_group_no_communication(seen: tuple[Layouts, Case, Estimate]) -> None:
    layouts, _, found = seen
    alone = {
        "tp": (layouts.tp == 1) & (layouts.etp == 1),
        "cp": layouts.cp == 1,
        "ep": layouts.ep == 1,
        "pp": layouts.pp == 1,
        "dp": layouts.dp * layouts.cp == 1,
        "fsdp": layouts.sharding < SHARDINGS.index("zero2"),
        "bubble_warmup": layouts.pp == 1,
        "bubble_drain": layouts.pp == 1,
        "recompute": layouts.recompute == RECOMPUTE.index("none"),
    }
    for name, rows in alone.items():
        assert (found.terms_s[name][rows] == 0).all(), name
        if name in found.hidden_s:
            assert (found.hidden_s[name][rows] == 0).all(), name


def faster(cluster: Cluster, part: str, times: float) -> Cluster:
    """The same cluster with one kind of rate `times` higher."""
    group = cluster.groups[0]
    device, node = group.accelerator, group.node
    if part == "matrix":
        rates = {name: Figure(x * times) for name, x in device.matrix_flop_per_s.items()}
        device = replace(device, matrix_flop_per_s=rates)
    elif part == "hbm":
        rate = Figure(device.memory.bandwidth_bytes_per_s * times)
        device = replace(device, memory=replace(device.memory, bandwidth_bytes_per_s=rate))
    elif part == "nvlink":
        names = [f for f in node.scale_up.__slots__ if f.endswith("_bytes_per_s")]
        rates = {f: getattr(node.scale_up, f) for f in names}
        rates = {f: None if x is None else Figure(x * times) for f, x in rates.items()}
        node = replace(node, scale_up=replace(node.scale_up, **rates))
    else:
        rate = Figure(node.scale_out.adapter_bytes_per_s * times)
        node = replace(node, scale_out=replace(node.scale_out, adapter_bytes_per_s=rate))
    return replace(cluster, groups=(replace(group, accelerator=device, node=node),))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("part", ["matrix", "hbm", "nvlink", "nic"])
def test_a_faster_part_is_never_slower(
    seen: tuple[Layouts, Case, Estimate], part: str, extent: str
) -> None:
    layouts, (work, cluster, software), base = seen
    before = base.step_time_s
    every = {"sample": 3, "whole": 1}[extent]
    for times in (1.1, 1.4, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0)[::every]:
        now = evaluate(layouts, work, faster(cluster, part, times), software).step_time_s
        # a shorter pass hides less of a reduction, which a rank's bubble may not make up for;
        # of links and adapters more: NCCL may take a faster link for a reason to choose worse
        # a pipeline of several chunks changes its path where rounded costs change
        chunked = np.where((layouts.vpp > 1) & (layouts.pp > 1), 0.02, 5e-4)
        slack = 0.03 if part in ("nvlink", "nic") else chunked
        assert (now <= before * (1 + slack)).all(), times
        before = now


@given(
    times=st.tuples(*[st.floats(1.0, 8.0)] * 4),
    name=st.sampled_from(sorted(CASES)),
    seed=st.integers(0, 9),
)
@settings(max_examples=settings.default.max_examples // 20)
def test_a_cluster_better_in_every_part_is_never_slower(
    times: tuple[float, ...], name: str, seed: int
) -> None:
    work, cluster, software = case(name)
    layouts = random_layouts(name, 60, seed, size=100_000)
    better = cluster
    for part, factor in zip(("matrix", "hbm", "nvlink", "nic"), times, strict=True):
        better = faster(better, part, factor)
    old, new = (evaluate(layouts, work, c, software).step_time_s for c in (cluster, better))
    assert (new <= old * (1 + 1e-6)).all()


def test_a_larger_batch_never_trains_fewer_tokens_per_second(
    seen: tuple[Layouts, Case, Estimate],
) -> None:
    layouts, (work, cluster, software), base = seen
    before = base.step_time_s
    for times in (2, 4, 8):
        batch = work.recipe.global_batch * times
        more = replace(work, recipe=replace(work.recipe, global_batch=batch))
        now = evaluate(layouts.replace(global_batch=batch), more, cluster, software).step_time_s
        assert (now <= 2 * before * (1 + 1e-12)).all()
        before = now


def test_recomputation_never_saves_time_and_never_costs_memory_for_activations(
    seen: tuple[Layouts, Case, Estimate],
) -> None:
    layouts, setting, _ = seen
    plain = evaluate(layouts.replace(recompute="none", recompute_layers=0), *setting)
    for mode in ("selective", "full"):
        again = evaluate(layouts.replace(recompute=mode, recompute_layers=0), *setting)
        assert (again.step_time_s >= plain.step_time_s * (1 - 1e-12)).all(), mode
        assert (again.executed_flop >= plain.executed_flop).all(), mode
        kept, before = (x.memory_bytes["activations"] for x in (again, plain))
        same = again.peak_stage == plain.peak_stage
        assert (kept[same] <= before[same] * (1 + 1e-12)).all(), mode


def test_recomputing_more_layers_never_saves_time() -> None:
    work, cluster, software = case("llama")
    counts = np.arange(1, 11)  # 80 layers on eight stages
    table = Layouts.of(
        tp=8, pp=8, dp=16, global_batch=2048, recompute="full", recompute_layers=counts
    )
    found = evaluate(table, work, cluster, software)
    assert (np.diff(found.step_time_s) > 0).all()
    whole = evaluate(table[:1].replace(recompute_layers=0), work, cluster, software)
    assert found.step_time_s[-1] == whole.step_time_s[0]


def chained_passes_s(layouts: Layouts, estimate: Estimate) -> Any:
    """One pass, both ways, of every rank but one: fill and drain, during which reductions last."""
    other = ("dp", "optimizer", "pp", "bubble_warmup", "bubble_drain")
    busy = sum(x for name, x in estimate.terms_s.items() if name not in other)
    return (layouts.pp - 1) * busy / layouts.micro_batches


def test_overlap_costs_no_more_than_slowed_fill_and_drain(
    seen: tuple[Layouts, Case, Estimate],
) -> None:
    layouts, (work, cluster, software), base = seen
    waits = replace(
        software,
        overlap=replace(
            software.overlap,
            tensor="none",
            gradient_reduce=False,
            parameter_gather=False,
            sharded_prefetch=False,
            pipeline_send=False,
            context_ring=False,
        ),
    )
    without = evaluate(layouts, work, cluster, waits)
    # in fill and drain every rank waits for passes that a gather or a reduction slows
    # (of unlike chunks the slowest passes are up to a twentieth above the mean; where hosts pace
    # the step, what slowed passes add to their lead comes to a thousandth)
    chained = 1.05 * slowdown_share(cluster) * chained_passes_s(layouts, without)
    assert (base.step_time_s <= without.step_time_s * (1 + 1e-3) + chained).all()
    for name, column in without.hidden_s.items():
        # stages behind the first reduce while the others still drain: hidden in idle time
        rows = layouts.pp == 1 if name == "dp" else slice(None)
        assert not column[rows].any(), name


def test_hiding_a_reduction_costs_no_more_than_the_compute_beside_it(
    seen: tuple[Layouts, Case, Estimate],
) -> None:
    """What hides in the idle time of a stage slows nothing."""
    layouts, (work, cluster, software), _ = seen

    def slowdown(hides: bool) -> Any:
        overlap = replace(software.overlap, gradient_reduce=hides, parameter_gather=hides)
        found = evaluate(layouts, work, cluster, replace(software, overlap=overlap))
        other = ("dp", "optimizer", "pp", "bubble_warmup", "bubble_drain")
        passes = [x for name, x in found.terms_s.items() if name not in other]
        return found.terms_s["slowdown"], sum(passes)

    (beside, busy), (before, _) = slowdown(True), slowdown(False)
    # one pass of a micro-batch, or every pass where sharded gradients are reduced in each
    every = layouts.sharding == SHARDINGS.index("zero2")
    window = busy / np.where(every, 1, layouts.micro_batches)
    # chunks that end early hide behind a round of passes; so do those of the other ranks, whose
    # slowed passes lengthen fill and drain
    v, rounds = layouts.vpp, np.maximum(layouts.pp, layouts.micro_batches)
    early = (1 + (v - 1) * rounds) / v
    most = early * (window + (layouts.pp - 1) / v * busy / layouts.micro_batches)
    assert (beside - before <= slowdown_share(cluster) * most).all()


def test_expert_traffic_beside_other_compute_is_never_slower(
    seen: tuple[Layouts, Case, Estimate],
) -> None:
    layouts, (work, cluster, software), base = seen
    beside = replace(software, overlap=replace(software.overlap, expert=True))
    found = evaluate(layouts, work, cluster, beside)
    # but where the host binds: passes in pieces are more work for it
    later = found.terms_s["launch"] > base.terms_s["launch"]
    assert ((found.step_time_s <= base.step_time_s * (1 + 1e-12)) | later).all()
    whole = found.terms_s["ep"] + found.hidden_s["ep"]
    # terms are those of the slowest stage, which may be another one where traffic hides
    same = found.slowest_stage == base.slowest_stage
    assert same.mean() > 0.9
    np.testing.assert_allclose(whole[same], base.terms_s["ep"][same], rtol=1e-9)
    for name, column in columns(found).items():
        assert (column >= -1e-12).all(), name
    alone = layouts.ep == 1
    assert (found.step_time_s[alone] == base.step_time_s[alone]).all()


def test_sending_tokens_once_is_never_slower(seen: tuple[Layouts, Case, Estimate]) -> None:
    layouts, (work, cluster, software), base = seen
    """But for a start that is longer than NCCL's: a few microseconds of calls with few tokens; and
    for reductions that hide more where the host is behind, and hold units of compute meanwhile."""
    found = evaluate(layouts.replace(dispatcher="deepep"), work, cluster, software)
    assert (found.step_time_s <= base.step_time_s * (1 + 1e-3)).all()


def test_launches_that_are_waited_for_are_never_faster(
    seen: tuple[Layouts, Case, Estimate],
) -> None:
    layouts, (work, cluster, software), base = seen
    blocking = replace(software, host=replace(software.host, waits_for_kernels=True))
    found = evaluate(layouts, work, cluster, blocking)
    assert (found.step_time_s >= base.step_time_s).all()
    np.testing.assert_allclose(sum(found.terms_s.values()), found.step_time_s, rtol=1e-13)


@pytest.mark.parametrize("words", ["norm", "norm+moe_act", "moe"])
def test_named_modules_cost_what_software_that_always_names_them_costs(words: str) -> None:
    """Beside rows without recomputation and with the usual modules, in one table."""
    work = Workload(
        architecture=presets.load("mixtral-8x7b"),
        recipe=Recipe(sequence_length=4096, global_batch=64),
    )
    cluster, software = load_cluster("dgx-h100", 64), load_software("megatron-core")
    split = {"tp": 2, "pp": 4, "dp": 8, "ep": 8, "global_batch": 64, "sharding": "zero1"}
    table = Layouts.of(
        **split,
        recompute=["none", "selective", "selective", "full"],
        recompute_modules=["", "", words, ""],
    )
    mixed = evaluate(table, work, cluster, software)
    always = evaluate(
        table[2].replace(recompute_modules=""),
        work,
        cluster,
        software.recomputing(words.split("+")),
    )
    assert mixed.step_time_s[2] == always.step_time_s[0]
    assert mixed.memory_total_bytes[2] == always.memory_total_bytes[0]
    assert mixed.executed_flop[2] == always.executed_flop[0]
    plain = evaluate(table[[0, 1, 3]], work, cluster, software)
    assert (mixed.step_time_s[[0, 1, 3]] == plain.step_time_s).all()
    assert mixed.memory_total_bytes[3] < mixed.memory_total_bytes[2] < mixed.memory_total_bytes[0]
    assert mixed.step_time_s[0] < mixed.step_time_s[2] < mixed.step_time_s[3]
