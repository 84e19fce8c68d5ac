"""`foreshard validate --trace TRACE.json`: a profiled step beside its prediction, by cause.

The command first, then its screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from simulator.cli.runner import Reply
from simulator.cli.screen import (
    amount,
    gib,
    heading,
    notes,
    plain_table,
    seconds_like,
    table_of,
    waiting,
)
from simulator.errors import InputError
from simulator.glossary import CAVEATS
from simulator.units import MIB, show_seconds

if TYPE_CHECKING:
    from simulator.cli.option_groups import ScenarioOptions
    from simulator.scoring.trace import CollectiveTime
    from simulator.scoring.trace_gap import TraceComparison


TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="TRACE",
        help="What torch.profiler exported of one rank (.json[.gz]), or nsys (.sqlite).",
    ),
]
TraceSteps = Annotated[
    int | None,
    typer.Option(
        "--trace-steps", metavar="N", min=1, help="Steps in the trace, if it does not mark them."
    ),
]


def validate_trace(
    trace: Path | None,
    scenario: Path | None,
    options: ScenarioOptions,
    *,
    steps: int | None,
    others: Mapping[str, Any],
) -> Reply | None:
    """Answer `foreshard validate` where a trace is given; None where none is.

    Parameters
    ----------
    trace : path, optional
    scenario, options
        What describes the run.
    steps : int, optional
        Steps that the whole trace covers.
    others : mapping
        What cannot be given together with a trace, by its option.

    Raises
    ------
    InputError
        With the problems of trace and scenario.
    """
    if trace is None:
        if steps is not None:
            raise InputError("--trace-steps: only with --trace TRACE")
        return None
    from simulator.interop.traces.kineto import read_trace  # tables of runs go without
    from simulator.interop.traces.nsys import is_nsys, read_nsys
    from simulator.scoring.trace import measure
    from simulator.scoring.trace_gap import compare_trace

    if wrong := [name for name, value in others.items() if value]:
        raise InputError(f"{', '.join(wrong)}: cannot be given together with --trace")
    described = options.scenario(scenario)
    with waiting(f"reading {trace.name}"):
        read = read_nsys(trace) if is_nsys(trace) else read_trace(trace)
        comparison = compare_trace(measure(read, steps=steps), described)
    return Reply(comparison, trace_screen, _document)


def _document(comparison: TraceComparison) -> dict[str, Any]:
    from simulator.answers import head

    return {**head("validate"), **comparison.document()}


def trace_screen(trace_comparison: TraceComparison) -> Iterator[RenderableType]:
    """Give a comparison: step, causes of the gap, collectives, memory."""
    step = trace_comparison.step
    yield heading(trace_comparison.prediction.scenario).append(" ")
    yield f"{_verdict(trace_comparison)} "
    yield from (_causes(trace_comparison), "")
    if step.collectives:
        yield from (_collectives(step.collectives), "")
    memory = [
        f"{kind}: predicted {gib(predicted)} GiB at peak (worst rank), measured {gib(measured)} GiB"
        f" on this one ({_percent(predicted / measured - 1.0)})"
        for kind, (predicted, measured) in trace_comparison.memory_bytes().items()
        if measured
    ]
    yield notes("peak memory", memory or ["not profiled (profile_memory=True records it)"])
    yield notes(CAVEATS, trace_comparison.notes)


def _verdict(comparison: TraceComparison) -> str:
    step, prediction = comparison.step, comparison.prediction
    layout = prediction.estimate.layouts.describe()
    rank = "" if step.trace.rank is None else f", rank {step.trace.rank}"
    return (
        f"{layout}\nstep: predicted {show_seconds(prediction.step_time_s)}, measured"
        f" {show_seconds(step.step_s)} ({_percent(prediction.step_time_s / step.step_s - 1)})"
        f"\n{step.trace.device or 'processors'}{rank}: the mean of {step.counted} of"
        f" {step.steps} steps in {step.trace.where}"
    )


def _causes(trace_comparison: TraceComparison) -> Table:
    """Causes of the gap, the largest first; the gaps add up to the last line."""
    unit, scale = seconds_like(
        max(trace_comparison.prediction.step_time_s, trace_comparison.step.step_s)
    )
    title = f"{unit} of a step"
    table = plain_table(
        title,
        "predicted",
        "measured",
        "gap",
        "of the gap",
        "hidden: predicted",
        "measured",
        left=(title,),
    )
    for cause in trace_comparison.causes:
        hidden = (cause.predicted_hidden_s, cause.measured_hidden_s)
        table.add_row(
            cause.label,
            *(amount(scale * seconds) for seconds in (cause.predicted_s, cause.measured_s)),
            f"{scale * cause.gap_s:+,.3f}",
            _percent(trace_comparison.share(cause), sign=""),
            *(amount(scale * seconds) if any(hidden) else "" for seconds in hidden),
        )
    table.add_row(
        "sum = step",
        *(
            amount(scale * s)
            for s in (trace_comparison.prediction.step_time_s, trace_comparison.step.step_s)
        ),
        f"{scale * trace_comparison.gap_s:+,.3f}",
        "100.0 %" if trace_comparison.gap_s else "-",
        style="bold",
    )
    return table


def _collectives(times: tuple[CollectiveTime, ...]) -> Table:
    """Measured collectives by kind and group, per step."""
    unit, scale = seconds_like(max(time.exposed_s + time.hidden_s for time in times))

    def group(time: CollectiveTime) -> str:
        words = (time.collective.group, time.collective.description)
        return " ".join(filter(None, words)) or "not stated"

    return table_of(
        times,
        ("measured collectives", lambda time: time.collective.kind),
        ("group", group),
        ("ranks", lambda time: "-" if time.collective.size is None else f"{time.collective.size}"),
        ("calls", lambda time: f"{time.calls:,.1f}"),
        ("MiB each", lambda time: "-" if time.bytes_ is None else amount(time.bytes_ / MIB)),
        (f"exposed ({unit})", lambda time: amount(scale * time.exposed_s)),
        (f"hidden ({unit})", lambda time: amount(scale * time.hidden_s)),
        left=("measured collectives", "group"),
    )


def _percent(share: float | None, sign: str = "+") -> str:
    return "-" if share is None else f"{100 * share:{sign}.1f} %"
