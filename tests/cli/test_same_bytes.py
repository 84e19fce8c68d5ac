"""Every command gives the same bytes whatever hash seed, locale, number of cores and processes.

What is the same in ASCII as in UTF-8 works where a terminal knows no other characters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from simulator.cli.main import app
from tests.cli.every_command import COMMANDS, QUICK, ROOT, TIMED

USUAL = {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8", "JOBS": "1"}
OTHER = {
    **{"PYTHONHASHSEED": "2", "JOBS": "2", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    **{"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def started(names: tuple[str, ...], folder: Path, more: dict[str, str]) -> subprocess.Popen[bytes]:
    folder.mkdir()
    words = [sys.executable, "-m", "tests.cli.every_command", str(folder), *names]
    if more is OTHER and hasattr(os, "sched_getaffinity"):
        core = str(min(os.sched_getaffinity(0)))
        words = ["taskset", "-c", core, *words]
    environment = {**os.environ, "COLUMNS": "120", "PYTHONPATH": str(ROOT), **more}
    return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE)


def compared(names: tuple[str, ...], folder: Path) -> None:
    """Both at once: neither minds the other, nor how many cores it has."""
    both = [started(names, folder / word, more) for word, more in (("one", USUAL), ("two", OTHER))]
    one, two = (json.loads(process.communicate(timeout=600)[0]) for process in both)
    assert one == two
    assert list(one) == list(names)
    assert {name: code for name, (code, _) in one.items()} == dict.fromkeys(names, 0)


def test_quick_commands_say_the_same_everywhere(tmp_path: Path) -> None:
    compared(QUICK, tmp_path)


@pytest.mark.evidence
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_the_same_everywhere(name: str, tmp_path: Path) -> None:
    compared((name,), tmp_path)


def test_every_command_is_among_them() -> None:
    group = typer.main.get_command(app)
    known = {words[0] for words in COMMANDS.values()} | set(TIMED)
    assert set(group.commands) == known
    named = {words[1] for words in COMMANDS.values() if words[0] == "profiles"}
    assert set(group.commands["profiles"].commands) == named


@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_help_keeps_what_stands_in_brackets(command: str) -> None:
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, [command, "--help"]).stdout
    word = {"simulate": "[[cluster.groups]]", "sweep": "[grid]"}[command]
    assert word in shown
