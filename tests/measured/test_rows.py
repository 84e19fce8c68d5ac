"""Tables of measured runs: what is wrong with a header is said at once, and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.files import read_csv
from simulator.measured.rows import COLUMNS, REQUIRED, assumed_fields, read_runs, read_tables

RUNS = catalogue.folder("validation") / "runs"
ROW = {row["run_id"]: row for _, row in read_csv(RUNS / "test.csv")}["korthikanti22-t5-003"]


def write(path: Path, *rows: Mapping[str, str]) -> Path:
    lines = [",".join(rows[0]), *(",".join(f'"{v}"' for v in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def problems(*paths: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_runs(paths)
    return list(caught.value.problems)


@pytest.mark.parametrize("name", ["calibrate", "test", "vtrain_single", "analytic_memory"])
def test_shipped_tables_have_every_column_and_no_other(name: str) -> None:
    runs = read_runs([RUNS / f"{name}.csv"])
    later = {"loss_fusion", "transformer_impl", "deterministic", "memory_stage"}
    later |= {"lora_rank", "lora_targets", "quantised_base", "split_master_weights"}
    later |= {"cp_kind", "mask_in_dataloader", "fp8_weights", "stages"}
    later |= {"dropout", "grouped_experts", "unpermute", "attention_library"}
    later |= {"memory_read", "optimizer_offload", "bucket_bytes", "lengths"}
    later |= {"fp8_attention", "fp8_head", "moe_routing"}
    assert set(runs[0].fields) | later == set(COLUMNS)


def test_rows_know_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", ROW, ROW | {"run_id": "second"})
    assert [run.where for run in read_runs([path])] == [f"{path}: line 2", f"{path}: line 3"]


def test_optional_columns_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", {name: ROW[name] for name in REQUIRED})
    assert read_runs([path])[0].get("notes") == ""


def test_every_wrong_column_is_named_with_the_nearest(tmp_path: Path) -> None:
    row = {("micro_bach" if k == "micro_batch" else k): v for k, v in ROW.items()}
    path = write(tmp_path / "runs.csv", row | {"mood": "good"})
    assert problems(path) == [
        f"{path}: micro_batch: required column is missing",
        f"{path}: micro_bach: unknown column (did you mean 'micro_batch'?)",
        f"{path}: mood: unknown column",
    ]


def test_another_kind_of_table_is_called_that(tmp_path: Path) -> None:
    path = write(tmp_path / "kernels.csv", {"kernel": "gemm", "gpu": "h100_sxm", "time_us": "3"})
    (line,) = problems(path)
    assert f"{path}: not a table of measured runs: it lacks 25 of the 26 columns" in line
    assert "kernel, gpu, time_us" in line


def test_files_without_rows(tmp_path: Path) -> None:
    empty, bare = tmp_path / "empty.csv", tmp_path / "bare.csv"
    absent = tmp_path / "somewhere-else.csv"
    empty.write_text("")
    bare.write_text(",".join(COLUMNS) + "\n")
    assert problems(empty, bare, absent) == [
        f"{empty}: the file is empty",
        f"{bare}: the table has a header and no rows",
        f"{absent}: no such file",
    ]


def test_run_ids_are_there_and_unique_over_all_files(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", ROW, ROW | {"run_id": ""})
    second = write(tmp_path / "b.csv", ROW)
    assert problems(first, second) == [
        f"{first}: line 3: run_id: required field is blank",
        f"{second}: line 2: run_id: 'korthikanti22-t5-003' is already the id of {first}: line 2",
    ]


def test_what_is_wrong_with_a_row_or_a_file_stays_with_it(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", ROW, ROW | {"run_id": ""}, ROW | {"run_id": "other"}, ROW)
    other, empty = write(tmp_path / "b.csv", ROW), tmp_path / "empty.csv"
    empty.touch()
    runs, found = read_tables([first, empty, other])
    taken = f"run_id: 'korthikanti22-t5-003' is already the id of {first}: line 2"
    blank = "run_id: required field is blank"
    assert [run.fault for run in runs] == [None, blank, None, taken, taken]
    assert [run.where for run in runs][-2:] == [f"{first}: line 5", f"{other}: line 2"]
    assert found == [f"{empty}: the file is empty"]


def test_rows_before_the_place_where_a_file_breaks_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", ROW, ROW | {"run_id": "second", "notes": 200_000 * "x"})
    runs, (problem,) = read_tables([path])
    assert [run.get("run_id") for run in runs] == ["korthikanti22-t5-003"]
    assert problem.startswith(f"{path}: line 3: not valid CSV: field larger than field limit")


def test_a_row_that_spans_lines_is_found_at_its_first(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", ROW | {"notes": "one\ntwo"}, ROW | {"run_id": "second"})
    assert [run.where for run in read_runs([path])] == [f"{path}: line 2", f"{path}: line 4"]


def test_a_row_has_as_many_cells_as_the_header(tmp_path: Path) -> None:
    path, cells = tmp_path / "runs.csv", len(ROW)
    rows = [",".join(["a"] * (cells + more)) for more in (1, -1)]
    path.write_text("\n".join([",".join(ROW), *rows]))
    long, short = read_tables([path])[0]
    assert long.fault == f"must have {cells} cells as the header has, got {cells + 1}"
    assert short.fault == f"must have {cells} cells as the header has, got {cells - 1}"
    assert problems(path)[0] == f"{path}: line 2: {long.fault}"


def test_headers_that_cannot_be_told_apart_or_are_not_split(tmp_path: Path) -> None:
    twice, semicolons = tmp_path / "twice.csv", tmp_path / "semicolons.csv"
    twice.write_text(",".join([*COLUMNS, "tp"]) + "\n")
    semicolons.write_text(";".join(COLUMNS) + "\n")
    start = ";".join(COLUMNS)[:40]
    assert problems(twice, semicolons) == [
        f"{twice}: line 1: column tp stands twice",
        f"{semicolons}: line 1: cells must be separated by commas, got {start!r}",
    ]


def test_many_problems_are_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", *[ROW] * 30)
    found = problems(path)
    assert len(found) == 21
    assert found[-1] == "and 9 more problems like these"


def test_assumed_are_the_named_and_the_blank_that_matter() -> None:
    plain = {
        **dict.fromkeys(COLUMNS, ""),
        "num_gpus": "8",
        "gpus_per_node": "8",
        "dp": "8",
        "tp": "1",
        "sharding": "ddp",
        "recompute": "none",
    }
    always = {
        "position",
        "nvlink_domain",
        "vpp",
        "cp",
        "flash_attention",
        "cpu_offload",
        "cuda_graphs",
    }
    reduced = {"overlap_grad_reduce", "overlap_param_gather"}
    assert set(assumed_fields(plain)) == always | reduced
    assert set(assumed_fields(plain | {"assumed": "vocab+tp"})) == always | reduced | {
        "vocab",
        "tp",
    }
    spread = {"num_gpus": "16", "dp": "1", "tp": "16", "recompute": "full", "num_experts": "8"}
    assert set(assumed_fields(plain | spread)) == always | {
        "fabric",
        "nic_gbit_per_gpu",
        "sequence_parallel",
        "tp_comm_overlap",
        "recompute_layers",
        "ep",
        "etp",
        "moe_balanced",
        "capacity_factor",
    }


def test_a_field_is_assumed_once() -> None:
    assert assumed_fields(ROW | {"assumed": "vpp+vpp", "vpp": ""}).count("vpp") == 1
