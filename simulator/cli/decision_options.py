"""Options that several commands share: dates, money, prices, confidence; a trace of the step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import check_out, writing
from simulator.errors import InputError, problem

if TYPE_CHECKING:
    from simulator.cost.estimate import Estimate
    from simulator.events.played import SimulatedStep
    from simulator.scenario import Scenario


_MOST = 1e15
"""Days and USD that somebody types; more of them no sum holds."""

Clusters = Annotated[
    str | None,
    typer.Option(
        "--clusters",
        metavar="A,B,...",
        help="Cluster profiles, or paths of some; a GPU (h100) for all that have it, or all; the"
        " scenario's own unless given.",
    ),
]
Counts = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="N,A..B",
        help="Accelerators: 512, 64..4096 (doubling, whole servers) or 128..256:32 (in steps).",
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="90d", help="Latest end: days, or with d, h or w."),
]
Budget = Annotated[
    str | None, typer.Option("--budget", metavar="USD", help="Most money: 2e6, 2M or 800k.")
]
Ideal = Annotated[
    bool,
    typer.Option(
        "--ideal", help="Steps x step time alone: neither failures nor the planning factor."
    ),
]
Confidence = Annotated[
    float,
    typer.Option(
        "--confidence",
        metavar="P",
        help="Chance with which deadline and budget must be met: 0.9 asks their P90.",
    ),
]
Law = Annotated[
    str,
    typer.Option(
        "--law",
        metavar="NAME",
        help="Scaling law (hardware_profiles/scaling_laws), or path of one.",
    ),
]
Largest = Annotated[
    int | None,
    typer.Option("--largest", metavar="N", min=1, help="Most accelerators to try."),
]
Price = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="[CLUSTER=]USD",
        help="USD of an accelerator's hour, of every cluster or of one; may be repeated.",
    ),
]
Offers = Annotated[
    str | None,
    typer.Option(
        "--offers",
        metavar="CSV",
        help="Table of offers (docs/decisions.md has its columns), each row compared at its own"
        " price; published: the one that is shipped.",
    ),
]
Region = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="NAME",
        help="Where the electricity comes from, for its carbon; that of the price's site unless"
        " given.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", metavar="N", min=1, help="Processes; all cores unless given."),
]
OutFolder = Annotated[
    "Path | None",
    typer.Option("--out", metavar="DIR", help="Write pictures, the JSON document and a CSV there."),
]

IDEAL = "goal.ideal=true"
"""What --ideal says of a scenario."""

_UNIT_DAYS = {"d": 1.0, "day": 1.0, "days": 1.0, "w": 7.0, "week": 7.0, "weeks": 7.0,
            "h": 1.0 / 24.0, "hour": 1.0 / 24.0, "hours": 1.0 / 24.0}  # fmt: skip
"""Days of each unit."""

_UNIT_BEHIND = re.compile(r"(?<=[0-9.])\s*([A-Za-z]+)$")
"""Letters behind the last digit of a number."""


def days_of(text: str | None, field: str = "--deadline") -> float | None:
    """Read a time as days.

    Raises
    ------
    InputError
        If it is none, or not above 0.

    Examples
    --------
    >>> days_of("90d"), days_of("36 h"), days_of("12w"), days_of("7"), days_of("5e-1")
    (90.0, 1.5, 84.0, 7.0, 0.5)
    """
    if text is None:
        return None
    unit = _UNIT_BEHIND.search(text.strip())
    number = text.strip()[: unit.start()] if unit else text
    scale = _UNIT_DAYS.get(unit[1]) if unit else 1.0
    return _positive(number, text, field, scale, "must be days: 90, 90d, 36h")


def usd_of(text: str | None, field: str = "--budget") -> float | None:
    """Read an amount of money as USD.

    Raises
    ------
    InputError
        If it is none, or not above 0.

    Examples
    --------
    >>> usd_of("2e6"), usd_of("2.5M"), usd_of("800k")
    (2000000.0, 2500000.0, 800000.0)
    """
    if text is None:
        return None
    stripped = text.strip().removesuffix("USD").strip()
    scale = {"k": 1e3, "M": 1e6, "B": 1e9}.get(stripped[-1:], 0.0)
    number = stripped[:-1] if scale else stripped
    return _positive(number, text, field, scale or 1.0, "must be USD: 2e6, 2M or 800k")


def _positive(number: str, text: str, field: str, scale: float | None, rule: str) -> float:
    try:
        value = float(number) * (scale or float("nan"))
    except ValueError:
        value = float("nan")
    if not 0.0 < value <= _MOST:
        rule = f"{rule}, above 0 and at most {_MOST:g}"
        raise InputError(problem("command line", field, rule, text))
    return value


def clusters_of(text: str | None) -> list[str]:
    """Read names of clusters with commas between them; none where nobody gave any.

    Raises
    ------
    InputError
        If what is given names none.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise InputError(problem("command line", "--clusters", "must be names of clusters", text))
    return names


def prices_of(texts: list[str] | None) -> dict[str, float]:
    """Read ``USD`` or ``CLUSTER=USD``, each as the price of an accelerator's hour.

    Raises
    ------
    InputError
        If one is neither, or not above 0.

    Examples
    --------
    >>> prices_of(["2.10", "l40s-pcie=0.80"])
    {'*': 2.1, 'l40s-pcie': 0.8}
    """
    prices = {}
    for text in texts or ():
        name, equals, number = text.rpartition("=")
        rule = "must be USD or CLUSTER=USD"
        if equals and not name.strip():
            raise InputError(problem("command line", "--price", rule, text))
        prices[name.strip() or "*"] = _positive(number, text, "--price", 1.0, rule)
    return prices


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
