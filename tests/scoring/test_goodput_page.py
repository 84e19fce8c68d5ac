"""The page of reported runs: committed as made, and each line as its arithmetic says."""

from pathlib import Path

import pytest

from simulator.report.goodput_page import page
from simulator.scoring.goodput_cases import compared, read_cases

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_page_is_made_from_the_cases() -> None:
    assert (ROOT / "docs" / "goodput.md").read_text() == page()


def test_rates_alone_give_the_mean_time_between_failures() -> None:
    """3.79 per thousand server-days: 1,000 x 24 / 3.79 / 128 hours on 128 servers."""
    (case,) = [case for case in read_cases() if case.name.startswith("RSC-2")]
    (row,) = compared(case)
    assert row.predicted == pytest.approx(24_000 / 3.79 / 128, rel=0.005)


def test_lines_from_their_own_log_say_so() -> None:
    own = [case for case in read_cases() if case.rates_of == "its own log"]
    assert own and all(case.check for case in own)
    assert "consistency check" in page()
