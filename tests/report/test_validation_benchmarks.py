"""Microbenchmarks on the page: errors and ratios worked by hand from six timings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.report.validation_numbers import benchmark_figure, benchmark_tables
from simulator.report.validation_page import render_validation
from simulator.scoring.benchmark_score import BenchmarkScore
from simulator.scoring.validation import Validation


def make_score() -> BenchmarkScore:
    """Three GEMMs on one device, two on another, one attention."""
    kernels = np.array(["gemm", "gemm", "gemm", "gemm", "gemm", "<attention>"])
    devices = np.array(["h100", "h100", "h100", "a100", "a100", "h100"])
    same = np.array(["x"] * 6)
    return BenchmarkScore(
        kind="kernels",
        path="/some/folder/kernels.csv",
        rows=10,
        skipped={"no formula for <this>": 3, "no profile": 1},
        problems=(),
        line=np.arange(2, 8),
        predicted_s=np.array([0.5, 1.0, 2.0, 3.0, 3.0, 1.2]),
        measured_s=np.array([1.0, 1.0, 1.0, 2.0, 4.0, 1.0]),
        device=devices,
        library=same,
        dtype=same,
        kernel=kernels,
        decade=same,
        source=same,
    )


def test_lines_by_kernel_and_device_by_hand() -> None:
    (table,) = benchmark_tables([make_score()])
    assert (table.kind, table.rows, table.predicted) == ("kernels", 10, 6)
    # ratios: h100 gemm 0.5, 1, 2; a100 gemm 1.5, 0.75; attention 1.2
    found = {(line.kernel, line.device): line for line in table.lines}
    assert list(found) == [("<attention>", "h100"), ("gemm", "a100"), ("gemm", "h100")]
    gemm = found["gemm", "h100"]
    assert gemm.errors["n"] == 3
    assert gemm.errors["mape"] == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert gemm.errors["bias"] == pytest.approx((-0.5 + 0.0 + 1.0) / 3)
    # a tenth and nine tenths of the way from the first to the third
    assert gemm.ratios == pytest.approx((0.6, 1.0, 1.8))
    assert found["gemm", "a100"].ratios == pytest.approx((0.825, 1.125, 1.425))
    assert table.errors["mape"] == pytest.approx((0.5 + 0.0 + 1.0 + 0.5 + 0.25 + 0.2) / 6)


def test_the_figure_spans_p10_to_p90_around_the_median() -> None:
    (table,) = benchmark_tables([make_score()])
    figure = benchmark_figure(table, narrow=False)
    text = figure.svg()
    for name in ("&lt;attention&gt;, h100", "gemm, a100", "gemm, h100"):
        assert f">{name}</text>" in text
    assert "gemm, h100: 3 timings" in text
    assert "predicted / measured: median 1.00, P10 0.60, P90 1.80" in text
    axes = figure._plots[0][0]
    assert [value for value, _ in axes.xaxis.ticks(20.0)] == [1.0, 2.0]  # doubled, not 1.5
    places = axes.xaxis.place([1.0, 2.0]).tolist()
    assert places[1] - places[0] == pytest.approx(axes.xaxis.place([4.0])[0] - places[1])  # log


def test_a_page_of_microbenchmarks_alone() -> None:
    arrays = (
        "line",
        "predicted_s",
        "measured_s",
        "device",
        "library",
        "dtype",
        "kernel",
        "decade",
        "source",
    )
    none: dict[str, Any] = {name: getattr(make_score(), name)[:0] for name in arrays}
    unpriced = replace(make_score(), skipped={"nothing yet": 10}, **none)
    html = render_validation(Validation(rows=(), benchmarks=(unpriced, make_score())))
    assert html.count("Predicted over measured time: the point") == 1  # of the second alone
    assert "Timings of kernels: 6 of 10 predicted; mean error 40.8\xa0%" in html
    assert "Timings of kernels: 0 of 10 predicted." in html
    assert "no formula for &lt;this&gt;" in html
    assert "/some/folder" not in html and "kernels.csv" in html
