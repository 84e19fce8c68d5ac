"""`foreshard doctor`: identities that every answer obeys, on the profiles that are here."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.runner import Reply, question

Everything = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Every model on every cluster, every software on both (4,000 predictions, minutes);"
        " without it every profile once, and every pair of your own (FORESHARD_PROFILES).",
    ),
]


@question("doctor", "doctor")
def ask(*, everything: Everything = False) -> Reply:
    """Check the simulator against itself: what must hold for every answer, whatever its figures.

    Terms add up to the step; FLOPs by weights, operators and formula agree; bytes rank by rank and
    in the table agree; no device passes its peak; money is hours by price; energy lies between all
    idle and all busy.

    Exit 0: all hold; 1: some identity is broken; 2: bad input.
    """
    from simulator.cli.screen import Progress
    from simulator.doctor.combinations import every_pair, one_of_each, own_profiles
    from simulator.doctor.examine import examine
    from simulator.doctor.screen import screen

    cases = every_pair() if everything else [*one_of_each(), *own_profiles()]
    with Progress("examining") as progress:
        examination = examine(cases, progress=progress)
    return Reply(examination, screen, feasible=not examination.findings)
