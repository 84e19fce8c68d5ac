"""The page is whole, offline, safe, and shows the plan's own numbers; files are whole or absent."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from simulator.planner.search import Plan, plan
from simulator.report.evidence import NOT_MODELLED
from simulator.report.figures import figures
from simulator.report.numbers import PlanNumbers, collect
from simulator.report.page import SECTIONS, environment, render
from simulator.report.plots import memory_png
from simulator.report.write import write_file, write_plan_report
from simulator.scenario import make_scenario
from simulator.units import GIB, show_bytes, show_percent, show_seconds, show_usd

PICTURE = b"\x89PNG of a pipeline"
LAUNCH = "torchrun --nnodes 4 pretrain_gpt.py \\\n  --tensor-model-parallel-size 2"
EVIL = "<script>alert('x')</script>"


class Reader(HTMLParser):
    """Collects elements, text and the parts of a page that could fetch something."""

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
            value = given.get(name)
            if value is not None and not value.startswith("#"):
                self.fetches.append(value)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def answer() -> Plan:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 4096, "global_batch": 128, "tokens": 1e12},
        "cluster": {"name": "dgx-h100", "gpus": 32},
        "layout": {"pp": 2},
        "goal": {"minimize": "cost", "deadline_days": 1.0, "budget_usd": 1e9},
    }
    return plan(make_scenario(document))


@pytest.fixture(scope="module")
def numbers(answer: Plan) -> PlanNumbers:
    return collect(answer)


@pytest.fixture(scope="module")
def page(numbers: PlanNumbers) -> str:
    return without_plotly(render(numbers, launch=LAUNCH, pipeline=PICTURE))


def without_plotly(html: str) -> str:
    """Take plotly.js out: 4.8 MB that are not ours."""
    short, found = re.subn(r'(<script id="plotly">).*?(</script>)', r"\1\2", html, flags=re.S)
    assert found == 1
    return short


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_every_section_is_there_and_every_figure_has_its_place(
    page: str, numbers: PlanNumbers
) -> None:
    reader = read(page)
    assert set(SECTIONS) <= reader.ids
    assert {figure["id"] for figure in figures(numbers)} <= reader.ids
    text = " ".join(reader.text)
    for title in SECTIONS.values():
        assert title in text
    for what, _ in NOT_MODELLED:
        assert what in text
    assert "P10 to P90" in text and "fastest" in text


def test_the_page_fetches_nothing(page: str) -> None:
    reader = read(page)
    assert [url for url in reader.fetches if not url.startswith("data:image/png;base64,")] == []
    assert "http://" not in page and "https://" not in page
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", page)
    assert "default-src 'none'" in reader.policy and "http" not in reader.policy


def test_plotly_is_inlined_once(numbers: PlanNumbers) -> None:
    html = render(numbers, launch=LAUNCH, pipeline=PICTURE)
    assert html.count('<script id="plotly">') == 1
    assert html.count("plotly.js v") == 1
    assert len(html) > 4_000_000


def test_names_cannot_become_markup(numbers: PlanNumbers, page: str) -> None:
    evil = replace(
        numbers,
        title=EVIL,
        model=EVIL,
        software=EVIL,
        binding=[EVIL],
        bars=[replace(bar, layout=EVIL) for bar in numbers.bars],
    )
    reader = read(without_plotly(render(evil, launch=f"</pre>{EVIL}", pipeline=PICTURE)))
    assert reader.scripts == read(page).scripts == 3
    assert EVIL in "".join(reader.text)


def test_the_verdict_is_the_plans(answer: Plan, page: str) -> None:
    text = " ".join(" ".join(read(page).text).split())
    result = answer.outcome
    for shown in (
        answer.estimate.layouts.describe(0),
        show_seconds(float(answer.estimate.step_time_s[0])),
        show_percent(float(result.mfu[0])),
        show_percent(float(result.hfu[0])),
        f"{float(result.days[0]):,.1f} days",
        show_usd(float(result.usd[0])),
        f"{float(result.tokens_per_s_per_gpu[0]):,.0f}",
        show_bytes(float(answer.estimate.memory_total_bytes[0])),
        show_bytes(answer.estimate.usable_bytes),
    ):
        assert shown in text, shown
    assert "FITS" in text and "OOM" not in text.replace("OOM: neither", "")
    assert "deadline 1.0 days missed, chance 0.0 %" in text
    assert "kept, chance 100.0 %" in text


def test_the_launch_command_is_whole(page: str) -> None:
    assert LAUNCH in "".join(read(page).text)
    assert 'data-copies="launch-text"' in page


def test_table_cells_sort_by_the_plans_numbers(answer: Plan, page: str) -> None:
    body = re.search(r'<table class="sortable">.*?</table>', page, flags=re.S)
    assert body is not None
    rows = re.findall(r"<tr.*?</tr>", body.group(), flags=re.S)[1:]
    steps = [float(re.findall(r'data-value="([^"]*)"', row)[3]) for row in rows]
    assert steps == [float(s) for s in answer.estimate.step_time_s[: len(steps)]]


def test_figures_add_up_to_the_plan(answer: Plan, page: str) -> None:
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page)
    assert found is not None
    drawn: dict[str, Any] = {f["id"]: f for f in json.loads(found.group(1))["figures"]}
    time = drawn["time-figure"]["data"]
    step = sum(trace["x"][0] for trace in time if trace["type"] == "bar")
    assert step == pytest.approx(float(answer.estimate.step_time_s[0]), rel=1e-12)
    memory = drawn["memory-figure"]["data"]
    bars, (line,) = memory[:-1], memory[-1:]
    stages = [sum(sizes) * GIB for sizes in zip(*(trace["x"] for trace in bars), strict=True)]
    assert [x * GIB for x in line["x"]] == pytest.approx(stages, rel=1e-9)
    p90 = [(x + up) * GIB for x, up in zip(line["x"], line["error_x"]["array"], strict=True)]
    assert max(p90) == pytest.approx(float(answer.estimate.memory_p90_bytes[0]), rel=1e-9)
    assert len(stages) == 2
    assert max(stages) == pytest.approx(float(answer.estimate.memory_total_bytes[0]), rel=1e-9)
    for figure in drawn.values():
        assert len(figure["meanings"]) == len(figure["data"])
        assert len(figure["lines"]) == len(figure["layout"]["shapes"])
    notes = time[0]["customdata"][0]
    assert "formula:" in notes and "source:" in notes


def test_speedup_figures_hold_the_report(numbers: PlanNumbers) -> None:
    drawn = {figure["id"]: figure for figure in figures(numbers)}
    points = [point for point in numbers.scaling.points if point.estimate is not None]
    ideal, best = drawn["speedup-figure"]["data"]
    assert best["y"] == [point.speedup for point in points]
    assert ideal["y"] == [point.gpus / points[0].gpus for point in points]
    eaten = drawn["ratio-figure"]["data"]
    for i, point in enumerate(points[1:]):
        total = sum(trace["x"][i] for trace in eaten)
        assert total == pytest.approx(100 * (1.0 - point.ratio), abs=0.2)


def test_no_plan_of_unknown_length_shows_days(numbers: PlanNumbers) -> None:
    row = replace(numbers.best, days=None, gpu_hours=None, usd=None, kwh=None)
    html = without_plotly(render(replace(numbers, layouts=[row]), launch="", pipeline=PICTURE))
    assert "no number of tokens given" in html
    assert not re.search(r"\bnan\b", " ".join(read(html).text))


def test_a_layout_that_does_not_fit_says_so(numbers: PlanNumbers) -> None:
    row = replace(numbers.best, fits=False, verdict="OOM")
    html = without_plotly(render(replace(numbers, layouts=[row]), launch="", pipeline=PICTURE))
    assert '<b class="fails">OOM</b>' in html


def test_report_is_written_whole(tmp_path: Path) -> None:
    document = {
        "model": {"name": "gpt2-small"},
        "training": {"sequence_length": 1024, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 4},
        "layout": {"pp": 2},
    }
    out = tmp_path / "new" / "folder"
    paths = write_plan_report(plan(make_scenario(document)), out, launch=LAUNCH)
    pictures = ("memory", "pareto", "pipeline", "speedup", "time", "run")
    assert [path.name for path in paths] == ["plan.html", *(f"{name}.png" for name in pictures)]
    assert sorted(p.name for p in out.iterdir()) == sorted(path.name for path in paths)
    for path in paths[1:]:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_same_numbers_give_the_same_picture(numbers: PlanNumbers) -> None:
    assert memory_png(numbers) == memory_png(numbers)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path / "plan.html", b"old")

    def full(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_file(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.html"]
    assert path.read_bytes() == b"old"


def test_names_on_a_page_cannot_turn_its_text() -> None:
    """Trojan Source (CVE-2021-42574): marks of direction in a name reorder what is shown."""
    made = environment().from_string("{{ name }} {{ drawn }}")
    shown = made.render(name="a\x1b[31m\u202e<b>", drawn=Markup("<svg>"))
    assert shown == "a\\x1b[31m\\u202e&lt;b&gt; <svg>"
