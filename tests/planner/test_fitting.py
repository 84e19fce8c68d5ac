"""Whether a layout fits by rank, the inputs of every kind, and the changes that make it fit."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from simulator.cost.estimate import VERDICTS
from simulator.files import Figure
from simulator.planner.fewest_changes import cheapest_changes
from simulator.planner.fitting import Fitting, _following, fitting
from simulator.planner.prediction import Prediction, predict
from simulator.questions.predict.from_files_screen import _stages
from simulator.scenario import make_scenario


def ask(model: str, gpus: int, software: str = "megatron-core", **layout: Any) -> Prediction:
    document = {
        "model": {"name": model},
        "training": {"sequence_length": 8192, "global_batch": 128},
        "cluster": {"name": "dgx-h100", "gpus": gpus, "software": software},
        "layout": layout,
    }
    return predict(make_scenario(document, where="run.toml"))


TOO_LARGE = [
    ("llama-3.1-8b", 8, {}),
    ("llama-3.1-70b", 64, {"tp": 4, "micro_batch": 2}),
    ("mixtral-8x7b", 16, {}),
]


def test_a_layout_that_fits_needs_no_change() -> None:
    found = fitting(ask("llama-3.1-8b", 8, tp=4, pp=2))
    assert (found.verdict, found.changes, found.nearest) == ("FITS", [], None)
    assert found.margin_bytes == found.usable_bytes - max(found.ranks.total_bytes) > 0
    assert len(found.ranks.total_bytes) == 2


@pytest.mark.parametrize(("model", "gpus", "layout"), TOO_LARGE)
def test_every_change_fits_when_it_is_predicted_alone(
    model: str, gpus: int, layout: dict[str, Any]
) -> None:
    asked = ask(model, gpus, **layout)
    found = fitting(asked)
    assert found.verdict == "OOM" and len(found.changes) == 3
    for change in found.changes:
        again = predict(asked.scenario, **change.set)
        assert again.fits
        assert again.estimate.layouts.describe() == change.layout
        assert again.step_time_s == pytest.approx(change.step_time_s, rel=1e-12)
        assert again.memory_bytes == pytest.approx(change.memory_total_bytes, rel=1e-12)
        assert change.added_s == pytest.approx(again.step_time_s - asked.step_time_s)


@pytest.mark.parametrize(("model", "gpus", "layout"), TOO_LARGE)
def test_cheapest_first_and_no_change_contains_a_cheaper_one(
    model: str, gpus: int, layout: dict[str, Any]
) -> None:
    changes = fitting(ask(model, gpus, **layout)).changes
    costs = [change.added_s for change in changes]
    assert costs == sorted(costs)
    fields = [set(change.set) - {"recompute_layers"} for change in changes]
    assert not any(a <= b for i, a in enumerate(fields) for b in fields[i + 1 :])


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_no_single_change_is_cheaper_than_the_first(mode: str) -> None:
    """Every recomputation, offload and degree by itself: none that fits beats the first answer."""
    asked = ask("llama-3.1-8b", 8)
    best = fitting(asked).changes[0].step_time_s
    tries: list[dict[str, Any]] = [{"recompute": mode}, {"sharding": "zero3"}]
    tries += [{name: n} for name in ("tp", "pp", "cp") for n in (2, 4, 8)]
    for change in tries:
        other = predict(asked.scenario, **change)
        assert not other.fits or other.step_time_s >= best, change


def test_a_layout_that_recomputes_some_layers_may_recompute_more_of_them() -> None:
    asked = ask("llama-3.1-8b", 8, recompute="full", recompute_layers=1)
    assert not asked.fits and predict(asked.scenario, recompute_layers=7).fits
    (more,) = [x for x in fitting(asked).changes if set(x.set) == {"recompute_layers"}]
    assert 1 < more.set["recompute_layers"] <= 7


def test_changes_are_what_the_launch_can_say() -> None:
    """torchtitan's full recomputation is of all layers: 28 of 32 no key of it asks for."""
    for software, counts in (("torchtitan", {0}), ("megatron-core", {*range(32)})):
        asked = ask("llama-3.1-8b", 8, software, micro_batch=2, sharding="zero3")
        changes = fitting(asked).changes
        assert changes
        assert {change.set.get("recompute_layers", 0) for change in changes} <= counts
    found = cheapest_changes(ask("llama-3.1-8b", 8, "torchtitan", micro_batch=4, sharding="zero3"))
    after = [change.fields.get("recompute_layers", (0, 0))[1] for change in found]
    assert found and not any(after)


