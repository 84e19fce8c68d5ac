"""The screen of `foreshard doctor`."""

from __future__ import annotations

from rich.text import Text

from simulator.cli.screen import NO_FIT, console, notes
from simulator.doctor.examine import Examination
from simulator.doctor.identities import IDENTITIES

__all__ = ["show"]

_LINES = 40


def show(found: Examination) -> None:
    """Print how much was examined, what does not fit together, and what is broken."""
    screen = console()
    refused = sum(found.refused.values())
    screen.print(f"{found.predicted:,} combinations of model, cluster and software predicted")
    screen.print(notes("Held against each", list(IDENTITIES)))
    if refused:
        often = sorted(found.refused.items(), key=lambda item: -item[1])
        lines = [f"{count:,}: {reason}" for reason, count in often[:_LINES]]
        screen.print(notes(f"{refused:,} do not fit together", lines))
    if not found.findings:
        screen.print("nothing broken")
        return
    broken = [
        f"{one.combination.model} on {one.combination.cluster} by {one.combination.software}:"
        f" {one.broken.identity}: {one.broken.said}"
        for one in found.findings
    ]
    screen.print(Text(f"{len(broken):,} broken", style=NO_FIT))
    more = [f"and {len(broken) - _LINES:,} more, see --json"] if len(broken) > _LINES else []
    screen.print(notes("", [*broken[:_LINES], *more]))
