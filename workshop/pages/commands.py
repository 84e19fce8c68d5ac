"""docs/commands.md: every command with its sentence and its examples, made from the program.

``python -m workshop.pages.commands docs`` writes it; a test holds the committed page to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from simulator.cli.examples import EXAMPLES
from simulator.cli.main import app
from simulator.report.write import write_file

_NAME = "commands.md"

_INTRO = """\
# Every command

`python -m workshop.pages.commands docs` writes this page from the program; a test fails when
the committed page no longer holds. Do not edit it. `foreshard COMMAND -h` shows the options;
`--json` prints the answer as a document with stable keys.

Exit codes: 0 done; 1 nothing fits, or nothing meets what is asked; 2 wrong input, every problem at
once. A scenario is a file ([every field](scenario.md)), flags, or both."""


def page() -> str:
    """Write the page as Markdown."""
    lines = [_INTRO]
    for name, command in _commands():
        said = (command.help or "").replace("\\[", "[").strip()
        sentence = said.partition("\n\n")[0].replace("\n", " ")
        lines += ["", f"## {name}", "", sentence, ""]
        lines += [f"    foreshard {line}" for line in EXAMPLES.get(name, (name,))]
    return "\n".join(lines) + "\n"


def _commands() -> Iterator[tuple[str, Any]]:
    """Commands by name, those of groups behind the name of their group."""
    program: Any = typer.main.get_command(app)
    for name, command in program.commands.items():
        inner = getattr(command, "commands", None)
        yield from [(f"{name} {n}", c) for n, c in inner.items()] if inner else [(name, command)]


def main(arguments: list[str]) -> None:
    """Write the page into a folder, docs unless another is named."""
    write_file(Path(arguments[0] if arguments else "docs") / _NAME, page().encode())


if __name__ == "__main__":
    main(sys.argv[1:])
