"""Help: -h, examples that the parser takes, names that a shell completes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from simulator.cli import options
from simulator.cli.main import app
from simulator.questions import catalogue, explain, export
from simulator.questions.registry import GROUPS, HELP, QUESTIONS, load
from workshop.pages.commands import page

PROGRAM = typer.main.get_command(app)


def commands() -> Iterator[tuple[str, click.Command]]:
    for name, command in PROGRAM.commands.items():
        inner = getattr(command, "commands", None)
        yield from [(f"{name} {n}", c) for n, c in inner.items()] if inner else [(name, command)]


COMMANDS = dict(commands())
EXAMPLES = {name: load(name).examples for name in QUESTIONS}


def test_every_command_has_examples() -> None:
    assert list(EXAMPLES) == list(COMMANDS)
    assert all(EXAMPLES.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_parser_takes_the_examples_of_a_command(name: str) -> None:
    for line in EXAMPLES[name]:
        words = shlex.split(line)
        begun = name.split()
        assert words[: len(begun)] == begun
        COMMANDS[name].make_context(name, words[len(begun) :])


@pytest.mark.parametrize("name", ["plan", "profiles list"])
def test_help_shows_them(name: str) -> None:
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, [*name.split(), "-h"]).stdout
    assert all(f"foreshard {line}" in shown for line in EXAMPLES[name])


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("distil", "[distillation]"),
        ("parameter-server", "[parameter_server]"),
        ("recommender", "[sparse]"),
        ("schedule", "[[parts]]"),
        ("export", "[layout]"),
        ("serve", "foreshard[ui]"),
    ],
)
def test_sections_of_a_scenario_are_no_markup(name: str, section: str) -> None:
    assert section in CliRunner(env={"COLUMNS": "120"}).invoke(app, [name, "-h"]).stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_square_brackets_of_a_help_text_are_no_markup(name: str) -> None:
    """Rich takes ``[run]`` for a style, and leaves it out; a backslash before it keeps it."""
    for parameter in COMMANDS[name].params:
        text = getattr(parameter, "help", None) or ""
        assert not re.search(r"(?<!\\)\[[a-z_]+\]", text), (parameter.name, text)


def test_names_are_completed() -> None:
    assert options._models("llama-3.1-4") == ["llama-3.1-405b"]
    assert options._profiles("clusters")("dgx-h") == ["dgx-h100", "dgx-h100-sharp"]
    assert explain._terms("gem") == ["gemm"]
    assert export._forms("torcht") == ["torchtitan"]
    assert catalogue._names("dgx-b3") == ["dgx-b300"]
    root = CliRunner().invoke(app, ["-h"]).stdout
    assert "--install-completion" in root


@pytest.mark.parametrize(
    ("line", "said"), [("foreshard pla", ["plan"]), ("foreshard plan --clus", ["--cluster"])]
)
def test_a_shell_completes_commands_and_options(line: str, said: list[str]) -> None:
    words = line.split()
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
    environment = {**os.environ, "_FORESHARD_COMPLETE": "complete_bash", **asked}
    done = subprocess.run(
        [sys.executable, "-c", "from simulator.cli.main import app; app(prog_name='foreshard')"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == said


def test_no_word_at_all_shows_the_commands() -> None:
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 2
    assert done.stdout.strip() == CliRunner().invoke(app, ["-h"]).stdout.strip()


README = Path(__file__).resolve().parents[2] / "README.md"
LINES = re.findall(r"^    foreshard (.*?)(?:  +#.*)?$", README.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("line", LINES)
def test_the_parser_takes_the_commands_of_the_readme(line: str) -> None:
    words = shlex.split(line)
    name = " ".join(words[: 2 if words[0] in ("profiles", "cluster") else 1])
    COMMANDS[name].make_context(name, words[len(name.split()) :])


def test_the_readme_is_short_and_keeps_its_two_commands() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert re.findall(r"^    make (\w+)", text, re.M)[:2] == ["plan", "test"]
    assert len(LINES) >= 8


def test_the_page_of_commands_is_what_the_program_writes() -> None:
    again = "run: python -m workshop.pages.commands docs"
    committed = README.parent / "docs" / "commands.md"
    assert committed.read_text(encoding="utf-8") == page(), again


def test_the_list_of_commands_says_of_each_how_its_help_begins() -> None:
    first = {name: load(name).help.split("\n\n")[0] for name in QUESTIONS if " " not in name}
    assert {name: " ".join(text.split()) for name, text in first.items()} == HELP
    assert {name.partition(" ")[0] for name in QUESTIONS} == set(HELP) | set(GROUPS)
