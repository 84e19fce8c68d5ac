"""The page is whole, offline, safe, and shows the plan's own numbers; files are whole or absent."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from matplotlib.patches import Rectangle

from simulator.layout.plain_words import plain_layout
from simulator.planner.plan import Plan, plan
from simulator.planner.variants import Variant
from simulator.questions.compare.offer import Offer, asked_of, offer_of_answer
from simulator.questions.compare.offers import offer_of
from simulator.questions.plan.options import offers_beside
from simulator.report.canvas import png_bytes
from simulator.report.decision import three_options
from simulator.report.evidence import NOT_MODELLED
from simulator.report.inline_svg import inline
from simulator.report.numbers import DegreeCell, PlanNumbers, collect
from simulator.report.page import TABS, environment, render
from simulator.report.palette import inks
from simulator.report.svg_figure import SvgFigure
from simulator.report.write import (
    heat_picture,
    memory_picture,
    waterfall,
    waterfall_picture,
    write_file,
    write_plan_report,
)
from simulator.scenario import make_scenario
from simulator.units import GIB, show_bytes, show_percent, show_seconds, show_usd

PICTURES = ("decision", "tornado", "waterfall", "memory", "pipeline", "pareto", "degrees")
DRAWN = {name: Markup(f"<svg>picture of {name}</svg>") for name in PICTURES}
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
        self.text.append(data.replace("\xa0", " "))  # "9 %" stays on a line


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
    return collect(answer, offers=offers_of(answer), asked=asked_of(answer))


def offers_of(answer: Plan) -> list[Offer]:
    return [offer_of_answer(answer, asked_of(answer))]


@pytest.fixture(scope="module")
def page(numbers: PlanNumbers) -> str:
    return render(numbers, launch=LAUNCH, drawings=DRAWN)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_every_part_is_there_and_every_picture_has_its_place(page: str) -> None:
    reader = read(page)
    assert re.findall(r'<div class="panel[^"]*" id="(\w+)">', page) == list(TABS)
    assert [name for name in PICTURES if page.count(f"picture of {name}") != 1] == []
    text = " ".join(reader.text)
    for title in TABS.values():
        assert title in text
    for what, _ in NOT_MODELLED:
        assert what in text
    assert "P10 to P90" in text and "hidden" not in re.findall(r"<div class=[^>]*", page)


def test_without_other_offers_it_is_said_how_to_have_them(
    answer: Plan, numbers: PlanNumbers
) -> None:
    (option,) = numbers.options
    assert (option.roles, option.recommended) == (("as asked",), False)
    asked, drawings = asked_of(answer), {k: v for k, v in DRAWN.items() if k != "decision"}
    page = render(numbers, launch=LAUNCH, drawings=drawings)
    words = " ".join(" ".join(read(page).text).split())
    assert "Not searched: this page is about 32 H100 alone." in words
    assert "offers that can run" not in words
    other = offer_of(answer.scenario, "dgx-h100", 16, asked)
    several = collect(answer, offers=[*numbers.offers, other], asked=asked)
    page = render(several, launch=LAUNCH, drawings=DRAWN)
    assert "Not searched" not in page and "2 offers that can run" in page


def test_the_cheapest_of_those_in_time_is_not_called_cheapest_beside_a_cheaper_one(
    answer: Plan,
) -> None:
    """Twice the GPUs end in half the days and cost more: the half is cheaper, and late."""
    free = replace(asked_of(answer), deadline_days=None)
    half, asked_size = offer_of(answer.scenario, "dgx-h100", 16, free), offers_of(answer)[0]
    assert half.usd and asked_size.usd and half.usd.p50 < asked_size.usd.p50
    for days, roles in {
        1e4: {16: ("cheapest",), 32: ("soonest",)},
        1.6 * asked_size.days_to_plan.p50: {32: ("soonest", "safest", "cheapest in time")},
    }.items():
        asked = replace(free, deadline_days=days)
        offers = [offer_of(answer.scenario, "dgx-h100", 16, asked), offer_of_answer(answer, asked)]
        options = {option.offer.gpus: option.roles for option in three_options(offers, asked)}
        assert options.keys() == roles.keys()
        assert all(set(roles[gpus]) <= set(options[gpus]) for gpus in roles)


def test_the_layout_is_in_words_where_it_stands(answer: Plan, page: str) -> None:
    words = " ".join(" ".join(read(page).text).split())
    assert plain_layout(answer.estimate.layouts.row()) in words
    assert 'title="DP ' in page and "so many replicas share the batch" in page


def test_other_trainings_have_a_section_where_they_were_searched(numbers: PlanNumbers) -> None:
    step_s = numbers.best.step_time_s
    cluster = {"name": "dgx-h100", "gpus": 8}
    training = {"sequence_length": 1024, "global_batch": 64}
    scenario = make_scenario(
        {"model": {"name": "gpt2-small"}, "training": training, "cluster": cluster}
    )
    faster = Variant(
        change="training.precision = fp8",
        scenario=scenario,
        layout=numbers.best.described,
        step_time_s=0.75 * step_s,
        memory_total_bytes=40 * GIB,
        memory_verdict="FITS",
    )
    none = Variant(
        change="training.optimizer = adamw_8bit",
        scenario=scenario,
    )
    page = render(replace(numbers, others=[faster, none]), launch=LAUNCH, drawings=DRAWN)
    reader = read(page)
    assert "otherwise" in reader.ids
    part = " ".join(" ".join(reader.text).partition("the result of the training")[2].split())
    assert f"training.precision = fp8 {show_seconds(0.75 * step_s)} -25.0 % 40.0 GiB FITS" in part
    assert "training.optimizer = adamw_8bit no layout fits" in part


def test_the_page_fetches_nothing(page: str) -> None:
    reader = read(page)
    assert reader.fetches == []
    assert "http://" not in page and "https://" not in page
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", page)
    assert "default-src 'none'" in reader.policy and "http" not in reader.policy


def test_names_cannot_become_markup(numbers: PlanNumbers, page: str) -> None:
    evil = replace(
        numbers,
        title=EVIL,
        model=EVIL,
        software=EVIL,
        binding=[EVIL],
        bars=[replace(bar, layout=EVIL) for bar in numbers.bars],
        offers=[replace(numbers.own, accelerator=EVIL, described=EVIL)],
    )
    reader = read(render(evil, launch=f"</pre>{EVIL}", drawings=DRAWN))
    assert reader.scripts == read(page).scripts == 1
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
    assert "FITS" in text and 'class="fails">OOM' not in page
    assert "misses your 1-day deadline by" in text and "very likely within your 1 bn USD" in text


def test_the_launch_command_is_whole(page: str) -> None:
    assert LAUNCH in "".join(read(page).text)
    assert 'data-copies="launch-text"' in page


def test_table_cells_sort_by_the_plans_numbers(answer: Plan, page: str) -> None:
    body = re.search(r'<table class="sortable" id="layout-table">.*?</table>', page, flags=re.S)
    assert body is not None
    rows = re.findall(r"<tr.*?</tr>", body.group(), flags=re.S)[1:]
    steps = [float(re.findall(r'data-value="([^"]*)"', row)[3]) for row in rows]
    assert steps == [float(s) for s in answer.estimate.step_time_s[: len(steps)]]


def widths(figure: Any) -> dict[float, float]:
    """Bars of a picture added up, by the height at which they lie."""
    found: dict[float, float] = {}
    for bar in figure.axes[0].patches:
        if isinstance(bar, Rectangle):
            y = bar.get_y() + bar.get_height() / 2.0
            found[round(y, 6)] = found.get(round(y, 6), 0.0) + bar.get_width()
    return found


@pytest.mark.parametrize("narrow", [False, True])
def test_pictures_add_up_to_the_plan(answer: Plan, numbers: PlanNumbers, narrow: bool) -> None:
    peak = 989.4  # TFLOP/s, dense bf16, of an H100 SXM by its datasheet
    bars = widths(waterfall_picture(numbers, narrow=narrow))
    mfu, goodput = float(answer.outcome.mfu[0]), float(answer.outcome.goodput[0])
    assert bars[0.0] == pytest.approx(peak, rel=1e-3)
    assert list(bars.values())[-1] == pytest.approx(peak * mfu * goodput, rel=1e-3)
    stages = widths(memory_picture(numbers, narrow=narrow))
    assert len(stages) == 2
    most = float(answer.estimate.memory_total_bytes[0])
    assert max(stages.values()) * GIB == pytest.approx(most, rel=1e-9)


def test_losses_lead_from_the_peak_to_the_goodput(numbers: PlanNumbers) -> None:
    steps = waterfall(numbers)
    losses = [length for words, start, length in steps if start]
    left = 1.0 + sum(losses[:-1])  # what is too small to be drawn is missing
    assert left == pytest.approx(numbers.best.mfu, abs=0.006)
    assert all(length < 0.0 for length in losses)
    _, start, end = steps[-1]
    assert (start, end) == (0.0, pytest.approx(numbers.best.mfu * numbers.best.goodput))
    assert numbers.best.mfu + losses[-1] == pytest.approx(end)


def test_shares_of_a_row_are_of_its_step(answer: Plan, numbers: PlanNumbers) -> None:
    """What is idle, and what waits for the network in any way, over the step."""
    terms = {name: float(x[0]) for name, x in answer.estimate.terms_s.items()}
    step_s = float(answer.estimate.step_time_s[0])
    idle = terms["bubble_warmup"] + terms["bubble_drain"]
    talks = sum(terms[x] for x in ("tp", "cp", "ep", "pp", "dp", "fsdp", "small_reductions"))
    assert numbers.best.bubble_share == pytest.approx(idle / step_s)
    assert numbers.best.communication_share == pytest.approx(talks / step_s)
    assert talks > 0.0


@pytest.mark.parametrize(("narrow", "row_points"), [(True, 36.0), (False, 44.64)])
def test_a_row_of_degrees_is_as_high_in_every_picture(
    numbers: PlanNumbers, narrow: bool, row_points: float
) -> None:
    """Half an inch on a phone, 0.62 inches beside another picture."""
    heights = []
    for rows in (1, 2, 5):
        cells = [DegreeCell(tp=2**row, pp=1, step_time_s=1.0) for row in range(rows)]
        figure = heat_picture(replace(numbers, degrees=cells), narrow=narrow, svg=True)
        heights.append(figure.height)
    assert np.diff(heights) == pytest.approx([row_points, 3 * row_points])


def test_headroom_is_what_usable_memory_leaves_free(answer: Plan, numbers: PlanNumbers) -> None:
    estimate = answer.estimate
    free = float(estimate.usable_bytes) - float(estimate.memory_total_bytes[0])
    headroom = numbers.best.memory_headroom
    assert headroom == pytest.approx(free / float(estimate.usable_bytes))


def test_values_stand_right_of_their_bars(numbers: PlanNumbers) -> None:
    axes = waterfall_picture(numbers).axes[0]
    ends = {
        round(bar.get_y() + bar.get_height() / 2.0): max(bar.get_x(), bar.get_x() + bar.get_width())
        for bar in axes.patches
    }
    assert len(ends) == len(waterfall(numbers))
    for text in axes.texts:
        x, row = text.get_position()
        assert 0.0 < x - ends[row] < 0.02 * 989.4


def test_the_memory_of_a_job_is_as_tight_as_its_tightest_stage(numbers: PlanNumbers) -> None:
    first, second = numbers.memory.stages
    for verdicts in (("FITS", "TIGHT"), ("OOM", "TIGHT")):
        stages = tuple(
            replace(stage, verdict=verdict)
            for stage, verdict in zip((first, second), verdicts, strict=True)
        )
        drawn = memory_picture(
            replace(numbers, memory=replace(numbers.memory, stages=stages)), svg=True
        ).svg()
        worst = "OOM" if "OOM" in verdicts else "TIGHT"
        assert f"usable: {worst}" in drawn


@pytest.mark.evidence
def test_the_map_of_degrees_holds_the_best_layout(answer: Plan, numbers: PlanNumbers) -> None:
    assert numbers.degrees == []  # pp is pinned
    free = plan(make_scenario({**answer.scenario.document, "layout": {}}))
    drawn = collect(free, offers=offers_of(free), asked=asked_of(free))
    steps = {(c.tp, c.pp): c.step_time_s for c in drawn.degrees}
    assert {tp for tp, _ in steps} == {1, 2, 4, 8} and {pp for _, pp in steps} == {1, 2, 4, 8, 16}
    row = free.estimate.layouts.row()
    assert steps[row["tp"], row["pp"]] == pytest.approx(free.step_time_s)
    assert min(s for s in steps.values() if s) >= free.step_time_s * (1 - 1e-3)
    assert heat_picture(drawn, svg=True).svg().count("<title>tp ") == len(steps)


def test_a_drawing_takes_the_inks_of_the_page_and_says_what_its_parts_are(
    numbers: PlanNumbers,
) -> None:
    both = (memory_picture(numbers, narrow=narrow, svg=True).svg() for narrow in (False, True))
    drawn = str(inline(*both, alt="a"))
    assert drawn.count("<svg") == 2 and "<style" not in drawn and "<?xml" not in drawn
    assert 'fill="var(--i0b5cad)"' in drawn
    assert set(re.findall(r"var\(--i([0-9a-f]{6})\)", drawn)) <= set(inks("dark"))
    assert "<title>weights: " in drawn
    assert not re.findall(r'\bid="|href=|url\(', drawn)


def test_a_played_step_is_explained_beside_the_closed_form(numbers: PlanNumbers, page: str) -> None:
    assert numbers.played in " ".join(read(page).text)
    closed = show_seconds(numbers.best.step_time_s)
    played = show_seconds(numbers.step.step_time_s)
    assert numbers.played.startswith(f"{played} simulated, {closed} by the analytical model")


def test_parts_of_the_money_add_up(answer: Plan, numbers: PlanNumbers) -> None:
    whole = float(answer.outcome.usd[0])
    assert sum(line.usd for line in numbers.costs) == pytest.approx(whole, rel=1e-3)
    rate = answer.outcome.price.usd_per_gpu_hour
    assert rate is not None
    # Ideal days x 24 h x 32 GPUs x USD an hour.
    ideal = float(answer.outcome.days_ideal[0]) * 24 * 32 * float(rate)
    assert numbers.costs[0].usd == pytest.approx(ideal, rel=1e-9)


def test_no_plan_of_unknown_length_shows_days(numbers: PlanNumbers) -> None:
    row = replace(numbers.best, days=None, gpu_hours=None, usd=None, kwh=None)
    own = replace(numbers.own, days=None, usd=None, planned_days=None, planned_usd=None)
    drawn = {name: DRAWN[name] for name in PICTURES[2:]}
    unknown = replace(numbers, layouts=[row], offers=[own], options=[], costs=[])
    html = render(unknown, launch="", drawings=drawn)
    assert "No number of tokens given." in html
    assert f"<h1>{show_seconds(numbers.best.step_time_s)} a step, " in html
    assert not re.search(r"\bnan\b", " ".join(read(html).text))


def written(answer: Plan, out: Path, *, pictures: bool = False) -> list[Path]:
    asked = asked_of(answer)
    return write_plan_report(
        answer, out, launch=LAUNCH, offers=lambda: offers_of(answer), asked=asked, pictures=pictures
    )


def test_report_is_written_whole(tmp_path: Path) -> None:
    document = {
        "model": {"name": "gpt2-small"},
        "training": {"sequence_length": 1024, "global_batch": 64},
        "cluster": {"name": "dgx-h100", "gpus": 4},
        "layout": {"pp": 2},
    }
    out = tmp_path / "new" / "folder"
    answer = plan(make_scenario(document))
    (alone,) = written(answer, tmp_path / "alone")
    paths = written(answer, out, pictures=True)
    assert alone.read_bytes() == paths[0].read_bytes()
    pictures = ("waterfall", "memory", "pipeline", "pareto")  # pp is pinned, no tokens
    kinds = (f"{name}.{kind}" for name in pictures for kind in ("png", "svg"))
    assert [path.name for path in paths] == ["plan.html", *kinds]
    assert sorted(p.name for p in out.iterdir()) == sorted(path.name for path in paths)
    for path in paths[1:]:
        begins = b"\x89PNG" if path.suffix == ".png" else b"<svg "
        assert path.read_bytes().startswith(begins)
    assert paths[0].stat().st_size < 1_000_000


@pytest.mark.evidence
def test_two_processes_search_what_one_does(answer: Plan) -> None:
    asked = asked_of(answer)
    with offers_beside(answer) as offers:
        found = offers()
    alone = [offer_of(answer.scenario, o.cluster, o.gpus, asked) for o in found[1:]]
    assert found == [offer_of_answer(answer, asked), *alone]
    assert {o.accelerator for o in found} == {"h100-sxm", "b200-sxm"}
    assert [o.gpus for o in found[:5]] == [32, 8, 16, 64, 128]


def test_the_same_numbers_give_the_same_picture(numbers: PlanNumbers) -> None:
    for made, svg in ((png_bytes, False), (SvgFigure.svg, True)):
        one, two = (made(memory_picture(numbers, narrow=True, svg=svg)) for _ in range(2))
        assert one == two


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
