"""The command `foreshard`; each command parses, calls one library function, prints the answer."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from inspect import getdoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from simulator._version import __version__
from simulator.cli.examples import epilog
from simulator.cli.standard_streams import sound_streams

_MODULES = {
    "plan": "questions.plan.command",
    "predict": "questions.predict.command",
    "export": "questions.export.command",
    "serve": "explorer.command",
    "simulate": "questions.simulate.command",
    "compare": "questions.compare.command",
    "size": "questions.size.command",
    "doctor": "doctor.command",
    "rent-or-buy": "questions.rent_or_buy.command",
    "what-if": "questions.versus.what_if_command",
    "versus": "questions.versus.command",
    "sweep": "questions.sweep.command",
    "models": "questions.catalogue.models_command",
    "fields": "questions.catalogue.fields_command",
    "explain": "questions.explain.command",
    "sites": "questions.sites.command",
    "parameter-server": "questions.parameter_server.command",
    "recommender": "questions.sparse.command",
    "schedule": "questions.job_schedule.command",
    "distil": "questions.distillation.command",
    "validate": "questions.validate.command",
    "measure": "questions.calibrate.measure_command",
    "calibrate": "questions.calibrate.command",
    "calibrate-here": "questions.calibrate.here_command",
    "profiles": "questions.catalogue.profiles_command",
    "cluster": "questions.calibrate.cluster_init",
}
"""Modules of the commands, in the order in which help lists them."""

_GROUPS = ("profiles", "cluster")
"""Those that have commands of their own."""


_HELP = {"help_option_names": ["-h", "--help"]}


@cache
def _command(name: str) -> Any:
    """Make one command: reading the options of all takes longer than most of them run."""
    module: Any = import_module(f"simulator.{_MODULES[name]}")
    if name in _GROUPS:
        made: Any = typer.main.get_command(module.app)
    else:
        alone = typer.Typer(add_completion=False)
        said = (getdoc(module.command) or "").replace("[", "\\[")  # sections are no markup
        alone.command(name, help=said, epilog=epilog(name))(module.command)
        made = typer.main.get_command(alone)
    for one in (made, *getattr(made, "commands", {}).values()):
        one.context_settings = {**one.context_settings, **_HELP}
    return made


class _Commands(MutableMapping[str, Any]):
    """Commands by name, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        if name not in _MODULES:
            raise KeyError(name)
        return _command(name)

    def __setitem__(self, name: str, value: Any) -> None:
        raise TypeError("commands are those of _MODULES")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are those of _MODULES")

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class _Group(TyperGroup):
    """The program; its commands are made as they are asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()


def _lighten() -> None:
    """Leave out what a command that soon ends has no need of: a quarter of `predict`.

    Python looks for circles after 700 new objects, and at last through all that there is, which
    goes with the process; pydantic looks through all packages for plug-ins.
    """
    gc.set_threshold(200_000, 20, 20)
    atexit.register(gc.freeze)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


class _Program(typer.Typer):
    """The command as a shell starts it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        _lighten()
        with sound_streams():
            return super().__call__(*arguments, **options)


app = _Program(
    name="foreshard",
    cls=_Group,
    help="Plan, predict and explain large-model training on a GPU cluster.",
    no_args_is_help=True,
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
