"""Words that are shown are the field's: no surface says what the glossary avoids."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from simulator.glossary import glossary, section_title

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "simulator"
PAGES = [path for end in ("*.j2", "*.html", "*.js") for path in PACKAGE.rglob(end)]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
HELP = {"command.py", "options.py", "option_groups.py", "decision_options.py"}
"""Modules whose docstrings are shown, too."""


@cache
def shown(path: Path) -> list[tuple[int, str]]:
    """Texts of a module that a user may see: all strings but docstrings of what is no command."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(statements := getattr(node, "body", None), list)
        for statement in statements
        if isinstance(statement, ast.Expr)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in hidden or path.name in HELP
    ]


def joined(text: str) -> str:
    """A module's text with literals that follow each other as the one that they are."""
    return re.sub(r"""["']\s*\n\s*[rf]{0,2}["']""", "", text)


def avoided(text: str) -> list[str]:
    return [phrase for phrase in glossary()["avoid"] if phrase in text]


def test_no_text_of_the_program_says_what_is_avoided() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r}: say {glossary()['avoid'][phrase]!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if avoided(joined(path.read_text(encoding="utf-8")))  # a tree takes long to walk
        for line, text in shown(path)
        for phrase in avoided(text)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", [*PAGES, *GUIDES], ids=lambda path: path.name)
def test_no_page_says_what_is_avoided(path: Path) -> None:
    assert avoided(path.read_text(encoding="utf-8")) == []


def test_what_is_avoided_is_seen() -> None:
    assert avoided("What binds: the closed form") == ["What binds", "closed form"]


def test_headings_are_drawn_from_the_glossary() -> None:
    """Each is used, and none is written out a second time."""
    used = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"""section_title\(["'](\w+)["']\)""", text))
        titles = {section_title(key) for key in glossary()["headings"]}
        if any(title in joined(text) for title in titles):
            assert not [text for _, text in shown(path) if text in titles], path
    assert used == set(glossary()["headings"])
