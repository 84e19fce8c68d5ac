"""`foreshard mcp`: an agent's tools answer what the commands of their names print."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters

from simulator.questions.mcp import server as tools

RUN = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 8}
HALF = {"training.tokens": "1T", "layout.tp": 2}


def ask(use: Callable[[Any], Coroutine[Any, Any, Any]], server: Any = None) -> Any:
    """What `use` gets from a client of the server."""

    async def session() -> Any:
        async with Client(server or tools.server()) as client:
            return await use(client)

    return asyncio.run(session())


def call(tool: str, arguments: dict[str, Any]) -> Any:
    return ask(lambda client: client.call_tool(tool, arguments))


def printed(*words: str) -> str:
    line = [sys.executable, "-m", "simulator", *words]
    environment = {**os.environ, "COLUMNS": str(tools.WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=True).stdout


def test_over_standard_input_a_tool_says_what_its_command_prints() -> None:
    program = StdioServerParameters(command=sys.executable, args=["-m", "simulator", "mcp"])

    async def use(client: Any) -> tuple[list[str], str]:
        names = [tool.name for tool in (await client.list_tools()).tools]
        answer = await client.call_tool("predict", {**RUN, "fields": HALF})
        return names, answer.content[0].text

    names, answer = ask(use, program)
    assert {"plan", "predict", "compare", "explain"} <= set(names)
    options = ["--model=llama-3.2-1b", "--cluster=dgx-h100", "--gpus=8", "--set", "layout.tp=2"]
    assert answer == printed("predict", *options, "--set", "training.tokens=1T")


def test_a_scenario_may_be_its_text_and_the_answer_its_document() -> None:
    text = (
        '[model]\nname = "llama-3.2-1b"\n[cluster]\nname = "dgx-h100"\ngpus = 8\n'
        "[training]\nsequence_length = 8192\nglobal_batch = 1024\ntokens = 1e12\n[layout]\ntp = 2\n"
    )
    said = call("predict", {"scenario": text, "json": True})
    options = ["--model=llama-3.2-1b", "--cluster=dgx-h100", "--gpus=8", "--set", "layout.tp=2"]
    same = printed("predict", "--json", *options, "--set", "training.tokens=1e12")
    numbers, others = json.loads(said.content[0].text), json.loads(same)
    assert numbers["layouts"] == others["layouts"]


def test_what_is_wrong_is_an_error_of_the_tool_with_the_message_of_the_command() -> None:
    wrong = call("predict", {**RUN, "model": "llama-3.2-1bb"})
    assert wrong.is_error
    assert "model.name: must be a model of the zoo" in wrong.content[0].text
    dashed = call("explain", {"term": "--help"})
    assert dashed.is_error and "--help: no such term" in dashed.content[0].text


def test_an_argument_that_a_tool_lacks_is_refused_and_not_ignored() -> None:
    """A plan without its deadline would be another answer than the one that was asked for."""
    wrong = call("plan", {**RUN, "tokens": "1T", "deadline_days": 20, "pods": 3})
    assert wrong.is_error
    said = wrong.content[0].text
    assert "tokens: no such argument (give it in fields, as 'training.tokens')" in said
    assert "'goal.deadline_days'" in said and "pods: no such argument" in said
    missing = call("explain", {"word": "gemm"})
    assert missing.is_error and "term: needed" in missing.content[0].text


def test_a_plan_writes_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    said = call("plan", {**RUN, "fields": {"training.tokens": "1T"}})
    assert not said.is_error and "plan for" in said.content[0].text.lower()
    assert not list(tmp_path.iterdir())


def test_names_are_listed() -> None:
    assert "dgx-h100" in call("catalogue", {"of": "clusters"}).content[0].text
    assert "[training]" in call("catalogue", {"of": "fields"}).content[0].text
    assert call("catalogue", {"of": "secrets"}).is_error
