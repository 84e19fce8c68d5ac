"""The page of a validation is whole, offline, safe and small, and shows the rows' own numbers."""

from __future__ import annotations

import base64
import gzip
import importlib.resources
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NoReturn

import pytest

from simulator.evidence.card import Card
from simulator.measured.rows import MeasuredRun
from simulator.report.evidence import NOT_MODELLED
from simulator.report.validation_page import (
    HOW_TO_READ,
    SECTIONS,
    render_validation,
    write_validation,
)
from simulator.scoring.scores import ScoredRow
from simulator.scoring.validation import Validation

EVIL = "<script>alert('x')</script>"
WORDS = {
    "source": "lab", "split": "test", "model": "tiny", "gpu": "H100", "software": "stack-1",
    "precision": "bf16", "optimizer": "adamw", "seq_len": "1000", "num_gpus": "8", "dp": "8",
    "tp": "1", "pp": "1", "micro_batch": "1", "global_batch": "64", "sharding": "zero1",
    "recompute": "none",
}  # fmt: skip


def row(
    run_id: str,
    predicted_s: float | None = None,
    measured_s: float | None = None,
    values: Mapping[str, Any] | None = None,
    /,
    **fields: str,
) -> ScoredRow:
    run = MeasuredRun(where="runs.csv: line 2", fields={**WORDS, "run_id": run_id, **fields})
    known: dict[str, Any] = {
        "status": "skipped" if predicted_s is None else "ok",
        "predicted_step_s": predicted_s,
        "measured_step_s": measured_s,
        "baseline_step_s": None if predicted_s is None else 2.0 * predicted_s,
        **(values or {}),
    }
    return ScoredRow(run=run, **known)


CARD = Card(
    grade="measured like it",
    runs=4,
    mean_error=0.05,
    nearest_run="run-1",
    nearest_error=0.01,
    nearest_distance="alike; 8 GPUs",
    borrowed=(),
    assumed=3,
    widened_by={},
)


def make_rows() -> list[ScoredRow]:
    """Two splits, a ranking of five, a weak scaling series of four, memory, and skipped rows."""
    memory = {"memory_kind": "allocated", "predicted_memory_gib": 55.0, "measured_memory_gib": 50.0}
    far = {
        "evidence": CARD,
        "terms_s": {"gemm": 1.25, "tp": 0.5, "launch": 0.0},
        "hidden_s": {"dp": 0.25, "cp": 0.0},
    }
    ordered = [row(f"order-{tp}", 1.0 + tp / 100, 1.0, tp=str(tp)) for tp in (1, 2, 4, 8, 16)]
    growing = [
        row(f"weak-{n}", 1.05, 1.0, num_gpus=str(n), dp=str(n), global_batch=str(n), model="w")
        for n in (8, 16, 32, 64)
    ]
    return [
        *ordered,
        *growing,
        row("far-off", 1.75, 1.0, far, model="big", num_experts="8"),
        row("read", 1.1, 1.0, memory, split="calibrate", model="small"),
        row("parts", 9.0, 1.0, source="composer", composed="true", model="p"),
        row("gone-1", None, 1.0, {"reason": "no hardware profile for Z9 (known: H100)"}),
        row("gone-2", None, None, {"reason": "runs.csv: line 2: dp: must be whole, got 'x'"}),
    ]


