"""Mutants that hang on a number in shared memory: one copy of the package is all of them in turn.

In a copy of the tree the expression of mutant 7 reads ``(changed if switched(7) else usual)``, and
``switched`` notes that the place ran, in whatever process. Not so what is read once, at import, and
what numba compiles: such a mutant is written into its module before a process starts, and what runs
it are the functions that name what it is part of.
"""

from __future__ import annotations

import ast
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutations.drawn_mutants import Mutant, Place, changed

MODULE = "_switches"
SOURCE = """
import mmap
from pathlib import Path

_file = Path(__file__).with_suffix(".bin").open("r+b")
places = memoryview(mmap.mmap(_file.fileno(), 0)).cast("i")


def switched(number):
    places[number] = 1
    return places[0] == number
"""
COMPILED = {"compiled", "short", "within", "compiled_or"}
"""Decorators of functions that numba compiles (`simulator.compiled`)."""

MOST_NAMES = 40
"""That a constant goes on under: more say little."""

Functions = ast.FunctionDef | ast.AsyncFunctionDef


def memory(package: Path, numbers: int | None = None) -> memoryview:
    """The active mutant, 0 for none, and of every other number whether its place ran."""
    path = package / f"{MODULE}.bin"
    if numbers is not None:
        path.write_bytes(bytes(4 * (numbers + 1)))
        (package / f"{MODULE}.py").write_text(SOURCE, encoding="utf-8")
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("i")


@dataclass
class _Part:
    """A function, or a statement of a module or class: names it goes by, names that it mentions."""

    path: Path
    names: frozenset[str]
    runs: bool
    """It is a function as Python has it, which can note that it runs."""
    place: Place
    mentioned: set[str] = field(default_factory=set)


class Switched:
    """A package whose mutants are switched or written.

    Parameters
    ----------
    mutants : mapping
        By numbers from 1 on.
    package : path
        Where their modules lie.
    """

    def __init__(self, mutants: Mapping[int, Mutant], package: Path) -> None:
        self._mutants, self._written = mutants, dict[int, frozenset[str]]()
        self._trees = {path: _tree(path) for path in sorted(package.rglob("*.py"))}
        for number, mutant in mutants.items():
            names = _names_at_import(self._trees[mutant.path], mutant.place)
            if names is not None:
                self._written[number] = names
        parts = [part for path, tree in self._trees.items() for part in _parts(path, tree)]
        self._probes: dict[tuple[Path, Place], set[int]] = {}
        for number, names in self._written.items():
            for part in self._naming(mutants[number].path, names, parts):
                self._probes.setdefault((part.path, part.place), set()).add(number)

    @property
    def written(self) -> list[int]:
        """Those that a process has from its start or not at all."""
        return sorted(self._written)

    def modules(self) -> Iterator[Path]:
        """Those whose text differs."""
        probed = {path for path, _ in self._probes}
        yield from sorted(probed | {mutant.path for mutant in self._mutants.values()})

    def text(self, path: Path, active: int = 0) -> str:
        """A module with its switches, and with one written mutant in place."""
        here = {
            mutant.place: number
            for number, mutant in self._mutants.items()
            if mutant.path == path and (number not in self._written or number == active)
        }
        probes = {place: numbers for (at, place), numbers in self._probes.items() if at == path}
        tree: ast.Module = _Switching(here, probes, active).visit(_tree(path))
        first = next(
            (
                position
                for position, node in enumerate(tree.body)
                if not _is_text(node)
                and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
            ),
            len(tree.body),
        )
        imported = ast.parse(f"from simulator.{MODULE} import switched as _switched").body
        tree.body[first:first] = imported
        return ast.unparse(ast.fix_missing_locations(tree))

    def _naming(self, path: Path, names: frozenset[str], parts: list[_Part]) -> list[_Part]:
        """Functions that name a part, or what else is made of it; else all of its module."""
        private = {name for name in names if name.startswith("_")}
        public = set(names - private)
        while True:
            naming = [
                part
                for part in parts
                if (part.mentioned | part.names) & public
                or (part.path == path and (part.mentioned | part.names) & private)
            ]
            before = len(public) + len(private)
            for part in naming:
                if not part.runs and before < MOST_NAMES:
                    own = {name for name in part.names if name.startswith("_")}
                    public |= part.names - own
                    private |= own if part.path == path else set()
            if len(public) + len(private) == before:
                break
        functions = [part for part in naming if part.runs]
        return functions or [part for part in parts if part.path == path and part.runs]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_compiled(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, Functions) else []
    names = [each.func if isinstance(each, ast.Call) else each for each in decorators]
    return any(isinstance(name, ast.Name) and name.id in COMPILED for name in names)


