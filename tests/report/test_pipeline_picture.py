"""The picture of a played step: whole for short steps, both ends of long ones."""

import io
from dataclasses import replace

import numpy as np
import pytest

from simulator.api import predict
from simulator.events.played import SimulatedStep
from simulator.events.simulated_step import simulate
from simulator.report.canvas import png_bytes
from simulator.report.palette import colour
from simulator.report.pipeline_picture import _windows, pipeline_picture


def played(batch: int) -> SimulatedStep:
    found = predict(
        model="llama-3.1-8b",
        cluster="dgx-h100",
        gpus=8,
        pp=4,
        sequence_length=2048,
        global_batch=batch,
    )
    s = found.scenario
    return simulate(found.estimate.layouts, s.workload, s.cluster, s.software)


@pytest.fixture(scope="module")
def short() -> SimulatedStep:
    return played(16)


def pixels(png: bytes) -> np.ndarray:
    import matplotlib.image

    return np.asarray(matplotlib.image.imread(io.BytesIO(png), format="png"))


def test_a_short_step_is_shown_whole(short: SimulatedStep) -> None:
    assert _windows(short.timeline) == [(0.0, pytest.approx(short.step_time_s))]
    image = pixels(png_bytes(pipeline_picture(short, title="a model\na layout")))
    inks = (colour(name).light for name in ("attention", "gemm", "grid"))
    for ink in (np.array([*bytes.fromhex(ink[1:])]) / 255 for ink in inks):
        # forward and backward passes, and idle time behind them
        assert (np.abs(image[:, :, :3] - ink).max(axis=2) < 0.01).mean() > 0.01


def test_of_a_long_step_both_ends_are_shown() -> None:
    step = played(128)
    (start, first), (last, end) = _windows(step.timeline)
    assert (start, end) == (0.0, pytest.approx(step.step_time_s))
    assert first < last and first == pytest.approx(end - last)


def test_ends_that_would_overlap_are_one_picture() -> None:
    step = played(72)  # 36 forward and 36 backward passes per rank: less than twice 40
    assert _windows(step.timeline) == [(0.0, pytest.approx(step.step_time_s))]


def test_steps_without_a_flush_are_shown_to_their_end(short: SimulatedStep) -> None:
    """What is played of PipeDream is several steps; the last of them is the steady one."""
    line = short.timeline
    later = replace(line, start_s=line.start_s + 1.0, end_s=line.end_s + 1.0)
    assert _windows(later) == [(0.0, pytest.approx(short.step_time_s + 1.0))]


def test_the_same_step_gives_the_same_picture(short: SimulatedStep) -> None:
    assert png_bytes(pipeline_picture(short, title="")) == png_bytes(
        pipeline_picture(short, title="")
    )
