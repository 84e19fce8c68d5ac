"""Errors on shapes that no fit has seen: which lines the page shows, and how it words them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.scoring import validation
from simulator.scoring.validation import validate
from workshop.cases.holdout_shapes import pooled_errors
from workshop.pages.accuracy.holdout import left_out_section
from workshop.pages.accuracy.page import _percent, _table

TABLE = """\
kernel,device,library,dtype,method,rows,median,p90,spread
gemm,all,all,bf16,constant,40,0.2,0.6,0.3
gemm,all,all,bf16,formula,40,0.035,0.1,0.05
gemm,l40s,cublas,bf16,formula,20,0.03,0.09,0.04
gemm,all,cublas,bf16,one accelerator left out,30,0.08,0.25,0.12
stream,all,all,all,formula,9,0.05,0.15,0.07
stream,all,norm,all,formula,5,0.04,0.12,0.06
"""


def shipped(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "left_out.csv"
    path.write_text(text)
    return path


def test_lines_of_one_device_or_library_give_way_to_pooled_ones(tmp_path: Path) -> None:
    lines = pooled_errors(shipped(tmp_path, TABLE))
    assert [(one["kernel"], one["library"], one["method"], one["rows"]) for one in lines] == [
        ("gemm", "all", "constant", 40),
        ("gemm", "all", "formula", 40),
        ("gemm", "cublas", "one accelerator left out", 30),
        ("stream", "all", "formula", 9),
    ]
    assert [lines[1][name] for name in ("median", "p90", "spread")] == [0.035, 0.1, 0.05]


def test_the_page_has_a_row_for_each_kernel_and_a_column_for_each_method(tmp_path: Path) -> None:
    lines = pooled_errors(shipped(tmp_path, TABLE))
    title, _, table = left_out_section(lines, _table, _percent)
    assert title == "## Shapes that no fit has seen"
    assert table.splitlines() == [
        "| what | type | calls | constant | formula | one accelerator left out |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| gemm | bf16 | 40 | 20.0 % / 60.0 % | 3.5 % / 10.0 % | 8.0 % / 25.0 % |",
        "| stream | all | 9 | - | 5.0 % / 15.0 % | - |",
    ]
    assert list(left_out_section([], _table, _percent)) == []


def test_no_table_has_no_lines_and_a_wrong_one_is_an_error(tmp_path: Path) -> None:
    assert pooled_errors(tmp_path / "none.csv") == []
    for wrong in ("nan", "", "x"):
        path = shipped(tmp_path, TABLE.replace("0.035", wrong))
        with pytest.raises(InputError, match="line 3: rows, median, p90, spread must be numbers"):
            pooled_errors(path)


def test_a_table_of_errors_is_no_table_of_measurements(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"left_out\.csv"):
        validate([shipped(tmp_path, TABLE)])
    names = [path.name for path in validation._shipped()]
    assert "kernels.csv" in names
    assert "left_out.csv" not in names  # `foreshard validate` without arguments


AIMED = {
    ("gemm, all dimensions >= 512", "bf16"): ((0.045, 0.14), (0.0359, 0.115)),
    ("gemm, all dimensions >= 512", "fp8"): ((0.0519, 0.165), (0.035, 0.122)),
    ("gemm, all dimensions >= 512", "fp8_blockwise"): ((0.06, 0.20), (0.045, 0.14)),
    ("gemm, all dimensions >= 512", "nvfp4"): ((0.06, 0.20), (0.045, 0.14)),
    ("attention, >= 1k tokens", "all"): ((0.055, 0.19), (0.0405, 0.141)),
    ("grouped expert layer, even load", "all"): ((0.08, 0.25), (0.05, 0.185)),
    ("grouped expert layer, even load, contradicted rows too", "all"): (
        (0.08, 0.25), (0.05, 0.20),
    ),
}  # fmt: skip
"""Median and P90 that shapes left out may have, of the formula and with what it leaves over on
shapes near by."""


@pytest.mark.parametrize("key", list(AIMED))
def test_shapes_left_out_come_out_as_well_as_aimed_for(key: tuple[str, str]) -> None:
    lines = {(one["kernel"], one["dtype"], one["method"]): one for one in pooled_errors()}
    for method, most in zip(("formula", "formula + residual"), AIMED[key], strict=True):
        line = lines[(*key, method)]
        assert line["median"] <= most[0] and line["p90"] <= most[1], line
