"""The declared lower bounds of dependencies hold: the commands run with exactly these versions.

``python -m tests.lowest FOLDER`` (`make lowest`) makes an environment in a folder, installs there
the lowest version that ``pyproject.toml`` allows of each dependency, of the extra `ui` and of the
tests, and runs a command of every kind and tests of every room there. What fails is printed, and
the end is 1: the bound is to rise, or the code to do with less.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

COMMANDS = (
    "plan --model llama-3.2-1b --cluster dgx-h100 --gpus 8 --out page --pictures",  # plotly, jinja2
    "predict --model llama-3.1-8b --cluster dgx-a100 --gpus 64 --json",
    "simulate --model llama-3.2-1b --cluster dgx-h100 --gpus 8 --trace-out trace.json",  # numba
    "compare --model llama-3.2-1b --clusters dgx-h100,dgx-a100 --gpus 8,16 --jobs 2",  # joblib
    "export --model llama-3.1-8b --cluster dgx-h100 --gpus 8 --as megatron-lm",
    "cluster show dgx-h100",
    "validate",
    "fields training",  # rich, typer
)
"""What reaches each dependency."""

TESTS = (
    "tests/test_api.py",
    "tests/test_frames.py",
    "tests/test_plain_files.py",
    "tests/events/test_topology.py",
    "tests/explorer/test_web.py",
    "tests/measured",
    "tests/report",
)

_EXTRAS = ("ui",)
_TOOLS = ("hatchling", "httpx", "hypothesis", "protobuf", "pytest", "pytest-benchmark",
          "pytest-xdist", "simpy")  # fmt: skip
"""Of the extra `test`, what these tests need."""


def lowest() -> Iterator[str]:
    """Requirements with the lower bound in place of the range.

    >>> sorted(lowest())[0]
    'annotated-types==0.6'
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = [word for word in extras["test"] if word.partition(">=")[0] in _TOOLS]
    for words in (project["dependencies"], *(extras[name] for name in _EXTRAS), tools):
        for word in words:
            bound = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,<.*)?", word)
            assert bound is not None, f"{word}: has no lower bound"
            yield f"{bound[1]}=={bound[2]}"


def main(folder: str) -> int:
    """Install, run, say what fails."""
    place = Path(folder).resolve()
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([python, "-m", "pip", "install", *quiet, *lowest()], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    failed = []
    for line in (*COMMANDS, f"-m pytest -q -n 2 {' '.join(TESTS)}"):
        words = line.split() if line.startswith("-m") else ["-m", "simulator", *line.split()]
        where = ROOT if line.startswith("-m") else place
        done = subprocess.run(
            [python, *words], cwd=where, env=environment, capture_output=True, text=True
        )
        print("ok    " if not done.returncode else "FAILED", line, flush=True)
        if done.returncode:
            failed.append(line)
            print((done.stdout + done.stderr)[-3000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
