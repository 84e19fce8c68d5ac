"""The command `foreshard`: the questions of questions/registry.py, each run by cli/runner.py."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from simulator._version import __version__
from simulator.cli.standard_streams import sound_streams

_HELP = {"help_option_names": ["-h", "--help"]}


def _registry() -> Any:
    """The list of questions, which stand on the command line and not under it."""
    return import_module("simulator.questions.registry")


@cache
def _command(word: str) -> Any:
    """Make the command, or the group of commands, of one word."""
    registry = _registry()
    program = typer.Typer(add_completion=False)
    if is_group := word in registry.GROUPS:
        program = typer.Typer(
            name=word, help=registry.GROUPS[word], no_args_is_help=True, add_completion=False
        )
        program.callback()(lambda: None)  # a group, if it were of a single command
    for name in registry.QUESTIONS:
        if name.partition(" ")[0] == word:
            with _single_thread_of_blas():
                question = registry.load(name)
            _keep_profiles()
            last = name.rpartition(" ")[2]
            text = _plain(question.help)
            add = program.command(last, cls=_Command, help=text, epilog=question.epilog)
            add(question.command())
    made: Any = typer.main.get_command(program)
    for command in (made, *(made.commands.values() if is_group else ())):
        command.context_settings = {**command.context_settings, **_HELP}
        for parameter in command.params:
            _pass_over_none(parameter)
    return made


@contextmanager
def _single_thread_of_blas() -> Iterator[None]:
    """Load NumPy without the threads that its BLAS starts, one a core: no matrix here is large.

    What is started later, such as a measurement by torch, does not see the word.
    """
    word = "OPENBLAS_NUM_THREADS"
    if word in os.environ:
        yield
        return
    os.environ[word] = "1"
    try:
        yield
    finally:
        del os.environ[word]


class _Command(TyperCommand):
    """One question; what is no option of it and a field of a scenario is told how it is written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a field's name as an option, as ``--tp 8``, with the ``--set`` that says it."""
        known = {option for parameter in self.params for option in parameter.opts}
        reads_fields = "--set" in known and not ctx.resilient_parsing
        for word, following in pairwise([*args, ""]) if reads_fields else ():
            option, _, value = word.partition("=")
            if not option.startswith("--") or option in known:
                continue
            if named := _fields_named(option):
                value = value or ("" if following.startswith("-") else following) or "VALUE"
                fields = " or ".join(f"--set {shlex.quote(f'{name}={value}')}" for name in named)
                typer.echo(f"command line: {option}: no such option; write {fields}", err=True)
                ctx.exit(2)
        return super().parse_args(ctx, args)


def _pass_over_none(parameter: Any) -> None:
    """Keep what nobody typed from being read: typer would make a schema of every option."""
    read = parameter.process_value
    none = () if parameter.multiple or parameter.nargs == -1 else None
    if not parameter.required and parameter.callback is None:
        parameter.process_value = lambda ctx, value: none if value is None else read(ctx, value)


def _fields_named(option: str) -> list[str]:
    from simulator.sections import fields_named  # which read records of every section

    return fields_named(option.removeprefix("--").replace("-", "_"))


class _Commands(MutableMapping[str, Any]):
    """Commands by their first word, each made when it is asked for."""

    def __getitem__(self, word: str) -> Any:
        if word not in list(self):
            raise KeyError(word)
        return _command(word)

    def __setitem__(self, word: str, value: Any) -> None:
        raise TypeError("commands are those of simulator/questions/registry.py")

    def __delitem__(self, word: str) -> None:
        raise TypeError("commands are those of simulator/questions/registry.py")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.partition(" ")[0] for name in _registry().QUESTIONS))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _Group(TyperGroup):
    """The program; its commands are made as they are asked for, a list of them makes none."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List commands and their first sentences in plain text: rich takes long to load."""
        self.commands, self.rich_markup_mode = _listed(), None
        super().format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write their whole sentences."""
        with formatter.section("Commands"):
            formatter.write_dl([(word, command.help) for word, command in self.commands.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the name of a command."""
        self.commands = _listed()
        return super().shell_complete(ctx, incomplete)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the commands without a word; refuse a blank one, as an unset variable of a shell."""
        if ctx.resilient_parsing and not args:
            return []  # the first word is completed; typer would load pydantic to read nothing
        if not args:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        for before, word in zip(["", *args], args, strict=False):
            if not word.strip() or (word.startswith("--") and word.endswith("=")):
                option = word.rstrip("=") if word.strip() else before
                typer.echo(f"command line: {option}: must not be blank, got {word!r}", err=True)
                ctx.exit(2)
        return super().parse_args(ctx, args)


def _listed() -> dict[str, Any]:
    """Commands that have nothing but a name and a help."""
    registry = _registry()
    texts = {**registry.HELP, **registry.GROUPS}
    return {word: TyperCommand(word, help=texts[word]) for word in _Commands()}


def _plain(text: str) -> str:
    """Keep sections, such as [rl], from being read as markup."""
    return text.replace("[", "\\[")


def _keep_profiles() -> None:
    """Take profiles as another command read them, where their files are the same."""
    from simulator import files, profile_cache  # a list of commands starts without pydantic

    files.KEPT.folder = profile_cache.usual_folder()


class _Program(typer.Typer):
    """The command as a shell starts it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # sought in all packages
        with sound_streams():
            return super().__call__(*arguments, **options)


app = _Program(
    name="foreshard",
    cls=_Group,
    help="Plan, predict and explain large-model training on a GPU cluster.",
    context_settings=_HELP,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foreshard {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Plan, predict and explain large-model training on a GPU cluster."""


if __name__ == "__main__":
    app()
