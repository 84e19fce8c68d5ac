"""What stands behind an answer: grades by hand, the nearest run, nothing where nobody measured."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from simulator import catalogue
from simulator.evidence.card import GRADES, Card, _graded, _nearest, evidence_card
from simulator.evidence.evidence_runs import (
    COLUMNS,
    NUMBERS,
    EvidenceRuns,
    RunKind,
    load_evidence_runs,
)
from simulator.scenario import Scenario, make_scenario
from simulator.software.releases import load_releases, stack_of

ASKED = RunKind(
    device="h100-sxm",
    generation="hopper",
    stack="megatron-core",
    software="megatron-bridge",
    kind="dense",
    precision="bf16",
    gpus=64,
    parameters=8_000_000_000,
)
"""What every run of a table is, but for what a test changes."""


def table(*changes: Mapping[str, str | int]) -> EvidenceRuns:
    rows = [{name: getattr(ASKED, name) for name in COLUMNS[1:-1]} | dict(one) for one in changes]
    columns = {name: np.array([row[name] for row in rows], dtype=object) for name in COLUMNS[1:-1]}
    sizes = {name: columns.pop(name).astype(float) for name in NUMBERS}
    columns["run_id"] = np.array([f"run-{i}" for i in range(len(rows))], dtype=object)
    return EvidenceRuns(columns, sizes, np.linspace(-0.1, 0.1, len(rows)))


def grade(runs: EvidenceRuns, *, exact: bool = True) -> tuple[str, int]:
    word, alike = _graded(ASKED, runs, np.full(len(runs.error), True), exact=exact)
    return word, int(alike.sum())


SMALL = {"gpus": 8}
FP8 = {"precision": "fp8"}
MOE = {"kind": "experts"}
OTHER = {"device": "h200-sxm"}
AMPERE = {"device": "a100-sxm-80", "generation": "ampere"}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([{}, {}, {"gpus": 256}], ("measured here", 3)),
        ([{}, {}, {"gpus": 257}], ("measured like it", 3)),  # four times as many are its size
        ([{}, {}, {"parameters": 2_000_000_000}], ("measured here", 3)),
        ([{}, {}, {"parameters": 1_900_000_000}], ("measured like it", 3)),
        ([{}, {}, {"parameters": 400_000_000}], ("extrapolated", 3)),  # a model of another class
        ([{}, {}], ("extrapolated", 2)),  # two may agree by chance
        ([SMALL, FP8, OTHER], ("measured like it", 3)),
        ([{**FP8, "stack": "torchtitan"}] * 9, ("extrapolated", 9)),
        ([MOE], ("extrapolated", 1)),
        ([AMPERE] * 9, ("unmeasured", 0)),
        ([], ("unmeasured", 0)),
    ],
)
def test_grades(runs: list[Mapping[str, str | int]], expected: tuple[str, int]) -> None:
    assert grade(table(*runs)) == expected


def test_an_unknown_release_was_never_measured_here() -> None:
    runs = table({}, {}, {})
    assert (grade(runs)[0], grade(runs, exact=False)[0]) == GRADES[:2]


def test_the_nearest_run_is_the_least_unlike() -> None:
    runs = table(AMPERE, {**MOE, **OTHER}, {**OTHER, **SMALL}, {"gpus": 4096, **FP8})
    others = np.full(4, True)
    assert _nearest(ASKED, runs, others) == 2
    others[2] = False  # the run that is predicted
    assert _nearest(ASKED, runs, others) == 3
    assert _nearest(ASKED, runs, ~np.full(4, True)) is None


def scenario(cluster: str, software: str) -> Scenario:
    model = {"name": "llama-3.1-8b"}
    training = {"sequence_length": 8192, "global_batch": 128}
    place = {"name": cluster, "gpus": 64, "software": software}
    return make_scenario({"model": model, "training": training, "cluster": place})


def card(cluster: str, software: str) -> Card:
    asked = scenario(cluster, software)
    return evidence_card(
        asked.workload,
        asked.cluster.accelerator,
        asked.software,
        64,
        widened_by={"device": 1.5, "release": 1.0},
        assumed=7,
    )


@pytest.mark.parametrize("word", sorted(load_releases().stand_ins))
def test_runs_of_a_framework_say_nothing_of_what_it_stands_in_for(word: str) -> None:
    for cluster in ("dgx-h100", "dgx-a100"):
        own = scenario(cluster, word).software.name
        here, there = card(cluster, own), card(cluster, word)
        assert there.grade != "measured here"
        assert GRADES.index(there.grade) >= GRADES.index(here.grade)
        assert "software" in there.nearest_distance


def test_what_ran_here_is_said_with_its_errors() -> None:
    found = card("dgx-h100", "megatron-bridge")
    assert found.grade == "measured here" and found.runs >= 3 and found.borrowed == ()
    assert found.mean_error is not None and 0.0 < found.mean_error < 0.2
    words = " ".join(found.sentences())
    assert "Evidence: measured here" in words and "Nearest run: " in words


def test_borrowed_figures_and_wider_intervals_are_said() -> None:
    found = card("l40-pcie", "torchtitan")
    words = " ".join(found.sentences())
    assert found.borrowed[0] == ("gemm.cublas", "l40s") and "Figures borrowed from l40s" in words
    assert "device x 1.5" in words and "release" not in words
    document = found.document()
    assert document["assumed"] == 7 and document["borrowed"][0] == {
        "figure": "gemm.cublas",
        "from": "l40s",
    }


def test_nobody_has_measured_an_l40() -> None:
    found = card("l40-pcie", "torchtitan")
    assert (found.grade, found.runs, found.mean_error) == ("unmeasured", 0, None)
    assert "nobody has measured anything like it" in found.sentences()[0]
    assert found.nearest_run is not None and "device" in found.nearest_distance


def test_the_table_holds_runs_of_both_sides_and_their_words() -> None:
    runs = load_evidence_runs()
    assert set(runs.words["device"]) <= set(catalogue.names("accelerators"))
    assert set(runs.words["software"]) <= set(catalogue.names("software"))
    assert len(set(runs.words["run_id"])) == len(runs.error)
    splits = set()
    for name in ("calibrate", "test", "second_calibrate", "second_test"):
        path: Path = catalogue.folder("validation") / "runs" / f"{name}.csv"
        with path.open(newline="", encoding="utf-8") as file:
            if {row["run_id"] for row in csv.DictReader(file)} & set(runs.words["run_id"]):
                splits.add(name)
    assert len(splits) == 4


@pytest.mark.parametrize(
    ("profile", "stack"),
    [("megatron-bridge-26.04", "megatron-core"), ("deepspeed", "deepspeed")],
)
def test_a_framework_is_the_root_of_its_releases(profile: str, stack: str) -> None:
    assert stack_of(profile) == stack
