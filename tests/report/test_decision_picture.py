"""Money against time, drawn: which points are named, where whiskers end, when an axis is a log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from simulator.economics.planning_factor import Span
from simulator.questions.compare.offer import Asked, Offer
from simulator.report.decision import Option
from simulator.report.decision_picture import draw_decision, drawn_offers
from simulator.report.palette import colour


def an_offer(gpus: int, days: float, usd: float, gpu: str = "h100-sxm", **more: Any) -> Offer:
    return Offer(
        cluster=gpu, accelerator=gpu, gpus=gpus, feasible=True,
        days=Span(p50=days, log_spread=0.1), usd=Span(p50=usd, log_spread=0.2), **more,
    )  # fmt: skip


def drawn(offers: list[Offer], *options: Offer, **asked: Any) -> Any:
    axes = Figure().add_subplot()
    chosen = [Option(roles=("soonest",), offer=o, recommended=False, facts=()) for o in options]
    draw_decision(axes, offers, chosen, Asked(**asked))
    return axes


@pytest.mark.parametrize(("longest", "scale"), [(119.0, "linear"), (121.0, "log")])
def test_times_that_lie_more_than_twelve_times_apart_have_a_log_axis(
    longest: float, scale: str
) -> None:
    axes = drawn([an_offer(8, longest, 1e3), an_offer(64, 10.0, 2e3)])
    assert axes.get_xscale() == scale
    assert ("(log scale)" in axes.get_xlabel()) == (scale == "log")
    low, high = axes.get_xlim()
    assert (low == 0.0) == (scale == "linear")
    assert low < 10.0 * np.exp(-0.13) and high > longest * np.exp(0.12)


def test_the_first_and_the_last_size_of_a_gpu_and_the_options_are_named() -> None:
    """Of four sizes the ends say how many GPUs they are, an option which too, others nothing."""
    rows = [an_offer(8 * n, 80.0 / n, 1e3 + 10 * n) for n in (1, 2, 4, 8)]
    axes = drawn(rows, rows[1])
    assert [text.get_text() for text in axes.texts] == ["16 H100", "8", "64"]
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [float(line.get_xdata()[0]) for line in points] == [80.0, 40.0, 20.0, 10.0]
    assert len({line.get_markersize() for line in points}) == 2
    assert points[1].get_markersize() > points[0].get_markersize()


def test_whiskers_go_from_p10_to_p90() -> None:
    """In days across, in money up and down: thousands of USD on the axis."""
    offer = an_offer(8, 50.0, 2e6)
    (across, along) = [x.get_segments()[0] for x in drawn([offer]).collections]
    tenth = 1.2815515655
    ends = 50.0 * np.exp(-0.1 * tenth), 50.0 * np.exp(0.1 * tenth)
    assert across[:, 0] == pytest.approx(ends)
    assert across[0, 1] == across[1, 1]
    unit = across[0, 1] / 2e6
    ends = 2e6 * unit * np.exp(-0.2 * tenth), 2e6 * unit * np.exp(0.2 * tenth)
    assert along[:, 1] == pytest.approx(ends)
    assert along[:, 0] == pytest.approx([50.0, 50.0])


@pytest.mark.parametrize(("count", "whiskers"), [(12, 12), (13, 1)])
def test_of_more_than_twelve_offers_the_options_alone_have_whiskers(
    count: int, whiskers: int
) -> None:
    rows = [an_offer(8 * n, 100.0 / n, 1e3) for n in range(1, count + 1)]
    assert len(drawn(rows, rows[3]).collections) == 2 * whiskers


def test_a_tight_offer_is_hollow_and_what_is_far_beyond_the_deadline_is_left_out() -> None:
    rows = [
        an_offer(8, 161.0, 1e3), an_offer(16, 159.0, 1e3), an_offer(32, 90.0, 1e3),
        an_offer(64, 60.0, 1e3, memory_verdict="TIGHT"),
    ]  # fmt: skip
    assert drawn_offers(rows, [], Asked(deadline_days=100.0)) == rows[1:]
    axes = drawn(rows, rows[0], deadline_days=100.0)
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    hollow = {
        float(line.get_xdata()[0]): to_hex(line.get_markerfacecolor()) == "#ffffff"
        for line in points
    }
    assert hollow == {161.0: False, 159.0: False, 90.0: False, 60.0: True}
    assert "deadline 100 days" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize(("days", "there"), [(299.0, True), (301.0, False)])
def test_a_limit_beyond_three_times_what_is_drawn_is_written_instead(
    days: float, there: bool
) -> None:
    """The slowest offer may take 100 days (P90)."""
    offer = an_offer(8, 100.0 / np.exp(0.12815515655), 1e3)
    words = [text.get_text() for text in drawn([offer], deadline_days=days).texts]
    assert (f"deadline {days:.0f} days" in words) == there
    assert (f"deadline {days:.0f} days lies beyond" in words) != there


def test_past_the_deadline_is_shaded_over_what_is_over_the_budget() -> None:
    """Both shades are opaque: the one drawn last shows where they meet."""
    axes = drawn([an_offer(8, 50.0, 2e6)], deadline_days=40.0, budget_usd=1e6)
    shades = [to_hex(patch.get_facecolor()) for patch in axes.patches]
    assert shades == [colour("over budget").light, colour("past deadline").light]
