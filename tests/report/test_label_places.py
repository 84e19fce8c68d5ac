"""Words of the picture of cost against time stand beside one another, not on one another."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from simulator.economics.planning_factor import Span
from simulator.questions.compare.offer import Asked, Offer
from simulator.report.canvas import FULL, NARROW, WIDE, canvas, legend
from simulator.report.decision import Option
from simulator.report.decision_picture import draw_decision
from simulator.report.label_places import Box, Label, Place, Plot, placed

LETTER = 0.5
"""Width of a letter over its height, of narrow faces: what overlaps with it overlaps with any."""

PRICE = {"usd_per_gpu_hour": 3.0, "grade": "assumed", "term": "on demand", "provider": "a cloud",
         "date": "2026-05-01", "source": "", "base": "cluster"}  # fmt: skip


def place(x: float, y: float, ha: str = "left") -> Place:
    return Place(at=(x, y), shift=(0.0, 0.0), ha=ha, va="bottom")


def test_the_second_place_is_taken_where_words_stand_at_the_first() -> None:
    """A frame of 100 by 100 points; four digits of 10 points are some 24 wide and 12.5 high."""
    plot = Plot(x=(0.0, 1.0), y=(0.0, 1.0), width=100.0, height=100.0)
    first = Label(text="1111", size=10.0, places=[place(0.1, 0.5)], style={})
    both = [place(0.2, 0.55), place(0.2, 0.8)]
    second = Label(text="2222", size=10.0, places=both, style={})
    third = Label(text="3333", size=10.0, places=both, style={}, needed=False)
    written = placed([first, second, third], plot, [])
    assert [label.text for label, _, _ in written] == ["1111", "2222"], "no place for a third"
    assert [where.at for _, where, _ in written] == [(0.1, 0.5), (0.2, 0.8)]
    outside = Label(text="4444", size=10.0, places=[place(0.9, 0.1), place(0.9, 0.1, "right")],
                    style={})  # fmt: skip
    assert placed([outside], plot, [])[0][1].ha == "right", "words end within the frame"
    mark = plot.mark(0.2, 0.58, 8.0)
    assert placed([second], plot, [mark])[0][1].at == (0.2, 0.8), "nor do they stand on points"


def words_of(seed: int, inches: tuple[float, float]) -> list[tuple[str, Box]]:
    """Words in a picture of made-up offers, near a deadline and a budget, and their boxes on it."""
    draw = np.random.default_rng(seed)
    rows = []
    for number, chip in enumerate(("h100-sxm", "h100-sxm", "b200-sxm")[: int(draw.integers(1, 4))]):
        days, usd = draw.uniform(5.0, 60.0), draw.uniform(2e5, 9e5)
        for step in range(int(draw.integers(1, 4))):
            took = Span(p50=days / 2**step, log_spread=0.08)
            paid = Span(p50=usd * 1.02**step, log_spread=0.1)
            rows.append(
                Offer(cluster=f"cloud-{number}", accelerator=chip, gpus=64 << step, feasible=True,
                      days=took, usd=paid, memory_verdict="FITS", memory_total_bytes=6e10,
                      memory_p90_bytes=6.1e10, usable_bytes=8e10, usd_per_gpu_hour=3.0, price=PRICE)
            )  # fmt: skip
    near = rows[int(draw.integers(len(rows)))]
    assert near.days is not None and near.usd is not None
    late, dear = (float(x) for x in draw.uniform(0.95, 1.1, 2) * (near.days.p50, near.usd.p50))
    picked = draw.permutation(len(rows))[:2].tolist()
    options = [Option(roles=(), offer=rows[i], recommended=False, facts=()) for i in picked]
    figure, axes = canvas(*inches, svg=True)
    written = list[tuple[str, tuple[float, float], tuple[float, float], dict[str, Any]]]()
    axes.annotate = lambda text, at, shift, **style: written.append((text, at, shift, style))
    draw_decision(axes, rows, options, Asked(deadline_days=late, budget_usd=dear), inches)
    legend(figure, axes)
    figure.svg(head=False)  # lays the axes out
    words = []
    for text, at, shift, style in written:
        x = float(axes.xaxis.place(at[0])) + shift[0]
        y = shift[1] - float(axes.yaxis.place(at[1]))
        wide, tall = LETTER * style["fontsize"] * len(text), 0.75 * style["fontsize"]
        left = x - wide * {"left": 0.0, "center": 0.5, "right": 1.0}[style["ha"]]
        foot = y - tall * {"bottom": 0.0, "top": 1.0}[style["va"]]
        words.append((text, (left, left + wide, foot, foot + tall)))
    return words


@pytest.mark.parametrize("inches", [(FULL, 4.8), (WIDE, 4.1), (NARROW, 4.0)])
def test_no_words_of_a_decision_stand_on_others(inches: tuple[float, float]) -> None:
    struck = []
    for seed in range(40):
        words = words_of(seed, inches)
        assert sum(text.startswith(("deadline", "budget")) for text, _ in words) == 2
        for (a, (left, right, foot, top)), (b, box) in combinations(words, 2):
            apart = left >= box[1] or box[0] >= right or foot >= box[3] or box[2] >= top
            struck += [] if apart else [(seed, a, b)]
    assert not struck


def test_lines_of_one_gpu_are_told_apart() -> None:
    """Two clouds with the same GPU have its colour and its sign, so their lines differ."""
    rows = [
        Offer(cluster=cloud, accelerator="h100-sxm", gpus=gpus, feasible=True, price=PRICE,
              days=Span(p50=1000.0 / gpus, log_spread=0.1), usd=Span(p50=usd, log_spread=0.1),
              memory_verdict="FITS", memory_total_bytes=6e10, memory_p90_bytes=6.1e10,
              usable_bytes=8e10, usd_per_gpu_hour=3.0)
        for cloud, usd in (("cloud-0", 2e5), ("cloud-1", 4e5))
        for gpus in (64, 128)
    ]  # fmt: skip
    _, axes = canvas(WIDE, 4.1, svg=True)
    draw_decision(axes, rows, [], Asked())
    signs = {key.label: (key.ink, key.marker, key.dash) for key in axes.keys.values()}
    assert signs["cloud-0"][:2] == signs["cloud-1"][:2]
    assert signs["cloud-0"][2] != signs["cloud-1"][2]
