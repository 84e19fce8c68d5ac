"""Help: -h, examples that the parser takes, names that a shell completes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
import typer
from typer.testing import CliRunner

from simulator.cli import options
from simulator.cli.examples import EXAMPLES
from simulator.cli.main import app

PROGRAM = typer.main.get_command(app)


def commands() -> Iterator[tuple[str, click.Command]]:
    for name, command in PROGRAM.commands.items():
        inner = getattr(command, "commands", None)
        yield from [(f"{name} {n}", c) for n, c in inner.items()] if inner else [(name, command)]


COMMANDS = dict(commands())


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


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


def test_names_are_completed() -> None:
    assert options._models("llama-3.1-4") == ["llama-3.1-405b"]
    assert options._profiles("clusters")("dgx-h") == ["dgx-h100"]
    root = CliRunner().invoke(app, ["-h"]).stdout
    assert "--install-completion" in root
