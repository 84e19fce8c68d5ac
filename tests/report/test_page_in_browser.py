"""The page of a plan in headless Chromium: nothing is cut, nothing is fetched, all can be read.

On screens of 390, 820 and 1,400 px, tab by tab, and as it prints: one A4.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from simulator.planner.plan import plan
from simulator.questions.compare.answer import compare_clusters
from simulator.questions.compare.offer import asked_of, offer_of_answer
from simulator.questions.compare.page import compare_page
from simulator.questions.plan.options import offers_beside
from simulator.report.write import write_plan_report
from simulator.scenario import make_scenario

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)
FOUND = """<script>addEventListener("message", (event) => {
  document.body.dataset.found = event.data;
})</script>"""
"""Hands what a frame measured to the page around it."""

DOCUMENT = {
    "model": {"name": "llama-3.1-8b"},
    "training": {"sequence_length": 4096, "global_batch": 128, "tokens": 1e12},
    "cluster": {"name": "dgx-h100", "gpus": 32},
    "goal": {"minimize": "cost", "deadline_days": 90.0, "budget_usd": 1e6},
}

MEASURE = Path(__file__).resolve().parents[1] / "data" / "measure_page.js"

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    answer = plan(make_scenario(DOCUMENT))
    with offers_beside(answer) as offers:
        asked, launch = asked_of(answer), "torchrun " + "x" * 200
        return write_plan_report(answer, out, launch=launch, offers=offers, asked=asked)[0]


@pytest.fixture(scope="module")
def comparison() -> str:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 4096, "global_batch": 128, "tokens": 1e12},
        "cluster": {"name": "dgx-h100", "gpus": 8},
        "goal": {"deadline_days": 90.0},
    }
    scenario = make_scenario(document)
    answer = compare_clusters(scenario, ["dgx-h100", "gb200-nvl72"], "8..32", jobs=1)
    return compare_page(answer)


def browse(address: str, folder: Path, *words: str) -> str:
    command = [str(BROWSER), *QUIET, f"--user-data-dir={folder / 'user'}", *words, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout


PICTURES = {"decision": 2, "engineering": 4, "evidence": 0, "search": 1}
"""Pictures that each tab shows."""


@pytest.mark.parametrize("tab", PICTURES)
@pytest.mark.parametrize("width", [390, 820, 1400])
def test_nothing_is_cut(page: Path, tmp_path: Path, width: int, tab: str) -> None:
    text = page.read_text(encoding="utf-8")
    assert measured(text, tmp_path, width, tab) == (PICTURES[tab], 0)


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_nothing_is_cut_without_other_offers(tmp_path: Path, width: int) -> None:
    answer = plan(make_scenario(DOCUMENT))
    asked = asked_of(answer)
    how: dict[str, Any] = {"launch": "torchrun", "asked": asked}
    (made,) = write_plan_report(
        answer, tmp_path / "alone", offers=lambda: [offer_of_answer(answer, asked)], **how
    )
    text = made.read_text(encoding="utf-8")
    assert measured(text, tmp_path, width, "decision") == (1, 0)


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_no_offer_is_cut(comparison: str, tmp_path: Path, width: int) -> None:
    assert measured(comparison, tmp_path, width) == (1, 0)


def test_tabs_are_tabs_and_the_address_opens_one(page: Path, tmp_path: Path) -> None:
    dom = browse(f"{page.as_uri()}#search", tmp_path, "--dump-dom")
    tabs = re.findall(r'<a id="tab-(\w+)"([^>]*)>', dom)
    assert [name for name, _ in tabs] == list(PICTURES)
    for name, given in tabs:
        chosen = name == "search"
        assert f'aria-selected="{str(chosen).lower()}"' in given and 'role="tab"' in given
        assert f'tabindex="{0 if chosen else -1}"' in given and f'aria-controls="{name}"' in given
        panel = re.search(rf'<div class="panel[^"]*" id="{name}"([^>]*)>', dom)
        assert panel is not None and ("hidden" in panel[1]) is not chosen
        assert 'role="tabpanel"' in panel[1]
    assert 'role="tablist"' in dom


def measured(text: str, folder: Path, width: int, tab: str = "") -> tuple[int, int]:
    """Pictures that show and places that no key reaches; fails where anything is cut."""
    text = text.replace("<details", "<details open")
    # Chromium's windows are no narrower than 500 px, a frame in one is.
    script = f"<script>{MEASURE.read_text()}</script>"
    copy, outer = folder / "copy.html", folder / "outer.html"
    copy.write_text(text.replace("</body>", script + "</body>"), encoding="utf-8")
    outer.write_text(
        f'{FOUND}<iframe src="copy.html#{tab}" style="width: {width}px; border: 0"></iframe>'
    )
    words = ("--virtual-time-budget=3000", f"--window-size={width + 100},2000", "--dump-dom")
    dom = browse(outer.as_uri(), folder, *words)
    (found,) = re.findall(r'data-found="([^"]*)"', dom)
    seen, whole, pictures, keyless, cut = json.loads(found.replace("&quot;", '"'))
    assert seen == width and whole <= width + 1
    assert cut == []
    return pictures, keyless


@pytest.mark.parametrize("dark", [False, True])
def test_it_prints_on_a_page(page: Path, tmp_path: Path, dark: bool) -> None:
    out = tmp_path / "page.pdf"
    words = ["--force-dark-mode"] if dark else []
    browse(page.as_uri(), tmp_path, *words, "--no-pdf-header-footer", f"--print-to-pdf={out}")
    assert len(re.findall(rb"/Type\s*/Page[^s]", out.read_bytes())) == 1


def test_without_a_script_all_is_shown(page: Path) -> None:
    markup = page.read_text(encoding="utf-8").partition("<script>")[0]
    assert " hidden" not in re.sub(r">[^<]*<", "><", markup.partition("</style>")[2])
    assert markup.count('class="panel') == len(PICTURES)
