"""Single-point mutants of `simulator/`: operators, comparisons, and/or, max/min, numbers."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = tuple(
    path.name for path in sorted((ROOT / "simulator").iterdir()) if (path / "__init__.py").is_file()
)

_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_NAMES = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}


Place = tuple[int, int, int, int]
"""First line, column, last line and column after it, as `ast` counts."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One expression of a module, and what stands in its place."""

    path: Path
    place: Place
    before: str
    after: str

    @property
    def room(self) -> str:
        """The folder of `simulator/` that it lies in."""
        return self.path.relative_to(ROOT).parts[1]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.place[0]}: {self.before} -> {self.after}"


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a module: arithmetic, comparisons, and/or, max/min, numbers."""
    return (_mutant(path, node) for node in _changeable(path))


def _changeable(path: Path) -> Iterator[ast.expr]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in _walked(tree) if changed(node) is not None)


def _mutant(path: Path, node: ast.expr) -> Mutant:
    other = changed(node)
    assert other is not None and node.end_lineno is not None and node.end_col_offset is not None
    place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
    return Mutant(path, place, ast.unparse(node), ast.unparse(other))


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


def changed(node: ast.expr) -> ast.expr | None:
    """What a mutant has in place of an expression; None where it has none."""
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
        files = sorted((ROOT / "simulator" / room).rglob("*.py"))
        every = [(path, node) for path in files for node in _changeable(path)]
        share = count // len(rooms) + (place < count % len(rooms))
        sample = chance.sample(every, min(share, len(every)))
        chosen += [_mutant(path, node) for path, node in sample]
    chance.shuffle(chosen)
    return chosen