class Reader(HTMLParser):
    """Collects ids, scripts, text, and what a page could fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.scripts = 0
        self.fetches: list[str] = []
        self.text: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        self.scripts += tag == "script"
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        for name in ("src", "href", "data", "action", "srcset", "poster", "background"):
            if not (given.get(name) or "#").startswith("#"):
                self.fetches.append(given[name] or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def split_page(html: str) -> tuple[str, str]:
    """Take packed plotly.js out of a page."""
    found = re.findall(r'<script type="text/plain" id="plotly">(.*?)</script>', html)
    assert len(found) == 1
    return html.replace(found[0], ""), found[0]


def make(rows: list[ScoredRow]) -> str:
    return split_page(render_validation(Validation(rows=tuple(rows))))[0]


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is no JSON")


def drawn(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', html)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1), parse_constant=refuse)
    data["figures"] = {figure["id"]: figure for figure in data["figures"]}
    return data


@pytest.fixture(scope="module")
def rows() -> list[ScoredRow]:
    return make_rows()


@pytest.fixture(scope="module")
def whole(rows: list[ScoredRow]) -> str:
    return render_validation(Validation(rows=tuple(rows)))


@pytest.fixture(scope="module")
def page(whole: str) -> str:
    return split_page(whole)[0]


# --- the file ----------------------------------------------------------------------------


def test_every_section_is_there_in_order_and_every_figure_has_its_place(page: str) -> None:
    reader = read(page)
    assert re.findall(r'<section id="(\w+)">', page) == list(SECTIONS)
    figures = drawn(page)["figures"]
    assert set(figures) <= reader.ids
    assert set(figures) == {
        "agreement-figure",
        "histogram-figure",
        "cumulative-figure",
        "scale-figure",
        "worst-figure",
        "memory-figure",
        "ranking-figure-0",
        "series-figure-0",
    }
    for title in (*SECTIONS.values(), *(what for what, _ in (*NOT_MODELLED, *HOW_TO_READ))):
        assert title in reader.words


def test_the_page_fetches_nothing(page: str) -> None:
    reader = read(page)
    assert reader.fetches == []
    assert "http://" not in page and "https://" not in page
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", page)
    assert "default-src 'none'" in reader.policy and "http" not in reader.policy


def test_plotly_is_packed_and_the_file_is_small(whole: str) -> None:
    packed = split_page(whole)[1]
    source = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    assert gzip.decompress(base64.b64decode(packed)).decode() == source.read_text("utf-8")
    assert len(whole) < 2_100_000


def test_the_same_rows_give_the_same_page(rows: list[ScoredRow], whole: str) -> None:
    assert render_validation(Validation(rows=tuple(rows))) == whole


def test_names_cannot_become_markup(rows: list[ScoredRow], page: str) -> None:
    columns = ("run_id", "source", "split", "model", "gpu", "software", "precision", "tp")
    evil = []
    for i, one in enumerate(rows):
        fields = {**one.run.fields, **{name: EVIL for name in columns if name != "tp"}}
        run = MeasuredRun(where=EVIL, fields={**fields, "run_id": f"{EVIL}{i}"})
        evil.append(replace(one, run=run, reason=EVIL, memory_kind=one.memory_kind and EVIL))
    reader = read(make(evil))
    assert reader.scripts == read(page).scripts == 4
    assert f"{EVIL}{len(rows) - 1}" in "".join(reader.text)
    data = drawn(make(evil))
    for figure in data["figures"].values():
        shown = json.dumps([trace.get("name") for trace in figure["data"]])
        shown += json.dumps([figure["layout"]["annotations"], figure["layout"]["yaxis"]])
        assert "<script" not in shown
    assert all("<script" not in note for note in data["notes"])


def test_what_does_not_exist_is_no_nan(page: str) -> None:
    assert drawn(page)  # refuses NaN and Infinity
    assert not re.search(r"\bnan\b|\bNone\b|undefined\b", read(page).words.split("use strict")[0])


def test_the_page_is_written_whole_into_a_new_folder(
    rows: list[ScoredRow], whole: str, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "validation.html"
    write_validation(Validation(rows=tuple(rows)), path)
    assert path.read_text("utf-8") == whole
    assert [p.name for p in path.parent.iterdir()] == ["validation.html"]


@pytest.mark.parametrize("given", ["none predicted", "no rows", "composed only"])
def test_pages_with_little_to_show(rows: list[ScoredRow], given: str) -> None:
    some = {"none predicted": rows[-2:], "no rows": [], "composed only": [rows[-3]]}[given]
    html = make(some)
    assert re.findall(r'<section id="(\w+)">', html) == list(SECTIONS)
    figures = drawn(html)["figures"]
    assert list(figures) == (["agreement-figure"] if given == "composed only" else [])


# --- its numbers -------------------------------------------------------------------------


def test_the_verdict_keeps_the_splits_apart(page: str) -> None:
    words = read(page).words
    assert "14 measured runs: 12 predicted, 2 skipped." in words
    # errors 1, 2, 4, 8, 16, 5, 5, 5, 5 and 75 %
    assert "test (nothing is fitted on these): 10 of 12 predicted; mean error 12.6 %" in words
    assert (
        "calibrate (figures may be fitted on these): 1 of 1 predicted; mean error 10.0 %" in words
    )
    assert "Put together from parts, not measured, apart from these figures: 1." in words
    assert "Baseline: mean 120.0 %, bias +120.0 %." in words  # 2 x 1.1 s where it took 1 s
    assert "What stands behind the predictions: 1 measured like it." in words


def test_every_skipped_run_is_there_with_its_reason(page: str) -> None:
    found = re.search(r'<section id="skipped">.*?</section>', page, flags=re.S)
    assert found is not None
    words = read(found.group()).words
    for shown in (
        "1 run: no hardware profile for Z9",
        "gone-1",
        "no hardware profile for Z9 (known: H100)",
        "1 run: dp: must be whole, got 'x'",
        "gone-2",
        "runs.csv: line 2 dp: must be whole, got 'x'",
    ):
        assert shown in words, shown
    assert "far-off" not in words


def test_points_are_the_rows_and_hover_says_what_they_are(rows: list[ScoredRow], page: str) -> None:
    data = drawn(page)
    traces = [t for t in data["figures"]["agreement-figure"]["data"] if t["mode"] == "markers"]
    points = {
        i: (x, y)
        for trace in traces
        for i, x, y in zip(trace["customdata"], trace["x"], trace["y"], strict=True)
    }
    known = [i for i, one in enumerate(rows) if one.step_error is not None]
    assert sorted(points) == known and len(known) == 12
    for i, point in points.items():
        assert point == (rows[i].measured_step_s, rows[i].predicted_step_s)
        assert rows[i].run.get("run_id") in data["notes"][i]
    symbols = {t["name"]: (t["marker"]["symbol"], t.get("visible", True)) for t in traces[:1]}
    assert symbols == {"lab": ("circle", True)}
    assert [t["marker"]["symbol"] for t in traces] == ["circle", "circle-open", "circle"]
    assert [t.get("visible") for t in traces] == [None, None, "legendonly"]
    note = data["notes"][10]
    for shown in (
        "read  (calibrate)",
        "small, 8 x H100, bf16, stack-1",
        "dp8 mb1 zero1",
        "predicted 1.10 s, measured 1.00 s: error +10.0 %",
        "baseline: error +120.0 %",
        "memory (allocated): predicted 55.0 GiB, measured 50.0 GiB: error +10.0 %",
    ):
        assert shown in note, shown
    assert data["notes"][-1] == ""


def test_bars_of_the_histogram_are_all_pooled_rows(page: str) -> None:
    calibrate, test = drawn(page)["figures"]["histogram-figure"]["data"]
    assert [calibrate["name"], test["name"]] == ["calibrate, n = 1", "test, n = 10"]
    assert sum(test["y"]) == pytest.approx(100.0)
    shares = {round(x, 2): y for x, y in zip(test["x"], test["y"], strict=True) if y}
    # 1, 2 | 4 | 8 | 16 | 5, 5, 5, 5 | 75 %, in bins of 2.5 % named by their middle
    assert shares == pytest.approx(
        {1.25: 20.0, 3.75: 10.0, 6.25: 40.0, 8.75: 10.0, 16.25: 10.0, 51.25: 10.0}
    )


def test_staircases_end_at_every_row(page: str) -> None:
    traces = {t["name"]: t for t in drawn(page)["figures"]["cumulative-figure"]["data"]}
    assert set(traces) == {"calibrate", "baseline, calibrate", "test", "baseline, test"}
    for trace in traces.values():
        assert (trace["x"][0], trace["y"][0], trace["y"][-1]) == (0.0, 0.0, 100.0)
    assert traces["test"]["x"][-1] == pytest.approx(75.0)
    assert traces["baseline, test"]["x"][-1] == pytest.approx(250.0)


def test_the_breakdown_adds_up_to_the_prediction(page: str) -> None:
    figure = drawn(page)["figures"]["worst-figure"]
    names = figure["layout"]["yaxis"]["categoryarray"]
    assert names[:2] == ["far-off", "order-16"] and "parts" not in names
    bars = {trace["name"]: trace for trace in figure["data"]}
    assert set(bars) == {"matrix products", "tensor-parallel collectives"}  # not the empty ones
    assert sum(bar["x"][0] for bar in bars.values()) == pytest.approx(1.75)
    note = bars["matrix products"]["customdata"][0]
    assert "matrix products: 1.25 s, 71.4 % of the prediction" in note
    assert "hidden under compute, not in the bar: dp 250 ms" in note
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [1]


def test_small_figures_show_their_group_and_series(page: str) -> None:
    figures = drawn(page)["figures"]
    line, others, chosen = figures["ranking-figure-0"]["data"]
    assert (line["x"], line["y"]) == ([1, 5], [1, 5])
    assert others["x"] == [1, 1, 1, 1] and others["y"] == [2, 3, 4, 5]  # all measured the same
    assert (chosen["x"], chosen["y"]) == ([1], [1]) and "order-1" in chosen["customdata"][0]
    predicted, measured = figures["series-figure-0"]["data"]
    assert predicted["x"] == measured["x"] == [8, 16, 32, 64]
    assert measured["y"] == [1000.0] * 4  # one sequence of 1000 tokens per GPU and second
    assert predicted["y"] == pytest.approx([1000 / 1.05] * 4)


def test_every_trace_and_line_has_a_meaning_with_a_colour(page: str) -> None:
    data = drawn(page)
    for figure in data["figures"].values():
        assert len(figure["meanings"]) == len(figure["data"])
        assert len(figure["lines"]) == len(figure["layout"]["shapes"])
        assert {*figure["meanings"], *figure["lines"]} <= set(data["palette"])


def test_intervals_are_shown_where_there_are_any(rows: list[ScoredRow], page: str) -> None:
    assert "inside P10-P90" not in page
    known = [
        replace(one, p10_s=0.9 * one.predicted_step_s, p90_s=1.1 * one.predicted_step_s)
        if one.predicted_step_s is not None
        else one
        for one in rows
    ]
    html = make(known)
    # of ten rows of test, 1/1.16 and 1/1.75 of the prediction lie outside 0.9 to 1.1
    assert "80.0 % inside P10-P90" in read(html).words
    assert "predicted 1.10 s (990 ms to 1.21 s), measured 1.00 s" in drawn(html)["notes"][10]


def test_problems_of_files_are_said(rows: list[ScoredRow]) -> None:
    found = Validation(rows=tuple(rows), problems=("/my/other.csv: the file is empty",))
    words = read(split_page(render_validation(found))[0]).words
    assert "1 problem with the files other.csv: the file is empty" in words and "/my/" not in words
