"""Sizes that a row leaves blank, and what a slice of a torus is."""

from __future__ import annotations

from pathlib import Path

from simulator import catalogue
from simulator.files import read_csv
from simulator.measured.replay import load_tables, replay
from simulator.measured.rows import with_sizes
from simulator.scoring.validation import validate

RUNS = catalogue.folder("validation") / "runs"
SECOND = {row["run_id"]: row for _, row in read_csv(RUNS / "second_test.csv")}


def test_a_published_model_has_the_parameters_of_its_name() -> None:
    """23B and 46B parameters by the sizes of AWS's scripts."""
    for row_id in ("trn1-005", "trn1-006"):
        filled = with_sizes(SECOND[row_id])
        run = replay(filled, load_tables())
        stated = float(filled["model"].removeprefix("GPT3-").removesuffix("B")) * 1e9
        assert abs(run.workload.architecture.parameters / stated - 1.0) < 0.02
        assert filled["assumed"] == SECOND[row_id]["assumed"], "published, not assumed"


def test_blank_sizes_are_taken_and_counted_as_assumed() -> None:
    row = {"model": "m", "family": "moe", "layers": "2", "num_experts": "4", "ffn_hidden": "256"}
    filled = with_sizes(row)
    assert (filled["vocab"], filled["moe_ffn_hidden"]) == ("32000", "256")
    assert filled["assumed"] == "vocab+moe_ffn_hidden"
    stated = row | {"vocab": "100", "moe_ffn_hidden": "64"}
    assert with_sizes(stated) == stated
    assert with_sizes({"model": "nobody knows"}) == {"model": "nobody knows"}


def test_a_slice_of_a_pod_is_its_torus() -> None:
    row = next(row for row in SECOND.values() if row["fabric"] == "ici-3d-torus 4x8x8")
    node = replay(row, load_tables()).cluster.node
    assert (node.scale_up.torus, node.scale_up.domain) == ((4, 8, 8), 256)


def test_an_impossible_step_time_does_not_cost_the_memory(tmp_path: Path) -> None:
    """A row whose step would need more than the device's peak keeps its memory reading."""
    row = next(row for _, row in read_csv(RUNS / "second_memory.csv") if row["step_time_s"])
    path = tmp_path / "runs.csv"
    wrong = row | {"step_time_s": "1e-6", "tokens_per_s_per_gpu": ""}
    path.write_text(",".join(wrong) + "\n" + ",".join(f'"{word}"' for word in wrong.values()))
    (found,) = validate(path).rows
    assert found.status == "ok" and found.measured_step_s is None
    assert found.measured_memory_gib == float(row["peak_memory_gib"])
    assert found.reason is not None and "step_time_s: implies" in found.reason
