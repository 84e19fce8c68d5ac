"""What commands print for people, what exports write and what launch files are read as, held.

``python -m tests.scoring.held_screens`` asks again, says what moved and writes the file. Small
questions, each in a fraction of a second; a document has numbers that a screen rounds, a screen
has sentences that a document does not.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from typer.testing import CliRunner

from simulator.cli.main import app
from tests.cli.every_command import COMMANDS as SMALL
from tests.cli.every_command import ROOT, prepare
from tests.cli.test_validate_log import SCENARIO
from tests.interop import launch_samples, trainer_samples
from tests.scoring.held_answers import leaves, sums
from tests.scoring.held_runs import Held, write

PATH = Path(__file__).resolve().parents[1] / "data" / "held_screens.csv"
HEAD = ("screen", "parts", "words", "numbers")

ALIKE = ("predict", "predict --memory", "compare", "rent-or-buy", "diagnose", "schedule",
         "sites", "sites --json", "recommender", "parameter-server", "validate", "validate --json",
         "cluster init", "profiles links")  # fmt: skip
"""Of the commands that run once, small; of the others a document is held among the answers."""

PINS = ["--set", "layout.tp=1", "--set", "layout.pp=1", "--set", "layout.cp=1",
        "--set", "layout.micro_batch=1", "--set", "layout.recompute=none",
        "--set", "layout.sharding=zero1"]  # fmt: skip
PINNED = ["--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--gpus", "16", "--tokens", "1e10",
          *PINS]  # fmt: skip
LOG = str(ROOT / "tests" / "data" / "logs" / "megatron_2025.log")

SCREENS: dict[str, list[str]] = {
    "plan screen": ["plan", *PINNED],
    "plan csv": ["export", *PINNED, "--as", "csv", "--top", "5"],
    "fabrics": ["what-if", *PINNED, "--fabrics", "--json"],
    "releases": ["what-if", "run.toml", *PINS, "--releases"],
    "what-if screen": ["what-if", "run.toml", *PINS, "--change", "network.adapter=0.5"],
    "out of memory": ["predict", "--model", "llama-3.1-70b", *PINNED[2:6]],
    "validate log": ["validate", "--megatron-log", LOG, "--scenario", "tiny.toml"],
    "rl on policy": ["rl", str(ROOT / "examples/rl-on-policy.toml"), "--as-given"],
    "rl mixed": ["rl", str(ROOT / "examples/rl-mixed.toml"), "--as-given"],
    "offload": ["predict", str(ROOT / "examples/llama-3.1-8b-offload.toml"), "--memory"],
    "adapters": ["predict", str(ROOT / "examples/llama-3.1-8b-lora.toml")],
    "files": ["predict", str(ROOT / "examples/vit-small-files.toml")],
    "simulate contention": [word for word in SMALL["simulate --json"] if word != "--json"],
    "simulate mixed": ["simulate", str(ROOT / "examples/mixed-a100-l40s.toml")],
    **{f"{name} screen": [word for word in SMALL[name] if word != "--json"]
       for name in ("size", "distil", "versus", "admit", "lint", "parameter-server")},
    "rl screen": ["rl", "rl.toml", "--as-given"],
}  # fmt: skip

RUN = ["--cluster", "dgx-h100", "--gpus", "16", "--software"]
EXPORTED: dict[str, tuple[str, list[str]]] = {
    "megatron-lm": ("megatron-core", ["tp=2", "pp=2", "cp=2", "recompute=selective"]),
    "megatron-lm stages": ("megatron-core", ["pp=4", "stages=[9,8,8,7]"]),
    "megatron-lm experts": ("megatron-core", ["ep=8", "pp=2"]),
    "megatron-bridge": ("megatron-core", ["tp=4", "pp=2", "vpp=2"]),
    "torchtitan": ("torchtitan", ["tp=2", "pp=2", "recompute=full"]),
    "torchtitan experts": ("torchtitan", ["ep=4", "cp=2"]),
    "fsdp2": ("torch-fsdp", ["shard_group=8", "micro_batch=2", "sharding=zero3"]),
    "torchrun": ("torch-fsdp", ["sharding=ddp"]),
    "slurm": ("megatron-core", ["tp=2", "sharding=zero1"]),
    "trainjob": ("torchtitan", ["tp=2"]),
    "skypilot": ("deepspeed", ["sharding=zero2"]),
    "deepspeed": ("deepspeed", ["sharding=zero3", "recompute=full"]),
}
"""Software and fields of the layout, by the form."""

TRAINIUM = ["--gpus", "256", "--cluster", "trn2-48xlarge"]
READ: dict[str, tuple[str, list[str]]] = {
    "megatron.sh": (launch_samples.MEGATRON, ["--gpus", "64"]),
    "evaluated.sh": (launch_samples.EVALUATED, ["--gpus", "64"]),
    "config_DGXH100_16x8x64_tp4_pp8.sh": (
        launch_samples.MLPERF,
        ["--model", "llama-2-70b", "--seq", "8192"],
    ),
    "lora.sh": (launch_samples.MLPERF_LORA, ["--gpus", "64"]),
    "launched.sh": (launch_samples.LAUNCHED_FSDP, ["--gpus", "64"]),
    "recipe.yaml": (launch_samples.RECIPE, ["--model", "llama-3.1-8b", "--gpus", "64"]),
    "primus.yaml": (launch_samples.PRIMUS, ["--gpus", "64"]),
    "torchtitan.toml": (launch_samples.TORCHTITAN, ["--gpus", "32"]),
    "maxtext.sh": (launch_samples.MAXTEXT, ["--cluster", "tpu-v5p", "--gpus", "64"]),
    "neuronx.yaml": (launch_samples.NEURONX, ["--model", "llama-3-70b", *TRAINIUM]),
    **{name: (text, ["--gpus", "4" if name == "litgpt.yaml" else "8"])
       for name, text in trainer_samples.SAMPLES.items()},
}  # fmt: skip
"""Launch files by name: text, and what they do not say."""


def predicted() -> Held:
    """Of each screen: how many words and numbers, the words, and the numbers, weighed by place."""
    with asked() as screens:
        return {name: said() for name, said in screens.items()}


@contextlib.contextmanager
def asked() -> Iterator[dict[str, Callable[[], tuple[float, ...]]]]:
    """Every screen, to be asked for in the folder that holds its files."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        prepare(Path(place))
        Path("tiny.toml").write_text(SCENARIO)
        every = {name: SMALL[name] for name in ALIKE} | SCREENS | _exports() | _readings()
        yield {name: partial(_sums, words, Path(place)) for name, words in every.items()}


