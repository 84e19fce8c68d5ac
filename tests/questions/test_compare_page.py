"""The page of a comparison: whole, safe, and with the numbers of its offers."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from simulator.questions.compare.answer import Comparison, compare_clusters
from simulator.questions.compare.page import compare_page
from simulator.questions.compare.picture import comparison_picture
from simulator.report.wording import AT_ASSUMED
from simulator.scenario import make_scenario


class Cells(HTMLParser):
    """Texts of a table's cells by row, and every place that a page would ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.asks: list[str] = []
        self._in = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in = True
        elif tag == "br":  # what stands below a number
            self.rows[-1][-1] += " "
        self.asks += [v for n, v in attrs if n in ("src", "href") and v and not v.startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in = False

    def handle_data(self, data: str) -> None:
        if self._in:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def answer() -> Comparison:
    document = {
        "model": {"name": "gpt2-xl"},
        "training": {"sequence_length": 1024, "global_batch": 64, "tokens": 1e10},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "goal": {"deadline_days": 3},
    }
    return compare_clusters(make_scenario(document), ["dgx-h100", "dgx-a100"], "8", jobs=1)


def page(answer: Comparison) -> str:
    drawn = (comparison_picture(answer, narrow=narrow, svg=True).svg() for narrow in (False, True))
    return compare_page(answer, *drawn)


def test_every_offer_has_its_row(answer: Comparison) -> None:
    read = Cells()
    read.feed(page(answer))
    heads, first, second, more_heads, more, _ = read.rows
    assert [first[0], second[0]] == ["dgx-h100", "dgx-a100"] and first[1] == "8"
    assert len(heads) == len(first) == len(second) <= 8  # as wide as paper
    assert more_heads[:2] == heads[:2] and more[:2] == first[:2] and len(more) == len(more_heads)
    memory = first[heads.index("memory")]
    assert memory.startswith(str(answer.rows[0].memory_verdict)) and memory.endswith("% free")
    row = answer.rows[0]
    assert row.days is not None and row.co2_kg is not None and row.goodput is not None
    shown, _, planned = first[heads.index("days")].partition("; plan for ")
    days, low, _, high = shown.split()
    held = row.planned_days
    assert held is not None
    middle, early, _, late = planned.replace("(", "").replace(")", "").split()
    for said, found in (
        *((days, row.days.p50), (low, row.days.p10), (high, row.days.p90)),
        *((middle, held.p50), (early, held.p10), (late, held.p90)),
    ):
        assert float(said) == pytest.approx(found, rel=0.05)
    assert "*" in first[heads.index("USD")], "an assumed price is marked"
    assert "assumed" in more[more_heads.index("USD an hour")]
    mass, unit = more[more_heads.index("CO2")].split()
    assert float(mass) * {"kg": 1.0, "t": 1e3}[unit] == pytest.approx(row.co2_kg, rel=0.01)
    assert more[more_heads.index("goodput")].split() == [f"{100.0 * row.goodput:.1f}", "%"]
    assert read.asks == []


def test_an_offer_that_cannot_run_says_why_and_nothing_is_markup(answer: Comparison) -> None:
    bad = replace(answer.rows[1], feasible=False, reason="<b>too small</b>")
    read = Cells()
    text = page(replace(answer, rows=(answer.rows[0], bad)))
    read.feed(text)
    assert "<b>too" not in text
    assert read.rows[2][read.rows[0].index("layout")] == "<b>too small</b>"
    assert read.rows[2][read.rows[0].index("days")] == "-"


def test_money_at_an_assumed_price_is_marked_on_the_page(answer: Comparison) -> None:
    """Both clusters have the middle of what second-hand pages say."""
    read = Cells()
    read.feed(page(answer))
    column = next(i for i, head in enumerate(read.rows[0]) if head.startswith("USD"))
    assert all("*" in row[column] for row in read.rows[1 : 1 + len(answer.rows)])
    assert AT_ASSUMED in page(answer)
