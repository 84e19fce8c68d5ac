"""docs/python.md: the public names of Python, from their signatures and docstrings.

``python -m workshop.pages.python docs`` writes it; a test holds the committed page to it.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import simulator
from simulator.report.write import write_file
from simulator.scenario_keywords import ScenarioKeywords

_NAME = "python.md"

_INTRO = """\
# Python

`python -m workshop.pages.python docs` writes this page from the docstrings; a test fails when the
committed page no longer holds. Do not edit it. `import foreshard` and `import simulator` are the
same. Times are in seconds, sizes in bytes, energy in kWh, money in USD.

Every answer has a line (`repr`), `to_frame()` (a pandas table), `plot()`, `document()` (what
`--json` prints), `caveats`, and shows itself in a notebook. `InputError` says what is wrong with
the input, `InfeasibleError` why nothing can run; both come from `simulator.errors`.
"""


def page() -> str:
    """Write the page as Markdown."""
    names = [name for name in simulator.__all__ if not name.startswith("_")]
    values = {name: getattr(simulator, name) for name in names}
    questions = [name for name, value in values.items() if inspect.isfunction(value)]
    records = [name for name in names if name not in questions]
    lines = [_INTRO, "## Questions"]
    for name in questions:
        lines += ["", f"### {name}", "", *_signature(name, values[name]), "", _text(values[name])]
    lines += ["", "## Records"]
    for name in records:
        lines += ["", f"### {name}", "", _text(values[name])]
    lines += ["", "## Keywords", "", "Fields of a scenario that the questions take by name:", ""]
    typed = ", ".join(f"`{name}`" for name in sorted(ScenarioKeywords.__annotations__))
    return "\n".join([*lines, f"{typed}. [What each means](scenario.md)."]) + "\n"


def _signature(name: str, function: Any) -> list[str]:
    given = inspect.signature(function).parameters.values()
    words = ["**fields" if p.kind is p.VAR_KEYWORD else _parameter(p) for p in given]
    return [indent(f"{name}({', '.join(words)})", "    ")]


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


def _text(value: Any) -> str:
    """The docstring, its sections as Markdown has them."""
    text = re.sub(r":(?:func|class):`([^`]*)`", r"`\1`", inspect.getdoc(value) or "")
    lines = [_plain(line) for line in text.splitlines()]
    shown: list[str] = []
    literal = False
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below and set(below) == {"-"}:
            shown.append(f"**{line}**")
            literal = True
        elif line and set(line) == {"-"}:
            shown.append("")
        else:
            shown.append(indent(line, "    ") if literal else line)
    return "\n".join(shown)


def _plain(line: str) -> str:
    """An example without its prompt, what it prints as a comment: the page is no test."""
    for prompt in (">>> ", "... "):
        if line.startswith(prompt):
            return line[len(prompt) :]
    return line


def main(arguments: list[str]) -> None:
    """Write the page into a folder, docs unless another is named."""
    write_file(Path(arguments[0] if arguments else "docs") / _NAME, page().encode())


if __name__ == "__main__":
    main(sys.argv[1:])
