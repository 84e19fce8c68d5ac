"""The explorer's page of reinforcement learning answers as `foreshard rl` does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

import simulator.explorer.web as web
from simulator import rl
from simulator.explorer.web import application

ASSETS = Path(web.__file__).parent / "assets"
RUN: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 16}
PINS = {"pp": 2, "recompute": "full", "micro_batch": 1}


def reply(splits: bool = False, **changes: Any) -> Any:
    asked = json.dumps({**RUN, "pins": PINS, **changes})
    page = TestClient(application(), base_url="http://127.0.0.1:8021", client=("127.0.0.1", 1))
    return page.get("/api/rl", params={"q": asked} | ({"splits": "1"} if splits else {}))


def test_a_step_is_that_of_the_command() -> None:
    found = reply().json()
    section = {"prompts": 64, "samples": 32, "prompt_tokens": 256, "answer_tokens": 1000.0}
    same = rl(**RUN, **PINS, sequence_length=4096, global_batch=512, rl=section, search=False)
    assert same.shown is not None
    assert found["rl"]["step_time_s"] == same.shown.step.step_time_s
    assert found["trainer_layout"] == same.shown.step.trainer.described
    assert found["tried"] == [] and found["caveats"] == list(same.caveats)
    spans = [span for span in found["spans"] if span["batch"] == 0]
    assert {span["lane"] for span in spans} == {"generator", "trainer"}
    assert {span["phase"] for span in found["spans"]} <= set(found["inks"])


def test_splits_are_searched_when_asked_for() -> None:
    found = reply(splits=True, mode="apart", staleness=1).json()
    steps = [row["update_s"] for row in found["tried"] if row["verdict"] != "OOM"]
    assert found["tried_splits"] >= len(steps) > 3 and steps == sorted(steps)
    assert steps[0] <= found["rl"]["step_time_s"] / found["rl"]["updates"] * 1.0001


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"staleness": 1}, "rl.staleness: must be 0 with mode = 'colocated'"),
        ({"model": "../../etc/passwd"}, "unknown model"),
        ({"prompts": 0}, "question: prompts: must be greater than or equal to 1"),
        ({"mode": "apart", "generator_gpus": 16}, "rl.generation.gpus: must leave accelerators"),
        ({"engine": "vlm"}, "engine"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], said: str) -> None:
    wrong = reply(**changes)
    assert wrong.status_code == 422
    assert said in " ".join(wrong.json()["problems"])


def test_the_page_asks_for_what_it_shows() -> None:
    """Every field that the script reads by its name is on the page."""
    page, script = ((ASSETS / name).read_text() for name in ("rl.html", "rl.js"))
    names = re.findall(
        r'"([a-z_]+)"', " ".join(re.findall(r"^const (?:NUMBERS|WORDS) = .*$", script, re.M))
    )
    assert len(names) > 12 and [name for name in names if f'id="{name}"' not in page] == []
    assert set(re.findall(r'\$\("([a-z_]+)"\)', script)) <= set(re.findall(r'id="([a-z_]+)"', page))
    assert "//" not in re.sub(r"^\s*//.*$", "", page, flags=re.M), "nothing from elsewhere"
