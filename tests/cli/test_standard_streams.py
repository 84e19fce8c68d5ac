"""Standard output closed, full or of no width; names that a terminal would obey; ASCII locales."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli.standard_streams import sound_streams

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "8"]


def run(*arguments: str, more: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a shell does, with redirections behind its arguments."""
    return subprocess.run(
        ["bash", "-c", f'exec "$0" -m simulator "$@" {more}', sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [["predict", *SMALL], ["predict", *SMALL, "--json"], ["--help"]]
)
def test_a_full_output_is_said_in_one_line(arguments: list[str]) -> None:
    done = run(*arguments, more=">/dev/full")
    assert done.returncode == 2
    assert done.stderr == b"standard output: cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "report.html"),
        OSError(errno.ECONNRESET, "reset"),
    ],
)
def test_a_full_disk_under_a_file_is_not_the_outputs_fault(error: OSError) -> None:
    with pytest.raises(OSError, match=str(error.strerror)), sound_streams():
        raise error


def test_a_closed_output_is_said_in_one_line() -> None:
    done = run("predict", *SMALL, more=">&-")
    assert (done.returncode, done.stderr) == (2, b"standard output: is closed\n")


def test_a_closed_error_output_is_no_error() -> None:
    done = run("profiles", "show", "no-such", more="2>&-")
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("width", ["0", "1", "-3", "wide", "9" * 30])
def test_a_width_that_is_none_hides_nothing(width: str) -> None:
    done = run("profiles", "show", "dgx-h100", COLUMNS=width)
    assert done.returncode == 0 and b"dgx-h100" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 2_000


def test_help_has_a_width() -> None:
    assert b"Usage" in run("predict", "--help", COLUMNS="0").stdout


def test_names_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    config = tmp_path / "\x1b[31mred\u202e.json"
    config.write_bytes((ROOT / "simulator/workload/zoo/llama-3.1-8b.json").read_bytes())
    done = run("predict", "--model", str(config), *SMALL[2:])
    assert done.returncode == 0
    assert done.stdout.startswith(b"\\x1b[31mred\\u202e, 8.03B parameters")
    missing = run("predict", "--model", f"{config}.toml", *SMALL[2:])
    assert missing.returncode == 2
    assert b"\x1b" not in done.stdout + missing.stdout + missing.stderr


def test_bars_and_names_are_whole_on_a_narrow_terminal_of_ascii() -> None:
    words = ("--model", "gpt2-small", "--cluster", "dgx-a100", "--gpus", "8", "--seeds", "20")
    tokens = ("--set", "training.tokens=1e12", "--set", "training.global_batch=64")
    narrow = {"COLUMNS": "80", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = run("simulate", "--run", *words, *tokens, **narrow)
    text = done.stdout.decode("ascii")
    assert done.returncode == 0 and "\\u" not in text
    assert "maintenance" in text and "~" not in text
    assert "(# training, % checkpoint, x lost, r restarting" in text
