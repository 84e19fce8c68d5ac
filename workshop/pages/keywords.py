"""simulator/scenario_keywords.py: types of the keywords of `plan` and others, from the records.

``python -m workshop.pages.keywords simulator`` writes it; a test holds the committed file to it.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin, get_type_hints

from simulator.assembly import KEYWORD_SECTIONS, WHOLE_SECTIONS
from simulator.files import Figure, ReadBy, Word
from simulator.report.scenario_fields import about, hint_parts, scenario_fields
from simulator.report.write import write_file
from simulator.scenario import MAY_BE_SEVERAL
from simulator.sections import SECTIONS

_NAME = "scenario_keywords.py"

_HEAD = '''\
"""Keywords of `plan`, `predict` and others: fields of a scenario, for editors and type checkers.

``python -m workshop.pages.keywords simulator`` writes this file from the records that read a
scenario; a test holds it to them. Do not edit it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
'''

_CLASS = '''

class RunKeywords(TypedDict, total=False):
    """Fields of [training], [layout], [goal] and [search] by name, other sections as mappings."""
'''

_GOAL = '''

class ScenarioKeywords(RunKeywords, total=False):
    """The same with what a run must hold, which comparisons and sizes ask for by themselves."""
'''

_OF_GOAL = ("deadline_days", "budget_usd")

_PARAMETERS = ("software", "search")
"""Sections that the signatures have, or whose fields stand by themselves."""


def source() -> str:
    """Write the file as Python."""
    sentences = {field.name: field.sentence for field in scenario_fields()}
    words: list[str] = []
    run: list[str] = []
    goal: list[str] = []
    for name, section in KEYWORD_SECTIONS.items():
        hints = get_type_hints(SECTIONS[section].schemas[0], include_extras=True)
        kinds, marks = hint_parts(hints[name])
        kind = " | ".join(dict.fromkeys(map(_simple, kinds)))
        if section == "training" and name in MAY_BE_SEVERAL:
            kind += " | Sequence[int]"
        if any(isinstance(mark, ReadBy) for mark in marks):
            kind += " | str"
        closed = [get_args(kind) for kind in kinds if get_origin(kind) is Literal]
        for known in [*closed, *(mark.known for mark in marks if isinstance(mark, Word))]:
            kind = name.title().replace("_", "")
            words += [f"{kind} = Literal[", *(f'    "{word}",' for word in known), "]"]
        place = goal if name in _OF_GOAL else run
        place += _field(name, kind, sentences[f"{section}.{name}"])
    for section in (section for section in WHOLE_SECTIONS if section not in _PARAMETERS):
        run += _field(section, "Mapping[str, Any]", about(section))
    return "\n".join([_HEAD, *words, _CLASS, *run, _GOAL, *goal]) + "\n"


def _field(name: str, kind: str, sentence: str) -> list[str]:
    text = fill(f'"""{sentence}"""', 100, initial_indent="    ", subsequent_indent="    ")
    return [f"    {name}: {kind} | None", text]


def _simple(kind: Any) -> str:
    """What a checker lets through: numbers also as text with a letter (`"15T"`)."""
    if dataclasses.is_dataclass(kind) or get_origin(kind) is dict:
        return "Mapping[str, Any]"
    if get_origin(kind) is tuple:
        return f"Sequence[{_simple(hint_parts(get_args(kind)[0])[0][0])}]"
    numbers = {bool: "bool", int: "int | str", float: "float | str", Figure: "float | str"}
    return numbers.get(kind, "str")


def main(arguments: list[str]) -> None:
    """Write the file into a folder, simulator unless another is named."""
    write_file(Path(arguments[0] if arguments else "simulator") / _NAME, source().encode())


if __name__ == "__main__":
    main(sys.argv[1:])
