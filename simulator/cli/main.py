"""The command `foreshard`; each command parses, calls one library function, prints the answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simulator._version import __version__
from simulator.cli import (
    calibrate,
    calibrate_here,
    cluster_init,
    compare,
    distil,
    doctor,
    explain,
    export,
    list_fields,
    list_models,
    measure,
    parameter_server,
    plan,
    predict,
    profiles,
    recommender,
    rent_or_buy,
    schedule_jobs,
    serve,
    simulate,
    sites,
    size,
    sweep,
    validate,
    versus,
    what_if,
)
from simulator.cli.examples import epilog
from simulator.cli.standard_streams import sound_streams

__all__ = ["app"]


class _Program(typer.Typer):
    """The command as a shell starts it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        with sound_streams():
            return super().__call__(*arguments, **options)


app = _Program(
    name="foreshard",
    help="Plan, predict and explain large-model training on a GPU cluster.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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


for _name, _module in {
    "plan": plan,
    "predict": predict,
    "export": export,
    "serve": serve,
    "simulate": simulate,
    "compare": compare,
    "size": size,
    "doctor": doctor,
    "rent-or-buy": rent_or_buy,
    "what-if": what_if,
    "versus": versus,
    "sweep": sweep,
    "models": list_models,
    "fields": list_fields,
    "explain": explain,
    "sites": sites,
    "parameter-server": parameter_server,
    "recommender": recommender,
    "schedule": schedule_jobs,
    "distil": distil,
    "validate": validate,
    "measure": measure,
    "calibrate": calibrate,
    "calibrate-here": calibrate_here,
}.items():
    app.command(_name, epilog=epilog(_name))(_module.command)
app.add_typer(profiles.app)
app.add_typer(cluster_init.app)

if __name__ == "__main__":
    app()
