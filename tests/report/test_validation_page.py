"""The page of a validation is whole, offline, safe and small, and shows the rows' own numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from simulator.evidence.card import Card
from simulator.measured.rows import MeasuredRun
from simulator.report.evidence import NOT_MODELLED
from simulator.report.svg_figure import SvgAxes
from simulator.report.validation_figures import (
    cumulative_figure,
    ranking_figure,
    series_figure,
    validation_figures,
)
from simulator.report.validation_numbers import collect_validation
from simulator.report.validation_page import (
    HOW_TO_READ,
    SECTIONS,
    TABS,
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


def make(rows: list[ScoredRow]) -> str:
    return render_validation(Validation(rows=tuple(rows)))


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def notes(html: str, section: str) -> list[str]:
    """What the parts of a section's pictures say of themselves."""
    found = re.search(rf'<section id="{section}">.*?</section>', html, flags=re.S)
    assert found is not None
    return [unescape(text) for text in re.findall(r"<title>(.*?)</title>", found.group(), re.S)]


def drawn(rows: list[ScoredRow]) -> dict[str, Any]:
    return validation_figures(collect_validation(Validation(rows=tuple(rows))))


@pytest.fixture(scope="module")
def rows() -> list[ScoredRow]:
    return make_rows()


@pytest.fixture(scope="module")
def page(rows: list[ScoredRow]) -> str:
    return make(rows)


# --- the file ----------------------------------------------------------------------------


FIGURES = {
    *("agreement", "histogram", "cumulative", "scale", "worst", "memory", "ranking-0", "series-0"),
}


def test_every_section_is_there_in_order_and_every_figure_has_its_place(
    rows: list[ScoredRow], page: str
) -> None:
    reader = read(page)
    assert re.findall(r'<section id="(\w+)">', page) == list(SECTIONS)
    assert re.findall(r'<div class="panel[^"]*" id="(\w+)">', page) == list(TABS)
    figures = drawn(rows)
    assert set(figures) == FIGURES
    assert [name for name, figure in figures.items() if page.count(str(figure)) != 1] == []
    for title in (*SECTIONS.values(), *(what for what, _ in (*NOT_MODELLED, *HOW_TO_READ))):
        assert title in reader.words


def test_the_page_fetches_nothing(page: str) -> None:
    reader = read(page)
    assert reader.fetches == []
    assert "http://" not in page and "https://" not in page
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", page)
    assert "default-src 'none'" in reader.policy and "http" not in reader.policy


def test_the_same_rows_give_the_same_page(rows: list[ScoredRow], page: str) -> None:
    assert make(rows) == page and len(page) < 300_000


def test_names_cannot_become_markup(rows: list[ScoredRow], page: str) -> None:
    columns = ("run_id", "source", "split", "model", "gpu", "software", "precision", "tp")
    evil = []
    for i, one in enumerate(rows):
        fields = {**one.run.fields, **{name: EVIL for name in columns if name != "tp"}}
        run = MeasuredRun(where=EVIL, fields={**fields, "run_id": f"{EVIL}{i}"})
        evil.append(replace(one, run=run, reason=EVIL, memory_kind=one.memory_kind and EVIL))
    reader = read(make(evil))
    assert reader.scripts == read(page).scripts == 1
    assert f"{EVIL}{len(rows) - 1}" in "".join(reader.text)


def test_what_does_not_exist_is_no_nan(page: str) -> None:
    assert not re.search(r"\bnan\b|\bNone\b|undefined\b", read(page).words.split("use strict")[0])
    assert not re.search(r'="[^"]*\bnan\b', page)


