"""docs/commands.md: every command with its sentence and its examples, made from the program.

``python -m workshop.pages.commands docs`` writes it; a test holds the committed page to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from simulator.questions.registry import QUESTIONS, load
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
    for name in QUESTIONS:
        question = load(name)
        sentence = question.help.partition("\n\n")[0].replace("\n", " ")
        lines += ["", f"## {name}", "", sentence, ""]
        lines += [f"    foreshard {line}" for line in question.examples]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Write the page into a folder, docs unless another is named."""
    write_file(Path(arguments[0] if arguments else "docs") / _NAME, page().encode())


if __name__ == "__main__":
    main(sys.argv[1:])
