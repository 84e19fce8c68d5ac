"""Steps of a local search from one layout: which there are, by hand, and what follows from them."""

from itertools import permutations
from typing import Any

import pytest

from simulator.layout.layouts import Layouts
from simulator.layout.rules.feasibility import FEASIBLE, reasons
from simulator.scenario import Scenario, make_scenario
from simulator.search.neighbours import Moves

DEGREES = ("tp", "pp", "cp", "dp")
BASE = {"tp": 2, "pp": 2, "cp": 1, "dp": 4, "vpp": 2, "micro_batch": 2, "sharding": "zero1",
        "shard_group": 4, "sequence_parallel": True, "global_batch": 64}  # fmt: skip
MODELS = {"dense": "llama-3.1-8b", "experts": "mixtral-8x7b"}


def scenario(model: str = "dense", software: str = "megatron-core", **pinned: Any) -> Scenario:
    document: dict[str, Any] = {
        "model": {"name": MODELS[model]},
        "training": {"sequence_length": 4096, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 16, "software": software},
        "layout": pinned,
    }
    return make_scenario(document)


def around(at: Scenario, start: dict[str, Any], **pinned: Any) -> list[dict[str, Any]]:
    setting = (at.workload, at.cluster, at.software)
    table = Moves(setting, pinned, slower=True).around(Layouts.of(**start), set())
    return [table[i].row() for i in range(len(table))]


def alone(found: list[dict[str, Any]], start: dict[str, Any], *fields: str) -> set[Any]:
    """What rows have in those fields that are otherwise as at the start."""
    base = Layouts.of(**start).row()
    rows = [r for r in found if all(r[k] == v for k, v in base.items() if k not in fields)]
    return {tuple(row[name] for name in fields) if fields[1:] else row[fields[0]] for row in rows}


def test_a_factor_of_two_goes_from_each_degree_to_each_other_and_all_of_it_can_run() -> None:
    at, base = scenario(), tuple(BASE[name] for name in DEGREES)
    expected = set()
    for source, target in permutations(range(4), 2):
        if base[source] % 2 == 0:
            moved = list(base)
            moved[source], moved[target] = moved[source] // 2, moved[target] * 2
            expected.add(tuple(moved))
    rows = [row for row in around(at, BASE) if tuple(row[d] for d in DEGREES) != base]
    assert {tuple(row[d] for d in DEGREES) for row in rows} == expected
    table = Layouts.of(**{name: [row[name] for row in rows] for name in rows[0]})
    assert (reasons(table, at.workload, at.cluster, at.software) == FEASIBLE).all()
    for row in rows:  # zero1 over all ranks stays over all; chunks and micro-batches stay
        assert row["shard_group"] == row["dp"] * row["cp"]
        assert row["vpp"] == (2 if row["pp"] > 1 else 1)
        assert (row["micro_batch"], row["sequence_parallel"]) == (2, row["tp"] > 1)


@pytest.mark.parametrize(
    ("changed", "fields", "values"),
    [
        ({}, ("micro_batch",), {1, 4}),
        ({"micro_batch": 16}, ("micro_batch",), {8}),
        ({"micro_batch": 1}, ("micro_batch",), {2}),
        ({}, ("sequence_parallel",), {False}),
        ({"recompute": "full", "recompute_layers": 8}, ("recompute_layers",), {0, 1, 4, 7, 9}),
        ({"recompute": "full", "recompute_layers": 15}, ("recompute_layers",), {0, 1, 7, 14}),
        ({"recompute": "full"}, ("recompute_layers",), {1, 8, 15}),
        ({}, ("recompute", "recompute_layers"), {("full", 0), ("full", 1), ("selective", 0)}),
        (
            {},
            ("vpp", "schedule"),
            {(1, "1f1b"), *((v, "interleaved") for v in range(3, 18))},
        ),  # 32 layers and both ends
    ],
)
def test_one_field_by_hand(changed: dict[str, Any], fields: tuple[str, ...], values: Any) -> None:
    start = BASE | changed
    assert alone(around(scenario(), start), start, *fields) == values


def test_layers_of_a_piece_go_to_another() -> None:
    start = BASE | {"vpp": 1, "global_batch": 64}
    split = {tuple(row["stages"]) for row in around(scenario(), start) if row["stages"]}
    assert {(15, 17), (17, 15), (8, 24), (24, 8)} <= split
    assert {sum(layers) for layers in split} == {32}


def test_groups_of_experts_and_their_tensor_parallelism() -> None:
    start = BASE | {"ep": 2, "etp": 2, "vpp": 1}
    found = around(scenario("experts"), start)
    assert alone(found, start, "ep") == {1, 4}
    assert alone(found, start, "etp") == {1}


@pytest.mark.parametrize(("tp", "cp", "pp"), [(2, 2, 2), (1, 4, 2), (2, 4, 1)])
def test_experts_are_dealt_over_context_ranks_too(tp: int, cp: int, pp: int) -> None:
    """Eight experts over the tp x cp x dp = 8 or 16 ranks of a stage: halves and quarters."""
    start = BASE | {"tp": tp, "cp": cp, "pp": pp, "dp": 2, "vpp": 1, "ep": 2, "etp": 1,
                    "shard_group": 2, "sequence_parallel": tp > 1}  # fmt: skip
    assert alone(around(scenario("experts"), start), start, "ep") == {1, 4}


@pytest.mark.parametrize("again", [0, 4])
def test_groups_that_share_parameters_and_gather_again(again: int) -> None:
    start = {"dp": 16, "sharding": "zero3", "shard_group": 8, "global_batch": 64,
             "reshard_after_forward": again}  # fmt: skip
    found = around(scenario(software="torch-fsdp"), start)
    assert alone(found, start, "reshard_after_forward") == ({4} if again == 0 else {2, True})
    groups = alone(found, start, "shard_group")
    assert groups == ({2, 4, 16} if again == 0 else {16})


@pytest.mark.parametrize("name", ["tp", "vpp", "micro_batch", "sharding", "shard_group", "stages"])
def test_what_is_pinned_stays(name: str) -> None:
    base = Layouts.of(**BASE).row()
    found = around(scenario(), BASE, **{name: base[name]})
    assert found
    assert all(row[name] == base[name] for row in found)