def test_the_page_is_written_whole_into_a_new_folder(
    rows: list[ScoredRow], page: str, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "validation.html"
    write_validation(Validation(rows=tuple(rows)), path)
    assert path.read_text("utf-8") == page
    assert [p.name for p in path.parent.iterdir()] == ["validation.html"]


@pytest.mark.parametrize("given", ["none predicted", "no rows", "composed only"])
def test_pages_with_little_to_show(rows: list[ScoredRow], given: str) -> None:
    some = {"none predicted": rows[-2:], "no rows": [], "composed only": [rows[-3]]}[given]
    html = make(some)
    assert re.findall(r'<section id="(\w+)">', html) == list(SECTIONS)
    assert list(drawn(some)) == (["agreement"] if given == "composed only" else [])


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
    said = notes(page, "agreement")
    known = [one for one in rows if one.step_error is not None]
    assert len(said) == len(known) == 12
    assert all(any(str(one.run.get("run_id")) in note for note in said) for one in known)
    (note,) = [note for note in said if note.startswith("read (calibrate)")]
    for shown in (
        "small, 8 x H100, bf16, stack-1",
        "dp8 mb1 zero1",
        "predicted 1.10 s, measured 1.00 s: error +10.0 %",
        "baseline: error +120.0 %",
        "memory (allocated): predicted 55.0 GiB, measured 50.0 GiB: error +10.0 %",
    ):
        assert shown in note, shown


def test_bars_of_the_histogram_are_all_pooled_rows(page: str) -> None:
    said = notes(page, "spread")
    half = said[: len(said) // 2]  # wide, then narrow
    counts = {note.partition(":")[0]: note.partition(": ")[2] for note in half if "test" in note}
    # 1, 2 | 4 | 8 | 16 | 5, 5, 5, 5 | 75 %, in bins of 2.5 %
    assert counts == {
        "+0.0 % to +2.5 %": "2 of 10 rows of test",
        "+2.5 % to +5.0 %": "1 of 10 rows of test",
        "+5.0 % to +7.5 %": "4 of 10 rows of test",
        "+7.5 % to +10.0 %": "1 of 10 rows of test",
        "+15.0 % to +17.5 %": "1 of 10 rows of test",
        "+50.0 % and more": "1 of 10 rows of test",
    }


def test_the_breakdown_adds_up_to_the_prediction(page: str) -> None:
    said = notes(page, "worst")
    bars = [note for note in said[: len(said) // 2] if "far-off" in note]
    assert [note.partition(":")[0] for note in bars] == ["GEMMs", "tensor-parallel collectives"]
    assert bars[0].startswith("GEMMs: 1.25 s, 71.4 % of the prediction")  # 1.25 of 1.75 s
    assert bars[1].startswith("tensor-parallel collectives: 500 ms, 28.6 % of the prediction")
    assert "hidden under compute, not in the bar: dp 250 ms" in bars[0]


def test_small_figures_show_their_group_and_series(page: str) -> None:
    orders = notes(page, "rankings")
    assert sorted(int(note.partition("(place ")[2][0]) for note in orders) == [1, 2, 3, 4, 5]
    series = notes(page, "series")
    # one sequence of 1000 tokens per GPU and second, where 1.05 seconds were predicted
    assert [note.splitlines()[0] for note in series] == [
        f"{n} GPUs: predicted 952, measured 1,000 tokens/s per GPU" for n in (8, 16, 32, 64)
    ]


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
    assert "predicted 1.10 s (990 ms to 1.21 s), measured 1.00 s" in "".join(
        notes(html, "agreement")
    )


def test_problems_of_files_are_said(rows: list[ScoredRow]) -> None:
    found = Validation(rows=tuple(rows), problems=("/my/other.csv: the file is empty",))
    words = read(render_validation(found)).words
    assert "1 problem with the files other.csv: the file is empty" in words and "/my/" not in words


def test_shares_of_rows_rise_in_steps_at_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by 10, 20 and 30 %: a third of the rows from each of them on; the baseline by 40 %."""
    drawn: dict[str, tuple[list[float], list[float]]] = {}

    def plot(axes: SvgAxes, x: Any, y: Any, dash: str, *, label: str, **_: Any) -> None:
        drawn[label] = list(x), list(y)

    monkeypatch.setattr(SvgAxes, "plot", plot)
    rows = [
        SimpleNamespace(run={"split": "test"}, step_error=error, baseline_error=base)
        for error, base in ((-0.2, None), (0.1, None), (0.3, 0.4))
    ]
    cumulative_figure(cast("Any", rows), narrow=False)
    x, y = drawn["test"]
    assert x == pytest.approx([0, 10, 10, 20, 20, 30, 30])
    assert y == pytest.approx([0, 0, 100 / 3, 100 / 3, 200 / 3, 200 / 3, 100])
    assert drawn["baseline, test"] == ([0.0, 40.0, 40.0], [0.0, 0.0, 100.0])


@pytest.mark.parametrize(
    ("count", "named"), [(1, [0]), (5, [0, 1, 2, 3, 4]), (6, [0, 2, 4]), (9, [0, 2, 4, 6, 8])]
)
def test_of_more_than_five_sizes_every_other_is_named(count: int, named: list[int]) -> None:
    gpus = [8 * 2**i for i in range(count)]
    rate = np.full(count, 1000.0)
    series: Any = SimpleNamespace(
        gpus=gpus, predicted_tokens_per_s_per_gpu=rate, tokens_per_s_per_gpu=rate,
        predicted_s=rate, measured_s=rate, rows=[row(f"r{n}") for n in gpus],
    )  # fmt: skip
    texts = re.findall(r">([\d,]+)</text>", series_figure(series, narrow=False).svg())
    assert [text for text in texts if text in {f"{n:,}" for n in gpus}] == [
        f"{gpus[i]:,}" for i in named
    ]


@pytest.mark.parametrize(
    ("count", "ticks"), [(2, [1, 2]), (5, [1, 2, 3, 4, 5]), (6, [1, 3, 5]), (11, [1, 4, 7, 10])]
)
def test_places_of_a_ranking_are_named_at_most_five_times(count: int, ticks: list[int]) -> None:
    place = {"predicted_s": 2.0, "measured_s": 1.0, "row": 0}
    places = [SimpleNamespace(predicted_rank=n, measured_rank=n, **place) for n in range(count)]
    group: Any = SimpleNamespace(places=places)
    texts = re.findall(r">(\d+)</text>", ranking_figure(group, [row("one")], narrow=False).svg())
    assert texts == [str(tick) for tick in 2 * ticks]  # of both axes
