"""The command `foreshard`: the questions of questions/registry.py, each run by cli/runner.py."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

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
    hints = dict[str, dict[str, Any]]()
    for name in registry.QUESTIONS:
        if name.partition(" ")[0] == word:
            with _single_thread_of_blas():
                question = registry.load(name)
            _keep_profiles()
            last = name.rpartition(" ")[2]
            text = _plain(question.help)
            add = program.command(last, cls=_Command, help=text, epilog=question.epilog)
            ask = question.command()
            add(ask)
            hints[last] = {x.name: x.annotation for x in signature(ask).parameters.values()}
    made: Any = typer.main.get_command(program)
    for command in (made, *(made.commands.values() if is_group else ())):
        command.context_settings = {**command.context_settings, **_HELP}
        command.hints = hints.get(command.name, {})
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

    hints: Mapping[str, Any]
    """Types of its parameters, by name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """List its parameters."""
        return [_with_plain_reader(x, self.hints.get(x.name)) for x in super().get_params(ctx)]

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


def _with_plain_reader(parameter: Any, hint: Any) -> Any:
    """Read an option without typer where that is plain: it imports pydantic and makes a schema.

    So it is of what nobody typed, of texts, of paths, and of what one of our functions reads; what
    is wrong with it typer says.
    """
    read, then = parameter.process_value, parameter.callback
    if parameter.required or "process_value" in vars(parameter):
        return parameter
    several = parameter.multiple or parameter.nargs == -1
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    kind = next((x for x in get_args(kind) if x is not type(None)), kind)
    kind = (get_args(kind) or (kind,))[0] if several else kind
    parser = next((mark.parser for mark in marks if getattr(mark, "parser", None)), None)

    def read_plain(ctx: Any, value: Any) -> Any:
        if value is None:
            none = () if several else None
            return then(ctx, parameter, none) if then else none
        texts = value if several else [value]
        if then or type(texts) not in (list, tuple) or not all(type(x) is str for x in texts):
            return read(ctx, value)
        try:
            made = [(parser or _READERS[kind])(text) for text in texts]
        except (KeyError, ValueError):
            return read(ctx, value)
        return made if several else made[0]

    parameter.process_value = read_plain
    return parameter


def _path(text: str) -> Path:
    """A path that is not there or can be read, as typer wants it."""
    if os.path.exists(text) and not os.access(text, os.R_OK):
        raise ValueError(text)
    return Path(text)


_READERS: dict[Any, Callable[[str], Any]] = {str: str, Path: _path}


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

    def get_params(self, ctx: Any) -> list[Any]:
        """List options of the program itself."""
        return [_with_plain_reader(parameter, None) for parameter in super().get_params(ctx)]

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