def test_where_nothing_near_fits_the_smallest_neighbour_is_named() -> None:
    asked = ask("llama-3.1-405b", 8)
    found = fitting(asked)
    assert found.changes == [] and found.nearest is not None
    assert found.usable_bytes < found.nearest.memory_total_bytes < asked.memory_bytes


def test_one_gpu_has_no_degree_to_raise() -> None:
    asked = ask("llama-3.1-70b", 1, recompute="full")
    found = fitting(asked)
    assert found.verdict == "OOM" and found.changes == []


def test_states_may_leave_the_device() -> None:
    """16 GB of optimizer states too much for one GPU: the host has room for them."""
    found = fitting(ask("llama-3.1-8b", 1, sharding="zero1", recompute="full"))
    assert found.verdict == "OOM"
    (change,) = [x for x in found.changes if set(x.set) == {"optimizer_offload"}]
    assert change.set == {"optimizer_offload": "cpu"}
    assert change.memory_total_bytes <= found.usable_bytes and change.added_s > 0


def test_what_the_host_cannot_hold_does_not_fit() -> None:
    scenario = make_scenario(
        {
            "model": {"name": "llama-3.1-405b"},
            "training": {"sequence_length": 8192, "global_batch": 64},
            "cluster": {"name": "dgx-h100", "gpus": 8, "software": "deepspeed"},
            "layout": {
                "sharding": "zero3",
                "recompute": "full",
                "optimizer_offload": "cpu",
                "parameter_offload": "cpu",
            },
        }
    )
    found = fitting(predict(scenario))
    assert found.margin_bytes > 0 and not found.room_for_offload
    assert found.verdict == "OOM"
    assert found.changes[0].set["optimizer_offload"] == "nvme"  # 16 B of 405 B parameters: 6.5 TB


def worked_out(found: Fitting, rank: int, kind: str) -> float:
    """The bytes of a kind, from its inputs alone, by the formula that the report states."""
    x = found.ranks.inputs[rank][kind]
    if kind in ("weights", "gradients", "optimizer", "gathered"):
        return x["parameters of the rank"] * x["bytes per parameter"]
    if kind == "activations":
        more = x.get("pipeline buffers, less blocks gone by then", 0.0)
        each = x["bytes of a block and micro-batch"]
        return x["blocks"] * x["micro-batches in flight"] * each + more
    if kind == "workspace":
        copies = x["copies of the linears' gradients"]
        more = x.get("workspaces of experts and head, and a kept input gradient", 0.0)
        return (
            x["library bytes"] + 2 * copies * x["parameters of the linears, each shape once"] + more
        )
    if kind == "communicators":
        return x["communicators"] * x["bytes of one"]
    if kind == "fragmentation":
        return x["allocated bytes"] * x["fraction"] + x["idle bytes"]
    return sum(x.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("model", "software", "layout"),
    [
        ("llama-3.1-70b", "megatron-core", {"tp": 8, "pp": 4}),
        ("llama-3.1-70b", "torchtitan", {"tp": 8}),
        ("llama-3.1-70b", "torchtitan", {"tp": 2, "pp": 4}),
        ("mixtral-8x7b", "megatron-core", {"tp": 2, "pp": 4, "ep": 8}),
    ],
)
def test_the_inputs_give_the_bytes(
    model: str, software: str, layout: dict[str, Any], recompute: str
) -> None:
    found = fitting(ask(model, 64, software, recompute=recompute, **layout))
    for rank, inputs in enumerate(found.ranks.inputs):
        for kind, size in found.ranks.kinds_bytes.items():
            assert (kind in inputs) == (size[rank] > 0)
            if size[rank]:
                assert worked_out(found, rank, kind) == pytest.approx(size[rank], rel=1e-9), kind


