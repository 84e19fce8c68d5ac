"""Types of keywords and the name `foreshard`: what an editor completes is what the faces take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import foreshard
import simulator
from simulator.assembly import KEYWORD_SECTIONS, WHOLE_SECTIONS
from simulator.scenario_keywords import ScenarioKeywords
from workshop.pages.keywords import source
from workshop.pages.python import page

ROOT = Path(__file__).resolve().parents[1]


def test_the_committed_types_are_those_of_the_records() -> None:
    assert (ROOT / "simulator" / "scenario_keywords.py").read_text(encoding="utf-8") == source()


def test_every_keyword_has_a_type() -> None:
    typed = set(get_type_hints(ScenarioKeywords))
    assert set(KEYWORD_SECTIONS) <= typed
    assert set(WHOLE_SECTIONS) - typed == {"search", "software"}


def test_foreshard_is_the_package_under_the_name_of_its_distribution() -> None:
    assert set(simulator.__all__) <= set(dir(foreshard))
    assert foreshard.predict is simulator.predict
    assert foreshard.__version__ == simulator.__version__


def test_the_page_of_python_is_made_from_the_docstrings() -> None:
    assert (ROOT / "docs" / "python.md").read_text(encoding="utf-8") == page()


def test_the_page_for_programs_leads_somewhere() -> None:
    """llmstxt.org: a title, a summary in a quote, lists of links under headings."""
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# Foreshard\n\n> ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 8 and [link for link in links if not (ROOT / link).exists()] == []
