"""The house rules: one-way imports, a light start, no drawer for odds and ends."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "simulator").rglob("*.py"))
DRAWERS = {"common", "helper", "helpers", "misc", "util", "utils"}
HEAVY = ("matplotlib", "networkx", "numba", "pandas", "plotly", "scipy", "torch")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_imports_run_one_way() -> None:
    # The contracts are in pyproject.toml, under tool.importlinter.
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    done = run(code)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_starts_light() -> None:
    code = (
        f"import sys, simulator.cli.main\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("folder", ["simulator", "tests"])
def test_no_module_is_a_drawer(folder: str) -> None:
    names = {path.stem for path in (ROOT / folder).rglob("*.py")}
    names |= {path.name for path in (ROOT / folder).rglob("*") if path.is_dir()}
    assert names & DRAWERS == set()


def test_no_two_modules_share_a_name() -> None:
    # `cost/memory/peak.py` and `events/step/memory_over_time.py`, never two `memory.py`.
    names = Counter(path.stem for path in MODULES if path.stem not in ("__init__", "__main__"))
    assert {name: count for name, count in names.items() if count > 1} == {}
