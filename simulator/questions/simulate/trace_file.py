"""`--trace FILE` of plan and predict: the simulated step for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import check_out, writing

if TYPE_CHECKING:
    from simulator.cost.estimate import Estimate
    from simulator.events.played import SimulatedStep
    from simulator.scenario import Scenario

Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Play the (best) layout on discrete events and write what every rank does when:"
        " FILE.json or FILE.json.gz, for ui.perfetto.dev.",
    ),
]


def check_trace(path: Path | None) -> None:
    """Refuse a name or place that no trace can have before the work starts."""
    from simulator.errors import InputError, problem

    if path is not None and not path.name.endswith((".json", ".json.gz")):
        rule = "must end in .json or .json.gz"
        raise InputError(problem("arguments", "--trace", rule, str(path)))
    check_out("--trace", path)


def title(scenario: Scenario, estimate: Estimate) -> str:
    """Say in one line what was simulated."""
    cluster = scenario.cluster
    place = f"{cluster.gpus:,} GPU{'s' * (cluster.gpus > 1)} of {cluster.name}"
    return f"{scenario.workload.architecture.name} on {place}: {estimate.layouts.describe()}"


def write_trace(step: SimulatedStep, path: Path, about: str) -> None:
    """Write the trace, whole or not at all."""
    from simulator.cli.screen import waiting
    from simulator.interop.traces.perfetto import trace_bytes
    from simulator.plain_files import write_files

    with writing(path, "--trace"), waiting("writing the trace"):
        write_files({path: trace_bytes(step, gzipped=path.name.endswith(".gz"), title=about)})
