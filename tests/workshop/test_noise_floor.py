"""The noise floor: releases compared by hand, and the figure that the tables came with."""

from __future__ import annotations

from statistics import median

import pytest

from simulator import catalogue
from simulator.measured.rows import MeasuredRun, read_runs
from workshop.cases.noise_floor import release_pairs


def run(software: str, seconds: float, **fields: str) -> MeasuredRun:
    """Make one run of a tiny model."""
    own = {"model": "tiny", "num_experts": "", "software": software, "step_time_s": str(seconds)}
    return MeasuredRun(where="", fields={**own, **fields})


def test_neighbouring_releases_are_compared_by_hand() -> None:
    runs = [
        run("stack-24.11", 2.0, run_id="a", split="test"),
        run("stack-25.09", 3.0, run_id="b"),
        run("stack-25.02", 2.2, run_id="c"),
        run("stack-25.02", 2.6, run_id="d"),
    ]
    first, second = release_pairs(runs)
    assert (first.framework, first.older, first.newer) == ("stack", "24.11", "25.02")
    assert first.ratio == pytest.approx(1.2)  # the mean of 2.2 and 2.6 over 2
    assert (second.older, second.newer) == ("25.02", "25.09")
    assert second.ratio == pytest.approx(1.25)
    assert not first.moe


def test_runs_that_differ_in_more_than_the_release_are_no_pair() -> None:
    assert release_pairs([run("stack-24.11", 2.0), run("stack-25.02", 2.2, dp="8")]) == ()
    assert release_pairs([run("stack-24.11", 2.0), run("other-25.02", 2.2)]) == ()
    # compiled and not is no difference of release
    assert release_pairs([run("stack-2024-eager", 2.0), run("stack-2024-compile", 1.5)]) == ()
    assert release_pairs([run("stack", 2.0), run("stack-25.02", 2.2)]) == ()
    experts = [run(f"stack-{year}-compile", 2.0, num_experts="8") for year in (2023, 2024)]
    (pair,) = release_pairs(experts)
    assert (pair.framework, pair.moe) == ("stack-compile", True)


def test_the_noise_floor_of_dense_runs_is_two_percent() -> None:
    # The tables came with "2 % (median, dense pre-training)" for NVIDIA's software.
    folder = catalogue.folder("validation") / "runs"
    runs = read_runs([folder / f"{name}.csv" for name in ("calibrate", "test", "vtrain_single")])
    pairs = release_pairs(run for run in runs if run.get("software").startswith(("nemo", "meg")))
    dense = [abs(pair.ratio - 1) for pair in pairs if not pair.moe]
    assert round(median(dense), 2) == 0.02
    assert len(pairs) > 60  # those whose recipes gave gradients other buckets are none
