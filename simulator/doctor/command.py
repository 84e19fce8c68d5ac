"""`foreshard doctor`: identities that every answer obeys, on the profiles that are here.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from simulator.cli.runner import Reply, question
from simulator.cli.screen import NO_FIT, Progress, notes

if TYPE_CHECKING:
    from simulator.doctor.examine import Examination


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
    from simulator.doctor.examine import every_pair, examine, one_of_each, own_profiles

    cases = every_pair() if everything else [*one_of_each(), *own_profiles()]
    with Progress("examining") as progress:
        examination = examine(cases, progress=progress)
    return Reply(examination, screen, feasible=not examination.findings)


_LINES = 40


def screen(examination: Examination) -> Iterator[RenderableType]:
    """Give how much was examined, what does not fit together, and what is broken."""
    from simulator.doctor.examine import IDENTITIES

    refused = sum(examination.refused.values())
    yield f"{examination.predicted:,} combinations of model, cluster and software predicted"
    yield notes("Held against each", list(IDENTITIES))
    if refused:
        often = sorted(examination.refused.items(), key=lambda item: -item[1])
        lines = [f"{count:,}: {reason}" for reason, count in often[:_LINES]]
        yield notes(f"{refused:,} do not fit together", lines)
    if not examination.findings:
        yield "nothing broken"
        return
    broken = [
        f"{finding.combination.model} on {finding.combination.cluster} by"
        f" {finding.combination.software}: {finding.broken.identity}: {finding.broken.said}"
        for finding in examination.findings
    ]
    yield Text(f"{len(broken):,} broken", style=NO_FIT)
    more = [f"and {len(broken) - _LINES:,} more, see --json"] if len(broken) > _LINES else []
    yield notes("", [*broken[:_LINES], *more])
