"""The house rules: one-way imports, a light start, no drawer for odds and ends, short functions."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.figures import statements

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("simulator", "workshop")
MODULES = sorted((ROOT / "simulator").rglob("*.py"))
DRAWERS = {"common", "helper", "helpers", "misc", "util", "utils"}
HEAVY = ("llvmlite", "matplotlib", "networkx", "numba", "pandas", "scipy", "torch")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
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


MOST_CALLS = 16_000
"""Calls of functions of the package in one cold prediction; 8,200 while pydantic read the tables,
whose import and schemas took as long as all of the rest."""


def test_a_prediction_takes_few_calls() -> None:
    done = run("import runpy; runpy.run_path('tests/house/count_calls.py', run_name='__main__')")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) <= MOST_CALLS, done.stdout


@pytest.mark.parametrize("folder", ["simulator", "tests"])
def test_no_module_is_a_drawer(folder: str) -> None:
    names = {path.stem for path in (ROOT / folder).rglob("*.py")}
    names |= {path.name for path in (ROOT / folder).rglob("*") if path.is_dir()}
    assert names & DRAWERS == set()


WEIGHTS = {"w", "weight", "matrix"}  # names of weights are words that recipes use, no labels
ASKING = {"startswith", "endswith", "removeprefix", "removesuffix"}


def is_label(node: ast.AST) -> bool:
    """Whether an expression is the `name` of something that is no weight."""
    if not isinstance(node, ast.Attribute) or node.attr != "name":
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in WEIGHTS)


def asks_for_a_name(node: ast.AST) -> bool:
    """Whether a name is compared with a word, or searched for one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ASKING and is_label(node.func.value)
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    words = [x for side in sides for x in ast.walk(side) if isinstance(x, ast.Constant)]
    return any(map(is_label, sides)) and any(isinstance(x.value, str) for x in words)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("g.name == 'fc1'", True),
        ("tensor.name in ('queries', 'keys')", True),
        ("s.name.endswith('bias')", True),
        ("g.role is GemmRole.FC1", False),
        ("g.name in ops.gathered", False),
        ("w.name == 'down'", False),
    ],
)
def test_what_counts_as_asking_for_a_name(text: str, asks: bool) -> None:
    assert any(map(asks_for_a_name, ast.walk(ast.parse(text)))) == asks


def test_operators_are_known_by_their_roles() -> None:
    # Names of operators and kept tensors are labels for people: rules read roles.
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted((ROOT / "simulator" / "cost").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare | ast.Call) and asks_for_a_name(node)
    ]
    assert found == []


LINES = 50
"""Of code in a function: its own, without blanks, comments and its docstring."""


def code_lines(source: list[str], function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    lines = source[body[0].lineno - 1 : function.end_lineno]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


def test_functions_are_short() -> None:
    """How many parameters they have, ruff says (PLR0917)."""
    long = {}
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in statements(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = code_lines(lines, node)
                if count > LINES:
                    long[f"{path.relative_to(ROOT)}: {node.name}"] = count
    assert long == {}


def test_the_design_lists_every_folder() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    tree = page[page.index("## Layers and folders") : page.index("## Facts in files")]
    inits = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    folders = {path.parent.name for path in inits}
    assert folders - set(re.findall(r"[a-z_]+", tree)) == set()
