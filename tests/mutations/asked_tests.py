"""A pytest plugin: which tests run the places of mutants, and which of them fails with a mutant.

``FORESHARD_MUTANTS`` names a file that `mutants.py` writes (`Job`). Without mutants in it every
test runs once, and what ran for it, its seconds and whether it failed are kept. With mutants a fork
of the process, which has collected all tests, is asked each: tests that run the place, of the file
that takes least first, then what else stands in these files and may use what another test made.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import signal
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

from tests.mutations.switches import memory

VARIABLE = "FORESHARD_MUTANTS"
OUT_OF_TIME = "out of time"
ENDLESS = " does not end"
ENDLESS_S, ENDLESS_TIMES = 20.0, 10.0
"""A test that takes so many seconds and so many times its usual ones more does not end."""

HELD = "tests/scoring/test_held_runs.py"
"""Asked with the tests of the room: it holds most figures that a user sees."""


@dataclass
class Heard:
    """What a run of all tests without a mutant showed."""

    seconds: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    ran: dict[str, set[int]] = field(default_factory=dict)
    """Mutants whose place a test ran."""
    shared: dict[str, set[int]] = field(default_factory=dict)
    """The same of what is set up for several tests of a file."""
    at_import: set[int] = field(default_factory=set)
    """Mutants whose place ran before any test."""

    def concerned(self, number: int, room: str) -> list[str]:
        """Tests that run a mutant's place, the files of its room and the quickest first.

        Then what else stands in these files. Of a place that no test runs, or that ran before all
        of them, the tests of its room.
        """
        usual = [test for test in self.seconds if test not in self.failed]
        ran = {
            test for test in usual if number in self.ran[test] or number in self.shared[_file(test)]
        }
        if number in self.at_import or not ran:
            ran |= {test for test in usual if f"/{room}/" in test}
        seconds = dict.fromkeys(map(_file, ran), 0.0)
        for test in ran:
            seconds[_file(test)] += self.seconds[test]

        def rank(test: str) -> tuple[bool, bool, float, str]:
            far = room not in test.split("/") and not test.startswith(HELD)
            return test not in ran, far, seconds[_file(test)], _file(test)

        return sorted((test for test in usual if _file(test) in seconds), key=rank)


@dataclass
class Job:
    """What a process of pytest is to do."""

    package: Path
    heard: Path
    """A file: written where no mutant is asked, else read."""
    rooms: dict[int, str]
    """Of every mutant that is asked, by number."""
    seconds: int
    """Of the processor that the tests of one mutant may take."""
    forked: bool
    """Whether each has a process of its own; else this one has the only mutant in its text."""
    telling: int
    """File descriptor: a line for each mutant with its number and the test that fails."""


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run all, or ask mutants."""
    if session.testsfailed:
        raise session.Interrupted("a file of tests cannot be read")
    job: Job = pickle.loads(Path(os.environ[VARIABLE]).read_bytes())
    if not job.rooms:
        hearing = _Hearing(job)
        session.config.pluginmanager.register(hearing)
        job.heard.write_bytes(pickle.dumps(hearing.heard(session.items)))
        return True
    asking = _Asking(job, session.items)
    for number in job.rooms:
        os.write(job.telling, f"{number} {asking.failing(number)}\n".encode())
    return True


class _Hearing:
    """Runs all tests, and notes what ran for each."""

    def __init__(self, job: Job) -> None:
        self._places = np.frombuffer(memory(job.package), dtype=np.int32)
        self._caches = _caches()
        self._setup = set[int]()

    def heard(self, items: list[pytest.Item]) -> Heard:
        heard = Heard(at_import=self._ran())
        for _, tests in groupby(items, key=lambda item: item.path):
            for cache in self._caches:
                cache.cache_clear()
            listed = list(tests)
            for item, after in zip(listed, [*listed[1:], None], strict=True):
                begun = _processor_s()
                if any(report.failed for report in runtestprotocol(item, nextitem=after)):
                    heard.failed.add(item.nodeid)
                heard.seconds[item.nodeid] = _processor_s() - begun
                heard.ran[item.nodeid] = self._ran() | self._setup
                heard.shared.setdefault(_file(item.nodeid), set()).update(self._setup)
        return heard

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[Any]) -> None:
        if call.when == "setup":
            self._setup = self._ran()

    def _ran(self) -> set[int]:
        ran = np.flatnonzero(self._places[1:]) + 1
        self._places[ran] = 0
        return {int(number) for number in ran}


class _Asking:
    """Asks tests whether they notice a mutant."""

    def __init__(self, job: Job, items: list[pytest.Item]) -> None:
        self._job: Job = job
        self._heard: Heard = pickle.loads(job.heard.read_bytes())
        self._places, self._caches = memory(job.package), _caches()
        self._items = {item.nodeid: item for item in items}
        self._fails = dict[str, bool]()
        self._path = job.heard.with_suffix(".verdict")

    def failing(self, number: int) -> str:
        """The first test that fails with a mutant and not without; blank where none does."""
        concerned = self._heard.concerned(number, self._job.rooms[number])
        items = [self._items[test] for test in concerned if test in self._items]
        if not self._job.forked:
            return self._first(items)
        while True:
            failed = self._in_fork(items, number)
            if failed in ("", OUT_OF_TIME):
                return failed
            name = failed.removesuffix(ENDLESS)
            if name not in self._fails:
                self._fails[name] = bool(self._in_fork([self._items[name]], 0))
            if not self._fails[name]:
                return failed
            items.remove(self._items[name])

    def _in_fork(self, items: list[pytest.Item], number: int) -> str:
        child = os.fork()
        if not child:
            try:
                self._become(number)
                self._first(items)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests left running
        self._places[0] = 0
        verdict = self._path.read_text(encoding="utf-8")
        return verdict + ENDLESS if os.WIFSIGNALED(status) else verdict

    def _become(self, number: int) -> None:
        """A process of the mutant, which ends in any case."""
        os.close(self._job.telling)
        os.setpgid(0, 0)
        signal.setitimer(signal.ITIMER_REAL, 20.0 * (self._job.seconds + ENDLESS_S))
        self._places[0] = number
        for cache in self._caches:
            cache.cache_clear()

    def _first(self, items: list[pytest.Item]) -> str:
        """The first of some tests that fails; a file has it too, or the one that is asked."""
        begun, verdict = _processor_s(), ""
        for item, after in zip(items, [*items[1:], None], strict=True):
            self._path.write_text(item.nodeid, encoding="utf-8")
            usual_s = self._heard.seconds.get(item.nodeid, 0.0)
            signal.setitimer(signal.ITIMER_PROF, ENDLESS_S + (1.0 + ENDLESS_TIMES) * usual_s)
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=after)):
                verdict = item.nodeid
                break
            if _processor_s() - begun > self._job.seconds:
                verdict = OUT_OF_TIME
                break
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        self._path.write_text(verdict, encoding="utf-8")
        return verdict


def _file(test: str) -> str:
    return test.partition("::")[0]


def _processor_s() -> float:
    return sum(os.times()[:4])


def _caches() -> list[Any]:
    """Every `lru_cache` of the package; the garbage collector knows them, once it thaws."""
    gc.unfreeze()
    found = [
        thing
        for thing in gc.get_objects()
        if type(thing) is functools._lru_cache_wrapper and "simulator" in thing.__module__
    ]
    gc.freeze()
    return found
