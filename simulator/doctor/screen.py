"""The screen of `foreshard doctor`."""

from __future__ import annotations

from rich.text import Text

from simulator.cli.screen import NO_FIT, console, notes
from simulator.doctor.examine import Examination
from simulator.doctor.identities import IDENTITIES

_LINES = 40


def show(examination: Examination) -> None:
    """Print how much was examined, what does not fit together, and what is broken."""
    screen = console()
    refused = sum(examination.refused.values())
    screen.print(f"{examination.predicted:,} combinations of model, cluster and software predicted")
    screen.print(notes("Held against each", list(IDENTITIES)))
    if refused:
        often = sorted(examination.refused.items(), key=lambda item: -item[1])
        lines = [f"{count:,}: {reason}" for reason, count in often[:_LINES]]
        screen.print(notes(f"{refused:,} do not fit together", lines))
    if not examination.findings:
        screen.print("nothing broken")
        return
    broken = [
        f"{finding.combination.model} on {finding.combination.cluster} by"
        f" {finding.combination.software}: {finding.broken.identity}: {finding.broken.said}"
        for finding in examination.findings
    ]
    screen.print(Text(f"{len(broken):,} broken", style=NO_FIT))
    more = [f"and {len(broken) - _LINES:,} more, see --json"] if len(broken) > _LINES else []
    screen.print(notes("", [*broken[:_LINES], *more]))