def _names_at_import(tree: ast.Module, place: Place) -> frozenset[str] | None:
    """Names of what an expression is part of; None where it runs whenever its function does."""
    names, in_function, in_pattern = set[str](), False, False
    for holder, field_name in _way(tree, place) or []:
        body = isinstance(holder, Functions | ast.Lambda) and field_name == "body"
        in_function |= body and not _is_compiled(holder)
        in_pattern |= isinstance(holder, ast.match_case) and field_name == "pattern"
        if isinstance(holder, ast.stmt):
            names |= _made(holder)
    return frozenset(names) if in_pattern or not in_function else None


def _way(node: ast.AST, place: Place) -> list[tuple[ast.AST, str]] | None:
    """Nodes around an expression, and the field of each that it lies in."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.expr) and _place(child) == place:
                return [(node, name)]
            if (rest := _way(child, place)) is not None:
                return [(node, name), *rest]
    return None


def _place(node: ast.AST) -> Place | None:
    if not hasattr(node, "lineno"):
        return None
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def _made(statement: ast.stmt) -> frozenset[str]:
    """Names that a statement gives to something."""
    if isinstance(statement, Functions | ast.ClassDef):
        return frozenset({statement.name})
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return frozenset(
        node.id for target in targets if target for node in ast.walk(target) if _is_name(node)
    )


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _parts(path: Path, tree: ast.Module) -> Iterator[_Part]:
    """Functions of a module, and what its statements and those of its classes make."""

    def of(body: list[ast.stmt], around: frozenset[str]) -> Iterator[_Part]:
        for node in body:
            place = _place(node)
            assert place is not None
            if isinstance(node, ast.ClassDef):
                yield from of(node.body, around | {node.name})
            elif isinstance(node, ast.If | ast.Try):
                yield from of(node.body, around)
            elif isinstance(node, Functions):
                runs = not _is_compiled(node)
                yield _Part(path, frozenset({node.name}), runs, place, _mentioned(node))
            elif made := _made(node):
                yield _Part(path, made | around, False, place, _mentioned(node))

    yield from of(tree.body, frozenset())


def _mentioned(tree: ast.AST) -> set[str]:
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }


class _Switching(ast.NodeTransformer):
    def __init__(
        self, here: Mapping[Place, int], probes: Mapping[Place, set[int]], active: int
    ) -> None:
        self._here, self._probes, self._active = here, probes, active

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.JoinedStr):  # places in texts are vague
            return node
        place = _place(node)
        node = self.generic_visit(node)
        if isinstance(node, ast.expr) and place in self._here:
            other = changed(node)
            if other is not None:
                number = self._here[place]
                return other if number == self._active else ast.IfExp(_asked(number), other, node)
        if isinstance(node, Functions) and place in self._probes:
            first = int(_is_text(node.body[0]))
            noted = [ast.Expr(_asked(number)) for number in sorted(self._probes[place])]
            node.body[first:first] = noted
        return node


def _asked(number: int) -> ast.expr:
    return ast.Call(ast.Name("_switched", ast.Load()), [ast.Constant(number)], [])
