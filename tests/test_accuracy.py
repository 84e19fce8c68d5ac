"""The ratchet: predictions are no worse than docs/accuracy.json says, and the page agrees.

Evidence: the document is made again, and its bytes are those that are committed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from simulator.measured.rows import MeasuredRun
from simulator.scoring.scores import ScoredRow
from simulator.scoring.validation import Validation
from workshop.cases.accuracy import Moved, accuracy, compare, document, regressions
from workshop.cases.holdout_shapes import pooled_errors
from workshop.pages.accuracy import page as accuracy_page
from workshop.pages.accuracy.intervals import PICTURE_NAME
from workshop.pages.accuracy.page import DETAILS_NAME, FRONT_NAME, JSON_NAME, pages

DOCS = Path(__file__).resolve().parent.parent / "docs"
MOST_SHOWN = 30


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / JSON_NAME).read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def recomputed() -> dict[str, Any]:
    return accuracy()


# --- the ratchet -------------------------------------------------------------------------


@pytest.mark.evidence
def test_no_source_is_predicted_worse_than_committed(
    committed: dict[str, Any], recomputed: dict[str, Any]
) -> None:
    worse = regressions(committed, recomputed)
    moved = compare(committed, recomputed)
    shown = [str(one) for one in moved[:MOST_SHOWN]]
    assert not worse, "\n".join(
        [*worse, f"{len(moved)} predictions moved (`make accuracy` writes the new ones):", *shown]
    )


def test_the_pages_say_what_the_document_says(committed: dict[str, Any]) -> None:
    made = pages(committed)
    assert set(made) == {FRONT_NAME, DETAILS_NAME, PICTURE_NAME}
    for name, text in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text


def test_the_front_is_one_page(committed: dict[str, Any]) -> None:
    front = pages(committed)[FRONT_NAME]
    assert len(front.split()) < 1000
    for table in ("fresh-test", "fresh-test-2"):
        assert front.count(f"| {table}: ") == 1
    assert "| first sight |" in front and "today, as they stand" in front
    assert "[accuracy_details.md](accuracy_details.md)" in front


@pytest.mark.evidence
def test_making_it_again_gives_the_same_bytes(
    recomputed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy_page, "accuracy", lambda: recomputed)
    accuracy_page.main(tmp_path)
    for name in (JSON_NAME, FRONT_NAME, DETAILS_NAME, PICTURE_NAME):
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes(), "`make accuracy`"


@pytest.mark.evidence
def test_the_committed_document_covers_every_shipped_run(
    committed: dict[str, Any], recomputed: dict[str, Any]
) -> None:
    assert committed["measured_step_s"] == recomputed["measured_step_s"]
    assert {"ablation", "microbenchmarks", "left_out", "effects"} < set(recomputed)
    assert set(committed) == set(recomputed)


def test_the_committed_document_holds_the_shipped_errors_of_fits(
    committed: dict[str, Any],
) -> None:
    """`make accuracy` follows `make profiles`."""
    assert committed["left_out"] == pooled_errors() != []


def test_writing_says_what_moved(
    committed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(accuracy_page, "accuracy", lambda: committed)
    accuracy_page.main(tmp_path)
    for name in (JSON_NAME, FRONT_NAME, DETAILS_NAME, PICTURE_NAME):
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes()
    assert "predictions moved" not in capsys.readouterr().out

    slower = {**committed["predicted_step_s"], "korthikanti22-t5-003": 1000.0}
    monkeypatch.setattr(
        accuracy_page, "accuracy", lambda: {**committed, "predicted_step_s": slower}
    )
    accuracy_page.main(tmp_path)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "1 predictions moved"
    assert second.startswith("korthikanti22-t5-003: ")
    assert " -> 1000 s (" in second
    written = json.loads((tmp_path / JSON_NAME).read_text(encoding="utf-8"))
    assert written["predicted_step_s"] == slower


def test_reasons_why_rows_are_not_predicted_are_said_with_their_rows() -> None:
    why = {f"reason {number}": 1000 - number for number in range(13)}
    text = accuracy_page._not_predicted(why)
    assert text.startswith("Not predicted: reason 0 (1,000); reason 1 (999); ")
    assert text.endswith("reason 9 (991); 3 other reasons (2,967).")
    assert accuracy_page._not_predicted({"one": 2}) == "Not predicted: one (2)."


# --- its rules, by hand ------------------------------------------------------------------


def told(mape: float | None, coverage: float = 1.0, **predicted_s: float) -> dict[str, Any]:
    """Make the parts of a document that are compared."""
    measured = {"a": 1.0, "b": 2.0, "c": 4.0}
    return {
        "sources": {"lab": {"test": {"mape": mape, "coverage": coverage}}},
        "predicted_step_s": predicted_s,
        "measured_step_s": measured,
    }


def test_an_error_may_grow_by_one_point() -> None:
    assert regressions(told(0.05), told(0.06)) == []
    assert regressions(told(0.05), told(0.01)) == []
    assert regressions(told(0.05), told(0.0601)) == [
        "lab, test: mean error grew from 5.00 to 6.01 %"
    ]


def test_the_share_of_predicted_rows_must_not_fall() -> None:
    assert regressions(told(0.05, 0.95), told(0.05, 1.0)) == []
    assert regressions(told(0.05, 0.95), told(0.05, 0.9)) == [
        "lab, test: share of rows predicted fell from 95.0 to 90.0 %"
    ]
    assert regressions(told(0.05), told(None, 0.0)) == [
        "lab, test: share of rows predicted fell from 100.0 to 0.0 %"
    ]


def test_a_source_that_vanished_is_worse_and_a_new_one_is_not() -> None:
    none: dict[str, Any] = {**told(0.05), "sources": {}}
    assert regressions(told(0.05), none) == ["lab, test: no row of it is left"]
    assert regressions(none, told(0.05)) == []
    assert regressions(told(None, 0.0), told(0.5)) == []


def test_what_moved_is_listed_with_the_largest_change_first() -> None:
    old = told(0.05, a=1.0, b=2.0, c=4.0, d=1.0)
    new = told(0.05, a=1.1, b=1.0, c=4.0, e=3.0)
    moved = compare(old, new)
    assert [one.run_id for one in moved] == ["b", "a", "d", "e"]
    assert moved[0] == Moved(run_id="b", old_s=2.0, new_s=1.0, measured_s=2.0)
    assert [one.factor for one in moved] == [0.5, pytest.approx(1.1), None, None]
    assert [str(one) for one in moved] == [
        "b: 2 s -> 1 s (-50.0 %), measured 2 s",
        "a: 1 s -> 1.1 s (+10.0 %), measured 1 s",
        "d: 1 s -> none, measured not",
        "e: none -> 3 s, measured not",
    ]
    assert compare(old, old) == []


# --- the document ------------------------------------------------------------------------

FIELDS = {
    "source": "lab", "split": "test", "model": "tiny", "family": "gpt", "layers": "2",
    "hidden": "1024", "ffn_hidden": "4096", "heads": "16", "kv_heads": "16", "head_dim": "64",
    "gated_mlp": "false", "vocab": "32000", "seq_len": "2048", "gpu": "A100-SXM4-80GB",
    "num_gpus": "8", "precision": "bf16", "global_batch": "8", "recompute": "none", "dp": "8",
    "software": "stack-1",
}  # fmt: skip


def row(
    name: str, predicted_s: float | None, measured_s: float, /, *, found: Any = None, **words: str
) -> ScoredRow:
    """Make a row; `words` are columns of the table, `found` is what scoring it gave."""
    fields = {**FIELDS, "run_id": name, "step_time_s": str(measured_s), **words}
    return ScoredRow(
        run=MeasuredRun(where="runs.csv: line 2", fields=fields),
        status="skipped" if predicted_s is None else "ok",
        reason="no" if predicted_s is None else None,
        predicted_step_s=predicted_s,
        measured_step_s=measured_s,
        **(found or {}),
    )


def test_a_document_by_hand() -> None:
    rows = (
        row("a", 1.1, 1.0),
        row("b", 0.8, 1.0, software="stack-2"),
        row("c", None, 1.0, hidden="2048"),
        row("d", None, 1.0, hidden="2048", found={"replayable": False}),
        row("e", 1.23456789, 1.0, split="calibrate"),
        row("f", 9.0, 1.0, source="parts", composed="true"),
    )
    found = document(Validation(rows=rows))
    lab, parts = found["sources"]["lab"], found["sources"]["parts"]["test"]
    test = lab["test"]
    assert [test[key] for key in ("rows", "replayable", "predicted")] == [4, 3, 2]
    assert test["coverage"] == pytest.approx(2 / 3, rel=1e-5)
    assert (test["n"], test["mape"], test["bias"]) == (2, 0.15, -0.05)
    assert (test["composed"], parts["composed"]) == (False, True)
    assert lab["calibrate"]["mape"] == 0.234568  # six digits
    # a and b are same, except the release: 1.0 and 1.0; c is wider, f is composed
    assert test["next_release"] == 0.0
    assert found["baselines"]["noise_floor"]["dense"]["n"] == 1
    # constant efficiency on the two rows that are predicted, and on the three that could be
    narrow, wide = test["constant_efficiency"], test["constant_efficiency_all_rows"]
    assert (narrow["n"], wide["n"]) == (2, 3)
    flop = 6 * 8 * 2048 * (2 * 12 * 1024**2 + 32000 * 1024 + 2 * 1024 * 2048)
    expected = flop / 8 / 129.37e12 - 1  # the A100's rate among the shipped calibration runs
    assert narrow["bias"] == pytest.approx(expected, rel=1e-3)
    assert found["kinds"]["test"]["dense"]["mape_over_sources"] == 0.15
    assert found["kinds"]["test"]["all"]["n"] == found["kinds"]["test"]["dense"]["n"] == 2
    assert found["predicted_step_s"] == {"a": 1.1, "b": 0.8, "e": 1.23457, "f": 9.0}
    assert found["skipped"] == {"no": 2}


def test_memory_is_listed_by_kind_source_and_split() -> None:
    sizes = {"predicted_memory_gib": 66.0, "measured_memory_gib": 60.0}
    rows = tuple(
        row(kind, 1.0, 1.0, found={**sizes, "memory_kind": kind})
        for kind in ("allocated", "unknown")
    )
    found = document(Validation(rows=rows))["memory"]
    assert found["scored"]["allocated"]["lab"]["test"]["mape"] == 0.1
    assert found["scored"]["reserved"] == {}
    assert found["not_scored"] == {"unknown": 1}


def test_a_series_names_its_ends() -> None:
    rows = tuple(
        row(
            f"n{n}",
            seconds,
            1.0,
            num_gpus=str(n),
            dp=str(n),
            global_batch=str(n),
            software="megatron-core-defaults",
            optimizer="adamw",
            sharding="ddp",
        )
        for n, seconds in ((8, 1.1), (16, 1.0), (32, 1.0), (64, 0.88))
    )
    (one,) = document(Validation(rows=rows))["series"]
    assert (one["kind"], one["gpus"]) == ("weak", [8, 16, 32, 64])
    assert one["predicted_s"] == [1.1, 1.0, 1.0, 0.88]
    assert one["mape"] == pytest.approx(0.055)
    assert one["drift"] == pytest.approx(-0.2)  # 0.88 / 1.1 - 1


def assert_plain_and_finite(document: dict[str, Any]) -> None:
    """Numbers are finite and of six digits, and the document is what its text reads back as."""

    def floats(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [x for item in value.values() for x in floats(item)]
        if isinstance(value, list):
            return [x for item in value for x in floats(item)]
        return [value] if isinstance(value, float) else []

    assert all(math.isfinite(x) and float(f"{x:.6g}") == x for x in floats(document))
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_committed_document_is_plain_and_finite(committed: dict[str, Any]) -> None:
    assert_plain_and_finite(committed)


@pytest.mark.evidence
def test_the_document_is_plain_and_finite(recomputed: dict[str, Any]) -> None:
    assert_plain_and_finite(recomputed)
