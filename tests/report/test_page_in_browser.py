"""The page of a plan in headless Chromium: nothing is cut, nothing is fetched, all can be read.

On screens of 390, 820 and 1,400 px and as it prints; contrast is that of WCAG AA.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from simulator.planner.plan import plan
from simulator.questions.compare.answer import compare_clusters
from simulator.questions.compare.page import compare_page
from simulator.questions.compare.picture import comparison_picture
from simulator.report.palette import PALETTE
from simulator.report.write import write_plan_report
from simulator.scenario import make_scenario

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)
MEASURE = Path(__file__).resolve().parents[1] / "data" / "measure_page.js"

pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    document = {
        "model": {"name": "llama-3.1-8b"},
        "training": {"sequence_length": 4096, "global_batch": 128, "tokens": 1e12},
        "cluster": {"name": "dgx-h100", "gpus": 32},
        "layout": {"pp": 4},
        "goal": {"minimize": "cost", "deadline_days": 90.0},
    }
    out = tmp_path_factory.mktemp("report")
    return write_plan_report(plan(make_scenario(document)), out, launch="torchrun " + "x" * 200)[0]


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
    drawn = (comparison_picture(answer, narrow=narrow, svg=True).svg() for narrow in (False, True))
    return compare_page(answer, *drawn)


def browse(page: Path, folder: Path, *words: str) -> str:
    command = [str(BROWSER), *QUIET, f"--user-data-dir={folder / 'user'}", *words, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout


@pytest.mark.parametrize("paper", [False, True], ids=["screen", "paper"])
@pytest.mark.parametrize("width", [390, 820, 1400])
def test_nothing_is_cut(page: Path, tmp_path: Path, width: int, paper: bool) -> None:
    if paper and width == 390:
        pytest.skip("no paper is as narrow")
    assert measured(page.read_text(encoding="utf-8"), tmp_path, width, paper=paper) == (6, 0)


@pytest.mark.parametrize("paper", [False, True], ids=["screen", "paper"])
@pytest.mark.parametrize("width", [820, 1400])
def test_no_offer_is_cut(comparison: str, tmp_path: Path, width: int, paper: bool) -> None:
    assert measured(comparison, tmp_path, width, paper=paper) == (1, 0)


def measured(text: str, folder: Path, width: int, *, paper: bool) -> tuple[int, int]:
    """Pictures that show and places that no key reaches; fails where anything is cut."""
    text = text.replace("<details", "<details open")
    if paper:
        text = text.replace("@media print", "@media all")
    # Chromium's windows are no narrower than 500 px, to which the same style sheets apply.
    script = f"<style>html {{ width: {width}px }}</style><script>{MEASURE.read_text()}</script>"
    copy = folder / "copy.html"
    copy.write_text(text.replace("</body>", script + "</body>"), encoding="utf-8")
    dom = browse(copy, folder, f"--window-size={max(width, 500)},2000", "--dump-dom")
    (found,) = re.findall(r'data-found="([^"]*)"', dom)
    seen, whole, pictures, keyless, cut = json.loads(found.replace("&quot;", '"'))
    assert [one for one in cut if one.startswith("scrolls")] == []
    assert seen == width and whole <= width + 1
    assert [one for one in cut if "open" not in one] == []
    return pictures, keyless


def test_it_prints(page: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.pdf"
    browse(page, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={out}")
    assert out.read_bytes().startswith(b"%PDF-")


def luminance(ink: str) -> float:
    parts = [int(ink[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(ink: str, ground: str) -> float:
    dark, light = sorted((luminance(ink), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def test_all_text_can_be_read(page: Path) -> None:
    """Contrast of 4.5 or more of every ink of texts with page and panel, on both sides."""
    text = page.read_text(encoding="utf-8")
    for side, block in zip(
        ("light", "dark"), re.findall(r":root \{(.*?)\}", text, re.S), strict=True
    ):
        inks = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))
        assert {"text", "quiet", "mark", "fits", "tight", "fails", "page", "panel"} <= set(inks)
        for name in ("text", "quiet", "mark", "fits", "tight", "fails"):
            for ground in ("page", "panel"):
                assert contrast(inks[name], inks[ground]) >= 4.5, (side, name, ground)
        for name in ("text", "quiet", "does not fit"):  # words in pictures
            assert contrast(getattr(PALETTE[name], side), inks["page"]) >= 4.5, (side, name)
