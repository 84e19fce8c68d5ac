"""Work in a second process: results, errors, interrupts, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.second_process import run_in_process

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores of a Linux machine",
)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_work_is_done_in_another_process() -> None:
    with run_in_process(lambda: (os.getpid(), b"x" * (1 << 20))) as result:
        pid, content = result()
    assert pid != os.getpid() and content == b"x" * (1 << 20)
    assert not _alive(pid)


def test_an_error_is_raised_here() -> None:
    def work() -> int:
        raise ValueError(f"in {os.getpid()}")

    with run_in_process(work) as result, pytest.raises(ValueError, match=f"in {os.getpid()}"):
        result()


def test_a_copy_that_is_killed_costs_no_answer() -> None:
    first = os.getpid()

    def work() -> int:
        if os.getpid() != first:
            os.kill(os.getpid(), signal.SIGKILL)
        return 7

    with run_in_process(work) as result:
        assert result() == 7


def test_what_cannot_be_handed_over_is_made_here() -> None:
    with run_in_process(lambda: lambda: 7) as result:
        assert result()() == 7


def test_leaving_ends_the_copy(tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"

    def work() -> None:
        begun.write_text(str(os.getpid()))
        time.sleep(3.0)
        done.touch()

    with pytest.raises(KeyboardInterrupt), run_in_process(work):
        while not (begun.exists() and begun.read_text()):
            time.sleep(0.01)
        pid = int(begun.read_text())
        os.kill(pid, signal.SIGINT)  # as from a terminal, which interrupts both
        raise KeyboardInterrupt
    assert not _alive(pid) and not done.exists()


def test_the_copy_ends_with_a_process_that_is_killed() -> None:
    script = """
import os, signal, time
from simulator.second_process import run_in_process
def work():
    os.write(1, str(os.getpid()).encode())
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
with run_in_process(work) as result:
    result()
"""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL and int(done.stdout) > 0
    assert time.monotonic() - begun < 30.0  # its output stays open as long as the copy lives


def test_an_interrupt_in_the_copy_does_not_end_it() -> None:
    def work() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return os.getpid()

    with run_in_process(work) as result:
        assert result() != os.getpid()


def test_one_core_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with run_in_process(os.getpid) as result:
        assert result() == os.getpid()
