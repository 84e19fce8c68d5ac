"""Figures behind an answer, sorted by how much it moves with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator import predict
from simulator.cost.step import evaluate
from simulator.files import Figure
from simulator.planner import sensitivity as room
from simulator.planner.answer_evidence import UsedFigure, used_figures
from simulator.planner.prediction import Prediction
from simulator.planner.sensitivity import figure_effects

NAMES = ("matrix_flop_per_s.bf16", "memory.bandwidth_bytes_per_s", "scale_out.adapter_bytes_per_s")


@pytest.fixture(scope="module")
def answer() -> Prediction:
    return predict(model="llama-3.1-8b", cluster="dgx-h100", gpus=16)


def some(*args: object) -> list[UsedFigure]:
    return [figure for figure in used_figures(*args) if figure.name in NAMES]  # type: ignore[arg-type]


def test_figures_are_sorted_by_what_they_do(
    answer: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "used_figures", some)
    found = figure_effects(answer)
    assert found[0].figure.name == NAMES[0]
    assert sorted(effect.figure.name for effect in found) == sorted(NAMES)
    assert all(effect.change_s < 0.0 for effect in found)  # all three are rates
    sizes = [abs(effect.change_s) for effect in found]
    assert sizes == sorted(sizes, reverse=True)
    first = found[0]
    assert first.moved == room.UNSTATED and first.figure.grade == "datasheet"
    # no step is sped up by more than the peak of its products
    assert -first.change_s < answer.step_time_s * (1.0 - 1.0 / 1.1)
    assert first.document()["step_time_change_s"] == first.change_s


def test_a_figure_is_replaced_where_it_stands(
    answer: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same machine written by hand: adapters that are a tenth faster."""
    monkeypatch.setattr(room, "used_figures", some)
    by_name = {effect.figure.name: effect for effect in figure_effects(answer)}
    effect, scenario = by_name[NAMES[2]], answer.scenario
    group = scenario.cluster.groups[0]
    out = group.node.scale_out
    faster = Figure(float(out.adapter_bytes_per_s) * (1.0 + effect.moved))
    node = replace(group.node, scale_out=replace(out, adapter_bytes_per_s=faster))
    cluster = replace(scenario.cluster, groups=(replace(group, node=node),))
    layouts = answer.estimate.layouts
    step_s = evaluate(layouts, scenario.workload, cluster, scenario.software).step_time_s[0]
    assert effect.change_s == pytest.approx(float(step_s) - answer.step_time_s, abs=1e-12)
