"""docs/scenario.md: every field of a scenario, made from the code that reads it.

``python -m workshop.pages.scenario docs`` writes it; a test holds the committed page to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from simulator.report.scenario_fields import Field, about, scenario_fields
from simulator.report.write import write_file
from simulator.sections import SECTIONS

_NAME = "scenario.md"

_INTRO = """\
# Every field of a scenario

`python -m workshop.pages.scenario docs` writes this page from the records that read a
scenario; a test fails when the committed page no longer holds. Do not edit it. `foreshard fields`
shows the same on the screen (`foreshard fields training`, `foreshard fields tp`).

A scenario is a file, TOML (see [`examples/`](../examples)) or YAML, flags (`--set
section.field=value`), or both. Numbers may end in k, M, B or T: `tokens = "15T"`; in lengths of
sequences k is 1,024. Models are named as repositories and tables name them. In a default's place,
*required* is what a scenario must say; a dash means that nothing is assumed, or what the sentence
says. The grade says on what a default rests: *measured*, *fitted*, *datasheet* for figures with a
source, *assumed* for habits that nobody measured. NAME stands for a name of your own, [] for each
table of a list."""


def page() -> str:
    """Write the page as Markdown."""
    fields = scenario_fields()
    lines = [_INTRO]
    for section in SECTIONS:
        mine = [field for field in fields if field.name.partition(".")[0] == section]
        lines += ["", f"## [{section}]", "", about(section), ""]
        lines += ["| field | what it says | values | default | grade |", "|---|---|---|---|---|"]
        lines += map(_row, mine)
    return "\n".join(lines) + "\n"


def _row(field: Field) -> str:
    name = field.name.partition(".")[2]
    default = "required" if field.required else field.default and f"`{field.default}`"
    return f"| {' | '.join(_cells(field, name, default))} |"


def _cells(field: Field, name: str, default: str) -> Iterator[str]:
    yield f"`{name}`"
    yield field.sentence.replace("|", "\\|")
    yield "; ".join(filter(None, (field.unit, field.kind))).replace("|", "\\|")
    yield default or "-"
    yield field.grade or "-"


def main(arguments: list[str]) -> None:
    """Write the page into a folder, docs unless another is named."""
    write_file(Path(arguments[0] if arguments else "docs") / _NAME, page().encode())


if __name__ == "__main__":
    main(sys.argv[1:])
