"""The page of reported runs: committed as made, and each line as its arithmetic says."""

import math
from pathlib import Path

import pytest

from workshop.cases.goodput import compared, months_errors, read_cases
from workshop.cases.gpu_hours import hours_of, read_hour_cases
from workshop.pages.accuracy.goodput import goodput_section
from workshop.pages.goodput import page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made() -> str:
    return page()


@pytest.mark.evidence
def test_the_committed_page_is_made_from_the_cases(made: str) -> None:
    """All but the hours, which move with every step time."""
    committed = (ROOT / "docs" / "goodput.md").read_text()
    for text in (committed, made):
        assert text.count(HOURS_BEGIN) == text.count(HOURS_END) == 1
    assert _but_hours(committed) == _but_hours(made)


@pytest.mark.evidence
def test_the_committed_hours_are_made_from_the_cases(made: str) -> None:
    assert (ROOT / "docs" / "goodput.md").read_text() == made


def _but_hours(text: str) -> tuple[str, str]:
    return text.partition(HOURS_BEGIN)[0], text.partition(HOURS_END)[2]


def test_rates_alone_give_the_mean_time_between_failures() -> None:
    """3.79 per thousand server-days: 1,000 x 24 / 3.79 / 128 hours on 128 servers."""
    (case,) = [case for case in read_cases() if case.name.startswith("RSC-2")]
    (row,) = compared(case)
    assert row.predicted == pytest.approx(24_000 / 3.79 / 128, rel=0.005)


def test_lines_from_their_own_log_say_so(made: str) -> None:
    own = [case for case in read_cases() if case.rates_of == "its own log"]
    assert own and all(case.check for case in own)
    assert "consistency check" in made


def test_hours_of_a_published_run_are_steps_times_time_times_accelerators() -> None:
    """Llama 2 7B: 2e12 tokens at 4,194,304 a step are 476,838 steps on 1,024 GPUs."""
    (case,) = [case for case in read_hour_cases() if case.name == "Llama 2 7B"]
    found = hours_of(case)
    step_s = found.ideal * 3600.0 / 1024 / math.ceil(2e12 / (1024 * 4096))
    assert 1.0 < step_s < 1.5  # 6 x 6.7e9 x 4.2e6 FLOP over 1,024 x 312 TFLOP/s are 0.53 s
    assert found.real == pytest.approx(found.ideal / found.goodput, rel=1e-9)


def test_each_published_run_has_its_line(made: str) -> None:
    for case in read_hour_cases():
        (line,) = [x for x in made.splitlines() if x.startswith(f"| {case.name}") and case.kind in x
                   and f"| {case.name} |" in x.replace(" (r)", "")]  # fmt: skip
        assert f"| {case.gpu_hours:,.0f} |" in line
        assert ("(r)" in line) == (case.reading == "recalled")
    for case in read_hour_cases(compared=False):
        assert case.name in made and case.source in made


def test_a_run_counts_once(made: str) -> None:
    """Hours of 405B and BLOOM are compared by the predicted step time, and in no other error."""
    hours = {case.name.replace("-", " ").partition(",")[0] for case in read_hour_cases()}
    twice = [case for case in read_cases() if "gpu_hours" in case.reported]
    assert {case.name.replace("-", " ").partition(",")[0] for case in twice} <= hours | {
        "BLOOM 176B"
    }
    assert len(twice) == 2 and all(case.not_counted for case in twice)
    counted = months_errors([row for case in read_cases() for row in compared(case)])
    # 20 figures, four of them of their own log, two of hours that count below; four are bounds
    assert counted["n"] + counted["bounds"] == 20 - 4 - 2 and counted["bounds"] == 4
    (line,) = [x for x in made.splitlines() if x.startswith("| Llama 3.1 405B, GPU-hours")]
    assert "30,840,000" in line and line.endswith("-7 % (not counted) |")


def test_the_summary_counts_what_the_page_lists() -> None:
    found = [row for case in read_cases() for row in compared(case)]
    months = months_errors(found)
    rows = [row for row in found if not (row.case.check or row.case.not_counted)]
    assert months["n"] + months["bounds"] == len(rows)
    off = sorted(abs(row.predicted / row.reported - 1.0) for row in rows if not row.is_bound)
    assert months["max_ape"] == off[-1]
    (section,) = list(goodput_section({"months": months, "gpu_hours": HOURS}, "{:.0%}".format))[1:]
    assert f"{months['n']} figures" in section and "8 published runs" in section


HOURS = {"n": 8, "ideal_median_ape": 0.2, "median_ape": 0.1, "kinds": {}}
HOURS_BEGIN, HOURS_END = "## GPU-hours", "## Sources"
