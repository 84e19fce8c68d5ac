"""The explorer in headless Chromium: it loads, its state moves the verdict, too much turns red."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from simulator.explorer.web import application
from simulator.workload import presets

ZOO = Path(presets.__file__).parent / "zoo"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
pytestmark = [
    pytest.mark.evidence,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(application(), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)


def verdict(address: str, folder: Path, width: int = 1400, **question: object) -> tuple[str, str]:
    """Class and text of the verdict, after the search."""
    dom = searched(address, folder, width, **question)
    place = dom.partition('id="verdict"')[2].partition("<h2>")[0]
    kind = place.partition('class="')[2].partition('"')[0]
    words = place.partition(">")[2].replace("<", " <")
    return kind, " ".join(words.split())


def searched(address: str, folder: Path, width: int = 1400, **question: object) -> str:
    """The page as it is after the search."""
    asked = {"model": "gpt2-small", "cluster": "dgx-a100", "gpus": 8, "tokens": 1e10}
    asked |= {"global_batch": 64, "sequence_length": 1024, **question}
    link = f"{address}#{urllib.parse.quote(json.dumps(asked))}"
    command = [
        *(str(BROWSER), *QUIET, f"--user-data-dir={folder}", f"--window-size={width},1200"),
        *("--virtual-time-budget=30000", "--dump-dom", link),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout


def test_a_link_carries_an_own_model_and_what_stands_beside_it(
    address: str, tmp_path: Path
) -> None:
    config = json.loads((ZOO / "gpt2-small.json").read_text())
    first = {"model": "gpt2-small", "cluster": "dgx-h100", "gpus": 8, "tokens": 1e10}
    first |= {"global_batch": 64, "sequence_length": 1024}
    dom = searched(address, tmp_path, model="own", config=config, against=first)
    assert '<option value="own">own: gpt2</option>' in dom
    beside = dom.partition('id="against"')[2].partition("</table>")[0]
    assert "A: gpt2-small on 8 x dgx-h100" in beside and "B: own on 8 x dgx-a100" in beside
    assert re.search(r"B is [\d.]+ h later, [\d.]+ USD (cheaper|dearer)", beside)
    assert re.search(r"<td>step</td><td>[\d.]+ ms \([\d. ms]+to [\d.]+ ms\)</td>", beside)


def test_the_link_moves_the_verdict(address: str, tmp_path: Path) -> None:
    kind, one = verdict(address, tmp_path / "a")
    assert kind == "FITS"
    assert re.search(r"[\d.]+ hours \(.* to .*\), [\d.]+ USD\* \(", one)
    kind, two = verdict(address, tmp_path / "b", gpus=16)
    assert kind == "FITS"
    assert one != two


def test_a_goal_that_is_missed_turns_red(address: str, tmp_path: Path) -> None:
    kind, text = verdict(address, tmp_path / "a", deadline_days=1e-3)
    assert kind == "FITS missed" and "under 0.1 % chance to keep the deadline" in text
    kind, text = verdict(address, tmp_path / "b", deadline_days=1e3)
    assert kind == "FITS" and "over 99.9 % chance to keep the deadline" in text


def test_a_layout_that_does_not_fit_turns_red(address: str, tmp_path: Path) -> None:
    pins = {"tp": 1, "pp": 1, "cp": 1, "sharding": "ddp"}
    kind, text = verdict(address, tmp_path, model="llama-3.1-70b", pins=pins)
    assert kind in ("OOM", "none")
    assert "Nothing fits" in text or "OOM" in text
