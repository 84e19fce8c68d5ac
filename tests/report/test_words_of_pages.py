"""Pages say the words of the field: none of the phrases that the glossary tells to avoid."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

import simulator.report
from simulator.glossary import glossary
from simulator.planner.plan import plan
from simulator.questions.compare.answer import Comparison
from simulator.questions.compare.offer import asked_of
from simulator.questions.compare.page import compare_page
from simulator.questions.plan.options import offers_beside
from simulator.report.write import write_plan_report
from simulator.scenario import make_scenario

TEMPLATES = sorted(Path(simulator.report.__file__).parent.glob("*.j2"))
EXPLORER = sorted((Path(simulator.report.__file__).parents[1] / "explorer/assets").glob("*.*"))


def said(text: str) -> list[str]:
    """Phrases to avoid that a text has."""
    return [phrase for phrase in glossary()["avoid"] if phrase in text]


@pytest.mark.parametrize("path", [*TEMPLATES, *EXPLORER], ids=lambda path: path.name)
def test_templates_avoid_them(path: Path) -> None:
    assert said(path.read_text(encoding="utf-8")) == []


def test_the_phrases_are_looked_for() -> None:
    assert said("For 1.42 M USD (money of the reference): the step, played") != []


@pytest.mark.evidence
def test_a_plan_and_a_comparison_avoid_them(tmp_path: Path) -> None:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 4096, "global_batch": 128, "tokens": 1e12},
        "cluster": {"name": "dgx-h100", "gpus": 32},
        "goal": {"deadline_days": 90.0, "budget_usd": 1e6},
    }
    answer = plan(make_scenario(document))
    asked = asked_of(answer)
    with offers_beside(answer) as offers:
        (path,) = write_plan_report(answer, tmp_path, launch="", offers=offers, asked=asked)
        rows = tuple(offers())
    compared = compare_page(Comparison(scenario=answer.scenario, asked=asked, rows=rows))
    for page in (path.read_text(encoding="utf-8"), compared):
        text = unescape(re.sub(r"<script>.*?</script>|<style>.*?</style>", "", page, flags=re.S))
        assert said(" ".join(text.split())) == []
