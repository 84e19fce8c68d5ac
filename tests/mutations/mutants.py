"""Seeded single-point mutants of `simulator/`, and which of them the tests of `make test` notice.

``python -m tests.mutations.mutants [--seed N] [--count N] [--rooms cost,planner]`` copies the tree
with all mutants in it (`switches`), runs every test once to see which run the place of which, asks
each mutant those (`asked_tests`) up to the first that fails, and prints which that was, or that the
mutant survived: file, line, what was there and what is there now. ``make mutants`` draws 200. A
survivor is equivalent, or a test is missing. A test that fails without a mutant has no say.

``--numbers 3,17`` asks these of the draw alone, and paths of tests after the options ask those
alone: what a new test notices. ``--folder F`` leaves the copy in F, and one that is there, of the
same draw, is asked without another run of every test.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from tests.mutations.asked_tests import OUT_OF_TIME, VARIABLE, Heard, Job
from tests.mutations.drawn_mutants import ROOMS, ROOT, Mutant, drawn
from tests.mutations.switches import Switched, memory

SECONDS = 100
"""Of the processor that the tests of one mutant may take."""

FEW = 8
"""Files of tests that a mutant with a process of its own is asked first: most die of these."""

HEARD = "heard.bin"
"""In the copy: which tests run which place."""

UNHELPFUL = (
    "tests/test_house.py", "tests/house", "tests/test_packaging.py", "tests/benchmarks",
    "tests/mutations/test_mutants.py",
)  # fmt: skip
"""What these notice is that a file changed, or what a machine did beside it."""


class Tree:
    """A copy of the tree with the switches of all mutants, whose tests are asked."""

    def __init__(self, folder: Path, mutants: Mapping[int, Mutant], tests: list[str]) -> None:
        self._folder, self._mutants, self._tests = folder, mutants, tests
        self._switched = Switched(mutants, ROOT / "simulator")
        if (folder / HEARD).is_file():
            return
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "reports", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=ignored)
        memory(folder / "simulator", max(mutants))
        for path in self._switched.modules():
            self._place(path).write_text(self._switched.text(path), encoding="utf-8")
        self._python(["-m", "workshop.ahead_of_time", "--if-changed"])
        for _ in self._pytest([], False, 0):
            pass

    def noticed(self, numbers: Collection[int], seconds: int) -> Iterator[tuple[int, str]]:
        """By number what notices a mutant first; blank where nothing does."""
        written = [number for number in self._switched.written if number in numbers]
        switched = [number for number in numbers if number not in written]
        heard: Heard = pickle.loads((self._folder / HEARD).read_bytes())
        for number, by in self._pytest(switched, True, seconds) if switched else ():
            if by or number not in heard.at_import:
                yield number, by
            else:
                written.append(number)
        for number in written:
            path = self._mutants[number].path
            self._place(path).write_text(self._switched.text(path, number), encoding="utf-8")
            tests = heard.concerned(number, self._mutants[number].room)
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            by = ""
            for some in (files[:FEW], files[FEW:]):
                if some and not by:
                    ((_, by),) = self._pytest([number], False, seconds, some)
            yield number, by
            self._place(path).write_text(self._switched.text(path), encoding="utf-8")

    def _place(self, path: Path) -> Path:
        return self._folder / path.relative_to(ROOT)

    def _pytest(
        self, numbers: Collection[int], forked: bool, seconds: int, tests: Sequence[str] = ()
    ) -> Iterator[tuple[int, str]]:
        reading, writing = os.pipe()
        job = Job(
            self._folder / "simulator",
            self._folder / HEARD,
            {number: self._mutants[number].room for number in numbers},
            seconds,
            forked,
            writing,
        )
        place = self._folder / "job.bin"
        place.write_bytes(pickle.dumps(job))
        words = [
            *("-m", "pytest", "-p", "tests.mutations.asked_tests", "-p", "no:cacheprovider"),
            *("-p", "no:xdist", "-q", "--basetemp", str(self._folder / "made")),
            *(f"--ignore={path}" for path in UNHELPFUL),
            *(tests or self._tests),
        ]
        with subprocess.Popen(
            [sys.executable, *words], cwd=self._folder, env=self._environment(place),
            stdout=subprocess.DEVNULL, pass_fds=[writing],
        ):  # fmt: skip
            os.close(writing)
            with os.fdopen(reading, encoding="utf-8") as lines:
                told = 0
                for line in lines:
                    number, _, test = line.rstrip("\n").partition(" ")
                    told += 1
                    yield int(number), test
        if told < len(numbers):  # the process of a mutant that was written ended before its tests
            yield from ((number, "what starts") for number in numbers)

    def _python(self, words: list[str]) -> None:
        subprocess.run(
            [sys.executable, *words], cwd=self._folder, env=self._environment(), check=True
        )

    def _environment(self, job: Path | None = None) -> dict[str, str]:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        here = {"PYTHONPATH": str(self._folder), "PYTEST_XDIST_WORKER_COUNT": "2"}
        environment = {**os.environ, **one_thread, **here, VARIABLE: str(job)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start compiles every module
        return environment


def main(arguments: list[str]) -> int:
    """Print what survived; 0 where at least 95 of 100 are noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rooms", type=lambda text: tuple(text.split(",")), default=ROOMS)
    parser.add_argument("--numbers", type=lambda text: {*map(int, text.split(","))}, default=None)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("tests", nargs="*")
    asked = parser.parse_args(arguments)
    chosen = dict(enumerate(drawn(asked.seed, asked.count, asked.rooms), 1))
    numbers = asked.numbers or {*chosen}
    survived = 0
    with tempfile.TemporaryDirectory() as place:
        tree = Tree(asked.folder or Path(place) / "tree", chosen, asked.tests)
        for number, by in tree.noticed(numbers, asked.seconds):
            survived += by in ("", OUT_OF_TIME)
            said = f"noticed by {by}" if by not in ("", OUT_OF_TIME) else f"SURVIVED {by}".strip()
            print(f"{number}/{len(chosen)} {chosen[number]}: {said}", flush=True)
    print(f"{len(numbers) - survived} of {len(numbers)} noticed")
    return int(survived > 0.05 * len(numbers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
