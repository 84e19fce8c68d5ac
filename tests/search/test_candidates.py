"""The enumeration: distinct rows, nothing possible left out, pinned fields kept."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from simulator.cost.step import evaluate
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.layout.layouts import RECOMPUTE, SHARDINGS, Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.schedules.registry import WORDS
from simulator.search.candidates import candidates, count, families
from simulator.search.explore import explore
from simulator.software.profile import Software, load_software
from simulator.workload import presets
from simulator.workload.recipe import Recipe, Workload

Case = tuple[Workload, Cluster, Software]

SMALL = {
    "dense": ("llama-3.1-8b", "dgx-h100", 8, "megatron-core", 4096, 16),
    "experts": ("mixtral-8x7b", "hgx-h200", 16, "megatron-core", 4096, 32),
    "fsdp": ("llama-3.1-8b", "aws-p5", 16, "torchtitan", 8192, 32),
    "old": ("gpt3-6.7b", "dgx-a100", 16, "megatron-lm-2022", 2048, 32),
    "plain": ("gpt2-xl", "dgx-a100", 8, "plain-ddp", 1024, 64),
}


def case(name: str) -> Case:
    model, cluster, gpus, software, length, batch = SMALL[name]
    recipe = Recipe(sequence_length=length, global_batch=batch)
    work = Workload(architecture=presets.load(model), recipe=recipe)
    return work, load_cluster(cluster, gpus), load_software(software)


def everything(name: str) -> Layouts:
    """Every combination of degrees and modes, most of them nonsense; whole-rank recomputation."""
    work, cluster, software = case(name)
    arch, gpus = work.architecture, cluster.gpus
    experts = (1, 2, 4, 8) if arch.is_moe else (1,)
    powers = [d for d in (1, 2, 4, 8, 16) if d <= gpus]
    axes: dict[str, Any] = {
        "tp": powers,
        "pp": powers,
        "cp": [1, 2, 4],
        "vpp": [v for v in range(1, 17) if arch.layers % v == 0],
        "ep": experts,
        "etp": [1, 2, 4, 8] if arch.is_moe else [1],
        "micro_batch": [1, 2, 3, 4, 8, 16],
        "sharding": range(len(SHARDINGS)),
        "sequence_parallel": (0, 1),
        "recompute": range(len(RECOMPUTE)),
        "rank_order": [0, 1],
    }
    rows = np.array(list(product(*(axes[x] for x in ("tp", "pp", "cp")))))
    rows = rows[gpus % rows.prod(axis=1) == 0]
    rest = np.array(list(product(*(list(axes[x]) for x in list(axes)[3:]))))
    grid = np.concatenate(
        [np.repeat(rows, len(rest), axis=0), np.tile(rest, (len(rows), 1))], axis=1
    )
    named = dict(zip(axes, grid.T, strict=True))
    dp = gpus // (named["tp"] * named["pp"] * named["cp"])
    kind = (*software.supports.cp_kinds, "ring")[0]
    table = Layouts.of(**named, dp=dp, cp_kind=kind, global_batch=work.recipe.global_batch)
    table = table[(table.etp == 1) | (table.etp == table.tp)]
    table = table[(table.cp == 1) | (work.recipe.sequence_length // 2048 >= table.cp)]
    table = Layouts.concatenate([table, *shared_by_a_server(table)])
    return table[reasons(table, work, cluster, software) == FEASIBLE]


def shared_by_a_server(table: Layouts) -> list[Layouts]:
    """Hybrid sharding inside a server of 8; zero3 that reshards into one after the forward pass."""
    replicas = table.dp * table.cp
    near = np.gcd(replicas, np.maximum(8 // table.tp, 1))
    some = (near > 1) & (near < replicas)
    hybrid, full = some & (table.sharding > 0), some & (table.sharding == 3)
    return [
        table[hybrid].replace(shard_group=near[hybrid]),
        table[full].replace(reshard_after_forward=near[full]),
    ]


def keys(table: Layouts) -> set[tuple[int, ...]]:
    """Rows; the rank order counts only where pipeline and data-parallel ranks could swap.

    One data-parallel rank has nothing to share, so that its kind of sharding does not count.
    """
    columns = table.columns()
    swaps = (table.pp > 1) & (table.dp > 1)
    columns["rank_order"] = np.where(swaps, table.rank_order, 0)
    columns["sharding"] = np.where(table.dp * table.cp > 1, table.sharding, 0)
    return set(zip(*(column.tolist() for column in columns.values()), strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_no_row_stands_twice(name: str) -> None:
    table = candidates(*case(name))
    rows = np.stack(list(table.columns().values()), axis=1)
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize("name", SMALL)
def test_every_possible_layout_is_enumerated(name: str) -> None:
    work, cluster, software = case(name)
    table = candidates(work, cluster, software)
    able = table[reasons(table, work, cluster, software) == FEASIBLE]
    missing = keys(everything(name)) - keys(able)
    assert not missing, f"{len(missing)} of {len(able)} missing, one is {min(missing)}"


@pytest.mark.parametrize("name", SMALL)
def test_ranges_of_micro_batches_make_up_the_whole(name: str) -> None:
    whole = candidates(*case(name))
    parts = [f.table() for r in ((0, 2), (2, 8), (8, 1e9)) for f in families(*case(name), micro=r)]
    assert sum(map(len, parts)) == len(whole) == count(*case(name))
    assert set().union(*map(keys, parts)) == keys(whole)
    some = {(1, 1, 1, case(name)[1].gpus)}
    (only,) = (f.table() for f in families(*case(name), outer=some))
    assert len(only) == count(*case(name), outer=some)
    assert (only.tp * only.pp * only.cp == 1).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SMALL)
def test_the_search_finds_the_fastest_that_brute_force_finds(name: str) -> None:
    work, cluster, software = case(name)
    brute = evaluate(everything(name), work, cluster, software)
    best = float(brute.step_time_s[brute.fits].min())
    found = explore(work, cluster, software, {"recompute_layers": 0})
    assert found.best.step_time_s[0] <= best * (1 + 1e-12)  # less: a step beside the grid
    free = explore(work, cluster, software)
    assert free.best.step_time_s[0] <= best * (1 + 1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_every_row_uses_all_accelerators_and_the_whole_batch(name: str) -> None:
    work, cluster, software = case(name)
    table = candidates(work, cluster, software)
    assert (table.world == cluster.gpus).all()
    assert (table.global_batch == work.recipe.global_batch).all()
    assert (table.micro_batches * table.micro_batch * table.dp == table.global_batch).all()
    assert table.micro_batch.max() == work.recipe.global_batch // table.dp.min()
    assert (table.dp * table.cp % table.shard_group == 0).all()
    ours = table.shard_group < table.dp * table.cp
    assert (table.shard_group[ours] == 8 // table.tp[ours]).all()  # the server's ranks


@pytest.mark.parametrize(
    "pinned",
    [
        {"tp": 4},
        {"pp": 2, "vpp": 2},
        {"cp": 2},
        {"dp": 4},
        {"ep": 4, "etp": 1},
        {"micro_batch": 2, "sequence_parallel": True},
        {"sharding": "zero1"},
        {"rank_order": "tp-cp-pp-dp"},
        {"recompute": "selective"},
        {"recompute": "full", "recompute_layers": 2},
        {"tp": 2, "pp": 2, "dp": 4, "cp": 1, "ep": 4, "recompute": "none"},
    ],
)
def test_pinned_fields_keep_their_value(pinned: dict[str, Any]) -> None:
    table = candidates(*case("experts"), pinned)
    assert len(table)
    for field, value in pinned.items():
        expected = Layouts.of(**{field: value}).columns()[field][0]
        assert (table.columns()[field] == expected).all(), field


@pytest.mark.parametrize(("field", "value"), [("tp", 2), ("ep", 8), ("micro_batch", 4), ("pp", 4)])
def test_pinning_a_field_leaves_the_possible_rows_that_hold_it(field: str, value: int) -> None:
    work, cluster, software = case("experts")

    def possible(pinned: dict[str, Any]) -> Layouts:
        table = candidates(work, cluster, software, pinned)
        return table[reasons(table, work, cluster, software) == FEASIBLE]

    whole = possible({})
    assert keys(possible({field: value})) == keys(whole[whole.columns()[field] == value])


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("gpipe", {1}), ("zb_v", {2}), ("dualpipe_v", {2}), ("looped_bfs", {2, 4, 8, 16})],
)
def test_a_pinned_schedule_runs_every_pipeline(schedule: str, chunks: set[int]) -> None:
    work, cluster, software = case("fsdp")
    table = candidates(work, cluster, software, {"schedule": schedule})
    table = table[reasons(table, work, cluster, software) == FEASIBLE]
    piped = table[table.pp > 1]
    assert len(piped)
    assert set(piped.schedule.tolist()) == {WORDS.index(schedule)}
    assert set(piped.vpp.tolist()) <= chunks
    # without a pipeline there is nothing to schedule: the rows of any other search
    assert (table[table.pp == 1].schedule == 0).all()


def test_any_schedule_is_every_one_that_the_software_has() -> None:
    work, cluster, software = case("fsdp")

    def possible(schedule: str | None) -> set[tuple[int, ...]]:
        table = candidates(work, cluster, software, {"schedule": schedule} if schedule else {})
        found = table[reasons(table, work, cluster, software) == FEASIBLE]
        assert len(keys(found)) == len(found)
        return keys(found)

    each = set().union(*(possible(word) for word in software.supports.schedules))
    assert possible("any") == each
    assert possible(None) == possible("1f1b") | possible("interleaved")


def test_degrees_that_do_not_divide_the_cluster_leave_one_row_to_blame() -> None:
    work, cluster, software = case("dense")
    table = candidates(work, cluster, software, {"tp": 3})
    assert len(table) >= 1
    assert (reasons(table, work, cluster, software) != FEASIBLE).all()


# --- modules of selective recomputation ---------------------------------------------------


def named_sets(work: Workload, cluster: Cluster, software: Software) -> set[str]:
    """What selective recomputation names in some row."""
    table = candidates(work, cluster, software)
    first = np.unique(table.recompute_modules, return_index=True)[1]
    return {table.row(int(i))["recompute_modules"] for i in first}


def test_selective_recomputation_names_what_the_model_has() -> None:
    assert named_sets(*case("dense")) == {"", "norm", "norm+mlp"}
    assert named_sets(*case("experts")) == {"", "norm+moe_act", "norm+moe"}
    assert named_sets(*case("fsdp")) == {""}  # torchtitan has policies of its own


def test_pinned_modules_are_those_of_every_row() -> None:
    table = candidates(*case("dense"), {"recompute_modules": "mlp"})
    assert len(table)
    assert set(table.recompute.tolist()) == {RECOMPUTE.index("selective")}
    assert {table.row(i)["recompute_modules"] for i in range(len(table))} == {"mlp"}
