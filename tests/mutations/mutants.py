"""Seeded single-point mutants of `simulator/`, and which of them the tests notice.

``python -m tests.mutations.mutants [--seed N] [--count N] [--rooms cost,planner]`` copies the tree,
changes one operator, constant or comparison at a time, asks the held questions that run the place
(`held_samples`), then the tests of the module's own name, what imports the module, its room and the
commands, up to the first that fails, and prints which that was, or that the mutant survived: file,
line, what was there and what is there now. `make mutants` draws 200. A survivor is equivalent, or a
test is missing. What no change made has no say: a test that fails without one is left out.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = tuple(
    path.name for path in sorted((ROOT / "simulator").iterdir()) if (path / "__init__.py").is_file()
)
SECONDS = 300
"""Of the processor that the tests of one mutant may take."""

OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)
UNHELPFUL = {"test_house.py", "test_packaging.py", "test_held_runs.py"}
"""What these notice is that a file changed, or what was asked before."""

_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_NAMES = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One expression of a module, and what stands in its place."""

    path: Path
    line: int
    column: int
    end_line: int
    end_column: int
    before: str
    after: str

    def text(self) -> str:
        """The module with the expression replaced."""
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        first, last = lines[self.line - 1].encode(), lines[self.end_line - 1].encode()
        middle = f"({self.after})".encode()
        joined = first[: self.column] + middle + last[self.end_column :]
        return "".join([*lines[: self.line - 1], joined.decode(), *lines[self.end_line :]])

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.before} -> {self.after}"


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module: arithmetic, comparisons, and/or, max/min, numbers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _walked(tree):
        if node.end_lineno is None:
            continue
        if (changed := _changed(node)) is not None:
            where = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset or 0)
            yield Mutant(path, *where, ast.unparse(node), ast.unparse(changed))


def _walked(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions of a tree, but for types, and those in texts, whose places are vague."""
    types = [getattr(tree, name, None) for name in ("annotation", "returns")]
    for node in ast.iter_child_nodes(tree):
        if node in types:
            continue
        if isinstance(node, ast.expr):
            yield node
        if not isinstance(node, ast.JoinedStr):
            yield from _walked(node)


def _changed(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        return ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value:
        return ast.Constant(node.value * 1.05 if isinstance(node.value, float) else node.value + 1)
    if isinstance(node, ast.Name) and node.id in _NAMES and isinstance(node.ctx, ast.Load):
        return ast.Name(_NAMES[node.id], ast.Load())
    if isinstance(node, ast.Attribute) and node.attr in _NAMES:
        return ast.Attribute(node.value, _NAMES[node.attr], ast.Load())
    return None


def drawn(seed: int, count: int, rooms: tuple[str, ...]) -> list[Mutant]:
    """Mutants spread evenly over the rooms, in no order, the same for the same seed."""
    chance, chosen = random.Random(seed), list[Mutant]()
    for place, room in enumerate(rooms):
        every = [
            m for path in sorted((ROOT / "simulator" / room).rglob("*.py")) for m in mutants(path)
        ]
        share = count // len(rooms) + (place < count % len(rooms))
        chosen += chance.sample(every, min(share, len(every)))
    chance.shuffle(chosen)
    return chosen


class Tree:
    """A copy of the tree in which one module at a time is changed, and what its tests say.

    What a held question came to without a change is noted there first, so a prediction that moved
    since somebody wrote the held files notices nothing; nor does a test that fails in any case.
    """

    def __init__(self, folder: Path, seconds: int) -> None:
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "reports", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=ignored)
        self.folder, self._seconds = folder, seconds
        self._samples, self._fails = folder / "samples.bin", dict[str, bool]()
        self._run(["-m", "tests.mutations.held_samples", "write", str(self._samples)], 900)

    def noticed(self, mutant: Mutant) -> str:
        """What notices it first; "out of time" where nothing has; blank where nothing does."""
        relative = mutant.path.relative_to(ROOT)
        tests = [str(relative), *self._tests(relative)]
        while True:
            with self._changed(mutant):
                found = self._moved(mutant) or self._failing(tests, self._seconds)
            if "::" not in found or not self._fails_in_any_case(found):
                return found

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        place = self.folder / mutant.path.relative_to(ROOT)
        place.write_text(mutant.text(), encoding="utf-8")
        try:
            yield
        finally:
            shutil.copy2(mutant.path, place)

    def _moved(self, mutant: Mutant) -> str:
        where = [str(mutant.path.relative_to(ROOT)), str(mutant.line)]
        asked = ["-m", "tests.mutations.held_samples", "check", str(self._samples), *where]
        done = self._run(asked, self._seconds)
        if done.returncode:
            return "" if done.returncode in OUT_OF_TIME else "a held question that ends the process"
        return done.stdout.strip().rpartition("\n")[2]

    def _failing(self, tests: list[str], seconds: int) -> str:
        known = [f"--deselect={test}" for test, fails in self._fails.items() if fails]
        words = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"]
        done = self._run(["-m", "pytest", *words, *known, *tests], seconds)
        if done.returncode in OUT_OF_TIME:
            return "out of time"
        if done.returncode in (0, 5):  # no test is none that fails
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?= - |$)", done.stdout, flags=re.MULTILINE)
        return failed[1] if failed else f"pytest ends with {done.returncode}"

    def _fails_in_any_case(self, test: str) -> bool:
        if test not in self._fails:
            self._fails[test] = bool(self._failing([test], self._seconds))
        return self._fails[test]

    def _tests(self, relative: Path) -> list[str]:
        """Tests of a module's name, of what imports it, of its room, of commands."""
        files = [
            path
            for path in sorted((self.folder / "tests").rglob("test_*.py"))
            if path.name not in UNHELPFUL and not {"oracles", "mutations"} & {*path.parts}
        ]
        own = [path for path in files if path.stem == f"test_{relative.stem}"]
        holder = re.escape(".".join(relative.parent.parts))
        imports = re.compile(rf"\b{holder}(\.| import .*\b){relative.stem}\b")
        importing = [path for path in files if imports.search(path.read_text(encoding="utf-8"))]
        room = [path for path in files if relative.parts[1] in path.parts]
        commands = [path for path in files if path.parent.name in ("cli", "questions", "tests")]
        names = dict.fromkeys((*own, *importing, *room, *commands))
        return [path.relative_to(self.folder).as_posix() for path in names]

    def _run(self, words: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
        def bounded() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))

        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start compiles every module
        return subprocess.run(
            [sys.executable, *words], cwd=self.folder, capture_output=True, text=True, check=False,
            env=environment, preexec_fn=bounded,
        )  # fmt: skip


def main(arguments: list[str]) -> int:
    """Print what survived; 0 where at least 95 of 100 are noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rooms", type=lambda text: tuple(text.split(",")), default=ROOMS)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    asked = parser.parse_args(arguments)
    chosen, survived = drawn(asked.seed, asked.count, asked.rooms), 0
    with tempfile.TemporaryDirectory() as place:
        tree = Tree(Path(place) / "tree", asked.seconds)
        for number, mutant in enumerate(chosen, 1):
            by = tree.noticed(mutant)
            survived += by in ("", "out of time")
            said = f"noticed by {by}" if by not in ("", "out of time") else f"SURVIVED {by}".strip()
            print(f"{number}/{len(chosen)} {mutant}: {said}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} noticed")
    return int(survived > 0.05 * len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
