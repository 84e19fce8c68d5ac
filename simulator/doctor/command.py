"""`foreshard doctor`: identities that every answer obeys, on the profiles that are here."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import Json, print_json, speaking

Everything = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Every model on every cluster, every software on both (4,000 predictions, minutes);"
        " without it every profile once, and every pair of your own (FORESHARD_PROFILES).",
    ),
]


def command(everything: Everything = False, as_json: Json = False) -> None:
    """Check the simulator against itself: what must hold for every answer, whatever its figures.

    Terms add up to the step; FLOPs by weights, operators and formula agree; bytes rank by rank and
    in the table agree; no device passes its peak; money is hours by price; energy lies between all
    idle and all busy.

    Exit 0: all hold; 1: some identity is broken; 2: bad input.
    """
    with speaking():
        from simulator.cli.screen import Progress
        from simulator.doctor.combinations import every_pair, one_of_each, own_profiles
        from simulator.doctor.examine import examine

        cases = every_pair() if everything else [*one_of_each(), *own_profiles()]
        with Progress("examining") as progress:
            found = examine(cases, progress=progress)
        if as_json:
            print_json(found.document())
        else:
            from simulator.doctor.screen import show

            show(found)
        if found.findings:
            raise typer.Exit(1)
