"""Answers as tables: what the arrays hold, under the names that documents use."""

import numpy as np
import pandas as pd
import pytest

from simulator import plan, predict, simulate, validate
from simulator.catalogue import folder
from simulator.errors import InputError

_EXPECTED = 32
"""Layouts that are ordered by expectation (search/certainty.py: CLOSE)."""

RUN = {
    "model": "llama-3.1-8b",
    "cluster": "dgx-h100",
    "gpus": 8,
    "global_batch": 64,
    "tokens": 1e9,
}


def test_a_plan_is_a_row_per_layout_best_first() -> None:
    answer = plan(**RUN, keep=5)
    layouts = answer.to_frame()
    assert isinstance(layouts, pd.DataFrame) and len(layouts) == len(answer.estimate)
    assert layouts.index[0] == answer.estimate.layouts.describe()
    # the first are ordered by what is to be expected of them, the rest by days; TIGHT ones follow
    fits = layouts[layouts["memory_verdict"] == "FITS"]
    assert (layouts["memory_verdict"].iloc[: len(fits)] == "FITS").all()
    assert fits["days"].iloc[_EXPECTED:].is_monotonic_increasing
    assert fits["days"].iloc[0] < 1.05 * fits["days"].min()
    rest = fits["step_time_s"].iloc[_EXPECTED:]
    near = rest.cummax() - rest
    assert (near < 0.002 * rest).all()  # goodput sets the order of equal ones
    assert set(layouts["sharding"]) <= {"ddp", "zero1", "zero2", "zero3"}
    # hours of all GPUs are days x 24 x GPUs
    np.testing.assert_allclose(layouts["gpu_hours"], layouts["days"] * 24 * 8, rtol=1e-12)


@pytest.mark.parametrize(
    ("table", "total"), [("terms", "step_time_s"), ("memory", "memory_total_bytes")]
)
def test_terms_and_kinds_of_memory_add_up(table: str, total: str) -> None:
    answer = predict(**RUN, tp=2)
    parts = answer.to_frame(table)
    np.testing.assert_allclose(parts.sum(axis=1), answer.to_frame()[total], rtol=1e-9)


def test_a_played_step_is_three_tables() -> None:
    step = simulate(**RUN, tp=2, pp=2)
    terms, spans, memory = (step.to_frame(name) for name in ("terms", "timeline", "memory"))
    assert terms["seconds"].sum() == pytest.approx(step.step_time_s)
    assert "gemm" in terms.index and list(spans.index) == list(range(len(spans)))
    assert spans["end_s"].max() == pytest.approx(step.step_time_s)
    assert (spans["end_s"] >= spans["start_s"]).all()
    assert set(spans["stream"]) >= {"compute", "pipeline"}
    assert (memory.filter(like="_bytes") >= 0).all(axis=None)


def test_a_validation_is_a_row_per_run() -> None:
    answer = validate(folder("validation") / "runs" / "analytic_memory.csv")
    rows = answer.to_frame()
    assert rows.index.name == "run_id" and len(rows) == 8
    assert set(rows["status"]) == {"ok"}


def test_a_table_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"to_frame: table: .* 'term' \(did you mean 'terms'\?\)"):
        predict(**RUN, tp=2).to_frame("term")  # type: ignore[arg-type]
