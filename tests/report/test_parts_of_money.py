"""Money of a plan by its parts, by hand: training, what is lost, spares, racks, electricity."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulator.report.numbers import cost_lines
from simulator.report.svg_figure import SvgFigure

GPUS = 100


def outcome(**changes: Any) -> Any:
    """Ten days of 100 at 2 USD in place of eight, three servers of eight beside, racks of 144."""
    given: dict[str, Any] = {
        "days_ideal": np.array([8.0]), "days": np.array([10.0]),
        "gpu_hours": np.array([240.0 * 144]), "usd": np.array([240.0 * 144 * 2.0 + 5000.0]),
        "kwh": np.array([70_000.0]), "gpus_per_server": 8,
        "price": SimpleNamespace(usd_per_gpu_hour=2.0),
        "real": SimpleNamespace(hot_spares=np.array([3.0])),
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


def test_every_part_of_the_money() -> None:
    lines = cost_lines(outcome(), GPUS)
    assert [line.what for line in lines] == [
        "training", "failures, checkpoints, restarts and slow steps", "hot spares",
        "rest of racks that are let whole", "electricity",
    ]  # fmt: skip
    hours = (8 * 24 * 100, 2 * 24 * 100, 240 * 24, 240 * 20)
    assert [line.usd for line in lines] == pytest.approx([*(2.0 * x for x in hours), 5000.0])
    assert [line.amount for line in lines] == [
        "19.2k GPU-hours", "4.8k GPU-hours", "5.76k GPU-hours", "4.8k GPU-hours", "70k kWh",
    ]  # fmt: skip
    assert sum(line.usd for line in lines) == pytest.approx(240 * 144 * 2.0 + 5000.0)


def test_parts_that_are_nothing_are_left_out() -> None:
    plain = outcome(real=None, gpu_hours=np.array([24_000.0]), usd=np.array([48_000.0]))
    assert [line.what for line in cost_lines(plain, GPUS)] == [
        "training", "failures, checkpoints, restarts and slow steps",
    ]  # fmt: skip
    for little, shown in ((4.7, False), (4.9, True)):  # a ten-thousandth of the money
        power = outcome(real=None, gpu_hours=np.array([24_000.0]),
                        usd=np.array([48_000.0 + little]))  # fmt: skip
        assert any(x.what == "electricity" for x in cost_lines(power, GPUS)) is shown
    unpriced = outcome(price=SimpleNamespace(usd_per_gpu_hour=None))
    assert cost_lines(unpriced, GPUS) == cost_lines(outcome(usd=np.array([np.inf])), GPUS) == []


def test_a_legend_in_a_plot_stands_in_its_upper_left_corner() -> None:
    """Six points from its left side and four below its head; lines 1.45 letters apart."""
    figure = SvgFigure(5.0, 3.0)
    axes = figure.subplots()
    for number, word in enumerate(("one", "two")):
        axes.barh(number, 1.0, color="#123456", label=word)
    axes.legend(fontsize=10.0)
    svg = figure.svg()
    x, y = axes.xaxis.first + 6.0, axes.yaxis.first + axes.yaxis.span + 4.0
    for number, word in enumerate(("one", "two")):
        middle = y + 14.5 * number + 6.0
        assert f'x="{x + 19.0:.1f}"'.replace('.0"', '"') in svg
        written = f"{middle - 4.4 + 8.0:.1f}".removesuffix(".0")
        assert f'y="{written}"' in svg and f">{word}<" in svg
