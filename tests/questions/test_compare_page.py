"""The page of a comparison: whole, safe, and with the numbers of its offers."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from simulator.questions.compare.answer import Comparison, compare_clusters
from simulator.questions.compare.offer import Offer
from simulator.questions.compare.page import compare_page, compare_picture
from simulator.scenario import make_scenario
from simulator.units import show_usd


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


@pytest.fixture(scope="module")
def page(answer: Comparison) -> str:
    return compare_page(answer)


def test_the_answer_comes_first(answer: Comparison, page: str) -> None:
    found = re.search(r"<h1>(.*?)</h1>", page)
    assert found is not None
    best = min((row for row in answer.rows if row.meets(answer.asked)), key=_usd)
    assert found[1].startswith("8 H100: " if best.accelerator == "h100-sxm" else "8 A100")
    assert best.days is not None and f"{24 * best.days.p50:.1f} hours" in found[1]
    assert "very likely before your 3-day deadline" in found[1]
    assert page.index("<h1>") < page.index("<h2>Prices") < page.index("<table")


def _usd(row: Offer) -> float:
    return row.usd.p50 if row.usd else float("inf")


def test_every_offer_has_its_row(answer: Comparison, page: str) -> None:
    read = Cells()
    read.feed(page)
    at = next(i for i, row in enumerate(read.rows) if row[0] == "offer" and len(row) > 2)
    heads, *rows = read.rows[at : at + 3]
    named = {words[0].split()[1]: words for words in rows}
    for offer in answer.rows:
        words = named[{"h100-sxm": "H100", "a100-sxm-80": "A100"}[offer.accelerator]]
        assert words[0].startswith("8 ") and offer.cluster in words[0]
        assert offer.days is not None and offer.usd is not None
        shown, low, _, high = words[1].split()
        for said, known in ((shown, offer.days.p50), (low, offer.days.p10), (high, offer.days.p90)):
            assert float(said) == pytest.approx(known, rel=0.05)
        memory = words[heads.index("memory")]
        assert memory.startswith(str(offer.memory_verdict)) and memory.endswith("% free")
        assert f"{offer.usd_per_gpu_hour:.2f}" in words[heads.index("USD per GPU-hour")]
        assert offer.assumed_price and "\u25b2" in words[heads.index("USD per GPU-hour")]
    assert read.asks == []


def test_prices_stand_in_the_head_with_date_and_provider(answer: Comparison, page: str) -> None:
    head = page[: page.index("Cost against time")]
    for row in answer.rows:
        assert row.price is not None and row.price["date"] in head
        assert row.price["provider"] in head and "assumed, no quote" in head


def test_an_offer_that_cannot_run_says_why_and_nothing_is_markup(answer: Comparison) -> None:
    bad = replace(answer.rows[1], feasible=False, reason="<b>too small</b>")
    read = Cells()
    text = compare_page(replace(answer, rows=(answer.rows[0], bad)))
    read.feed(text)
    assert "<b>too" not in text
    assert ["8 A100 80", "<b>too small</b>"] in read.rows


def test_the_picture_has_a_point_for_every_offer(answer: Comparison) -> None:
    picture = compare_picture(answer)
    assert picture is not None
    drawn = picture(svg=True).svg()
    notes = re.findall(r"<title>(.*?)</title>", drawn)
    assert {note.partition(";")[0] for note in notes} == {"8 H100", "8 A100 80"}
    assert ">deadline 3 days lies beyond</text>" in drawn and ">H100</text>" in drawn


def test_a_limit_near_the_offers_is_a_line(answer: Comparison) -> None:
    latest = max(row.days.p90 for row in answer.rows if row.days)
    dearest = max(row.usd.p90 for row in answer.rows if row.usd)
    limits = {"deadline_days": 1.5 * latest, "budget_usd": 4.0 * dearest}
    picture = compare_picture(replace(answer, asked=replace(answer.asked, **limits)))
    assert picture is not None
    drawn = picture(svg=True).svg()
    assert f">deadline {1.5 * latest:,.4g} days</text>" in drawn
    assert f">budget {show_usd(4.0 * dearest)} lies beyond</text>" in drawn


def test_what_the_picture_leaves_out_is_said_with_its_reason(answer: Comparison) -> None:
    """An offer without a price is not late: 3 days are asked, 1.6 times that is drawn."""
    first, second = answer.rows
    assert first.days is not None
    late = replace(second, days=replace(first.days, p50=4.9))
    free = replace(first, cluster="unpriced", usd=None, usd_per_gpu_hour=None)
    text = compare_page(replace(answer, rows=(first, late, free)))
    words = "1 offer far beyond the deadline and 1 offer without a price stand in the table only."
    assert words in text
    assert "1 offer without a price stands in the table only." in compare_page(
        replace(answer, rows=(first, free))
    )