def test_parameters_of_the_stages_are_those_of_the_model() -> None:
    found = fitting(ask("llama-3.1-70b", 64, pp=4, tp=1))
    held = [inputs["weights"]["parameters of the rank"] for inputs in found.ranks.inputs]
    assert sum(held) == 70_553_706_496


def test_the_verdict_turns_at_the_p50_and_at_the_p90_of_the_fullest_rank() -> None:
    found = fitting(ask("llama-3.1-8b", 8))
    need = float(found.ranks.total_bytes.max())
    assert found.ranks.spread == 0.024
    p90 = need * math.exp(1.2816 * 0.024)
    assert found.p90_bytes == pytest.approx(p90, rel=1e-12)
    lines = (p90 * 1.0001, p90 * 0.9999, need, need - 1)
    verdicts = [replace(found, usable_bytes=line).verdict for line in lines]
    assert verdicts == ["FITS", "TIGHT", "TIGHT", "OOM"]


def test_a_tight_layout_gets_changes_whose_p90_fits() -> None:
    asked = ask("llama-3.1-8b", 8, tp=2, micro_batch=2, sharding="zero1")
    line = Figure(asked.memory_bytes * 1.01)
    cluster = asked.scenario.cluster
    group = cluster.groups[0]
    memory = replace(group.accelerator.memory, usable_bytes=line)
    group = replace(group, accelerator=replace(group.accelerator, memory=memory))
    tight = predict(replace(asked.scenario, cluster=replace(cluster, groups=(group,))))
    assert (tight.memory_verdict, tight.fits) == ("TIGHT", True)
    found = fitting(tight)
    assert len(found.changes) == 3
    for change in found.changes:
        again = predict(tight.scenario, **change.set)
        assert again.estimate.memory_p90_bytes[0] <= line
        assert change.memory_verdict == again.memory_verdict == "FITS"


def test_stages_that_are_alike_share_a_row_of_the_screen() -> None:
    """Of 18 stages the first two and the last two take 50 GiB of 80, the others 60 to 73."""
    gib = 2.0**30
    totals = np.array([50.0, 50.0, *range(60, 74), 50.0, 50.0]) * gib
    ranks = SimpleNamespace(
        total_bytes=totals,
        p90_bytes=np.where(totals > 70 * gib, np.nan, 1.1 * totals),
        verdict=lambda usable: np.where(totals < 0.8 * usable, 0, 1),
    )
    table = _stages(cast("Fitting", SimpleNamespace(ranks=ranks, usable_bytes=80 * gib)))
    stage, used, p90, free, word = ([*column.cells] for column in table.columns)
    assert stage == ["0 to 1", *(str(i) for i in range(2, 16)), "16 to 17"]
    assert (used[0], p90[0], free[0]) == ("50.00", "55.00", "30.00") and used[-1] == "50.00"
    assert p90[-2] == "" and free[-2] == "7.00"
    assert set(word) == set(VERDICTS[:2])


@pytest.mark.parametrize(
    ("tp", "etp", "after"), [(2, 2, [1, 4]), (2, 1, [1, 1]), (1, 1, [1, 1]), (4, 2, [2, 2])]
)
def test_degrees_that_went_together_go_together(tp: int, etp: int, after: list[int]) -> None:
    """Experts that were cut as far as the rest stay so, over all ranks that share states too."""
    made = ask("mixtral-8x7b", 32, tp=tp, etp=etp, pp=2, sharding="zero1")
    row = made.estimate.layouts[0]
    fields = {name: np.array([value] * 2) for name, value in (("pp", 2), ("cp", 2))}
    follow = _following(made.scenario, row, {**fields, "tp": np.array([1, 4])})
    assert follow["etp"].tolist() == after
    assert follow["dp"].tolist() == [8, 2]  # of 32 GPUs
    assert follow["shard_group"].tolist() == [16, 4]  # all replicas, as before
    assert follow["sequence_parallel"].tolist() == [False, True]
    part = _following(made.scenario, row.replace(shard_group=2), {**fields, "tp": np.array([1, 4])})
    assert part["shard_group"].tolist() == [2, 2]
