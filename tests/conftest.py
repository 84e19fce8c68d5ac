"""What every test shares: how much of its matter it goes through, and a player of schedules.

``make test`` takes a sample where the whole takes long, ``make evidence`` takes the whole: tests
with the marker ``evidence``, and every property test at the length of the profile ``evidence``.
``pytest --hypothesis-profile=explore`` draws fresh and many more examples; a failure that it finds
is worth an ``@example`` line.
"""

import gc
import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from simulator import catalogue
from simulator import files as profile_files
from simulator.arrays import Floats
from simulator.planner import batch_choices
from simulator.profile_cache import Base
from simulator.schedules.action_tables import Actions
from simulator.schedules.schedule import BACKWARD_WEIGHT, FORWARD
from simulator.search import fastest as searching
from simulator.search.in_threads import one_thread

os.environ["FORESHARD_CACHE"] = "off"  # commands that tests start keep nothing at home

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # So starts what a script puts in the background, and its children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A property test whose examples take long draws a fraction, `settings.default.max_examples // 20`.
settings.register_profile("same", max_examples=60, derandomize=True, deadline=None, database=None)
settings.register_profile("evidence", settings.get_profile("same"), max_examples=500)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)  # before -m reads the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make evidence of the cases that a sample leaves out; the first of a test is always in it."""
    seen: Counter[str] = Counter()
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) is not None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % sampled.args[0]:
                item.add_marker(pytest.mark.evidence)
            seen[test] += 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage while tests are collected: there is little."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Look no more at 12,000 tests and their modules for garbage, which tests make much of."""
    gc.collect()
    gc.freeze()


Play = Callable[[Actions, Sequence[float], Sequence[float], Sequence[float]], tuple[Floats, Floats]]


@pytest.fixture(
    scope="session", params=["sample", pytest.param("whole", marks=pytest.mark.evidence)]
)
def extent(request: pytest.FixtureRequest) -> str:
    """How much a test goes through: a "sample" in ``make test``, the "whole" as evidence."""
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _one_core_each() -> Iterator[None]:
    """Beside other workers of pytest-xdist no search starts threads: they have the other cores."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) < 2:
        yield
        return
    with one_thread():
        yield


class ShippedProfiles:
    """In place of what commands keep between them: a shipped profile is read once by a process."""

    folder: Path | None = None  # a command sets it

    def __init__(self) -> None:
        self._known: dict[Any, tuple[list[Base], list[Path], Any]] = {}
        self._shipped = catalogue.folder("hardware_profiles")

    def get(self, *asked: Any) -> Any | None:
        """The profile, while the names of those below it lead to the same files."""
        bases, places, profile = self._known.get(asked, ((), [], None))
        return profile if [catalogue.find(*base) for base in bases] == places else None

    def put(
        self, schema: type, path: Path, kind: str, files: list[Path], bases: Any, profile: Any
    ) -> None:
        if all(file.is_relative_to(self._shipped) for file in files):
            named = list(bases)
            places = [catalogue.find(*base) for base in named]
            self._known[schema, path, kind] = named, places, profile


@pytest.fixture(scope="session", autouse=True)
def _profiles_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile_files, "KEPT", ShippedProfiles())
        yield


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose results are known by the bytes of its arguments, but for `progress`."""
    known: dict[bytes, Any] = {}

    def keeping(*arguments: Any, progress: Any = None, **named: Any) -> Any:
        key = pickle.dumps((arguments, sorted(named.items())))
        if key not in known:
            known[key] = function(*arguments, progress=progress, **named)
        return known[key]

    return keeping


@pytest.fixture(scope="module")
def searched_once() -> Iterator[None]:
    """The tests of a file search and plan the same scenario once, however often they ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((batch_choices, "plan"), (searching, "explore")):
            patch.setattr(module, name, _kept(getattr(module, name)))
        yield


@pytest.fixture(scope="session")
def play() -> Play:
    """Start and end of every action, each as early as its rank and what it waits for allow.

    Seconds are those of a forward pass, an input pass and a weight pass of every piece of the
    model. Actions that run overlapped start together and end together.
    """

    def run(
        table: Actions,
        forward_s: Sequence[float],
        input_s: Sequence[float],
        weight_s: Sequence[float],
    ) -> tuple[Floats, Floats]:
        columns = (table.kind, table.micro_batch, table.piece, table.with_next)
        kinds, batches, pieces, pairs = (column.tolist() for column in columns)
        last = max(pieces)
        seconds = [
            (forward_s[g], input_s[g] + weight_s[g], input_s[g], weight_s[g])[k]
            for k, g in zip(kinds, pieces, strict=True)
        ]
        queues = [np.flatnonzero(table.rank == r).tolist() for r in range(max(table.rank) + 1)]
        start, end = np.zeros(len(table)), np.zeros(len(table))
        clock = [0.0] * len(queues)
        done: dict[tuple[bool, int, int], float] = {}

        def waits_for(row: int) -> tuple[bool, int, int] | None:
            forward, batch, piece = kinds[row] == FORWARD, batches[row], pieces[row]
            if forward:
                return (True, batch, piece - 1) if piece else None
            if kinds[row] == BACKWARD_WEIGHT:
                return False, batch, piece
            return (True, batch, piece) if piece == last else (False, batch, piece + 1)

        while any(queues):
            moved = False
            for rank, queue in enumerate(queues):
                while queue:
                    group = queue[: 2 if pairs[queue[0]] else 1]
                    before = [waits_for(row) for row in group]
                    if any(x is not None and x not in done for x in before):
                        break
                    begin = max([clock[rank], *(done[x] for x in before if x is not None)])
                    clock[rank] = begin + sum(seconds[row] for row in group)
                    for row in group:
                        start[row], end[row] = begin, clock[rank]
                        if kinds[row] != BACKWARD_WEIGHT:
                            done[kinds[row] == FORWARD, batches[row], pieces[row]] = clock[rank]
                    del queue[: len(group)]
                    moved = True
            assert moved, "every rank waits for another"
        return start, end

    return run
