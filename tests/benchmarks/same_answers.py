"""Whether a change that should move no answer moved one: this tree's documents against a commit's.

``python -m tests.benchmarks.same_answers COMMIT [NAME...]`` asks both trees the questions below
with ``--json``, errors included, and names those whose bytes differ; exit code 1 where any does.
A minute for each tree; NAME is the beginning of a question, such as ``plan`` or ``predict-8b``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

EXAMPLES = {
    "8b": "llama-3.1-8b",
    "70b": "llama-3.1-70b",
    "fp8": "llama-3.1-70b-fp8",
    "deepseek": "deepseek-v3",
    "moe": "moe-1t-10000",
    "lora": "llama-3.1-8b-lora",
    "offload": "llama-3.1-8b-offload",
    "load": "mixtral-8x7b-load",
}
TYPED = {
    "gpt3": ("gpt3-175b", "dgx-a100", 256),
    "405b": ("llama-3.1-405b", "dgx-h100", 2048),
    "too-few": ("llama-3.1-405b", "dgx-h100", 64),
    "amd": ("llama-3.1-8b", "mi300x-8", 64),
    "experts": ("qwen3-30b-a3b", "dgx-b200", 128),
}
LAYOUT = ("layout.tp=8", "layout.pp=4", "layout.micro_batch=1")
TRAINING = ("training.tokens=3e11", "training.global_batch=512")


def questions() -> Iterator[tuple[str, list[str]]]:
    """Name and words of every question."""
    pinned = [word for field in LAYOUT for word in ("--set", field)]
    trained = [word for field in TRAINING for word in ("--set", field)]
    scenarios = {name: ([f"examples/{file}.toml"], []) for name, file in EXAMPLES.items()}
    for name, (model, cluster, gpus) in TYPED.items():
        words = ["--model", model, "--cluster", cluster, "--gpus", str(gpus), *trained]
        scenarios[name] = (words, pinned)
    for name, (words, layout) in scenarios.items():
        yield f"predict-{name}", ["predict", *words, *layout]
        yield f"plan-{name}", ["plan", *words, "--no-report"]
        yield f"simulate-{name}", ["simulate", *words, *layout]
    offers = ["--clusters", "dgx-h100,dgx-a100,mi300x-8", "--gpus", "64,256"]
    yield "compare-8b", ["compare", "examples/llama-3.1-8b.toml", *offers]
    yield "compare-70b", ["compare", "examples/llama-3.1-70b.toml", *offers]


def answer(tree: Path, words: list[str]) -> bytes:
    """Exit code, document and complaints of a question in a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "FORESHARD_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "simulator", *words, "--json"],
        cwd=tree,
        env=environment,
        capture_output=True,
        check=False,
    )
    return str(done.returncode).encode() + done.stdout + done.stderr


def main(commit: str, *names: str) -> int:
    """Compare, say what differs, count it."""
    with tempfile.TemporaryDirectory() as place:
        before = Path(place)
        archive = before / "tree.tar"
        words = ["git", "archive", "-o", str(archive), commit]
        subprocess.run(words, cwd=ROOT, check=True)
        with tarfile.open(archive) as file:
            file.extractall(before, filter="data")
        differs = 0
        for name, asked in questions():
            if not names or name.startswith(names):
                same = answer(before, asked) == answer(ROOT, asked)
                differs += not same
                print(f"{name}: {'same' if same else 'DIFFERS'}", flush=True)
    return int(differs > 0)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
