"""The screen of `foreshard doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from simulator.cli.screen import NO_FIT, notes
from simulator.doctor.examine import Examination
from simulator.doctor.identities import IDENTITIES

_LINES = 40


def screen(examination: Examination) -> Iterator[RenderableType]:
    """Give how much was examined, what does not fit together, and what is broken."""
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
