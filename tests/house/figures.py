"""What `make house` prints: the size of the code, and what the house rules are measured by.

Counted on the syntax trees of ``simulator/`` and ``workshop/``, in a few seconds:

- *files* and *code lines*: lines without blanks, comments and docstrings;
- functions with many positional parameters, ``self`` and ``cls`` not counted;
- *pronouns*: variables and parameters called one, found, each or own. A name says a quantity or a
  thing of the field (step, rank, bucket). ``pronouns.toml`` holds what each folder may have at most
  (test_names.py), and ``python -m tests.house.figures --lower`` writes what it has now, which may
  move between folders and never be more in all;
- *product names*: string constants that are a name of a product, a release or a source
  (product_names.toml), outside the readers of frameworks.

And counted while they run, by walks.py: files entered by one question of each kind.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("simulator", "workshop")
TABLE = HERE / "pronouns.toml"
PRONOUNS = ("one", "found", "each", "own")
LARGEST = 12

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file of the packages."""

    path: str
    """From the root of the repository, with slashes."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def folder(self) -> str:
        """The folder below the package, such as ``simulator/cost``, or the package itself."""
        return "/".join(self.path.split("/")[:-1][:2])

    @property
    def room(self) -> str:
        """The folder it lies in, such as ``simulator/cost/operators``."""
        return self.path.rpartition("/")[0]

    @cached_property
    def docstrings(self) -> list[ast.Constant]:
        """String constants that stand alone: docstrings, those of fields too."""
        statements = (node for node in ast.walk(self.tree) if isinstance(node, ast.Expr))
        return [
            node.value
            for node in statements
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ]

    @property
    def code_lines(self) -> int:
        documented = {
            number
            for text in self.docstrings
            for number in range(text.lineno, (text.end_lineno or text.lineno) + 1)
        }
        return sum(
            bool(line.strip()) and not line.strip().startswith("#") and number not in documented
            for number, line in enumerate(self.text.splitlines(), 1)
        )

    @property
    def pronouns(self) -> int:
        return sum(
            (node.id if isinstance(node, ast.Name) else node.arg) in PRONOUNS
            for node in ast.walk(ast.parse(self.text))  # not kept: trees of all files are large
            if isinstance(node, ast.Name | ast.arg)
        )

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Statements of a tree, those in others too, without a look into their expressions."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, ast.expr):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def sources() -> list[Source]:
    """Every Python file of the packages, by path."""
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def positionals(function: Function) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


# --- pronouns -----------------------------------------------------------------------------


def pronouns_by_folder(files: list[Source]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for source in files:
        counts[source.folder] += source.pronouns
    return dict(sorted(counts.items()))


def allowed_pronouns() -> dict[str, int]:
    table: dict[str, int] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["most"]
    return table


def lower(counts: Mapping[str, int]) -> str:
    """Write the table anew, if the packages have no more than it allows in all."""
    total = sum(counts.values())
    if TABLE.exists() and total > (most := sum(allowed_pronouns().values())):
        return f"{TABLE.name} is left as it is: {total:,} now, at most {most:,} in all"
    head = (
        "# Variables and parameters called one, found, each or own, at most, by folder:\n"
        "# may only fall.\n"
        "# `python -m tests.house.figures --lower` writes what there is now.\n\n[most]\n"
    )
    lines = [f'"{folder}" = {count}\n' for folder, count in counts.items() if count]
    TABLE.write_text(head + "".join(lines), encoding="utf-8")
    return f"{TABLE.name}: {total:,}"


# --- product names ------------------------------------------------------------------------


def prose(text: str) -> bool:
    """Whether a string is a sentence or a citation, not a name."""
    return text.count(" ") > 1


def product_names(files: list[Source]) -> Counter[str]:
    """Names of products, releases and sources in code, by file, each counted once there."""
    table = tomllib.loads((HERE / "product_names.toml").read_text(encoding="utf-8"))
    patterns = [pattern for group in table["patterns"].values() for pattern in group]
    name = re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)
    counts: Counter[str] = Counter()
    for source in files:
        if source.path.startswith(tuple(table["not_counted"])):
            continue
        documented = set(map(id, source.docstrings))
        strings = {
            node.value
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documented
        }
        counts[source.path] = sum(
            name.fullmatch(string) is not None and not prose(string) for string in strings
        )
    return +counts


# --- what is printed ----------------------------------------------------------------------


def size_lines(files: list[Source]) -> Iterator[str]:
    yield f"{'package':28} {'files':>6} {'lines':>9} {'code lines':>11}"
    for package in PACKAGES:
        package_files = [source for source in files if source.path.startswith(f"{package}/")]
        lines = sum(len(source.text.splitlines()) for source in package_files)
        code = sum(source.code_lines for source in package_files)
        yield f"{package:28} {len(package_files):6,} {lines:9,} {code:11,}"
    rooms = Counter(source.room for source in files)
    yield f"\nfolders with most files (of {len(rooms)}; without those inside)"
    yield from (f"{room:40} {count:6}" for room, count in rooms.most_common(LARGEST))


def function_lines(files: list[Source]) -> Iterator[str]:
    counts = {
        f"{source.path}:{function.lineno} {function.name}": positionals(function)
        for source in files
        for function in source.functions()
    }
    long = {name: count for name, count in counts.items() if count >= 10}
    seven = sum(count >= 7 for count in counts.values())
    yield f"functions: {len(counts):,}"
    yield f"with 7 and more positional parameters {seven}, with 10 and more {len(long)}"
    by_count = sorted(long.items(), key=lambda item: -item[1])
    yield from (f"{name:72} {count:4}" for name, count in by_count)


def name_lines(files: list[Source]) -> Iterator[str]:
    counts = pronouns_by_folder(files)
    total, most = sum(counts.values()), sum(allowed_pronouns().values())
    yield f"variables called {', '.join(PRONOUNS)}: {total:,} (at most {most:,})"
    names = product_names(files)
    total = sum(names.values())
    yield f"names of products, releases and sources in code: {total} in {len(names)} files"
    yield from (f"{path:72} {count:4}" for path, count in names.most_common(LARGEST))


def run_time_lines() -> Iterator[str]:
    """What is counted while questions run, each program in a process of its own."""
    for module in ("walks", "count_calls"):
        if (HERE / f"{module}.py").exists():
            command = [sys.executable, "-m", f"tests.house.{module}"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            yield done.stdout.rstrip() if done.returncode == 0 else done.stderr.rstrip()


def main() -> None:
    files = sources()
    if "--lower" in sys.argv[1:]:
        print(lower(pronouns_by_folder(files)))
        return
    for section in (size_lines, function_lines, name_lines):
        print("\n".join(section(files)), end="\n\n")
    print("\n\n".join(run_time_lines()))


if __name__ == "__main__":
    main()
