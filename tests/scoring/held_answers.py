"""Answers of commands as they stood when somebody last looked, one number a key of each document.

``python -m tests.scoring.held_answers`` asks again, says what moved and writes the file.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from simulator.cli.main import app
from tests.cli.every_command import ROOT
from tests.scoring.held_runs import Held, write

PATH = Path(__file__).resolve().parents[1] / "data" / "held_answers.csv"
HEAD = ("answer", "leaves", "words", "numbers")

LLAMA = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "64", "--tokens", "1T"]
MIXTRAL = ["--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--gpus", "32", "--tokens", "1T"]
SMALL = ["--model", "gpt2-small", "--cluster", "dgx-a100", "--gpus", "8", "--tokens", "1e10"]
EXAMPLES = ROOT / "examples"

COMMANDS: dict[str, list[str]] = {
    "plan": ["plan", *LLAMA, "--deadline", "20d", "--top", "5"],
    "plan experts": ["plan", *MIXTRAL, "--top", "5"],
    "plan mixed": ["plan", str(EXAMPLES / "mixed-h100-a100.toml")],
    "predict": ["predict", *LLAMA, "--set", "layout.tp=2", "--set", "layout.recompute=full"],
    "predict memory": ["predict", *MIXTRAL, "--set", "layout.ep=8", "--memory"],
    "simulate": ["simulate", *LLAMA, "--set", "layout.pp=4", "--jitter", "0.03"],
    "simulate run": ["simulate", *SMALL, "--run"],
    "compare": ["compare", *LLAMA[:2], *LLAMA[6:], "--clusters", "dgx-h100,dgx-b200",
                "--gpus", "32,64", "--jobs", "1"],
    "size": ["size", *LLAMA[:4], *LLAMA[6:], "--deadline", "90d", "--largest", "64", "--jobs", "1"],
    "what-if": ["what-if", str(EXAMPLES / "llama-3.1-8b.toml"), "--change", "network.adapter=0.5"],
    "versus": ["versus", str(EXAMPLES / "llama-3.1-8b.toml"), "tp=1", "tp=2"],
    "rent-or-buy": ["rent-or-buy", "--cluster", "dgx-h100", "--gpus", "64"],
    "sites": ["sites", str(EXAMPLES / "two-sites.toml")],
    "distil": ["distil", str(EXAMPLES / "distillation.toml")],
    "rl": ["rl", str(EXAMPLES / "rl-one-step-off.toml"), "--as-given"],
    "parameter-server": ["parameter-server", str(EXAMPLES / "parameter-server.toml")],
    "recommender": ["recommender", str(EXAMPLES / "dlrm.toml")],
    "admit": ["admit", str(EXAMPLES / "admission/trainjob.yaml"), "--cluster", "dgx-h100"],
    "lint": ["lint", str(EXAMPLES / "admission/trainjob.yaml"), "--cluster", "dgx-h100"],
}  # fmt: skip


def predicted() -> Held:
    """Of each key: how many values, their words, and their numbers, weighed by place."""
    return {row: values for name in COMMANDS for row, values in answered(name).items()}


def answered(name: str) -> Held:
    """The same of one command."""
    return {f"{name}: {key}": sums(leaves(value)) for key, value in _document(name).items()}


def _document(name: str) -> dict[str, Any]:
    words = COMMANDS[name]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.stdout.startswith("{"), f"{words}: {result.output[-400:]}"
    read: dict[str, Any] = json.loads(result.stdout.replace(str(ROOT), ""))
    del read["version"]
    return read


def sums(leaves: Iterable[str | float]) -> tuple[float, ...]:
    """How many, a number for the words without their digits, one that any number in there moves.

    Numbers count by their logarithm, so a thousandth of a small one is seen beside large ones; what
    is below 1e-12 may be rounding.
    """
    every = list(leaves)
    words = re.sub(r"[\d.,]+", "", "\n".join(leaf for leaf in every if isinstance(leaf, str)))
    numbers = [float(leaf) for leaf in every if not isinstance(leaf, str)]
    weighed = sum(
        math.copysign(math.log1p(abs(number) * 1e12), number) * (1.0 + place % 97 / 97.0)
        for place, number in enumerate(numbers)
    )
    return 1.0 + len(every), 1.0 + zlib.crc32(words.encode()), 1.0 + weighed


def leaves(value: Any) -> Iterator[str | float]:
    """Keys, words and numbers of a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield str(value) if value is None or isinstance(value, str) else float(value)


if __name__ == "__main__":
    write(predicted(), PATH, HEAD)
