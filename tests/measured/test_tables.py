"""A table's kind is told by its header, wherever its columns stand; what is none is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator import catalogue
from simulator.errors import InputError
from simulator.measured.microbenchmarks import read_table
from simulator.measured.table_kinds import HEADERS, Kind, sort_tables, table_kind

VALIDATION = catalogue.folder("validation")

PUBLISHED: dict[Kind, str] = {
    "kernels": "kernel,gpu,dtype,impl,M,N,K,batch,seq_q,seq_kv,heads_q,heads_kv,head_dim,causal,"
    "direction,experts,topk,tokens,hidden,inter,time_us,tflops,bytes,gbps,framework,source,note",
    "collectives": "operation,system,gpu,gpus,nodes,dtype,message_bytes,time_us,algbw_GBps,"
    "busbw_GBps,lib_version,placement,source,note",
    "a2a": "gpu,library,mode,nodes,gpus,tokens_per_rank,hidden,topk,experts,framework,source,"
    "dispatch_us,combine_us,dispatch_GBps,combine_GBps,dispatch_notify_us,combine_notify_us,"
    "dispatch_sms,combine_sms",
}


def table(path: Path, header: str, rows: int = 1) -> Path:
    line = ",".join("1" for _ in header.split(","))
    path.write_text("\n".join([header, *[line] * rows]) + "\n", encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        table_kind(path)
    (line,) = refused.value.problems
    return line


@pytest.mark.parametrize(
    ("name", "kind"),
    [("runs/calibrate.csv", "runs"), ("runs/vtrain_single.csv", "runs"),
     ("microbenchmarks/kernels.csv", "kernels"),
     ("microbenchmarks/collectives.csv", "collectives"), ("microbenchmarks/moe_a2a.csv", "a2a")],
)  # fmt: skip
def test_shipped_tables(name: str, kind: Kind) -> None:
    assert table_kind(VALIDATION / name) == kind


@pytest.mark.parametrize("kind", PUBLISHED)
def test_headers_as_published_have_no_unknown_column(tmp_path: Path, kind: Kind) -> None:
    assert table_kind(table(tmp_path / "t.csv", PUBLISHED[kind])) == kind
    ours = {"excluded"} | ({"threads"} if kind == "collectives" else set())
    assert set(PUBLISHED[kind].split(",")) | ours == set(HEADERS[kind].columns)


@pytest.mark.parametrize("kind", HEADERS)
def test_required_columns_are_enough_in_any_order(tmp_path: Path, kind: Kind) -> None:
    header = ",".join(reversed(HEADERS[kind].required))
    assert table_kind(table(tmp_path / "t.csv", header)) == kind


def test_a_table_that_lacks_much_is_named_after_the_nearest_kind(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "kernel,gpu,M,N,K,framework,milliseconds")
    assert refusal(path) == (
        f"{path}: not a table of kernel times, the nearest kind: it lacks 2 of the 4 columns that"
        " are required: dtype, time_us (its columns: kernel, gpu, M, N, K, framework, ...)"
    )
    path = table(tmp_path / "u.csv", "operation,gpu,bytes,seconds")
    assert "not a table of collective times, the nearest kind: it lacks 3 of the 5" in refusal(path)
    assert "are required: gpus, message_bytes, time_us (its columns:" in refusal(path)


@pytest.mark.parametrize("kind", ["kernels", "collectives"])
def test_a_table_that_lacks_little_is_left_to_its_reader(tmp_path: Path, kind: Kind) -> None:
    path = table(tmp_path / "t.csv", PUBLISHED[kind].replace("time_us", "time_ms"))
    assert table_kind(path) == kind
    with pytest.raises(InputError) as refused:
        read_table(path, kind)
    assert list(refused.value.problems) == [
        f"{path}: time_us: required column is missing",
        f"{path}: time_ms: unknown column (did you mean 'time_us'?)",
    ]


def test_a_table_of_something_else(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "date,close")
    assert refusal(path).startswith(f"{path}: not a table of ")
    assert refusal(path).endswith("(its columns: date, close)")


def test_a_header_of_two_kinds(tmp_path: Path) -> None:
    both = dict.fromkeys([*HEADERS["kernels"].required, *HEADERS["collectives"].required])
    path = table(tmp_path / "t.csv", ",".join(both))
    assert refusal(path) == (
        f"{path}: has the columns of a table of kernel times and of collective times;"
        " one table holds one kind"
    )


def test_files_without_a_row(tmp_path: Path) -> None:
    empty, bare = tmp_path / "empty.csv", table(tmp_path / "bare.csv", PUBLISHED["a2a"], rows=0)
    empty.write_text("")
    assert refusal(empty) == f"{empty}: the file is empty"
    assert refusal(bare) == f"{bare}: the table has a header and no rows"
    assert refusal(tmp_path) == f"{tmp_path}: is a folder, not a file"


def test_tables_are_sorted_and_every_problem_is_kept(tmp_path: Path) -> None:
    first, second = (table(tmp_path / f"{name}.csv", PUBLISHED["kernels"]) for name in "ab")
    other = table(tmp_path / "c.csv", PUBLISHED["a2a"])
    wrong, absent = table(tmp_path / "d.csv", "x,y"), tmp_path / "nowhere" / "e.csv"
    found, problems = sort_tables([first, wrong, other, absent, second])
    assert found == {"kernels": [first, second], "a2a": [other]}
    assert [line.partition(": ")[0] for line in problems] == [str(wrong), str(absent)]
