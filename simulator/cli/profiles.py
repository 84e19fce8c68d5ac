"""`foreshard profiles`: what is in the catalogue, where each figure is from, whether it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import BAD_INPUT, Json, print_json, speaking

__all__ = ["app"]

app = typer.Typer(
    name="profiles",
    help="List, show and check the profiles of hardware, software and prices.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("list")
def list_profiles(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="accelerators, nodes, clusters, ...")
    ] = "",
    as_json: Json = False,
) -> None:
    """List profiles by kind: how many figures are measured, fitted, datasheet, assumed."""
    with speaking():
        from simulator.profiles import load_all
        from simulator.profiles.documents import list_document

        found = load_all(kind)
        if as_json:
            print_json(list_document(found))
        else:
            from simulator.cli.screen_profiles import show_list

            show_list(found)


@app.command("show")
def show_profile(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Such as h200-sxm or nodes/dgx-h100, or a file.")
    ],
    as_json: Json = False,
) -> None:
    """Show every figure of a profile with its grade, spread, date and source."""
    with speaking():
        from simulator.profiles import find_named, load
        from simulator.profiles.check import kind_of
        from simulator.profiles.documents import show_document

        path = Path(name)
        is_file = name.endswith(".toml")
        places = [(kind_of(path), path)] if is_file else find_named(name)
        found = [load(*place) for place in places]
        if as_json:
            print_json(show_document(found))
        else:
            from simulator.cli.screen_profiles import show_whole

            for profile in found:
                show_whole(profile)


@app.command("check")
def check_profiles(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE...]", help="Profiles of your own; all if none is given."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that profiles can be read, refer to what exists and stay within physical limits.

    Exit code 2 where anything is wrong; every problem names file and field.
    """
    with speaking():
        from simulator import catalogue
        from simulator.profiles import KINDS
        from simulator.profiles.check import check
        from simulator.profiles.documents import check_document

        places = [("", path) for path in files or ()] or [
            (kind, catalogue.find(kind, name)) for kind in KINDS for name in catalogue.names(kind)
        ]
        # A base that is wrong shows in every profile on it: once is enough.
        problems = list(dict.fromkeys(p for kind, path in places for p in check(path, kind)))
        if as_json:
            print_json(check_document(len(places), problems))
        else:
            typer.echo("\n".join(problems), err=True, nl=bool(problems))
            wrong = f"{len(problems)} problems" if problems else "nothing wrong"
            typer.echo(f"{len(places)} profiles read, {wrong}")
        if problems:
            raise typer.Exit(BAD_INPUT)