def _sums(words: list[str], place: Path) -> tuple[float, ...]:
    return sums(_said(words, place))


def _said(words: list[str], place: Path) -> Iterator[str | float]:
    """Words and numbers of what a command prints, be it a document, a screen or a refusal."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, words)
    text = result.output.replace(str(ROOT), "").replace(str(place), "")
    if text.startswith("{"):
        document = json.loads(text)
        document.pop("version", None)
        yield from leaves(document)
        return
    yield from text.split()
    yield from map(float, re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", text.replace(",", "")))


def _exports() -> dict[str, list[str]]:
    found = {}
    for name, (software, fields) in EXPORTED.items():
        form, _, experts = name.partition(" ")
        model = "mixtral-8x7b" if experts == "experts" else "llama-3.1-8b"
        given = [word for field in fields for word in ("--set", f"layout.{field}")]
        run = ["--model", model, *RUN, software, *given]
        found[f"export {name}"] = ["export", "--as", form, *run]
    return found


def _readings() -> dict[str, list[str]]:
    found = {}
    for name, (text, given) in READ.items():
        Path(name).write_text(text)
        cluster = [] if "--cluster" in given else ["--cluster", "dgx-h100"]
        found[f"lint {name}"] = ["lint", name, *cluster, *given, "--json"]
    return found


if __name__ == "__main__":
    write(predicted(), PATH, HEAD)
