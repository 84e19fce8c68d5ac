"""The command `foreshard`; each command parses, calls one library function, prints the answer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from simulator._version import __version__
from simulator.cli import (
    calibrate,
    calibrate_here,
    compare,
    doctor,
    explain,
    list_fields,
    list_models,
    measure,
    plan,
    predict,
    profiles,
    rent_or_buy,
    simulate,
    sites,
    size,
    sweep,
    validate,
    versus,
    what_if,
)
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
    add_completion=False,
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


app.command("plan")(plan.command)
app.command("predict")(predict.command)
app.command("simulate")(simulate.command)
app.command("compare")(compare.command)
app.command("size")(size.command)
app.command("doctor")(doctor.command)
app.command("rent-or-buy")(rent_or_buy.command)
app.command("what-if")(what_if.command)
app.command("versus")(versus.command)
app.command("sweep")(sweep.command)
app.command("models")(list_models.command)
app.command("fields")(list_fields.command)
app.command("explain")(explain.command)
app.command("sites")(sites.command)
app.command("validate")(validate.command)
app.command("measure")(measure.command)
app.command("calibrate")(calibrate.command)
app.command("calibrate-here")(calibrate_here.command)
app.add_typer(profiles.app)

if __name__ == "__main__":
    app()
